"""Run folders -> `Run` values, each with the state it is in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from engram.errors import RunError
from engram.evaluation import metrics
from engram.experiment.files import LOCK, is_held
from engram.experiment.records import NAME
from engram.report import held_out
from engram.report import records as kinds
from engram.report.fields import plain
from engram.report.held_out import Privacy, Trust
from engram.report.origin import Machine, machine, settings
from engram.report.records import (
    Evaluation,
    Growth,
    Head,
    MaskStep,
    Problem,
    Quality,
    Retention,
    Timing,
    read_lines,
)

CONFIG = "config.json"
ARCHIVE = "archive"
"""The name of a folder of superseded runs."""
SEED = re.compile(r"seed\d+")
GRIDS = ("samples.png", "grid.png")

T = TypeVar("T")
State = Literal["done", "running", "stopped", "failed"]


@dataclass(frozen=True)
class Run:
    """A run folder's facts."""

    name: str
    """The folder, as seen from the folder that was asked for."""
    folder: Path
    head: Head
    settings: dict[str, str] | None
    """`group.field` -> value, of all that decides what is learned but for the seeds; None where it is not known."""
    evaluations: tuple[Evaluation, ...]
    masks: tuple[MaskStep, ...]
    growth: tuple[Growth, ...]
    memory: dict[int, dict[str, int]]
    """Task -> part -> bytes."""
    classifier: float | None
    """Bytes of what answers, after the last task."""
    retention: tuple[Retention, ...]
    timing: tuple[Timing, ...]
    quality: tuple[Quality, ...]
    trust: tuple[Trust, ...]
    privacy: tuple[Privacy, ...]
    """Both of runs that held images out: `stream.validation`."""
    epoch: tuple[int, int] | None
    """The last task and epoch on record."""
    failure: str | None
    last_record: float
    """When the records last changed, in seconds since 1970."""
    machine: Machine = Machine()
    at_work: bool = False
    """Whether a process was at work in the folder when it was read."""
    ways: Mapping[str, tuple[Evaluation, ...]] = field(default_factory=dict)
    """Other ways in which its learner answers, by name."""

    @property
    def commit(self) -> str | None:
        """The code that the run was started with."""
        return self.machine.commit

    @property
    def label(self) -> str:
        """What is special about it: the folder above, where the run's own folder is named by its seed."""
        return self.folder.parent.name if SEED.fullmatch(self.folder.name) else ""

    @property
    def archived(self) -> bool:
        """Whether it lies below a folder named `archive`, as seen from the folder that was asked for."""
        return ARCHIVE in Path(self.name).parts

    @property
    def state(self) -> State:
        if len(self.evaluations) == len(self.head.tasks):
            return "done"
        if self.at_work:
            return "running"
        return "failed" if self.failure is not None else "stopped"

    @property
    def seconds(self) -> dict[int, float]:
        """Task -> time spent learning it."""
        return {timing.task: timing.seconds for timing in self.timing}

    @property
    def cpu_seconds(self) -> float | None:
        """Over all tasks; None where one of them does not say."""
        known = [timing.cpu for timing in self.timing if timing.cpu is not None]
        return sum(known) if len(known) == len(self.evaluations) > 0 else None

    def at(self, classes: int) -> Evaluation | None:
        """The evaluation over this many classes."""
        return next((e for e in self.evaluations if len(e.classes) == classes), None)


@dataclass(frozen=True)
class Gathered:
    """Everything that was found."""

    runs: tuple[Run, ...]
    blank: tuple[Problem, ...]
    """Folders that are there and hold no run yet, or none that can be read, and why."""
    problems: tuple[Problem, ...]


def gather(places: Sequence[Path], *, patient: bool = False, archive: bool = False, copies: bool = False) -> Gathered:
    """All runs at or below these folders. A place without any is a user's mistake, unless we wait for one.

    What lies below a folder named `archive` is superseded and counts only with `archive`, or where that folder itself
    is the place. A run with the configuration and the seeds of another one counts only with `copies`.
    """
    found: dict[Path, Run | Problem] = {}
    problems: list[Problem] = []
    for place in places:
        if not place.is_dir():
            raise RunError(f"{place} is not a folder; name a run folder, or one that holds some")
        held = False
        for folder, files in _folders(place, archive=archive):
            held |= NAME in files or CONFIG in files
            name = plain(str(folder.relative_to(place)) if folder != place else folder.resolve().name)
            if NAME in files:
                found[folder.resolve()] = read_run(folder, name, problems)
            elif CONFIG in files or not files - {LOCK}:
                found[folder.resolve()] = Problem(name, "no records yet" if CONFIG in files else "an empty folder")
        if not held and not patient:
            raise RunError(f"{place} holds no run; name a run folder, or one that holds some")
    runs = tuple(run for what in found.values() if isinstance(what, Run) for run in memories(what))
    blank = tuple(what for what in found.values() if isinstance(what, Problem))
    kept, doubles = (runs, []) if copies else _without_copies(runs)
    return Gathered(kept, blank, (*problems, *doubles))


BOTH, FIRST = "statistics", "generative"
"""The settings of a second memory, and the way in which the first one answers alone."""


def memories(run: Run) -> tuple[Run, ...]:
    """A run of two memories: as it answers, under a name of its own, and its first memory as a run that has no other.

    The second memory changes no bit of the first (`tests/test_both_memories.py`), so one training gives both figures.
    """
    if run.settings is None or run.settings.get(f"{BOTH}.kept") != "True":
        return (run,)
    both = replace(run, head=replace(run.head, method=f"{run.head.method} + {BOTH}"))
    if not run.ways.get(FIRST):
        return (both,)
    alone = replace(
        run,
        settings={name: value for name, value in run.settings.items() if not name.startswith(f"{BOTH}.")},
        evaluations=run.ways[FIRST],
        memory={task: {p: n for p, n in parts.items() if p != BOTH} for task, parts in run.memory.items()},
        quality=(),  # these three were measured with both
        trust=(),
        privacy=(),
        ways={},
    )
    return (both, alone)


def _folders(place: Path, *, archive: bool) -> Iterator[tuple[Path, set[str]]]:
    """Every folder that may be a run, and the names of its files; what lies inside a run is its own."""
    for root, folders, files in os.walk(place):
        if NAME in files or CONFIG in files:
            folders.clear()
        visible = sorted(name for name in folders if not name.startswith("."))
        folders[:] = [name for name in visible if archive or name != ARCHIVE]
        if files or not visible:
            yield Path(root), set(files)


def read_run(folder: Path, name: str, problems: list[Problem]) -> Run | Problem:
    """One run folder; a problem where its records do not say what it is, or say it in another format."""
    path, facts = folder / NAME, _Facts()
    try:
        last_record = path.stat().st_mtime
        for number, record in read_lines(path, problems):
            if record["kind"] == "run" and (why := kinds.other_format(record)):
                return Problem(name, f"{NAME} is {why}")
            try:
                facts.take(record)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                lacks = f"it lacks {error}" if isinstance(error, KeyError) else plain(str(error))
                kind = plain(record["kind"])
                problems.append(Problem(f"{path}:{number}", f"not a record of kind {kind}: {lacks}; skipped"))
    except OSError as error:
        problems.append(Problem(str(path), f"cannot be read ({error.strerror})"))
    if facts.head is None:
        return Problem(name, f"{NAME} holds no run that can be read")
    return Run(
        name=name,
        folder=folder,
        head=facts.head,
        settings=settings(folder / CONFIG, problems),
        evaluations=_in_order(facts.evaluations),
        masks=tuple(facts.masks),
        growth=_in_order(facts.growth),
        memory=dict(sorted(facts.memory.items())),
        classifier=facts.classifier[max(facts.classifier)] if facts.classifier else None,
        retention=_in_order(facts.retention),
        timing=_in_order(facts.timing),
        quality=_in_order(facts.quality),
        trust=_in_order(facts.trust),
        privacy=_in_order(facts.privacy),
        epoch=facts.epoch,
        failure=facts.failure,
        last_record=last_record,
        machine=machine(folder / "environment.json"),
        at_work=is_held(folder),
        ways={way: _with_forgetting(_in_order(found), facts.head) for way, found in facts.ways.items()},
    )


@dataclass
class _Facts:
    """What has been read of a run so far; of two records of one kind and task the later one stands."""

    head: Head | None = None
    evaluations: dict[int, Evaluation] = field(default_factory=dict)
    masks: list[MaskStep] = field(default_factory=list)
    growth: dict[int, Growth] = field(default_factory=dict)
    memory: dict[int, dict[str, int]] = field(default_factory=dict)
    classifier: dict[int, int | None] = field(default_factory=dict)
    retention: dict[int, Retention] = field(default_factory=dict)
    timing: dict[int, Timing] = field(default_factory=dict)
    ways: dict[str, dict[int, Evaluation]] = field(default_factory=dict)
    quality: dict[int, Quality] = field(default_factory=dict)
    trust: dict[int, Trust] = field(default_factory=dict)
    privacy: dict[int, Privacy] = field(default_factory=dict)
    epoch: tuple[int, int] | None = None
    failure: str | None = None

    def take(self, record: dict[str, Any]) -> None:
        """Raises what the kinds' readers raise where the record does not fit."""
        if record["kind"] == "run":
            self.head = kinds.head(record)
            return
        tasks = self.head.tasks if self.head else None
        if tasks is not None and not 0 <= record.get("task", 0) < len(tasks):
            raise ValueError(f"task {record['task']} is not one of the run's {len(tasks)}")
        match record["kind"]:
            case "evaluation":
                scores = kinds.evaluation(record)
                if tasks is not None and scores.classes != sum(tasks[: scores.task + 1], ()):
                    raise ValueError("its classes are not those of the run's tasks so far")
                self.evaluations[scores.task] = scores
            case "other_answer":
                scores = kinds.other_answer(record)
                self.ways.setdefault(plain(record["way"]), {})[scores.task] = scores
            case "mask":
                self.masks.append(kinds.mask(record))
            case "growth":
                self.growth[record["task"]] = kinds.growth(record)
            case "memory":
                task, parts = kinds.memory(record)
                # what answers is told apart from what is kept for the past; older records do not list it
                self.classifier[task] = parts.pop("classifier", None)
                self.memory[task] = parts
            case "retention":
                self.retention[record["task"]] = kinds.retention(record)
            case "timing":
                self.timing[record["task"]] = kinds.timing(record)
            case "quality":
                self.quality[record["task"]] = kinds.quality(record)
            case "calibration":
                self.trust[record["task"]] = held_out.trust(record)
            case "privacy":
                self.privacy[record["task"]] = held_out.privacy(record)
            case "epoch":
                self.epoch = kinds.epoch(record)
            case "failure":
                self.failure = kinds.failure(record)


def _in_order(by_task: dict[int, T]) -> tuple[T, ...]:
    return tuple(by_task[task] for task in sorted(by_task))


def _with_forgetting(found: Sequence[Evaluation], head: Head) -> tuple[Evaluation, ...]:
    """From the tasks before, as the loop does it for the learner's own answer; as they are where they do not fit."""
    sizes = [len(task) for task in head.tasks]
    if any(sum(sizes[: one.task + 1]) != len(one.confusion) for one in found):
        return tuple(found)
    rows = [metrics.task_row(one.confusion, sizes[: one.task + 1]) for one in found]
    return tuple(replace(one, forgetting=metrics.forgetting(rows[: n + 1])) for n, one in enumerate(found))


def _without_copies(runs: Iterable[Run]) -> tuple[tuple[Run, ...], list[Problem]]:
    """The same configuration with the same seeds is the same run: it must not count twice towards a mean."""
    kept: dict[object, Run] = {}
    problems = []
    for run in runs:
        head = run.head
        if run.settings is None:
            kept[run.folder] = run
            continue
        settled = tuple(sorted(run.settings.items()))
        key = (head.dataset, head.digest, head.method, head.seed, head.order_seed, settled)
        if key not in kept:
            kept[key] = run
            continue
        first, second = sorted((kept[key], run), key=lambda r: -len(r.evaluations))
        kept[key] = first
        shared = min(len(first.evaluations), len(second.evaluations))
        same = first.evaluations[:shared] == second.evaluations[:shared]
        problems.append(
            Problem(
                second.name,
                f"the configuration and seeds of {first.name}, "
                + ("and the same figures" if same else "but other figures (other code or threads?)")
                + ": left out, so that no seed counts twice",
            )
        )
    return tuple(kept.values()), problems
