"""More images of a class that is known: a second engram beside the first, and both are replayed."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conftest import SMALL, Interrupt, context
from engram.config import ClassifierSettings
from engram.data.examples import Examples
from engram.data.stream import Task
from engram.experiment.checkpoint import fingerprint
from engram.memory.class_generator import sample
from engram.memory.exemplars import Exemplars
from engram.methods.classifier_phase import TEMPERATURE, ClassifierPhase, class_loss
from engram.methods.dgm.learner import DGM
from engram.seeding import generator

SIDE = 8
"""Of the square that makes a kind of image, in pixels."""


def images_of(place: int, count: int = 32, *, seed: int = 0) -> Tensor:
    """(count, 1, 32, 32): a bright square whose place, 0 to 15, is the kind, on noise."""
    images = torch.randint(0, 60, (count, 1, 32, 32), dtype=torch.uint8, generator=generator(seed, "kind", place))
    y, x = (SIDE * part for part in divmod(place, 4))
    images[:, :, y : y + SIDE, x : x + SIDE] += 180
    return images


def task_of(index: int, kinds: Mapping[int, int], classes: int, count: int = 32) -> Task:
    """kinds: class index -> place of its square; the order is that of the task's classes."""
    images = torch.cat([images_of(place, count) for place in kinds.values()])
    targets = torch.tensor([index for index in kinds for _ in range(count)])
    names = tuple(map(str, kinds))
    return Task(index, tuple(kinds), tuple(range(classes)), images, targets, names, class_indices=tuple(kinds))


def accuracy(dgm: DGM, place: int, class_index: int) -> float:
    answers = dgm.scores(images_of(place, 40, seed=1)).argmax(1)
    return (answers == class_index).float().mean().item()


def shades_of(images: Tensor) -> Tensor:
    """(16,) how bright each place is, in the mean over images."""
    return F.avg_pool2d(images.float().mean(0), SIDE).flatten()


def brightest(images: Tensor) -> int:
    """The place where a square would be."""
    return int(shades_of(images).argmax())


def learner(method: str, more: Mapping[str, Any] | None = None) -> DGM:
    settings = {**SMALL[method], "gan.batch_size": 8, "replay.images": 192, **(more or {})}
    ctx = context(method, settings, classifier=ClassifierSettings(epochs=6, batch_size=16, width=8))
    return DGM(ctx, variant="weights" if method == "dgmw" else "units")


@pytest.mark.parametrize("method", ["dgmw", "dgma"])
def test_both_kinds_of_a_class_are_answered_and_drawn(method: str) -> None:
    """The same new images, given to either class: whichever it was, both of its kinds are answered with it."""
    before = learner(method)
    for index in range(2):
        before.learn(task_of(index, {index: 5 * index}, index + 1))
    state, without = before.state(), [accuracy(before, 10, index) for index in range(2)]
    assert min(without) <= 0.5, "it cannot have known for both"
    for index in range(2):
        dgm = learner(method)
        dgm.load(copy.deepcopy(state))
        drawn = sample(dgm.nets[index][0], 30, generator=generator(0))
        dgm.learn(task_of(2, {index: 10}, 2))
        assert [accuracy(dgm, *kind) > 0.8 for kind in ((0, 0), (5, 1), (10, index))] == [True] * 3

        assert [len(nets) for nets in dgm.nets] == [1 + (n == index) for n in range(2)]
        kinds = [brightest(sample(net, 50, generator=generator(1))) for net in dgm.nets[index]]
        assert kinds == [5 * index, 10], "each engram draws the kind that it was shown"
        assert dgm.retention() == dgm.redrawn() == []
        assert dgm.largest_difference() == {0: 0, 1: 0}
        assert dgm.engrams[index].contents == before.engrams[index].contents
        assert torch.equal(sample(dgm.nets[index][0], 30, generator=generator(0)), drawn)
        draws = generator(2)
        parts = [sample(net, count, generator=draws) for net, count in zip(dgm.nets[index], (4, 3), strict=True)]
        assert torch.equal(dgm.sample([index], 7, generator=generator(2)), torch.cat(parts)), "evenly"


def test_known_and_new_classes_in_one_task_each_learn_their_own_images() -> None:
    """In no order: class 2, which is new, comes first, then more of class 0."""
    dgm = learner("dgmw", {"replay.images": 48, "gan.batch_size": 16, "gan.lambda_aux": 4.0})
    dgm.learn(task_of(0, {0: 0, 1: 5}, 2))
    dgm.learn(task_of(1, {2: 15, 0: 10}, 3))
    assert dgm.engrams[1].class_indices == (2, 0)
    assert [len(nets) for nets in dgm.nets] == [2, 1, 1]
    shades = [shades_of(sample(net, 50, generator=generator(1))) for net in (dgm.nets[2][0], dgm.nets[0][1])]
    apart = shades[0] - shades[1]
    assert apart[15] - apart[10] > 10, "each is brighter at its own place than the other is there; swapped, it is < 0"
    freed = dgm.forget(0)
    assert (freed.engrams, freed.weights) == (0, 0), "both engrams have another class"
    assert [engram.class_indices for engram in dgm.engrams] == [(0,), (1,)]
    assert [len(nets) for nets in dgm.nets] == [1, 1]
    assert dgm.retention() == dgm.redrawn() == []


def test_a_changed_bit_names_the_class_once() -> None:
    dgm = learner("dgmw", {"gan.epochs": 2, "gan.steps": 4, "replay.images": 32})
    for index in range(2):
        dgm.learn(task_of(index, {0: 10 * index}, 1))
    assert [engram.class_indices for engram in dgm.engrams] == [(0,), (0,)]
    assert dgm.retention() == []
    with torch.no_grad():
        for layer in dgm.net.plastic:
            layer.weight.add_(1.0)
    assert dgm.retention() == dgm.redrawn() == [0]
    assert dgm.largest_difference()[0] > 0
    assert dgm.forget(0).engrams == 2


SHORT: dict[str, Any] = {
    "gan.epochs": 2, "gan.steps": 4, "gan.batch_size": 8, "replay.images": 48, "classifier.epochs": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("dgmw", {"replay.real_fraction": 0.5, "replay.distill_weight": 1.0}),
        ("dgmw", {"replay.classifier": "critic", "critic.start": "warm"}),
        ("dgma", {"replay.classifier": "critic", "masks.lambda_ru": 0.0}),
        ("dgmw", {"exemplars.budget": 18, "exemplars.selection": "herding", "critic.start": "warm"}),
        ("dgmw", {"exemplars.ratio": 0.25}),
    ],
)
def test_every_setting_takes_more_of_a_known_class_through_any_stop(method: str, more: dict[str, Any]) -> None:
    first, second, third = {0: 0, 1: 5}, {2: 15, 0: 10}, {1: 3}
    whole, torn = (learner(method, {**SHORT, **more}) for _ in range(2))
    for index, (kinds, classes) in enumerate([(first, 2), (second, 3), (third, 3)]):
        task = task_of(index, kinds, classes)
        whole.learn(task)
        for after in (3, 6, 5, 2, 0):
            other = learner(method, {**SHORT, **more})
            other.load(copy.deepcopy(torn.state()))
            torn = other
            with contextlib.suppress(InterruptedError):
                torn.learn(task, observe=Interrupt(after))
                break
        assert whole.retention() == whole.redrawn() == []
        assert whole.scores(images_of(0, 4)).shape == (4, classes)
    assert fingerprint(torn.state()) == fingerprint(whole.state())
    assert [len(nets) for nets in whole.nets] == [2, 2, 1]
    stored = whole.classifier_phase.exemplars.images
    if "exemplars.budget" in more:
        assert {index: len(kept) for index, kept in stored.items()} == dict.fromkeys(range(3), 6)
        assert sorted({brightest(image[None]) for image in stored[0]}) == [0, 10], "both kinds are stored"
    if "exemplars.ratio" in more:
        assert {index: len(kept) for index, kept in stored.items()} == dict.fromkeys(range(3), 8)
        assert whole.classifier_phase.real_share == 0.25


def test_a_warm_critic_that_answers_goes_on_with_all_classes_that_it_knows() -> None:
    dgm = learner("dgmw", {**SHORT, "replay.classifier": "critic", "critic.start": "warm"})
    dgm.learn(task_of(0, {0: 0, 1: 5}, 2))
    assert dgm.critic is not None
    rows = dgm.critic.classes.weight.detach().clone()
    with pytest.raises(InterruptedError):
        dgm.learn(task_of(1, {1: 10}, 2), observe=Interrupt(1))
    assert dgm.trainer is not None
    moved = (dgm.trainer.critic.classes.weight - rows).abs().max().item()
    assert moved < 0.05, "after one step both outputs are near those of the last task"


# ---------------------------------------------------------------- the classifier's phase


def test_marked_images_are_compared_among_the_tasks_classes_wherever_they_stand() -> None:
    scores = torch.randn(4, 5, generator=generator(0), dtype=torch.float64).requires_grad_()
    targets, marked, own = torch.tensor([3, 0, 1, 2]), torch.tensor([True, True, False, False]), (3, 0)
    loss = class_loss(scores, targets, marked, own=own, smoothing=0.1)
    by_hand = 0.0
    for row, target in enumerate(targets.tolist()):
        among: Sequence[int] = own if marked[row] else range(5)
        values = {index: scores[row, index].item() for index in among}
        logs = {index: v - math.log(sum(map(math.exp, values.values()))) for index, v in values.items()}
        by_hand -= 0.9 * logs[target] + 0.1 * sum(logs.values()) / len(logs)
    assert loss.item() == pytest.approx(by_hand / 4, rel=1e-9)
    (gradient,) = torch.autograd.grad(loss, scores)
    assert not gradient[:2, [1, 2, 4]].any()


def a_phase(engrams: int = 1, **settings: Any) -> ClassifierPhase:
    named = {f"replay.{name}": value for name, value in settings.items()}
    ctx = context("dgmw", named, classifier=ClassifierSettings(width=2, label_smoothing=0.0))
    return ClassifierPhase(ctx, ctx.settings.replay, engrams_of=lambda _: engrams)


def test_nobody_is_held_to_what_was_said_of_a_class_that_there_is_more_of() -> None:
    phase = a_phase(distill_weight=2.0)
    before = torch.randn(6, 3, generator=generator(1))
    phase.old, phase.teacher = 3, nn.Identity()  # its "images" are what it says
    scores = torch.randn(6, 4, generator=generator(2))
    examples = Examples(torch.empty(0), torch.tensor([0, 1, 2, 3, 1, 0]))
    plain = F.cross_entropy(scores, examples.targets).item()
    total = 0.0
    for row in (0, 2, 3, 5):  # all but class 1
        then, now = (F.softmax(some[row, :3] / TEMPERATURE, 0) for some in (before, scores))
        total += (then * (then / now).log()).sum().item() * TEMPERATURE**2
    found = phase._loss((1,), before, scores, examples).item()
    assert found == pytest.approx(plain + 2.0 * 3 / 4 * total / 6, rel=1e-5)
    only = Examples(torch.empty(0), torch.ones(6, dtype=torch.int64))
    assert phase._loss((1,), before, scores, only).item() == pytest.approx(
        F.cross_entropy(scores, only.targets).item(), rel=1e-5
    )


def test_leaving_out_doubt_leaves_both_kinds_in() -> None:
    """The filter is surest of bright images. One kind is bright, the other dark: each still gives its half."""

    class Brightness(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.pad(x.mean((1, 2, 3))[:, None], (0, 1))

    def source(class_index: int, count: int, draws: torch.Generator) -> Tensor:
        shades = torch.arange(count, dtype=torch.uint8)
        shades[: math.ceil(count / 2)] += 100  # the first engram's
        return shades[:, None, None, None].expand(-1, 1, 32, 32)

    shades = {}
    for engrams in (1, 2):
        phase = a_phase(engrams, keep_fraction=0.5)
        phase.confidence_filter = Brightness()
        shades[engrams] = phase._confident(source, 0, 9, generator(0))[:, 0, 0, 0].tolist()
    assert shades[2] == [108, 107, 106, 105, 104, 17, 16, 15, 14]
    assert shades[1] == [108, 107, 106, 105, 104, 103, 102, 101, 100], "one engram alone: the surest of all"


@pytest.mark.parametrize(("share", "kept", "new"), [(0.5, 6, [1, 3, 5]), (1 / 3, 6, [1, 4]), (0.5, 0, [])])
def test_stored_images_of_both_kinds_are_spread_over_the_order(share: float, kept: int, new: list[int]) -> None:
    stored = Exemplars({4: torch.zeros(kept, 1, 2, 2, dtype=torch.uint8)})
    stored.mix(4, torch.ones(9, 1, 2, 2, dtype=torch.uint8), share=share)
    assert len(stored.images[4]) == kept
    assert stored.images[4][:, 0, 0, 0].nonzero().flatten().tolist() == new


def test_a_task_says_where_its_classes_stand() -> None:
    assert task_of(0, {2: 15, 0: 10}, 3).class_indices == (2, 0)
    images, targets = images_of(0, 2), torch.tensor([1, 2])
    assert Task(1, (7, 8), (5, 7, 8), images, targets, ("a", "b")).class_indices == (1, 2)
