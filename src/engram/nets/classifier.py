"""The paper's networks for digits, and the head that grows.

    ConvTrunk     image (B, C, 32, 32) ─ conv 5x5/2 ─> w ─ conv 5x5/2 ─> 2w ─ conv 5x5/2 ─> 4w x 4 x 4 ─> features
    GrowingHead   features ─ linear ─> one score per class seen; gains a row with each class

An image of 64 x 64 has one convolution more, of 8w channels. Trunk and head together are the classifier. The same trunk
carries the critic of the generative methods.
"""

from __future__ import annotations

import itertools
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.context import Shape
from engram.ops.batch_norm import BatchNorm2d
from engram.ops.convolutions import blank_convolution, channels_last, doubled, halved

Norm = Literal["batch", "none"]

LEAK = 0.2
"""Slope of a leaky ReLU below zero."""
LAST_SIDE = 4
"""Pixels to which an image is halved."""


class ConvTrunk(nn.Module):
    """Convolutions of stride 2 down to 4 x 4 pixels, 5x5 in the paper, with leaky ReLU 0.2."""

    def __init__(
        self,
        shape: Shape,
        width: int = 32,
        *,
        kernel: int = 5,
        norm: Norm = "batch",
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        halvings = (shape[1] // LAST_SIDE).bit_length() - 1
        widths = [shape[0], *(width * 2**n for n in range(halvings))]
        self.convolutions = nn.ModuleList(
            blank_convolution(a, b, kernel, stride=2, padding=(kernel - 1) // 2, bias=norm == "none")
            for a, b in itertools.pairwise(widths)
        )
        self.norms = nn.ModuleList(BatchNorm2d(b) if norm == "batch" else nn.Identity() for b in widths[1:])
        self.features = widths[-1] * LAST_SIDE**2
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv2d)
            nn.init.kaiming_normal_(convolution.weight, a=0.2, nonlinearity="leaky_relu", generator=generator)
            if convolution.bias is not None:
                nn.init.zeros_(convolution.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) in [-1, 1] -> (B, features)."""
        x = channels_last(x)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            assert isinstance(convolution, nn.Conv2d)
            x = F.leaky_relu(norm(_convolve(convolution, x)), LEAK)
        return x.flatten(1)

    def pull_back(self, x: Tensor, direction: Tensor) -> Tensor:
        """The gradient of <direction, features> with respect to each image, for a trunk without normalisation.

        x (B, C, H, W), direction (B, features) -> (B, C, H, W), differentiable in direction and weights. Between its
        kinks such a trunk is linear in x, so the sign of each pre-activation is all that the way back needs to know,
        and the derivative of this gradient is one more pass in each direction. Differentiating `forward` twice is the
        same sum, but also carries the zeros of the kinks' second derivatives all the way: nearly twice as long.
        """
        pre_activations = []
        with torch.no_grad():
            x = channels_last(x)
            for convolution in self.convolutions:
                pre_activations.append(convolution(x))
                x = F.leaky_relu(pre_activations[-1], LEAK)
        delta = direction.reshape(x.shape)
        for convolution, pre_activation in zip(reversed(self.convolutions), reversed(pre_activations), strict=True):
            assert isinstance(convolution, nn.Conv2d)
            # the same strides on both sides, which is several times faster
            delta = delta.contiguous(memory_format=torch.channels_last)
            delta = torch.ops.aten.leaky_relu_backward(delta, pre_activation, LEAK, False)
            delta = gradient_of_input(convolution, delta)
        return delta


def _convolve(convolution: nn.Conv2d, x: Tensor) -> Tensor:
    if convolution.kernel_size[0] == 4 and x.requires_grad:
        return halved(x, convolution.weight, convolution.bias)
    result: Tensor = convolution(x)
    return result


def gradient_of_input(convolution: nn.Conv2d, delta: Tensor) -> Tensor:
    """From the gradient of what leaves a convolution of a trunk to that of what enters it."""
    side, padding = convolution.kernel_size[0], convolution.padding[0]
    if side == 4:
        return doubled(delta, convolution.weight)
    assert isinstance(padding, int)
    # an odd kernel leaves the last row and column open
    return F.conv_transpose2d(delta, convolution.weight, stride=2, padding=padding, output_padding=side % 2)


class GrowingHead(nn.Module):
    """A linear layer that gains outputs, and loses those that are to be forgotten; all others keep their bits."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, features))
        self.bias = nn.Parameter(torch.empty(0))

    @property
    def classes(self) -> int:
        """How many outputs it has."""
        return self.weight.shape[0]

    def grow(self, new: int, *, generator: torch.Generator) -> None:
        """Add outputs. The parameters are new objects: whoever grows the head rebuilds its optimiser."""
        features = self.weight.shape[1]
        fresh = torch.empty(new, features)
        nn.init.normal_(fresh, std=features**-0.5, generator=generator)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), fresh.to(self.weight)]))
        self.bias = nn.Parameter(torch.cat([self.bias.detach(), self.bias.new_zeros(new)]))

    def drop(self, class_index: int) -> None:
        """Take an output away; the others keep their bits. Optimisers must be rebuilt, as after `grow`."""
        kept = torch.arange(self.classes, device=self.weight.device) != class_index
        self.weight = nn.Parameter(self.weight.detach()[kept])
        self.bias = nn.Parameter(self.bias.detach()[kept])

    def forward(self, features: Tensor, *, held: bool = False) -> Tensor:
        """(B, features) -> (B, classes); `held`: without gradients of weight and bias."""
        if held:
            return F.linear(features, self.weight.detach(), self.bias.detach())
        return F.linear(features, self.weight, self.bias)

    @torch.no_grad()
    def put_gradients(self, features: Tensor, gradient: Tensor) -> None:
        """From the gradient of the answers to `features`, (B, classes); in the place of what was there."""
        self.weight.grad, self.bias.grad = gradient.T @ features, gradient.sum(0)
