"""ResNet-18 for small images (He et al. 2016), as classifier or as a critic's trunk.

    32x32 ─ 3x3, 2 blocks of w ─ 2 of 2w/2 ─ 2 of 4w/2 ─ 2 of 8w/2 ─ mean ─> 8w features

An image of 64 x 64 is halved by the first convolution. A critic's has no normalisation.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.context import Shape
from engram.nets.classifier import Norm
from engram.ops.batch_norm import BatchNorm2d
from engram.ops.convolutions import blank_convolution


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
        return self.with_pre_activation(x)[0]

    def with_pre_activation(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output, and the pre-activations inside."""
        pre_activation = self.first_norm(self.first(x))
        # a 1x1 convolution of stride 2 skips pixels; skipped here, since with fewer than 8 channels its gradient
        # writes outside its memory (oneDNN, channels_last)
        x = x[:, :, :: self.stride, :: self.stride]
        return F.relu(self.second_norm(self.second(F.relu(pre_activation))) + self.short(x)), pre_activation

    def pull_back(self, pre_activation: Tensor, out: Tensor, delta: Tensor) -> Tensor:
        """From the gradient of a sum of outputs to that of the block's input, without normalisation."""
        delta = (delta * (out > 0)).contiguous(memory_format=torch.channels_last)
        inner = F.conv_transpose2d(delta, self.second.weight, padding=1) * (pre_activation > 0)
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
    made = blank_convolution(n_in, n_out, kernel, stride=stride, padding=kernel // 2, bias=norm == "none")
    way: Literal["fan_in", "fan_out"] = "fan_in" if norm == "none" else "fan_out"
    nn.init.kaiming_normal_(made.weight, mode=way, nonlinearity="relu", generator=generator)
    if made.bias is not None:
        nn.init.zeros_(made.bias)
    return made


def _norm(units: int, norm: Norm) -> nn.Module:
    return BatchNorm2d(units) if norm == "batch" else nn.Identity()


RESNET_BLOCKS = 8
BLOCKS_READ = 32
"""Side of the images that the first block is given, in pixels."""


class ResNet18(nn.Module):
    """For small images: a 3x3 convolution at the start and no pooling; 64 is the usual width.

    With `norm="none"` it is a critic's trunk: a gradient penalty takes each image's own gradient, and batch
    normalisation would make every score depend on the other images of the batch. Biases stand in for the shifts, and a
    smaller second convolution in each block keeps the sums in hand.
    """

    def __init__(self, shape: Shape, width: int, *, norm: Norm = "batch", generator: torch.Generator) -> None:
        super().__init__()
        self.stride = shape[1] // BLOCKS_READ
        self.stem, self.norm = _bare(shape[0], width, 3, self.stride, norm, generator), _norm(width, norm)
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
        """(B, C, H, W) in [-1, 1] -> (B, features)."""
        features: Tensor = self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3))
        return features

    def pull_back(self, x: Tensor, direction: Tensor) -> Tensor:
        """The gradient of <direction, features> with respect to each image, as `ConvTrunk.pull_back`."""
        with torch.no_grad():
            start = x = F.relu(self.stem(x))
            pre_activations, outs = [], []
            for block in self.blocks:
                assert isinstance(block, ResNetBlock)
                x, pre_activation = block.with_pre_activation(x)
                pre_activations.append(pre_activation)
                outs.append(x)
        delta = direction[:, :, None, None] / x[0, 0].numel()
        for block, pre_activation, out in zip(
            reversed(self.blocks), reversed(pre_activations), reversed(outs), strict=True
        ):
            assert isinstance(block, ResNetBlock)
            delta = block.pull_back(pre_activation, out, delta)
        delta = (delta * (start > 0)).contiguous(memory_format=torch.channels_last)
        return F.conv_transpose2d(
            delta, self.stem.weight, stride=self.stride, padding=1, output_padding=self.stride - 1
        )
