"""How many entries masks open: what a control that takes as many at random is told."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from engram.errors import ConfigError

RECORDS = "records.jsonl"


@dataclass(frozen=True)
class Opened:
    """Entries of one layer's mask that a task opens."""

    free: int
    """of those that were free before it"""
    reserved: int
    """of those that earlier tasks rely on"""

    @classmethod
    def of(cls, mask: Tensor, reserved: Tensor) -> Opened:
        """Count, given a binary mask and what was reserved before its task."""
        return cls(int((mask & ~reserved).sum()), int((mask & reserved).sum()))


def read_counts(folder: str, task: int) -> list[Opened]:
    """By layer, what the masks of a recorded run opened at a task, before units were left out."""
    path = Path(folder) / RECORDS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines if '"growth"' in line]
        layers = next(one["layers"] for one in records if one["kind"] == "growth" and one["task"] == task)
        return [Opened(layer["opened_free"], layer["opened_reserved"]) for layer in layers]
    except OSError as error:
        raise ConfigError(f"masks.counts_of={folder!r}: {error.strerror}; name the folder of a run") from None
    except (StopIteration, KeyError, TypeError, ValueError):
        raise ConfigError(
            f"masks.counts_of={folder!r} does not say what masks opened at task {task + 1}; name a run of dgmw or dgma "
            "with as many tasks"
        ) from None
