"""Check a method of your own: what every learner here must do, on images that take no time.

    from engram import Method
    from engram.config import MethodSettings
    from engram.testing import check_learner

    mine = Method(build=MyLearner, settings=MethodSettings(), summary="…", stores="nothing", source="…")
    check_learner(mine)                                       # raises AssertionError: what failed, in a sentence
    check_learner(mine, settings={"classifier.epochs": 8})

What is checked:

    learning      the newest task better than chance, with one class a task and with two
    answers       one finite score for each class seen, and for no other; the network of `answer_net` gives the same
    repetition    the same bits under the same seed, whoever else draws random numbers; no global generator is touched
    checkpoints   stopped in the middle of any task, saved, and loaded by a new learner: the same bits in the end
    strictness    no view of a task's images is held, and none of images that were asked about; no image is in the
                  state, and twice the images leave a state of the same size, unless the method stores some
    abilities     what `Samples`, `Retains`, `Embeds` and `AnswersApart` promise, where the learner has them
"""

from __future__ import annotations

import contextlib
import gc
import json
import random
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engram.config import Config, compose
from engram.data.datasets import Dataset, Split, held_out, resize
from engram.data.stream import ClassStream, Task
from engram.errors import StrictnessError
from engram.kinds import blank
from engram.methods.classifier import normalise
from engram.methods.learner import (
    AnswersApart,
    Embeds,
    Learner,
    MethodEntry,
    Progress,
    Retains,
    Samples,
    Silent,
    State,
)

FOR_TOYS = {"classifier.epochs": 4, "classifier.batch_size": 8}
"""Settings under the caller's own: the usual ones are for thousands of images."""
STOPS = (3, 8, 13, 60, 101, 47)
"""After how many batches and epochs a task is stopped, again and again."""
ASKED = 5
"""Images that are enough to see what an answer is like."""
GROWTH = 0.25
"""Of the bytes of more images, the share by which a strict method's state may grow: growing networks do a little."""
NOISE = 0.01
"""Of a state, the share that such networks differ by in any case: of tiny examples a quarter is next to nothing."""
TOLERANCE = 1e-4
"""By how much the scores of a network may differ from its learner's: sums in another order."""


def toy_dataset(*, classes: int = 4, channels: int = 1, per_class: int = 40, size: int = 32) -> Dataset:
    """Classes that a small network can tell apart: a bright square whose place is the class's, on noise.

    >>> toy_dataset()
    Dataset('toy', own, 4 classes, 128 / 32 images of 1x32x32)
    """
    draws = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), per_class)
    images = draws.integers(0, 60, (len(labels), channels, 16, 16), dtype=np.uint8)
    for image, label in zip(images, labels.tolist(), strict=True):
        y, x = divmod(label, 4)
        image[:, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4] += 180
    order = draws.permutation(len(labels))
    pixels, numbers = resize(images[order], size), torch.from_numpy(labels[order])
    test = torch.from_numpy(held_out(labels[order], 0.2))
    parts = [Split(pixels[rows], numbers[rows]) for rows in (~test, test)]
    return Dataset("toy", tuple(map(str, range(classes))), "", "own", train=parts[0], test=parts[1])


def toy_vectors(*, classes: int = 4, size: int = 12, per_class: int = 40) -> Dataset:
    """Classes of vectors that a small network can tell apart: clouds around points that lie at random.

    >>> toy_vectors()
    Dataset('toy-vectors', own, 4 classes, 128 / 32 vectors of 12)
    """
    draws = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), per_class)
    centres = 3 + 2 * draws.standard_normal((classes, size))
    order = draws.permutation(len(labels))
    vectors = torch.from_numpy((centres[labels] + draws.standard_normal((len(labels), size))).astype(np.float32)[order])
    numbers, test = torch.from_numpy(labels[order]), torch.from_numpy(held_out(labels[order], 0.2))
    parts = [Split(vectors[rows], numbers[rows]) for rows in (~test, test)]
    return Dataset("toy-vectors", tuple(map(str, range(classes))), "", "own", train=parts[0], test=parts[1])


def check_learner(
    method: MethodEntry,
    dataset: Dataset | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    brief: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> None:
    """Check a method; an AssertionError says in a sentence what it fails at.

    Args:
        method: as the registry lists it.
        dataset: three classes or more; its training part is taken over. Without it toy classes, grey and in colour;
            `toy_vectors()` for a method of vectors.
        settings: `group.field` -> value, on top of the method's own. The usual sizes are for thousands of images: for
            toys the classifier has 4 epochs of batches of 8, and a generative method needs small networks and few
            steps to be done in seconds.
        brief: more such settings for those checks for which the learner need not have learned much.
        seed: of the learner.

    >>> from engram import METHODS
    >>> from engram.testing import check_learner, toy_dataset
    >>> check_learner(METHODS["finetune"], toy_dataset(classes=3, per_class=20), settings={"classifier.width": 8})
    """
    grey = _Images(dataset or toy_dataset())
    colour = grey if dataset else _Images(toy_dataset(channels=3))
    settings = {**FOR_TOYS, **(settings or {})}
    whole = _Battery(method, settings, seed)
    whole.check_learning(grey, classes_per_task=1)
    whole.check_learning(colour, classes_per_task=2)
    _Battery(method, {**settings, **(brief or {})}, seed).check_repetition(grey)


# ---------------------------------------------------------------- the battery


class _Images:
    """The images of a data set, as often as they are needed."""

    def __init__(self, dataset: Dataset) -> None:
        assert len(dataset.class_names) > 2, f"{dataset.name} has too few classes: a check needs three or more"
        self.name, self.names, self.shape = dataset.name, dataset.class_names, dataset.shape
        self.train, self.test = dataset.take_train(), dataset.test

    def dataset(self) -> Dataset:
        return Dataset(self.name, self.names, "", "own", train=self.train, test=self.test)

    def half(self) -> _Images:
        """With every second training image of each class."""
        ranks = torch.zeros(len(self.train.labels), dtype=torch.int64)
        for number in range(len(self.names)):
            own = self.train.labels == number
            ranks[own] = torch.arange(int(own.sum()))
        rows = ranks % 2 == 0
        train = Split(self.train.images[rows], self.train.labels[rows])
        return _Images(Dataset(self.name, self.names, "", "own", train=train, test=self.test))


@dataclass(frozen=True)
class _Battery:
    method: MethodEntry
    settings: Mapping[str, Any]
    seed: int

    def build(self, images: _Images) -> Learner:
        own = self.method
        base = Config(images.name, seed=self.seed, classifier=own.classifier, settings=own.settings)
        with _no_global_draws("when it is built"):
            return own.learner(compose(base, self.settings), images.shape, torch.device("cpu"))

    def tasks(self, images: _Images, classes_per_task: int) -> Iterator[Task]:
        stream = ClassStream(images.dataset(), classes_per_task, cumulative=self.method.given_all_data)
        try:
            yield from stream
        except StrictnessError as error:
            raise AssertionError(f"the learner keeps a view of a task's images or targets: {error}") from error

    def check_learning(self, images: _Images, *, classes_per_task: int) -> None:
        """Task after task: the newest is learned, and every answer is what it should be."""
        learner = self.build(images)
        able, listed = isinstance(learner, Samples), self.method.draws
        words = "draws=True, and its learner has no `sample`" if listed else "draws=False, and its learner has `sample`"
        assert able == listed, f"the method is listed with {words}"
        seen: tuple[int, ...] = ()
        new: tuple[int, ...] = ()
        for task in self.tasks(images, classes_per_task):
            with _no_global_draws("when it learns"):
                learner.learn(task)
            seen, new = task.seen, task.classes
            _check_answers(learner, images.test.images[:ASKED], len(seen), f"after task {task.index + 1}")
            _check_lets_go(learner, images.test.images[:ASKED])
            _check_abilities(learner, images, len(seen))
        self._check_newest(learner, images, seen, new)
        self._check_kept(learner, images, new)

    def _check_newest(self, learner: Learner, images: _Images, seen: tuple[int, ...], new: tuple[int, ...]) -> None:
        right = []
        for number in new:
            asked = images.test.images[images.test.labels == number]
            answers = learner.scores(asked).cpu().argmax(1)
            right.append((answers == seen.index(number)).double().mean().item())
        accuracy, chance = sum(right) / len(right), 1 / len(seen)
        least = chance + (1 - chance) / 3
        tasks = f"{len(new)} class{'es' if len(new) > 1 else ''} a task"
        assert accuracy > least, (
            f"the learner has not learned the newest task, with {tasks}: of its test images {accuracy:.0%} are "
            f"answered right, chance is {chance:.0%}, more than {least:.0%} are asked for"
        )

    def _check_kept(self, learner: Learner, images: _Images, new: tuple[int, ...]) -> None:
        """The state of a strict method holds no image; joint training is handed all images anew, and keeps none."""
        if not (self.method.is_strict(self._own(images)) or self.method.given_all_data):
            return
        past = torch.tensor([label not in new for label in images.train.labels.tolist()])
        found = images_in(learner.state(), images.train.images[past])
        assert not found, f"the learner is listed as strict, and {found} images of past tasks are in its state"

    def _own(self, images: _Images) -> Any:
        base = Config(images.name, classifier=self.method.classifier, settings=self.method.settings)
        return compose(base, self.settings).settings

    def check_repetition(self, images: _Images) -> None:
        """The same bits again, though stopped and saved at every turn; if not, which of the two is to blame."""
        whole, stopped = self.learned(images, 1, stops=False), self.learned(images, 2, stops=True)
        if (place := _difference(whole.state(), stopped.state())) is not None:
            again = self.learned(images, 3, stops=False)
            other = _difference(whole.state(), again.state())
            assert other is None, f"the learner does not repeat under a seed: its state differs at {other}"
            raise AssertionError(
                f"stopped, saved and loaded by a new learner, it does not end with the same bits: its state differs "
                f"at {place}; whatever the rest of the task depends on must be in the state"
            )
        asked = images.test.images
        same = _same_bits(whole.scores(asked).cpu(), stopped.scores(asked).cpu())
        assert same, "the learner's state repeats and its answers do not: something that answers is not in the state"
        if self.method.is_strict(self._own(images)):
            self._check_size(images, _bytes(whole.state()))

    def _check_size(self, images: _Images, whole: int) -> None:
        """Who keeps images keeps more of more images, in whatever encoding; networks and sums stay as they are."""
        half = images.half()
        less = _bytes(self.learned(half, 1, stops=False).state())
        left_out = _bytes({"x": images.train.images}) - _bytes({"x": half.train.images})
        assert whole - less <= GROWTH * left_out + NOISE * whole, (
            f"the learner is listed as strict, and its state has {less:,} bytes after half of the images and {whole:,} "
            f"after all, which are {left_out:,} bytes more: what is kept of images must not grow with their number"
        )

    def learned(self, images: _Images, number: int, *, stops: bool) -> Learner:
        """All tasks, two classes each, with other global seeds for each number; `stops`: saved all the time."""
        with _global_seeds(number):
            learner = self.build(images)
            for task in self.tasks(images, 2):
                left = iter(STOPS if stops else ())
                done = False
                while not done:
                    try:
                        learner.learn(task, observe=_Stop(next(left, 0)))
                        done = True
                    except _Stopped:
                        pass
                    if stops:
                        learner = self.reloaded(learner, images)
            return learner

    def reloaded(self, learner: Learner, images: _Images) -> Learner:
        """A new learner with the state of this one, which it has taken over to the bit."""
        saved = _saved(learner.state())
        other = self.build(images)
        with _no_global_draws("when it is loaded"):
            other.load(_saved(saved))
        place = _difference(saved, other.state())
        assert place is None, f"a state that was loaded is not the state that was saved: it differs at {place}"
        return other


class _Stopped(Exception):
    pass


class _Stop(Silent):
    """Stops the learner after so many batches and epochs; 0: never."""

    def __init__(self, after: int) -> None:
        self.left = after

    def batch(self, progress: Progress) -> None:
        self._count()

    def epoch(self, losses: Mapping[str, float]) -> None:
        self._count()

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise _Stopped


# ---------------------------------------------------------------- answers and abilities


def _check_answers(learner: Learner, images: Tensor, classes: int, when: str) -> None:
    with _no_global_draws("when it answers"):
        scores = learner.scores(images)
        _check_scores(scores, len(images), classes, f"scores {when}")
        _check_net(learner, images, scores.cpu(), when)
    if isinstance(learner, AnswersApart):
        for way, answer in learner.other_answers().items():
            _check_scores(answer(images), len(images), classes, f"other answer {way!r} {when}")


def _check_lets_go(learner: Learner, images: Tensor) -> None:
    """Nobody holds the images once they are answered: who keeps test images could learn from them."""
    array = images.numpy().copy()
    owner, asked = weakref.ref(array), torch.from_numpy(array)
    del array
    learner.scores(asked)
    del asked
    if owner() is not None:
        gc.collect()
    assert owner() is None, "the learner keeps a view of the images that it was asked about: `scores` may keep nothing"


def _check_net(learner: Learner, images: Tensor, scores: Tensor, when: str) -> None:
    assert hasattr(learner, "answer_net"), "the learner has no `answer_net`: what answers, as one network, is asked for"
    net = learner.answer_net()
    assert isinstance(net, nn.Module), f"answer_net {when}: of type {type(net).__name__}, where nn.Module is asked for"
    assert not any(part.training for part in net.modules()), f"answer_net {when}: not in eval mode"
    with torch.no_grad():
        found = net(normalise(images)).cpu()
    assert found.shape == scores.shape, f"answer_net {when}: {tuple(found.shape)}, not {tuple(scores.shape)}"
    away = (found - scores).abs().max().item()
    assert away <= TOLERANCE, f"answer_net {when}: up to {away:.2g} away from what `scores` gives for the same images"


def _check_scores(found: Tensor, images: int, classes: int, what: str) -> None:
    assert found.shape == (images, classes), (
        f"{what}: {tuple(found.shape)} for {images} images, not ({images}, {classes}): "
        "a score for each class seen is asked for, and none for another"
    )
    assert found.is_floating_point(), f"{what}: of type {found.dtype}, where numbers with a point are asked for"
    assert torch.isfinite(found).all(), f"{what}: not all are finite"


def _check_abilities(learner: Learner, images: _Images, classes: int) -> None:
    with _no_global_draws("when it draws, or shows what it keeps"):
        if isinstance(learner, Samples):
            _check_samples(learner, images, classes)
        if isinstance(learner, Retains):
            changed = sorted({*learner.retention(), *learner.redrawn()})
            assert changed == [], f"retention: classes {changed} are not, to the bit, what they were"
            apart = {index: levels for index, levels in learner.largest_difference().items() if levels}
            assert not apart, f"largest_difference: classes {sorted(apart)} are not drawn as their references show them"
        if isinstance(learner, Embeds):
            features = learner.features(images.test.images[:ASKED])
            fits = features.dim() == 2 and len(features) == ASKED and features.is_floating_point()
            assert fits, (
                f"features: {tuple(features.shape)} of {features.dtype}, where ({ASKED}, n) floats are asked for"
            )
            assert torch.isfinite(features).all(), "features: not all are finite"


def _check_samples(learner: Samples, images: _Images, classes: int) -> None:
    count, wanted = 3, list(range(classes))[::-1]
    drawn = [learner.sample(wanted, count, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
    shape = (len(wanted) * count, *images.shape)
    assert drawn[0].shape == shape, f"sample: {tuple(drawn[0].shape)} for {count} of {classes} classes, not {shape}"
    wanted_type = blank(0, images.shape).dtype
    assert drawn[0].dtype == wanted_type, f"sample: of type {drawn[0].dtype}, where {wanted_type} is asked for"
    assert torch.equal(drawn[0], drawn[1]), "sample: the same generator does not give the same images"


# ---------------------------------------------------------------- bits


def _bytes(state: State) -> int:
    """Of all tensors."""
    return sum(leaf.nbytes for _, leaf in _leaves(state) if isinstance(leaf, Tensor))


def _saved(node: Any, path: str = "") -> Any:
    """A state as it comes back from disc: copies of its tensors, and plain values by way of JSON."""
    if isinstance(node, Tensor):
        return node.detach().cpu().contiguous().clone()
    if isinstance(node, dict):
        for key in node:
            assert isinstance(key, str), f"the state has the key {key!r} at {path or 'its top'}; keys are texts"
        return {key: _saved(value, f"{path}/{key}") for key, value in node.items()}
    try:
        return json.loads(json.dumps(node))
    except (TypeError, ValueError):
        raise AssertionError(
            f"the state holds something of type {type(node).__name__} at {path or 'its top'}: "
            "its leaves are tensors or JSON values"
        ) from None


def _difference(a: State, b: State) -> str | None:
    """Where two states differ first; None where they are the same to the bit."""
    left, right = dict(_leaves(_saved(a))), dict(_leaves(_saved(b)))
    for path in [*left, *(path for path in right if path not in left)]:
        if path not in left or path not in right:
            return path
        one, other = left[path], right[path]
        both = isinstance(one, Tensor) and isinstance(other, Tensor)
        if not (_same_bits(one, other) if both else type(one) is type(other) and one == other):
            return path
    return None


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _leaves(value, f"{path}/{key}")
    else:
        yield path, node


def _same_bits(a: Tensor, b: Tensor) -> bool:
    def raw(x: Tensor) -> Tensor:
        return x.contiguous().reshape(-1).view(torch.uint8)

    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(raw(a), raw(b))


def images_in(state: State, images: Tensor) -> int:
    """How many of the images lie somewhere in a state, whatever the shape, as bytes or as floats of either scale.

    Of vectors, as the same float32 numbers, or as a learner behind a scale sees them.

    >>> image = torch.randint(0, 256, (1, 1, 8, 8), dtype=torch.uint8)
    >>> images_in({"a": {"b": image.flatten() / 255}}, image), images_in({"a": torch.zeros(64)}, image)
    (1, 0)
    """
    if images.dim() == 2:
        return _vectors_in(state, images)
    texts: list[bytes] = []
    for _, leaf in _leaves(state):
        if not isinstance(leaf, Tensor):
            continue
        for way in [leaf] if leaf.dtype == torch.uint8 else [leaf, leaf * 255, (leaf + 1) * 127.5]:
            # in the order of its dimensions, and in the order of the memory
            flat = way.detach().cpu().double().nan_to_num().round().clamp(0, 255).to(torch.uint8)
            texts.append(flat.contiguous().numpy().tobytes())
            if flat.dim() == 4:
                texts.append(flat.permute(0, 2, 3, 1).contiguous().numpy().tobytes())
    whole = b"|".join(texts)
    return sum(
        any(way.contiguous().numpy().tobytes() in whole for way in (image, image.permute(1, 2, 0))) for image in images
    )


def _vectors_in(state: State, vectors: Tensor) -> int:
    ways = [vectors.float()]
    if "scale" in state:
        ways.append((ways[0] - state["scale"]["mean"]) / state["scale"]["deviation"])
    leaves = [leaf for _, leaf in _leaves(state) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    whole = b"|".join(leaf.detach().cpu().float().contiguous().numpy().tobytes() for leaf in leaves)
    return sum(any(one.contiguous().numpy().tobytes() in whole for one in pair) for pair in zip(*ways, strict=True))


# ---------------------------------------------------------------- the generators that everybody shares


def _global_states() -> dict[str, object]:
    numpys = np.random.get_state(legacy=True)  # noqa: NPY002  # it is looked at, not used
    return {
        "random": random.getstate(),
        "numpy.random": [part.tobytes() if isinstance(part, np.ndarray) else part for part in numpys],
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


@contextlib.contextmanager
def _no_global_draws(when: str) -> Iterator[None]:
    before = _global_states()
    yield
    after = _global_states()
    touched = [name for name in before if before[name] != after[name]]
    assert not touched, (
        f"the learner draws from the global generator of {' and '.join(touched)} {when}: "
        "take numbers from engram.seeding.generator, which knows the seed"
    )


@contextlib.contextmanager
def _global_seeds(number: int) -> Iterator[None]:
    """Other numbers for whoever draws from the global generators; they are put back afterwards."""
    pythons, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        random.seed(number)
        np.random.seed(number)  # noqa: NPY002
        torch.manual_seed(number)
        try:
            yield
        finally:
            random.setstate(pythons)
            np.random.set_state(numpys)  # noqa: NPY002
