"""Residual networks for 32x32 images: the critic of WGAN-GP, and ResNet-18 as solver or critic.

    ResidualTrunk   32x32 ─ block/2 ─> 16x16 ─ block/2 ─> 8x8 ─ block ─> 8x8 ─ block ─ ReLU, mean ─> w features
    ResNet18        32x32 ─ 3x3, 2 blocks of w ─ 2 of 2w/2 ─ 2 of 4w/2 ─ 2 of 8w/2 ─ mean ─> 8w features

A critic's has no normalisation: a penalty per image forbids mixing images.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.nets.dcgan import Norm
from engram.nets.norm import BatchNorm2d
from engram.plastic.wiring import over_square


class CriticBlock(nn.Module):
    """x ─ (ReLU) 3x3, ReLU, 3x3 (halved) + x (halved, 1x1); the very first block has no ReLU before it."""

    def __init__(self, n_in: int, n_out: int, *, halves: bool, first: bool, generator: torch.Generator) -> None:
        super().__init__()
        self.halves, self.first = halves, first
        self.inner = _convolution(n_in, n_out, 3, generator)
        self.outer = _convolution(n_out, n_out, 3, generator)
        self.short = _convolution(n_in, n_out, 1, generator, gain=1.0) if halves or n_in != n_out else None

    def forward(self, x: Tensor) -> Tensor:
        return self.with_stand(x)[0]

    def with_stand(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output, and where the inner units stand."""
        stand = self.inner(x if self.first else F.relu(x))
        y, short = F.relu(stand), x
        if self.halves:  # halving and a 1x1 convolution commute
            y, short = F.conv2d(y, self._halving(), self.outer.bias, stride=2, padding=1), F.avg_pool2d(x, 2)
        else:
            y = self.outer(y)
        if self.short is not None:
            short = self.short(short)
        return y + short, stand

    def _halving(self) -> Tensor:
        """The outer convolution and the mean over 2x2 pixels after it, as one kernel of stride 2."""
        return over_square(self.outer.weight).div(4).contiguous(memory_format=torch.channels_last)

    def pull_back(self, x: Tensor, stand: Tensor, delta: Tensor) -> Tensor:
        """From the gradient of a sum of outputs to that of the block's input x."""
        short = delta
        if self.short is not None:
            short = F.conv_transpose2d(delta, self.short.weight)
        if self.halves:
            short = F.interpolate(short, scale_factor=2, mode="nearest") / 4
            delta = F.conv_transpose2d(delta, self._halving(), stride=2, padding=1)
        else:
            delta = F.conv_transpose2d(delta, self.outer.weight, padding=1)
        delta = delta * (stand > 0)
        delta = F.conv_transpose2d(delta, self.inner.weight, padding=1)
        return short + (delta if self.first else delta * (x > 0))


def _convolution(n_in: int, n_out: int, kernel: int, generator: torch.Generator, gain: float = 2.0) -> nn.Conv2d:
    made = nn.Conv2d(n_in, n_out, kernel, padding=kernel // 2)
    nn.init.normal_(made.weight, std=(gain / (n_in * kernel**2)) ** 0.5, generator=generator)
    nn.init.zeros_(made.bias)  # type: ignore[arg-type]
    return made


class ResidualTrunk(nn.Module):
    """The critic of Gulrajani et al. 2017 for 32x32 images, without its last layer."""

    def __init__(self, channels: int, width: int, *, generator: torch.Generator) -> None:
        super().__init__()
        ends = [channels, width, width, width, width]
        self.blocks = nn.ModuleList(
            CriticBlock(ends[n], ends[n + 1], halves=n < 2, first=n == 0, generator=generator) for n in range(4)
        )
        self.features = width

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, 32, 32) in [-1, 1] -> (B, features)."""
        for block in self.blocks:
            x = block(x)
        return F.relu(x).mean((2, 3))

    def pull_back(self, x: Tensor, direction: Tensor) -> Tensor:
        """The gradient of <direction, features> with respect to each image, as `Trunk.pull_back`."""
        inputs, stands = [], []
        with torch.no_grad():
            for block in self.blocks:
                assert isinstance(block, CriticBlock)
                inputs.append(x)
                x, stand = block.with_stand(x)
                stands.append(stand)
        delta = direction[:, :, None, None] / x[0, 0].numel() * (x > 0)
        for block, before, stand in zip(reversed(self.blocks), reversed(inputs), reversed(stands), strict=True):
            assert isinstance(block, CriticBlock)
            delta = block.pull_back(before, stand, delta.contiguous(memory_format=torch.channels_last))
        return delta


class ResNetBlock(nn.Module):
    """Two 3x3 convolutions around which the input is led past (He et al. 2016)."""

    def __init__(self, n_in: int, n_out: int, *, stride: int, norm: Norm, generator: torch.Generator) -> None:
        super().__init__()
        self.first = _bare(n_in, n_out, 3, stride, norm, generator)
        self.second = _bare(n_out, n_out, 3, 1, norm, generator)
        self.stride = stride
        self.first_norm, self.second_norm = _norm(n_out, norm), _norm(n_out, norm)
        self.short = (
            nn.Sequential(_bare(n_in, n_out, 1, 1, norm, generator), _norm(n_out, norm))
            if stride > 1 or n_in != n_out
            else nn.Identity()
        )
        if norm == "none":
            # every sum would double what it is given; like this, eight of them let it grow less than threefold
            with torch.no_grad():
                self.second.weight.div_((2 * RESNET_BLOCKS) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.with_stand(x)[0]

    def with_stand(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output, and where the inner units stand."""
        stand = self.first_norm(self.first(x))
        # a 1x1 convolution of stride 2 skips pixels; skipped here, since with fewer than 8 channels its gradient
        # writes outside its memory (oneDNN, channels_last)
        x = x[:, :, :: self.stride, :: self.stride]
        return F.relu(self.second_norm(self.second(F.relu(stand))) + self.short(x)), stand

    def pull_back(self, stand: Tensor, out: Tensor, delta: Tensor) -> Tensor:
        """From the gradient of a sum of outputs to that of the block's input, without normalisation."""
        delta = (delta * (out > 0)).contiguous(memory_format=torch.channels_last)
        inner = F.conv_transpose2d(delta, self.second.weight, padding=1) * (stand > 0)
        inner = F.conv_transpose2d(
            inner, self.first.weight, stride=self.stride, padding=1, output_padding=self.stride - 1
        )
        short = delta
        if isinstance(self.short, nn.Sequential):
            convolution = self.short[0]
            assert isinstance(convolution, nn.Conv2d)
            short = F.conv_transpose2d(delta, convolution.weight)
        inner[:, :, :: self.stride, :: self.stride] += short  # the pixels that the shortcut reads
        return inner


def _bare(n_in: int, n_out: int, kernel: int, stride: int, norm: Norm, generator: torch.Generator) -> nn.Conv2d:
    """A convolution before a normalisation, which makes a bias superfluous and its scale a matter of taste."""
    made = nn.Conv2d(n_in, n_out, kernel, stride=stride, padding=kernel // 2, bias=norm == "none")
    way: Literal["fan_in", "fan_out"] = "fan_in" if norm == "none" else "fan_out"
    nn.init.kaiming_normal_(made.weight, mode=way, nonlinearity="relu", generator=generator)
    if made.bias is not None:
        nn.init.zeros_(made.bias)
    return made


def _norm(units: int, norm: Norm) -> nn.Module:
    return BatchNorm2d(units) if norm == "batch" else nn.Identity()


RESNET_BLOCKS = 8


class ResNet18(nn.Module):
    """For 32x32 images: a 3x3 convolution of stride 1 at the start and no pooling; 64 is the usual width.

    With `norm="none"` it is a critic's trunk: a gradient penalty takes each image's own slope, and batch normalisation
    would make every score depend on the other images of the batch. Biases stand in for the shifts, and a smaller second
    convolution in each block keeps the sums in hand.
    """

    def __init__(self, channels: int, width: int, *, norm: Norm = "batch", generator: torch.Generator) -> None:
        super().__init__()
        self.stem, self.norm = _bare(channels, width, 3, 1, norm, generator), _norm(width, norm)
        blocks, n_in = [], width
        for number in range(RESNET_BLOCKS):
            stage, again = divmod(number, 2)
            n_out = width * 2**stage
            stride = 2 if stage and not again else 1
            blocks.append(ResNetBlock(n_in, n_out, stride=stride, norm=norm, generator=generator))
            n_in = n_out
        self.blocks = nn.Sequential(*blocks)
        self.features = n_in

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, 32, 32) in [-1, 1] -> (B, features)."""
        features: Tensor = self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3))
        return features

    def pull_back(self, x: Tensor, direction: Tensor) -> Tensor:
        """The gradient of <direction, features> with respect to each image, as `Trunk.pull_back`."""
        with torch.no_grad():
            start = x = F.relu(self.stem(x))
            stands, outs = [], []
            for block in self.blocks:
                assert isinstance(block, ResNetBlock)
                x, stand = block.with_stand(x)
                stands.append(stand)
                outs.append(x)
        delta = direction[:, :, None, None] / x[0, 0].numel()
        for block, stand, out in zip(reversed(self.blocks), reversed(stands), reversed(outs), strict=True):
            assert isinstance(block, ResNetBlock)
            delta = block.pull_back(stand, out, delta)
        delta = (delta * (start > 0)).contiguous(memory_format=torch.channels_last)
        return F.conv_transpose2d(delta, self.stem.weight, padding=1)
