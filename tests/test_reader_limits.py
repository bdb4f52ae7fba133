"""Files that promise more than they may, or are none at all: refused in one line, before memory or time is spent."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image, ImageFile

from engram.data import fetch as fetching
from engram.data import formats, limits, sources
from engram.data.datasets import check, load_dataset, survey
from engram.data.images import decode_image
from engram.data.npz import npz_features, read_npz
from engram.data.raw import content_digest
from engram.errors import DataError
from engram.model.inputs import as_images

GREY = np.random.default_rng(0).integers(0, 256, (12, 5, 6), dtype=np.uint8)
LABELS = np.arange(12) % 3
MB = 1 << 20


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(DataError) as caught:
        call()
    assert str(caught.value).isprintable()
    return str(caught.value)


@contextmanager
def little_memory(most: int = 40 * MB) -> Iterator[None]:
    """Python's and numpy's own, at its highest. The sizes below are a hundred times as large."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most, f"{peak:,} bytes"


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, rows: bytes, *, depth: int = 8, colour: int = 2, interlaced: int = 0) -> bytes:
    """By the definition of the format, without Pillow."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    palette = chunk(b"PLTE", bytes(range(6))) if colour == 3 else b""
    parts = chunk(b"IHDR", head) + palette + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


# ---------------------------------------------------------------- images


TOO_LARGE = [(1, 80_000_000), (80_000_000, 1), (1, limits.SIDE + 1), (8193, 8192), (30_000, 30_000)]


@pytest.mark.parametrize("size", TOO_LARGE)
def test_large_images_are_refused_by_their_header(
    tmp_path: Path, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """43 kB of PNG once took 10 GB."""

    def never(*_: object) -> None:
        raise AssertionError("decoded")

    path = tmp_path / "a" / "x.png"
    path.parent.mkdir()
    path.write_bytes(png(*size, b""))
    monkeypatch.setattr(ImageFile.ImageFile, "load", never)
    with little_memory():
        for call in (
            lambda: decode_image(path, 3),
            lambda: decode_image(path.read_bytes(), 3),
            lambda: as_images(path, (3, 32, 32)),
            lambda: formats.read_own_folder(tmp_path),
        ):
            text = refusal(call)
            assert "limit" in text
            assert "scale the image down" in text
        if size != TOO_LARGE[-1]:  # that one Pillow itself does not open
            with Image.open(path) as image:
                assert "scale the image down" in refusal(lambda: decode_image(image, 3))


def test_the_largest_image_is_read() -> None:
    image = decode_image(png(limits.SIDE, 1, b"\0" + bytes([1, 2, 3]) * limits.SIDE), 3)
    assert image.shape == (3, 1, limits.SIDE)


def test_a_large_file_of_an_image_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "x.jpg").open("wb") as file:
        file.write(b"\xff\xd8")
        file.truncate(limits.IMAGE_FILE + 1)
    assert "bytes of an image file: 268,435,457, the limit is 268,435,456" in refusal(
        lambda: decode_image(tmp_path / "x.jpg", 3)
    )


ROWS = {(2, 8): 1 + 3 * 7, (0, 8): 1 + 7, (0, 1): 1 + 1, (3, 2): 1 + 2, (4, 8): 1 + 2 * 7, (6, 16): 1 + 8 * 7}
"""Type of colour and depth -> bytes of a row of 7 pixels."""


@pytest.mark.parametrize("kind", ROWS)
def test_rows_that_are_missing_are_not_black(kind: tuple[int, int]) -> None:
    """The stream of such a file is whole and its checksums are right: Pillow shows the rest as black."""
    colour, depth = kind
    row = b"\0" * ROWS[kind]
    white = b"\0" + b"\xff" * (ROWS[kind] - 1)
    for rows in (row * 9, white * 9, white * 8 + row):
        decode_image(png(7, 9, rows, depth=depth, colour=colour), 3)
    for rows in (row * 8, white * 8, white):
        assert "rows are missing" in refusal(lambda r=rows: decode_image(png(7, 9, r, depth=depth, colour=colour), 3))  # type: ignore[misc]


def test_passes_that_are_missing_are_not_black() -> None:
    """Seven passes over an image of 7 x 9: 1, 1, 1, 2, 3, 4 and 4 rows of 1, 1, 2, 2, 4, 3 and 7 pixels."""
    sizes = [(2, 1), (2, 1), (1, 2), (3, 2), (2, 4), (5, 3), (4, 7)]
    whole = b"".join(rows * (b"\0" + b"\x80" * pixels) for rows, pixels in sizes)
    decode_image(png(7, 9, whole, colour=0, interlaced=1), 1)
    for length in (len(whole) - 8, len(whole) - 32, 4):
        assert "rows are missing" in refusal(
            lambda n=length: decode_image(png(7, 9, whole[:n], colour=0, interlaced=1), 1)  # type: ignore[misc]
        )


def test_truncated_images_are_never_filled_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    Image.fromarray(GREY[0]).save(tmp_path / "x.png")
    assert "LOAD_TRUNCATED_IMAGES = False" in refusal(lambda: decode_image(tmp_path / "x.png", 1))


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
STARTED: list[str] = []
WATCHED = {"subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.fork", "os.forkpty"}
OPENED: set[str] = set()


def watch(event: str, what: tuple[object, ...]) -> None:
    """A hook that can never be taken away again, so that it keeps little."""
    if event in WATCHED:
        STARTED.append(event)
    elif event == "open" and "test_pipes_are" in str(what[0]):
        OPENED.add(str(what[0]))


sys.addaudithook(watch)


def test_no_program_is_started_by_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gs").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    for name in ("0", "1"):
        (tmp_path / "set" / name).mkdir(parents=True)
        (tmp_path / "set" / name / "x.png").write_bytes(EPS)
    path = tmp_path / "set" / "0" / "x.png"
    STARTED.clear()
    for call in (
        lambda: decode_image(path, 3),
        lambda: decode_image(EPS, 3),
        lambda: as_images([path], (3, 32, 32)),
        lambda: load_dataset(f"folder:{tmp_path / 'set'}"),
    ):
        assert "no readable PNG, JPEG, WebP or BMP image" in refusal(call)
    assert STARTED == []
    with suppress(OSError, subprocess.SubprocessError), Image.open(path) as image:
        image.load()
    assert STARTED != [], "Pillow itself would start one, and the test would see it"


# ---------------------------------------------------------------- IDX, CIFAR


def test_an_idx_file_unpacks_to_what_its_header_promises_and_one_byte(tmp_path: Path) -> None:
    """6.5 MB of gzip once unpacked to 5 GB."""
    path, bomb = tmp_path / "x.gz", gzip.compress(bytes(200 * MB), 9)
    small = gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 7))
    with little_memory():
        path.write_bytes(bomb)
        assert "no IDX file" in refusal(lambda: formats.read_idx(path))
        path.write_bytes(small + bomb)
        assert "promises 7 bytes (7,), it holds 8 or more" in refusal(lambda: formats.read_idx(path))
        path.write_bytes(gzip.compress(b"\0\0\x08\x03" + struct.pack(">III", 2**32 - 1, 2**32 - 1, 2**32 - 1)) + bomb)
        assert "the limit is 2,147,483,648; take fewer images" in refusal(lambda: formats.read_idx(path))
        path.write_bytes(gzip.compress(b"\0\0\x08\x03" + struct.pack(">III", 2**10, 2**10, 2**10)))
        assert "1,073,741,824 bytes are promised, far more than it can hold" in refusal(lambda: formats.read_idx(path))
        path.write_bytes(gzip.compress(b"\0\0\x08\x03" + struct.pack(">III", 0, 2**32 - 1, 2**32 - 1)))
        refusal(lambda: formats.read_idx(path))
    path.write_bytes(small + gzip.compress(b"1234567") + bytes(100))
    assert formats.read_idx(path).tobytes() == b"1234567", "gzip may have members, and zeros behind them"
    path.write_bytes(small + gzip.compress(b"1234567") + b"more")
    refusal(lambda: formats.read_idx(path))


def test_a_file_with_holes_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.truncate(formats.CIFAR_ROW * 10**7)
    with little_memory():
        assert "bytes of images: 30,730,000,000, the limit is 2,147,483,648" in refusal(
            lambda: formats.read_cifar(path, path)
        )
        refusal(lambda: formats.read_idx(path))


# ---------------------------------------------------------------- npz


def npy(array: Any, *, shape: object = None, kind: object = None) -> bytes:
    """An array in numpy's format; `shape` and `kind` in its header may lie."""
    found = np.asarray(array)
    head = str({"descr": kind or found.dtype.str, "fortran_order": False, "shape": shape or found.shape}).encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(head) + 1) + head + b"\n" + found.tobytes()


def archive(path: Path, members: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


LIES = {
    "more than it holds": npy(GREY, shape=(10**6, 5, 6)),
    "less than it holds": npy(GREY, shape=(11, 5, 6)),
    "sizes below 0": npy(GREY, shape=(-12, -5, 6)),
    "more than memory holds": npy(GREY, shape=(2**62, 2**62, 2**62)),
    "a size that is no number": npy(GREY, shape=("x",)),
    "values of no bytes": npy(GREY[:0], shape=(10**12, 5, 6), kind="<U0"),
    "objects": npy(GREY, kind="|O"),
    "a type that is none": npy(GREY, kind="nothing"),
    "code for a header": npy(GREY, kind="__import__('os').abort()"),
    "a header of another version": b"\x93NUMPY\7\0" + npy(GREY)[8:],
    "a long header": b"\x93NUMPY\2\0" + struct.pack("<I", 2**31) + npy(GREY)[10:],
    "nested brackets": npy(GREY, shape="(" * 5000),
    "no array": b"some text",
    "nothing": b"",
}


@pytest.mark.parametrize("case", LIES)
def test_headers_of_arrays_that_lie(tmp_path: Path, case: str) -> None:
    path = tmp_path / "a.npz"
    with little_memory():
        for member in ("images", "features", "labels"):
            good = {"images": npy(GREY), "labels": npy(LABELS)}
            archive(path, good | {member: LIES[case]})
            text = refusal(lambda: read_npz(path))
            assert str(path) in text
            assert refusal(lambda: content_digest(read_npz(path, in_pieces=True))) == text
        (tmp_path / "a.npy").write_bytes(LIES[case])
        refusal(lambda: npz_features(tmp_path / "a.npy"))


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    np.savez(tmp_path / "a.npz", images=np.array([Evil()], object), labels=np.array([0]))
    assert "Object arrays are never loaded" in refusal(lambda: read_npz(tmp_path / "a.npz"))
    np.save(tmp_path / "a.npy", np.array([Evil()], object))
    refusal(lambda: npz_features(tmp_path / "a.npy"))
    assert not (tmp_path / "ran").exists()
    with np.load(tmp_path / "a.npz", allow_pickle=True) as held:
        held["images"]
    assert (tmp_path / "ran").exists(), "it would have run"


def test_what_a_zip_file_unpacks_to_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all arrays together; what is not compressed needs none, for it cannot hold more than the file."""
    path, members = tmp_path / "a.npz", {"images": npy(np.zeros((2000, 32, 32), np.uint8)), "labels": npy(LABELS)}
    total = sum(map(len, members.values()))
    monkeypatch.setattr(limits, "UNPACKED", total - 1)
    text = refusal(lambda: read_npz(archive(path, members)))
    assert f"bytes when it is unpacked: {total:,}, the limit is {total - 1:,}; write it with numpy.savez" in text
    assert refusal(lambda: read_npz(path, in_pieces=True)) == text
    assert "labels" in refusal(lambda: read_npz(archive(path, members, zipfile.ZIP_STORED)))
    for kind in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        assert "packed in another way" in refusal(lambda k=kind: read_npz(archive(path, members, k)))  # type: ignore[misc]


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """A zip file may name one place twice: of every byte in the file so many would be made."""
    path = archive(tmp_path / "a.npz", {"train_images": npy(GREY), "test__images": npy(GREY)}, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    first, second = (data.rindex(name) for name in (b"train_images", b"test__images"))
    data[second : second + 12] = b"test_images "[:12]
    data[second - 4 : second] = data[first - 4 : first]
    path.write_bytes(data)
    refusal(lambda: read_npz(path))
    refusal(lambda: read_npz(path, in_pieces=True))


def test_a_file_that_changes_between_its_pieces_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", {"images": npy(GREY), "labels": npy(LABELS)})
    raw = read_npz(path, in_pieces=True)
    archive(path, {"images": npy(GREY[:, :4]), "labels": npy(LABELS)})
    assert "images was changed while it was read" in refusal(lambda: content_digest(raw))
    os.remove(path)
    assert "no such file" in refusal(lambda: content_digest(raw))


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"labels": np.arange(70_000), "images": np.zeros((70_000, 1, 1), np.uint8)}, "70,000 classes, the limit is"),
        ({"class_names": np.array(["x"] * 70_000)}, "class_names: 70,000, the limit is 65,536"),
        ({"labels": np.full(12, 2**62)}, "out of range"),
        ({"labels": np.full(12, -(2**63))}, "out of range"),
        ({"class_names": np.full(3, b"\xff\xfe")}, "no texts in UTF-8"),
        ({"class_names": np.array([0x110000] * 3, "<u4").view("<U1")}, "no texts"),
        ({"images": np.array(GREY.tolist(), object)}, "Object arrays"),
        ({"images": np.zeros(12, [("a", "u1")])}, "convert it to uint8"),
    ],
)
def test_arrays_that_are_no_set(tmp_path: Path, arrays: dict[str, Any], reason: str) -> None:
    content: dict[str, Any] = {"images": GREY, "labels": LABELS} | arrays
    np.savez(tmp_path / "a.npz", **content)
    assert reason in refusal(lambda: read_npz(tmp_path / "a.npz"))


# ---------------------------------------------------------------- what is no file


def test_pipes_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens a pipe waits for its other end, for ever."""
    monkeypatch.setenv("ENGRAM_CACHE", str(tmp_path / "none"))
    monkeypatch.setenv("ENGRAM_DATA", str(tmp_path))
    OPENED.clear()

    os.mkfifo(tmp_path / "elsewhere")

    def link(path: Path) -> None:
        path.symlink_to(tmp_path / "elsewhere")

    makes: list[Callable[[Path], None]] = [os.mkfifo, link]
    for number, make in enumerate(makes):
        path = tmp_path / f"special{number}"
        make(path)
        reads: list[Callable[[Path], object]] = [
            formats.read_idx,
            lambda p: formats.read_svhn(p, p),
            lambda p: formats.count_svhn(p, p),
            lambda p: formats.read_cifar(p, p),
            read_npz,
            npz_features,
            lambda p: decode_image(p, 3),
            lambda p: as_images(p, (3, 32, 32)),
            lambda p: load_dataset(f"npz:{p}"),
        ]
        for read in reads:
            text = refusal(partial(read, path))
            assert "is a pipe, a socket or a device, no file; name a file" in text
        for name in ("mnist", "svhn", "cifar10"):
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            for file in sources.LAYOUT[name]:
                (folder / file).unlink(missing_ok=True)
                make(folder / file)
            assert check(name)[-1].ok is False
        notes = {row.name: row.note for row in survey()}
        assert all(notes[name].startswith("broken: ") for name in ("mnist", "svhn", "cifar10"))
        set_at = tmp_path / f"set{number}"
        (set_at / "a").mkdir(parents=True)
        make(set_at / "a" / "x.png")
        Image.fromarray(GREY[0]).save(set_at / "a" / "y.png")
        assert [one.path.name for one in formats.read_own_folder(set_at).left_out] == ["x.png"]
    assert str(set_at / "a" / "y.png") in OPENED, "the test would see it"
    assert not [
        name for name in OPENED if "special" in name or "elsewhere" in name or "ubyte" in name or "x.png" in name
    ]


def test_classes_are_not_named_by_a_pipe(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for number in range(50):
            folder = tmp_path / "imagenet50" / part / f"n{number:02}"
            folder.mkdir(parents=True)
            Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(folder / "0.png")
    os.mkfifo(tmp_path / "imagenet50" / "classes.txt")
    text = refusal(lambda: load_dataset("imagenet50", root=tmp_path))
    assert "classes.txt: is a pipe" in text


def test_what_cannot_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    circle, secret = tmp_path / "circle", tmp_path / "secret\x1b[31m\udcff"
    circle.symlink_to(circle)
    secret.write_bytes(b"x")
    real = open

    def no_right(path: object, *more: Any, **named: Any) -> Any:
        if "secret" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *more, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(io, "open", no_right)
    monkeypatch.setattr("builtins.open", no_right)
    reads: list[Callable[[Path], object]] = [formats.read_idx, read_npz, npz_features]
    for read in (*reads, lambda p: decode_image(p, 3), lambda p: formats.read_svhn(p, p)):
        assert "circle" in refusal(lambda r=read: r(circle))  # type: ignore[misc]
        text = refusal(lambda r=read: r(secret))  # type: ignore[misc]
        assert "Permission denied" in text
        assert "secret\\x1b[31m\\udcff" in text, "shown, and never obeyed"
        assert "null byte" in refusal(lambda r=read: r(Path("a\0b")))  # type: ignore[misc]


# ---------------------------------------------------------------- archives


def test_members_with_holes_are_refused(tmp_path: Path) -> None:
    """87 bytes in a tar archive once unpacked to 3 GB."""
    path = tmp_path / "a.tar"
    with (tmp_path / "test_batch.bin").open("wb") as file:
        file.truncate(3 * 2**30)
    made = subprocess.run(["tar", "-cSf", path, "-C", tmp_path, "test_batch.bin"], check=False)
    assert made.returncode == 0
    assert path.stat().st_size < 100_000
    with little_memory():
        text = refusal(lambda: list(fetching._members(path, ("test_batch.bin",))))
    assert "test_batch.bin has holes, 3,221,225,472 bytes of them promised" in text


def tar(files: dict[str, bytes], *, promised: int | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    if promised is None:
        return out.getvalue()
    info.size = promised
    return info.tobuf() + out.getvalue()[512:]


@pytest.mark.parametrize("pack", [bytes, partial(gzip.compress, compresslevel=1), partial(lzma.compress, preset=0)])
def test_what_an_archive_unpacks_to_has_a_limit(
    tmp_path: Path, pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    wanted = ("x.bin",)

    def read() -> list[tuple[str, bytes]]:
        return list(fetching._members(path, wanted))

    path.write_bytes(pack(tar({"a/x.bin": b"12", "b/y.bin": b"3"})))
    assert read() == [("x.bin", b"12")]
    path.write_bytes(pack(tar({"x.bin": b"12"}, promised=limits.MEMBER + 1)))
    assert "bytes of x.bin: 67,108,865, the limit is 67,108,864" in refusal(read)
    path.write_bytes(pack(tar({"x.bin": b"12"}, promised=limits.MEMBER)))
    refusal(read)
    monkeypatch.setattr(limits, "ARCHIVE", 5 * MB)
    head = tarfile.TarInfo("pax")
    head.type, head.size = tarfile.XHDTYPE, 2**31  # such a header is read as a whole
    for data in (tar({"other": bytes(60 * MB), "x.bin": b"12"}), head.tobuf() + bytes(60 * MB)):
        path.write_bytes(pack(data))
        with little_memory():
            text = refusal(read)
        assert "unpacks to bytes: " in text
        assert "the limit is 5,242,880" in text
    if pack is not bytes:
        path.write_bytes(pack(tar({"x.bin": b"12"}))[:60])
        refusal(read)


def test_labels_of_a_package_may_be_anything() -> None:
    assert fetching._labels(b"[0, 9, 3]", "x.json") == [0, 9, 3]
    for data in (
        b"[" * 200_000,
        b"[" + b"9" * 10_000 + b"]",
        b"[10]",
        b"[-1]",
        b"[true]",
        b"[0.5]",
        b'{"0": 1}',
        b'"012"',
        b"[[0], [1, 2]]",
        b"[NaN]",
        b"\xff",
        b"",
    ):
        assert "x.json is no" in refusal(lambda d=data: fetching._labels(d, "x.json"))  # type: ignore[misc]


# ---------------------------------------------------------------- downloads


class Server:
    """Sends bytes as it likes, to one caller."""

    def __init__(self, *pieces: bytes, pause_s: float = 0.0, again: bool = False) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/file.bin"
        self.pieces, self.pause_s, self.again = pieces, pause_s, again
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        caller, _ = self.listener.accept()
        with caller:
            caller.recv(10_000)
            try:
                while not self.ended.is_set():
                    for piece in self.pieces:
                        caller.sendall(piece)
                        if self.ended.wait(self.pause_s):
                            return
                    if not self.again:
                        return
                    self.pieces = self.pieces[-1:]
            except OSError:
                return  # the caller has had enough

    def end(self) -> None:
        self.ended.set()
        self.listener.close()
        self.thread.join()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers: list[Server] = []

    def begin(*pieces: bytes, **how: Any) -> str:
        servers.append(Server(*pieces, **how))
        return servers[-1].url

    yield begin
    for server in servers:
        server.end()


def quiet(label: str, done: int, total: int | None) -> None:
    pass


OK = b"HTTP/1.0 200 OK\r\n"


@pytest.mark.parametrize("pieces", [(OK + b"\r\n", b"x"), (OK, b"X-A: b\r\n"), (OK + b"X-A: ", b"x")])
def test_a_server_that_drips_is_given_up(
    tmp_path: Path, serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch, pieces: tuple[bytes, ...]
) -> None:
    """Within the contents or the headers: every single wait is short, all of them together are not."""
    monkeypatch.setattr(limits, "DOWNLOAD_S", 1.0)
    url, begun = serve(*pieces, pause_s=0.1, again=True), time.monotonic()
    text = refusal(lambda: fetching.download(url, tmp_path / "x", quiet))
    assert "bytes after 1 s, which is the limit; try again" in text
    assert time.monotonic() - begun < 30


def test_downloads_have_a_limit(tmp_path: Path, serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By what a server announces, and by what it sends."""
    monkeypatch.setattr(limits, "DOWNLOAD", 1000)
    for url in (
        serve(OK + b"Content-Length: 1001\r\n\r\n", bytes(1001)),
        serve(OK + b"\r\n", bytes(1001)),
        serve(OK + b"\r\n", bytes(1000), again=True),
    ):
        text = refusal(lambda u=url: fetching.download(u, tmp_path / "x", quiet))  # type: ignore[misc]
        assert text.startswith("file.bin: bytes: ")
        assert "the limit is 1,000; get the file by other means" in text
        assert not (tmp_path / "x").exists() or (tmp_path / "x").stat().st_size <= 1000
    fetching.download(serve(OK + b"\r\n", bytes(1000)), tmp_path / "x", quiet)
    assert (tmp_path / "x").read_bytes() == bytes(1000)
