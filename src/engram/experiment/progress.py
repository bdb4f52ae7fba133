"""How a run shows itself: a live bar on a terminal, plain lines elsewhere, nothing in a library."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from engram.config import Config
from engram.experiment.records import Record
from engram.methods.learner import Clock

QUIET_SECONDS = 10.0
"""Plain lines about epochs come at most this often."""


class Display(Protocol):
    """What the run tells whoever is watching."""

    def __enter__(self) -> Display: ...

    def __exit__(self, *error: Any) -> None: ...

    def begin(
        self, config: Config, images: Sequence[int], done: int, evaluations: list[Record], notes: list[str]
    ) -> None:
        """The run starts, or goes on after `done` tasks; `images` per task measure the work."""
        ...

    def task(self, index: int, class_names: Sequence[str]) -> None: ...

    def batch(self, clock: Clock) -> None: ...

    def epoch(self, record: Record) -> None: ...

    def done(self, evaluation: Record, seconds: float) -> None: ...


class Quiet:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def begin(
        self, config: Config, images: Sequence[int], done: int, evaluations: list[Record], notes: list[str]
    ) -> None:
        pass

    def task(self, index: int, class_names: Sequence[str]) -> None:
        pass

    def batch(self, clock: Clock) -> None:
        pass

    def epoch(self, record: Record) -> None:
        pass

    def done(self, evaluation: Record, seconds: float) -> None:
        pass


class Watch:
    """Shows a run on a console: a bar where it is a terminal, lines where it is not."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.images: Sequence[int] = [1]
        self.index = 0
        self.names = ""
        self.losses = ""
        self.epochs = "starting"
        self.share_at_start = 0.0
        self.started = self.last_line = time.monotonic()
        self.bar = Progress(
            TextColumn("task {task.fields[place]}", style="bold"),
            TextColumn("{task.fields[epochs]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[losses]}", style="cyan"),
            _TimeLeft(self),
            console=console,
            disable=not console.is_terminal,
            transient=True,
            refresh_per_second=4,
        )
        self.row = self.bar.add_task("", total=1.0, place="", losses="", epochs="starting")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self.bar.stop()

    def begin(
        self, config: Config, images: Sequence[int], done: int, evaluations: list[Record], notes: list[str]
    ) -> None:
        self.images = images
        self.index = done
        self.share_at_start = self._share(0.0)
        self.started = time.monotonic()
        what = f"{config.method} on {escape(config.dataset)}, {len(images)} tasks, seed {config.seed}"
        if done or evaluations:
            what += f", going on after task {done}"
        self._line(what)
        for note in notes:
            self._line(f"note: {escape(note)}")

    def task(self, index: int, class_names: Sequence[str]) -> None:
        self.index = index
        self.names = ", ".join(class_names[:6]) + (" …" if len(class_names) > 6 else "")
        self._update(0.0)

    def batch(self, clock: Clock) -> None:
        if not self.console.is_terminal:
            return
        self.epochs = f"epoch {clock.epoch + 1}/{clock.epochs}"
        self._update(clock.share_of_task)

    def epoch(self, record: Record) -> None:
        self.losses = "  ".join(f"{name} {value:.4f}" for name, value in record["losses"].items())
        now = time.monotonic()
        if not self.console.is_terminal and now - self.last_line >= QUIET_SECONDS:
            self.last_line = now
            self._line(f"task {record['task'] + 1}/{len(self.images)}  epoch {record['epoch'] + 1}  {self.losses}")

    def done(self, evaluation: Record, seconds: float) -> None:
        self.index = evaluation["task"] + 1
        self.epochs = ""
        self._update(0.0)
        self.last_line = time.monotonic()
        left = "" if self.index == len(self.images) else f"  {duration(self.seconds_left())} left"
        self._line(
            f"task {self.index}/{len(self.images)} ({escape(self.names)})  A_{len(evaluation['classes'])} = "
            f"{100 * evaluation['accuracy']:.2f} %  {duration(seconds)}{left}"
        )

    def _line(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def seconds_left(self, share: float | None = None) -> float:
        """Time to go at the speed so far."""
        share = self._share(0.0) if share is None else share
        made = share - self.share_at_start
        return (time.monotonic() - self.started) * (1 - share) / made if made > 0 else float("inf")

    def _share(self, within: float) -> float:
        """Share of the run's work that is done, by images; `within` of the current task."""
        done = sum(self.images[: self.index])
        current = self.images[self.index] if self.index < len(self.images) else 0
        return (done + within * current) / sum(self.images)

    def _update(self, within: float) -> None:
        place = f"{min(self.index + 1, len(self.images))}/{len(self.images)} ({escape(self.names)})"
        self.bar.update(self.row, completed=self._share(within), place=place, losses=self.losses, epochs=self.epochs)


class _TimeLeft(ProgressColumn):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def render(self, task: Any) -> Text:
        return Text(f"{duration(self.watch.seconds_left(task.completed))} left", style="dim")


def duration(seconds: float) -> str:
    """
    >>> duration(7.25), duration(75), duration(3700)
    ('7.2 s', '1 min 15 s', '1 h 01 min')
    """
    if seconds == float("inf"):
        return "?"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def accuracy_table(records: Sequence[Record]) -> Table:
    """A_t after each task, from a run's records."""
    head = next((r for r in records if r["kind"] == "run"), None)
    seconds = {r["task"]: r["seconds"] for r in records if r["kind"] == "timing"}
    names = head["class_names"] if head else []
    title = None
    if head:
        bound = f" ({head['bound']} bound)" if head["bound"] else ""
        data = head["dataset"]
        title = escape(f"{head['method']}{bound} on {data['name']}, {data['variant']}")
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("task", "classes seen", "new"):
        table.add_column(name, justify="right" if name != "new" else "left", max_width=30, no_wrap=True)
    for name in ("A_t %", "macro %", "top-5 %", "forgetting %", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    seen = 0
    for record in (r for r in records if r["kind"] == "evaluation"):
        new = [names[c] if names else str(c) for c in record["classes"][seen:]]
        seen = len(record["classes"])
        table.add_row(
            str(record["task"] + 1),
            str(seen),
            escape(", ".join(new)),
            f"{100 * record['accuracy']:.2f}",
            f"{100 * record['macro']:.2f}",
            "-" if record["top5"] is None else f"{100 * record['top5']:.2f}",
            f"{100 * record['forgetting']:.2f}",
            f"{seconds.get(record['task'], 0.0):.1f}",
        )
    return table
