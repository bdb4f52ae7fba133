"""A model as one file: safetensors, with everything that is no tensor as JSON in its header. Loading runs nothing.

    products-v4.engram
    ├── header    {"__metadata__": {"engram": {"format", "digest", "body", "tree"}}, tensors' places}
    └── tensors   weights, engrams, classifier

`body` says what the model is (model.py), `tree` where each tensor stands in the learner's state. `digest` is a SHA-256
over body, tree and the bits of every tensor: the model's identity, which its successors name as their parent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

from engram.errors import EngramError, RunError
from engram.experiment.checkpoint import fingerprint, lift, lower, require_finite
from engram.experiment.files import is_held, os_errors, write_atomically

SUFFIX = ".engram"
FORMAT = 1
"""Of the files that this version writes and reads."""
KEY = "engram"
"""Under which the header holds all that is ours. One key: the order of several is not fixed."""
REMEDY = "restore it from a copy"


@dataclass(frozen=True)
class Contents:
    """What a file holds."""

    body: dict[str, Any]
    state: dict[str, Any]
    digest: str


def digest_of(body: dict[str, Any], state: dict[str, Any]) -> str:
    """The model's identity."""
    text = json.dumps(body, sort_keys=True, allow_nan=False)
    return hashlib.sha256(f"{FORMAT}\n{text}\n{fingerprint(state)}".encode()).hexdigest()


def pack(body: dict[str, Any], state: dict[str, Any]) -> bytes:
    """The bytes of a file; the same for the same model."""
    require_finite(state, "the file before, if there was one, is intact")
    tensors: dict[str, torch.Tensor] = {}
    tree = lift(state, "", tensors)
    whole = {"format": FORMAT, "digest": digest_of(body, state), "body": body, "tree": tree}
    return to_bytes(tensors, {KEY: json.dumps(whole, allow_nan=False)})


def unpack(payload: bytes, origin: Path | str) -> Contents:
    """What the bytes hold, if they are whole and of a format that this version reads."""
    whole = _header(payload, origin)
    number = whole.get("format")
    if number != FORMAT:
        newer = isinstance(number, int) and number > FORMAT
        remedy = "update Engram" if newer else REMEDY
        raise RunError(f"{origin} is of model format {number!r}, this version reads format {FORMAT}; {remedy}")
    try:
        tensors = from_bytes(payload)
        if wrong := [name for name, tensor in tensors.items() if not _is_plain(tensor)]:
            raise damaged(origin, f"a truth value of {wrong[0]} is neither 0 nor 1")
        body, state = whole["body"], lower(whole["tree"], tensors)
        if digest_of(body, state) != whole["digest"]:
            raise damaged(origin, "its contents do not match their checksum")
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, RuntimeError, RecursionError) as error:
        raise damaged(origin, f"{type(error).__name__}: {error}") from error
    return Contents(body, state, whole["digest"])


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its bits have one reading: torch takes every byte but 0 for true, and copies, so the digest, say 1."""
    return tensor.dtype != torch.bool or not bool((tensor.view(torch.uint8) > 1).any())


def _header(payload: bytes, origin: Path | str) -> dict[str, Any]:
    """Our part of the header, before any tensor is looked at."""
    try:
        (size,) = struct.unpack_from("<Q", payload)
        whole = json.loads(json.loads(payload[8 : 8 + size])["__metadata__"][KEY])
    except (struct.error, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise RunError(f"{origin} is not an Engram model, or is damaged; {REMEDY}") from None
    if not isinstance(whole, dict):
        raise damaged(origin, "its header is no model's")
    return whole


def work_folder(path: Path) -> Path:
    """Where a model learns that will be written to `path`."""
    return path.with_name(f"{path.name}.learning")


def require_mine(path: Path, own: Path | None, digests: Collection[str | None]) -> None:
    """Nobody is at work on the file; and where it is a model's own, it is still a version with one of these digests.

    Who writes all the same would undo in silence what the other has done: a class comes back that was forgotten.
    """
    with os_errors(path):
        if is_held(work_folder(path)):
            raise RunError(f"{path} is in use by another process; wait for it, or save to another file")
        mine = own is not None and own.resolve() == path.resolve()
    if mine and path.is_file():
        there = None
        with contextlib.suppress(EngramError, OSError):
            there = _header(path.read_bytes(), path).get("digest")
        if there is not None and there not in digests:  # a damaged file may be replaced by a good one
            raise RunError(f"{path} was changed by another process since it was opened; open it again")


def read(path: Path) -> Contents:
    """A file's contents."""
    try:
        return unpack(path.read_bytes(), path)
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}; check the path") from error


def write(path: Path, body: dict[str, Any], state: dict[str, Any]) -> str:
    """Whole or not at all; the model's digest."""
    payload = pack(body, state)
    with os_errors(path, kept="the version before, if there was one, is intact"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, payload)
    return digest_of(body, state)


def damaged(origin: Path | str, why: str) -> RunError:
    """An error for a file that is not what it was."""
    return RunError(f"{origin} is damaged: {why}; {REMEDY}")
