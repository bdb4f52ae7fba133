"""Which units matter: against drawn numbers, against a sum over all paths, and on masks."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from engram.masking.masks import Variant
from engram.nets.architectures import GRAPHS, VECTOR_GRAPHS, graph_of
from engram.nets.masked_generator import MaskedGenerator
from engram.nets.pruning import rectified_power, relevance, squares, top_units, unit_limits
from engram.nets.reachability import prune, reachable_units
from engram.seeding import generator

VARIANTS: list[Variant] = ["weights", "units"]


def test_the_power_of_a_rectified_normal_is_that_of_many_draws() -> None:
    scale, shift = torch.tensor([1.0, -0.5, 2.0, 0.1, 1.0]).double(), torch.tensor([0.0, 1.0, -3.0, -2.0, 4.0]).double()
    drawn = torch.randn(400_000, 5, dtype=torch.float64, generator=generator(0)) * scale + shift
    torch.testing.assert_close(rectified_power(scale, shift), drawn.relu().square().mean(0), rtol=0.02, atol=1e-3)


def net_of(variant: Variant, graph: str) -> tuple[MaskedGenerator, list[tuple[Tensor, Tensor]]]:
    net = MaskedGenerator(
        graph_of(graph, 0 if graph in VECTOR_GRAPHS else 32),
        2,
        width=3,
        latent_dim=4,
        variant=variant,
        generator=generator(0),
    )
    net.begin(2, generator=generator(1))
    norms = [(torch.randn(2, n, generator=generator(2)), torch.randn(2, n, generator=generator(3))) for n in net.units]
    return net, norms


def test_relevance_in_a_chain_is_the_sum_over_all_paths() -> None:
    net, norms = net_of("weights", "dcgan")
    assert net.task_params is not None
    head = net.task_params.head.detach()
    weights = [layer.weight.detach() for layer in net.plastic]
    between = [squares(w, "conv_transpose") for w in (*weights, head)]  # noise to 1, 1 to 2, 2 to 3, 3 to image
    power = [rectified_power(scale, shift).mean(0) for scale, shift in norms]
    brought = [power[node][:, None] * between[node + 1] for node in range(3)]
    shares = [part / part.sum(0) for part in brought]
    expected = [torch.zeros(n) for n in net.units]
    for a, b, c, image in itertools.product(*(range(n) for n in net.units), range(2)):
        flows = float(shares[0][a, b] * shares[1][b, c] * shares[2][c, image]) / 2
        for node, unit in enumerate((a, b, c)):
            expected[node][unit] += flows
    for found, truth in zip(relevance(net.graph, weights, norms, head), expected, strict=True):
        torch.testing.assert_close(found, truth)


@pytest.mark.parametrize("graph", [*GRAPHS, *VECTOR_GRAPHS])
def test_of_a_cut_through_the_network_all_relevance_is_there(graph: str) -> None:
    """A chain has all of it in every node. A residual sum shares it out between its branch and its shortcut."""
    net, norms = net_of("weights", graph)
    assert net.task_params is not None
    shares = relevance(
        net.graph, [layer.weight.detach() for layer in net.plastic], norms, net.task_params.head.detach()
    )
    whole = [node for node in range(1, net.graph.nodes + 1) if graph != "residual" or node % 2]
    for node in range(1, net.graph.nodes + 1):
        total = float(shares[node - 1].sum())
        assert total == pytest.approx(1) if node in whole else 0 < total < 1


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("graph", [*GRAPHS, *VECTOR_GRAPHS])
def test_the_top_units_stay_reachable_and_nobody_else(variant: Variant, graph: str) -> None:
    net, _ = net_of(variant, graph)
    masks = prune(
        net.graph, [torch.rand(layer.embedding.shape, generator=generator(5)) < 0.8 for layer in net.plastic], variant
    )
    before = reachable_units(net.graph, masks)
    shares = [torch.rand(n, generator=generator(6)) for n in net.units]
    limits = [max(1, int(units.sum()) - 1) for units in before]
    kept = top_units(net.graph, masks, variant, shares, limits)
    after = reachable_units(net.graph, kept)
    for mask, left in zip(masks, kept, strict=True):
        assert not (left & ~mask).any()
    for units, left, share, limit in zip(before, after, shares, limits, strict=True):
        assert 0 < int(left.sum()) <= limit
        dropped = units & ~left
        if int(left.sum()) == limit and dropped.any():
            assert share[left].min() > share[dropped].max()
    unlimited = top_units(net.graph, masks, variant, shares, net.units)
    assert all(torch.equal(a, b) for a, b in zip(unlimited, masks, strict=True))


def test_a_task_may_keep_so_many_times_the_units_at_the_start() -> None:
    assert unit_limits(graph_of("dcgan", 32), 3, 2.0) == [24, 12, 6]
    assert unit_limits(graph_of("dcgan", 64), 3, 0.5) == [12, 6, 3, 2]
    assert unit_limits(graph_of("residual", 32), 3, 0.01) == [1] * 7, "one of each at least"
