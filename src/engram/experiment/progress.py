"""How a run shows itself: a live bar on a terminal, plain lines elsewhere, nothing in a library."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from engram.config import Config, groups_of
from engram.experiment.records import Record
from engram.methods.learner import Progress

QUIET_SECONDS = 10.0
"""Plain lines about epochs come at most this often, unless a person wants to see them all."""
BAR_WIDTH = 10
"""The least that the bar takes, in characters."""


class Display:
    """What a run tells whoever is watching. This one shows nothing; others override what they want to show."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def begin(
        self, config: Config, images: Sequence[int], done: int, evaluations: list[Record], notes: Sequence[str]
    ) -> None:
        """The run starts, or goes on after `done` tasks; `images` per task measure the work."""

    def task(self, index: int, class_names: Sequence[str]) -> None:
        """A task begins."""

    def batch(self, progress: Progress) -> None:
        """A step is done."""

    def epoch(self, record: Record) -> None:
        """An epoch is done."""

    def done(self, evaluation: Record, seconds: float) -> None:
        """A task is done."""


class ConsoleDisplay(Display):
    """Shows a run on a console: a bar where it is a terminal, lines where it is not.

    `verbose`: the settings at the start, and a line for every epoch.
    """

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self.console, self.verbose = console, verbose
        self.images: Sequence[int] = [1]
        self.index = 0
        self.names = ""
        self.losses: list[str] = []
        self.epochs = "starting"
        self.share_at_start = 0.0
        self.started = self.last_line = time.monotonic()
        # names come as they are: with markup, ":car:" would become a picture and "[a]" would vanish
        self.bar = Bar(
            TextColumn("task {task.fields[place]}", style="bold", markup=False),
            TextColumn("{task.fields[epochs]}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f} %", markup=False),
            TextColumn("{task.fields[losses]}", style="cyan", markup=False),
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

    def __exit__(self, *error: Any) -> None:
        self.bar.stop()

    def begin(
        self, config: Config, images: Sequence[int], done: int, evaluations: list[Record], notes: Sequence[str]
    ) -> None:
        """The run starts, or goes on after `done` tasks."""
        self.images = images
        self.index = done
        self.share_at_start = self._share(0.0)
        self.started = time.monotonic()
        what = f"{config.method} on {config.dataset}, {len(images)} tasks, seed {config.seed}"
        if done or evaluations:
            what += f", going on after task {done}"
        self._line(what)
        for note in notes:
            self._line(f"note: {note}")
        for name, group in groups_of(config).items() if self.verbose else []:
            self._line(f"{name}: {', '.join(f'{key}={value}' for key, value in vars(group).items())}")

    def task(self, index: int, class_names: Sequence[str]) -> None:
        """A task begins."""
        self.index = index
        self.names = ", ".join(class_names[:6]) + (" …" if len(class_names) > 6 else "")
        self._update(0.0)

    def batch(self, progress: Progress) -> None:
        """A step is done."""
        if not self.console.is_terminal:
            return
        self.epochs = f"epoch {progress.epoch + 1}/{progress.epochs}"
        self._update(progress.share_of_task)

    def epoch(self, record: Record) -> None:
        """An epoch is done."""
        self.losses = [f"{name} {value:.4f}" for name, value in record["losses"].items()]
        now = time.monotonic()
        due = not self.console.is_terminal and now - self.last_line >= QUIET_SECONDS
        if self.verbose or due:
            self.last_line = now
            place = f"task {self.index + 1}/{len(self.images)}  epoch {record['epoch'] + 1}"
            self._line("  ".join([place, *self.losses]))

    def done(self, evaluation: Record, seconds: float) -> None:
        """A task is done."""
        self.index += 1
        self.epochs = ""
        self._update(0.0)
        self.last_line = time.monotonic()
        left = "" if self.index == len(self.images) else f"  {duration(self.seconds_left())} left"
        self._line(
            f"task {self.index}/{len(self.images)} ({self.names})  A_{len(evaluation['classes'])} = "
            f"{100 * evaluation['accuracy']:.2f} %  {duration(seconds)}{left}"
        )

    def _line(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True, markup=False, emoji=False)

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
        count = f"{min(self.index + 1, len(self.images))}/{len(self.images)}"
        # "task " before the place, "100 %" and "1 min 15 s left" behind the bar, a blank between two columns
        taken = len(f"task {count} ()") + len(self.epochs) + BAR_WIDTH + len("100 %") + len("10 min 15 s left") + 5
        names = Text(self.names)
        names.truncate(max(1, self.console.width - taken), overflow="ellipsis")
        place = f"{count} ({names.plain})"
        losses = fitting(self.losses, self.console.width - taken - names.cell_len)
        self.bar.update(self.row, completed=self._share(within), place=place, losses=losses, epochs=self.epochs)


def fitting(words: Sequence[str], room: int) -> str:
    """As many of the words as fit into so many characters: on a narrow terminal the losses give way first.

    >>> fitting(["critic 0.1", "class 0.2"], 30), fitting(["critic 0.1", "class 0.2"], 15), fitting(["critic 0.1"], 3)
    ('critic 0.1  class 0.2', 'critic 0.1', '')
    """
    for count in range(len(words), 0, -1):
        text = "  ".join(words[:count])
        if len(text) <= room:
            return text
    return ""


class _TimeLeft(ProgressColumn):
    def __init__(self, display: ConsoleDisplay) -> None:
        super().__init__()
        self.display = display

    def render(self, task: Any) -> Text:
        return Text(f"{duration(self.display.seconds_left(task.completed))} left", style="dim")


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
        title = Text(f"{head['method']}{bound} on {data['name']}, {data['variant']}")
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
            Text(", ".join(new)),
            f"{100 * record['accuracy']:.2f}",
            f"{100 * record['macro']:.2f}",
            "-" if record["top5"] is None else f"{100 * record['top5']:.2f}",
            "-" if record["forgetting"] is None else f"{100 * record['forgetting']:.2f}",
            f"{seconds.get(record['task'], 0.0):.1f}",
        )
    return table
