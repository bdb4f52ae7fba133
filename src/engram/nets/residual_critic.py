"""The critic of WGAN-GP (Gulrajani et al. 2017) for small images: residual blocks without normalisation.

    32x32 ─ block/2 ─> 16x16 ─ block/2 ─> 8x8 ─ block ─> 8x8 ─ block ─ ReLU, mean ─> w features

An image of 64 x 64 has one more block that halves it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.context import Shape
from engram.nets.graph import over_square
from engram.ops.convolutions import blank_convolution

LAST_SIDE = 8
"""Pixels to which an image is halved."""
PLAIN_BLOCKS = 2
"""Blocks after the last halving."""


class CriticBlock(nn.Module):
    """x ─ (ReLU) 3x3, ReLU, 3x3 (halved) + x (halved, 1x1); the very first block has no ReLU before it."""

    def __init__(self, n_in: int, n_out: int, *, halves: bool, first: bool, generator: torch.Generator) -> None:
        super().__init__()
        self.halves, self.first = halves, first
        self.inner = _convolution(n_in, n_out, 3, generator)
        self.outer = _convolution(n_out, n_out, 3, generator)
        self.short = _convolution(n_in, n_out, 1, generator, gain=1.0) if halves or n_in != n_out else None

    def forward(self, x: Tensor) -> Tensor:
        return self.with_pre_activation(x)[0]

    def with_pre_activation(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output, and the pre-activations inside."""
        pre_activation = self.inner(x if self.first else F.relu(x))
        y, short = F.relu(pre_activation), x
        if self.halves:  # halving and a 1x1 convolution commute
            y, short = F.conv2d(y, self._halving(), self.outer.bias, stride=2, padding=1), F.avg_pool2d(x, 2)
        else:
            y = self.outer(y)
        if self.short is not None:
            short = self.short(short)
        return y + short, pre_activation

    def _halving(self) -> Tensor:
        """The outer convolution and the mean over 2x2 pixels after it, as one kernel of stride 2."""
        return over_square(self.outer.weight).div(4).contiguous(memory_format=torch.channels_last)

    def pull_back(self, x: Tensor, pre_activation: Tensor, delta: Tensor) -> Tensor:
        """From the gradient of a sum of outputs to that of the block's input x."""
        short = delta
        if self.short is not None:
            short = F.conv_transpose2d(delta, self.short.weight)
        if self.halves:
            short = F.interpolate(short, scale_factor=2, mode="nearest") / 4
            delta = F.conv_transpose2d(delta, self._halving(), stride=2, padding=1)
        else:
            delta = F.conv_transpose2d(delta, self.outer.weight, padding=1)
        delta = delta * (pre_activation > 0)
        delta = F.conv_transpose2d(delta, self.inner.weight, padding=1)
        return short + (delta if self.first else delta * (x > 0))


def _convolution(n_in: int, n_out: int, kernel: int, generator: torch.Generator, gain: float = 2.0) -> nn.Conv2d:
    made = blank_convolution(n_in, n_out, kernel, padding=kernel // 2)
    nn.init.normal_(made.weight, std=(gain / (n_in * kernel**2)) ** 0.5, generator=generator)
    nn.init.zeros_(made.bias)  # type: ignore[arg-type]
    return made


class ResidualTrunk(nn.Module):
    """The blocks and the mean over pixels, without the last layer."""

    def __init__(self, shape: Shape, width: int, *, generator: torch.Generator) -> None:
        super().__init__()
        halvings = (shape[1] // LAST_SIDE).bit_length() - 1
        self.blocks = nn.ModuleList(
            CriticBlock(width if n else shape[0], width, halves=n < halvings, first=n == 0, generator=generator)
            for n in range(halvings + PLAIN_BLOCKS)
        )
        self.features = width

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) in [-1, 1] -> (B, features)."""
        for block in self.blocks:
            x = block(x)
        return F.relu(x).mean((2, 3))

    def pull_back(self, x: Tensor, direction: Tensor) -> Tensor:
        """The gradient of <direction, features> with respect to each image, as `ConvTrunk.pull_back`."""
        inputs, pre_activations = [], []
        with torch.no_grad():
            for block in self.blocks:
                assert isinstance(block, CriticBlock)
                inputs.append(x)
                x, pre_activation = block.with_pre_activation(x)
                pre_activations.append(pre_activation)
        delta = direction[:, :, None, None] / x[0, 0].numel() * (x > 0)
        for block, before, pre_activation in zip(
            reversed(self.blocks), reversed(inputs), reversed(pre_activations), strict=True
        ):
            assert isinstance(block, CriticBlock)
            delta = block.pull_back(before, pre_activation, delta.contiguous(memory_format=torch.channels_last))
        return delta
