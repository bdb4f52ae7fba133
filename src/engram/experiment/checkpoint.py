"""A learner's state on disc: safetensors for the tensors, JSON for the rest. Loading never runs anything.

    checkpoint-7.safetensors     the tensors
    checkpoint.json              {"digest": …, "body": {"format", "file", "sha256", "tree", "meta"}}

`checkpoint.json` is the commit point: the tensors are written first, under a name of their own; only when they
are safely on disc is the JSON file replaced, and only then is the old tensor file removed. A run killed between any
two of these steps finds a whole checkpoint. Both files carry a SHA-256, so a flipped byte is found.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

from engram.errors import RunError
from engram.experiment.files import os_errors, read_json, write_atomically

State = dict[str, Any]
"""A tree of dictionaries with text keys; its leaves are tensors or plain JSON values."""

POINTER = "checkpoint.json"
FORMAT = 2
"""Of the checkpoints that this version writes and reads. Before there were numbers it was 1."""


@dataclass(frozen=True)
class Checkpoint:
    """What was saved."""

    state: State
    meta: dict[str, Any]


def save(folder: Path, state: State, meta: dict[str, Any]) -> None:
    """Replace the folder's checkpoint. On any error the one before stays whole."""
    tensors: dict[str, torch.Tensor] = {}
    tree = lift(state, "", tensors)
    payload = to_bytes(tensors)
    number = 1 + max((_number(p) for p in _tensor_files(folder)), default=0)
    name = f"checkpoint-{number}.safetensors"
    digest = hashlib.sha256(payload).hexdigest()
    body = {"format": FORMAT, "file": name, "sha256": digest, "tree": tree, "meta": meta}
    with os_errors(folder / name, kept="the last good checkpoint is intact"):
        write_atomically(folder / name, payload)
        write_atomically(folder / POINTER, json.dumps({"digest": _digest(body), "body": body}).encode())
    # a process killed while it wrote leaves its temporary file; whoever saves is alone in the folder
    for old in [*_tensor_files(folder), *folder.glob(".*.tmp")]:
        if old.name != name:
            with contextlib.suppress(OSError):
                old.unlink()


def load(folder: Path) -> Checkpoint | None:
    """The folder's checkpoint, or None where none was saved yet."""
    pointer = folder / POINTER
    if not pointer.exists():
        return None
    whole = read_json(pointer)
    try:
        body, digest = whole["body"], whole["digest"]
        name, sha256 = body["file"], body["sha256"]
    except (KeyError, TypeError):
        raise _damaged(pointer, "it is not a checkpoint") from None
    if digest != _digest(body):
        raise _damaged(pointer, "its contents do not match their checksum")
    if (number := body.get("format", 1)) != FORMAT:
        raise RunError(
            f"{pointer} is of checkpoint format {number}, this version reads format {FORMAT}; use the version of "
            "Engram that wrote it, or start anew with another --out"
        )
    file = folder / Path(name).name
    try:
        payload = file.read_bytes()
    except OSError as error:
        raise _damaged(file, error.strerror or str(error)) from error
    if hashlib.sha256(payload).hexdigest() != sha256:
        raise _damaged(file, "its contents do not match their checksum")
    try:
        tensors = from_bytes(payload)
        return Checkpoint(lower(body["tree"], tensors), body["meta"])
    except (safetensors.SafetensorError, KeyError) as error:
        raise _damaged(file, str(error)) from error


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


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _tensor_files(folder: Path) -> list[Path]:
    return list(folder.glob("checkpoint-*.safetensors"))


def _number(path: Path) -> int:
    digits = path.stem.removeprefix("checkpoint-")
    return int(digits) if digits.isdigit() else 0


def _damaged(path: Path, why: str) -> RunError:
    return RunError(f"{path} is damaged: {why}; restore it from a copy, or start anew with another --out")
