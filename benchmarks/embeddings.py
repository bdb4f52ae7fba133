"""What one class more costs in a model of embeddings: learning, calibration, saving and the card; two threads.

    python benchmarks/embeddings.py [--known 150] [--numbers 384] [--rounds 5] [--model FILE --add FILE.npz]

By itself the vectors are made up: classes of 100, each around a point of its own on a sphere. The model knows some of
them, learned ten at a time; each round learns one more in the running process and writes the model and its card. With
--model and --add it opens a model of yours, a copy of it grows, and the classes of the file are added one by one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import clock
from engram.data.npz import read_npz
from engram.model.model import Model

EACH = 100
"""Vectors of a class."""
AT_A_TIME = 10
BAR, AIM = 5.0, 2.0


def made_up(classes: int, numbers: int) -> Iterator[Any]:
    """One array (EACH, numbers) a class, of unit length, as encoders of sentences give them."""
    draws = np.random.default_rng(0)
    for _ in range(classes):
        point = draws.normal(size=numbers)
        vectors = point + 0.8 * draws.normal(size=(EACH, numbers))
        yield (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def known_model(classes: list[Any]) -> Model:
    """A model that knows these."""
    model = Model.create(settings={"stream.classes_per_task": AT_A_TIME})
    for start in range(0, len(classes), AT_A_TIME):
        some = classes[start : start + AT_A_TIME]
        names = [f"class {start + place}" for place, vectors in enumerate(some) for _ in vectors]
        model.learn(np.concatenate(some), names)
    return model


def of_file(path: Path) -> list[Any]:
    """The vectors of each class of an .npz file."""
    train = read_npz(path).train
    vectors, labels = np.asarray(train.images), train.labels
    return [vectors[labels == label] for label in np.unique(labels).tolist()]


def seconds_of_one_more(model: Model, vectors: Any, name: str, out: Path) -> tuple[float, float]:
    """Of the clock and of all cores: from the vectors in memory to the model and its card on the disc."""
    start, began = time.perf_counter(), time.process_time()
    model.learn(vectors, [name] * len(vectors))
    model.save(out)
    return time.perf_counter() - start, time.process_time() - began


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    words.add_argument("--known", type=int, default=150)
    words.add_argument("--numbers", type=int, default=384)
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--threads", type=int, default=2)
    words.add_argument("--model", type=Path)
    words.add_argument("--add", type=Path)
    asked = words.parse_args()
    torch.set_num_threads(asked.threads)
    print(clock.machine())
    if asked.model:
        model, new = Model.open(asked.model), of_file(asked.add)[: asked.rounds]
    else:
        classes = list(made_up(asked.known + asked.rounds, asked.numbers))
        model, new = known_model(classes[: asked.known]), classes[asked.known :]
    known = len(model.classes)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "grown.engram"
        spent = [seconds_of_one_more(model, vectors, f"new {n}", out) for n, vectors in enumerate(new)]
        size = out.stat().st_size
    by_clock, by_cores = zip(*spent, strict=True)
    found = {"known": known, "numbers": int(new[0].shape[1]), "rounds": len(spent), "file_bytes": size}
    found |= {"best_seconds": round(min(by_clock), 2), "mean_seconds": round(sum(by_clock) / len(spent), 2)}
    print(json.dumps({**found, "best_core_seconds": round(min(by_cores), 2), "bar": BAR, "aim": AIM}))


if __name__ == "__main__":
    main()
