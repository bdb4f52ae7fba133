"""What is inside a file: members of a zip, a gzip's contents, chunks of a PNG, JSON in a model's header.

Put back with the box's own checksum made right again. A box that cannot be opened has no parts.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import load, save

PACKED = 15
"""The type of an element of a MATLAB file that is compressed."""
TENSOR_EDITS = (
    "nan", "huge", "ones", "flat", "turned", "longer", "shorter", "empty", "bytes", "int64", "double", "bool", "lose",
    "other",
)  # fmt: skip
Files = dict[str, bytes]


def parts(name: str, content: bytes) -> list[str]:
    """Names of what is inside a file."""
    try:
        if name.endswith(".npz"):
            with zipfile.ZipFile(io.BytesIO(content)) as box:
                return box.namelist()
        if name.endswith((".gz", ".tgz")):
            return ["gzip"]
        if name.endswith(".png") and content[:4] == b"\x89PNG":
            return [str(number) for number, _ in enumerate(_chunks(content))]
        if name.endswith(".mat"):
            return [str(number) for number, (kind, _) in enumerate(_elements(content)) if kind == PACKED]
        if holds_tensors(name):
            return ["engram"] * 4 + ["places"] if "__metadata__" in _head(content) else ["places"]
    except (ValueError, struct.error, zipfile.BadZipFile):
        pass
    return []


def inside(files: Files | Any, name: str) -> bytes:
    """The contents of a file, or of what is inside it."""
    outer, _, inner = name.partition("!")
    content: bytes = files[outer]
    if not inner:
        return content
    try:
        if outer.endswith(".npz"):
            with zipfile.ZipFile(io.BytesIO(content)) as box:
                return box.read(inner)
        if inner == "gzip":
            return gzip.decompress(content)
        if outer.endswith(".png"):
            return b"".join(_chunks(content)[int(inner)])
        if outer.endswith(".mat"):
            return zlib.decompress(_elements(content)[int(inner)][1])
        head = _head(content)
        return head["__metadata__"]["engram"].encode() if inner == "engram" else json.dumps(head).encode()
    except (OSError, EOFError, zlib.error, struct.error, zipfile.BadZipFile) as error:
        raise ValueError(name) from error


def put(files: Files, name: str, new: bytes) -> None:
    """Write a file's contents, or what is inside it."""
    outer, _, inner = name.partition("!")
    content = files.get(outer, b"")
    if not inner:
        files[outer] = new
    elif outer.endswith(".npz"):
        files[outer] = _zipped(
            {part: inside(files, f"{outer}!{part}") for part in parts(outer, content)} | {inner: new}
        )
    elif inner == "gzip":
        files[outer] = gzip.compress(_tar_summed(new) if "tar" in outer or outer.endswith(".tgz") else new, mtime=0)
    elif outer.endswith(".png"):
        chunks = _chunks(content)
        chunks[int(inner)] = new[:4], new[4:]
        files[outer] = content[:8] + b"".join(_chunk(*chunk) for chunk in chunks)
    elif outer.endswith(".mat"):
        elements = _elements(content)
        elements[int(inner)] = PACKED, zlib.compress(new)
        files[outer] = content[:128] + b"".join(struct.pack("<II", kind, len(body)) + body for kind, body in elements)
    elif inner == "engram":
        head = _head(content)
        head["__metadata__"]["engram"] = new.decode()
        files[outer] = _with_head(content, json.dumps(head))
    else:
        files[outer] = _with_head(content, new.decode())


def document(name: str, content: bytes) -> Any:
    """A file of JSON, or of JSON lines, as Python values; None for all others."""
    try:
        if name.endswith((".json", "!places", "!engram")):
            return json.loads(content)
        if name.endswith((".jsonl", ".audit")):
            return [json.loads(line) for line in content.splitlines()]
    except (ValueError, RecursionError):
        pass
    return None


def written(name: str, old: bytes, new: Any, dumps: Callable[[Any], str]) -> bytes:
    """The values as the file has them."""
    if name.endswith((".jsonl", ".audit")):
        return "".join(f"{dumps(line)}\n" for line in new).encode()
    return dumps(new).encode()


def _zipped(members: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as box:
        for name, content in members.items():
            box.writestr(zipfile.ZipInfo(name), content)
    return made.getvalue()


def _elements(content: bytes) -> list[tuple[int, bytes]]:
    """Of a MATLAB file: (type, data), one a variable."""
    at, found = 128, []
    while at + 8 <= len(content):
        kind, size = struct.unpack_from("<II", content, at)
        found.append((kind, content[at + 8 : at + 8 + size]))
        at += 8 + size
    return found


def _tar_summed(content: bytes) -> bytes:
    """With the checksum of every header made right."""
    made = bytearray(content)
    for at in range(0, len(made) - 511, 512):
        if made[at + 257 : at + 262] == b"ustar":
            made[at + 148 : at + 156] = b" " * 8
            made[at + 148 : at + 156] = b"%06o\0 " % sum(made[at : at + 512])
    return bytes(made)


def holds_tensors(name: str) -> bool:
    """Whether a file is one of tensors."""
    return name.endswith((".engram", ".safetensors"))


def with_tensor(content: bytes, which: int, how: str) -> bytes:
    """One tensor made another; header and places fit it."""
    tensors = load(content)
    key = sorted(tensors)[which % len(tensors)]
    old = tensors[key]
    match how:
        case "nan" if old.is_floating_point():
            tensors[key] = torch.full_like(old, float("nan"))
        case "huge" if old.is_floating_point():
            tensors[key] = torch.full_like(old, 3e38)
        case "ones":
            tensors[key] = torch.ones_like(old)
        case "flat":
            tensors[key] = old.reshape(-1)
        case "turned":
            tensors[key] = old.T.contiguous() if old.dim() == 2 else old[None]
        case "longer":
            tensors[key] = torch.cat([old.reshape(old.shape or (1,))] * 2)
        case "shorter":
            tensors[key] = old[: len(old) // 2].contiguous()
        case "empty":
            tensors[key] = old.reshape(-1)[:0]
        case "bytes":
            tensors[key] = old.to(torch.uint8)
        case "int64":
            tensors[key] = old.to(torch.int64)
        case "double":
            tensors[key] = old.to(torch.float64)
        case "bool":
            tensors[key] = old != 0
        case "lose":
            del tensors[key]
        case _:
            tensors[key] = tensors[sorted(tensors)[which * 7 % len(tensors)]].clone()
    return save(tensors, _head(content).get("__metadata__"))


def _chunks(content: bytes) -> list[tuple[bytes, bytes]]:
    at, found = 8, []
    while at + 12 <= len(content):
        (size,) = struct.unpack_from(">I", content, at)
        found.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + size]))
        at += 12 + size
    return found


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _head(content: bytes) -> Any:
    (size,) = struct.unpack_from("<Q", content)
    return json.loads(content[8 : 8 + size])


def _with_head(content: bytes, head: str) -> bytes:
    (size,) = struct.unpack_from("<Q", content)
    raw = head.encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw + content[8 + size :]
