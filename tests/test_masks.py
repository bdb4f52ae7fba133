"""Masks against brute force over single entries, and against numpy's bit packing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.masking import masks
from engram.masking.masks import Layout

LAYOUTS: tuple[Layout, ...] = ("linear", "conv", "conv_transpose")


def bits(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5


def test_soft_mask_is_the_logistic_function_of_the_scaled_embedding() -> None:
    e = torch.tensor([-1.5, -0.1, 0.0, 0.1, 2.0], dtype=torch.float64)
    expected = 1 / (1 + np.exp(-3.0 * e.numpy()))
    np.testing.assert_allclose(masks.soft_mask(e, 3.0).numpy(), expected, rtol=1e-14)


def test_binarise_is_the_threshold_at_one_half_wherever_the_embedding_moved() -> None:
    e = torch.randn(500, generator=torch.Generator().manual_seed(0))
    assert torch.equal(masks.binarise(e), masks.soft_mask(e, 1e4) >= 0.5)


def test_an_embedding_that_never_moved_is_closed_although_its_mask_is_one_half() -> None:
    e = torch.tensor([0.0, -0.0, 1e-30, -1e-30])
    assert (masks.soft_mask(e, 1e4) == 0.5).all()  # the sigmoid alone cannot tell these four apart
    assert masks.binarise(e).tolist() == [False, False, True, False]


def test_binarise_has_no_gradient() -> None:
    assert not masks.binarise(torch.ones(2, requires_grad=True)).requires_grad


def test_accumulate_is_the_elementwise_maximum() -> None:
    a, b = torch.tensor([False, False, True, True]), torch.tensor([False, True, False, True])
    assert masks.accumulate(a, b).tolist() == [max(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]


def test_weight_gate_is_the_complement_of_what_is_reserved() -> None:
    assert masks.weight_gate(torch.tensor([[True, False]])).tolist() == [[False, True]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unit_gate_closes_exactly_the_weights_with_two_reserved_ends(layout: Layout) -> None:
    n_in, n_out = 4, 6
    reserved_in, reserved_out = bits(n_in, seed=1), bits(n_out, seed=2)
    shape = {"linear": (n_out, n_in), "conv": (n_out, n_in, 3, 2), "conv_transpose": (n_in, n_out, 3, 2)}[layout]
    gate = masks.unit_gate(reserved_in, reserved_out, layout).expand(shape)
    for index in np.ndindex(*shape):
        i, j = (index[0], index[1]) if layout == "conv_transpose" else (index[1], index[0])
        expected = 1 - min(int(reserved_in[i]), int(reserved_out[j]))
        assert int(gate[index]) == expected, index
    assert gate.any()
    assert not gate.all()


def test_counts_agree_with_a_walk_over_the_entries() -> None:
    opened, reserved = bits(5, 7, seed=3), bits(5, 7, seed=4)
    usage = masks.count_usage(opened, reserved)
    pairs = list(zip(opened.flatten().tolist(), reserved.flatten().tolist(), strict=True))
    assert usage.newly_reserved == pairs.count((True, False))
    assert usage.reused == pairs.count((True, True))
    assert usage.unused == pairs.count((False, True)) + pairs.count((False, False))
    after = masks.accumulate(reserved, opened)
    assert usage.newly_reserved == int(after.sum()) - int(reserved.sum())


@settings(derandomize=True, max_examples=40, deadline=None)
@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_packed_bits_are_those_of_numpy_and_come_back(shape: list[int], seed: int) -> None:
    mask = bits(*shape, seed=seed)
    packed = masks.pack_bits(mask)
    assert packed.dtype == torch.uint8
    np.testing.assert_array_equal(packed.numpy(), np.packbits(mask.numpy()))
    back = masks.unpack_bits(packed, shape)
    assert back.dtype == torch.bool
    assert back.shape == mask.shape
    assert torch.equal(back, mask)


@pytest.mark.parametrize(
    "packed", [torch.zeros(3, dtype=torch.uint8), torch.zeros(2), torch.zeros(1, 2, dtype=torch.uint8)]
)
def test_unpacking_refuses_what_cannot_be_this_mask(packed: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="stored in 2 uint8"):
        masks.unpack_bits(packed, (3, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_closing_leaves_plus_zero_and_touches_nothing_else(dtype: torch.dtype) -> None:
    x = torch.tensor([[1.5, -2.0, torch.inf], [torch.nan, -0.0, -torch.inf]], dtype=dtype)
    gate = torch.tensor([[True, False, False], [False, True, True]])
    for found, opened in ((x, gate), (x.T, gate.T), (x, gate[:, :1])):
        closed, wide = found.clone(), opened.expand_as(found)
        masks.close_(closed, opened)
        assert (closed[~wide] == 0).all()
        assert not closed[~wide].signbit().any()
        assert torch.equal(closed[wide].signbit(), found[wide].signbit())
        torch.testing.assert_close(closed[wide], found[wide], equal_nan=True, rtol=0, atol=0)
