"""Growth plans against brute force over the number of units, and grown tensors bit by bit."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.masking import growth
from engram.masking.growth import LayerSize
from engram.masking.masks import Layout
from engram.nets.architectures import graph_of
from engram.nets.graph import Edge, Graph, Operation
from engram.nets.growth import plan_growth

LAYOUTS: tuple[Layout, ...] = ("linear", "conv", "conv_transpose")
few = settings(derandomize=True, max_examples=60, deadline=None)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@st.composite
def layers_after_a_task(draw: st.DrawFn) -> LayerSize:
    inputs, units, area = (
        draw(st.integers(1, 12)),
        draw(st.integers(1, 12)),
        draw(st.sampled_from([1, 4, 16])),
    )
    start_free = draw(st.integers(1, units)) * draw(st.integers(1, inputs)) * area
    return LayerSize(inputs, units, area, draw(st.integers(0, units * inputs * area)), start_free)


@few
@given(layer=layers_after_a_task(), new_inputs=st.integers(0, 9))
def test_weights_the_fewest_units_that_restore_the_free_weights(layer: LayerSize, new_inputs: int) -> None:
    def free(units: int) -> int:
        return units * (layer.inputs + new_inputs) * layer.area - layer.reserved

    units = layer.units
    while free(units) < layer.start_free:
        units += 1
    grown = growth.grow_layer(layer, new_inputs, "weights")
    assert grown.units_after == units
    assert grown.free_after == free(units)
    assert grown.free_before == layer.units * layer.inputs * layer.area - layer.reserved
    assert grown.new_inputs == new_inputs


@few
@given(
    inputs=st.integers(1, 12),
    units=st.integers(1, 12),
    area=st.sampled_from([1, 4, 16]),
    share=st.floats(0, 1),
)
def test_weights_after_the_first_task_it_is_the_papers_number(inputs: int, units: int, area: int, share: float) -> None:
    n = inputs * area
    delta = int(share * n * units)
    layer = LayerSize(inputs, units, area, reserved=delta, start_free=n * units)
    assert growth.grow_layer(layer, 0, "weights").new_units == math.ceil(delta / n)


@few
@given(data=st.data(), variant=st.sampled_from(["weights", "units"]))
def test_over_many_tasks_every_layer_of_a_chain_starts_each_with_its_first_capacity(
    data: st.DataObject, variant: str
) -> None:
    weights = variant == "weights"
    widths = data.draw(st.lists(st.integers(1, 8), min_size=3, max_size=5), label="widths")
    areas = [data.draw(st.sampled_from([1, 9, 16])) for _ in widths[1:]]
    ends = list(zip(widths, widths[1:], areas, strict=False))
    start = [i * o * a if weights else o for i, o, a in ends]
    reserved = [0] * len(ends)
    for _ in range(4):
        entries = [i * o * a if weights else o for i, o, a in ends]
        new = [data.draw(st.integers(0, n - r)) for n, r in zip(entries, reserved, strict=True)]
        reserved = [r + d for r, d in zip(reserved, new, strict=True)]
        sizes = [LayerSize(i, o, a, r, f) for (i, o, a), r, f in zip(ends, reserved, start, strict=True)]
        plan = plan_growth(chain(len(sizes)), sizes, "weights" if weights else "units")

        assert plan[0].new_inputs == 0
        for before, after in itertools.pairwise(plan):
            assert after.new_inputs == before.new_units
        for grown, (_, _, a), r, f, d in zip(plan, ends, reserved, start, new, strict=True):
            if weights:
                per_unit = grown.inputs_after * a
                assert grown.free_after == grown.units_after * per_unit - r >= f
                assert grown.new_units == 0 or grown.free_after - per_unit < f  # one fewer is too few
            else:
                assert grown.free_after == grown.units_after - r == f
                assert grown.new_units == d  # as many as the task newly reserved
        ends = [(g.inputs_after, g.units_after, a) for g, a in zip(plan, areas, strict=True)]


def chain(layers: int) -> Graph:
    point = Operation("conv")
    return Graph("chain", 1, tuple(Edge(n, n + 1, point) for n in range(layers)), point, (1,) * layers)


@few
@given(data=st.data(), variant=st.sampled_from(["weights", "units"]))
def test_branches_of_a_sum_agree_on_their_channels(data: st.DataObject, variant: str) -> None:
    """The neediest edge into a node decides; every edge has at least the free entries that it had at the start."""
    graph, weights = graph_of("residual", 32), variant == "weights"
    units = [data.draw(st.integers(1, 6)) for _ in range(graph.nodes + 1)]
    start: list[int] = []
    reserved = [0] * len(graph.edges)
    for _ in range(3):
        shapes = [(units[e.source], units[e.target], e.operation.kernel**2) for e in graph.edges]
        entries = [i * o * a if weights else o for i, o, a in shapes]
        start = start or entries
        reserved = [r + data.draw(st.integers(0, n - r)) for n, r in zip(entries, reserved, strict=True)]
        sizes = [LayerSize(i, o, a, r, f) for (i, o, a), r, f in zip(shapes, reserved, start, strict=True)]
        plan = plan_growth(graph, sizes, "weights" if weights else "units")
        gained = [0] * len(units)
        for node in range(1, len(units)):
            news = {plan[number].new_units for number in graph.incoming[node]}
            assert len(news) == 1
            (gained[node],) = news
        lean = [False] * len(units)
        for number, (edge, grown) in enumerate(zip(graph.edges, plan, strict=True)):
            assert grown.new_inputs == gained[edge.source]
            assert grown.free_after >= start[number]
            per_unit = grown.inputs_after * edge.operation.kernel**2 if weights else 1
            lean[edge.target] |= grown.new_units == 0 or grown.free_after - per_unit < start[number]
        assert all(lean[1:]), "with one unit fewer some edge would have too few"
        units = [u + g for u, g in zip(units, gained, strict=True)]


def test_inputs_that_come_from_the_layer_before_count_first() -> None:
    # 10 weights reserved in each; layer 1 gains ceil(10/4) = 3 units, which bring layer 2 3 x 5 = 15 weights
    first, second = LayerSize(4, 6, 1, 10, 24), LayerSize(6, 5, 1, 10, 30)
    plan = plan_growth(chain(2), [first, second], "weights")
    assert [g.new_units for g in plan] == [3, 0]
    assert [g.free_before for g in plan] == [14, 20]
    assert [g.free_after for g in plan] == [26, 35]


@pytest.mark.parametrize("layout", LAYOUTS)
@few
@given(ends=st.tuples(*[st.integers(1, 5)] * 2), new=st.tuples(*[st.integers(0, 3)] * 2), seed=st.integers(0, 99))
def test_grown_tensors_keep_the_old_block(
    layout: Layout, ends: tuple[int, int], new: tuple[int, int], seed: int
) -> None:
    def shape(n_in: int, n_out: int) -> tuple[int, ...]:
        return {"linear": (n_out, n_in), "conv": (n_out, n_in, 3, 2), "conv_transpose": (n_in, n_out, 3, 2)}[layout]

    weight = torch.randn(shape(*ends), generator=rng(seed))
    mask = weight > 0
    grown = growth.grow_weight(weight, *new, layout, generator=rng(seed + 1), init=growth.dcgan_init)
    closed = growth.grow_mask(mask, *new, layout)
    assert grown.shape == closed.shape == shape(ends[0] + new[0], ends[1] + new[1])

    old = torch.zeros(grown.shape, dtype=torch.bool)
    old[tuple(slice(n) for n in weight.shape)] = True
    assert torch.equal(grown[old].view(torch.int32), weight.flatten().view(torch.int32))
    assert torch.equal(closed[old], mask.flatten())
    assert not closed[~old].any()
    assert (grown[~old] != 0).all()  # freshly drawn, from 0.02 times a normal distribution
    assert (grown[~old].abs() < 0.2).all()
    assert torch.equal(growth.leading_block(grown, *ends, layout), weight)


def test_a_mask_of_units_grows_by_outputs_only() -> None:
    assert growth.grow_mask(torch.tensor([True, False]), 5, 2, "conv").tolist() == [True, False, False, False]


def test_growing_copies_and_repeats_under_a_seed() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2))
    a, b = (growth.grow_weight(weight, 1, 1, "linear", generator=rng(5), init=growth.dcgan_init) for _ in range(2))
    assert torch.equal(a, b)
    assert not a.requires_grad
    a.zero_()
    assert torch.equal(weight.detach(), torch.ones(2, 2))
