"""A set as its files hold it, before anything is resized, and the digest of its contents.

RawSet
├── train: Raw      images (N, C, H, W) uint8, or ImageFiles that decode one (C, H, W) at a time; vectors (N, D) float32
├── test: Raw|None  None where the files hold no test part
├── class_names
├── left_out        files that lie there and were not read, each with the reason
└── backbone        of vectors: by which network they were made
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.data import limits
from engram.data.recipe import Recipe
from engram.errors import DataError

Pixels = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

BLOCK = 1 << 20  # pixels: 4 MB as float
LARGE = 1 << 15
"""Bytes of an image file from which on threads pay: decoding then takes longer than all that Python does about it."""
SAMPLE = 64
"""Files that are looked at to tell, about."""
THREADS = 8
"""That decode at most: each may hold an image of `limits.PIXELS`, and two that wait are as large."""
INTACT = "replace it with an intact copy"


@dataclass(frozen=True)
class ImageFiles:
    """Images still in their files, decoded when their turn comes: photographs need not fit into memory together."""

    paths: tuple[Path, ...]
    channels: int
    decode: Callable[[Path, int], Pixels]
    """(file, channels) -> (C, H, W)"""

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[Pixels]:
        """In order. Large files are decoded on several cores: of small ones, threads would wait for each other."""
        return self._ahead() if self._large() else (self.decode(path, self.channels) for path in self.paths)

    def _large(self) -> bool:
        some = self.paths[:: 1 + len(self.paths) // SAMPLE]
        return sum(map(_size, some)) >= LARGE * len(some)

    def _ahead(self) -> Iterator[Pixels]:
        """A few images ahead: Pillow's decoders let other threads run beside them."""
        workers = min(cores(), THREADS)
        left = iter(self.paths)
        pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
        try:
            ahead: deque[Future[Pixels]] = deque()
            for path in islice(left, 2 * workers):
                ahead.append(pool.submit(self.decode, path, self.channels))
            while ahead:
                image = ahead.popleft().result()
                for path in islice(left, 1):
                    ahead.append(pool.submit(self.decode, path, self.channels))
                yield image
        finally:
            pool.shutdown(cancel_futures=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # whoever reads it says what is wrong
        return 0


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Raw:
    """One part of a set as the files hold it."""

    images: Pixels | Vectors | ImageFiles
    """(N, C, H, W) uint8, or files of any size; (N, D) float32."""
    labels: Labels
    """(N,)"""
    note: str = ""
    """For people: what was done to its numbers."""

    @property
    def channels(self) -> int:
        """Of its images; of vectors, how many numbers each has."""
        return self.images.channels if isinstance(self.images, ImageFiles) else int(self.images.shape[1])

    @property
    def vectors(self) -> bool:
        """Whether it holds vectors."""
        return not isinstance(self.images, ImageFiles) and self.images.ndim == 2

    def blocks(self) -> Iterator[tuple[Pixels | Vectors, Labels]]:
        """The part in order, as (n, C, H, W) or (n, D), and (n,): few enough that a float copy of a block is small."""
        if isinstance(self.images, ImageFiles):  # sizes may differ: one image a block
            for i, image in enumerate(self.images):
                yield image[None], self.labels[i : i + 1]
        else:
            step = max(1, BLOCK // math.prod(self.images.shape[1:]))
            for i in range(0, len(self.images), step):
                yield self.images[i : i + step], self.labels[i : i + step]


def check_vectors(array: npt.NDArray[Any], origin: Path | str, what: str) -> str:
    """(N, D) numbers, by shape and type alone; what is done to them when they are taken as float32, if anything."""
    if array.ndim != 2 or array.size == 0:
        raise broken(origin, f"{what} has the shape {array.shape}", "it must be (N, D): a row of numbers a vector")
    if array.dtype.kind not in "iuf" or array.dtype.itemsize > 8:
        raise broken(origin, f"{what} is {array.dtype}", "give float32, float16, float64 or whole numbers")
    return "" if array.dtype == np.float32 else f"{what} are {array.dtype}, taken as float32"


def as_vectors(
    array: npt.NDArray[Any], origin: Path | str, what: str = "features", *, first: int = 0
) -> tuple[Vectors, str]:
    """(N, D) numbers -> the float32 that is learned from, and what was done to them, if anything.

    `first`: the number of the first row, of a block of them.
    """
    note = check_vectors(array, origin, what)
    with np.errstate(over="ignore"):
        vectors = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(vectors).all():
        row, column = (int(place) for place in np.argwhere(~np.isfinite(vectors))[0])
        where = f"{array[row, column]} in row {first + row}, column {column}"
        raise broken(origin, f"{what} holds {where}", "every number must be finite, also as float32; clean them first")
    return vectors, note


def paired(images: Pixels | Vectors, labels: Labels, images_at: Path | str, labels_at: Path | str) -> Raw:
    """A part of a set, one label an image."""
    if len(images) != len(labels):
        kind = "vectors" if images.ndim == 2 else "images"
        what = f"holds {len(images)} {kind}, but {labels_at} holds {len(labels)} labels"
        raise broken(images_at, what, "the two must belong together")
    return Raw(images, labels)


@dataclass(frozen=True)
class InPieces(Raw):
    """A part that is read from its file block by block. Its `images` have shape and type, and no memory."""

    read: Callable[[int], Iterator[Pixels | Vectors]] = field(kw_only=True)
    """(examples a block) -> the blocks in order"""

    def blocks(self) -> Iterator[tuple[Pixels | Vectors, Labels]]:
        """As those of a part in memory."""
        assert isinstance(self.images, np.ndarray)
        at = 0
        for block in self.read(max(1, BLOCK // math.prod(self.images.shape[1:]))):
            yield block, self.labels[at : at + len(block)]
            at += len(block)


@dataclass(frozen=True)
class LeftOut:
    """Something in a set's folder that was not read."""

    path: Path
    what: str
    """"file", "folder" or "link"."""
    why: str


def describe(left_out: Iterable[LeftOut], root: Path | str) -> tuple[str, ...]:
    """One line for each kind and reason: how many, why, and the first, as its path below `root`."""
    groups: dict[tuple[str, str], list[Path]] = {}
    for one in left_out:
        groups.setdefault((one.what, one.why), []).append(one.path)
    lines = []
    for (what, why), paths in groups.items():
        many = f"1 {what} was" if len(paths) == 1 else f"{len(paths):,} {what}s were"
        first = Path(os.path.relpath(paths[0], root)).as_posix()
        lines.append(one_line(f"{many} left out: {why} (first: {first})"))
    return tuple(lines)


@dataclass(frozen=True)
class RawSet:
    """A whole set as the files hold it."""

    train: Raw
    test: Raw | None
    class_names: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()
    backbone: Recipe | None = None
    """By what its vectors were made, where that is known."""
    official: bool = False
    """Whether its files are those that the set was published as, to the byte."""


def one_line(text: str) -> str:
    r"""`text` in one line, as it may be shown anywhere: what a file name may carry beside letters is escaped.

    >>> print(one_line("a\nb \x1b[31mc"))
    a b \x1b[31mc
    """
    line = " ".join(text.splitlines())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def broken(path: Path | str, what: object, remedy: str = INTACT) -> DataError:
    """One line that names the file, what is wrong with it and what to do."""
    return DataError(one_line(f"{path}: {what}; {remedy}"))


# ---------------------------------------------------------------- contents


def fingerprints(tag: str, images: Pixels | Vectors, labels: Labels) -> list[bytes]:
    """16 bytes an example over (part, label, shape, values); images (n, C, H, W) or (n, D), labels (n,).

    Vectors count as the float32 that is learned from, lowest byte first, whatever type the file had.
    """
    shape = "x".join(map(str, images.shape[1:]))
    heads = {int(label): f"{tag} {label} {shape}\n".encode() for label in np.unique(labels)}
    rows = np.ascontiguousarray(images, images.dtype.newbyteorder("<")).reshape(len(images), -1)
    prints = []
    for row, label in zip(rows, labels.tolist(), strict=True):
        one = hashlib.blake2b(heads[label], digest_size=16)
        one.update(row.data)
        prints.append(one.digest())
    return prints


def digest(prints: Iterable[bytes], backbone: Recipe | None = None) -> str:
    """The content digest of a set: sorted fingerprints, hence blind to order, compression and file format.

    Of vectors that name a backbone, over its digest as well: another one's are other data, were they equal by chance.
    """
    joined = bytearray()  # a list of as many texts would take three times the memory
    for one in prints:
        joined += one
    halves = np.frombuffer(joined, ">u8").reshape(-1, 2)
    content = halves[np.lexsort((halves[:, 1], halves[:, 0]))].tobytes()
    return hashlib.sha256(content + (b"" if backbone is None else bytes.fromhex(backbone.digest))).hexdigest()


def content_digest(raw: RawSet) -> str:
    """`digest` over both parts, read block by block."""
    parts = [("train", raw.train)] + ([("test", raw.test)] if raw.test else [])
    prints = (p for tag, part in parts for block in part.blocks() for p in fingerprints(tag, *block))
    return digest(prints, raw.backbone)


def check_labels(labels: Labels, origin: Path | str, classes: int | None = None) -> int:
    """The number of classes, given that the labels are 0..n-1 with every number present."""
    found = np.unique(labels)
    wanted = len(found) if classes is None else classes
    if wanted < 1:
        raise broken(origin, "holds no class", "one or more are needed")
    if wanted > limits.CLASSES:
        raise broken(origin, f"holds {wanted:,} classes, the limit is {limits.CLASSES:,}", "take fewer of them")
    if not np.array_equal(found, np.arange(wanted)):
        stray, missing = found[(found < 0) | (found >= wanted)], np.setdiff1d(np.arange(wanted), found)
        what = f"label {stray[0]} is out of range" if len(stray) else f"no image has label {missing[0]}"
        raise broken(origin, what, f"labels must be 0..{wanted - 1}, every number present")
    return wanted
