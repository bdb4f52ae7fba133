"""The audit file: by which images that are gone can be looked for in a model, without keeping one of them.

    {"kind": "engram audit", "format": 1, "salt": …, "model": …}
    {"task": 0, "classes": ["mug"], "data": …, "images": 400, "prints": …}
    …
    {"sha256": …}                                                             of all lines before

A print is a hash of an image's pixels at the model's size, under the file's own salt. Whoever has the file and an
image can tell whether the image was learned from: keep it apart from the model, and delete it when it is no longer
needed. It is made where somebody asks for it and never part of a model.

The salt is the only randomness here that no seed names: it must not be known to whoever knows the seed.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engram.data.stream import ClassStream
from engram.errors import RunError
from engram.experiment.files import os_errors, write_atomically
from engram.model.lineage import Step
from engram.model.search_images import SIZE, prints

KIND, FORMAT = "engram audit", 1
SALT = 32
"""Bytes."""


@dataclass(frozen=True)
class Entry:
    """The training images of one task, those that were kept out of the training too."""

    task: int
    classes: tuple[str, ...]
    data: str
    """Digest of the data that the task was cut from."""
    prints: tuple[bytes, ...]

    @property
    def name(self) -> tuple[int, tuple[str, ...], str]:
        """By which it is told from others."""
        return self.task, self.classes, self.data

    def line(self) -> str:
        """As it stands in the file."""
        plain = {"task": self.task, "classes": self.classes, "data": self.data, "images": len(self.prints)}
        return json.dumps({**plain, "prints": b"".join(self.prints).hex()})

    def facts(self) -> dict[str, int]:
        """What the lineage says of it: how much is kept outside the model."""
        return {"bytes": len(self.line().encode()) + 1, "images": len(self.prints)}


@dataclass(frozen=True)
class Audit:
    """What a file holds."""

    salt: bytes
    model: str
    """Digest of the first data that the model has learned: the same for all its versions."""
    entries: tuple[Entry, ...] = ()

    @property
    def known(self) -> frozenset[bytes]:
        """All prints."""
        return frozenset(one for entry in self.entries for one in entry.prints)

    def covers(self, step: Step) -> bool:
        """Whether the images of a task of the lineage are in it."""
        return (step.task, step.classes, step.data.get("digest")) in {entry.name for entry in self.entries}


def note(path: Path, stream: ClassStream, *, data: str, model: str) -> dict[int, dict[str, int]]:
    """Add the tasks of a stream that has not begun, each once; the facts of all tasks of this data, by their index.

    It is done before the first task, as its images are gone after it. `data`: the digest of the stream's data;
    `model`: of the first data that the model has learned.
    """
    audit = read(path, model) if path.exists() else Audit(secrets.token_bytes(SALT), model)
    there = {entry.name for entry in audit.entries}
    new = [entry for entry in _entries(stream, data, audit.salt) if entry.name not in there]
    if new:
        audit = replace(audit, entries=(*audit.entries, *new))
        write(path, audit)
    return {entry.task: entry.facts() for entry in audit.entries if entry.data == data}


def _entries(stream: ClassStream, data: str, salt: bytes) -> list[Entry]:
    return [
        Entry(
            stream.start + place,
            tuple(stream.class_names[number] for number in classes),
            data,
            tuple(prints(stream.images_of(place), salt)),
        )
        for place, classes in enumerate(stream.tasks)
    ]


def write(path: Path, audit: Audit) -> None:
    """Whole or not at all."""
    head = {"kind": KIND, "format": FORMAT, "salt": audit.salt.hex(), "model": audit.model}
    text = "".join(f"{line}\n" for line in (json.dumps(head), *(entry.line() for entry in audit.entries)))
    text += json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest()}) + "\n"
    with os_errors(path, kept="nothing was learned"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())


def read(path: Path, model: str | None) -> Audit:
    """Of the model that began with this data; every mistake in the file is one line."""
    try:
        payload = path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}; check the path") from error
    body, _, last = payload.rstrip(b"\n").rpartition(b"\n")
    head = _head(path, payload)
    if head["format"] != FORMAT:
        raise RunError(
            f"{path} is of audit format {head['format']!r}, this version reads format {FORMAT}; "
            "use the version of Engram that wrote it"
        )
    if last != json.dumps({"sha256": hashlib.sha256(body + b"\n").hexdigest()}).encode():
        raise RunError(f"{path} is damaged: its contents do not match their checksum; restore it from a copy")
    try:
        audit = Audit(bytes.fromhex(head["salt"]), head["model"], tuple(map(_entry, body.splitlines()[1:])))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise RunError(f"{path} is damaged: {type(error).__name__}: {error}; restore it from a copy") from error
    if audit.model != model:
        raise RunError(f"{path} is the audit file of another model; name this model's own, or a new file")
    return audit


def _head(path: Path, payload: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        head = json.loads(payload.partition(b"\n")[0])
        if isinstance(head, dict) and head.get("kind") == KIND and "format" in head:
            return head
    raise RunError(f"{path} is not an audit file, or is damaged; name the file that `engram learn --audit` wrote")


def _entry(line: bytes) -> Entry:
    plain = json.loads(line)
    size = len(plain["prints"]) // 2  # they stand in hexadecimal
    if type(plain["images"]) is not int or size != SIZE * plain["images"]:
        raise ValueError(f"task {plain['task']} has {plain['images']} images and {size} bytes of prints")
    joined = bytes.fromhex(plain["prints"])
    each = tuple(joined[at : at + SIZE] for at in range(0, len(joined), SIZE))
    return Entry(int(plain["task"]), tuple(map(str, plain["classes"])), str(plain["data"]), each)


def missing_from(audit: Audit, lineage: Sequence[Step]) -> list[Step]:
    """The tasks that were learned without the audit file."""
    return [step for step in lineage if step.kind == "learned" and not audit.covers(step)]
