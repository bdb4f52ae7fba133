"""Edits of a folder's files, as plain lists that JSON can hold: bytes, JSON values, and what kind of place a file is.

Names: `a.npz` is a file, `a.npz!images.npy` what is inside it (see `boxes.py`), so that an edit gets behind checksums.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

from fuzzing import boxes

Files = dict[str, bytes]
"""Path below the folder -> contents."""
Edit = list[Any]
"""[what, name, …]"""

BYTES = (0, 1, 2, 7, 8, 9, 10, 13, 27, 32, 34, 45, 46, 47, 57, 92, 123, 127, 128, 250, 254, 255)
NUMBERS = (0, 1, -1, 2, 3, 127, 255, 256, 32767, 65535, 65536, 10**6, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1)
RAW = {
    "nested": "[" * 100_000 + "]" * 100_000, "digits": "9" * 5000, "NaN": "NaN", "Infinity": "Infinity",
    "-Infinity": "-Infinity", "1e400": "1e400", "1e308": "1e308", "-1e308": "-1e308", "5e-324": "5e-324",
}  # fmt: skip
"""Texts in the place of a JSON value, which Python could not write."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 5, 0.5, -0.5, 10**6, 10**9, 2**31, 2**63, -(2**63) - 1, 10**30, "", "x", "0", "-1",
    "1e9", "none", "auto", "\x1b[31mred\x1b[0m", "two\nlines", "\ud800", "../../up", "/dev/zero", "a\0b", "é" * 300,
    [], {}, [[]], [0], [1, 2, 3], {"": 0}, [None], ["x"], [-1, -1, -1], [10**6, 10**6, 10**6], {"$tensor": "nowhere"},
)  # fmt: skip
PLACES = ("gone", "empty", "folder", "loop", "dangling", "up", "pipe")
MARK = "@raw:"


def draw(draws: random.Random, files: Mapping[str, bytes]) -> list[Edit]:
    """One to four edits of these files; rarely of their places."""
    names, edits = sorted(files), list[Edit]()
    if draws.random() < 0.02:
        name = draws.choice(names)  # a file at the top was named by a person, who may well have named a pipe
        return [["place", name, draws.choice(PLACES if "/" in name else PLACES[:-1])]]
    deep = draws.random() < 0.85  # into boxes and documents, behind what a checksum finds
    for _ in range(draws.choice((1, 1, 1, 2, 2, 3, 4))):
        name = draws.choice(names)
        inner = boxes.parts(name, files[name]) if deep else []
        if boxes.holds_tensors(name) and deep and draws.random() < (0.3 if name.endswith(".engram") else 0.7):
            edits.append(["tensor", name, draws.randrange(1000), draws.choice(boxes.TENSOR_EDITS)])
            continue
        if inner:
            name = f"{name}!{draws.choice(inner)}"
        content = boxes.inside(files, name)
        document = boxes.document(name, content) if deep else None
        if document is not None:
            edits.append(_of_json(draws, name, document))
        elif content:
            edits.append(_of_bytes(draws, name, content))
    if draws.random() < 0.95:
        edits.append(["seal"])
    return edits


def _of_bytes(draws: random.Random, name: str, content: bytes) -> Edit:
    # headers stand in front: half of all edits go there
    reach = min(len(content), 160) if draws.random() < 0.5 else len(content)
    at, length = draws.randrange(reach), draws.choice((1, 2, 4, 8, 64, 1000))
    match draws.choice(
        ("flip", "flip", "set", "set", "int", "int", "cut", "insert", "repeat", "drop", "number", "swap")
    ):
        case "flip":
            return ["flip", name, at, draws.randrange(8)]
        case "set":
            return ["set", name, at, draws.choice(BYTES)]
        case "int":
            return ["int", name, at, draws.choice((1, 2, 4, 8)), draws.choice(("big", "little")), draws.choice(NUMBERS)]
        case "cut":
            return ["cut", name, at]
        case "insert":
            return ["insert", name, at, draws.randbytes(min(length, 64)).hex()]
        case "repeat":
            return ["repeat", name, at, length, draws.choice((1, 2, 100))]
        case "drop":
            return ["drop", name, at, length]
        case "number":
            return ["number", name, draws.randrange(40), draws.choice(("0", "-1", "1e9", "4294967296", "9" * 30, "x"))]
        case _:
            return ["swap", name, at, draws.randrange(len(content)), length]


def _of_json(draws: random.Random, name: str, document: Any) -> Edit:
    path = _path(draws, document)
    match draws.choice(("put", "put", "put", "raw", "lose", "twice", "move", "scale")):
        case "put":
            return ["put", name, path, draws.choice(VALUES)]
        case "raw":
            return ["put", name, path, MARK + draws.choice(sorted(RAW))]
        case "lose":
            return ["lose", name, path]
        case "twice":
            return ["twice", name, path]
        case "scale":
            return ["scale", name, path, draws.choice((-1, 0.5, 2, 1000, 10**6, 1e300))]
        case _:
            return ["move", name, path, _path(draws, document)]


def _path(draws: random.Random, node: Any) -> list[Any]:
    """Down from the top by chance, so that a long list does not drown what stands beside it."""
    path: list[Any] = []
    while isinstance(node, dict | list) and node and (not path or draws.random() < 0.85):
        key = draws.choice(list(node)) if isinstance(node, dict) else draws.randrange(len(node))
        path.append(key)
        node = node[key]
    return path


# ---------------------------------------------------------------- applying


def apply(files: Mapping[str, bytes], edits: list[Edit], seal: Callable[[Files], None]) -> tuple[Files, dict[str, str]]:
    """The edited files, and places that are no plain files any more. An edit that does not fit changes nothing."""
    edited, places = dict(files), dict[str, str]()
    for what, *words in edits:
        try:
            if what == "seal":
                seal(edited)
            elif what == "place":
                places[words[0]] = words[1]
            else:
                name, *rest = words
                content = boxes.inside(edited, name)
                if what == "tensor":
                    new = boxes.with_tensor(content, *rest)
                else:
                    new = _json(what, name, content, rest) if what in JSON else _bytes(what, content, rest)
                boxes.put(edited, name, new)
        except Exception:  # of as many kinds as there are edits and formats
            continue
    return edited, places


JSON = ("put", "lose", "twice", "move", "scale")


def _bytes(what: str, content: bytes, words: list[Any]) -> bytes:
    made = bytearray(content)
    match what, words:
        case "flip", [at, bit]:
            made[at] ^= 1 << bit
        case "set", [at, value]:
            made[at] = value
        case "int", [at, width, order, value]:
            made[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, order)
        case "cut", [at]:
            del made[at:]
        case "insert", [at, text]:
            made[at:at] = bytes.fromhex(text)
        case "repeat", [at, length, times]:
            made[at:at] = made[at : at + length] * times
        case "drop", [at, length]:
            del made[at : at + length]
        case "swap", [a, b, length]:
            made[a : a + length], made[b : b + length] = made[b : b + length], made[a : a + length]
        case "number", [which, text]:
            found = list(re.finditer(rb"\d+", content))
            start, end = found[which % len(found)].span()
            made[start:end] = text.encode()
        case _:
            raise ValueError(what)
    return bytes(made)


def _json(what: str, name: str, content: bytes, words: list[Any]) -> bytes:
    document = boxes.document(name, content)
    path = list(words[0])
    if not path or document is None:
        raise ValueError("no such document")
    *way, last = path
    holder = _at(document, way)
    if what == "put":
        holder[last] = words[1]
    elif what == "lose":
        del holder[last]
    elif what == "twice":
        holder.insert(last, holder[last])
    elif what == "scale":
        holder[last] = holder[last] * words[1]
    else:
        holder[last] = _at(document, words[1])
    return boxes.written(name, content, document, _raw)


def _at(node: Any, path: list[Any]) -> Any:
    for key in path:
        node = node[key]
    return node


def _raw(document: Any) -> str:
    """JSON, with the texts that Python could not write in their places."""
    text = json.dumps(document)
    return re.sub(rf'"{MARK}([^"]+)"', lambda found: RAW[found[1]], text)
