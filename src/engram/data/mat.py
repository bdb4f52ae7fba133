"""The little of MATLAB's format 5 that SVHN needs: arrays of numbers by name, packed or not, in either byte order.

    file     128 bytes, of which the last four are the version and the byte order; then elements
    element  type and count, 4 bytes each, and so many bytes, filled up to a multiple of 8; packed: a zlib stream that
             holds one element. Up to 4 bytes may stand in the tag itself: count and type then have 2 bytes each
    array    an element of elements: flags with the class, sizes, name, values in the order of columns

Every count is held against what is left of its array and of the file before it is used, so that no file can reach
beyond itself: only DataError comes out.
"""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from engram.data import limits
from engram.data.raw import broken
from engram.data.reading import Deflated, decoding, fill, opened, size_of, within

HEAD = 128
ARRAY, PACKED = 14, 15
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""Of an element's values."""
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
"""Of an array's numbers. They may be stored as smaller whole ones where nothing is lost."""
COMPLEX = 0x800
DIMENSIONS, NAME = 32, 1024
"""The most that an array may have, and the bytes of its name."""
WHAT, REMEDY = "no readable MATLAB file, truncated or foreign", "take the official one, or save it with -v7"


@dataclass(frozen=True)
class _Array:
    """An array of numbers whose values come next."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """As they are stored."""
    at_once: bytes | None
    """The values, where they stand in the tag."""

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_mat(path: Path, names: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of these names that the file has, as they are stored, in the order of columns."""
    found = {}
    with decoding(path, WHAT, REMEDY):
        for array, source in _arrays(path, names):
            data = fill(source, array.bytes, path) if array.at_once is None else np.frombuffer(array.at_once, np.uint8)
            if len(data) != array.bytes:
                raise broken(path, f"truncated within {array.name}")
            if isinstance(source.raw, Deflated) and len(source.read(8)) == 8:  # to the end, where a checksum stands
                raise broken(path, f"{array.name} is longer than its header says")
            values = data.view(array.dtype)
            found[array.name] = values.astype(array.dtype.newbyteorder("="), copy=False).reshape(array.shape, order="F")
    return found


def mat_shapes(path: Path, names: Collection[str]) -> dict[str, tuple[int, ...]]:
    """The sizes of these arrays, from what stands before their values."""
    with decoding(path, WHAT, REMEDY):
        return {array.name: array.shape for array, _ in _arrays(path, names)}


def _arrays(path: Path, names: Collection[str]) -> Iterator[tuple[_Array, io.BufferedReader]]:
    """The wanted arrays, each with a source that stands at its values; others are passed over."""
    size, left = size_of(path), set(names)
    with opened(path) as file:
        order = _byte_order(file.read(HEAD), path)
        at = HEAD
        while left and at < size:
            file.seek(at)
            kind, count = _tag(file, order)
            end = at + 8 + count
            if end > size:
                raise ValueError(f"an element of {count:,} bytes begins at byte {at:,} of {size:,}")
            source = file
            if kind == PACKED:
                source = io.BufferedReader(Deflated(file, count))
                kind, count = _tag(source, order)
            if kind == ARRAY and (array := _Fields(source, count, order).array(left)):
                within(path, f"{array.name} has bytes:", array.bytes, limits.UNPACKED, "take fewer images")
                left.discard(array.name)
                yield array, source
            at = end


def _byte_order(head: bytes, path: Path) -> str:
    version = {b"\0\1IM": "<", b"\1\0MI": ">"}.get(head[124:])
    if version is None:
        newer = ", version 7.3" if head.startswith(b"MATLAB 7.3") else ""
        start = head[:8].hex(" ") or "nothing"
        raise broken(path, f"no MATLAB file of version 5 to 7{newer} (starts with {start})", REMEDY)
    return version


def _tag(source: BinaryIO, order: str) -> tuple[int, int]:
    """Type and count of an element that does not stand in its own tag."""
    head = source.read(8)
    if len(head) < 8:
        raise ValueError("truncated within a tag")
    kind, count = np.frombuffer(head, f"{order}u4").tolist()
    if kind >> 16:
        raise ValueError(f"an element of type {kind & 0xFFFF} stands where an array belongs")
    return kind, count


class _Fields:
    """The elements of an array, one after the other."""

    def __init__(self, source: BinaryIO, count: int, order: str) -> None:
        self.source, self.left, self.order = source, count, order

    def _take(self, count: int) -> bytes:
        if count > self.left:
            raise ValueError(f"{count:,} bytes are promised where {self.left:,} are left")
        self.left -= count
        data = self.source.read(count)
        if len(data) != count:
            raise ValueError("truncated within an array")
        return data

    def _head(self) -> tuple[int, int, bytes | None]:
        """Type and count of the next element, and its values where they stand in the tag."""
        head = self._take(8)
        first, count = np.frombuffer(head, f"{self.order}u4").tolist()
        if not first >> 16:
            return first, count, None
        kind, count = first & 0xFFFF, first >> 16
        if count > 4:
            raise ValueError(f"{count} bytes cannot stand in a tag")
        return kind, count, head[4 : 4 + count]

    def _field(self, kinds: Collection[int], most: int) -> bytes:
        """The next element, of one of these types, of a bounded size."""
        kind, count, data = self._head()
        if kind not in kinds or count > most:
            raise ValueError(f"an element of type {kind} and {count:,} bytes stands where another one belongs")
        if data is None:
            data = self._take(count)
            self._take(-count % 8)
        return data

    def array(self, wanted: Collection[str]) -> _Array | None:
        """What stands before the values; None where it is not wanted."""
        flags = self._field([6], 8)
        sizes = self._field([5], 4 * DIMENSIONS)
        name = self._field([1, 2, 16], NAME).decode("utf-8", "replace")
        if name not in wanted:
            return None
        if len(flags) != 8 or len(sizes) < 8 or len(sizes) % 4:
            raise ValueError(f"{name} has flags of {len(flags)} and sizes of {len(sizes)} bytes")
        kind = int(np.frombuffer(flags[:4], f"{self.order}u4")[0])
        shape = tuple(np.frombuffer(sizes, f"{self.order}i4").tolist())
        own = CLASSES.get(kind & 0xFF)
        if own is None or kind & COMPLEX:
            raise ValueError(f"{name} is no array of real numbers (class {kind & 0xFF})")
        if min(shape) < 0:
            raise ValueError(f"{name} has the shape {shape}")
        stored, count, data = self._head()
        type_ = TYPES.get(stored)
        smaller = type_ is not None and type_[0] != "f" and int(type_[1]) < int(own[1])
        if type_ is None or not (type_ == own or smaller):
            raise ValueError(f"{name} is stored as type {stored}, which does not go with class {kind & 0xFF}")
        dtype = np.dtype(self.order + type_)
        left = 0 if data is not None else count
        if count != math.prod(shape) * dtype.itemsize or self.left not in (left, left + -left % 8):
            raise ValueError(f"{name} holds {count:,} bytes, which are not {shape} of {dtype.name}")
        return _Array(name, shape, dtype, data)
