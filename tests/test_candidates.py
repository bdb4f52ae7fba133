"""A task that sees some of the units: which these are, that nothing else moves, and that all promises hold."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import SMALL_GAN, Interrupt, context, write_npz
from engram.config import ClassifierSettings
from engram.data.datasets import Dataset, load_dataset
from engram.data.stream import ClassStream
from engram.errors import RunError
from engram.experiment.checkpoint import fingerprint as state_fingerprint
from engram.masking.masks import IN_AXIS, OUT_AXIS, Variant
from engram.memory.class_generator import unit_shares
from engram.memory.engram import content_hashes, engram_of, engram_state, extract, shared_weights
from engram.memory.forgetting import reserved_masks
from engram.memory.ledger import ledger
from engram.methods.dgm.candidates import seen_units, unit_scores
from engram.methods.dgm.learner import DGM
from engram.nets.architectures import GRAPHS, VECTOR_GRAPHS, graph_of
from engram.nets.candidates import Candidates, choose, reserved_units
from engram.nets.masked_generator import MaskedGenerator
from engram.seeding import generator
from engram.testing import toy_vectors

VARIANTS: list[Variant] = ["weights", "units"]
EVERY_GRAPH = pytest.mark.parametrize("graph", [*GRAPHS, *VECTOR_GRAPHS])
EITHER = pytest.mark.parametrize("variant", VARIANTS)


def network(variant: Variant, graph: str) -> MaskedGenerator:
    """Of which earlier tasks have reserved some entries."""
    size = 0 if graph in VECTOR_GRAPHS else 32
    net = MaskedGenerator(
        graph_of(graph, size), 1, width=4, latent_dim=6, variant=variant, generator=generator(0, "net")
    )
    for number, layer in enumerate(net.plastic):
        some = torch.rand(layer.embedding.shape, generator=generator(1, number)) < 0.3
        units = torch.rand(layer.size().units, generator=generator(2, net.graph.edges[number].target)) < 0.6
        along = [1] * some.dim()
        along[OUT_AXIS[layer.layout] if some.dim() > 1 else 0] = len(units)
        layer.reserve_(some & units.view(along))
    return net


def learner(variant: Variant, graph: str, candidates: float, **more: Any) -> DGM:
    chosen: dict[str, Any] = {**SMALL_GAN, "gan.epochs": 3, "gan.steps": 6, "replay.images": 64}
    chosen |= {"generator.architecture": graph, "masks.candidates": candidates, **more}
    if (variant, graph) == ("units", "residual"):
        chosen |= {"generator.width": 6, "masks.lambda_ru": 0.0}
    ctx = context(
        "dgmw" if variant == "weights" else "dgma",
        chosen,
        shape=(12,) if graph == "mlp" else (1, 32, 32),
        classifier=ClassifierSettings(epochs=1, batch_size=16),
    )
    return DGM(ctx, variant=variant)


def data_of(graph: str, tiny: Dataset) -> Dataset:
    return toy_vectors() if graph in VECTOR_GRAPHS else tiny


# ---------------------------------------------------------------- which units


@EITHER
@EVERY_GRAPH
def test_a_unit_is_reserved_where_any_mask_entry_writes_into_it(variant: Variant, graph: str) -> None:
    net = network(variant, graph)
    expected: list[set[int]] = [set() for _ in net.units]
    for edge, layer in zip(net.graph.edges, net.plastic, strict=True):
        axis = OUT_AXIS[layer.layout] if layer.reserved.dim() > 1 else 0
        expected[edge.target - 1] |= {place[axis] for place in layer.reserved.nonzero().tolist()}
    found = reserved_units(net.graph, [layer.reserved for layer in net.plastic])
    assert [set(units.nonzero().squeeze(1).tolist()) for units in found] == expected
    assert any(expected), "some of each"
    assert any(len(units) < count for units, count in zip(expected, net.units, strict=True))


def test_all_free_units_are_seen_and_of_the_others_those_with_the_highest_scores() -> None:
    reserved = torch.tensor([True, False, True, True, True, False])
    scores = torch.tensor([0.1, 0.0, 0.7, 0.2, 0.7, 0.0])
    for limit, expected in [(0, [1, 5]), (3, None), (4, [1, 2, 4, 5]), (5, [1, 2, 3, 4, 5]), (9, list(range(6)))]:
        (found,) = choose([reserved], [scores], [limit], generator=generator(0))
        if expected is None:
            assert found.tolist() in ([1, 2, 5], [1, 4, 5]), "a tie"
        else:
            assert found.tolist() == expected
    drawn = {
        tuple(choose([reserved], [torch.zeros(6)], [4], generator=generator(seed))[0].tolist()) for seed in range(50)
    }
    assert len(drawn) == 6, "at random: every pair of the four reserved ones"


def test_a_network_that_is_small_enough_is_seen_whole() -> None:
    net = network("units", "dcgan")
    reserved = [layer.reserved for layer in net.plastic]
    draws = generator(0)
    assert seen_units(net.graph, reserved, net.units, None, draws=draws) is None
    assert seen_units(net.graph, [mask & False for mask in reserved], [1, 1, 1], None, draws=draws) is None
    assert seen_units(net.graph, reserved, [net.units[0] - 1, *net.units[1:]], None, draws=draws) is not None


@EITHER
def test_the_scores_are_those_of_the_classes_that_the_images_look_like(tiny: Dataset, variant: Variant) -> None:
    """Against a sum over all engrams, unit by unit."""
    dgm = learner(variant, "dcgan", 1.5)
    for task in ClassStream(tiny, 1):
        dgm.learn(task)
    weights, alike = shared_weights(dgm.net), torch.tensor([0.1, 0.0, 0.6, 0.3])
    found = unit_scores(dgm.net.units, dgm.engrams, weights, alike, draws=generator(5))
    expected = [[0.0] * count for count in dgm.net.units]
    draws = generator(5)
    for index, engram in enumerate(dgm.engrams):
        z = torch.randn(128, engram.latent_dim, generator=draws)
        (net,) = extract(engram, weights)
        for node, (numbers, shares) in enumerate(zip(engram.kept_units(), unit_shares(net, z), strict=True)):
            assert float(shares.sum()) == pytest.approx(1, abs=1e-4), "a chain: all power passes through every node"
            for number, share in zip(numbers.tolist(), shares.tolist(), strict=True):
                expected[node][number] += float(alike[index]) * share
    for scores, truth in zip(found, expected, strict=True):
        torch.testing.assert_close(scores, torch.tensor(truth))


# ---------------------------------------------------------------- a part and the whole


@EITHER
@EVERY_GRAPH
def test_what_the_part_learns_lands_between_its_units_and_nothing_else_moves(variant: Variant, graph: str) -> None:
    net = network(variant, graph)
    units = [torch.tensor(sorted({0, count - 1, count // 2})) for count in net.units]
    before = [layer.weight.detach().clone() for layer in net.plastic]
    part = Candidates(net, units)
    part.write_back()
    assert all(torch.equal(layer.weight, old) for layer, old in zip(net.plastic, before, strict=True))
    with torch.no_grad():
        for layer in part.net.plastic:
            layer.weight.add_(1.0)
    part.write_back()
    ends = [torch.arange(net.latent_dim), *units]
    masks = [torch.ones_like(layer.reserved) for layer in part.net.plastic]
    wide = part.spread(masks)
    for edge, layer, old, mask in zip(net.graph.edges, net.plastic, before, wide, strict=True):
        inside = torch.zeros_like(old, dtype=torch.bool)
        for source in ends[edge.source].tolist():
            for target in ends[edge.target].tolist():
                place = {IN_AXIS[layer.layout]: source, OUT_AXIS[layer.layout]: target}
                inside[place[0], place[1]] = True
        assert torch.equal(layer.weight != old, inside)
        if variant == "weights":
            assert torch.equal(mask, inside)
        else:
            assert mask.nonzero().squeeze(1).tolist() == ends[edge.target].tolist()
    assert all(torch.equal(a, b) for a, b in zip(part.narrow(wide), masks, strict=True))


@EITHER
@EVERY_GRAPH
def test_a_task_that_sees_a_part_keeps_every_promise(tiny: Dataset, variant: Variant, graph: str) -> None:
    """Old drawings bit for bit, bounded masks, what is reserved, and a state that comes back."""
    dgm, images, seen = learner(variant, graph, 1.5), list[list[Tensor]](), 0
    z = torch.randn(5, 16, generator=generator(9))
    limits = [round(1.5 * multiple * dgm.settings.generator.width) for multiple in dgm.net.graph.multiples]
    for task in ClassStream(data_of(graph, tiny), 1):
        free = [int((~known).sum()) for known in reserved_units(dgm.net.graph, [n.reserved for n in dgm.net.plastic])]
        dgm.learn(task)
        assert dgm.retention() == dgm.redrawn() == []
        images.append([net(z) for engram in dgm.engrams for net in extract(engram, shared_weights(dgm.net))])
        for earlier in images:
            assert all(torch.equal(a, b) for a, b in zip(earlier, images[-1], strict=False))
        engram = dgm.engrams[-1]
        assert all(n <= max(m, f) for n, m, f in zip(engram.units, limits, free, strict=True))
        assert tuple(map(len, engram.candidates)) in ((), engram.units)
        seen += bool(engram.candidates)
        for layer, mask in zip(dgm.net.plastic, reserved_masks(dgm.engrams, dgm.net), strict=True):
            assert torch.equal(layer.reserved, mask), "what the engrams open is what is reserved"
        other = learner(variant, graph, 1.5)
        other.load(dgm.state())
        assert other.retention() == []
        assert state_fingerprint(other.state()) == state_fingerprint(dgm.state())
    assert seen, "some task saw a part"
    of_masks = sum(part.numel() * part.element_size() for e in dgm.engrams for part in (*e.masks, *e.candidates))
    assert ledger(dgm.net, dgm.engrams)["masks"] == of_masks


def test_the_list_of_units_is_part_of_what_a_class_depends_on(tiny: Dataset) -> None:
    dgm = learner("units", "dcgan", 1.5)
    for task in ClassStream(tiny, 1):
        dgm.learn(task)
    engram, weights = dgm.engrams[-1], shared_weights(dgm.net)
    saved = copy.deepcopy(engram_state(engram))
    assert content_hashes(engram_of(saved), weights) == list(engram.contents)
    first = saved["candidates"]["0"]
    first[0] = next(n for n in range(dgm.net.units[0]) if n not in first.tolist())
    assert content_hashes(engram_of(saved), weights) != list(engram.contents)


@pytest.mark.parametrize("damage", ["beyond", "below", "shorter"])
def test_a_list_that_does_not_fit_the_network_is_refused_when_it_is_loaded(tiny: Dataset, damage: str) -> None:
    dgm = learner("units", "dcgan", 1.5)
    for task in ClassStream(tiny, 2):
        dgm.learn(task)
    state = copy.deepcopy(dgm.state())
    held = state["engrams"]["1"]["candidates"]
    if damage == "shorter":
        held["0"] = held["0"][:-1]
    else:
        held["0"][-1] = 10**6 if damage == "beyond" else -1
    with pytest.raises(RunError, match=r"^an engram of \d+ units names .*; take a backup$"):
        learner("units", "dcgan", 1.5).load(state)


@EITHER
@pytest.mark.parametrize("by", ["relevance", "random"])
def test_it_survives_stops_within_and_between_tasks(tmp_path: Path, variant: Variant, by: str) -> None:
    made = {"masks.candidates_by": by, "generator.width": 4}
    whole, stopped = (learner(variant, "dcgan", 1.5, **made) for _ in range(2))
    npz = f"npz:{write_npz(tmp_path / 'a.npz')}"
    streams = (ClassStream(load_dataset(npz), 1) for _ in range(2))
    parts = 0
    for task, again in zip(*streams, strict=True):
        whole.learn(task)
        # in both phases of the generator and in the classifier's, each time by a new learner
        for after in (2, 8, 6, 1, 0):
            resumed = learner(variant, "dcgan", 1.5, **made)
            resumed.load(copy.deepcopy(stopped.state()))
            stopped = resumed
            parts += stopped.trainer is not None and stopped.trainer.seen is not None
            with contextlib.suppress(InterruptedError):
                stopped.learn(again, observe=Interrupt(after))
                break
        assert state_fingerprint(stopped.state()) == state_fingerprint(whole.state())
    assert parts, "stopped while a part was trained"
    assert whole.retention() == []


@EITHER
def test_forgetting_frees_what_only_the_class_opened_of_a_part(tiny: Dataset, variant: Variant) -> None:
    dgm = learner(variant, "dcgan", 1.5)
    for task in ClassStream(tiny, 1):
        dgm.learn(task)
    kept = dgm.sample([0, 1, 2], 3, generator=generator(1))
    assert dgm.engrams[3].candidates
    freed = dgm.forget(3)
    assert freed.weights > 0
    assert torch.equal(dgm.sample([0, 1, 2], 3, generator=generator(1)), kept)
    assert dgm.retention() == []
