"""What several commands need: the console, marks for checks, settings out of words, signals."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from engram.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from engram.data.datasets import Check
    from engram.experiment.run import Stop


def console() -> Console:
    from rich.console import Console

    # a pipe or a file has no width of its own: give tables room rather than the usual 80 columns
    return Console(width=None if sys.stdout.isatty() else 160)


def print_checks(lines: Sequence[Check], prefix: str = "") -> int:
    """A line each; 1 where one failed."""
    from rich.markup import escape

    out = console()
    for line in lines:
        mark = {True: "[green]ok[/]    ", False: "[red]FAILED[/]", None: "[yellow]not checked[/]"}[line.ok]
        out.print(f"{mark} {escape(f'{prefix}{line.what}: {line.detail}')}", highlight=False, soft_wrap=True)
    return int(any(line.ok is False for line in lines))


def parse_setting(text: str) -> tuple[str, str]:
    """`training.epochs=3` -> ("training.epochs", "3")."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {text!r} is not GROUP.FIELD=VALUE, such as training.epochs=3")
    if key in ("dataset", "method", "preset", "seed", "order_seed"):
        raise ConfigError(f"--set {text!r}: use --{key.replace('_', '-')} {value} instead")
    return key.strip(), value.strip()


@contextmanager
def signals_set(stop: Stop, *, patient: bool = False) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks the run to save and stop; a second one does not wait.

    `patient`, for one of several processes, which ends afterwards: torchrun sends signals of its own to those that are
    left, up to their last moment.
    """

    def ask(number: int, frame: object) -> None:
        if stop.asked and not patient:
            raise KeyboardInterrupt
        stop.asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if patient else handler)
