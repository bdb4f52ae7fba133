"""The command that prints a shell's completion script."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engram.errors import missing_extra

SHELLS = ("bash", "zsh", "tcsh")
FOLDERS = ("DIR", "RUN", "OLD", "FOLDER")
"""How arguments that are folders are called; other paths are files."""


def do_completion(chosen: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        raise missing_extra("engram completion", "completion") from None
    from engram.cli.parser import build_parser

    parser = build_parser()
    for action in actions(parser):
        if action.type is Path:
            action.complete = shtab.DIRECTORY if action.metavar in FOLDERS else shtab.FILE  # type: ignore[attr-defined]
        elif names := known_names(action):
            action.choices = names
    print(shtab.complete(parser, chosen.shell))
    return 0


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every argument of a command and of those below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            below: dict[str, Any] = action.choices
            for command in below.values():
                yield from actions(command)


def known_names(action: argparse.Action) -> list[str]:
    """What an argument may be called, where it is one name out of a known list."""
    from engram.cli.catalogue import names

    known = names()
    topic = {"D": "datasets", "NAME": "datasets", "M": "methods", "PRESET": "presets"}.get(str(action.metavar))
    return known[topic] if topic else []
