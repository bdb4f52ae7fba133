"""A run's facts: one JSON object a line, only ever appended. Tables and figures are derived from these alone.

Every record has a `kind`. Clock times and byte counts of the process stand in records of kind `timing` and nowhere
else, so that all other lines of two equal runs are equal to the bit.

The checkpoint remembers how long the file was when it was saved, and a hash of what it held. A resumed run cuts the
file back to that length: whatever a killed process had written since, half a line included, is written again. What
comes before has to be what was written.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engram.errors import DivergedError, RunError
from engram.experiment.files import os_errors, write_atomically

NAME = "records.jsonl"
FORMAT = 2
"""Of the records that this version writes and reads; the `run` record says it. Before there were numbers it was 1."""
Record = dict[str, Any]


class RecordWriter:
    """Appends records to a run folder's file, from `offset` on.

    What it has written stays in memory too: a file that somebody removes, replaces or cuts short meanwhile is written
    anew from there.
    """

    def __init__(self, folder: Path, offset: int = 0, sha256: str | None = None) -> None:
        self.path = folder / NAME
        kept = kept_records(folder, offset, sha256)
        self._written, self._hash = bytearray(kept), hashlib.sha256(kept)
        self.altered: str | None = None
        """What somebody else did to the file; from the next `sync` on it is whole again."""
        with os_errors(self.path):
            self._file = self.path.open("r+b" if self.path.exists() else "w+b")
            self._file.truncate(offset)
            self._file.seek(offset)

    def append(self, kind: str, **fields: Any) -> Record:
        """Write one line; it is on its way to the disc when this returns."""
        record = {"kind": kind, **fields}
        line = as_line(record)
        with os_errors(self.path, kept="the last good checkpoint is intact"):
            self._look()  # before the line would fill the gap that somebody left
            self._file.write(line)
            self._file.flush()
        self._written += line
        self._hash.update(line)
        return record

    def sync(self) -> int:
        """Force all lines to disc; the file's length in bytes."""
        with os_errors(self.path, kept="the last good checkpoint is intact"):
            os.fsync(self._file.fileno())
            self._look()
            if self.altered:
                self._file.close()
                write_atomically(self.path, bytes(self._written))
                self._file = self.path.open("r+b")
                self._file.seek(0, os.SEEK_END)
        return len(self._written)

    @property
    def sha256(self) -> str | None:
        """Of all lines."""
        return self._hash.hexdigest()

    def close(self) -> None:
        self._file.close()

    def _look(self) -> None:
        """Whether the file is still the one that was opened, and as long as it was left."""
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            self.altered = "removed"
            return
        if not os.path.samestat(there, os.fstat(self._file.fileno())):
            self.altered = "replaced"
        elif there.st_size != len(self._written):
            self.altered = self.altered or "changed"


class Unwritten:
    """In the place of a writer where another process writes."""

    sha256: str | None = None
    altered: str | None = None

    def append(self, kind: str, **fields: Any) -> Record:
        record = {"kind": kind, **fields}
        as_line(record)  # what cannot be written ends the other processes too
        return record

    def sync(self) -> int:
        return 0

    def close(self) -> None:
        pass


class Remembered(Unwritten):
    """In the place of a writer where nothing is written: the records stay in memory."""

    def __init__(self) -> None:
        self.lines: list[Record] = []

    def append(self, kind: str, **fields: Any) -> Record:
        self.lines.append(super().append(kind, **fields))
        return self.lines[-1]


def as_line(record: Record) -> bytes:
    """As it stands in the file. The one guard: no number that is none gets past it, wherever it came from."""
    try:
        return (json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n").encode()
    except ValueError:
        found = next(_not_finite(record, str(record["kind"])), None)
        if found is None:
            raise
    where, value = found
    task = f" in task {record['task'] + 1}" if isinstance(record.get("task"), int) else ""
    raise DivergedError(
        f"{where} is {value}{task}; the last good checkpoint is kept. "
        "Lower classifier.learning_rate or gan.learning_rate"
    )


def _not_finite(node: Any, name: str) -> Iterator[tuple[str, float]]:
    """The numbers that JSON does not have, with their names: `mask.sample.0.3`."""
    if isinstance(node, float) and not math.isfinite(node):
        yield name, node
    elif isinstance(node, dict | list | tuple):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _not_finite(value, f"{name}.{key}")


def kept_records(folder: Path, offset: int, sha256: str | None = None) -> bytes:
    """The first `offset` bytes, if they are what a checkpoint says; `sha256` None: it says nothing of them."""
    path = folder / NAME
    try:
        with path.open("rb") as file:
            kept = file.read(offset)
    except FileNotFoundError:
        kept = b""
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}; check the file") from error
    if len(kept) < offset:
        raise RunError(
            f"{path} is shorter than its checkpoint says ({len(kept)} bytes, not {offset}): lines are missing; "
            "restore it from a copy, or start anew with another --out"
        )
    if sha256 is not None and hashlib.sha256(kept).hexdigest() != sha256:
        raise RunError(
            f"{path} is not what the run wrote: a line was edited; restore it from a copy, or start anew with "
            "another --out"
        )
    return kept


def read_records(folder: Path) -> Iterator[Record]:
    """All whole records of a run folder. A torn last line, left by a killed process, is passed over."""
    path = folder / NAME
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                raise RunError(f"{path}, line {number}, is not JSON; was the file edited?") from None
            if not isinstance(record, dict) or "kind" not in record:
                raise RunError(f"{path}, line {number}, is not a record: it has no kind")
            if record["kind"] == "run":
                require_format(path, record)
            yield record


def require_format(path: Path, written: Record) -> None:
    """Of a `run` record or a `config.json`: what another version wrote is not guessed at."""
    number = written.get("format", 1)
    if number != FORMAT:
        raise RunError(
            f"{path} is of record format {number}, this version reads format {FORMAT}; "
            "use the version of Engram that wrote it, or start anew with another --out"
        )
