"""What a large set costs: a second start on many files, and the memory of a run on many images.

    python benchmarks/stream.py second-start [--images 100000] [--first]
    python benchmarks/stream.py memory [--images 1000000] [--tasks 10]

Sets are made up in a temporary folder (`--at FOLDER`: there, and kept). Runs are processes of their own, by the method
`ncm` with few features, so that what is measured is the data's. Seconds of the clock and of the processor: on a busy
machine the second is what the start costs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

import clock
from engram.data.store import Facts, Writer, whole_folder

CLASSES, SIDE = 100, 32
UNTIL_FIRST_TASK = """
import sys
from engram.experiment import loop
from engram.cli import call

def stop(self, task, *rest):
    raise SystemExit(0 if len(task) else "an empty task")

loop.TaskLoop._learn = stop
sys.exit(call(sys.argv[1:]))
"""
NCM = ["--method", "ncm", "--set", "features.filters=8", "--quiet"]


@dataclass(frozen=True)
class Cost:
    """Of a process."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def cost_of(command: list[str], cache: Path) -> Cost:
    """Run it to its end."""
    began = time.monotonic()
    process = subprocess.Popen(command, env={**os.environ, "ENGRAM_CACHE": str(cache)})
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return Cost(time.monotonic() - began, used.ru_utime + used.ru_stime, _bytes(used))


def _bytes(used: resource.struct_rusage) -> int:
    return used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@contextmanager
def place(at: Path | None) -> Iterator[Path]:
    """Where the made-up set goes."""
    if at is not None:
        at.mkdir(parents=True, exist_ok=True)
        yield at
    else:
        with tempfile.TemporaryDirectory(prefix="engram-stream-") as made:
            yield Path(made)


def pixels(number: int, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """(count, 3, SIDE, SIDE): a colour and a place of the class's own, and noise."""
    draws = np.random.default_rng(number)
    found = draws.integers(0, 128, (count, 3, SIDE, SIDE), dtype=np.uint8)
    found += draws.integers(0, 128, (1, 3, 4, 4), dtype=np.uint8).repeat(8, 2).repeat(8, 3)
    return found


# ---------------------------------------------------------------- second start


def make_folder(folder: Path, images: int) -> None:
    """PNG files, as many of each class."""
    for number in range(CLASSES):
        own = folder / f"class{number:03d}"
        own.mkdir(parents=True)
        for place, image in enumerate(pixels(number, images // CLASSES)):
            Image.fromarray(image.transpose(1, 2, 0)).save(own / f"{place:06d}.png", compress_level=1)


def second_start(at: Path, images: int, *, first: bool = False, rounds: int = 3) -> dict[str, Cost]:
    """From the command to the moment when the first task begins; and what the copy takes."""
    folder = at / f"png-{images}"
    if not folder.exists():
        make_folder(folder, images)
    data, cache = f"folder:{folder}", at / "cache"
    start = [sys.executable, "-c", UNTIL_FIRST_TASK, "run", "--dataset", data, *NCM, "--out"]
    found = {}
    with tempfile.TemporaryDirectory(dir=at) as out:
        if first:
            found["without a copy"] = cost_of([*start, f"{out}/first"], at / "no-cache")
        prepare = [sys.executable, "-m", "engram", "data", "prepare", data, "--quiet"]
        found["engram data prepare"] = cost_of(prepare, cache)
        for n in range(rounds):
            found[f"second start {n + 1}"] = cost_of([*start, f"{out}/second{n}"], cache)
    return found


# ---------------------------------------------------------------- memory


def make_store(folder: Path, images: int) -> None:
    """A prepared set without a source, written class by class."""
    each = images // CLASSES
    labels = np.repeat(np.arange(CLASSES), each)
    with whole_folder(folder) as building:
        writer = Writer(building, shape=(3, SIDE, SIDE), labels={"train": labels})
        for number in range(CLASSES):
            writer.add("train", pixels(number, each))
        names = tuple(f"class{number:03d}" for number in range(CLASSES))
        sizes = Counter({(SIDE, SIDE): len(labels)})
        writer.finish(Facts("made up", names, (3, SIDE, SIDE), SIDE, "0" * 64, sizes))


def memory(at: Path, images: int, tasks: int) -> tuple[Cost, list[int]]:
    """A run of ten classes a task, a fifth of the images held out for the test; its peak, and that after each task."""
    folder = at / f"store-{images}"
    if not folder.exists():
        make_store(folder, images)
    order = ",".join(f"class{number:03d}" for number in range(10 * tasks))
    own = ["--set", "stream.classes_per_task=10", "--set", f"stream.order={order}"]
    with tempfile.TemporaryDirectory(dir=at) as out:
        command = [sys.executable, "-m", "engram", "run", "--dataset", f"prepared:{folder}", *NCM, *own]
        cost = cost_of([*command, "--out", f"{out}/run"], at / "no-cache")
        lines = map(json.loads, Path(out, "run", "records.jsonl").read_text().splitlines())
        return cost, [line["peak_bytes"] for line in lines if line["kind"] == "timing"]


# ---------------------------------------------------------------- command


def do_second_start(given: argparse.Namespace, at: Path) -> None:
    print(f"\n{given.images:,} PNG files of {SIDE}x{SIDE} in {CLASSES} folders, seconds (bar: 5)")
    for name, cost in second_start(at, given.images, first=given.first).items():
        print(f"{name:22}  {cost.seconds:7.2f}  cpu {cost.cpu_seconds:7.2f}  peak {cost.peak_bytes / 2**20:,.0f} MB")


def do_memory(given: argparse.Namespace, at: Path) -> None:
    cost, peaks = memory(at, given.images, given.tasks)
    print(f"\n{given.images:,} colour images of {SIDE}x{SIDE}, ten of {CLASSES} classes a task (bar: 1,024 MB)")
    print(f"peak {cost.peak_bytes / 2**20:,.0f} MB, {cost.seconds:,.0f} s, cpu {cost.cpu_seconds:,.0f} s")
    print(f"after each task, MB: {', '.join(f'{peak / 2**20:,.0f}' for peak in peaks)}")


WAYS: dict[str, tuple[Callable[[argparse.Namespace, Path], None], int]] = {
    "second-start": (do_second_start, 100_000),
    "memory": (do_memory, 1_000_000),
}


def main() -> None:
    asks = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asks.add_argument("what", choices=WAYS)
    asks.add_argument("--images", type=int, help="how many to make up (default: as the bars have it)")
    asks.add_argument("--tasks", type=int, default=10, help="of the memory's run (default: 10)")
    asks.add_argument("--first", action="store_true", help="time the start without a copy, too")
    asks.add_argument("--at", type=Path, help="where the set goes, to be used again (default: a temporary folder)")
    given = asks.parse_args()
    act, images = WAYS[given.what]
    given.images = given.images or images
    print(clock.machine())
    with place(given.at) as at:
        act(given, at)


if __name__ == "__main__":
    main()
