"""Where the files of a named set lie on this machine, and how we know that they are the right ones.

locate   $ENGRAM_DATA/NAME, then the cache; complete sets only
read     a located folder -> RawSet, in the format that the set has
identify contents -> which known variant of the set they are
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from engram.data import formats
from engram.data.raw import RawSet, content_digest
from engram.data.reading import opened, size_of
from engram.errors import DataError

EMBEDDED = Path(__file__).with_name("digits.npz")

_IDX = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
CIFAR_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
CIFAR_FOLDER = "cifar-10-batches-bin"

LAYOUT: dict[str, tuple[str, ...]] = {
    "mnist": _IDX,
    "fashion-mnist": _IDX,
    "svhn": ("train_32x32.mat", "test_32x32.mat"),
    "cifar10": CIFAR_FILES,
    "imagenet50": ("train", "val"),
}
"""The files of each set, in the order in which its reader takes them."""

READERS: dict[str, Callable[..., RawSet]] = {
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
    "svhn": {
        "cee588ef8948137413f603fdeb072b26f4d7091bdf910c0eea16fe24635e6354": "10,000 digits",
        # all digits, cropped anew out of the full photographs: the sizes are those of the official files
        "7f9f660afc1150157a95429a9d530f607870bdace6700d8cae7a56ae5c6694f2": "full, cut again",
    },
    "cifar10": {
        "e5043343fb27c252fd0dd8063bf4ab121ccb9610d74dc77a9d39024f343b2148": "standard",
        "267dd7ad7c0a90aa524c00de1879a808f0523d9cfe55af0170a031a6f5ed1bf9": "JPEG copy",
    },
    # pixels of a JPEG depend a little on the decoder's version: another one gives a set that is told by its size
    "imagenet50": {
        "65bd3fe4a305adb79ed1b6b16c63a6e66c215491733650b192bd6af03806f1b5": "part of Tiny-ImageNet",
    },
}
"""Content digest (`raw.content_digest`) -> the variant, as printed next to a figure."""

OFFICIAL: dict[str, dict[str, tuple[int, str]]] = {
    "svhn": {
        "train_32x32.mat": (182_040_794, "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
        "test_32x32.mat": (64_275_384, "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
    },
}
"""Bytes and SHA-256 of the files that a set was published as, where no digest of their contents is known yet.

Those of SVHN stand in TensorFlow Datasets (url_checksums/svhn_cropped.txt) and in torchvision
(prototype/datasets/_builtin/svhn.py).
"""

BY_SIZE: dict[str, dict[tuple[int, int], str]] = {
    "svhn": {(73_257, 26_032): "standard size, contents not verified"},
    "imagenet50": {(25_000, 2_500): "size of the part of Tiny-ImageNet, contents not verified"},
}
"""(training, test) images -> the variant, for contents that no digest vouches for."""

STANDARD, OWN = "standard", "own"


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


def data_folder() -> Path | None:
    own = os.environ.get("ENGRAM_DATA")
    return Path(os.path.expanduser(own)) if own else None


def files_of(name: str, folder: Path) -> list[Path] | None:
    """The set's files in the order of LAYOUT, or None where one is missing."""
    for base in (folder / CIFAR_FOLDER, folder) if name == "cifar10" else (folder,):
        found = []
        for wanted in LAYOUT[name]:
            choices = (wanted, wanted.removesuffix(".gz"), "test" if wanted == "val" else wanted)
            found += [base / choice for choice in choices if os.path.exists(base / choice)][:1]
        if len(found) == len(LAYOUT[name]):
            return found
    return None


def locate(name: str, root: Path | None = None) -> Path | None:
    """The folder with the complete set: under `root` if given, else $ENGRAM_DATA, then the cache."""
    bases = [root] if root else [base for base in (data_folder(), cache_folder()) if base]
    return next((base / name for base in bases if files_of(name, base / name)), None)


def remedy(name: str, root: Path | None = None) -> str:
    """Which files to put where."""
    place = f"{root or data_folder() or '$ENGRAM_DATA'}/{name}/"
    if name == "imagenet50":
        return f"put its images into {place}train/<class>/*.JPEG and {place}val/<class>/*.JPEG"
    return f"put {', '.join(LAYOUT[name])} into {place}"


def missing(name: str, root: Path | None = None) -> DataError:
    """The error for a set that is not on this machine."""
    first = "" if name == "imagenet50" else f"run `engram data fetch {name}`, or "
    return DataError(f"{name}: not found on this machine; {first}{remedy(name, root)}")


def read(name: str, folder: Path) -> RawSet:
    files = files_of(name, folder)
    if files is None:
        raise missing(name, folder.parent)
    return replace(READERS[name](*files), official=is_official(name, files))


def is_official(name: str, files: Sequence[Path]) -> bool:
    """Whether every file is the one that was published, to the byte."""
    known = OFFICIAL.get(name, {})
    return bool(known) and all(
        path.name in known and size_of(path) == known[path.name][0] and _sha256(path) == known[path.name][1]
        for path in files
    )


def _sha256(path: Path) -> str:
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def count(name: str, folder: Path) -> tuple[int, int]:
    """(training, test) images, from headers and file sizes alone."""
    files = files_of(name, folder)
    if files is None:
        raise missing(name, folder.parent)
    return COUNTERS[name](*files)


def identify(name: str, digest: str, sizes: tuple[int, int], *, official: bool = False) -> str:
    """The variant that these contents are. `official`: their files are those that were published."""
    if known := KNOWN.get(name, {}).get(digest):
        return known
    return STANDARD if official else BY_SIZE.get(name, {}).get(sizes, OWN)


def is_verified(name: str, variant: str) -> bool:
    """Whether a digest vouches for this variant of a named set, and not its size alone."""
    return variant != OWN and variant not in BY_SIZE.get(name, {}).values()


def variant_at(name: str, folder: Path) -> str:
    """Read a whole set and say what it is; DataError where it is broken."""
    raw = read(name, folder)
    sizes = len(raw.train.labels), len(raw.test.labels) if raw.test else 0
    return identify(name, content_digest(raw), sizes, official=raw.official)
