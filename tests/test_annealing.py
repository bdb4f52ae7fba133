"""The schedules against values worked out by hand; the compensation against finite differences."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from engram.masking import annealing
from engram.masking.masks import soft_mask


def test_global_annealing_by_hand() -> None:
    # s_max = 10: from 0.1 to 10 in 3 steps of 3.3
    values = [annealing.s_max_of_epoch(i, 4, 10.0) for i in (1, 2, 3, 4)]
    assert values == pytest.approx([0.1, 3.4, 6.7, 10.0])
    assert values[-1] == 10.0


def test_local_annealing_by_hand() -> None:
    # epoch 2 of 3 with s_max = 4: s_max^2 = 2.125, from 8/17 to 17/8 over 5 batches
    low, high = 8 / 17, 17 / 8
    expected = [low + (high - low) * k / 4 for k in range(5)]
    assert [annealing.weight_scale(2, 3, b, 5, 4.0) for b in range(1, 6)] == pytest.approx(expected)


def test_from_s_max_1_on_the_schedule_is_equation_4_to_the_letter() -> None:
    s_max, epochs, batches = 50.0, 7, 4
    for i in range(2, epochs + 1):
        top = 1 / s_max + (s_max - 1 / s_max) * (i - 1) / (epochs - 1)
        for b in range(1, batches + 1):
            literal = 1 / top + (top - 1 / top) * (b - 1) / (batches - 1)
            assert annealing.weight_scale(i, epochs, b, batches, s_max) == pytest.approx(literal)


@pytest.mark.parametrize("s_max", [1.0, 1.5, 400.0, 1e5])
def test_s_never_falls_within_an_epoch_and_ends_at_the_epochs_maximum(s_max: float) -> None:
    for i in range(1, 12):
        s = [annealing.weight_scale(i, 11, b, 6, s_max) for b in range(1, 7)]
        assert all(a <= b for a, b in itertools.pairwise(s))
        assert s[-1] == annealing.s_max_of_epoch(i, 11, s_max)


def test_the_first_epoch_rests_at_the_smallest_scale() -> None:
    assert {annealing.weight_scale(1, 5, b, 9, 1e4) for b in range(1, 10)} == {1e-4}


def test_a_single_epoch_and_a_single_batch_take_the_end_value() -> None:
    assert annealing.s_max_of_epoch(1, 1, 30.0) == 30.0
    assert annealing.unit_scale(1, 1, 30.0) == 30.0
    assert annealing.weight_scale(1, 1, 1, 1, 30.0) == 30.0
    assert annealing.weight_scale(1, 2, 1, 1, 30.0) == 1 / 30.0
    assert annealing.weight_scale(1, 1, 1, 3, 30.0) == 1 / 30.0


def test_units_anneal_over_epochs_only() -> None:
    assert [annealing.unit_scale(i, 4, 10.0) for i in (1, 2, 3, 4)] == pytest.approx([0.1, 3.4, 6.7, 10.0])


@pytest.mark.parametrize("s", [0.05, 1.0, 12.0])
def test_compensated_gradient_is_that_of_the_unscaled_sigmoid(s: float) -> None:
    s_max_i, h = 12.0, 1e-6
    e = torch.linspace(-0.9, 0.9, 11, dtype=torch.float64)
    v = torch.linspace(-1, 3, 11, dtype=torch.float64)  # the gradient that arrives at the mask

    leaf = e.clone().requires_grad_()
    torch.autograd.backward((soft_mask(leaf, s) * v).sum())
    assert leaf.grad is not None
    ours = annealing.compensate(leaf.grad, leaf, s, s_max_i)

    slope = (soft_mask(e + h, 1.0) - soft_mask(e - h, 1.0)) / (2 * h)
    torch.testing.assert_close(ours, s_max_i * slope * v, rtol=1e-7, atol=1e-9)
    if s != 1.0:  # and it is not what arrived
        assert not torch.allclose(leaf.grad * s_max_i, ours, rtol=1e-3)


def test_compensation_written_out_for_one_entry() -> None:
    g, e, s, s_max_i = 0.7, -0.4, 5.0, 9.0
    expected = g * (s_max_i / s) * (math.cosh(s * e) + 1) / (math.cosh(e) + 1)
    both = torch.tensor([[g], [e]], dtype=torch.float64)
    ours = annealing.compensate(both[0], both[1], s, s_max_i)
    assert ours.item() == pytest.approx(expected, rel=1e-12)


def test_compensation_stays_finite_at_the_sharpest_scale_in_float32() -> None:
    e = torch.tensor([-6.0, -0.01, 0.0, 0.01, 6.0], requires_grad=True)
    torch.autograd.backward(soft_mask(e, 1e5).sum())
    assert e.grad is not None
    assert annealing.compensate(e.grad, e, 1e5, 1e5).isfinite().all()
    # beyond |s e| = 50 the factor no longer grows
    one, five = torch.ones(1), torch.full((1,), 5.0)
    assert torch.equal(annealing.compensate(one, five, 10.0, 10.0), annealing.compensate(one, five, 20.0, 20.0))
    assert annealing.compensate(one, five, 9.0, 9.0) < annealing.compensate(one, five, 10.0, 10.0) / 2


def test_compensation_leaves_its_arguments_alone() -> None:
    g, e = torch.ones(3), torch.full((3,), 0.5)
    annealing.compensate(g, e, 7.0, 9.0)
    assert torch.equal(g, torch.ones(3))
    assert torch.equal(e, torch.full((3,), 0.5))


def test_embedding_bounds() -> None:
    assert annealing.clamp_embedding_(torch.tensor([-9.0, -6.0, 0.5, 6.5])).tolist() == [-6.0, -6.0, 0.5, 6.0]
