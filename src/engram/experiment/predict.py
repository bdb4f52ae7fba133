"""Answers for image files, in batches: which files are meant, what the learner says of each, what could not be read."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from engram.data.datasets import resize
from engram.data.formats import IMAGE_SUFFIXES, decode_image
from engram.data.raw import Pixels
from engram.errors import DataError
from engram.experiment.reopen import OpenRun, require_classes

BATCH = 256


@dataclass(frozen=True)
class Prediction:
    """The answer for one image file."""

    path: Path
    names: tuple[str, ...]
    """The likeliest classes, best first."""
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class Unreadable:
    """A file that is no image, and why."""

    path: Path
    error: str


def image_paths(words: Iterable[str], lines: Iterable[str] = ()) -> Iterator[Path]:
    """The files that are meant: a file, a folder with all images below it, a pattern with *, or - for `lines`."""
    for word in words:
        if word == "-":
            yield from image_paths(line.rstrip("\n") for line in lines if line.strip() and line.strip() != "-")
        elif os.path.isdir(word):
            yield from _below(word)
        elif glob.has_magic(word) and not os.path.exists(word):
            found = sorted(glob.glob(word, recursive=True))
            if not found:
                raise DataError(f"{word}: no file has such a name; check the pattern")
            yield from image_paths(found)
        else:
            yield Path(word)


def _below(folder: str) -> Iterator[Path]:
    found = [
        Path(place, name)
        for place, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")
    ]
    if not found:
        raise DataError(f"{folder}: holds no image; it must hold files such as {', '.join(IMAGE_SUFFIXES)}")
    yield from sorted(found)


def predict(
    run: OpenRun,
    paths: Iterable[Path],
    *,
    top: int = 1,
    batch: int = BATCH,
    on_error: Literal["skip", "stop"] = "stop",
) -> Iterator[Prediction | Unreadable]:
    """The `top` likeliest classes of image files of any size, over all classes that the run has learned, in order.

    A file that cannot be read ends it with an error, or is told in its place where `on_error` is `skip`.
    """
    require_classes(run)
    paths = iter(paths)
    while some := list(itertools.islice(paths, batch)):
        images: list[Pixels] = []
        readable: list[Path | Unreadable] = []
        for path in some:
            try:
                images.append(_sized(decode_image(path, run.shape[0]), run.shape[1]))
                readable.append(path)
            except DataError as error:
                if on_error == "stop":
                    raise
                readable.append(Unreadable(path, str(error)))
        answers = iter(_answers(run, images, min(top, len(run.names))))
        for entry in readable:
            yield entry if isinstance(entry, Unreadable) else Prediction(entry, *next(answers))


def _sized(pixels: Pixels, size: int) -> Pixels:
    """(C, H, W) uint8 -> (C, size, size)."""
    return pixels if pixels.shape[1:] == (size, size) else resize(pixels[None], size)[0].numpy()


def _answers(run: OpenRun, images: Sequence[Pixels], top: int) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
    if not images:
        return
    scores = run.learner.scores(torch.from_numpy(np.stack(images))).float().cpu()
    best = torch.softmax(scores, 1).topk(top)
    for values, numbers in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        yield tuple(run.names[number] for number in numbers), tuple(values)
