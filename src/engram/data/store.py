"""A set on disc, one file a class: written once, read class by class, never decoded again.

    FOLDER/
      manifest.json       {"sha256": …, "body": {"kind", "format", "digest", "class_names", "parts", …}}
      train.labels        the class of every example, 32 bits each, in the set's own order
      train-00000.bin     the examples of class 0 in that order: uint8 images of one size, or float32 vectors
      test.labels, …      where the set has a test part

The folder appears when it is whole. Every file's length is compared when the set is opened, and its SHA-256 before the
first example is read from it. A file is mapped while examples are copied out of it, and closed again. A set may come
from elsewhere: what `engram.data.limits` says holds for it too, and nothing but files is ever opened.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.data import limits
from engram.data.raw import Labels, Pixels, Vectors, broken, one_line
from engram.data.reading import decoding, opened, size_of, within
from engram.data.recipe import Recipe
from engram.errors import DataError
from engram.kinds import Shape, is_vector

KIND, FORMAT = "engram prepared set", 1
MANIFEST = "manifest.json"
PARTS = ("train", "test")
FLUSH = 1 << 25
"""Bytes that wait for their files to be opened: each class has its own."""
CHUNK = 4096
"""Examples that are copied at a time."""
REMEDY = "make it anew with `engram data prepare`, or remove it with `engram data cache --clear`"


@dataclass(frozen=True)
class Facts:
    """What is known of a set beside its examples."""

    name: str
    """As it was called when it was prepared."""
    class_names: tuple[str, ...]
    shape: Shape
    size: int | None
    """Side of the images; None of vectors."""
    digest: str
    """Of the contents before they were scaled."""
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(width, height) in the files -> how many images had it."""
    notes: tuple[str, ...] = ()
    backbone: Recipe | None = None
    official: bool = False
    """Whether its files were those that the set was published as, to the byte."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """Which files it was read from, by which it is told whether they are still the same."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **{key: getattr(self, key) for key in ("name", "size", "digest", "official")},
            **{key: list(getattr(self, key)) for key in ("class_names", "shape", "notes")},
            "sizes": [[*size, count] for size, count in sorted(self.sizes.items())],
            "backbone": None if self.backbone is None else self.backbone.as_dict(),
            "source": dict(self.source),
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Facts:
        """Back from plain values."""
        return cls(
            plain["name"],
            tuple(plain["class_names"]),
            tuple(plain["shape"]),
            plain["size"],
            plain["digest"],
            notes=tuple(map(one_line, plain["notes"])),
            official=plain["official"],
            source=plain["source"],
            sizes=Counter({(width, height): count for width, height, count in plain["sizes"]}),
            backbone=None if plain["backbone"] is None else Recipe.of(plain["backbone"]),
        )


def file_of(part: str, label: int) -> str:
    """What the file of a class is called: by its number, because a name may hold anything."""
    return f"{part}-{label:05d}.bin"


def type_of(shape: Shape) -> np.dtype[Any]:
    return np.dtype("<f4" if is_vector(shape) else "u1")


def check_numbers(origin: Path | str, classes: int, examples: int) -> None:
    """DataError where a set has more than a prepared one may have."""
    within(origin, "classes:", classes, limits.CLASSES, "take fewer of them")
    within(origin, "examples:", examples, limits.EXAMPLES, "take fewer of them")


# ---------------------------------------------------------------- write


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder to write in, which becomes `target` when all went well; else nothing is left of it."""
    building = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        clear_left_overs(target.parent, target.name)
        building.mkdir()
        yield building
        _sync(building)
        if target.exists():
            target.rename(building / "old")  # a folder cannot be replaced, and goes with what is left over
        (building / "new").rename(target)
        _sync(target.parent)
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror or error}; nothing was left behind") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


def left_overs(folder: Path, name: str = "") -> list[Path]:
    """What processes left that were killed while they wrote this, or anything; who is still at work keeps theirs."""
    found = []
    for path in folder.glob(f".{glob.escape(name) or '*'}.*.tmp"):
        number = path.name.split(".")[-2]
        if number.isdecimal() and path.is_dir() and not _is_alive(int(number)):
            found.append(path)
    return found


def clear_left_overs(folder: Path, name: str = "") -> None:
    for path in left_overs(folder, name):
        shutil.rmtree(path, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's
        return True
    return True


def _sync(path: Path) -> None:
    """Force it to disc, where the system can."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class Writer:
    """Writes a set in its own order, whatever the order of its classes.

    with whole_folder(target) as place:
        writer = Writer(place, shape=(3, 32, 32), labels={"train": labels})
        writer.add("train", images)          # the first ones; then the next ones
        writer.finish(facts)
    """

    def __init__(self, place: Path, *, shape: Shape, labels: Mapping[str, Labels]) -> None:
        self.folder, self.shape, self.labels = place / "new", shape, labels
        self.folder.mkdir()
        self.done = dict.fromkeys(labels, 0)
        self._waiting: dict[str, list[npt.NDArray[Any]]] = {}
        self._bytes = 0
        self._hashes: dict[str, Any] = {}

    def add(self, part: str, examples: Pixels | Vectors) -> None:
        """The next (n, C, H, W) or (n, D) of a part."""
        at = self.done[part]
        labels = self.labels[part][at : at + len(examples)]
        assert examples.shape == (len(labels), *self.shape), (examples.shape, len(labels), self.shape)
        for label in np.unique(labels).tolist():
            own = np.ascontiguousarray(examples[labels == label], type_of(self.shape))
            self._waiting.setdefault(file_of(part, label), []).append(own)
            self._bytes += own.nbytes
        self.done[part] = at + len(examples)
        if self._bytes >= FLUSH:
            self._flush()

    def _flush(self) -> None:
        for name, blocks in self._waiting.items():
            with (self.folder / name).open("ab") as file:
                for block in blocks:
                    file.write(block.data)
                    self._hashes.setdefault(name, hashlib.sha256()).update(block.data)
        self._waiting, self._bytes = {}, 0

    def finish(self, facts: Facts) -> None:
        """When all examples are written: the labels, and the manifest that says what there is."""
        self._flush()
        parts = {}
        for part, labels in self.labels.items():
            assert self.done[part] == len(labels), (part, self.done[part], len(labels))
            content = labels.astype("<i4").tobytes()
            (self.folder / f"{part}.labels").write_bytes(content)
            counts = np.bincount(labels, minlength=len(facts.class_names)).tolist()
            hashes = [self._hashes[file_of(part, label)].hexdigest() if n else "" for label, n in enumerate(counts)]
            parts[part] = {"labels": hashlib.sha256(content).hexdigest(), "counts": counts, "classes": hashes}
        body = {"kind": KIND, "format": FORMAT, **facts.as_dict(), "parts": parts}
        for path in self.folder.iterdir():
            _sync(path)
        text = json.dumps({"sha256": _hash_of(body), "body": body}, indent=1)
        within(facts.name, "bytes of its manifest:", len(text), limits.MANIFEST, "give its classes shorter names")
        (self.folder / MANIFEST).write_text(text, encoding="utf-8")
        _sync(self.folder / MANIFEST)
        _sync(self.folder)


def _hash_of(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


# ---------------------------------------------------------------- read


class Store:
    """A prepared set that is open; no file of it is."""

    def __init__(self, folder: Path) -> None:
        body = _manifest(folder / MANIFEST)
        self.folder = folder
        try:
            self.facts = Facts.of(body)
            self.counts = {part: tuple(own["counts"]) for part, own in body["parts"].items()}
            hashes = {part: (own["labels"], tuple(own["classes"])) for part, own in body["parts"].items()}
            _require_sense(self.facts, self.counts, hashes)
            each = math.prod(self.facts.shape) * type_of(self.facts.shape).itemsize
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise broken(folder / MANIFEST, f"is damaged ({type(error).__name__}: {error})", REMEDY) from None
        examples = sum(map(sum, self.counts.values()))
        check_numbers(folder, len(self.facts.class_names), examples)
        self.bytes = examples * each
        self._whole: set[str] = set()
        self._files: dict[str, tuple[int, str]] = {}
        """Name -> its length and checksum."""
        for part, counts in self.counts.items():
            own, classes = hashes[part]
            self._files[f"{part}.labels"] = 4 * sum(counts), own
            named = ((file_of(part, n), (count * each, classes[n])) for n, count in enumerate(counts) if count)
            self._files |= dict(named)
        for name in self._files:
            self._require_length(name)

    @cached_property
    def labels(self) -> dict[str, Labels]:
        """Part -> (N,) in the set's own order."""
        return {part: self._labels(part) for part in self.counts}

    @cached_property
    def _places(self) -> dict[str, Labels]:
        """Part -> (N,): where each example stands in the file of its class."""
        places = {}
        for part, labels in self.labels.items():
            order = np.argsort(labels, kind="stable")
            counts = np.array(self.counts[part], np.int64)
            starts = np.repeat(np.cumsum(counts) - counts, counts)
            places[part] = np.empty(len(labels), np.int64)
            places[part][order] = np.arange(len(labels)) - starts
        return places

    def read(self, part: str, rows: Labels) -> Pixels | Vectors:
        """(n,) numbers of examples -> copies of them, (n, C, H, W) or (n, D)."""
        labels, places = self.labels[part][rows], self._places[part][rows]
        with decoding(self.folder, "cannot be read", REMEDY):
            found = np.empty((len(rows), *self.facts.shape), type_of(self.facts.shape))
        for label in np.unique(labels).tolist():
            own = np.flatnonzero(labels == label)
            with self._mapped(part, label) as examples:
                for at in range(0, len(own), CHUNK):
                    some = own[at : at + CHUNK]
                    found[some] = examples[places[some]]
                    if is_vector(self.facts.shape) and not np.isfinite(found[some]).all():
                        raise broken(self.folder / file_of(part, label), "holds a number that is not finite", REMEDY)
        return found

    def check(self) -> str | None:
        """Every byte against the manifest: what is wrong, in one line."""
        self._whole.clear()
        try:
            for name in self._files:
                self._require_whole(name)
        except DataError as error:
            return str(error)
        return None

    @contextlib.contextmanager
    def _mapped(self, part: str, label: int) -> Iterator[Pixels | Vectors]:
        """The file of a class, while it is read from."""
        name, shape = file_of(part, label), self.facts.shape
        path = self._require_whole(name)
        with decoding(path, "cannot be read", REMEDY):
            mapped = np.memmap(path, type_of(shape), "r", shape=(self.counts[part][label], *shape))
        try:
            yield mapped
        finally:
            del mapped

    def _labels(self, part: str) -> Labels:
        path = self._require_whole(f"{part}.labels")
        with decoding(path, "cannot be read", REMEDY):
            labels = np.fromfile(path, "<i4").astype(np.int64)
        counts = self.counts[part]
        stray = len(labels) and not 0 <= labels.min() <= labels.max() < len(counts)
        if stray or not np.array_equal(np.bincount(labels, minlength=len(counts)), counts):
            raise broken(path, "is damaged: it names other classes than the manifest", REMEDY)
        return labels

    def _require_length(self, name: str) -> Path:
        """The path of a file that is as long as it was written."""
        path, (length, _) = self.folder / name, self._files[name]
        if not os.path.lexists(path):
            raise broken(path, "this file of a prepared set is gone", REMEDY)
        if (found := size_of(path)) != length:
            raise broken(path, f"has {found} bytes, {length} were written", REMEDY)
        return path

    def _require_whole(self, name: str) -> Path:
        """The path of a file that is as it was written: read once, before anything is taken from it."""
        path = self._require_length(name)
        if name not in self._whole:
            with decoding(path, "cannot be read", REMEDY), opened(path) as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != self._files[name][1]:
                raise broken(path, "is damaged: its contents do not match their checksum", REMEDY)
            self._whole.add(name)
        return path


def _require_sense(
    facts: Facts, counts: Mapping[str, tuple[int, ...]], hashes: Mapping[str, tuple[str, tuple[str, ...]]]
) -> None:
    """ValueError where a manifest contradicts itself."""
    shape, size = facts.shape, facts.size
    sides = (side for pair in facts.sizes for side in pair)
    whole = (*shape, *(number for own in counts.values() for number in own), *facts.sizes.values(), *sides)
    if not all(type(number) is int and number >= 0 for number in whole) or not shape or 0 in shape:
        raise ValueError("a number that counts nothing")
    kind = (1, None) if is_vector(shape) else (3, shape[-1])
    if (len(shape), size) != kind or len(set(shape[1:])) > 1 or (size and shape[0] not in (1, 3)):
        raise ValueError(f"the shape {shape} at the size {size}")
    if set(counts) not in ({"train"}, set(PARTS)) or not sum(counts["train"]):
        raise ValueError(f"the parts {', '.join(counts)}")
    if any(len(own) != len(facts.class_names) for own in (*counts.values(), *(named for _, named in hashes.values()))):
        raise ValueError(f"{len(facts.class_names)} classes")
    if size and facts.sizes.total() != sum(map(sum, counts.values())):
        raise ValueError(f"the sizes of {facts.sizes.total()} images")
    if not all(isinstance(text, str) for text in (facts.name, facts.digest, *facts.class_names, *facts.notes)):
        raise ValueError("a text that is none")
    if not re.fullmatch("[0-9a-f]{64}", facts.digest):
        raise ValueError("a digest that is none")
    if not isinstance(facts.official, bool):
        raise ValueError("official is neither true nor false")
    if not isinstance(facts.source, dict) or not isinstance(facts.source.get("versions", {}), dict):
        raise ValueError("a source that is none")


def _manifest(path: Path) -> dict[str, Any]:
    """What it says, where it is one of ours, of this format and unchanged."""
    if not os.path.lexists(path):
        raise broken(path, "no such file", "name a folder that `engram data prepare` made")
    with decoding(path, "cannot be read", REMEDY), opened(path) as file:
        size = size_of(path)
        within(path, "bytes:", size, limits.MANIFEST, REMEDY)
        text = file.read(size)
    with decoding(path, "is damaged: it is not JSON", REMEDY):
        whole = json.loads(text)
    body = whole.get("body") if isinstance(whole, dict) else None
    if not isinstance(body, dict) or body.get("kind") != KIND:
        raise broken(path, "is no manifest of a prepared set, or is damaged", REMEDY)
    if whole.get("sha256") != _hash_of(body):
        raise broken(path, "is damaged: its contents do not match their checksum", REMEDY)
    if body.get("format") != FORMAT:
        what = f"is of format {body.get('format')!r}, this version reads format {FORMAT}"
        raise broken(path, what, REMEDY)
    return body
