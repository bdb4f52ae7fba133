"""What several commands need: the console, lines, marks for checks, settings out of words, signals."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engram.config import TOP, groups_of
from engram.errors import ConfigError, EngramError
from engram.report.fields import plain

if TYPE_CHECKING:
    from rich.console import Console

    from engram.data.datasets import Check
    from engram.experiment.loop import Stop


def console() -> Console:
    from engram.cli.terminal import PlainConsole

    return PlainConsole()


def say(text: str) -> None:
    """A line of output; names in it may hold anything."""
    print(plain(text))


def complain(text: str) -> None:
    """A line for whoever watches, beside the output; where it cannot be written, there is nobody to tell."""
    with suppress(OSError):
        print(plain(text), file=sys.stderr)


def require_other_file(flag: str, out: Path, model: Path) -> None:
    """What a command writes may not take the place of the model that it reads."""
    if os.path.isdir(out):
        raise ConfigError(f"{flag} {out} is a folder; name a file")
    if out.exists() and model.exists() and out.resolve() == model.resolve():
        raise ConfigError(f"{flag} {out} is the model itself; name another file")


def print_checks(
    lines: Iterable[Check], *, quiet: bool = False, last_line: Callable[[Sequence[Check]], str] | None = None
) -> int:
    """A line each; `quiet`: for those that failed. 1 where one failed. The last line names all that was not checked.

    `last_line`: what it is to say instead; it is left out where all is quiet and good.
    """
    from rich.markup import escape

    out, told = console(), []
    for line in lines:
        mark = {True: "[green]ok[/]    ", False: "[red]FAILED[/]", None: "[yellow]not checked[/]"}[line.ok]
        if line.ok is False or not quiet:
            out.print(f"{mark} {escape(f'{line.what}: {line.detail}')}", soft_wrap=True)
        told.append(line)
    unchecked = [line.what for line in told if line.ok is None]
    if last_line is not None:
        if not quiet or not all(line.ok for line in told):
            out.print(escape(last_line(told)), soft_wrap=True)
    elif unchecked:
        out.print(f"[yellow]not checked[/]: {escape(', '.join(unchecked))}", soft_wrap=True)
    return int(any(line.ok is False for line in told))


def tell_settings(folder: Path) -> None:
    """What the run in a folder was set to, beside the output. A broken folder is for the command itself to name."""
    from engram.experiment.folder import read_origin

    with suppress(EngramError):
        config = read_origin(folder).config
        complain(f"{folder}: {config.method} on {config.dataset}, seed {config.seed}")
        for name, group in groups_of(config).items():
            complain(f"{name}: {', '.join(f'{key}={value}' for key, value in vars(group).items())}")


def parse_setting(text: str) -> tuple[str, str]:
    """`classifier.epochs=3` -> ("classifier.epochs", "3")."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {text!r} is not GROUP.FIELD=VALUE, such as classifier.epochs=3")
    if key in TOP:
        raise ConfigError(f"--set {text!r}: use --{key.replace('_', '-')} {value} instead")
    return key.strip(), value.strip()


def preparation(chosen: argparse.Namespace) -> dict[str, Any]:
    """How images are prepared for a backbone, out of the words: what was not said, the backbone knows."""
    words = {name: getattr(chosen, name) for name in ("size", "mean", "std", "output")}
    made = {name: value for name, value in words.items() if value is not None}
    return made | {name: _values(name, made[name]) for name in ("mean", "std") if name in made}


def _values(name: str, text: str) -> list[float] | None:
    """`0.5`, `0.485,0.456,0.406` or `none`."""
    if text == "none":
        return None
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--{name} {text!r}: give one number, or one a channel such as 0.5,0.5,0.5, or none"
        ) from None


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
