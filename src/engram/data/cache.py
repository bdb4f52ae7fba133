"""Prepared copies of data sets: where they lie, and whether they still are what the files hold.

Nobody has one who did not ask for it by `engram data prepare`. A copy belongs to the real path of a set and an image
size. It is fresh while every file below that path has its name, length and time of change, and while the programs that
decode and scale images are those that made it; nothing is decoded to tell. So a file whose contents were changed in
place, with length and time put back, is not noticed here: `engram data check` reads everything and notices.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from engram.data import sources
from engram.data.raw import one_line
from engram.data.store import MANIFEST, Store, clear_left_overs, left_overs
from engram.errors import DataError

OUT = "prepared"
"""Where in the cache the copies lie. `prepared:FOLDER` is one that lies elsewhere, as a data set of its own."""
DECODERS = ("pillow", "torch")
"""Packages that decide which pixels come of a file."""


@dataclass(frozen=True)
class Source:
    """Where a data set's files lie."""

    kind: str
    """"folder", "npz" or the name of a set."""
    path: Path

    def copy_at(self, size: int | None) -> Path:
        """Where its copy lies, if there is one; `size` None: of vectors."""
        real = os.path.realpath(self.path)
        key = hashlib.sha256(os.fsencode(f"{self.kind}\0{real}\0{size}")).hexdigest()[:16]
        return sources.cache_folder() / OUT / f"{self.kind}-{size or 'vectors'}-{key}"

    def stamp(self) -> dict[str, Any]:
        """By which it is told whether the files are still the same."""
        lines = sorted(_lines(self.path))
        stat = hashlib.sha256(b"\n".join(lines)).hexdigest()
        versions = {name: metadata.version(name) for name in DECODERS}
        return {"path": os.path.realpath(self.path), "files": len(lines), "stat": stat, "versions": versions}


def _lines(path: Path) -> Iterator[bytes]:
    """What every file is called, how long it is and when it was changed; hidden ones are not read, and do not count."""
    folders, seen = [os.fsencode(path)], set[tuple[int, int]]()
    if not os.path.isdir(path):
        yield _line(b".", os.stat(path))
        return
    top = len(folders[0]) + 1
    while folders:
        at = folders.pop()
        own = os.stat(at)
        if (own.st_dev, own.st_ino) in seen:  # links may lead in a circle
            continue
        seen.add((own.st_dev, own.st_ino))
        with os.scandir(at) as entries:
            for entry in entries:
                if entry.name.startswith(b"."):
                    continue
                name = entry.path[top:]
                if entry.is_symlink() and entry.is_dir() and name.count(os.fsencode(os.sep)) > 1:
                    yield b"%s -> %s" % (name, os.readlink(entry.path))  # nor is it followed when images are read
                elif entry.is_dir():
                    folders.append(entry.path)
                    yield b"%s/" % name
                else:
                    with suppress(OSError):  # a link that leads nowhere
                        yield _line(name, entry.stat())


def _line(name: bytes, stat: os.stat_result) -> bytes:
    return b"%s %d %d" % (name, stat.st_size, stat.st_mtime_ns)


def source_of(name: str, root: Path | None = None) -> Source | None:
    """Where the files of a set lie; None where there are none, or no such set: whoever reads it says so."""
    kind, _, path = name.partition(":")
    at: Path | None = None
    if kind in ("folder", "npz") and path:
        at = Path(os.path.expanduser(path))
    elif name == "digits":
        kind, at = name, sources.EMBEDDED
    elif name in sources.LAYOUT:
        kind, at = name, sources.locate(name, root)
    return Source(kind, at) if at is not None and os.path.exists(at) else None


def fresh_copy(name: str, size: int, root: Path | None = None) -> tuple[Store | None, tuple[str, ...]]:
    """The prepared copy of a set, where there is one and it may be used; and a line where it may not."""
    source = source_of(name, root)
    if source is None:
        return None, ()
    for wanted in (size, None):
        at = source.copy_at(wanted)
        if at.is_dir():
            store = Store(at)
            if why := _stale(store, source):
                return None, (one_line(f"its prepared copy is not used: {why}; `engram data prepare` makes it anew"),)
            return store, ()
    return None, ()


def _stale(store: Store, source: Source) -> str | None:
    """What has changed since a copy was made."""
    try:
        now, then = source.stamp(), store.facts.source
    except OSError as error:
        return f"{source.path} cannot be listed ({error.strerror or error})"
    if now == then:
        return None
    if now["versions"] != then.get("versions"):
        old = then.get("versions") or {}
        changed = (f"{name} {old.get(name)} -> {new}" for name, new in now["versions"].items() if old.get(name) != new)
        return f"made with other programs ({', '.join(changed)})"
    return "the files have changed since"


# ---------------------------------------------------------------- list and clear


@dataclass(frozen=True)
class Copy:
    """One line of `engram data cache`."""

    path: Path
    name: str
    """Of the set, where that can be read."""
    about: str
    """For people: what is in it, and whether it is used."""
    bytes: int


def copies() -> list[Copy]:
    """Every prepared copy in the cache, and what is left of those that were not finished."""
    base = sources.cache_folder() / OUT
    if not base.is_dir():
        return []
    found = [_described(path) for path in sorted(base.iterdir()) if path.is_dir() and path.name[0] != "."]
    return found + [
        Copy(path, "", "not finished: whoever made it was killed", _bytes(path)) for path in left_overs(base)
    ]


def _described(path: Path) -> Copy:
    try:
        store = Store(path)
    except DataError:
        return Copy(path, "", f"damaged: {MANIFEST} or a file that it names", _bytes(path))
    facts, counts = store.facts, [sum(own) for own in store.counts.values()]
    where = Path(str(facts.source.get("path", "")))
    kind = facts.name.partition(":")[0]
    state = "its files are gone"
    if where.exists():
        state = _stale(store, Source(kind, where)) or "fresh"
    many = " / ".join(f"{count:,}" for count in counts)
    size = f"{facts.size}x{facts.size}" if facts.size else f"vectors of {facts.shape[0]}"
    return Copy(path, facts.name, f"{many} at {size}: {state}", _bytes(path))


def _bytes(folder: Path) -> int:
    """On disc."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def clear(names: Sequence[str] = ()) -> list[Copy]:
    """Remove the copies of these sets, or all; and what is left of unfinished ones."""
    found = copies()
    chosen = [copy for copy in found if not names or copy.name in {called(name) for name in names}]
    if names and (missing := [name for name in names if called(name) not in {copy.name for copy in found}]):
        raise DataError(one_line(f"there is no prepared copy of {missing[0]}; `engram data cache` lists what there is"))
    for copy in chosen:
        try:
            shutil.rmtree(copy.path)
        except OSError as error:
            raise DataError(f"cannot remove {copy.path}: {error.strerror or error}; remove it yourself") from error
    if not names:
        with suppress(OSError):
            clear_left_overs(sources.cache_folder() / OUT)
            (sources.cache_folder() / OUT).rmdir()
    return chosen


def called(name: str) -> str:
    """A set as copies call it: by its real path, whatever folder the user stands in."""
    kind, colon, path = name.partition(":")
    return f"{kind}:{os.path.realpath(os.path.expanduser(path))}" if colon else name
