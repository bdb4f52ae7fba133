"""Data as a user has it -> the next tasks of a model: checked, in the model's own numbers, one size, one digest.

    folder, npz, a named set, (images, labels), Dataset, ClassStream ──> Dataset ──> ClassStream after the known classes

Classes are told apart by name. A class that is known already is refused, unless the user wants it updated.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.config import StreamSettings
from engram.context import Shape
from engram.data import formats, npz
from engram.data.backbone import Backbone, embed
from engram.data.datasets import DATASETS, Dataset, Split, as_stored, assemble, every_fifth, read_raw
from engram.data.raw import ImageFiles, Pixels, Raw, RawSet, Vectors, as_vectors, broken, digest, fingerprints
from engram.data.recipe import Recipe, require_kind, require_same
from engram.data.stream import ClassStream
from engram.errors import DataError
from engram.kinds import described, is_vector, noun
from engram.model.inputs import as_array, as_pixels

LEAST_IMAGES = 4
"""Of every class, to learn from."""
UNKNOWN = "unknown"
"""The answer for an image that no class fits; no class may have this name."""


@dataclass(frozen=True)
class Intake:
    """What a model is about to learn."""

    dataset: Dataset
    """In the model's numbers: the known classes first, in their places, then the new ones."""
    stream: ClassStream
    new: tuple[str, ...]
    updated: tuple[str, ...]
    digests: dict[str, str]
    """By class, of its training images."""
    notes: tuple[str, ...]


def take_in(
    data: Any,
    settings: StreamSettings,
    *,
    shape: Shape | None,
    known: Sequence[str],
    start: int,
    update: bool,
    done: Sequence[str] = (),
    backbone: Backbone | None = None,
    recipe: Recipe | None = None,
) -> Intake:
    """The next tasks. `shape`: of the model's images, None for a new model; `start`: how many tasks came before.

    `done`: classes of the data that were learned before this start, whose training images may be deleted by now.
    `backbone`: what the data's images go through. `recipe`: by what the vectors were made that the model learned from.
    """
    tasks = settings.classes_per_task, settings.first_task
    if isinstance(data, ClassStream):
        tasks, order = (data.classes_per_task, data.first_task), [data.class_names[c] for c in data.order]
        found = data.dataset
        train = data.hand_over()
    else:
        found = read(data, settings, shape=shape, known=(*known, *done), backbone=backbone, recipe=recipe)
        train = found.take_train()
        order = brought(found)
        if settings.order is not None:
            order = [name for name in settings.order if name in order] + [n for n in order if n not in settings.order]
    order, known = [name for name in order if name not in done], tuple(dict.fromkeys((*known, *done)))
    if shape is not None:
        require_kind(is_vector(found.shape), recipe, found.name)
        require_same(recipe, found.backbone, found.name)
    _check_shape(found, shape, settings.image_size)
    _check_names(found, order, known, update, bool(done))
    _check_counts(found, order)
    names = (*known, *(name for name in order if name not in known))
    dataset = _renumbered(found, train, names)
    digests = class_digests(dataset.train, names, order)
    each, first = (min(count, len(order)) if count else count for count in tasks)
    stream = ClassStream(
        dataset,
        each or 1,
        first_task=first if not start else None,
        order=[names.index(name) for name in order],
        known=range(len(known)),
        start=start,
        validation=settings.validation,
    )
    new, updated = (tuple(name for name in order if (name in known) == old) for old in (False, True))
    notes = (*dataset.notes, *([f"image sizes: {dataset.scaling}"] if dataset.scaled else []))
    return Intake(dataset, stream, new, updated, digests, notes)


def brought(dataset: Dataset) -> list[str]:
    """The classes that it has training images of."""
    return [name for name, count in zip(dataset.class_names, dataset.train_counts, strict=True) if count]


def read(
    data: Any,
    settings: StreamSettings,
    *,
    shape: Shape | None,
    known: Sequence[str],
    backbone: Backbone | None = None,
    recipe: Recipe | None = None,
) -> Dataset:
    """Files or arrays -> images of one size, with a test part. A data set stays what it is.

    With a backbone -> vectors: it is shown the images as they lie in the files, of whatever size.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, tuple) and len(data) == 2:
        raw, name, origin = _from_arrays(*data), "arrays", "the arrays"
    elif isinstance(data, str | os.PathLike):
        raw, name, origin = files(os.fspath(data), known=known)
    else:
        raise DataError(
            f"data cannot be a {type(data).__name__}; give a folder, an .npz file, (images, labels) or a ClassStream"
        )
    own, note = name not in DATASETS, tuple[str, ...]()
    if backbone is not None:
        if raw.train.vectors:
            raise broken(origin, "holds vectors already", "leave the backbone out")
        raw = embed(as_tested(raw, name), backbone, origin)
    elif raw.train.vectors and name == "arrays":
        raw = replace(raw, backbone=recipe)  # mere numbers name nothing: whoever brings them knows them
    elif not raw.train.vectors:
        require_kind(False, recipe, origin)
    if own:
        raw, note = _with_channels(raw, shape, origin)
    dataset = assemble(name, raw, origin, holdout=settings.holdout, size=settings.image_size, by_name=own)
    dataset.notes += note
    return dataset


def files(text: str, *, known: Sequence[str] = ()) -> tuple[RawSet, str, str]:
    """What a user's words name, as the files hold it; what it is called, and where it lies.

    A model is handed on: whose disc the images lay on is nobody's business, so a path is called by its last part.
    """
    kind, place = _place_of(text)
    if not kind:
        raw, origin = read_raw(place)
        return raw, place, origin
    at = Path(os.path.expanduser(place))
    raw = _from_npz(at) if kind == "npz" else formats.read_own_folder(at, known=known)
    return raw, f"{kind}:{at.name}", str(at)


def as_tested(raw: RawSet, name: str) -> RawSet:
    """The embedded digits are one file, of which every fifth is the test part by agreement."""
    if name != "digits" or raw.test is not None:
        return raw
    images, labels = raw.train.images, raw.train.labels
    assert not isinstance(images, ImageFiles)
    mask = every_fifth(labels)
    return replace(raw, train=Raw(images[~mask], labels[~mask]), test=Raw(images[mask], labels[mask]))


def _place_of(text: str) -> tuple[str, str]:
    """What a user's words name: (folder, path), (npz, path), or ("", the name of a data set).

    What is there is taken first, so that a path may hold a colon.
    """
    at, npz = os.path.expanduser(text), text.lower().endswith(".npz")
    if os.path.isdir(at):
        return "folder", text
    if os.path.exists(at) and text not in DATASETS:
        if npz:
            return "npz", text
        raise DataError(f"{text} is a file, and no .npz file; give an .npz file, or a folder with one folder a class")
    kind, _, place = text.partition(":")
    if kind in ("folder", "npz") and place:
        return kind, place
    if npz:
        return "npz", text
    if kind in (".", "..") or os.sep in text:
        raise DataError(f"{text}: no such folder or file; check the path")
    return "", text


def _from_arrays(images: Any, labels: Any) -> RawSet:
    """Images of any layout that `as_pixels` knows, or vectors (N, D); and a class for each: names or whole numbers."""
    if not isinstance(images, np.ndarray | Tensor):
        raise DataError(f"images cannot be a {type(images).__name__}; give a numpy or torch array, or a folder")
    images, words = as_array(images), _words(labels)
    if images.shape[:1] == (0,):
        raise DataError("there are no images; give some of every class")
    if images.ndim == 2:
        vectors, note = as_vectors(images, "the arrays")
        return _named(vectors, words, note)
    grey = images.ndim == 3 or (images.ndim == 4 and 1 in (images.shape[1], images.shape[3]))
    pixels = as_pixels(images, 1 if grey else 3)
    return _named(pixels, words)


def _named(images: Pixels | Vectors, words: Sequence[str | int], note: str = "") -> RawSet:
    """Classes numbered in order of appearance."""
    if len(images) != len(words):
        kind = noun(images.shape[1:])
        raise DataError(f"there are {len(images)} {kind} and {len(words)} labels; give one label {_one_of(kind)}")
    names = tuple(dict.fromkeys(map(str, words)))
    numbers = {name: number for number, name in enumerate(names)}
    return RawSet(Raw(images, np.array([numbers[str(word)] for word in words], np.int64), note), None, names)


def _one_of(kind: str) -> str:
    return "a vector" if kind == "vectors" else "an image"


def _words(labels: Any) -> list[str | int]:
    """One a class's name, or its number."""
    plain = as_array(labels).tolist() if isinstance(labels, np.ndarray | Tensor) else labels
    if isinstance(plain, str | bytes) or not isinstance(plain, Iterable):
        raise DataError(f"labels cannot be {plain!r:.40}; give names or whole numbers, one an image")
    words = list(plain)
    if wrong := [word for word in words if isinstance(word, bool) or not isinstance(word, str | int | np.integer)]:
        raise DataError(f"label {wrong[0]!r:.40} is no class; give names or whole numbers, one an image")
    return words


def _from_npz(path: Path) -> RawSet:
    """Any whole numbers as labels; a class is called as `class_names` says, or by its number."""
    train, test, names = npz.npz_set(path)
    parts = [train] if test is None else [train, test]
    numbers = sorted({int(label) for part in parts for label in part.labels})
    if names and not (numbers[0] >= 0 and numbers[-1] < len(names)):
        raise broken(path, f"label {numbers[-1]} has no name in class_names", "name each label once")
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise broken(path, f"{twice[0]!r} stands twice in class_names", "give each class a name of its own")
    places = {number: place for place, number in enumerate(numbers)}

    def renumber(part: Raw) -> Raw:
        return replace(part, labels=np.array([places[int(label)] for label in part.labels], np.int64))

    called = tuple(names[number] if names else str(number) for number in numbers)
    backbone = npz.npz_backbone(path) if train.vectors else None
    return RawSet(renumber(train), None if test is None else renumber(test), called, backbone=backbone)


def _with_channels(raw: RawSet, shape: Shape | None, origin: str) -> tuple[RawSet, tuple[str, ...]]:
    """With the model's number of channels: grey images suit a colour model, the other way round is refused."""
    found = raw.train.channels
    if shape is None or found == shape[0] or raw.train.vectors or is_vector(shape):
        return raw, ()  # what does not go with the model's shape is told where all shapes are compared
    if found == 3:
        raise broken(origin, "holds images in colour, the model takes grey ones", "convert them, or make a new model")

    def coloured(part: Raw) -> Raw:
        images = part.images
        if isinstance(images, ImageFiles):
            return replace(part, images=replace(images, channels=3))
        return replace(part, images=np.repeat(as_stored(images), 3, axis=1))

    test = None if raw.test is None else coloured(raw.test)
    return replace(raw, train=coloured(raw.train), test=test), ("grey images, taken as coloured ones",)


def class_digests(train: Split, names: Sequence[str], classes: Sequence[str]) -> dict[str, str]:
    """By class, a digest of its training images at the model's size, whatever its number."""
    images, labels = train.images.numpy(), train.labels.numpy()
    own = {name: images[labels == names.index(name)] for name in classes}
    return {name: digest(fingerprints("train", some, np.zeros(len(some), np.int64))) for name, some in own.items()}


def _check_shape(dataset: Dataset, shape: Shape | None, size: int) -> None:
    if is_vector(dataset.shape) or (shape is not None and is_vector(shape)):
        if shape is not None and dataset.shape != shape:
            raise DataError(
                f"{dataset.name}: holds {described(dataset.shape)}, the model takes {described(shape)}; "
                f"give it {described(shape)}, or make a new model"
            )
        return
    wanted = (dataset.shape[0], size, size) if shape is None else shape
    if dataset.shape != wanted:
        found, asked = ("x".join(map(str, one)) for one in (dataset.shape, wanted))
        raise DataError(
            f"{dataset.name}: images are {found} (channels, height, width), the model takes {asked}; "
            f"load them with image_size={wanted[1]}, and convert colour to grey where the model is grey"
        )


def _check_names(dataset: Dataset, order: Sequence[str], known: Sequence[str], update: bool, begun: bool) -> None:
    """`begun`: some of the classes were learned before this start; what is left of an update may be new."""
    if again := [name for name in order if name in known]:
        if not update:
            raise DataError(
                f"{dataset.name}: class {again[0]!r} is known already; leave it out, or add these images to it by "
                "update=True (engram learn --update)"
            )
    elif update and not begun:
        raise DataError(f"{dataset.name}: no class of it is known, so there is nothing to update; leave update out")
    for name in order:
        if name == UNKNOWN or not name.strip() or not name.isprintable():
            raise DataError(f"{dataset.name}: a class cannot be called {name!r}; give it another name")


def _check_counts(dataset: Dataset, order: Sequence[str]) -> None:
    counts = dict(zip(dataset.class_names, dataset.train_counts, strict=True))
    tested = torch.bincount(dataset.test.labels, minlength=len(dataset.class_names)).tolist()
    tests = dict(zip(dataset.class_names, tested, strict=True))
    for name in order:
        if counts[name] < LEAST_IMAGES or not tests[name]:
            one = noun(dataset.shape, many=False)
            raise DataError(
                f"{dataset.name}: class {name!r} has {counts[name] + tests[name]} {one}(s), {counts[name]} of them to "
                f"learn from and {tests[name]} to test with; {LEAST_IMAGES} and 1 are the least: add {one}s of it"
            )


def _renumbered(dataset: Dataset, train: Split, names: tuple[str, ...]) -> Dataset:
    """The same images under the model's numbers; test images of classes that the model will not know are left out."""
    numbers = torch.tensor([names.index(name) if name in names else -1 for name in dataset.class_names])

    def part(split: Split) -> Split:
        labels = numbers[split.labels]
        kept = labels >= 0
        return Split(split.images, labels) if bool(kept.all()) else Split(split.images[kept], labels[kept])

    return Dataset(
        dataset.name,
        names,
        dataset.digest,
        dataset.variant,
        train=part(train),
        test=part(dataset.test),
        scaling=dataset.scaling,
        notes=dataset.notes,
        backbone=dataset.backbone,
    )
