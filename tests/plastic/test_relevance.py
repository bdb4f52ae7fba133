"""Which units matter: against drawn numbers, against a sum over all paths, and on masks."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from engram.nets.generator import PlasticGenerator
from engram.plastic.masks import Variant
from engram.plastic.relevance import foremost, rectified_power, relevance, squares
from engram.plastic.wiring import WIRINGS, alive_units, prune
from engram.seeding import generator

VARIANTS: list[Variant] = ["weights", "units"]


def test_the_power_of_a_rectified_normal_is_that_of_many_draws() -> None:
    scale, shift = torch.tensor([1.0, -0.5, 2.0, 0.1, 1.0]).double(), torch.tensor([0.0, 1.0, -3.0, -2.0, 4.0]).double()
    drawn = torch.randn(400_000, 5, dtype=torch.float64, generator=generator(0)) * scale + shift
    torch.testing.assert_close(rectified_power(scale, shift), drawn.relu().square().mean(0), rtol=0.02, atol=1e-3)


def net_of(variant: Variant, wiring: str) -> tuple[PlasticGenerator, list[tuple[Tensor, Tensor]]]:
    net = PlasticGenerator(WIRINGS[wiring], 2, width=3, noise=4, variant=variant, generator=generator(0))
    net.begin(2, generator=generator(1))
    norms = [(torch.randn(2, n, generator=generator(2)), torch.randn(2, n, generator=generator(3))) for n in net.units]
    return net, norms


def test_relevance_in_a_chain_is_the_sum_over_all_paths() -> None:
    net, norms = net_of("weights", "dcgan")
    assert net.private is not None
    head = net.private.head.detach()
    weights = [layer.weight.detach() for layer in net.plastic]
    between = [squares(w, "conv_transpose") for w in (*weights, head)]  # noise to 1, 1 to 2, 2 to 3, 3 to image
    power = [rectified_power(scale, shift).mean(0) for scale, shift in norms]
    brought = [power[level][:, None] * between[level + 1] for level in range(3)]
    shares = [part / part.sum(0) for part in brought]
    expected = [torch.zeros(n) for n in net.units]
    for a, b, c, image in itertools.product(*(range(n) for n in net.units), range(2)):
        flows = float(shares[0][a, b] * shares[1][b, c] * shares[2][c, image]) / 2
        for level, unit in enumerate((a, b, c)):
            expected[level][unit] += flows
    for found, truth in zip(relevance(net.wiring, weights, norms, head), expected, strict=True):
        torch.testing.assert_close(found, truth)


@pytest.mark.parametrize("wiring", WIRINGS)
def test_of_a_cut_through_the_network_all_relevance_is_there(wiring: str) -> None:
    """A chain has all of it in every level. A residual sum shares it out between its branch and its shortcut."""
    net, norms = net_of("weights", wiring)
    assert net.private is not None
    shares = relevance(net.wiring, [layer.weight.detach() for layer in net.plastic], norms, net.private.head.detach())
    whole = [level for level in range(1, net.wiring.levels + 1) if wiring == "dcgan" or level % 2]
    for level in range(1, net.wiring.levels + 1):
        total = float(shares[level - 1].sum())
        assert total == pytest.approx(1) if level in whole else 0 < total < 1


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("wiring", WIRINGS)
def test_the_foremost_units_keep_their_voice_and_nobody_else(variant: Variant, wiring: str) -> None:
    net, _ = net_of(variant, wiring)
    masks = prune(
        net.wiring, [torch.rand(layer.embedding.shape, generator=generator(5)) < 0.8 for layer in net.plastic], variant
    )
    before = alive_units(net.wiring, masks, variant)
    shares = [torch.rand(n, generator=generator(6)) for n in net.units]
    limits = [max(1, int(living.sum()) - 1) for living in before]
    kept = foremost(net.wiring, masks, variant, shares, limits)
    after = alive_units(net.wiring, kept, variant)
    for mask, left in zip(masks, kept, strict=True):
        assert not (left & ~mask).any()
    for living, left, share, limit in zip(before, after, shares, limits, strict=True):
        assert 0 < int(left.sum()) <= limit
        dropped = living & ~left
        if int(left.sum()) == limit and dropped.any():
            assert share[left].min() > share[dropped].max()
    unlimited = foremost(net.wiring, masks, variant, shares, net.units)
    assert all(torch.equal(a, b) for a, b in zip(unlimited, masks, strict=True))
