"""What `engram predict` costs: its start, reading files, and answering, each by itself; one thread.

    python benchmarks/predict.py [--files 5000] [--rounds 3] [--model FILE]

PNGs are the embedded digits at 32x32, grey. Photographs are JPEGs of 500x400 in colour, made up: random fields,
smooth on every scale from the whole image down to two pixels, plus noise, so that they compress like photographs. A few
hundred different files are written and read over and over: they come from memory, not from a disc. The model is made
here: the digits, by the preset `fast`. CPU seconds count, so that other processes at work do little harm.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import clock
from engram.cli import call
from engram.data.datasets import load_dataset
from engram.data.raw import Pixels
from engram.model.model import Model
from engram.model.predict import read_image

PHOTOGRAPH = (400, 500)
"""Height and width."""
DIFFERENT = {"PNG": 500, "JPEG": 200}
"""How many different files there are of each kind."""
BAR = 2000


def photograph(seed: int) -> Pixels:
    """(H, W, 3): fields of 4, 8, 16, … cells, each half as strong as the one before, and noise."""
    draws, (height, width) = np.random.default_rng(seed), PHOTOGRAPH
    field = np.zeros((height, width, 3), np.float32)
    for octave, cells in enumerate((4, 8, 16, 32, 64, 128, 256)):
        grid = draws.normal(0, 45 / 1.7**octave, (cells, cells, 3)).astype(np.float32)
        planes = [Image.fromarray(grid[..., c]).resize((width, height), Image.Resampling.BICUBIC) for c in range(3)]
        field += np.stack([np.asarray(plane) for plane in planes], -1)
    return (128 + field + draws.normal(0, 4, field.shape)).clip(0, 255).astype(np.uint8)


def as_jpeg(pixels: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def write_files(folder: Path, different: dict[str, int]) -> dict[str, list[Path]]:
    """Both kinds."""
    digits = load_dataset("digits").test.images[:, 0].numpy()
    kinds: dict[str, list[Path]] = {"PNG": [], "JPEG": []}
    for number in range(different["PNG"]):
        kinds["PNG"].append(folder / f"{number}.png")
        Image.fromarray(digits[number % len(digits)]).save(kinds["PNG"][-1])
    for number in range(different["JPEG"]):
        kinds["JPEG"].append(folder / f"{number}.jpg")
        kinds["JPEG"][-1].write_bytes(as_jpeg(photograph(number)))
    return kinds


def command(model: Path) -> list[str]:
    return [sys.executable, "-m", "engram", "predict", str(model), "-", "--format", "jsonl"]


def first_answer(model: Path, path: Path) -> float:
    """Seconds from the start of the process to its first line."""
    began = time.perf_counter()
    with subprocess.Popen(command(model), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{path}\n")
        process.stdin.close()
        assert process.stdout.readline()
        return time.perf_counter() - began


def command_cpu(model: Path, path: Path) -> float:
    """CPU seconds of the whole process for one file: nearly all of it is the start."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command(model), input=f"{path}\n", capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def answer_all(model: Path, paths: Sequence[Path]) -> None:
    """The command in this process, which has started already: opens the model, reads, answers, writes lines."""
    said, given = io.StringIO(), sys.stdin
    sys.stdin = io.StringIO("".join(f"{path}\n" for path in paths))
    try:
        with contextlib.redirect_stdout(said):
            assert call(command(model)[3:]) == 0
    finally:
        sys.stdin = given
    assert said.getvalue().count("\n") == len(paths)


def cpu_seconds(way: Callable[[], object]) -> float:
    began = time.process_time()
    way()
    return time.process_time() - began


def read_all(paths: Sequence[Path], model: Model) -> list[Pixels]:
    """Each as the network sees it, (C, H, W) uint8."""
    _, (channels, size, _) = model.ready("answer")
    return [read_image(path, channels, size) for path in paths]


def measure(model: Path, paths: Sequence[Path], rounds: int) -> dict[str, float]:
    """CPU seconds of the parts, best of several rounds."""
    opened = Model.open(model)
    images = torch.from_numpy(np.stack(read_all(paths, opened)))
    ways: dict[str, Callable[[], float]] = {
        "reading": partial(cpu_seconds, partial(read_all, paths, opened)),
        "answering": partial(cpu_seconds, partial(opened.answer, images)),
        "command": partial(cpu_seconds, partial(answer_all, model, paths)),
        "start": partial(command_cpu, model, paths[0]),
    }
    times = [{name: way() for name, way in ways.items()} for _ in range(rounds)]
    return {name: min(one[name] for one in times) for name in ways}


def make_model(path: Path) -> None:
    model = Model.create(preset="fast", settings={"runtime.threads": 1})
    model.learn("digits")
    model.save(path)


def main() -> None:
    asks = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asks.add_argument("--files", type=int, default=5000, help="files answered")
    asks.add_argument("--rounds", type=int, default=3)
    asks.add_argument("--model", type=Path, help="a model file (default: one is made)")
    given = asks.parse_args()
    torch.set_num_threads(1)
    print(clock.machine())
    with tempfile.TemporaryDirectory() as folder:
        model = given.model or Path(folder, "digits.engram")
        if given.model is None:
            make_model(model)
        kinds = write_files(Path(folder), DIFFERENT)
        start = min(first_answer(model, kinds["PNG"][0]) for _ in range(given.rounds))
        print(f"\nfirst answer after {start:.2f} s")
        print("files per CPU second reading answering   command  start, CPU s")
        for kind, some in kinds.items():
            paths = list(itertools.islice(itertools.cycle(some), given.files))
            seconds = measure(model, paths, given.rounds)
            parts = "".join(f"{given.files / seconds[name]:10,.0f}" for name in ("reading", "answering", "command"))
            size = sum(path.stat().st_size for path in some) / len(some) / 1e3
            print(f"{kind:4} of {size:4.1f} kB   {parts} {seconds['start']:13.2f}")
    print(f"\nbar: {BAR:,} PNGs of 32x32 per CPU second after the start")


if __name__ == "__main__":
    main()
