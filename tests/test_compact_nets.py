"""Small networks on demand: the same bits whenever they are made, and no more in memory than the budget says."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conftest import SMALL_GAN, context
from engram.config import ClassifierSettings
from engram.data.datasets import Dataset, load_dataset
from engram.data.stream import ClassStream
from engram.masking.masks import Variant
from engram.memory.class_generator import ClassGenerator
from engram.memory.compact_nets import CompactNets
from engram.memory.engram import extract, shared_weights
from engram.memory.retention import closed_weights, hash_of_closed
from engram.methods.dgm.learner import DGM
from engram.methods.learner import Silent


class Notes(Silent):
    """Keeps what a learner says of retention."""

    def __init__(self) -> None:
        self.kept: list[dict[str, object]] = []

    def note(self, kind: str, **facts: object) -> None:
        if kind == "retention":
            self.kept.append(facts)


def learner(variant: Variant = "weights") -> DGM:
    settings = {**SMALL_GAN, "gan.epochs": 2, "gan.steps": 4, "replay.images": 32, "generator.width": 4}
    method = "dgmw" if variant == "weights" else "dgma"
    return DGM(context(method, settings, classifier=ClassifierSettings(epochs=1, batch_size=16)), variant=variant)


def learned(tiny: Dataset, per_task: int = 1) -> DGM:
    dgm = learner()
    for task in ClassStream(tiny, per_task):
        dgm.learn(task)
    return dgm


def parts(net: ClassGenerator) -> list[Tensor]:
    return [part for part in (*net.weights, *net.biases, net.head, net.bias) if part is not None]


@pytest.mark.parametrize("per_task", [1, 2])
def test_whatever_the_budget_they_are_the_same_and_no_more_is_held(tiny: Dataset, per_task: int) -> None:
    dgm = learned(tiny, per_task)
    expected = [net for engram in dgm.engrams for net in extract(engram, shared_weights(dgm.net))]
    of_one = max(
        sum(
            part.numel() * part.element_size()
            for net in extract(engram, shared_weights(dgm.net))
            for part in parts(net)
        )
        for engram in dgm.engrams
    )
    for budget in (0, of_one, 2 * of_one, 10**9):
        nets = CompactNets(dgm.net, dgm.engrams, kept_bytes=budget)
        assert len(nets) == 4
        for index in (0, 3, 1, 0, 2, 3):
            with torch.inference_mode():
                (net,) = nets[index]
            assert all(torch.equal(a, b) for a, b in zip(parts(net), parts(expected[index]), strict=True))
            assert not any(part.is_inference() for part in parts(net)), "of use outside as well"
            assert nets.bytes <= max(budget, of_one)
        assert [one.head.shape for (one,) in nets[1:]] == [one.head.shape for one in expected[1:]]


def test_those_used_last_are_kept(tiny: Dataset) -> None:
    dgm = learned(tiny)
    whole = CompactNets(dgm.net, dgm.engrams)
    first = [whole[index][0] for index in range(4)]
    assert [whole[index][0] for index in range(4)] == first, "made once"
    nets = CompactNets(dgm.net, dgm.engrams, kept_bytes=whole.bytes - 1)
    (a,), (b,), _ = nets[0], nets[1], nets[2]
    assert nets[0][0] is a, "used again"
    _ = nets[3]
    assert nets[0][0] is a
    assert nets[1][0] is not b, "the one that was not used for longest has gone"


def test_a_learner_that_keeps_hardly_any_learns_the_same_bits(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, images = learned(load_dataset(f"npz:{npz}")), load_dataset(f"npz:{npz}").test.images
    monkeypatch.setattr(CompactNets.__init__, "__kwdefaults__", {"kept_bytes": 1})
    few = learned(load_dataset(f"npz:{npz}"))
    assert few.nets.bytes < whole.nets.bytes
    assert torch.equal(few.scores(images), whole.scores(images))
    assert copy.deepcopy(few).nets.net is not few.nets.net, "a copy of a learner draws with its own weights"


# ---------------------------------------------------------------- one hash for all classes


@pytest.mark.parametrize("variant", ["weights", "units"])
def test_the_hash_sees_every_weight_that_the_past_relies_on_and_no_other(tiny: Dataset, variant: Variant) -> None:
    dgm = learner(variant)
    tasks = iter(ClassStream(tiny, 1))
    dgm.learn(next(tasks))
    closed = closed_weights(dgm.net)
    before = hash_of_closed(dgm.net, closed)
    for layer, mask in zip(dgm.net.plastic, closed, strict=True):
        for held, some in ((True, mask), (False, ~mask)):
            if not some.any():
                continue
            place = tuple(some.nonzero()[0].tolist())
            old = layer.weight[place].item()
            with torch.no_grad():
                layer.weight[place] = old + 0.5
            assert (hash_of_closed(dgm.net, closed) != before) == held
            assert bool(dgm.retention()) <= held, "what no class relies on is no class's loss"
            with torch.no_grad():
                layer.weight[place] = old
    sizes = [layer.weight.numel() for layer in dgm.net.plastic]
    dgm.learn(next(tasks))
    assert sizes < [layer.weight.numel() for layer in dgm.net.plastic]
    assert hash_of_closed(dgm.net, closed) == before, "in a network that has grown too"


def test_a_class_that_was_damaged_between_tasks_is_named_after_the_next_and_every_later_one(tiny: Dataset) -> None:
    dgm, notes = learner(), Notes()
    for task in ClassStream(tiny, 1):
        if task.index == 2:
            masks = dgm.engrams[0].binary_masks()
            with torch.no_grad():
                dgm.net.plastic[1].weight[tuple(masks[1].nonzero()[0].tolist())] += 0.5
        dgm.learn(task, observe=notes)
    changed = [facts["changed"] for facts in notes.kept]
    assert changed[:2] == [[], []]
    assert all(0 in found for found in changed[2:] if isinstance(found, list))
    assert len(changed) == 4
