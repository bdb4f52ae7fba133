"""Every reader, given anything: a result or one line, in little memory and time. Seeds are fixed."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from engram.data import fetch as fetching
from engram.data import formats
from engram.data.images import DECODERS, decode_image
from engram.data.npz import npz_backbone, npz_features, npz_set, read_npz
from engram.data.raw import content_digest
from engram.data.recipe import Recipe
from engram.errors import DataError

TRIES = 100
MOST_BYTES, MOST_S = 64 << 20, 20.0
GREY = np.random.default_rng(0).integers(0, 256, (12, 5, 6), dtype=np.uint8)
COLOUR = np.random.default_rng(1).integers(0, 256, (40, 40, 3), dtype=np.uint8)
LABELS = np.arange(12) % 3


def made(write: Callable[..., Any], *given: Any, **named: Any) -> bytes:
    out = io.BytesIO()
    write(out, *given, **named)
    return out.getvalue()


def idx() -> bytes:
    return b"\0\0\x08\x03" + struct.pack(">III", *GREY.shape) + GREY.tobytes()


def tar(mode: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name in ("other", "x.bin"):
            info = tarfile.TarInfo(name)
            info.size = GREY.size
            archive.addfile(info, io.BytesIO(GREY.tobytes()))
    return out.getvalue()


def deb() -> bytes:
    out = b"!<arch>\n"
    for name, data in {"control.tar.xz": b"xxxxx", "data.tar.xz": tar("w:xz")}.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    return out


def svhn(*, packed: bool) -> bytes:
    x = COLOUR.reshape(4, 10, 40, 3).transpose(0, 1, 3, 2)
    return made(savemat, {"X": x, "y": np.arange(1, 41)[:, None] % 10}, do_compression=packed)


def members(path: Path) -> object:
    return list(fetching._members(path, ("x.bin",)))


def of_deb(path: Path) -> object:
    return list(fetching._members(path, ("x.bin",), fetching._data_start(path)))


def in_pieces(path: Path) -> object:
    return content_digest(read_npz(path, in_pieces=True))


ARRAYS = {"images": GREY, "labels": LABELS, "class_names": np.array(["a", "b", "c"])}
RECIPE = Recipe("x.onnx", "0" * 64, (3, 8, 8), "uint8", (), (), "features")
VECTORS = {"features": GREY.reshape(12, -1) / 7, "labels": LABELS, "backbone": np.array(RECIPE.text)}
IMAGES = {kind: made(Image.fromarray(COLOUR).save, kind) for kind in DECODERS}
GOOD: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "idx": (idx(), formats.read_idx),
    "idx.gz": (gzip.compress(idx()), formats.read_idx),
    "counted idx.gz": (gzip.compress(idx()), lambda path: formats.count_idx(path, path, path, path)),
    "mat": (svhn(packed=False), lambda path: formats.read_svhn(path, path)),
    "packed mat": (svhn(packed=True), lambda path: formats.read_svhn(path, path)),
    "counted mat": (svhn(packed=True), lambda path: formats.count_svhn(path, path)),
    "cifar": (bytes(3 * formats.CIFAR_ROW), lambda path: formats.read_cifar(path, path)),
    "npz": (made(np.savez, **ARRAYS), read_npz),
    "npz in pieces": (made(np.savez, **ARRAYS), in_pieces),
    "packed npz in pieces": (made(np.savez_compressed, **VECTORS), in_pieces),
    "packed npz": (made(np.savez_compressed, **ARRAYS), npz_set),
    "npz of vectors": (made(np.savez, **VECTORS), npz_set),
    "backbone": (made(np.savez, **VECTORS), npz_backbone),
    "npy": (made(np.save, GREY), npz_features),
    **{kind: (data, lambda path: decode_image(path, 3)) for kind, data in IMAGES.items()},
    "interlaced": (made(Image.fromarray(COLOUR).save, "png", interlace=1), lambda path: decode_image(path, 1)),
    "tar": (tar("w"), members),
    "tar.gz": (tar("w:gz"), members),
    "tar.xz": (tar("w:xz"), members),
    "deb": (deb(), of_deb),
    "labels": (b"[" + b"1, 2, 3, " * 100 + b"4]", lambda path: fetching._labels(path.read_bytes(), "x.json")),
}
WORDS = [
    b"\xff" * 4,
    b"\0" * 8,
    b"\x80\0\0\0",
    b"\x7f\xff\xff\xff",
    b"(",
    b"9" * 30,
    b"\x1b[2J",
    b"PK\1\2",
    b"\x1f\x8b",
]


def changed(data: bytes, random: np.random.Generator) -> bytes:
    """One to three changes: a bit, a byte, a piece overwritten, cut out, doubled, or the end cut off."""
    for _ in range(random.integers(1, 4)):
        at = int(random.integers(len(data) + 1) if random.random() < 0.5 else random.integers(min(len(data), 200) + 1))
        length = int(random.integers(1, 40))
        word = WORDS[random.integers(len(WORDS))]
        bit = bytes([data[at] ^ 1 << int(random.integers(8))]) if at < len(data) else b""
        data = [
            data[:at] + bit + data[at + 1 :],
            data[:at] + random.bytes(1) + data[at + 1 :],
            data[:at] + word + data[at + len(word) :],
            data[:at] + word + data[at:],
            data[:at] + data[at + length :],
            data[: at + length] + data[at:],
            data[:at],
        ][random.integers(7)]
    return data


def attempts(good: bytes, random: np.random.Generator) -> Iterator[bytes]:
    yield good
    for _ in range(TRIES):
        yield changed(good, random)
    for length in (0, 1, 10, 1000):
        yield random.bytes(length)
        yield good[:length] + random.bytes(length)


@pytest.mark.parametrize("kind", GOOD)
def test_anything_is_a_result_or_one_line(kind: str, tmp_path: Path) -> None:
    good, read = GOOD[kind]
    path, read_well, refused, random = tmp_path / "file", 0, 0, np.random.default_rng(sorted(GOOD).index(kind))
    for data in attempts(good, random):
        path.write_bytes(data)
        tracemalloc.start()
        begun = time.process_time()
        try:
            read(path)
            read_well += 1
        except DataError as error:
            refused += 1
            assert str(error).isprintable(), str(error)  # noqa: PT017
        finally:
            used, peak = time.process_time() - begun, tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < MOST_BYTES, data[:200]
        assert used < MOST_S, data[:200]
        assert read_well, "the good one comes first"
    assert refused > 0
