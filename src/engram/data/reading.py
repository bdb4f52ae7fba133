"""Opening and unpacking files from elsewhere: files alone, piece by piece, within `limits`.

A file that cannot be read raises `DataError`: one line with the file, what is wrong with it and what to do.
Third-party decoders fail in many ways (zlib.error, struct.error, SyntaxError from a broken PNG, ...), so calls into
them stand within `decoding`; nothing of theirs reaches the user raw.
"""

from __future__ import annotations

import io
import lzma
import os
import stat
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from engram.data import limits
from engram.data.raw import INTACT, broken
from engram.errors import DataError

PIECE = 1 << 18
"""Bytes that are read or unpacked at a time."""
PORTION = 1 << 22
"""Bytes that are asked for at a time."""
TIGHTEST = 1032
"""Deflate packs no tighter: 258 bytes in two bits."""
GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ\0"


class _Quiet:
    """What decoders merely warn about is let pass. Warnings belong to the process: the last thread out resets them."""

    def __init__(self) -> None:
        self.lock, self.inside, self.before = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                self.before.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                self.before.close()


_QUIET = _Quiet()


@contextmanager
def decoding(path: Path | str, what: str, remedy: str = INTACT) -> Iterator[None]:
    """Whatever a decoder raises becomes one DataError; what it merely warns about is let pass."""
    with _QUIET:
        try:
            yield
        except DataError:
            raise
        except FileNotFoundError:
            raise broken(path, "no such file", "check the path") from None
        except Exception as error:  # MemoryError among them
            raise broken(path, f"{what} ({error or type(error).__name__})", remedy) from error


def within(origin: Path | str, what: str, value: int, limit: int, remedy: str) -> None:
    """DataError where a value is above its limit."""
    if value > limit:
        raise broken(origin, f"{what} {value:,}, the limit is {limit:,}", remedy)


def size_of(path: Path) -> int:
    """Bytes of a file. Whatever is no file is never opened: a pipe would block, a device may do anything."""
    with decoding(path, "cannot be read", "check the path and your rights"):
        found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, a socket or a device"
        raise broken(path, f"is {kind}, no file", "name a file")
    return found.st_size


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """A file to read from, known to be one."""
    size_of(path)
    with path.open("rb") as file:
        yield file


@contextmanager
def unpacked(path: Path) -> Iterator[io.BufferedReader]:
    """A file, unpacked on the way if it is gzip or xz, by content: browsers unpack and keep the name."""
    with opened(path) as file:
        yield unpacking(file)


def unpacking(file: io.BufferedReader) -> io.BufferedReader:
    """What a file holds, unpacked on the way if it is gzip or xz."""
    start = file.peek(len(XZ))
    if start.startswith(XZ):
        return io.BufferedReader(_Xz(file), PIECE)
    return io.BufferedReader(Deflated(file, gzip=True), PIECE) if start.startswith(GZIP) else file


class Deflated(io.RawIOBase):
    """What `count` bytes of zlib hold, or a gzip file: never more than is asked for is unpacked."""

    def __init__(self, file: BinaryIO, count: int | None = None, *, gzip: bool = False) -> None:
        self.file, self.left, self.gzip = file, count, gzip
        self.rest = b""  # packed bytes that were read and not taken
        self._begin()

    def _begin(self) -> None:
        self.unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16 if self.gzip else zlib.MAX_WBITS)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while len(buffer):
            if self.unpacker.eof and not self._another():
                return 0
            packed = self.rest or self._read()
            data = self.unpacker.decompress(packed, len(buffer))
            self.rest = self.unpacker.unconsumed_tail
            if data:
                buffer[: len(data)] = data
                return len(data)
            if not packed and not self.unpacker.eof:
                raise EOFError("it ends too early")
        return 0

    def _read(self) -> bytes:
        data = self.file.read(PIECE if self.left is None else min(PIECE, self.left))
        if self.left is not None:
            self.left -= len(data)
        return data

    def _another(self) -> bool:
        """Whether another gzip member follows; zeros may fill up a file."""
        if not self.gzip:
            return False
        rest = self.unpacker.unused_data.lstrip(b"\0")
        while not rest and (more := self._read()):
            rest = more.lstrip(b"\0")
        self.rest = rest
        self._begin()
        return bool(rest)


class _Xz(io.RawIOBase):
    """What an xz file holds: never more than is asked for is unpacked."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=limits.XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while len(buffer) and not self.unpacker.eof:
            hungry = self.unpacker.needs_input
            packed = self.file.read(PIECE) if hungry else b""
            if data := self.unpacker.decompress(packed, len(buffer)):
                buffer[: len(data)] = data
                return len(data)
            if hungry and not packed:
                raise EOFError("it ends too early")
        return 0


def fill(source: io.BufferedIOBase, count: int, path: Path) -> npt.NDArray[np.uint8]:
    """The next `count` bytes out of a file, fewer where there are no more; memory is taken for what it can hold."""
    if count > TIGHTEST * size_of(path):
        raise EOFError(f"{count:,} bytes are promised, far more than it can hold")
    data = np.empty(count, np.uint8)
    view, done = data.data, 0
    while done < count and (more := source.readinto(view[done : done + PORTION])):
        done += more
    return data[:done]


def text_of(path: Path) -> str:
    """A short text file."""
    with decoding(path, "cannot be read"):
        within(path, "bytes of text:", size_of(path), limits.TEXT, "shorten it")
        return path.read_text(encoding="utf-8", errors="replace")
