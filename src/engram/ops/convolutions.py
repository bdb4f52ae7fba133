"""Convolutions where a CPU's library is slow: the same sums in another way.

    from_one_pixel      a generator's first layer: noise is a single pixel
    doubled             a generator's last layer, into an image of one channel or three
    halved              a critic's first layer, out of such an image: its gradient is a `doubled`
    channels_last       the order in memory that is fast, told so that the library believes it
    blank_convolution   torch's layer with no weights drawn yet: they would come from the global generator

Each of the first three can be differentiated, once image by image as well (`torch.func`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEW = 4
"""Channels up to which `into_few` is the faster way."""


def blank_convolution(
    n_in: int, n_out: int, kernel: int, *, stride: int = 1, padding: int, bias: bool = True
) -> nn.Conv2d:
    """A layer whose weights are yet to be set; torch by itself would draw them from the global generator."""
    return _BlankConvolution(n_in, n_out, kernel, stride=stride, padding=padding, bias=bias)


class _BlankConvolution(nn.Conv2d):
    """What torch's `skip_init` makes, without the part of torch's compiler that it imports: half a second."""

    def reset_parameters(self) -> None:
        pass


def from_one_pixel(x: Tensor, weight: Tensor) -> Tensor:
    """A transposed convolution of a single pixel, x (B, in): a matrix product, and a good deal faster as one."""
    n_in, n_out, height, width = weight.shape
    pixels = x @ weight.permute(0, 2, 3, 1).reshape(n_in, -1)
    return pixels.view(-1, height, width, n_out).permute(0, 3, 1, 2)


def channels_last(x: Tensor) -> Tensor:
    """(B, C, H, W) with a pixel's channels side by side.

    With a single channel both orders are the same, and torch takes it for the other one; the library then turns around
    the gradients of all that was computed from it, at three times the cost of the weight's own gradient.
    """
    if x.shape[1] == 1:
        # `len(x)` would be a fixed number in an exported network
        return x.reshape(x.shape[0], *x.shape[2:], 1).permute(0, 3, 1, 2)
    return x.contiguous(memory_format=torch.channels_last)


def halved(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A convolution that halves the image: x (B, in, H, W), weight (out, in, 4, 4), stride 2, padding 1."""
    if not _by_hand(x, weight):
        return F.conv2d(x, weight, bias, stride=2, padding=1)
    y: Tensor = _OutOfFew.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return y


def doubled(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A transposed convolution that doubles the image: x (B, in, H, W), weight (in, out, 4, 4), stride 2, padding 1."""
    if not _by_hand(x, weight):
        return F.conv_transpose2d(x, weight, bias, stride=2, padding=1)
    if torch.is_grad_enabled():
        y: Tensor = _IntoFew.apply(x, weight)  # type: ignore[no-untyped-call]
    else:
        y = into_few(x, weight)  # a third of the time is torch's, around a function of one's own
    return y if bias is None else y + bias[:, None, None]


def _by_hand(x: Tensor, weight: Tensor) -> bool:
    autocast = torch.is_autocast_enabled("cpu") or x.dtype != weight.dtype
    return weight.shape[1] <= FEW and x.device.type == "cpu" and not autocast


def into_few(x: Tensor, weight: Tensor) -> Tensor:
    """One product of every pixel with the whole kernel; then each tap is added where it belongs.

    A kernel of 4x4 is 2x2 squares of 2x2 pixels each: a square of one pixel meets those of its neighbours in whole
    squares, so that four sums of shifted squares are all there is to add up.
    """
    count, n_in, height, width = x.shape
    n_out = weight.shape[1]
    kernel = weight.reshape(n_in, n_out, 2, 2, 2, 2).permute(2, 4, 3, 5, 1, 0).reshape(-1, n_in)
    # a plane for every tap: the sums then run along whole rows of pixels
    taps = torch.mm(kernel, x.permute(0, 2, 3, 1).reshape(-1, n_in).t()).view(2, 2, -1, count, height, width)
    squares = taps.new_zeros(taps.shape[2], count, height + 1, width + 1)
    squares[..., :-1, :-1].copy_(taps[0, 0])
    squares[..., :-1, 1:].add_(taps[0, 1])
    squares[..., 1:, :-1].add_(taps[1, 0])
    squares[..., 1:, 1:].add_(taps[1, 1])
    pixels = squares.view(2, 2, n_out, count, height + 1, width + 1).permute(3, 4, 0, 5, 1, 2)
    image = pixels.reshape(count, 2 * height + 2, 2 * width + 2, n_out)[:, 1:-1, 1:-1]  # without the padding
    return image.permute(0, 3, 1, 2)


class _IntoFew(torch.autograd.Function):
    generate_vmap_rule = True  # for gradients image by image

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return into_few(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad
        gradient = channels_last(gradient)
        return (
            F.conv2d(gradient, weight, stride=2, padding=1) if of_x else None,
            weight_gradient(gradient, weight, x, stride=2, padding=1) if of_weight else None,
        )


class _OutOfFew(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(x, weight, bias, stride=2, padding=1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            doubled(gradient, weight) if of_x else None,
            weight_gradient(x, weight, gradient, stride=2, padding=1) if of_weight else None,
            gradient.sum((0, 2, 3)) if of_bias else None,
        )


def weight_gradient(x: Tensor, weight: Tensor, gradient: Tensor, *, stride: int, padding: int) -> Tensor:
    """Of a convolution of x, given the gradient of what comes out."""
    ends = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1)
    result: Tensor = torch.ops.aten.convolution_backward(gradient, x, weight, None, *ends, [False, True, False])[1]
    return result
