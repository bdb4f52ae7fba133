"""Run folders -> `Run` values, each with the state it is in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from engram.errors import RunError
from engram.experiment.files import LOCK, is_held
from engram.experiment.records import NAME
from engram.report import records as kinds
from engram.report.records import (
    Evaluation,
    Growth,
    Head,
    MaskStep,
    Problem,
    Quality,
    Retention,
    Timing,
    plain,
    read_lines,
)

CONFIG = "config.json"
GRIDS = ("samples.png", "grid.png")
LARGEST_GRID = 600_000
"""Bytes; a larger picture would make the page heavy."""

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
    retention: tuple[Retention, ...]
    timing: tuple[Timing, ...]
    quality: tuple[Quality, ...]
    epoch: tuple[int, int] | None
    """The last task and epoch on record."""
    failure: str | None
    last_record: float
    """When the records last changed, in seconds since 1970."""
    commit: str | None
    at_work: bool = False
    """Whether a process was at work in the folder when it was read."""

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

    def at(self, classes: int) -> Evaluation | None:
        """The evaluation over this many classes."""
        return next((e for e in self.evaluations if len(e.classes) == classes), None)

    @property
    def grid(self) -> Path | None:
        """A picture of generated samples that lies in the folder."""
        for name in GRIDS:
            path = self.folder / name
            if path.is_file() and path.stat().st_size <= LARGEST_GRID:
                return path
        return None


@dataclass(frozen=True)
class Gathered:
    """Everything that was found."""

    runs: tuple[Run, ...]
    blank: tuple[Problem, ...]
    """Folders that are there and hold no run yet, or none that can be read, and why."""
    problems: tuple[Problem, ...]


def gather(places: Sequence[Path], *, patient: bool = False) -> Gathered:
    """All runs at or below these folders. A place without any is a user's mistake, unless we wait for one."""
    runs: dict[Path, Run] = {}
    blank: dict[Path, Problem] = {}
    problems: list[Problem] = []
    for place in places:
        if not place.is_dir():
            raise RunError(f"{place} is not a folder; name a run folder, or one that holds some")
        found = 0
        for folder, files in _folders(place):
            name = plain(str(folder.relative_to(place)) if folder != place else folder.resolve().name)
            if NAME in files:
                found += 1
                run = read_run(folder, name, problems)
                if run is None:
                    blank[folder.resolve()] = Problem(name, f"{NAME} holds no run that can be read")
                else:
                    runs[folder.resolve()] = run
            elif CONFIG in files or not files - {LOCK}:
                found += CONFIG in files
                blank[folder.resolve()] = Problem(name, "no records yet" if CONFIG in files else "an empty folder")
        if not found and not patient:
            raise RunError(f"{place} holds no run; name a run folder, or one that holds some")
    kept, copies = _without_copies(runs.values())
    return Gathered(kept, tuple(blank.values()), (*problems, *copies))


def _folders(place: Path) -> Iterator[tuple[Path, set[str]]]:
    """Every folder that may be a run, and the names of its files; what lies inside a run is its own."""
    for root, folders, files in os.walk(place):
        if NAME in files or CONFIG in files:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if files or not folders:
            yield Path(root), set(files)


def read_run(folder: Path, name: str, problems: list[Problem]) -> Run | None:
    """One run folder; None where its records do not say what it is."""
    path = folder / NAME
    head: Head | None = None
    evaluations: dict[int, Evaluation] = {}
    masks: list[MaskStep] = []
    growth: dict[int, Growth] = {}
    memory: dict[int, dict[str, int]] = {}
    retention: dict[int, Retention] = {}
    timing: dict[int, Timing] = {}
    quality: dict[int, Quality] = {}
    epoch, failure = None, None
    try:
        last_record = path.stat().st_mtime
        for number, record in read_lines(path, problems):
            kind = record["kind"]
            try:
                if kind == "run":
                    head = kinds.head(record)
                    continue
                if head is not None and not 0 <= record.get("task", 0) < len(head.tasks):
                    raise ValueError(f"task {record['task']} is not one of the run's {len(head.tasks)}")
                match kind:
                    case "evaluation":
                        scores = kinds.evaluation(record)
                        if head is not None and scores.classes != sum(head.tasks[: scores.task + 1], ()):
                            raise ValueError("its classes are not those of the run's tasks so far")
                        evaluations[scores.task] = scores
                    case "mask":
                        masks.append(kinds.mask(record))
                    case "growth":
                        growth[record["task"]] = kinds.growth(record)
                    case "memory":
                        task, parts = kinds.memory(record)
                        memory[task] = parts
                    case "retention":
                        retention[record["task"]] = kinds.retention(record)
                    case "timing":
                        timing[record["task"]] = kinds.timing(record)
                    case "quality":
                        quality[record["task"]] = kinds.quality(record)
                    case "epoch":
                        epoch = kinds.epoch(record)
                    case "failure":
                        failure = kinds.failure(record)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                why = f"it lacks {error}" if isinstance(error, KeyError) else plain(str(error))
                problems.append(Problem(f"{path}:{number}", f"not a record of kind {plain(kind)}: {why}; skipped"))
    except OSError as error:
        problems.append(Problem(str(path), f"cannot be read ({error.strerror})"))
        return None
    if head is None:
        return None
    return Run(
        name=name,
        folder=folder,
        head=head,
        settings=_settings(folder / CONFIG, problems),
        evaluations=_in_order(evaluations),
        masks=tuple(masks),
        growth=_in_order(growth),
        memory=dict(sorted(memory.items())),
        retention=_in_order(retention),
        timing=_in_order(timing),
        quality=_in_order(quality),
        epoch=epoch,
        failure=failure,
        last_record=last_record,
        commit=_commit(folder / "environment.json"),
        at_work=is_held(folder),
    )


def _in_order(by_task: dict[int, T]) -> tuple[T, ...]:
    return tuple(by_task[task] for task in sorted(by_task))


BEFORE = {
    "training.network": "digits",
    "training.width": "32",
    "method.network": "dcgan",
    "method.critic": "auto",
    "method.critic_start": "fresh",
    "method.beta1": "0.5",
    "method.beta2": "0.999",
    "method.rare": "0",
    "method.new_share": "0",
    "method.real_now": "0",
    "method.distil": "0",
    "method.most_units": "0",
}
"""Settings that came later, and what was done before there was a choice. A run that says so and one from before the
setting existed are of one configuration: they count as seeds of the same row."""


def _settings(path: Path, problems: list[Problem]) -> dict[str, str] | None:
    """What decides the result but for the seeds. `runtime` (threads, device) changes no more than the last bits, its
    precision aside, and the preset's name says nothing that its values do not."""
    try:
        config = json.loads(path.read_bytes())["config"]
        groups = {"stream": config["stream"], "training": config["training"], "method": config["method_settings"]}
        if (precision := config["runtime"].get("precision", "float32")) != "float32":
            groups["runtime"] = {"precision": precision}
        known = {f"{g}.{name}": plain(_value(value)) for g, group in groups.items() for name, value in group.items()}
        return {key: value for key, value in known.items() if BEFORE.get(key) != value}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        problems.append(Problem(str(path), "no configuration that can be read: the run is not averaged with others"))
        return None


def _value(value: Any) -> str:
    """As one would type it: 0.5, 1e-06, none, 3,1,2."""
    if value is None:
        return "none"
    if isinstance(value, list):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _commit(path: Path) -> str | None:
    """The code that the run was started with."""
    try:
        commit = json.loads(path.read_bytes())[0]["commit"]
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    return plain(commit)[:9] if isinstance(commit, str) else None


def _without_copies(runs: Iterable[Run]) -> tuple[tuple[Run, ...], list[Problem]]:
    """The same configuration with the same seeds is the same run: it must not count twice towards a mean."""
    kept: dict[object, Run] = {}
    problems = []
    for run in runs:
        head = run.head
        if run.settings is None:
            kept[run.folder] = run
            continue
        settings = tuple(run.settings.items())
        key = (head.dataset, head.digest, head.method, head.seed, head.order_seed, settings)
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
