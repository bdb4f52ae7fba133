"""The faster forms of transposed convolutions against the library's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from engram.ops.convolutions import FEW, doubled, from_one_pixel, halved, into_few, weight_gradient
from engram.seeding import generator

Way = Callable[..., Tensor]


def some(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=generator(0, "convolve", *shape))


@pytest.mark.parametrize("channels", range(1, FEW + 2))
@pytest.mark.parametrize(("height", "width"), [(1, 1), (4, 4), (3, 5)])
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
def test_doubling_is_the_librarys_with_the_same_gradients(channels: int, height: int, width: int, last: bool) -> None:
    x, weight, bias = some(3, 6, height, width), some(6, channels, 4, 4), some(channels)
    if last:
        x, weight = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (x, weight))
    found = []
    for way in (doubled, partial(F.conv_transpose2d, stride=2, padding=1)):
        given = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
        image = way(*given)
        assert image.shape == (3, channels, 2 * height, 2 * width)
        torch.autograd.backward((image * some(*image.shape)).sum())
        found.append([image.detach(), *(tensor.grad for tensor in given)])
    for ours, known in zip(*found, strict=True):
        torch.testing.assert_close(ours, known)


def test_few_channels_take_the_way_of_their_own() -> None:
    x = some(2, 6, 4, 4).requires_grad_()
    assert "IntoFew" in type(doubled(x, some(6, FEW, 4, 4)).grad_fn).__name__
    assert "IntoFew" not in type(doubled(x, some(6, FEW + 1, 4, 4)).grad_fn).__name__
    half, weight = some(2, 6, 4, 4).to(torch.bfloat16), some(6, 1, 4, 4).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):  # what is autocast is left to the library
        assert doubled(half, weight).dtype == torch.bfloat16


def test_without_gradients_the_images_are_the_same_bits() -> None:
    x, weight = some(2, 6, 4, 4), some(6, 1, 4, 4)
    assert torch.equal(doubled(x, weight), into_few(x, weight))


def test_one_pixel() -> None:
    x, weight = some(3, 6), some(6, 5, 4, 4)
    torch.testing.assert_close(from_one_pixel(x, weight), F.conv_transpose2d(x[:, :, None, None], weight))


@pytest.mark.parametrize(("kernel", "padding"), [(3, 1), (4, 1), (5, 2)])
def test_the_gradient_of_a_weight(kernel: int, padding: int) -> None:
    x, weight = some(3, 2, 8, 8), some(5, 2, kernel, kernel).requires_grad_()
    y = F.conv2d(x, weight, stride=2, padding=padding)
    gradient = some(*y.shape)
    (known,) = torch.autograd.grad((y * gradient).sum(), weight)
    torch.testing.assert_close(weight_gradient(x, weight.detach(), gradient, stride=2, padding=padding), known)


def test_gradients_image_by_image() -> None:
    x, weight = some(3, 6, 4, 4), some(6, 1, 4, 4)
    images = some(3, 1, 8, 8)
    found = []
    for up, down in (
        (doubled, halved),
        (partial(F.conv_transpose2d, stride=2, padding=1), partial(F.conv2d, stride=2, padding=1)),
    ):

        def value(w: Tensor, one: Tensor, image: Tensor, up: Way = up, down: Way = down) -> Tensor:
            return (up(one[None], w) * image).sum() + down(image[None], w).square().sum()

        found.append(torch.func.vmap(torch.func.grad(value), in_dims=(None, 0, 0))(weight, x, images))
    torch.testing.assert_close(*found)


def test_halving_is_the_librarys_with_the_same_gradients_and_theirs() -> None:
    images, weight, bias = some(3, 1, 8, 8), some(6, 1, 4, 4), some(6)
    found = []
    for way in (halved, partial(F.conv2d, stride=2, padding=1)):
        given = [tensor.clone().requires_grad_() for tensor in (images, weight, bias)]
        first = torch.autograd.grad(way(*given).square().sum(), given, create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), given[:2])
        found.append([tensor.detach() for tensor in (*first, *second)])
    torch.testing.assert_close(*found)
