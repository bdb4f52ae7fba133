"""A name -> uint8 images at 32 x 32 and their labels, training and test, with a digest of the contents.

    >>> digits = load("digits")
    >>> digits.test.images.shape, digits.variant
    (torch.Size([355, 1, 32, 32]), 'standard')

Named sets lie where `engram.data.sources` finds them; `folder:PATH` and `npz:PATH` are the user's own.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from engram.data import formats, sources
from engram.data.raw import ImageFiles, Labels, Raw, RawSet, broken, check_labels, fingerprints
from engram.data.raw import digest as digest_of
from engram.errors import ConfigError, DataError, StrictnessError, unknown

SIZE = 32
"""Side of every image, in pixels."""


@dataclass(frozen=True)
class Split:
    """One part of a set."""

    images: Tensor
    """(N, C, 32, 32) uint8"""
    labels: Tensor
    """(N,) int64"""


@dataclass(frozen=True)
class Spec:
    """What is known of a named set before its files are read."""

    description: str
    classes: int
    channels: int
    counts: tuple[int, int]
    """Training and test images of the variant to expect."""
    class_names: tuple[str, ...] = ()
    """Empty where the files name the classes."""
    known: dict[str, str] = field(default_factory=dict)
    """Content digest -> variant."""


_DIGITS = tuple("0123456789")
_FASHION = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)

DATASETS: dict[str, Spec] = {
    "digits": Spec(
        "handwritten digits 8x8, UCI optical recognition, embedded",
        classes=10,
        channels=1,
        counts=(1_442, 355),
        class_names=_DIGITS,
        known=sources.KNOWN["digits"],
    ),
    "mnist": Spec(
        "handwritten digits 28x28",
        classes=10,
        channels=1,
        counts=(60_000, 10_000),
        class_names=_DIGITS,
        known=sources.KNOWN["mnist"],
    ),
    "fashion-mnist": Spec(
        "articles of clothing 28x28",
        classes=10,
        channels=1,
        counts=(60_000, 10_000),
        class_names=_FASHION,
        known=sources.KNOWN["fashion-mnist"],
    ),
    "svhn": Spec(
        "house numbers in street photographs, cropped digits 32x32",
        classes=10,
        channels=3,
        counts=(73_257, 26_032),
        class_names=_DIGITS,
        known=sources.KNOWN["svhn"],
    ),
    "cifar10": Spec(
        "small photographs 32x32 of ten kinds of things",
        classes=10,
        channels=3,
        counts=(50_000, 10_000),
        class_names=formats.CIFAR_NAMES,
        known=sources.KNOWN["cifar10"],
    ),
    "imagenet50": Spec(
        "photographs of 50 ImageNet classes, folders of JPEG",
        classes=50,
        channels=3,
        counts=(25_000, 2_500),
        known=sources.KNOWN["imagenet50"],
    ),
}


class Dataset:
    """A loaded set. The training part is handed over once; the test part stays."""

    def __init__(
        self, name: str, class_names: tuple[str, ...], digest: str, variant: str, *, train: Split, test: Split
    ) -> None:
        self.name = name
        self.class_names = class_names
        self.channels = int(test.images.shape[1])
        self.digest = digest
        self.variant = variant
        self.test = test
        self.train_counts = tuple(torch.bincount(train.labels, minlength=len(class_names)).tolist())
        self._train: Split | None = train

    def take_train(self) -> Split:
        """The training part, once: whoever takes it alone decides how long it lives."""
        train, self._train = self._train, None
        if train is None:
            raise StrictnessError(f"{self.name}: the training images were handed over before; load it anew")
        return train

    def __repr__(self) -> str:
        shape = f"{len(self.class_names)} classes, {sum(self.train_counts)} / {len(self.test.labels)} images"
        return f"Dataset({self.name!r}, {self.variant}, {shape})"


# ---------------------------------------------------------------- load


def resize(images: npt.NDArray[np.uint8]) -> Tensor:
    """(n, C, H, W) uint8 -> (n, C, 32, 32) uint8, bilinear with antialiasing; 32 x 32 stays as it is."""
    pixels = torch.from_numpy(np.require(images, requirements=["C", "W"]))
    if pixels.shape[-2:] == (SIZE, SIZE):
        return pixels
    scaled = functional.interpolate(pixels.float(), (SIZE, SIZE), mode="bilinear", antialias=True)
    return scaled.round_().clamp_(0, 255).to(torch.uint8)


def held_out(labels: Labels, share: float, origin: str, names: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """(N,) -> mask of the test images: about `share` of each class, at least one, never all.

    The order is that of a hash of class and position, so it depends on no seed and no library's generator.
    """
    mask = np.zeros(len(labels), bool)
    for label in np.unique(labels).tolist():
        where = np.flatnonzero(labels == label)
        if len(where) < 2:
            what = f"class {names[label]!r} has one image"
            raise broken(origin, what, "two are needed to hold one out for the test")
        keys = [hashlib.blake2b(f"{label}:{i}".encode(), digest_size=8).digest() for i in range(len(where))]
        count = min(max(round(share * len(where)), 1), len(where) - 1)
        mask[where[sorted(range(len(where)), key=keys.__getitem__)[:count]]] = True
    return mask


def _every_fifth(labels: Labels) -> npt.NDArray[np.bool_]:
    """(N,) -> mask of the 5th, 10th, ... image of each class."""
    mask = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        mask[np.flatnonzero(labels == label)[4::5]] = True
    return mask


def _standard(tag: str, raw: Raw) -> tuple[Split, list[bytes]]:
    """Images at 32 x 32 and the fingerprints of what they were before, in one pass."""
    shape = (len(raw.labels), raw.channels, SIZE, SIZE)
    if isinstance(raw.images, np.ndarray) and raw.images.shape == shape:
        images, ready = resize(raw.images), True  # shares the memory: no second copy of the set
    else:
        images, ready = torch.empty(shape, dtype=torch.uint8), False
    prints: list[bytes] = []
    for block, labels in raw.blocks():
        if not ready:
            images[len(prints) : len(prints) + len(labels)] = resize(block)
        prints += fingerprints(tag, block, labels)
    return Split(images, torch.from_numpy(raw.labels)), prints


def _part(split: Split, mask: npt.NDArray[np.bool_]) -> Split:
    where = torch.from_numpy(np.flatnonzero(mask))
    return Split(split.images[where], split.labels[where])


def _read_digits() -> RawSet:
    raw = formats.read_npz(sources.EMBEDDED)
    assert isinstance(raw.train.images, np.ndarray)
    grey = (raw.train.images.astype(np.uint16) * 255 + 8) // 16  # 0..16 -> 0..255, rounded
    return RawSet(Raw(grey.astype(np.uint8), raw.train.labels), None, _DIGITS)


def _class_names(folder: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """Folder names, made readable where there is a `classes.txt` of lines `folder<TAB>name, other name`."""
    try:
        lines = (folder / "classes.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return names
    readable = {key: text.split(",")[0].strip() for key, _, text in (line.partition("\t") for line in lines)}
    return tuple(readable.get(name) or name for name in names)


def _read(name: str, root: Path | None) -> tuple[RawSet, str]:
    """The set as its files hold it, and where they lie."""
    kind, _, path = name.partition(":")
    if kind in ("folder", "npz") and path:
        at = Path(os.path.expanduser(path))
        if kind == "npz":
            return formats.read_npz(at), str(at)
        return formats.read_image_folder(*formats.find_parts(at)), str(at)
    if name not in DATASETS:
        raise unknown("data set", name, [*DATASETS, "folder:PATH", "npz:PATH"])
    if name == "digits":
        return _read_digits(), "embedded"
    folder = sources.locate(name, root)
    if folder is None:
        raise sources.missing(name, root)
    raw, spec = sources.read(name, folder), DATASETS[name]
    for part in (raw.train, raw.test):
        assert part is not None, "named sets come with a test part"
        check_labels(part.labels, folder, spec.classes)
        if part.channels != spec.channels:
            raise broken(folder, f"{part.channels} channel(s), {name} has {spec.channels}")
    names = spec.class_names or _class_names(folder, raw.class_names)
    return RawSet(raw.train, raw.test, names), str(folder)


def _assemble(name: str, raw: RawSet, origin: str, holdout: float) -> Dataset:
    train, prints = _standard("train", raw.train)
    if raw.test:
        test, more = _standard("test", raw.test)
        prints += more
    else:
        labels, names = raw.train.labels, raw.class_names
        mask = _every_fifth(labels) if name == "digits" else held_out(labels, holdout, origin, names)
        train, test = _part(train, ~mask), _part(train, mask)
    digest = digest_of(prints)
    variant = sources.identify(name, digest, (len(train.labels), len(test.labels)))
    return Dataset(name, raw.class_names, digest, variant, train=train, test=test)


def load(name: str, *, holdout: float = 0.2, root: Path | None = None) -> Dataset:
    """A set by name, or `folder:PATH`, `npz:PATH`.

    `holdout` is the share of each class that becomes the test part where the user's files bring none.
    `root` replaces $ENGRAM_DATA and the cache as the place to look in. Images that are not square are
    squeezed into 32 x 32.
    """
    if not 0 < holdout < 1:
        raise ConfigError(f"holdout = {holdout}: must lie between 0 and 1, both excluded")
    raw, origin = _read(name, root)
    return _assemble(name, raw, origin, holdout)


# ---------------------------------------------------------------- check and survey


@dataclass(frozen=True)
class Check:
    """One line of `engram data check` and `engram verify`."""

    what: str
    ok: bool | None
    """None: could not be checked, which is no pass."""
    detail: str


def check(name: str) -> list[Check]:
    """Files, readability, shapes, counts and contents of a set; stops at the first that hinders the next."""
    own = name.startswith(("folder:", "npz:"))
    if own or name == "digits":
        found: str | None = "embedded" if name == "digits" else name.partition(":")[2]
    elif name in DATASETS:
        folder = sources.locate(name)
        found = str(folder) if folder else None
    else:
        raise unknown("data set", name, [*DATASETS, "folder:PATH", "npz:PATH"])
    if found is None:
        return [Check("files", False, str(sources.missing(name)))]
    lines = [Check("files", True, found)]
    try:
        raw, origin = _read(name, None)
        data = _assemble(name, raw, origin, 0.2)
    except DataError as error:
        return [*lines, Check("readable", False, str(error))]
    lines.append(Check("readable", True, "every image and label"))
    images = raw.train.images
    size = "files of their own sizes" if isinstance(images, ImageFiles) else "{}x{}".format(*images.shape[2:])
    lines.append(Check("shapes", True, f"{size}, {data.channels} channel(s), uint8"))
    test_counts = torch.bincount(data.test.labels, minlength=len(data.class_names)).tolist()
    spans = [" to ".join(f"{n:,}" for n in sorted({min(c), max(c)})) for c in (data.train_counts, test_counts)]
    total = f"{sum(data.train_counts):,} / {len(data.test.labels):,}"
    per_class = f"{len(data.class_names)} classes, each {spans[0]} for training and {spans[1]} for test"
    lines.append(Check("counts", True, f"{total} images; {per_class}"))
    # where no reference digest exists, or only one of decoded JPEGs, contents are reported, not judged
    known = not own and name != "imagenet50"
    if known and data.variant == sources.OWN:
        text = f"{data.digest} matches no known copy of {name}: altered, or another part of it"
        return [*lines, Check("contents", False, text)]
    return [*lines, Check("contents", True, f"{data.digest} ({data.variant})")]


@dataclass(frozen=True)
class Row:
    """One line of `engram data list`."""

    name: str
    description: str
    found: str | None
    """Where it lies, "embedded", or None."""
    classes: int
    train: int
    test: int
    note: str
    """Empty where counted, "expected" where the sizes are those of the known set, or "broken: ..."."""


def survey() -> list[Row]:
    """Every named set and where it lies, from headers and file sizes alone; a broken file is a mere note."""
    rows = []
    for name, spec in DATASETS.items():
        found: str | None = "embedded" if name == "digits" else None
        sizes, note = spec.counts, "" if found else "expected"
        if not found and (folder := sources.locate(name)):
            found = str(folder)
            try:
                sizes, note = sources.count(name, folder), ""
            except DataError as error:
                note = f"broken: {error}"
        rows.append(Row(name, spec.description, found, spec.classes, *sizes, note))
    return rows
