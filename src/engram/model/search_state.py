"""Everything that is stored, as numbers to be searched: the tensors and lists of a state, the files of a folder.

    a file of tensors     each tensor by its values, and by its bytes as they lie; the texts in its head, as JSON
    JSON, also in lines   all lists of numbers; long texts that are hexadecimal or base64, as bytes
    a picture             its pixels
    an archive            its members
    any other             its bytes

Every search is tried beforehand on known examples that are planted in every encoding: one that does not find those
proves nothing.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from engram.context import Shape
from engram.model.search_images import found_in, prints, tensors
from engram.model.search_runs import RUN, TOLERANCE, Found, Known, Rows, know, search, search_bits

LARGEST = 1 << 31
"""Bytes of a file that is read."""
TOLERANCES = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""How far a scaled run may be off that was rounded to such a type."""
PLANTED = 8
"""Known examples that are planted."""
TEXT = 128
"""Letters from which on a text may be bytes in disguise."""
PICTURES = ("PNG", "JPEG", "GIF", "BMP")
Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Sought:
    """The examples to look for."""

    known: Known
    prints: dict[bytes, int] = field(repr=False)
    """Of whole examples -> row: for those that have no run that tells."""

    @classmethod
    def of(cls, examples: Tensor) -> Sought:
        """(N, C, H, W) uint8 or (N, D) float32."""
        arrays = examples.numpy()
        hashes = prints(arrays)
        return cls(know(arrays), {one: row for row, one in enumerate(hashes)})

    @property
    def shape(self) -> Shape:
        """Of an example."""
        return tuple(self.known.examples.shape[1:])

    def __len__(self) -> int:
        return len(self.known.examples)


@dataclass(frozen=True)
class Searched:
    """What was searched, and what was found."""

    found: Found = Found()
    places: tuple[str, ...] = ()
    """Files in which something was found."""
    files: int = 0
    tensors: int = 0
    bytes: int = 0
    unread: tuple[str, ...] = ()
    """Files that could not be read."""


@dataclass(frozen=True)
class Contents:
    """Of one file, or of a state."""

    tensors: list[Tensor] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)
    """Lists of numbers out of JSON."""
    blobs: list[bytes] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """As they lie."""
        numbers = sum(one.nbytes for one in self.tensors) + sum(one.nbytes for one in self.arrays)
        return numbers + sum(map(len, self.blobs))


# ---------------------------------------------------------------- what there is


def of_tree(node: Any) -> Contents:
    """Of a state, or of any JSON value."""
    blobs = [blob for text in _texts(node) for blob in _disguised(text)]
    return Contents(list(tensors(node)), [np.array(some, np.float64) for some in _lists(node) if len(some) > 1], blobs)


def of_file(name: str, payload: bytes) -> Contents:
    """Of a file, by what its bytes turn out to be."""
    for reading in (_as_tensors, _as_json, _as_members, _as_picture):
        if (contents := reading(name, payload)) is not None:
            return contents
    return Contents(blobs=[payload])


def files_of(folder: Path) -> list[Path]:
    """All files below a folder, whatever they are called; nothing that is no plain file."""
    return sorted(path for path in folder.rglob("*") if stat.S_ISREG(path.lstat().st_mode))


def _as_tensors(name: str, payload: bytes) -> Contents | None:
    try:
        values = list(from_bytes(payload).values())
    except (SafetensorError, KeyError, ValueError, RuntimeError):
        return None
    head = of_tree(_head(payload))
    return Contents(values, head.arrays, head.blobs)


def _head(payload: bytes) -> Any:
    """What the head of a file of tensors says beside their places: texts, which may be JSON in turn."""
    head = json.loads(payload[8 : 8 + int.from_bytes(payload[:8], "little")])
    texts = list(_texts(head.get("__metadata__", {})))
    for text in [*texts]:
        with suppress(ValueError, RecursionError):
            texts.append(json.loads(text))
    return texts


def _as_json(name: str, payload: bytes) -> Contents | None:
    found = Contents()
    try:
        text = payload.decode()
        values = [json.loads(line) for line in text.splitlines() if line] if name.endswith(".jsonl") else None
        for value in values if values is not None else [json.loads(text)]:
            part = of_tree(value)
            found.arrays.extend(part.arrays)
            found.blobs.extend(part.blobs)
    except (ValueError, RecursionError):
        return None
    return found


def _as_members(name: str, payload: bytes) -> Contents | None:
    if not payload.startswith(b"PK"):
        return None
    try:
        with zipfile.ZipFile(io.BytesIO(payload)) as archive:
            small = [member for member in archive.infolist() if member.file_size <= LARGEST]
            return Contents(blobs=[archive.open(member).read(LARGEST) for member in small])
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError):
        return None


def _as_picture(name: str, payload: bytes) -> Contents | None:
    try:
        with Image.open(io.BytesIO(payload), formats=PICTURES) as picture:
            if picture.width * picture.height > LARGEST // 64:
                return None
            return Contents([torch.from_numpy(np.array(picture.convert(mode))) for mode in ("L", "RGB")])
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _lists(node: Any) -> Iterator[list[float]]:
    """The numbers of every list in a tree, those of lists within it too, in their order."""
    if isinstance(node, dict):
        for value in node.values():
            yield from _lists(value)
    elif isinstance(node, list | tuple):
        flat: list[float] = []
        for value in node:
            if isinstance(value, int | float):
                flat.append(min(max(float(value), -1e30), 1e30) if abs(value) < 1 << 1000 else 0.0)
            else:
                inner = list(_lists(value))
                if isinstance(value, list | tuple) and len(inner) == 1:
                    flat += inner[0]
                else:
                    yield from inner
        yield flat


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list | tuple):
        for value in node.values() if isinstance(node, dict) else node:
            yield from _texts(value)


def _disguised(text: str) -> Iterator[bytes]:
    """The bytes that a long text may stand for."""
    if len(text) < TEXT:
        return
    for decode in (bytes.fromhex, lambda words: base64.b64decode(words, validate=True)):
        try:
            yield decode(text)
        except (ValueError, binascii.Error):
            continue


# ---------------------------------------------------------------- the search


def searched_folder(folder: Path, sought: Sought, state: Any) -> Searched:
    """Every file of a folder; and its state, which a learner may have scaled."""
    total = Searched(found=_found_whole(state, sought))
    for path in files_of(folder):
        name = str(path.relative_to(folder))
        try:
            if path.stat().st_size > LARGEST:
                raise OSError("too large")
            contents = of_file(name, path.read_bytes())
        except OSError:
            total = _joined(total, Searched(unread=(name,)))
            continue
        total = _joined(total, replace(searched(contents, sought, name), bytes=path.stat().st_size))
    return total


def found_in_state(state: Any, sought: Sought) -> Found:
    """What lies in a state itself; a learner of vectors may have scaled them, and says how."""
    return _found_whole(state, sought) | searched(of_tree(state), sought).found


def searched(contents: Contents, sought: Sought, name: str = "") -> Searched:
    """What is found in these contents, in every encoding."""
    found = _found_whole(contents.tensors, sought)
    for numbers, tolerance in _streams(contents):
        found |= search(numbers, sought.known, tolerance=tolerance)
    for stream in _byte_streams(contents):
        found |= search_bits(stream, sought.known)
        found |= search(stream, sought.known)
    places = (name,) if found.any else ()
    return Searched(found, places, int(bool(name)), len(contents.tensors), contents.bytes)


def _joined(one: Searched, other: Searched) -> Searched:
    return Searched(
        one.found | other.found,
        one.places + other.places,
        one.files + other.files,
        one.tensors + other.tensors,
        one.bytes + other.bytes,
        one.unread + other.unread,
    )


def _found_whole(node: Any, sought: Sought) -> Found:
    """Whole examples one after the other from a tensor's beginning, also those without a run that tells."""
    known = found_in(node, sought.shape, sought.prints.keys())
    return Found(whole=frozenset(sought.prints[one] for one in known))


def _streams(contents: Contents) -> Iterator[tuple[Array, float]]:
    """The values of all numbers, one type after the other: what is spread over tensors is found as well."""
    by_type: dict[torch.dtype, list[Tensor]] = {}
    for tensor in contents.tensors:
        by_type.setdefault(tensor.dtype, []).append(tensor.reshape(-1))
    for kind, parts in by_type.items():
        if kind in (torch.bool, torch.uint8) or kind.is_complex:
            continue
        flat = torch.cat(parts)
        yield (
            (flat if kind.itemsize > 2 or not kind.is_floating_point else flat.float()).numpy(),
            TOLERANCES.get(kind, TOLERANCE),
        )
    for some in contents.arrays:
        if len(some) >= min(RUN, 8):
            yield some, TOLERANCE


def _byte_streams(contents: Contents) -> Iterator[npt.NDArray[np.uint8]]:
    """All bytes as they lie; truth values also eight to a byte."""
    parts = [tensor.contiguous().reshape(-1) for tensor in contents.tensors if tensor.numel()]
    if parts:
        yield torch.cat([part.view(torch.uint8) for part in parts]).numpy()
    truths = [np.packbits(part.numpy()) for part in parts if part.dtype == torch.bool]
    if truths:
        yield np.concatenate(truths)
    for blob in contents.blobs:
        yield np.frombuffer(blob, np.uint8)


# ---------------------------------------------------------------- the control

Encoding = Callable[[Tensor], Tensor]
ENCODINGS: dict[str, Encoding] = {
    "bytes": lambda some: some,
    "whole numbers": lambda some: some.long(),
    "0 to 1": lambda some: some.float() / 255,
    "-1 to 1": lambda some: some.float() / 127.5 - 1,
    "any a*x + b": lambda some: 0.013 * some.double() - 0.4,
    "half": lambda some: (some.float() / 127.5 - 1).half(),
    "bfloat16": lambda some: (some.float() / 127.5 - 1).bfloat16(),
    "inverted": lambda some: 1 - some.float() / 255,
    "channels last": lambda some: some.permute(0, 2, 3, 1).contiguous().float(),
    "columns first": lambda some: some.transpose(2, 3).contiguous().float(),
    "bytes of other types": lambda some: some.contiguous().reshape(-1).view(torch.float32),
    "bits": lambda some: torch.from_numpy(np.packbits(some.flatten(1).numpy() > 127, axis=1)),
}
"""Of images; each is planted behind and before other numbers."""
OF_VECTORS: dict[str, Encoding] = {
    "float32": lambda some: some,
    "any a*x + b": lambda some: 3.1 * some.double() - 7,
    "bytes of other types": lambda some: some.contiguous().reshape(-1).view(torch.int32).view(torch.float32),
}
WAYS = ("in a file of tensors", "as JSON numbers", "single rows")
"""Also planted, as grey levels. A single row is a run by which an example is known, without the rest of it."""


def control(sought: Sought, host: Iterable[Tensor]) -> dict[str, bool]:
    """By encoding, whether known examples are found that were planted in a copy of a part of what is searched."""
    rows = sought.known.telling
    rows = rows[:: max(1, len(rows) // PLANTED)][:PLANTED]
    if not len(rows):
        return {}
    some, planted = torch.from_numpy(sought.known.examples[rows]), frozenset(rows.tolist())
    around = torch.cat([torch.zeros(99), *(one.reshape(-1)[:4096].float() for one in host if one.numel())])[-4096:]

    def hidden(tensor: Tensor) -> Tensor:
        about = around.nan_to_num(0, 0, 0).clamp(0, 255).to(tensor.dtype)
        return torch.cat([about, tensor.reshape(-1), about[:77]])

    def is_found(contents: Contents) -> bool:
        return bool(searched(contents, sought).found.any & planted)

    encodings = OF_VECTORS if some.dim() == 2 else ENCODINGS
    told = {name: is_found(Contents([hidden(encode(some))])) for name, encode in encodings.items()}
    in_file = to_bytes({"kept": hidden(some.float())})
    numbers = {"a": {"b": [[0.5] * 5, some[:1].tolist()]}}
    single = _single(sought.known, some, rows)
    ways = (of_file("left.bin", in_file), of_tree(numbers), *(Contents([hidden(row)]) for row in single))
    return told | {name: is_found(contents) for name, contents in zip(WAYS, ways, strict=False)}


def _single(known: Known, some: Tensor, rows: Rows) -> list[Tensor]:
    """A run of each of these examples; nothing where an example has no more than one run, which is all of it."""
    if some[0].numel() < 2 * known.run:
        return []
    flat, found = some.reshape(len(some), -1).float(), []
    for row, example in zip(rows.tolist(), flat, strict=True):
        starts = known.starts[(known.rows == row) & (known.orders == 0)]
        found += [example[start : start + known.run] for start in starts[:1].tolist()]
    return [torch.cat(found)] if found else []
