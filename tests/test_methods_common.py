"""One battery over the whole registry: what every method must do, whatever it is. And whoever does not is found out."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conftest import SMALL, context
from engram.config import ClassifierSettings, Group, MethodSettings, setting
from engram.context import Context, Shape
from engram.data.stream import ClassStream, Task
from engram.errors import ConfigError
from engram.experiment.checkpoint import fingerprint
from engram.methods.answering import AnswerNet
from engram.methods.bounds import PlainLearner
from engram.methods.learner import (
    SILENT,
    AddsUp,
    Embeds,
    KeepsEngrams,
    Learner,
    Method,
    Observer,
    Retains,
    Samples,
    State,
)
from engram.methods.learner import Forgets as DropsClasses
from engram.methods.registry import METHODS
from engram.testing import check_learner, images_in, toy_dataset

TRAINING = ClassifierSettings(epochs=4, batch_size=8)
PLAIN = {"classifier.augment": "none", "classifier.label_smoothing": 0.0}
BRIEF = {"gan.epochs": 4, "gan.steps": 8}
"""For a GAN that goes through all its phases and need not have learned much."""


def brief(name: str) -> dict[str, Any]:
    return BRIEF if "gan.steps" in SMALL.get(name, {}) else {}


def build(name: str, seed: int = 0) -> Learner:
    ctx = context(name, {**SMALL.get(name, {}), **brief(name)}, classifier=TRAINING, seed=seed)
    learner: Learner = METHODS[name].build(ctx)  # type: ignore[attr-defined]
    return learner


def learn(name: str, seed: int = 0) -> Learner:
    learner = build(name, seed)
    for task in ClassStream(toy_dataset(), 2, cumulative=METHODS[name].given_all_data):
        learner.learn(task)
    return learner


@functools.cache
def trained(name: str) -> Learner:
    """Learned once for all tests that only look: 4 classes, two a task, one channel."""
    return learn(name)


# the tests of a method run in one process, where `trained` is shared
every_method = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in METHODS]
)


@every_method
def test_does_what_every_learner_must(name: str) -> None:
    check_learner(METHODS[name], settings={**PLAIN, **SMALL.get(name, {})}, brief=brief(name))


@every_method
def test_another_seed_gives_other_bits(name: str) -> None:
    assert fingerprint(trained(name).state()) != fingerprint(learn(name, seed=1).state())


@every_method
def test_survives_save_and_load(name: str) -> None:
    """Whatever the learner was before it was loaded."""
    other = build(name, seed=9)
    other.load(trained(name).state())
    images = toy_dataset().test.images
    assert torch.equal(trained(name).scores(images), other.scores(images))
    assert fingerprint(trained(name).state()) == fingerprint(other.state())


@every_method
def test_a_new_learner_knows_as_little_as_a_loaded_one(name: str) -> None:
    """A state from before the first task is a state as well."""
    other = build(name, seed=9)
    other.load(build(name).state())
    assert fingerprint(other.state()) == fingerprint(build(name).state())


@every_method
def test_keeps_past_images_where_it_says_so_and_nowhere_else(name: str) -> None:
    past = toy_dataset().take_train()
    found = images_in(trained(name).state(), past.images[past.labels < 2])
    method = METHODS[name]
    if method.is_strict(method.settings):
        assert found == 0
    elif not method.given_all_data:  # joint training is handed all images anew, and keeps none
        assert found > 0


def test_the_search_finds_a_hidden_image() -> None:
    images = toy_dataset().take_train().images[:3]
    for hidden in (images[:1], images[0].flatten(), images[:1].float() / 127.5 - 1, images[:1].float().flatten() / 255):
        assert images_in({"a": {"b": hidden.clone(), "c": torch.zeros(5)}}, images) == 1
    assert images_in({"a": torch.zeros(3, 1, 32, 32)}, images) == 0


@every_method
def test_describes_itself(name: str) -> None:
    method = METHODS[name]
    assert method.summary
    assert method.stores
    assert method.source
    if method.bound:
        assert f"{method.bound} bound" in method.summary
    if method.given_all_data:
        assert not method.strict


def test_who_can_do_what() -> None:
    def able(kind: Any) -> set[str]:
        return {name for name in METHODS if isinstance(build(name), kind)}

    draw, closed = {"dgmw", "dgma", "mergan", "mergan-ra", "ewcm"}, {"ncm", "slda", "ridge", "fecam"}
    assert able(Retains) == able(KeepsEngrams) == {"dgmw", "dgma"}
    assert able(DropsClasses) == {"dgmw", "dgma", "ncm", "fecam"}
    assert able(AddsUp) == closed
    assert able(Samples) == draw
    assert able(Embeds) == draw | closed


# ---------------------------------------------------------------- who fails, and what is said


class Good(PlainLearner):
    """Fine-tuning with another name."""

    def __init__(self, ctx: Context[MethodSettings]) -> None:
        super().__init__(ctx, start="warm")


class KeepsAView(Good):
    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        self.kept = task.images[:1]
        super().learn(task, observe=observe)


class KeepsTargets(Good):
    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        self.kept = task.targets
        super().learn(task, observe=observe)


class KeepsCopies(Good):
    kept: Tensor | None = None

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        if self.kept is None:
            self.kept = task.images[:2].float() / 255
        super().learn(task, observe=observe)

    def state(self) -> State:
        return super().state() | ({} if self.kept is None else {"kept": self.kept})

    def load(self, state: State) -> None:
        super().load(state)
        self.kept = state.get("kept")


class KeepsScrambledCopies(Good):
    """In an order of pixels that no search knows."""

    kept = torch.zeros(0, 1024)

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        resumed = self.classifier.progress.running
        super().learn(task, observe=observe)
        order = torch.randperm(task.images[0].numel(), generator=torch.Generator().manual_seed(3))
        if not resumed or self.classifier.progress.epochs == 0:
            rows = task.images.flatten(1)[:, order].float() / 255
            self.kept = rows if not len(self.kept) else torch.cat([self.kept, rows])

    def state(self) -> State:
        return {**super().state(), "kept": self.kept}

    def load(self, state: State) -> None:
        super().load(state)
        self.kept = state["kept"]


class KeepsWhatItIsAsked(Good):
    def scores(self, images: Tensor) -> Tensor:
        self.asked = images
        return super().scores(images)


class ForgetsItsOptimiser(Good):
    def state(self) -> State:
        return {**super().state(), "optimiser": {}}


class ForgetsItsProgress(Good):
    def load(self, state: State) -> None:
        super().load(state)
        self.classifier.progress.batch = 0


class AnswersTheUnseen(Good):
    def scores(self, images: Tensor) -> Tensor:
        scores = super().scores(images)
        return torch.cat([scores, torch.full((len(scores), 1), -100.0)], 1)


class AnswersWithNumbers(Good):
    def scores(self, images: Tensor) -> Tensor:
        scores = super().scores(images)
        return torch.nn.functional.one_hot(scores.argmax(1), scores.shape[1])


class AnswersNotANumber(Good):
    def scores(self, images: Tensor) -> Tensor:
        return super().scores(images) * float("nan")


class ExportsAnother(Good):
    def answer_net(self) -> nn.Module:
        net = super().answer_net()
        assert isinstance(net, AnswerNet)
        with torch.no_grad():
            next(net.head.parameters()).mul_(0.99)
        return net


class ExportsInTraining(Good):
    def answer_net(self) -> nn.Module:
        return super().answer_net().train()


class ExportsNothing(Good):
    answer_net = property()


class DrawsGlobally(Good):
    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        torch.rand(1)
        super().learn(task, observe=observe)


class DrawsFromNumpy(Good):
    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        np.random.permutation(3)  # noqa: NPY002
        super().learn(task, observe=observe)


class DrawsFromPython(Good):
    def scores(self, images: Tensor) -> Tensor:
        random.random()
        return super().scores(images)


class StartsGlobally(Good):
    def __init__(self, ctx: Context[MethodSettings]) -> None:
        super().__init__(ctx)
        torch.nn.Linear(2, 2)


class LearnsNothing(Good):
    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        self.classifier.begin(len(task.seen), task=task.index, images=len(task), start="warm")
        with torch.no_grad():
            for p in self.classifier.net.parameters():
                p.zero_()


class NeverTheSame(Good):
    numbers = itertools.count()

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        super().learn(task, observe=observe)
        with torch.no_grad():
            next(self.classifier.net.parameters()).add_(next(self.numbers) * 1e-6)


class HasKeysOfNumbers(Good):
    def state(self) -> State:
        return {**super().state(), "more": {1: 2}}


class HasThingsInItsState(Good):
    def state(self) -> State:
        return {**super().state(), "more": {"a": object()}}


class Draws(Good):
    """A generative method whose drawings are grey."""

    def sample(self, class_indices: Sequence[int], count: int, *, generator: torch.Generator) -> Tensor:
        shade = torch.randint(0, 256, (1,), generator=generator)
        return shade.to(torch.uint8).expand(len(class_indices) * count, *self.classifier.ctx.shape).clone()

    def retention(self) -> list[int]:
        return []

    def largest_difference(self) -> dict[int, int]:
        return {}

    def redrawn(self) -> list[int]:
        return []

    def features(self, images: Tensor) -> Tensor:
        return self.classifier.features(images)

    def other_answers(self) -> dict[str, Callable[[Tensor], Tensor]]:
        return {"again": self.classifier.scores}


class DrawsFloats(Draws):
    def sample(self, class_indices: Sequence[int], count: int, *, generator: torch.Generator) -> Tensor:
        return super().sample(class_indices, count, generator=generator) / 255


class DrawsOneClass(Draws):
    def sample(self, class_indices: Sequence[int], count: int, *, generator: torch.Generator) -> Tensor:
        return super().sample([0], count, generator=generator)


class DrawsAtWill(Draws):
    numbers = itertools.count()

    def sample(self, class_indices: Sequence[int], count: int, *, generator: torch.Generator) -> Tensor:
        return super().sample(class_indices, count, generator=torch.Generator().manual_seed(next(self.numbers)))


class Forgets(Draws):
    def retention(self) -> list[int]:
        return [0] if self.classifier.classes > 1 else []


class DrawsOtherwise(Draws):
    def largest_difference(self) -> dict[int, int]:
        return {0: 0, 1: 3}


class ShowsImages(Draws):
    def features(self, images: Tensor) -> Tensor:
        return images


class AnswersForTooFew(Draws):
    def other_answers(self) -> dict[str, Callable[[Tensor], Tensor]]:
        return {"again": lambda images: self.classifier.scores(images)[:, :1]}


def entry(build: Any, *, strict: bool = True, draws: bool | None = None) -> Method[MethodSettings]:
    able = isinstance(build, type) and issubclass(build, Draws) if draws is None else draws
    return Method(build, MethodSettings(), "a test's", "nothing", "nobody", strict=strict, draws=able)


@pytest.mark.parametrize("learner", [Good, Draws])
def test_a_good_learner_passes(learner: type[Good]) -> None:
    check_learner(entry(learner))


def test_a_method_that_says_so_may_keep_copies() -> None:
    check_learner(entry(KeepsCopies, strict=False))


@pytest.mark.parametrize(
    ("learner", "said"),
    [
        (KeepsAView, r"keeps a view of a task's images or targets: task 1 is over"),
        (KeepsTargets, r"keeps a view of a task's images or targets: task 1 is over"),
        (KeepsCopies, r"listed as strict, and 2 images of past tasks are in its state"),
        (
            KeepsScrambledCopies,
            r"listed as strict, and its state has [\d,]+ bytes after half of the images and [\d,]+ ",
        ),
        (KeepsWhatItIsAsked, r"keeps a view of the images that it was asked about: `scores` may keep nothing"),
        (ForgetsItsOptimiser, r"loaded by a new learner, it does not end with the same bits: .* differs at /net/"),
        (ForgetsItsProgress, r"loaded is not the state that was saved: it differs at /progress/counts/batch$"),
        (AnswersTheUnseen, r"scores after task 1: \(5, 2\) for 5 images, not \(5, 1\)"),
        (AnswersWithNumbers, r"scores after task 1: of type torch\.int64"),
        (AnswersNotANumber, r"scores after task 1: not all are finite"),
        (ExportsAnother, r"answer_net after task 1: up to \S+ away from what `scores` gives for the same images"),
        (ExportsInTraining, r"answer_net after task 1: not in eval mode"),
        (ExportsNothing, r"the learner has no `answer_net`"),
        (DrawsGlobally, r"draws from the global generator of torch when it learns"),
        (DrawsFromNumpy, r"draws from the global generator of numpy\.random when it learns"),
        (DrawsFromPython, r"draws from the global generator of random when it answers"),
        (StartsGlobally, r"draws from the global generator of torch when it is built"),
        (LearnsNothing, r"has not learned the newest task, with 1 class a task: .* 0% are answered right, chance is"),
        (NeverTheSame, r"does not repeat under a seed: its state differs at /net/"),
        (HasKeysOfNumbers, r"has the key 1 at /more; keys are texts"),
        (HasThingsInItsState, r"holds something of type object at /more/a: its leaves are tensors or JSON values"),
        (DrawsFloats, r"sample: of type torch\.float32, where torch\.uint8"),
        (DrawsOneClass, r"sample: \(3, 1, 32, 32\) for 3 of 2 classes, not \(6, 1, 32, 32\)"),
        (DrawsAtWill, r"sample: the same generator does not give the same images"),
        (Forgets, r"retention: classes \[0\] are not, to the bit, what they were"),
        (DrawsOtherwise, r"largest_difference: classes \[1\] are not drawn as their references show them"),
        (ShowsImages, r"features: \(5, 1, 32, 32\) of torch\.uint8, where \(5, n\) floats"),
        (AnswersForTooFew, r"other answer 'again' after task 2: \(5, 1\) for 5 images, not \(5, 2\)"),
    ],
)
def test_a_broken_learner_is_told_what_is_wrong(learner: type[Good], said: str) -> None:
    with pytest.raises(AssertionError, match=said) as caught:
        check_learner(entry(learner))
    assert "\n" not in str(caught.value)


def test_what_it_is_listed_with_is_what_it_can_do() -> None:
    with pytest.raises(AssertionError, match="listed with draws=True, and its learner has no `sample`"):
        check_learner(entry(Good, draws=True))
    with pytest.raises(AssertionError, match="listed with draws=False, and its learner has `sample`"):
        check_learner(entry(Draws, draws=False))


@dataclass(frozen=True)
class Own(Group):
    group = "own"
    rate: float = setting(1.0, "a setting of a test's own", above=0)


@dataclass(frozen=True)
class OwnSettings(MethodSettings):
    own: Own = Own()


def test_settings_reach_the_learner() -> None:
    told: set[tuple[float, int, Shape]] = set()

    def build(ctx: Context[OwnSettings]) -> Learner:
        told.add((ctx.settings.own.rate, ctx.classifier.epochs, ctx.shape))
        return PlainLearner(ctx, start="warm")

    mine = Method(build, OwnSettings(), "a test's", "nothing", "nobody")
    check_learner(mine, settings={"own.rate": 2, "classifier.epochs": 5}, brief={"classifier.epochs": 1})
    assert told == {(2.0, 5, (1, 32, 32)), (2.0, 5, (3, 32, 32)), (2.0, 1, (1, 32, 32))}
    with pytest.raises(ConfigError, match="unknown setting"):
        check_learner(mine, settings={"own.speed": 2})


def test_another_data_set_is_used_as_it_is() -> None:
    shapes: set[Shape] = set()

    def build(ctx: Context[MethodSettings]) -> Learner:
        shapes.add(ctx.shape)
        return Good(ctx)

    check_learner(entry(build), toy_dataset(classes=3, channels=3, size=64))
    assert shapes == {(3, 64, 64)}
    with pytest.raises(AssertionError, match="toy has too few classes"):
        check_learner(entry(build), toy_dataset(classes=2))


def test_the_global_generators_are_left_as_they_were() -> None:
    before = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    check_learner(entry(Good))
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert np.random.get_state()[1].tolist() == before[2]  # type: ignore[index]  # noqa: NPY002
