"""Where a run comes from: `config.json` -> what was set, `environment.json` -> the machine and the code."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engram.config import ADDED
from engram.opening import read_regular
from engram.report.fields import plain
from engram.report.records import Problem, other_format

LARGEST = 10_000_000
"""Bytes of such a file; a start adds half a kilobyte to `environment.json`."""


@dataclass(frozen=True)
class Machine:
    """Where a run was started. None: not on record."""

    commit: str | None = None
    processor: str | None = None
    threads: int | None = None

    @property
    def maker(self) -> str | None:
        """`AMD EPYC` -> `AMD`, `Intel(R) Xeon(R) Processor` -> `Intel`"""
        return self.processor and re.split(r"[\s(]", self.processor, maxsplit=1)[0]


def settings(path: Path, problems: list[Problem]) -> dict[str, str] | None:
    """What decides the result but for the seeds. `runtime` (threads, device) changes no more than the last bits, its
    precision aside, and the preset's name says nothing that its values do not. What an older version did not write
    has the value that stood for it then."""
    try:
        written = json.loads(read_regular(path, LARGEST))
        if why := other_format(written):
            problems.append(Problem(str(path), f"{why}: the run is not averaged with others"))
            return None
        groups = {name: group for name, group in written["config"].items() if isinstance(group, dict)}
        precision = groups.pop("runtime").get("precision", "float32")
        if precision != "float32":
            groups["runtime"] = {"precision": precision}
        for name in groups.keys() & ADDED.keys():
            groups[name] = ADDED[name] | groups[name]
        groups.get("masks", {}).pop("counts_of", None)  # of each seed another run
        if not groups.get("statistics", {}).get("kept"):  # a second memory that is not there decides nothing
            groups.pop("statistics", None)
        return {f"{g}.{name}": plain(_value(value)) for g, group in groups.items() for name, value in group.items()}
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


def machine(path: Path) -> Machine:
    """Where the run was first started, and with which code."""
    try:
        start = json.loads(read_regular(path, LARGEST))[0]
        commit, processor, threads = (start.get(name) for name in ("commit", "processor", "threads"))
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return Machine()
    return Machine(
        plain(commit)[:9] if isinstance(commit, str) else None,
        plain(processor) if isinstance(processor, str) else None,
        threads if type(threads) is int else None,
    )
