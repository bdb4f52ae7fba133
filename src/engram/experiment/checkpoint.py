"""A learner's state on disc: safetensors for the tensors, JSON for the rest. Loading never runs anything.

    parts/SHA256.safetensors     what never changes again (`Unchanging`), such as an engram: written once
    checkpoint-7.safetensors     all other tensors
    checkpoint.json              {"digest", "body", "before": {"digest", "body"} of the save before, or null}
                                 body: {"format", "config_sha256", "file", "sha256", "tree", "meta"}

`checkpoint.json` is the commit point: parts and tensors are written first, under names of their own; only when they
are safely on disc is the JSON file replaced, and only then are files removed that it no longer names. A run killed
between any two of these steps finds a whole checkpoint. What a save costs depends on what can still change.

It names two saves, the last one and the one before. Every file has a SHA-256, so a flipped byte is found; a run whose
last save is damaged goes on from the one before. Numbers that are not finite are never saved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

from engram.errors import DivergedError, RunError
from engram.experiment.files import CONFIG, os_errors, remove, write_atomically
from engram.memory.unchanging import Unchanging

State = dict[str, Any]
"""A tree of dictionaries with text keys; its leaves are tensors or plain JSON values."""
Entry = dict[str, Any]
"""What `checkpoint.json` says of one save: {"digest", "body"}."""

POINTER, PARTS = "checkpoint.json", "parts"
FORMAT = 3
"""Of the checkpoints that this version writes. Before there were numbers it was 1."""
READS = (2, 3)
"""Format 2 says nothing of configuration and records, names one save, and has no parts."""
PART = "$part"
"""In a tree: here stands what the file of this SHA-256 holds."""


@dataclass(frozen=True)
class Checkpoint:
    """What was saved."""

    state: State
    meta: dict[str, Any]
    entry: Entry = field(default_factory=dict)
    """By which the next save names this one as the one before."""
    damage: str | None = None
    """What is wrong with the last save, where this is the one before it."""


class _DamagedError(RunError):
    """A save that is not what was written."""


def save(
    folder: Path,
    state: State,
    meta: dict[str, Any],
    *,
    config_sha256: str | None = None,
    before: Entry | None = None,
) -> Entry:
    """Replace the folder's checkpoint; what the next call takes as `before`. On any error the last one stays whole.

    `config_sha256`: of the configuration that the run was started with; None: of the file that is there. `before`: the
    save to keep beside this one; None: none.
    """
    require_finite(state)
    parts: dict[str, bytes] = {}
    tensors: dict[str, torch.Tensor] = {}
    tree = lift(_apart(state, folder / PARTS, parts), "", tensors)
    payload = to_bytes(tensors)
    number = 1 + max((_number(p) for p in _tensor_files(folder)), default=0)
    name = f"checkpoint-{number}.safetensors"
    body = {
        "format": FORMAT,
        "config_sha256": config_sha256 or config_digest(folder),
        "file": name,
        "sha256": hashlib.sha256(payload).hexdigest(),
        "tree": tree,
        "meta": meta,
    }
    entry = {"digest": _digest(body), "body": body}
    with os_errors(folder / name, kept="the last good checkpoint is intact"):
        for digest, part in parts.items():
            (folder / PARTS).mkdir(exist_ok=True)
            write_atomically(_part_file(folder / PARTS, digest), part)
        write_atomically(folder / name, payload)
        write_atomically(folder / POINTER, _as_text(entry, before).encode())
    _clear(folder, [entry, before])
    return entry


def load(folder: Path, *, or_before: bool = False) -> Checkpoint | None:
    """The folder's checkpoint, or None where none was saved yet.

    `or_before`: where the last save is damaged, the one before it, for who goes on from there and saves anew.
    """
    pointer = folder / POINTER
    if not pointer.exists():
        return None
    last, before = _entries(pointer)
    try:
        return _loaded(folder, last)
    except _DamagedError as error:
        if before is None:
            raise
        try:
            earlier = _loaded(folder, before)
        except _DamagedError:
            raise error from None
        if or_before:
            return replace(earlier, damage=str(error).partition(";")[0])
        raise RunError(
            f"{str(error).partition(';')[0]}; the checkpoint before it is whole: go on from there (engram run "
            "--resume, or the same engram learn), or restore the file from a copy"
        ) from None


def load_before(folder: Path) -> Checkpoint | None:
    """The save before the last one, whole or not at all; None where there is none. For who checks all that is there."""
    pointer = folder / POINTER
    _entries(pointer)
    whole = _value(pointer.read_bytes())
    if whole is None:
        raise _damaged(pointer, "not all of it is JSON")
    before = whole.get("before")
    return None if before is None else _loaded(folder, before)


def wrong_parts(folder: Path) -> list[str]:
    """Names of the parts that are not what they are named by, those that no save names among them."""
    files = [path for path in sorted((folder / PARTS).glob("*.safetensors")) if not path.name.startswith(".")]
    return [path.name for path in files if not path.is_file() or path.stem != _sha256(path)]


def left_overs(folder: Path) -> list[Path]:
    """Files of checkpoints that no save names."""
    return _unnamed(folder, _entries(folder / POINTER))


def clear_left_overs(folder: Path) -> None:
    """Remove what a process left that was killed while it saved or cleared away. For who holds the folder's lock."""
    if (folder / POINTER).exists():
        _clear(folder, _entries(folder / POINTER))


def config_digest(folder: Path) -> str | None:
    """Of the bytes of `config.json`; None where there is none."""
    try:
        return hashlib.sha256((folder / CONFIG).read_bytes()).hexdigest()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"cannot read {folder / CONFIG}: {error.strerror or error}; check the folder") from error


def require_finite(node: Any, kept: str = "the last good checkpoint is kept", path: str = "") -> None:
    """A state with a number that is none is not worth keeping. `kept`: what stays in its place, in words."""
    if isinstance(node, Unchanging) and node.digest is not None:
        return  # it was looked at when it was stored
    if isinstance(node, dict):
        for key, value in node.items():
            require_finite(value, kept, f"{path}/{key}" if path else key)
    elif isinstance(node, torch.Tensor) and node.is_floating_point() and not bool(torch.isfinite(node).all()):
        raise DivergedError(
            f"{path} holds numbers that are not finite; {kept}. Lower classifier.learning_rate or gan.learning_rate"
        )


def fingerprint(state: State) -> str:
    """A SHA-256 over every tensor's bits, shape and place in the tree, and over all plain values."""
    tensors: dict[str, torch.Tensor] = {}
    tree = lift(state, "", tensors)
    digest = hashlib.sha256(json.dumps(tree, sort_keys=True).encode())
    for key in sorted(tensors):
        digest.update(f"{key} {tensors[key].dtype} {tuple(tensors[key].shape)}".encode())
        digest.update(tensors[key].reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def lift(node: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Move the tensors of a tree into `tensors`; a marker stays where each one was."""
    if isinstance(node, torch.Tensor):
        # one copy at most, on the CPU and in plain order: safetensors knows neither devices nor strides
        tensors[path] = node.detach().to("cpu", copy=False).contiguous().clone()
        return {"$tensor": path}
    if isinstance(node, dict):
        return {key: lift(value, f"{path}/{key}", tensors) for key, value in node.items()}
    return node


def lower(node: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Put the tensors back where `lift` took them from."""
    if isinstance(node, dict):
        if set(node) == {"$tensor"}:
            return tensors[node["$tensor"]]
        return {key: lower(value, tensors) for key, value in node.items()}
    return node


# ---------------------------------------------------------------- the pointer and what it names


def _as_text(entry: Entry, before: Entry | None) -> str:
    """One JSON value, a save a line: where a byte of one is wrong, the other can still be read."""
    return f'{json.dumps(entry)[:-1]}, "before":\n{json.dumps(before)}\n}}'


def _entries(pointer: Path) -> tuple[Entry | None, Entry | None]:
    """What is said of the last save and of the one before it; None for what cannot be read."""
    try:
        text = pointer.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {pointer}: {error.strerror or error}; check the folder") from error
    whole = _value(text)
    if whole is None:
        first, _, rest = text.partition(b"\n")
        return _value(first + b"null}"), _value(rest.partition(b"\n")[0])
    return whole, whole["before"] if isinstance(whole.get("before"), dict) else None


def _value(text: bytes) -> Entry | None:
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        return value if isinstance(value, dict) else None
    return None


def _loaded(folder: Path, entry: Entry | None) -> Checkpoint:
    pointer = folder / POINTER
    try:
        if entry is None:
            raise KeyError
        body, digest = entry["body"], entry["digest"]
        name, sha256 = body["file"], body["sha256"]
    except (KeyError, TypeError):
        raise _damaged(pointer, "it is not a checkpoint") from None
    if digest != _digest(body):
        raise _damaged(pointer, "its contents do not match their checksum")
    if (number := body.get("format", 1)) not in READS:
        raise RunError(
            f"{pointer} is of checkpoint format {number}, this version reads format {FORMAT}; use the version of "
            "Engram that wrote it, or start anew with another --out"
        )
    if body.get("config_sha256") not in (None, config_digest(folder)):
        raise RunError(
            f"{folder / CONFIG} is not what the run was started with: put it back as it was. Only `runtime` may be set "
            "anew, with --set when the run goes on; for anything else start anew with another --out"
        )
    file = folder / Path(name).name
    try:
        payload = file.read_bytes()
    except OSError as error:
        raise _damaged(file, error.strerror or str(error)) from error
    if hashlib.sha256(payload).hexdigest() != sha256:
        raise _damaged(file, "its contents do not match their checksum")
    try:
        state = _together(lower(body["tree"], from_bytes(payload)), folder / PARTS)
        return Checkpoint(state, body["meta"], {"digest": digest, "body": body})
    except (safetensors.SafetensorError, KeyError) as error:
        raise _damaged(file, str(error)) from error


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _clear(folder: Path, entries: Sequence[Entry | None]) -> None:
    """Remove all files of checkpoints that these entries do not name. Who does it is alone in the folder."""
    for old in _unnamed(folder, entries):
        remove(old)


def _unnamed(folder: Path, entries: Sequence[Entry | None]) -> list[Path]:
    known = [entry["body"] for entry in entries if entry is not None and _names_file(entry)]
    named = {body["file"] for body in known}
    parts = {_part_file(folder / PARTS, digest) for body in known for digest in _parts_of(body.get("tree"))}
    tensors = [*_tensor_files(folder), *folder.glob(".*.tmp")]
    return [
        *(old for old in tensors if old.name not in named),
        *(old for old in (folder / PARTS).glob("*") if old not in parts),
    ]


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from error


def _names_file(entry: Entry) -> bool:
    return isinstance(entry.get("body"), dict) and isinstance(entry["body"].get("file"), str)


# ---------------------------------------------------------------- parts


def _apart(node: Any, folder: Path, new: dict[str, bytes]) -> Any:
    """The tree with a reference in the place of every part; `new`: the files that are not there yet, by digest."""
    if isinstance(node, Unchanging):
        if node.digest is None or not _part_file(folder, node.digest).is_file():
            tensors: dict[str, torch.Tensor] = {}
            tree = lift(node, "", tensors)
            payload = to_bytes(tensors, {PART: json.dumps(tree)})
            node.digest = hashlib.sha256(payload).hexdigest()
            if not _holds(_part_file(folder, node.digest), payload):  # a run that goes on finds them there
                new[node.digest] = payload
        return {PART: node.digest}
    return {key: _apart(value, folder, new) for key, value in node.items()} if isinstance(node, dict) else node


def _holds(file: Path, payload: bytes) -> bool:
    try:
        return file.read_bytes() == payload
    except OSError:
        return False


def _together(node: Any, folder: Path) -> Any:
    """The tree with every part in its place."""
    if not isinstance(node, dict):
        return node
    if set(node) != {PART}:
        return {key: _together(value, folder) for key, value in node.items()}
    file = _part_file(folder, Path(str(node[PART])).name)
    try:
        payload = file.read_bytes()
    except OSError as error:
        raise _damaged(file, error.strerror or str(error)) from error
    if hashlib.sha256(payload).hexdigest() != node[PART]:
        raise _damaged(file, "its contents do not match their checksum")
    head = json.loads(payload[8 : 8 + int.from_bytes(payload[:8], "little")])
    return lower(json.loads(head["__metadata__"][PART]), from_bytes(payload))


def _parts_of(tree: Any) -> Iterator[str]:
    """Digests of all parts that a tree refers to."""
    if isinstance(tree, dict):
        if set(tree) == {PART}:
            yield str(tree[PART])
        for value in tree.values():
            yield from _parts_of(value)


def _part_file(folder: Path, digest: str) -> Path:
    return folder / f"{digest}.safetensors"


def _tensor_files(folder: Path) -> list[Path]:
    return list(folder.glob("checkpoint-*.safetensors"))


def _number(path: Path) -> int:
    digits = path.stem.removeprefix("checkpoint-")
    return int(digits) if digits.isdigit() else 0


def _damaged(path: Path, why: str) -> RunError:
    return _DamagedError(f"{path} is damaged: {why}; restore it from a copy, or start anew with another --out")
