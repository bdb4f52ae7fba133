"""Forgetting a class: nothing of it is left, the others keep every bit, and what it held is free again."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import SMALL_GAN, Interrupt, context
from engram.config import ClassifierSettings
from engram.data.stream import ClassStream, Task
from engram.errors import ConfigError, RunError
from engram.experiment.checkpoint import fingerprint
from engram.masking.masks import IN_AXIS, OUT_AXIS, Variant
from engram.memory.engram import Engram
from engram.methods.dgm.learner import DGM
from engram.methods.learner import KeepsEngrams, State
from engram.seeding import generator
from engram.testing import images_in, toy_dataset

KINDS: list[tuple[Variant, str]] = [
    ("weights", "dcgan"), ("weights", "residual"), ("units", "dcgan"), ("units", "residual"),
]  # fmt: skip
Places = set[tuple[int, ...]]


def learner(variant: Variant, graph: str = "dcgan", more: Mapping[str, Any] | None = None) -> DGM:
    settings: dict[str, Any] = {**SMALL_GAN, "gan.epochs": 3, "gan.steps": 6, "gan.batch_size": 8, "critic.width": 4}
    settings |= {"replay.images": 48, "generator.architecture": graph}
    if variant == "units":  # wide enough that no machine's rounding opens or closes all units of a node
        settings |= {"generator.width": 6, "masks.lambda_ru": 0.0}
    classifier = ClassifierSettings(epochs=2, batch_size=16, width=4)
    method = "dgmw" if variant == "weights" else "dgma"
    return DGM(context(method, {**settings, **(more or {})}, classifier=classifier), variant=variant)


def tasks(classes_per_task: int, count: int) -> ClassStream:
    return ClassStream(toy_dataset(), classes_per_task, order=range(count))


@functools.cache
def _learned(variant: Variant, graph: str, per_task: int, more: tuple[tuple[str, Any], ...]) -> State:
    dgm = learner(variant, graph, dict(more))
    for task in tasks(per_task, 3):
        dgm.learn(task)
    return dgm.state()


def learned(variant: Variant, graph: str = "dcgan", per_task: int = 1, **more: Any) -> DGM:
    """Three classes, trained once for all tests."""
    settings = {name.replace("__", "."): value for name, value in more.items()}
    dgm = learner(variant, graph, settings)
    dgm.load(copy.deepcopy(_learned(variant, graph, per_task, tuple(settings.items()))))
    return dgm


def opened(engram: Engram) -> list[Places]:
    """By layer, the places of the weights that an engram computes with, one by one.

    Growth appends, so a place is the same in every size.
    """
    masks = [mask.numpy() for mask in engram.binary_masks()]
    units = (engram.latent_dim, *engram.units)
    found: list[Places] = []
    for number, edge in enumerate(engram.graph.edges):
        if engram.variant == "weights":
            found.append({tuple(map(int, place)) for place in np.argwhere(masks[number])})
            continue
        into_source = [n for n, other in enumerate(engram.graph.edges) if other.target == edge.source]
        layout = edge.operation.layout
        places: Places = set()
        for source in range(units[edge.source]):
            if into_source and not any(masks[n][source] for n in into_source):
                continue
            for target in np.flatnonzero(masks[number]):
                ends = {IN_AXIS[layout]: source, OUT_AXIS[layout]: int(target)}
                side = range(edge.operation.kernel)
                places |= {(ends[0], ends[1], y, x) for y in side for x in side}
        found.append(places)
    return found


def in_any(engrams: list[Engram], layer: int) -> Places:
    return set().union(*(opened(engram)[layer] for engram in engrams))


def pairs(tensor: Tensor) -> set[int]:
    """The bits of every two neighbours, but for zeros: longer than chance can hit."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.int32).numpy().astype(np.int64)
    both = (flat[:-1] != 0) & (flat[1:] != 0)
    return set(((flat[:-1] << 32) | (flat[1:] & 0xFFFFFFFF))[both].tolist())


def floats(node: Any) -> Iterator[Tensor]:
    if isinstance(node, dict):
        for value in node.values():
            yield from floats(value)
    elif isinstance(node, Tensor) and node.dtype == torch.float32:
        yield node


def texts(node: Any) -> str:
    return (
        " ".join(map(texts, node.values())) if isinstance(node, dict) else "" if isinstance(node, Tensor) else str(node)
    )


@pytest.mark.parametrize(("variant", "graph"), KINDS)
def test_nothing_of_the_class_is_left_and_the_others_keep_every_bit(variant: Variant, graph: str) -> None:
    dgm = learned(variant, graph)
    assert isinstance(dgm, KeepsEngrams)
    gone, before = dgm.engrams[1], copy.deepcopy(dgm.state())
    own = [set(opened(gone)[n]) - in_any([dgm.engrams[0], dgm.engrams[2]], n) for n in range(len(gone.masks))]
    head = before["classifier_phase"]["classifier"]["net"]["1.weight"]
    traces = set().union(*(pairs(row) for row in (*gone.scales, *gone.shifts, gone.head, head[1])))
    for number, places in enumerate(own):
        weight = before["layers"][str(number)]["weight"]
        neighbours = [place for place in places if (*place[:-1], place[-1] + 1) in places]
        traces |= set().union(*(pairs(weight[place[:-1]][place[-1] : place[-1] + 2]) for place in neighbours))
    assert len(traces) > 50
    assert traces <= set().union(*map(pairs, floats(before))), "the search finds them where they are"
    drawn = [dgm.sample([index], 9, generator=generator(3)) for index in (0, 2)]
    known = [(dgm.engrams[n].contents, dgm.engrams[n].fingerprints) for n in (0, 2)]

    freed = dgm.forget(1)

    after = dgm.state()
    assert not traces & set().union(*map(pairs, floats(after)))
    assert gone.contents[0] in texts(before)
    assert gone.contents[0] not in texts(after)
    assert gone.fingerprints[0] not in texts(after)
    assert images_in(before, gone.references[0]) == 2
    assert images_in(after, gone.references[0]) == 0
    fresh = []
    for number, layer in enumerate(dgm.net.plastic):
        kept = torch.zeros_like(layer.weight, dtype=torch.bool)
        for place in in_any(dgm.engrams, number):
            kept[place] = True
        old = before["layers"][str(number)]["weight"]
        assert torch.equal(layer.weight[kept], old[kept])
        assert not (layer.weight == old)[~kept].any(), "whatever nobody opens is new, moved by the class or not"
        fresh.append(layer.weight[~kept].detach())
        assert not layer.embedding.any()
    assert torch.cat(fresh).std().item() == pytest.approx(0.02, rel=0.1), "drawn as at the start"
    assert freed.weights == sum(map(len, own))
    assert freed.all_weights == sum(layer.weight.numel() for layer in dgm.net.plastic)
    assert freed.engrams == 1
    parts = (*gone.masks, *gone.scales, *gone.shifts, gone.head, gone.bias, *gone.references)
    assert freed.bytes == sum(part.numel() * part.element_size() for part in parts)

    assert [engram.class_indices for engram in dgm.engrams] == [(0,), (1,)]
    assert [(engram.contents, engram.fingerprints) for engram in dgm.engrams] == known
    assert dgm.retention() == []
    assert dgm.redrawn() == []
    assert dgm.largest_difference() == {0: 0, 1: 0}
    for index, images in enumerate(drawn):
        assert torch.equal(dgm.sample([index], 9, generator=generator(3)), images)
    now = after["classifier_phase"]["classifier"]["net"]
    assert torch.equal(now["1.weight"], head[[0, 2]])
    assert now["1.bias"].shape == (2,)
    assert dgm.scores(toy_dataset().test.images[:3]).shape == (3, 2)


@pytest.mark.parametrize(("variant", "graph"), KINDS)
def test_what_is_reserved_is_what_the_others_open(variant: Variant, graph: str) -> None:
    dgm = learned(variant, graph)
    dgm.forget(0)
    for number, layer in enumerate(dgm.net.plastic):
        masks = [engram.binary_masks()[number] for engram in dgm.engrams]
        reserved = {tuple(place) for mask in masks for place in mask.nonzero().tolist()}
        assert {tuple(place) for place in layer.reserved.nonzero().tolist()} == reserved


@pytest.mark.parametrize("variant", ["weights", "units"])
def test_masks_and_head_stay_while_another_class_of_the_task_draws_with_them(variant: Variant) -> None:
    dgm = learned(variant, per_task=3)
    (engram,), weights = dgm.engrams, [layer.weight.detach().clone() for layer in dgm.net.plastic]
    needed = [set(places) for places in opened(engram)]
    drawn = dgm.sample([0, 2], 5, generator=generator(0))
    freed = dgm.forget(1)
    (left,) = dgm.engrams
    assert (freed.weights, freed.engrams) == (0, 0)
    per_class = sum(scale[1].numel() for scale in engram.scales)
    assert freed.bytes == 2 * 4 * per_class + engram.references[1].numel()
    assert left.class_indices == (0, 1)
    assert left.noise_names == (0, 2)
    assert all(torch.equal(a, b) for a, b in zip(left.masks, engram.masks, strict=True))
    assert torch.equal(left.head, engram.head)
    assert all(torch.equal(a, b[[0, 2]]) for a, b in zip(left.scales, engram.scales, strict=True))
    for layer, old, places in zip(dgm.net.plastic, weights, needed, strict=True):
        assert all(layer.weight[place] == old[place] for place in places)
    assert torch.equal(dgm.sample([0, 1], 5, generator=generator(0)), drawn)
    assert dgm.retention() == dgm.redrawn() == []
    assert dgm.forget(1).weights == 0
    assert dgm.forget(0).weights == sum(map(len, needed)), "with the last of them the masks go"
    assert dgm.engrams == []


def learn_with_stops(dgm: DGM, task: Task, rebuild: Any, stops: tuple[int, ...]) -> DGM:
    """Again and again stopped, saved and taken over by a new learner."""
    for after in (*stops, 0):
        other: DGM = rebuild()
        other.load(copy.deepcopy(dgm.state()))
        dgm = other
        with contextlib.suppress(InterruptedError):
            dgm.learn(task, observe=Interrupt(after))
            break
    return dgm


@pytest.mark.parametrize(
    ("variant", "more"),
    [
        ("weights", {}),
        ("units", {}),
        ("weights", {"replay__classifier": "critic", "critic__start": "warm"}),
        ("weights", {"exemplars__budget": 12, "critic__start": "warm"}),
    ],
)
def test_a_class_learned_afterwards_is_kept_like_any_other_through_any_stop(
    variant: Variant, more: dict[str, Any]
) -> None:
    dgm = learned(variant, **more)
    rows = dgm.critic.classes.weight.detach().clone() if dgm.critic is not None else None
    dgm.forget(1)
    if more.get("replay__classifier") == "critic":
        assert rows is not None
        assert dgm.critic is not None
        assert torch.equal(dgm.critic.classes.weight, rows[[0, 2]])
    else:
        assert dgm.critic is None, "it has seen the class's images"
    free = [int((~layer.reserved).sum()) for layer in dgm.net.plastic]
    rebuild = functools.partial(learner, variant, more={n.replace("__", "."): v for n, v in more.items()})
    torn = rebuild()
    torn.load(copy.deepcopy(dgm.state()))
    drawn = dgm.sample([0, 1], 5, generator=generator(0))
    images = toy_dataset().take_train()
    of_3 = images.images[images.labels == 3]
    task = Task(3, (3,), (0, 2, 3), of_3, torch.full((len(of_3),), 2), ("3",))
    dgm.learn(task)
    assert dgm.retention() == dgm.redrawn() == []
    assert torch.equal(dgm.sample([0, 1], 5, generator=generator(0)), drawn)
    assert dgm.engrams[-1].class_indices == (2,)
    assert dgm.scores(of_3[:3]).shape == (3, 3)
    assert all(f >= int(layer.start_free) for f, layer in zip(free, dgm.net.plastic, strict=True))
    torn = learn_with_stops(torn, task, rebuild, (2, 5, 7, 2))
    assert fingerprint(torn.state()) == fingerprint(dgm.state())


def test_stored_images_go_with_the_class() -> None:
    dgm = learned("weights", exemplars__budget=12)
    kept = dict(dgm.classifier_phase.exemplars.images)
    assert images_in(dgm.state(), kept[1]) == 4
    freed = dgm.forget(1)
    assert images_in(dgm.state(), kept[1]) == 0
    assert freed.bytes > kept[1].numel()
    left = dgm.classifier_phase.exemplars.images
    assert set(left) == {0, 1}
    assert torch.equal(left[1], kept[2])


def test_without_a_class_it_can_begin_again() -> None:
    dgm = learned("weights")
    for _ in range(3):
        dgm.forget(0)
    assert dgm.scores(toy_dataset().test.images[:2]).shape == (2, 0)
    assert dgm.retention() == []
    other = learner("weights")
    other.load(copy.deepcopy(dgm.state()))
    assert not any(layer.reserved.any() for layer in other.net.plastic)
    for index, task in enumerate(tasks(1, 2)):
        task.index = 3 + index
        other.learn(task)
    assert other.retention() == []
    assert other.scores(toy_dataset().test.images[:2]).shape == (2, 2)


def test_two_classes_are_never_given_the_same_new_weights() -> None:
    dgm = learned("weights")
    seen = []
    for _ in range(2):
        dgm.forget(0)
        seen.append(dgm.net.plastic[0].weight.detach().clone())
    free = ~dgm.net.plastic[0].reserved
    assert not (seen[0] == seen[1])[free].any()


def test_in_the_middle_of_a_task_and_for_no_class_it_is_refused() -> None:
    dgm = learner("weights")
    with pytest.raises(ConfigError, match="class 0 cannot be forgotten: no class is known"):
        dgm.forget(0)
    with pytest.raises(InterruptedError):
        dgm.learn(next(iter(tasks(1, 1))), observe=Interrupt(2))
    with pytest.raises(RunError, match="class 0 cannot be forgotten in the middle of a task; finish the task first"):
        dgm.forget(0)
    with pytest.raises(RunError, match="a new classifier cannot be trained in the middle of a task"):
        dgm.relearn(task_index=1)
    with pytest.raises(ConfigError, match="class -1 cannot be forgotten: there are classes 0 to 2"):
        learned("weights").forget(-1)


def test_a_new_classifier_knows_the_others_and_nothing_of_the_old_one() -> None:
    """The old trunk is gone with it. No stored image is shown, and until it is done the old one answers."""
    dgm = learned("weights", exemplars__budget=12)
    dgm.forget(1)
    images, trunk = toy_dataset().test.images[:4], dgm.state()["classifier_phase"]["classifier"]["net"]
    old = pairs(trunk["0.convolutions.1.weight"])
    before = dgm.scores(images)
    with pytest.raises(InterruptedError):
        dgm.relearn(task_index=3, observe=Interrupt(2))
    assert torch.equal(dgm.scores(images), before)
    kept = dgm.classifier_phase.exemplars.images
    dgm.classifier_phase.exemplars.images = {}  # whoever draws from them now fails
    dgm.relearn(task_index=3)
    dgm.classifier_phase.exemplars.images = kept
    assert dgm.classifier_phase.real_share > 0
    assert not old & set().union(*map(pairs, floats(dgm.state())))
    assert dgm.scores(images).shape == (4, 2)
    drawn = dgm.sample([0, 1], 30, generator=generator(0))
    assert (dgm.scores(drawn).argmax(1) == torch.arange(60) // 30).float().mean().item() > 0.8


def test_a_critic_that_answers_cannot_be_trained_from_drawings() -> None:
    dgm = learned("weights", replay__classifier="critic", critic__start="warm")
    with pytest.raises(RunError, match=r"learn the classes anew with replay\.classifier=generated"):
        dgm.relearn(task_index=3)


@pytest.mark.parametrize("per_task", [1, 3])
def test_states_of_the_version_before_are_read(per_task: int) -> None:
    """They name no noise, have no references and count nothing forgotten."""
    dgm = learned("weights", per_task=per_task)
    state = copy.deepcopy(dgm.state())
    del state["forgotten"]
    for engram in state["engrams"].values():
        del engram["references"], engram["plain"]["noise_names"]
    other = learner("weights")
    other.load(state)
    assert other.retention() == other.redrawn() == []
    assert other.largest_difference() == {}
    other.forget(0)
    assert other.retention() == other.redrawn() == []
    again = learner("weights")
    again.load(copy.deepcopy(other.state()))
    assert again.redrawn() == [], "after a class has moved up, its noise still has the name that it had"
