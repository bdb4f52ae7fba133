"""Lines of `records.jsonl` -> values of known shape. What does not fit is named with its place, and left out.

The experiment's own reader stops at a bad line, because a run must not go on from one. A report is read by somebody who
wants to see what there is, so here every bad line is a `Problem` and the rest counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

from engram.evaluation import metrics
from engram.opening import open_regular
from engram.report.fields import demand, finite, list_of, maybe, plain, share, text, truth, whole

LONGEST = 100_000_000
"""Bytes of a line; the confusion matrix of a thousand classes has five million."""
Fields = Mapping[str, Any]
FORMAT = 2
"""Of the records that this version reads: a `run` record says its own; before there were numbers it was 1."""


@dataclass(frozen=True)
class Problem:
    """Something in the folders that could not be used, or was used with a grain of salt."""

    place: str
    """A file and line, or a folder."""
    text: str


@dataclass(frozen=True)
class Head:
    """The `run` record: what the run is."""

    dataset: str
    variant: str
    digest: str
    method: str
    bound: str | None
    strict: bool
    """As the method's registry entry said when the run began: the one source of what counts as strict."""
    seed: int
    order_seed: int | None
    tasks: tuple[tuple[int, ...], ...]
    class_names: tuple[str, ...]
    shape: tuple[int, ...]
    """Of an image as it is learned from: channels, height, width; of a vector, how many numbers."""
    images: tuple[int, ...]

    @property
    def channels(self) -> int:
        return self.shape[0]

    @property
    def image_bytes(self) -> int:
        """Of one stored image, a byte a value; of a vector, four."""
        return math.prod(self.shape) * (4 if len(self.shape) == 1 else 1)

    def seen(self, task: int) -> int:
        """Classes seen after this task."""
        return sum(map(len, self.tasks[: task + 1]))


@dataclass(frozen=True)
class Evaluation:
    """Scores after a task."""

    task: int
    classes: tuple[int, ...]
    accuracy: float
    top5: float | None
    forgetting: float
    confusion: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class MaskStep:
    """Mask values of a few units of each layer, and each layer's mean, after an epoch."""

    task: int
    epoch: int
    occupancy: tuple[float, ...]
    sample: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Growth:
    """A task's reservations, summed over the layers."""

    task: int
    new: int
    reused: int
    weights: tuple[int, int]
    """Before and after growing."""
    units: tuple[int, int]
    entries: int
    """Of all masks: what the task could open."""
    opened: tuple[int, int] | None = None
    """Free and reserved entries that the masks opened, before units beyond the bound were left out; None: not on
    record."""


@dataclass(frozen=True)
class Retention:
    """How many classes' images were compared bit by bit, and which had changed."""

    task: int
    checked: int
    changed: int


@dataclass(frozen=True)
class Quality:
    """How well replayed images stand for their classes, 0 to 1, a value per class seen."""

    task: int
    classes: tuple[str, ...]
    measures: dict[str, tuple[float | None, ...]]


@dataclass(frozen=True)
class Timing:
    """What a task cost. None: not on record."""

    task: int
    seconds: float
    """Spent learning it."""
    step: float | None
    """Seconds of a training step: the median over the task's epochs, which is one of the generator's where there is
    one, since those are many more than the classifier's."""
    peak: int | None
    """Bytes of the process's memory at its highest, so far."""
    cpu: float | None = None
    """Seconds that processors worked on it: what other processes take from the machine does not count."""


def read_lines(path: Path, problems: list[Problem]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Whole records with their line numbers."""
    with open_regular(path) as file:
        for number, line in enumerate(iter(partial(file.readline, LONGEST), b""), start=1):
            place = f"{path}:{number}"
            if not line.endswith(b"\n"):
                problems.append(Problem(place, "the line is torn: its end is missing; skipped"))
                return
            try:
                record = json.loads(line, parse_constant=_no_constant)
            except (ValueError, RecursionError):
                problems.append(Problem(place, "not a line of JSON; skipped"))
                continue
            if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
                problems.append(Problem(place, "not a record: it has no kind; skipped"))
                continue
            yield number, record


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


# ---------------------------------------------------------------- one function per kind


def other_format(r: Fields) -> str | None:
    """Why a `run` record is not for this version; None where it is."""
    number = r.get("format", 1)
    if number == FORMAT:
        return None
    found = plain(f"{number!r:.20}")
    return f"of record format {found}, this version reads format {FORMAT}; use the version of Engram that wrote it"


def head(r: Fields) -> Head:
    data = r["dataset"]
    names = list_of(r["class_names"], text)
    tasks = list_of(r["tasks"], lambda task: list_of(task, whole))
    appear = [c for task in tasks for c in task]
    demand(all(tasks) and bool(tasks), "a task without classes")
    demand(len(set(appear)) == len(appear) and all(c < len(names) for c in appear), "classes that do not add up")
    shape = list_of(r["shape"], whole)
    demand(len(shape) in (1, 3) and all(shape), "a shape that is no image's and no vector's")
    return Head(
        dataset=text(data["name"]),
        variant=text(data["variant"]),
        digest=text(data["digest"]),
        method=text(r["method"]),
        bound=maybe(r.get("bound"), text),
        strict=truth(r["strict"]),
        seed=whole(r["seed"]),
        order_seed=maybe(r.get("order_seed"), whole),
        tasks=tasks,
        class_names=names,
        shape=tuple(shape),
        images=list_of(r.get("images", []), whole),
    )


def evaluation(r: Fields) -> Evaluation:
    return replace(other_answer(r), forgetting=finite(r["forgetting"]))


def other_answer(r: Fields) -> Evaluation:
    """One of a learner's other ways to answer; forgetting is to be told from the tasks before."""
    classes = list_of(r["classes"], whole)
    if isinstance(r["confusion"], dict):
        demand(len(r["confusion"].get("right", ())) == len(classes), "a confusion matrix that is not of its classes")
    confusion = list_of(metrics.counts(r["confusion"]), lambda row: list_of(row, whole))
    demand(len(confusion) == len(classes), "a confusion matrix that is not of its classes")
    demand(all(len(row) == len(classes) for row in confusion), "a confusion matrix that is not square")
    demand(all(map(sum, confusion)), "a class without test images")
    return Evaluation(
        task=whole(r["task"]),
        classes=classes,
        accuracy=share(r["accuracy"]),
        top5=maybe(r.get("top5"), share),
        forgetting=0.0,
        confusion=confusion,
    )


def mask(r: Fields) -> MaskStep:
    sample = list_of(r["sample"], lambda row: list_of(row, finite))
    occupancy = list_of(r["occupancy"], finite)
    demand(len(sample) == len(occupancy), "layers that do not match")
    return MaskStep(whole(r["task"]), whole(r["epoch"]), occupancy, sample)


def growth(r: Fields) -> Growth:
    layers = r["layers"]

    def total(name: str) -> int:
        return sum(whole(layer[name]) for layer in layers)

    known = all("opened_free" in layer for layer in layers)
    return Growth(
        opened=(total("opened_free"), total("opened_reserved")) if known else None,
        task=whole(r["task"]),
        new=total("newly_reserved"),
        reused=total("reused"),
        weights=(total("weights_before"), total("weights_after")),
        units=(total("units_before"), total("units_after")),
        entries=total("newly_reserved") + total("reused") + total("unused"),
    )


def memory(r: Fields) -> tuple[int, dict[str, int]]:
    return whole(r["task"]), {text(part): whole(size) for part, size in r["bytes"].items()}


def retention(r: Fields) -> Retention:
    demand(isinstance(r["changed"], list), "changed is not a list")
    return Retention(whole(r["task"]), whole(r["classes"]), len(r["changed"]))


def timing(r: Fields) -> Timing:
    steps = maybe(r.get("step_seconds"), lambda values: list_of(values, lambda value: maybe(value, finite))) or ()
    known = [step for step in steps if step is not None]
    return Timing(
        task=whole(r["task"]),
        seconds=finite(r["seconds"]),
        step=median(known) if known else None,
        peak=maybe(r.get("peak_bytes"), whole),
        cpu=maybe(r.get("cpu_seconds"), finite),
    )


def epoch(r: Fields) -> tuple[int, int]:
    return whole(r["task"]), whole(r["epoch"])


def failure(r: Fields) -> str:
    return text(r["error"])


def quality(r: Fields) -> Quality:
    classes = list_of(r["classes"], lambda name: plain(str(name)))
    measures = {
        name: list_of(metrics.values(r[name], len(classes)), lambda value: maybe(value, share))
        for name in ("recognised", "precision", "recall")
        if r.get(name) is not None
    }
    demand(all(len(values) == len(classes) for values in measures.values()), "values that do not match the classes")
    return Quality(whole(r["task"]), classes, measures)
