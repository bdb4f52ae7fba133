"""Cut a data set once, so that the next start reads it as it is learned from: `engram data prepare`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engram.data.cache import OUT, called, fresh_copy, source_of
from engram.data.datasets import as_stored, check_names, check_size, note_of, read_raw, resize
from engram.data.raw import Raw, RawSet, broken, digest, fingerprints
from engram.data.reading import decoding
from engram.data.store import Facts, Store, Writer, check_numbers, whole_folder
from engram.errors import ConfigError, DataError
from engram.kinds import Shape

Show = Callable[[int, int], None]
"""show(examples done, of how many)"""


@dataclass(frozen=True)
class Prepared:
    """What there is now."""

    path: Path
    store: Store
    made: bool
    """False where a fresh copy was there already."""


def prepare(
    name: str,
    *,
    image_size: int = 32,
    out: Path | None = None,
    root: Path | None = None,
    show: Show = lambda done, total: None,
) -> Prepared:
    """Write a set at one size, one file a class: into the cache, which is read from now on, or into a new folder.

    `out`: that folder, new; `prepared:OUT` is then a data set, wherever the folder is brought. Whole or not at all.
    Images are decoded on several cores and never all in memory, those of an .npz file neither.
    """
    check_size(image_size)
    if name.partition(":")[0] == OUT:
        raise ConfigError(f"{name}: is prepared already; use it as it is")
    if out is not None and os.path.lexists(out):
        raise DataError(f"{out} is there already; remove it or choose another --out")
    if out is None:
        with suppress(DataError):  # a damaged one is made anew
            if (found := fresh_copy(name, image_size, root)[0]) is not None:
                return Prepared(found.folder, found, made=False)
    source = source_of(name, root)
    with decoding(source.path if source else name, "cannot be listed"):
        before = source.stamp() if source else {}
    raw, origin = read_raw(name, root, in_pieces=True)
    assert source is not None, "what was read lies somewhere"
    check_names(raw.class_names, origin)
    size = None if raw.train.vectors else image_size
    target = source.copy_at(size) if out is None else out
    parts = {"train": raw.train} | ({} if raw.test is None else {"test": raw.test})
    total, done = sum(len(own.labels) for own in parts.values()), 0
    check_numbers(origin, len(raw.class_names), total)
    with whole_folder(target) as place:
        cut = _Cut(Writer(place, shape=_shape(raw.train, size), labels={p: own.labels for p, own in parts.items()}))
        for part, own in parts.items():
            for count in cut.part(part, own, size):
                done += count
                show(done, total)
        after = None
        with suppress(OSError):  # they may be gone by now
            after = source.stamp()
        if after != before:
            raise broken(origin, "its files were changed while they were read", "prepare it again when they rest")
        # a copy in a folder of its own is handed on: on whose disc its files lay is nobody's business
        title, known = (called(name), before) if out is None else (_last_part(name), {})
        cut.writer.finish(_facts(title, raw, origin, cut, size, known))
    return Prepared(target, Store(target), made=True)


def _last_part(name: str) -> str:
    """`folder:/home/me/mugs` -> `folder:mugs`."""
    kind, colon, path = name.partition(":")
    return f"{kind}:{os.path.basename(os.path.realpath(os.path.expanduser(path)))}" if colon else name


def _shape(raw: Raw, size: int | None) -> Shape:
    return (raw.channels,) if size is None else (raw.channels, size, size)


class _Cut:
    """One pass over all examples: scaled and written, and what is to be known of them."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.prints = bytearray()
        self.sizes: Counter[tuple[int, int]] = Counter()

    def part(self, part: str, raw: Raw, size: int | None) -> Iterator[int]:
        """How many examples each step has written."""
        for block, labels in raw.blocks():
            self.prints += b"".join(fingerprints(part, block, labels))
            if size is None:
                self.writer.add(part, block)
            else:
                self.sizes[block.shape[3], block.shape[2]] += len(labels)
                self.writer.add(part, resize(as_stored(block), size).numpy())
            yield len(labels)


def _facts(name: str, raw: RawSet, origin: str, cut: _Cut, size: int | None, source: dict[str, object]) -> Facts:
    prints = (bytes(cut.prints[at : at + 16]) for at in range(0, len(cut.prints), 16))
    return Facts(
        name,
        raw.class_names,
        cut.writer.shape,
        size,
        digest(prints, raw.backbone),
        cut.sizes,
        note_of(raw, origin),
        raw.backbone,
        raw.official,
        source,
    )
