"""Many runs: methods x seeds x data sets, each a resumable run folder, several processes at a time.

    plan ──> cells ──> jobs `engram run --resume --out FOLDER` ──> summaries ──> table

A cell is whatever its folder says it is. Calling the bench again therefore does what is missing and nothing else: runs
that were killed go on where they were, runs that are done are left alone, runs that failed are tried again. A run that
another process is at work on (a bench that was killed leaves its own behind) is waited for. A job is a process on this
machine, or whatever a launcher makes of the command.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from engram.config import Config, as_dict
from engram.errors import ConfigError, EngramError, InUseError
from engram.evaluation.paper import paper_accuracy
from engram.experiment.files import is_held, os_errors
from engram.experiment.folder import is_run, read_origin
from engram.experiment.jobs import Job, Launcher, Process
from engram.experiment.summary import Summary, summarise
from engram.methods.registry import configure

POLL_SECONDS = 0.5

Status = Literal["waiting", "running", "elsewhere", "done", "failed", "stopped"]
"""`elsewhere`: another process runs it."""


@dataclass
class Cell:
    """One run of the bench."""

    dataset: str
    method: str
    seed: int
    folder: Path
    status: Status = "waiting"
    tries: int = 0
    error: str = ""
    summary: Summary | None = None
    process: Job | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def log(self) -> Path:
        """What its process printed, the last time it was started."""
        return self.folder.parent / "logs" / f"{self.name}.log"

    def look(self) -> None:
        """Read how far it has come."""
        try:
            self.summary = summarise(self.folder)
        except EngramError as error:
            self.error = str(error)


@dataclass(frozen=True)
class Plan:
    """What is to be done, and how."""

    datasets: Sequence[str]
    methods: Sequence[str]
    seeds: Sequence[int]
    out: Path
    jobs: int
    threads: int
    """Per process: two that each spin on all cores are ten times slower than two that share them."""
    settings: Sequence[str] = ()
    """`group.field=value`, for all runs."""
    preset: str = "auto"
    tries: int = 2
    """How often a run that fails is started, in one call."""

    def cells(self) -> list[Cell]:
        """One per data set, method and seed: a seed of all methods before the next seed."""
        return [
            Cell(dataset, method, seed, self.out / f"{_plain(dataset)}-{method}-seed{seed}")
            for dataset in self.datasets
            for seed in self.seeds
            for method in self.methods
        ]

    def command(self, cell: Cell) -> list[str]:
        words = [sys.executable, "-m", "engram", "run", "--resume", "--out", str(cell.folder)]
        words += ["--dataset", cell.dataset, "--method", cell.method, "--seed", str(cell.seed), "--preset", self.preset]
        for setting in (f"runtime.threads={self.threads}", *self.settings):
            words += ["--set", setting]
        return words

    def expected(self, cell: Cell) -> Config:
        """The configuration that its run is to have."""
        settings = dict(text.split("=", 1) for text in self.settings)
        return configure(
            dataset=cell.dataset, method=cell.method, preset=self.preset, seed=cell.seed, settings=settings
        )


def _plain(dataset: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(dataset).name)


def share_out(cores: Sequence[int], jobs: int | None) -> tuple[int, int]:
    """Processes and threads for each, from every machine's cores. Without a wish, one thread each: that uses them best.

    >>> share_out([8], None), share_out([8], 3), share_out([2], 4)
    ((8, 1), (3, 2), (4, 1))
    >>> share_out([4, 4], 3)  # the threads of a process are on one machine
    (3, 2)
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs} must be 1 or more")
    jobs = jobs or max(1, sum(cores))
    enough = (n for n in range(1, max(cores, default=0) + 1) if sum(own // n for own in cores) >= jobs)
    return jobs, max(enough, default=1)


class Stopped(Exception):
    """Somebody asked the bench to stop; its runs have saved."""


def bench(
    plan: Plan,
    *,
    show: Callable[[Sequence[Cell]], None],
    asked: Callable[[], bool] = lambda: False,
    start: Launcher = Process,
) -> list[Cell]:
    """Run every cell that is not done. A run that fails does not stop the others."""
    cells = plan.cells()
    for cell in cells:
        _same_settings(cell, plan)
        cell.look()
        if cell.summary is not None and cell.summary.done:
            cell.status = "done"
    with os_errors(plan.out):
        (plan.out / "logs").mkdir(parents=True, exist_ok=True)
    try:
        while True:
            running = [cell for cell in cells if cell.status == "running"]
            for cell in running:
                _watch(cell, plan.tries)
            for cell in cells:
                _look_elsewhere(cell)
            waiting = [cell for cell in cells if cell.status == "waiting"]
            free = plan.jobs - sum(cell.status in ("running", "elsewhere") for cell in cells)
            for cell in waiting[: max(free, 0)]:
                cell.process = start(plan.command(cell), cell.log, plan.threads)
                cell.status, cell.tries = "running", cell.tries + 1
            show(cells)
            if not any(cell.status in ("running", "elsewhere", "waiting") for cell in cells):
                return cells
            if asked():
                raise Stopped
            time.sleep(POLL_SECONDS)
    finally:
        _stop(cells)
        show(cells)


def _same_settings(cell: Cell, plan: Plan) -> None:
    """A folder of runs with other settings would be taken for this bench's own: say so before anything runs."""
    if not is_run(cell.folder):
        return
    try:
        found = as_dict(read_origin(cell.folder).config)
    except EngramError:
        return  # its own process will say what is wrong with it
    wanted = as_dict(plan.expected(cell))
    others = [
        f"{group}.{name} {found[group][name]!r} instead of {value!r}"
        for group, values in wanted.items()
        if isinstance(values, dict) and group != "runtime"
        for name, value in values.items()
        if found[group][name] != value
    ]
    if others:
        raise ConfigError(f"{cell.folder} holds a run with other settings: {', '.join(others)}; choose another --out")


def _look_elsewhere(cell: Cell) -> None:
    """A run that waits may be under way already; one that was is done, or waits."""
    if cell.status not in ("waiting", "elsewhere"):
        return
    if is_held(cell.folder):
        cell.status = "elsewhere"
        cell.look()
    elif cell.status == "elsewhere":
        cell.look()
        cell.status = "done" if cell.summary is not None and cell.summary.done else "waiting"


def _watch(cell: Cell, tries: int) -> None:
    assert cell.process is not None
    code = cell.process.poll()
    cell.look()
    if code is None:
        return
    cell.process = None
    if cell.summary is not None and cell.summary.done:
        cell.status, cell.error = "done", ""
        return
    if code == InUseError.exit_code:  # another process was quicker, one that an earlier bench left behind for example
        cell.status, cell.tries = "waiting", cell.tries - 1
        return
    cell.error = _last_line(cell.log) or f"ended with exit code {code}"
    # a user's mistake (2) will be the same mistake again
    cell.status = "failed" if code == 2 or cell.tries >= tries else "waiting"


def _stop(cells: Iterable[Cell]) -> None:
    """Ask all that still run to save and stop, and wait for them."""
    running = [cell for cell in cells if cell.process is not None]
    for cell in running:
        assert cell.process is not None
        cell.process.interrupt()
    for cell in running:
        assert cell.process is not None
        cell.process.wait()
        cell.process, cell.status = None, "stopped"
        cell.look()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else ""


@dataclass(frozen=True)
class Row:
    """One method on one data set, over its seeds that are done."""

    dataset: str
    method: str
    seeds: list[int]
    classes: int
    mean: float | None
    """A_t at the end, in per cent."""
    deviation: float | None
    """Between seeds (n - 1); None for one seed."""
    paper: float | None
    memory: float | None
    seconds: float | None

    @property
    def gap(self) -> float | None:
        return None if self.mean is None or self.paper is None else self.mean - self.paper


def rows(cells: Iterable[Cell]) -> list[Row]:
    """Means over seeds, in the order of the cells."""
    groups: dict[tuple[str, str], list[Summary]] = {}
    for cell in cells:
        group = groups.setdefault((cell.dataset, cell.method), [])
        if cell.summary is not None and cell.summary.done:
            group.append(cell.summary)
    table = []
    for (dataset, method), done in groups.items():
        values = [100 * summary.last for summary in done if summary.last is not None]
        classes = max((max(summary.accuracy) for summary in done), default=0)
        memory = [summary.memory for summary in done if summary.memory is not None]
        table.append(
            Row(
                dataset=dataset,
                method=method,
                seeds=[summary.seed for summary in done],
                classes=classes,
                mean=statistics.fmean(values) if values else None,
                deviation=statistics.stdev(values) if len(values) > 1 else None,
                paper=paper_accuracy(dataset, method, classes),
                memory=statistics.fmean(memory) if memory else None,
                seconds=statistics.fmean(summary.seconds for summary in done) if done else None,
            )
        )
    return table
