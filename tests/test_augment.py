"""Random changes to training images: what they do, and that they repeat."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
import torch

from engram.config import ClassifierSettings
from engram.methods.augment import augment, blur, changed, recolour
from engram.seeding import generator

KINDS = [kind for kind in get_args(get_type_hints(ClassifierSettings)["augment"]) if kind != "none"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_kind_keeps_shape_and_range_and_repeats(kind: str, channels: int) -> None:
    x = torch.rand(16, channels, 32, 32, generator=generator(0, "x")) * 2 - 1
    first = changed(x, kind, generator=generator(0, "a"))
    assert first.shape == x.shape
    assert first.abs().max() <= 1
    assert torch.equal(first, changed(x, kind, generator=generator(0, "a")))
    assert not torch.equal(first, changed(x, kind, generator=generator(1, "a")))


def test_photographs_are_mirrored_and_keep_their_colours() -> None:
    """Half of them, with and without a generator's texture taken away; digits never."""
    image = -torch.ones(200, 3, 32, 32)
    image[:, 0, :, :16] = 1.0  # red on the left
    for kind, mirrored in (("photo", True), ("texture", True), ("strong", False), ("affine", False)):
        out = changed(image, kind, generator=generator(0, "m"))
        right = out[:, 0, 16, 28] > out[:, 0, 16, 3]
        assert (0.35 < right.float().mean() < 0.65) == mirrored, kind
        assert (out[:, 0].amax((1, 2)) >= out[:, 1].amax((1, 2))).float().mean() > 0.99, kind


def test_blur_goes_from_nothing_to_twice_the_kernel() -> None:
    x = torch.zeros(3, 1, 9, 9)
    x[:, :, 4, 4] = 1.0
    out = blur(x, torch.tensor([0.0, 0.5, 1.0])[:, None, None, None])[:, 0, 4]
    assert out[0].tolist() == x[0, 0, 4].tolist()
    assert out[1].tolist() == [0, 0, 0, 2 / 16, 4 / 16, 2 / 16, 0, 0, 0]
    row = torch.tensor([1.0, 4, 6, 4, 1]) / 16  # the binomial of order 4; its middle value is the other direction's
    torch.testing.assert_close(out[2, 2:7], row * 6 / 16)


def test_recolouring_swaps_light_greys_and_blurs() -> None:
    flat = torch.tensor([0.5, -0.25, 0.25])[None, :, None, None].expand(400, 3, 8, 8)
    out = recolour(flat, generator=generator(0, "a"))
    assert torch.equal(out, recolour(flat, generator=generator(0, "a")))
    assert torch.allclose(out, out[:, :, :1, :1].expand_as(out), atol=1e-6)  # a flat image has nothing to blur
    colours = out[:, :, 0, 0]
    swapped = colours.mean(1) < 0
    assert 140 < int(swapped.sum()) < 260
    upright = torch.where(swapped[:, None], -colours, colours)
    # each colour lies between its own value and the mean of the three, all by the same share
    mean = flat[0, :, 0, 0].mean()
    shares = (upright - flat[:, :, 0, 0]) / (mean - flat[:, :, 0, 0])
    assert torch.allclose(shares, shares[:, :1].expand(-1, 3), atol=1e-4)
    assert shares.min() < 0.1
    assert shares.max() > 0.9
    board = (torch.arange(8)[:, None] + torch.arange(8)).remainder(2).mul(2.0).sub(1).expand(400, 1, 8, 8)
    inner = recolour(board, generator=generator(0, "b"))[:, :, 2:-2, 2:-2].abs().amax((1, 2, 3))
    assert inner.min() < 0.1  # a checkerboard averages out under the kernel
    assert inner.max() > 0.9


def test_augmentation_is_small_random_and_repeats() -> None:
    image = torch.zeros(64, 1, 32, 32)
    image[:, :, :, :16] = 1.0
    first = augment(image, mirror=False, generator=generator(0, "a"))
    assert torch.equal(first, augment(image, mirror=False, generator=generator(0, "a")))
    assert not torch.equal(first, augment(image, mirror=False, generator=generator(1, "a")))
    assert (first[:, 0, 16, 2] > 0.9).all(), "the left side stays bright"
    mirrored = augment(image, mirror=True, generator=generator(0, "a"))
    share = (mirrored[:, 0, 16, 2] < 0.1).float().mean()
    assert 0.3 < share < 0.7, "about half are mirrored"
