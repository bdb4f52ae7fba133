"""A run's facts: one JSON object a line, only ever appended. Tables and figures are derived from these alone.

Every record has a `kind`. Clock times and byte counts of the process stand in records of kind `timing` and nowhere
else, so that all other lines of two equal runs are equal to the bit.

The checkpoint remembers how long the file was when it was saved. A resumed run cuts the file back to that length:
whatever a killed process had written since, half a line included, is written again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engram.errors import RunError
from engram.experiment.files import os_errors

NAME = "records.jsonl"
FORMAT = 2
"""Of the records that this version writes and reads; the `run` record says it. Before there were numbers it was 1."""
Record = dict[str, Any]


class RecordWriter:
    """Appends records to a run folder's file, from `offset` on."""

    def __init__(self, folder: Path, offset: int = 0) -> None:
        self.path = folder / NAME
        with os_errors(self.path):
            size = self.path.stat().st_size if self.path.exists() else 0
            if size < offset:
                raise RunError(
                    f"{self.path} is shorter than its checkpoint says ({size} bytes, not {offset}): lines are missing; "
                    "restore it from a copy, or start anew with another --out"
                )
            self._file = self.path.open("r+b" if self.path.exists() else "w+b")
            self._file.truncate(offset)
            self._file.seek(offset)

    def append(self, kind: str, **fields: Any) -> Record:
        """Write one line; it is on its way to the disc when this returns."""
        record = {"kind": kind, **fields}
        line = json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n"
        with os_errors(self.path, kept="the last good checkpoint is intact"):
            self._file.write(line.encode())
            self._file.flush()
        return record

    def sync(self) -> int:
        """Force all lines to disc; the file's length in bytes."""
        with os_errors(self.path, kept="the last good checkpoint is intact"):
            os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


class Unwritten:
    """In the place of a writer where another process writes."""

    def append(self, kind: str, **fields: Any) -> Record:
        return {"kind": kind, **fields}

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
            except ValueError:
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
