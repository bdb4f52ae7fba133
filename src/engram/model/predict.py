"""Answers for image files, in batches: which files are meant, what the model says of each, what could not be read."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from engram.data.backbone import Backbone
from engram.data.datasets import resize
from engram.data.images import IMAGE_SUFFIXES, decode_image
from engram.data.raw import Pixels
from engram.errors import DataError
from engram.kinds import is_vector
from engram.model.model import BATCH, Model


@dataclass(frozen=True)
class Prediction:
    """The answer for one image file."""

    path: Path
    names: tuple[str, ...]
    """The likeliest classes, best first."""
    probabilities: tuple[float, ...]
    known: bool = True
    """Whether a class fits; else the answer is "unknown", and the names are the nearest."""
    row: int | None = None
    """Of vectors: which one of the file's, counted from 0."""

    @property
    def place(self) -> str:
        """The file, and for a vector its row.

        >>> Prediction(Path("v.npz"), ("a",), (1.0,), row=3).place
        'v.npz:3'
        """
        return str(self.path) if self.row is None else f"{self.path}:{self.row}"


@dataclass(frozen=True)
class Unreadable:
    """A file that is no image, and why."""

    path: Path
    error: str


def image_paths(words: Iterable[str], lines: Iterable[str] = ()) -> Iterator[Path]:
    """The files that are meant: a file, a folder with all images below it, a pattern with *, or - for `lines`."""
    for word in words:
        if word == "-":
            yield from image_paths(line.rstrip("\r\n") for line in lines if line.strip() and line.strip() != "-")
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
    model: Model,
    paths: Iterable[Path],
    *,
    top: int = 1,
    batch: int = BATCH,
    on_error: Literal["skip", "stop"] = "stop",
    unknown: bool = True,
    backbone: Backbone | str | Path | None = None,
) -> Iterator[Prediction | Unreadable]:
    """The `top` likeliest classes of image files of any size, over all classes that the model knows, in order.

    A file that cannot be read ends it with an error, or is told in its place where `on_error` is `skip`.
    `unknown=False`: every image is taken as one of a known class. `backbone`: see `Model.predict`.
    """
    _, shape = model.ready("answer")
    through = model.through(backbone)
    if through is None and is_vector(shape):
        yield from _rows(model, paths, top=top, batch=batch, on_error=on_error, unknown=unknown)
        return
    channels, *size = shape if through is None else through.shape
    paths = iter(paths)
    while some := list(itertools.islice(paths, batch)):
        images: list[Pixels] = []
        readable: list[Path | Unreadable] = []
        failure: DataError | None = None
        for path in some:
            try:
                images.append(read_image(path, channels, (size[0], size[1])))
                readable.append(path)
            except DataError as error:
                if on_error == "stop":  # after the answers for what came before it, however large a batch is
                    failure = error
                    break
                readable.append(Unreadable(path, str(error)))
        answers = _answers(model, images, min(top, len(model.classes)), unknown, through)
        for entry in readable:
            yield entry if isinstance(entry, Unreadable) else Prediction(entry, *next(answers))
        if failure is not None:
            raise failure


def _rows(
    model: Model, paths: Iterable[Path], *, top: int, batch: int, on_error: Literal["skip", "stop"], unknown: bool
) -> Iterator[Prediction | Unreadable]:
    """The same of vectors: each row of `features` in .npz files has an answer of its own."""
    for path in paths:
        try:
            vectors = model.examples(path)
        except DataError as error:
            if on_error == "stop":
                raise
            yield Unreadable(path, str(error))
            continue
        numbers = itertools.count()
        for some in torch.split(vectors, batch):
            for answer in _answered(model, some, min(top, len(model.classes)), unknown):
                yield Prediction(path, *answer, row=next(numbers))


def read_image(path: Path, channels: int, size: int | tuple[int, int]) -> Pixels:
    """(channels, height, width) uint8, scaled by the function that scales images to learn from: the very same pixels.

    JPEGs are decoded whole: at half the size (`Image.draft`) they take half the time, but of two photographs a third
    of the pixels came out otherwise, some by 15 grey levels.
    """
    pixels = decode_image(path, channels)
    return resize(pixels[None], size)[0].numpy()


def _answers(
    model: Model, images: list[Pixels], top: int, unknown: bool, through: Backbone | None
) -> Iterator[tuple[tuple[str, ...], tuple[float, ...], bool]]:
    """Names and probabilities of the likeliest classes, and whether one of them fits, for each image."""
    if images:
        shown = torch.from_numpy(np.stack(images))
        yield from _answered(model, shown if through is None else through.features(shown), top, unknown)


def _answered(
    model: Model, images: Tensor, top: int, unknown: bool
) -> Iterator[tuple[tuple[str, ...], tuple[float, ...], bool]]:
    answers = model.answer(images)
    known = answers.known.tolist() if unknown else [True] * len(images)
    best = answers.probabilities.topk(top)
    for values, numbers, fits in zip(best.values.tolist(), best.indices.tolist(), known, strict=True):
        yield tuple(model.classes[number] for number in numbers), tuple(values), fits
