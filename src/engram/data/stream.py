"""The strict class-incremental stream: one task readable at a time.

    dataset ──take_train()──> ClassStream ──iterate──> Task, Task, Task, …
                                                        │     └ closed the moment the next one is asked for
                                                        └ images, targets: readable while current

A learner is handed `Task` objects and nothing else. A task knows its own images and how many classes came
before it; it has no way to the stream, to later tasks, or to test images. When the next task is asked for, the
old one is closed: its tensors are dropped, and touching them raises `StrictnessError`. If somebody still holds
the pixels themselves (a view of the tensor, hidden in a learner), the stream notices and refuses to go on.

Images in memory are cut up by task at once. Those of a prepared set stay on disc: when a task begins, its own are read
into memory of its own, and no file is open and none is mapped while it lasts.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engram.data.datasets import Dataset, Split, StoredSplit, held_out
from engram.data.examples import Examples
from engram.data.raw import Pixels, Vectors
from engram.errors import ConfigError, StrictnessError, unknown
from engram.kinds import Shape, noun
from engram.seeding import generator


class Task:
    """The training images of some classes, new ones or known ones, while they may be read.

    >>> from engram import ClassStream, load_dataset
    >>> task = next(ClassStream(load_dataset("digits"), order=["3", "5"]))
    >>> task, task.images.shape
    (Task(0, classes=(3,), 147 images), torch.Size([147, 1, 32, 32]))
    """

    def __init__(
        self,
        index: int,
        classes: tuple[int, ...],
        seen: tuple[int, ...],
        images: torch.Tensor,
        targets: torch.Tensor,
        names: tuple[str, ...],
        *,
        class_indices: Sequence[int] | None = None,
        validation: Examples | None = None,
    ) -> None:
        self.index = index
        """0 for the first task."""
        self.classes = classes
        """The data set's numbers of the classes that this task brings images of."""
        self.seen = seen
        """All classes up to and including this task, in order of appearance: the places of the answer."""
        self.class_names = names
        """Names of `classes`, for people."""
        last = range(len(seen) - len(classes), len(seen))
        self.class_indices = tuple(last if class_indices is None else class_indices)
        """Places of `classes` in the answer: the last ones, unless the task brings more of classes known before."""
        assert len(set(self.class_indices)) == len(classes), (self.class_indices, classes)
        assert all(0 <= place < len(seen) for place in self.class_indices), (self.class_indices, seen)
        self.shape: Shape = tuple(images.shape[1:])
        """(C, H, W) of every image; (D,) of every vector."""
        self._images: torch.Tensor | None = images
        self._targets: torch.Tensor | None = targets
        self._validation = validation

    @property
    def images(self) -> torch.Tensor:
        """(N, C, H, W) uint8, or (N, D) float32. The stream's own memory: copy what you are allowed to keep."""
        return self._open(self._images)

    @property
    def targets(self) -> torch.Tensor:
        """(N,) int64, the class index of each image: the place of its class in `seen`."""
        return self._open(self._targets)

    @property
    def labels(self) -> torch.Tensor:
        """(N,) int64, the data set's own class numbers."""
        return torch.tensor(self.seen)[self.targets]

    @property
    def validation(self) -> Examples | None:
        """Images that are kept out of the training; None where none are. Not for a learner."""
        self._open(self._targets)
        return self._validation

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        state = f"{len(self._targets)} {noun(self.shape)}" if self._targets is not None else "closed"
        return f"Task({self.index}, classes={self.classes}, {state})"

    def _open(self, tensor: torch.Tensor | None) -> torch.Tensor:
        if tensor is None:
            raise StrictnessError(
                f"task {self.index + 1} (classes {list(self.classes)}) is over: its images may not be read again; "
                "a method that is allowed to keep some must copy them while the task is current"
            )
        return tensor

    def _close(self) -> None:
        self._images = self._targets = self._validation = None


@dataclass(frozen=True)
class _TaskArrays:
    """One task's data before it is current. The arrays own the memory that the task's tensors show."""

    images: Pixels | Vectors
    targets: npt.NDArray[np.int64]

    def read(self, mask: npt.NDArray[np.bool_] | None = None) -> _TaskArrays:
        """All of it, or copies of some."""
        return self if mask is None else _TaskArrays(self.images[mask], self.targets[mask])

    def examples(self) -> Examples:
        """As tensors that show the same memory."""
        return Examples(torch.from_numpy(self.images), torch.from_numpy(self.targets))

    def weak(self) -> list[weakref.ref[Any]]:
        """To see whether somebody still holds them."""
        return [weakref.ref(self.images), weakref.ref(self.targets)]


@dataclass(frozen=True)
class _TaskRows:
    """One task's data that is still on disc."""

    train: StoredSplit
    rows: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]

    def read(self, mask: npt.NDArray[np.bool_] | None = None) -> _TaskArrays:
        """All of it, or some, in memory of its own."""
        rows = self.rows if mask is None else self.rows[mask]
        targets = self.targets.copy() if mask is None else self.targets[mask]
        return _TaskArrays(self.train.read(rows), targets)


class ClassStream:
    """A data set as a sequence of tasks with disjoint classes.

    The stream takes the training images out of the data set and cuts them up by task, so that closing a task
    really frees its memory. It can be walked once.

    Args:
        dataset: the data set; its training part is taken over.
        classes_per_task: how many classes each task brings.
        first_task: how many the first one brings; `classes_per_task` unless given.
        order: classes in order of appearance, by name or number; may leave classes out.
        order_seed: shuffles the classes instead; without both, classes come in their own order.
        known: classes learned before this stream begins, in order of appearance; `order` may name some of them again.
        start: index of the first task, where tasks came before.
        validation: share of each class that is kept out of the training and stands in `Task.validation`.
        cumulative: every task brings the images of all classes so far. This is *not* the strict protocol: it is
            for joint training, the upper bound, and nothing else.

    >>> from engram import ClassStream, load_dataset
    >>> for task in ClassStream(load_dataset("digits"), 2, order=["3", "5", "8"]):
    ...     print(task, task.seen)
    Task(0, classes=(3, 5), 293 images) (3, 5)
    Task(1, classes=(8,), 140 images) (3, 5, 8)
    """

    def __init__(
        self,
        dataset: Dataset,
        classes_per_task: int = 1,
        *,
        first_task: int | None = None,
        order: Sequence[str | int] | None = None,
        order_seed: int | None = None,
        known: Sequence[int] = (),
        start: int = 0,
        validation: float = 0.0,
        cumulative: bool = False,
    ) -> None:
        if order is not None and order_seed is not None:
            raise ConfigError("give a class order or an order seed, not both")
        chosen = class_order(dataset.class_names, order=order, order_seed=order_seed)
        self.dataset = dataset
        """Its test part, for the experiment's loop; the training part is taken out of it."""
        self.classes_per_task, self.first_task = classes_per_task, first_task
        self.tasks = partition(chosen, classes_per_task, first_task)
        """The classes of every task. For the experiment's loop; learners never see it."""
        self.order = chosen
        self.known, self.start, self.validation, self.cumulative = tuple(known), start, validation, cumulative
        self.class_names = dataset.class_names
        self._next = 0
        self._walked = False
        self._current: Task | None = None
        self._owners: list[weakref.ref[Any]] = []
        places = dict.fromkeys((*self.known, *chosen))  # in order of appearance
        self._places = {number: place for place, number in enumerate(places)}
        self._by_task = _cut(dataset.take_train(), self.tasks, self._places)
        sizes = [len(arrays.targets) for arrays in self._by_task.values()]
        self.sizes = list(itertools.accumulate(sizes)) if cumulative else sizes
        """How many images each task brings."""

    def __len__(self) -> int:
        return len(self.tasks)

    def skip_to(self, index: int) -> None:
        """Begin with a later task, as a resumed run does. The images before it are dropped unread."""
        assert not self._walked
        assert self._next <= index <= len(self.tasks)
        if not self.cumulative:
            for passed in range(self._next, index):
                del self._by_task[passed]
        self._next = index

    def images_of(self, place: int) -> Pixels | Vectors:
        """(N, C, H, W), or (N, D): all images of a task that has not begun, for whoever must note them down before.

        The stream's own memory, where it has it: whoever still holds it when the task is over stops the run.
        """
        return self._by_task[place].read().images

    def hand_over(self) -> Split:
        """All its training images, with the data set's numbers, instead of walking it; it is empty then."""
        iter(self)
        self._next, arrays = len(self.tasks), [self._by_task.pop(n).read() for n in list(self._by_task)]
        numbers = torch.tensor(list(self._places))
        images = np.concatenate([some.images for some in arrays])
        targets = np.concatenate([some.targets for some in arrays])
        return Split(torch.from_numpy(images), numbers[torch.from_numpy(targets)])

    def __iter__(self) -> Iterator[Task]:
        if self._walked:
            raise StrictnessError("a stream can be walked once: its past tasks are gone; load the data set anew")
        self._walked = True
        return self

    def __next__(self) -> Task:
        """Close the current task, see to it that its memory is free, and open the next."""
        self._close_current()
        if self._next >= len(self.tasks):
            raise StopIteration
        arrays, kept_out = self._split(self._take())
        classes = self.tasks[self._next]
        so_far = (c for task in self.tasks[: self._next + 1] for c in task)
        self._current = Task(
            index=self.start + self._next,
            classes=classes,
            seen=tuple(dict.fromkeys((*self.known, *so_far))),
            images=torch.from_numpy(arrays.images),
            targets=torch.from_numpy(arrays.targets),
            names=tuple(self.class_names[c] for c in classes),
            class_indices=[self._places[c] for c in classes],
            validation=kept_out.examples() if kept_out else None,
        )
        # torch.from_numpy keeps its array alive as long as any view of it lives, so a dead weak reference to the
        # array means that nobody holds the pixels
        self._owners = [*arrays.weak(), *(kept_out.weak() if kept_out else [])]
        self._next += 1
        return self._current

    def _close_current(self) -> None:
        task, self._current = self._current, None
        if task is None:
            return
        task._close()
        if any(owner() is not None for owner in self._owners):
            gc.collect()
        if any(owner() is not None for owner in self._owners):
            raise StrictnessError(
                f"task {task.index + 1} is over, but its images or targets are still held by somebody (a tensor kept "
                "in the learner?); drop every reference, or copy the few that a relaxed setting allows"
            )

    def _split(self, task: _TaskArrays | _TaskRows) -> tuple[_TaskArrays, _TaskArrays | None]:
        """What is learned from, and what is kept out of it. A class of one image has none to keep out."""
        mask = held_out(task.targets, self.validation) if self.validation else np.zeros(0, bool)
        return (task.read(~mask), task.read(mask)) if mask.any() else (task.read(), None)

    def _take(self) -> _TaskArrays | _TaskRows:
        if not self.cumulative:
            return self._by_task.pop(self._next)
        so_far = [self._by_task[t] for t in range(self._next + 1)]
        targets = np.concatenate([task.targets for task in so_far])
        if on_disc := [task for task in so_far if isinstance(task, _TaskRows)]:
            return _TaskRows(on_disc[0].train, np.concatenate([task.rows for task in on_disc]), targets)
        return _TaskArrays(np.concatenate([task.read().images for task in so_far]), targets)


def class_order(
    names: Sequence[str], *, order: Sequence[str | int] | None = None, order_seed: int | None = None
) -> tuple[int, ...]:
    """The class numbers in order of appearance: as given, shuffled by a seed, or 0, 1, 2, …

    >>> class_order(["cat", "dog", "0"], order=["dog", "0"])
    (1, 2)
    """
    if order is None:
        if order_seed is None:
            return tuple(range(len(names)))
        return tuple(torch.randperm(len(names), generator=generator(order_seed, "class order")).tolist())
    numbers = tuple(_class_number(word, names) for word in order)
    if not numbers:
        raise ConfigError("class order is empty; name at least one class")
    if len(set(numbers)) != len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise ConfigError(f"class order names class {names[twice]} twice; each class appears in one task only")
    return numbers


MOST_DIGITS = 9
"""Of a class's number; Python refuses to read thousands."""


def _class_number(word: str | int, names: Sequence[str]) -> int:
    """Which class somebody means: a word is a name or else a number, a number is a number."""
    if isinstance(word, str):
        if word in names:
            return names.index(word)
        if not word.isdecimal() or len(word) > MOST_DIGITS or int(word) >= len(names):
            raise unknown("class", word, names)
    elif not 0 <= word < len(names):
        raise ConfigError(f"class order names class {word}, but there are classes 0 to {len(names) - 1}")
    return int(word)


def partition(
    order: Sequence[int], classes_per_task: int, first_task: int | None = None
) -> tuple[tuple[int, ...], ...]:
    """Cut the order into tasks; the last one takes what is left.

    >>> partition([4, 2, 0, 1, 3], 2)
    ((4, 2), (0, 1), (3,))
    >>> partition([4, 2, 0, 1, 3], 1, first_task=3)
    ((4, 2, 0), (1,), (3,))
    """
    first = classes_per_task if first_task is None else first_task
    for name, value in (("classes_per_task", classes_per_task), ("first_task", first)):
        if not 1 <= value <= len(order):
            raise ConfigError(f"{name} must lie between 1 and the {len(order)} classes, not {value}")
    starts = [0, *range(first, len(order), classes_per_task)]
    ends = [*starts[1:], len(order)]
    return tuple(tuple(order[a:b]) for a, b in zip(starts, ends, strict=True))


def _cut(
    train: Split, tasks: tuple[tuple[int, ...], ...], places: dict[int, int]
) -> dict[int, _TaskArrays | _TaskRows]:
    """The training images by task, in their order, each task's copied into memory of its own; those on disc stay there.

    Labels become class indices.
    """
    labels = train.labels.numpy()
    class_index = np.full(max(int(labels.max()), *places) + 1, -1, np.int64)
    class_index[list(places)] = list(places.values())
    task_of = np.full(len(class_index), len(tasks), np.int64)
    for index, classes in enumerate(tasks):
        task_of[list(classes)] = index
    order = np.argsort(task_of[labels], kind="stable")
    ends = np.cumsum(np.bincount(task_of[labels], minlength=len(tasks)))[: len(tasks)]
    by_task = dict(enumerate(np.split(order, ends)[: len(tasks)]))
    if isinstance(train, StoredSplit):
        return {task: _TaskRows(train, rows, class_index[labels[rows]]) for task, rows in by_task.items()}
    images = train.images.numpy()
    return {task: _TaskArrays(images[rows], class_index[labels[rows]]) for task, rows in by_task.items()}
