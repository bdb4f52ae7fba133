"""Many classes, one at a time: what a task takes and holds as their number grows. Tiny settings, made-up data.

    python benchmarks/classes.py [--classes 300] [--kind vectors|images] [--method dgmw] [--profile FILE]
                                 [--set GROUP.FIELD=VALUE …]

A whole run in a folder that is thrown away: learning, evaluation, retention, records, checkpoints. Times are CPU
seconds, which a busy machine disturbs least. Memory is what the process holds when a task is done. A task's figure is
the median of the tasks around it; the last line is the ratio of the last task to the tenth.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import clock
import fast_forward
from engram.experiment import checkpoint
from engram.experiment.progress import Display
from engram.experiment.records import read_records
from engram.experiment.request import Request
from engram.experiment.run import execute

TINY: dict[str, Any] = {
    "generator.width": 2,
    "generator.latent_dim": 8,
    "generator.bn_batches": 2,
    "critic.width": 2,
    "gan.epochs": 4,
    "gan.steps": 5,
    "gan.batch_size": 8,
    "gan.rare_power": 0.0,
    "masks.fraction": 0.5,
    "masks.lambda_ru": 0.0,
    "masks.max_units_ratio": 2.0,
    "masks.candidates": 2.0,
    "replay.images": 1200,
    "classifier.epochs": 2,
    "classifier.width": 4,
    "classifier.batch_size": 64,
    "runtime.checkpoint_seconds": 1e9,
    "runtime.threads": 1,
}
AROUND = 3
"""A task's figure is the median of those so many before and behind it."""


@dataclass(frozen=True)
class Cost:
    """Of one task."""

    learning: float
    evaluation: float
    saving: float
    resident: float
    """MB that the process holds."""
    checkpoint: float
    """MB in the folder, records aside."""
    records: float
    """KB of this task."""

    @property
    def seconds(self) -> float:
        """All of the task."""
        return self.learning + self.evaluation + self.saving


class Watch(Display):
    """Takes the figures when a task is done."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.costs, self.saved, self.written, self.began = (
            folder,
            list[Cost](),
            0.0,
            0,
            time.process_time(),
        )

    def done(self, record: Any, seconds: float) -> None:
        """A task is learned, tested and saved."""
        timing = next(r for r in reversed(list(read_records(self.folder))) if r["kind"] == "timing")
        files = {path.name: path.stat().st_size for path in self.folder.rglob("*") if path.is_file()}
        records, now = files.pop("records.jsonl"), time.process_time()
        learning = timing["cpu_seconds"]
        cost = Cost(
            learning=learning,
            evaluation=now - self.began - learning - self.saved,
            saving=self.saved,
            resident=resident_bytes() / 1e6,
            checkpoint=sum(files.values()) / 1e6,
            records=(records - self.written) / 1e3,
        )
        self.costs.append(cost)
        self.saved, self.written, self.began = 0.0, records, time.process_time()


def resident_bytes() -> int:
    """What this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def write_data(path: Path, classes: int, kind: str, *, each: int = 24) -> Path:
    """An .npz of clusters, or of noise around a picture a class."""
    draws = np.random.default_rng(0)
    labels = np.arange(classes).repeat(each)
    if kind == "vectors":
        middle = draws.normal(size=(classes, 32)) * 3
        features = (middle[labels] + draws.normal(size=(len(labels), 32))).astype(np.float32)
        np.savez(path, features=features, labels=labels)
    else:
        pictures = draws.integers(0, 200, (classes, 8, 8, 1)).repeat(4, 1).repeat(4, 2)
        images = pictures[labels] + draws.integers(0, 50, (len(labels), 32, 32, 1))
        np.savez(path, images=images.astype(np.uint8), labels=labels)
    return path


def costs(classes: int, kind: str, method: str, settings: Mapping[str, Any], profile: Path | None = None) -> list[Cost]:
    """Task by task."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        data, folder = write_data(Path(place) / "data.npz", classes, kind), Path(place) / "run"
        watch, save = Watch(folder), checkpoint.save

        def timed(*given: Any, **named: Any) -> Any:
            began = time.process_time()
            entry = save(*given, **named)
            watch.saved += time.process_time() - began
            return entry

        stack.enter_context(mock.patch.object(checkpoint, "save", timed))
        request = Request(f"npz:{data}", method, "default", 0, None, {**TINY, **settings})
        if profile is None:
            execute(request, folder, display=watch)
        else:
            with cProfile.Profile() as profiler:
                execute(request, folder, display=watch)
            profiler.dump_stats(profile)
        return watch.costs


def at(found: Sequence[Cost], task: int) -> Cost:
    """The median around a task, counted from 1."""
    some = found[max(0, task - 1 - AROUND) : task + AROUND]
    return Cost(*(statistics.median(column) for column in zip(*map(astuple, some), strict=True)))


def main() -> None:
    asks = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asks.add_argument("--classes", type=int, default=300)
    asks.add_argument("--kind", choices=["vectors", "images"], default="vectors")
    asks.add_argument("--method", default="dgmw")
    asks.add_argument("--profile", type=Path, metavar="FILE", help="write cProfile's figures of the whole run")
    fast_forward.add_settings(asks)
    given = asks.parse_args()
    print(clock.machine())
    found = costs(given.classes, given.kind, given.method, dict(given.settings), given.profile)
    names = [spec.name for spec in fields(Cost)]
    print("task  seconds  " + "  ".join(f"{name:>10}" for name in names))
    for task in [t for t in (1, 10, 30, 100, 200, 300, 500, 1000) if t <= len(found)]:
        one = at(found, task)
        print(f"{task:4}  {one.seconds:7.3f}  " + "  ".join(f"{value:10.3f}" for value in astuple(one)))
    first, last = at(found, 10), at(found, len(found))
    ratios = "  ".join(f"{b / max(a, 1e-9):10.2f}" for a, b in zip(astuple(first), astuple(last), strict=True))
    print(f"{len(found)}/10  {last.seconds / first.seconds:7.2f}  {ratios}")


if __name__ == "__main__":
    main()
