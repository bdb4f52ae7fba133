"""The paper's networks for 32x32 digits.

    Trunk   image (B, C, 32, 32) ─ conv 5x5/2 ─> 32 ─ conv 5x5/2 ─> 64 ─ conv 5x5/2 ─> 128 x 4 x 4
    Head    flattened trunk ─ linear ─> one score per class seen; gains columns, never loses any

Trunk and head together are the solver. The same trunk carries the critic of the generative methods.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from engram.nets.norm import BatchNorm2d
from engram.plastic.convolve import channels_last, doubled, halved, weight_gradient

Norm = Literal["batch", "none"]

LEAK = 0.2
"""Slope of a unit below zero."""


class Trunk(nn.Module):
    """Three convolutions of stride 2, 5x5 in the paper, with leaky ReLU 0.2."""

    def __init__(
        self,
        channels: int,
        width: int = 32,
        *,
        kernel: int = 5,
        norm: Norm = "batch",
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        widths = [channels, width, 2 * width, 4 * width]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, kernel_size=kernel, stride=2, padding=(kernel - 1) // 2, bias=norm == "none")
            for a, b in itertools.pairwise(widths)
        )
        self.norms = nn.ModuleList(BatchNorm2d(b) if norm == "batch" else nn.Identity() for b in widths[1:])
        self.features = 4 * width * 4 * 4
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv2d)
            nn.init.kaiming_normal_(convolution.weight, a=0.2, nonlinearity="leaky_relu", generator=generator)
            if convolution.bias is not None:
                nn.init.zeros_(convolution.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, C, 32, 32) in [-1, 1] -> (B, features)."""
        x = channels_last(x)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            assert isinstance(convolution, nn.Conv2d)
            x = F.leaky_relu(norm(_after(convolution, x)), LEAK)
        return x.flatten(1)

    def pull_back(self, x: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
        """The gradient of <direction, features> with respect to each image, for a trunk without normalisation.

        x (B, C, 32, 32), direction (B, features) -> (B, C, 32, 32), differentiable in direction and weights. Between
        its kinks such a trunk is linear in x, so where each unit stands is all that the way back needs to know, and
        the derivative of this gradient is one more pass in each direction. Differentiating `forward` twice is the same
        sum, but also carries the zeros of the kinks' second derivatives all the way through: nearly twice as long.
        """
        stands = []
        with torch.no_grad():
            x = channels_last(x)
            for convolution in self.convolutions:
                stands.append(convolution(x))
                x = F.leaky_relu(stands[-1], LEAK)
        delta = direction.reshape(x.shape)
        for convolution, stand in zip(reversed(self.convolutions), reversed(stands), strict=True):
            assert isinstance(convolution, nn.Conv2d)
            # the same strides on both sides, which is several times faster
            delta = delta.contiguous(memory_format=torch.channels_last)
            delta = _before(convolution, torch.ops.aten.leaky_relu_backward(delta, stand, LEAK, False))
        return delta


def _after(convolution: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
    if convolution.kernel_size[0] == 4 and x.requires_grad:
        return halved(x, convolution.weight, convolution.bias)
    result: torch.Tensor = convolution(x)
    return result


def _before(convolution: nn.Conv2d, delta: torch.Tensor) -> torch.Tensor:
    """From the gradient of what leaves a convolution of a trunk to that of what enters it."""
    side, padding = convolution.kernel_size[0], convolution.padding[0]
    if side == 4:
        return doubled(delta, convolution.weight)
    assert isinstance(padding, int)
    # an odd kernel leaves the last row and column open
    return F.conv_transpose2d(delta, convolution.weight, stride=2, padding=padding, output_padding=side % 2)


def _leaked_(gradient: torch.Tensor, leaked: torch.Tensor) -> torch.Tensor:
    """In place, the gradient before a leaky ReLU, given what came out of it."""
    return torch.ops.aten.leaky_relu_backward(gradient, leaked, LEAK, True, grad_input=gradient)  # type: ignore[no-any-return]


class Held(torch.autograd.Function):
    """A trunk without normalisation that is held still: gradients of its images, none of its weights."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, trunk: Trunk) -> torch.Tensor:
        ctx.trace = Trace(trunk, x.detach(), slopes=len(x))
        features: torch.Tensor = ctx.trace.features
        return features

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.trace.back(gradient), None


class Trace:
    """Images in a trunk without normalisation; the way back, and forth again, written out.

    It serves a loss of the features plus one of the slopes of the last images: `back`, `forth`, then `put_gradients`.
    That is what differentiating `forward` and `pull_back` comes to, but each convolution is called once for all images:
    small batches spend much of their time between calls.
    """

    @torch.no_grad()
    def __init__(self, trunk: Trunk, x: torch.Tensor, *, slopes: int) -> None:
        """x (B, C, 32, 32), which is not to be used any more; the slopes of its last so many images are wanted."""
        x = channels_last(x)
        self.convolutions = [part for part in trunk.convolutions if isinstance(part, nn.Conv2d)]
        self.plain = len(x) - slopes
        self.inputs: list[torch.Tensor] = []
        self.deltas: list[torch.Tensor] = []
        """By layer: the gradient of where its units stand."""
        for convolution in self.convolutions:
            self.inputs.append(x)
            x = F.leaky_relu_(convolution(x), LEAK)
        self.last = x
        self.stands = [*self.inputs[1:], x]
        """By layer: what leaves it, which has the sign of where its units stand."""

    @property
    def features(self) -> torch.Tensor:
        """(B, features)"""
        return self.last.flatten(1)

    @torch.no_grad()
    def back(self, direction: torch.Tensor) -> torch.Tensor:
        """Gradients of the features, (B, features) -> those of the last images, (slopes, C, 32, 32)."""
        delta = direction.view(self.last.shape).contiguous(memory_format=torch.channels_last)
        for convolution, stand in zip(reversed(self.convolutions), reversed(self.stands), strict=True):
            delta = _leaked_(delta, stand)
            self.deltas.insert(0, delta)
            if stand is not self.stands[0]:
                delta = _before(convolution, delta)
        slopes = delta[self.plain :]
        return _before(self.convolutions[0], slopes) if len(slopes) else self.inputs[0][self.plain :]

    @torch.no_grad()
    def forth(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of a loss of the slopes -> of the directions that led to them, (slopes, features)."""
        for convolution, given, stand in zip(self.convolutions, self.inputs, self.stands, strict=True):
            # a slope is linear in every weight, with this in the place of what the layer was given
            given[self.plain :] = gradient
            gradient = F.conv2d(gradient, convolution.weight, stride=convolution.stride, padding=convolution.padding)
            gradient = _leaked_(gradient, stand[self.plain :])
        return gradient.flatten(1)

    @torch.no_grad()
    def put_gradients(self) -> None:
        """Those of all weights and biases, in the place of what was there."""
        for convolution, given, delta in zip(self.convolutions, self.inputs, self.deltas, strict=True):
            stride, padding = convolution.stride[0], convolution.padding[0]
            assert isinstance(padding, int)
            assert convolution.bias is not None
            convolution.weight.grad = weight_gradient(given, convolution.weight, delta, stride=stride, padding=padding)
            convolution.bias.grad = delta[: self.plain].sum((0, 2, 3))  # a slope does not change with height


class GrowingHead(nn.Module):
    """A linear layer that gains output columns; the old ones keep their bits."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, features))
        self.bias = nn.Parameter(torch.empty(0))

    @property
    def classes(self) -> int:
        return self.weight.shape[0]

    def grow(self, new: int, *, generator: torch.Generator) -> None:
        """Add columns. The parameters are new objects: whoever grows the head rebuilds its optimiser."""
        features = self.weight.shape[1]
        fresh = torch.empty(new, features)
        nn.init.normal_(fresh, std=features**-0.5, generator=generator)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), fresh.to(self.weight)]))
        self.bias = nn.Parameter(torch.cat([self.bias.detach(), self.bias.new_zeros(new)]))

    def forward(self, features: torch.Tensor, *, held: bool = False) -> torch.Tensor:
        """(B, features) -> (B, classes); `held`: without gradients of weight and bias."""
        if held:
            return F.linear(features, self.weight.detach(), self.bias.detach())
        return F.linear(features, self.weight, self.bias)

    @torch.no_grad()
    def put_gradients(self, features: torch.Tensor, gradient: torch.Tensor) -> None:
        """From the gradient of the answers to `features`, (B, classes); in the place of what was there."""
        self.weight.grad, self.bias.grad = gradient.T @ features, gradient.sum(0)
