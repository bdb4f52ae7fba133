"""`.npz` files: images or vectors with labels, each array read within what the zip archive and its header promise.

Whole, or in pieces: images then stay in the file until they are asked for, a block at a time, by the same checks.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from engram.data import limits
from engram.data.raw import (
    InPieces,
    Labels,
    Pixels,
    Raw,
    RawSet,
    Vectors,
    as_vectors,
    broken,
    check_labels,
    check_vectors,
    paired,
)
from engram.data.reading import decoding, fill, opened, size_of, within
from engram.data.recipe import Recipe, recipe_of
from engram.errors import DataError

KINDS = ("images", "features")
NPZ_ARRAYS = (*(f"{part}{kind}" for part in ("", "train_", "test_") for kind in (*KINDS, "labels")), "class_names")
WHAT = "no readable .npz file"
WRITE = "write it with numpy.savez(path, images=..., labels=...), or features=... for vectors"
HEADER = 10_000
"""Bytes before an array: numpy itself reads no more without being told to."""
STORE = "write it with numpy.savez, which does not compress, or take fewer"


# ---------------------------------------------------------------- arrays


@dataclass(frozen=True)
class _Header:
    """What stands before the values of an array."""

    shape: tuple[int, ...]
    by_column: bool
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        """Of the values."""
        return math.prod(self.shape) * self.dtype.itemsize

    def bare(self) -> npt.NDArray[Any]:
        """An array of this shape and type, without memory for its values."""
        return np.broadcast_to(np.zeros((), self.dtype), self.shape)

    def can_wait(self, key: str) -> bool:
        """Whether its examples can be read one after the other. What is of a wrong type is read, to say all of it."""
        return not self.by_column and len(self.shape) > 1 and self.dtype.kind == ("f" if _of_vectors(key) else "u")


def _of_vectors(key: str) -> bool:
    return key.endswith("features")


@dataclass(frozen=True)
class _Content:
    """What was found in a file."""

    names: list[str]
    """Of all its arrays."""
    arrays: dict[str, npt.NDArray[Any]]
    """Those that were wanted."""
    waiting: dict[str, _Header]
    """Of them, those whose values are still in the file: they have shape and type, and no memory."""


def _read(path: Path, wanted: Collection[str], remedy: str, *, in_pieces: bool = False) -> _Content:
    """The wanted arrays of an .npz file. `in_pieces`: examples are left in the file where that can be done."""
    with decoding(path, WHAT, remedy), opened(path) as file:
        if _is_npy(file):
            raise broken(path, "a single array, no .npz file", remedy)
        with zipfile.ZipFile(file) as archive:
            content = _Content([one.removesuffix(".npy") for one in archive.namelist()], {}, {})
            for key, member in _members(archive, wanted, path).items():
                with archive.open(member) as packed:
                    values = cast(io.BufferedIOBase, packed)
                    header = _header(values, member.file_size, path, key)
                    if in_pieces and key.endswith(KINDS) and header.can_wait(key):
                        content.arrays[key], content.waiting[key] = header.bare(), header
                    else:
                        content.arrays[key] = _values(values, header, path, key)
    return content


def _is_npy(file: io.BufferedReader) -> bool:
    return file.peek(len(npy.MAGIC_PREFIX)).startswith(npy.MAGIC_PREFIX)


def _members(archive: zipfile.ZipFile, wanted: Collection[str], path: Path) -> dict[str, zipfile.ZipInfo]:
    """Those of the wanted arrays, as far as they are there, in the order of `wanted`; their sizes are within limits."""
    members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
    found = {key: members[key] for key in wanted if key in members}
    _check_sizes(found.values(), path)
    return found


def _check_sizes(members: Collection[zipfile.ZipInfo], path: Path) -> None:
    """Before anything is unpacked. Members that are not compressed cannot hold more than the file does."""
    sizes = {zipfile.ZIP_STORED: 0, zipfile.ZIP_DEFLATED: 0}
    for member in members:
        if member.compress_type not in sizes:
            raise broken(path, f"{member.filename!r} is packed in another way than numpy does", WRITE)
        sizes[member.compress_type] += member.file_size
    within(path, "bytes stored in it:", sizes[zipfile.ZIP_STORED], size_of(path), "replace it with an intact copy")
    within(path, "bytes when it is unpacked:", sizes[zipfile.ZIP_DEFLATED], limits.UNPACKED, STORE)


def _header(file: io.BufferedIOBase, size: int, path: Path, key: str) -> _Header:
    """Of an array in numpy's own format, of so many bytes with its header. Nothing in it is ever run."""
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise broken(path, f"{key} is of format {version}, not 1.0 or 2.0", WRITE)
    length = file.read(2 if version == (1, 0) else 4)
    within(path, f"bytes in the header of {key}:", int.from_bytes(length, "little"), HEADER, WRITE)
    head = io.BytesIO(length + file.read(int.from_bytes(length, "little")))
    found = _Header(*(npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(head))
    shape, dtype, left = found.shape, found.dtype, size - file.tell()
    if dtype.hasobject:  # they would have to be unpickled, and a data file must not run code
        raise broken(path, f"{key} holds Python objects: Object arrays are never loaded", "give numbers")
    if min(shape, default=0) < 0 or found.bytes != left or not dtype.itemsize:
        what = f"promises {shape} of {dtype}, {found.bytes:,} bytes; it holds {left:,}"
        raise broken(path, f"the header of {key} {what}")
    return found


def _values(file: io.BufferedIOBase, header: _Header, path: Path, key: str) -> npt.NDArray[Any]:
    """What the header promises, from where it ends."""
    data = fill(file, header.bytes, path)
    if len(data) != header.bytes:
        raise broken(path, f"{key} is truncated")
    return data.view(header.dtype).reshape(header.shape, order="F" if header.by_column else "C")


def _blocks(path: Path, key: str, header: _Header, step: int) -> Iterator[Pixels | Vectors]:
    """An array as it is learned from, `step` examples at a time: it need not fit into memory."""
    with ExitStack() as stack:
        with decoding(path, WHAT, WRITE):
            archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(opened(path))))
            member = _members(archive, [key], path)[key]
            file = cast(io.BufferedIOBase, stack.enter_context(archive.open(member)))
            if _header(file, member.file_size, path, key) != header:
                raise broken(path, f"{key} was changed while it was read", "try again when it rests")
        for at in range(0, header.shape[0], step):
            some = replace(header, shape=(min(step, header.shape[0] - at), *header.shape[1:]))
            with decoding(path, WHAT, WRITE):  # not around what is done with a block
                block = _values(file, some, path, key)
            yield as_vectors(block, path, key, first=at)[0] if _of_vectors(key) else _npz_images(block, path, key)


def npz_features(path: Path) -> npt.NDArray[Any]:
    """The array `features` of an .npz file, as it stands there; whether there are labels does not matter."""
    remedy = "write it with numpy.savez(path, features=...)"
    with decoding(path, WHAT, remedy), opened(path) as file:
        if _is_npy(file):
            return _values(file, _header(file, size_of(path), path, "features"), path, "features")
    content = _read(path, ["features"], remedy)
    if not content.arrays:
        raise broken(path, f"has no array features (found: {', '.join(content.names) or 'nothing'})", remedy)
    return content.arrays["features"]


def holds_vectors(path: Path) -> bool:
    """Whether an .npz file says that it holds vectors; nothing of it is read but the names of its arrays."""
    try:
        with opened(path) as file, zipfile.ZipFile(file) as archive:
            return any(_of_vectors(name.removesuffix(".npy")) for name in archive.namelist())
    except (DataError, OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False  # whoever reads it says what is wrong


def npz_backbone(path: Path) -> Recipe | None:
    """By what the vectors of an .npz file were made: its `backbone`, a JSON text that `engram embed` wrote."""
    entry = _read(path, ["backbone"], WRITE).arrays.get("backbone")
    if entry is None:
        return None
    if entry.ndim or entry.dtype.kind != "U":
        raise broken(path, f"backbone is {entry.dtype} {entry.shape}, no text", "write it anew with `engram embed`")
    within(path, "bytes of backbone:", entry.nbytes, limits.TEXT, "write it anew with `engram embed`")
    with decoding(path, "backbone is no text", "write it anew with `engram embed`"):
        return recipe_of(entry.item(), path)


# ---------------------------------------------------------------- sets


def _npz_images(array: npt.NDArray[Any], path: Path, key: str) -> Pixels:
    """(N, H, W), (N, H, W, C) or (N, C, H, W) -> (N, C, H, W)."""
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise broken(path, f"{key} contains NaN", "clean it and convert it to uint8, 0..255")
    return np.ascontiguousarray(_channels_first(array, path, key))


def _channels_first(array: npt.NDArray[Any], path: Path, key: str) -> Pixels:
    """A view of (N, C, H, W)."""
    if array.dtype != np.uint8:
        raise broken(path, f"{key} is {array.dtype}", "convert it to uint8, 0..255")
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in (1, 3) or array.size == 0:
        remedy = "it must be (N, H, W) or (N, H, W, C) with C = 1 or 3"
        raise broken(path, f"{key} has the shape {array.shape}", remedy)
    return array


def _npz_vectors(array: npt.NDArray[Any], path: Path, key: str) -> tuple[Vectors, str]:
    if array.dtype.kind != "f":
        raise broken(path, f"{key} is {array.dtype}", "features are float32, float16 or float64")
    return as_vectors(array, path, key)


def _npz_examples(array: npt.NDArray[Any], path: Path, key: str, *, bare: bool) -> tuple[Pixels | Vectors, str]:
    """Images or vectors, and what was done to them; of those without memory, what will be."""
    if _of_vectors(key):
        return (array, check_vectors(array, path, key)) if bare else _npz_vectors(array, path, key)
    return (_channels_first if bare else _npz_images)(array, path, key), ""


def _npz_labels(array: npt.NDArray[Any], path: Path, key: str) -> Labels:
    if array.dtype.kind not in "iu":
        raise broken(path, f"{key} is {array.dtype}", "labels must be integers 0..n-1")
    if array.ndim != 1:
        raise broken(path, f"{key} has the shape {array.shape}", "labels must be one number an image, (N,)")
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise broken(path, f"{key} holds {int(array.max())}, which is out of range", "labels must be integers 0..n-1")
    return array.astype(np.int64)


def npz_set(path: Path, *, in_pieces: bool = False) -> tuple[Raw, Raw | None, tuple[str, ...]]:
    """`images` + `labels` (or `train_images` + `train_labels`), optionally `test_images` + `test_labels`.

    Vectors are called `features` in the place of `images`. Labels as they stand there, any whole numbers; with their
    names where the file has `class_names`, one a number. `in_pieces`: images stay in the file until they are asked for.
    """
    content = _read(path, NPZ_ARRAYS, WRITE, in_pieces=in_pieces)
    arrays, waiting = content.arrays, content.waiting
    found = [kind for kind in KINDS if any(key.endswith(kind) for key in arrays)] or ["images"]
    if len(found) > 1:
        raise broken(path, "has images and features", "keep one of the two: a set is of one kind")
    own = found[0]
    prefix = "train_" if f"train_{own}" in arrays or "train_labels" in arrays else ""
    with_test = f"test_{own}" in arrays or "test_labels" in arrays
    prefixes = [prefix, "test_"] if with_test else [prefix]
    needed = [f"{p}{kind}" for p in prefixes for kind in (own, "labels")]
    if absent := [key for key in needed if key not in arrays]:
        held = ", ".join(sorted(arrays)) or "none of these"
        raise broken(path, f"has no array {' and '.join(absent)} (found: {held})", WRITE)

    def part(p: str) -> Raw:
        key, labels = f"{p}{own}", _npz_labels(arrays[f"{p}labels"], path, f"{p}labels")
        images, note = _npz_examples(arrays[key], path, key, bare=key in waiting)
        whole = replace(paired(images, labels, f"{path}: {key}", f"{p}labels"), note=note)
        if key not in waiting:
            return whole
        return InPieces(images, labels, note, read=partial(_blocks, path, key, waiting[key]))

    train, test = part(prefix), part("test_") if with_test else None
    if test and test.channels != train.channels:
        each = "numbers a vector" if own == "features" else "channels"
        what = f"{train.channels} {each} for training, {test.channels} for test"
        raise broken(path, what, "make them equal")
    return train, test, _npz_names(arrays.get("class_names"), path)


def _npz_names(array: npt.NDArray[Any] | None, path: Path) -> tuple[str, ...]:
    if array is None:
        return ()
    if array.ndim != 1 or array.dtype.kind not in "US":
        raise broken(path, f"class_names is {array.dtype} {array.shape}", "it must be a list of texts, one a label")
    within(path, "class_names:", len(array), limits.CLASSES, "name each class once")
    with decoding(path, "class_names are no texts in UTF-8", "write them as texts: numpy.array([...], str)"):
        return tuple(name.decode() if isinstance(name, bytes) else name for name in array.tolist())


def read_npz(path: Path, *, in_pieces: bool = False) -> RawSet:
    """Labels 0..n-1, every number present, in both parts. `in_pieces`: images stay in the file for now."""
    train, test, names = npz_set(path, in_pieces=in_pieces)
    classes = check_labels(train.labels, path)
    if test:
        check_labels(test.labels, f"{path}: test_labels", classes)
    if names and len(names) != classes:
        raise broken(path, f"has {len(names)} class_names for {classes} classes", "name each of them once")
    backbone = npz_backbone(path) if train.vectors else None
    return RawSet(train, test, names or tuple(map(str, range(classes))), backbone=backbone)
