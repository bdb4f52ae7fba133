"""A name -> uint8 images of one size, or float32 vectors, and their labels, training and test; and their digest.

    >>> digits = load_dataset("digits")
    >>> digits.test.images.shape, digits.variant
    (torch.Size([355, 1, 32, 32]), 'standard')

Named sets lie where `engram.data.sources` finds them; `folder:PATH` and `npz:PATH` are the user's own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from engram.data import cache, formats, npz, sources
from engram.data.raw import (
    ImageFiles,
    Labels,
    Pixels,
    Raw,
    RawSet,
    Vectors,
    broken,
    check_labels,
    describe,
    fingerprints,
    one_line,
)
from engram.data.raw import digest as digest_of
from engram.data.reading import text_of
from engram.data.recipe import Recipe
from engram.data.store import Store
from engram.errors import ConfigError, DataError, StrictnessError, unknown
from engram.kinds import Shape, described, is_vector, noun

SIZES = (32, 64)
"""Sides that images can be scaled to, in pixels."""


@dataclass(frozen=True)
class Split:
    """One part of a set."""

    images: Tensor
    """(N, C, H, W) uint8; of vectors (N, D) float32"""
    labels: Tensor
    """(N,) int64"""

    @property
    def shape(self) -> Shape:
        """Of an example."""
        return tuple(self.images.shape[1:])

    def rows(self, where: Tensor) -> Tensor:
        """The images of these numbers, or of this mask: a copy."""
        return self.images[where]

    def part(self, where: Tensor) -> Split:
        """Some of its examples."""
        return Split(self.images[where], self.labels[where])


class StoredSplit(Split):
    """One part of a prepared set, or some of its examples: numbers of rows, and no image before it is asked for."""

    _at: tuple[Store, str, Labels]

    def __init__(self, store: Store, part: str, numbers: Labels) -> None:
        object.__setattr__(self, "labels", torch.from_numpy(store.labels[part][numbers]))
        object.__setattr__(self, "_at", (store, part, numbers))

    @property
    def images(self) -> Tensor:
        """All of them, read anew each time."""
        return self.rows(torch.arange(len(self.labels)))

    @property
    def shape(self) -> Shape:
        store, _, _ = self._at
        return store.facts.shape

    def read(self, where: Labels | npt.NDArray[np.bool_]) -> Pixels | Vectors:
        """Copies of the images of these numbers, or of this mask."""
        store, part, numbers = self._at
        return store.read(part, numbers[where])

    def rows(self, where: Tensor) -> Tensor:
        return torch.from_numpy(self.read(where.numpy()))

    def part(self, where: Tensor) -> Split:
        store, part, numbers = self._at
        return StoredSplit(store, part, numbers[where.numpy()])

    def __repr__(self) -> str:
        return f"StoredSplit({len(self.labels)} {noun(self.shape)} of {self._at[0].folder})"


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
    """A loaded set. The training part is handed over once; the test part stays.

    >>> from engram import load_dataset
    >>> digits = load_dataset("digits")
    >>> digits
    Dataset('digits', standard, 10 classes, 1442 / 355 images of 1x32x32)
    >>> train = digits.take_train()
    >>> train.images.shape, train.labels[:3].tolist()
    (torch.Size([1442, 1, 32, 32]), [0, 1, 2])
    """

    def __init__(
        self,
        name: str,
        class_names: tuple[str, ...],
        digest: str,
        variant: str,
        *,
        train: Split,
        test: Split,
        scaling: str = "",
        notes: tuple[str, ...] = (),
        backbone: Recipe | None = None,
    ) -> None:
        self.name = name
        self.class_names = class_names
        self.shape: Shape = test.shape
        """(C, H, W) of every image; (D,) of every vector."""
        self.digest = digest
        """Of the contents before they were scaled, so that it is the same at every size."""
        self.variant = variant
        self.scaling = scaling
        """For people: which sizes the images had, and what became of them."""
        self.notes = notes
        """For people, a line each: what was left out, which classes cannot be tested."""
        self.backbone = backbone
        """Of vectors: by what they were made, where that is known."""
        self.test = test
        self.train_counts = tuple(torch.bincount(train.labels, minlength=len(class_names)).tolist())
        self._train: Split | None = train

    @property
    def scaled(self) -> bool:
        """Whether an image had another size in its file."""
        return " scaled to " in self.scaling

    @property
    def train(self) -> Split:
        """The training part, while it is there."""
        if self._train is None:
            raise StrictnessError(f"{self.name}: the training images were handed over before; load it anew")
        return self._train

    def take_train(self) -> Split:
        """The training part, once: whoever takes it alone decides how long it lives."""
        train, self._train = self.train, None
        return train

    def __repr__(self) -> str:
        counts = f"{len(self.class_names)} classes, {sum(self.train_counts)} / {len(self.test.labels)}"
        return f"Dataset({self.name!r}, {self.variant}, {counts} {described(self.shape)})"


# ---------------------------------------------------------------- load


def check_size(size: int) -> None:
    if size not in SIZES:
        raise ConfigError(f"image size {size}: must be {' or '.join(map(str, SIZES))}")


def resize(images: npt.NDArray[np.uint8], size: int | tuple[int, int]) -> Tensor:
    """(n, C, H, W) uint8 -> (n, C, size, size) uint8, bilinear with antialiasing; the right size stays as it is.

    `size`: one side of a square, or height and width.
    """
    wanted = (size, size) if isinstance(size, int) else size
    pixels = torch.from_numpy(np.require(images, requirements=["C", "W"]))
    if pixels.shape[-2:] == wanted:
        return pixels
    scaled = functional.interpolate(pixels.float(), wanted, mode="bilinear", antialias=True)
    return scaled.round_().clamp_(0, 255).to(torch.uint8)


def held_out(labels: Labels, share: float, names: Sequence[str] | None = None) -> npt.NDArray[np.bool_]:
    """(N,) -> mask of the test images: about `share` of each class, at least one of two or more, never all.

    The order is that of a hash of class and position, so it depends on no seed and no library's generator. With the
    `names` of the classes, on no other class either.
    """
    mask = np.zeros(len(labels), bool)
    for label in np.unique(labels).tolist():
        where = np.flatnonzero(labels == label)
        called = label if names is None else names[label]
        keys = [blake2b(f"{called}:{i}".encode(), digest_size=8).digest() for i in range(len(where))]
        count = min(max(round(share * len(where)), 1), len(where) - 1)
        mask[where[sorted(range(len(where)), key=keys.__getitem__)[:count]]] = True
    return mask


def every_fifth(labels: Labels) -> npt.NDArray[np.bool_]:
    """(N,) -> mask of the 5th, 10th, ... image of each class."""
    mask = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        mask[np.flatnonzero(labels == label)[4::5]] = True
    return mask


@dataclass(frozen=True)
class _Scaled:
    """One part of a set at its new size, and what is known of it from before."""

    split: Split
    prints: list[bytes]
    """A fingerprint an image."""
    sizes: Counter[tuple[int, int]]
    """(width, height) -> how many images had it."""


def _scale(tag: str, raw: Raw, size: int) -> _Scaled:
    """Everything about a part in one pass over its images."""
    if raw.vectors:
        assert isinstance(raw.images, np.ndarray)
        every = [one for block in raw.blocks() for one in fingerprints(tag, *block)]
        vectors = torch.from_numpy(np.require(raw.images, requirements=["C", "W"]))
        return _Scaled(Split(vectors, torch.from_numpy(raw.labels)), every, Counter())
    shape = (len(raw.labels), raw.channels, size, size)
    if isinstance(raw.images, np.ndarray) and raw.images.shape == shape:
        images, ready = resize(as_stored(raw.images), size), True  # shares the memory: no second copy of the set
    else:
        images, ready = torch.empty(shape, dtype=torch.uint8), False
    prints: list[bytes] = []
    sizes: Counter[tuple[int, int]] = Counter()
    for block, labels in raw.blocks():
        if not ready:
            images[len(prints) : len(prints) + len(labels)] = resize(as_stored(block), size)
        prints += fingerprints(tag, block, labels)
        sizes[block.shape[3], block.shape[2]] += len(labels)
    return _Scaled(Split(images, torch.from_numpy(raw.labels)), prints, sizes)


def describe_scaling(sizes: Counter[tuple[int, int]], size: int) -> str:
    """(width, height) -> images, in words.

    >>> describe_scaling(Counter({(28, 28): 10}), 32)
    '28x28, scaled to 32x32'
    >>> describe_scaling(Counter({(640, 480): 1, (17, 20): 1, (64, 64): 1}), 64)
    'from 17x20 to 640x480, scaled to 64x64; 2 of 3 are not square and are squeezed'
    """
    if set(sizes) == {(size, size)}:
        return f"{size}x{size}, as they are"
    by_area = sorted(sizes, key=lambda one: (one[0] * one[1], one))
    ends = ["{}x{}".format(*one) for one in (by_area[0], by_area[-1])]
    found = ends[0] if len(sizes) == 1 else f"from {ends[0]} to {ends[1]}"
    text = f"{found}, scaled to {size}x{size}"
    if odd := sum(count for (width, height), count in sizes.items() if width != height):
        text += f"; {odd:,} of {sizes.total():,} are not square and are squeezed"
    return text


def as_stored(images: Pixels | Vectors) -> Pixels:
    """What cannot be vectors any more."""
    assert images.dtype == np.uint8
    return images.view(np.uint8)


def holds_vectors(name: str) -> bool:
    """Whether a data set's name stands for vectors, as far as can be seen without reading it.

    >>> holds_vectors("digits")
    False
    """
    kind, _, path = name.partition(":")
    at = Path(os.path.expanduser(path))
    if kind == cache.OUT and path:
        return is_vector(Store(at).facts.shape)
    return kind == "npz" and npz.holds_vectors(at)


def _part(split: Split, mask: npt.NDArray[np.bool_]) -> Split:
    return split.part(torch.from_numpy(np.flatnonzero(mask)))


def _read_digits() -> RawSet:
    raw = npz.read_npz(sources.EMBEDDED)
    assert isinstance(raw.train.images, np.ndarray)
    grey = (raw.train.images.astype(np.uint16) * 255 + 8) // 16  # 0..16 -> 0..255, rounded
    return RawSet(Raw(grey.astype(np.uint8), raw.train.labels), None, _DIGITS)


def _class_names(folder: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """Folder names, made readable where there is a `classes.txt` of lines `folder<TAB>name, other name`."""
    listing = folder / "classes.txt"
    if not os.path.exists(listing):
        return names
    lines = text_of(listing).splitlines()
    readable = {key: text.split(",")[0].strip() for key, _, text in (line.partition("\t") for line in lines)}
    return tuple(readable.get(name) or name for name in names)


def read_raw(name: str, root: Path | None = None, *, in_pieces: bool = False) -> tuple[RawSet, str]:
    """The set as its files hold it, and where they lie. `in_pieces`: an .npz file's images stay there for now."""
    kind, _, path = name.partition(":")
    if kind in ("folder", "npz") and path:
        at = Path(os.path.expanduser(path))
        if kind == "npz":
            return npz.read_npz(at, in_pieces=in_pieces), str(at)
        return formats.read_own_folder(at), str(at)
    if kind == cache.OUT and path:
        raise broken(path, "a prepared set is for `engram run` and `load_dataset`", "give the data it was made from")
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
    return replace(raw, class_names=names), str(folder)


def _untested(labels: Labels, mask: npt.NDArray[np.bool_], names: tuple[str, ...]) -> tuple[str, ...]:
    """A line about the classes of which no image was held out, where there are any."""
    alone = np.flatnonzero(np.bincount(labels[mask], minlength=len(names)) == 0)
    if len(alone) == 0:
        return ()
    first = repr(names[alone[0]])
    if len(alone) == 1:
        return (one_line(f"class {first} has one image: it is for training, and the class is not tested"),)
    text = f"{len(alone):,} classes have one image each: it is for training, and they are not tested (first: {first})"
    return (one_line(text),)


def check_names(names: Sequence[str], origin: str) -> None:
    """A folder may be called by bytes that are no text: no file of ours could hold such a name."""
    for name in names:
        if name.encode("utf-8", "replace").decode() != name:
            raise broken(origin, f"class name {name!a} is no text in UTF-8", "give the class another name")


def assemble(
    name: str,
    raw: RawSet,
    origin: str,
    *,
    holdout: float,
    size: int,
    by_name: bool = False,
    development: bool = False,
) -> Dataset:
    """A set as its files hold it -> images of one size, with a test part and a digest of the contents.

    `by_name`: which images of a class are held out for the test does not depend on the other classes. `development`:
    training images are held out in the place of the test part, which goes into the digest and nowhere else.
    """
    check_names(raw.class_names, origin)
    parts = [_scale("train", raw.train, size)] + ([_scale("test", raw.test, size)] if raw.test else [])
    whole = _Whole(
        parts[0].split,
        parts[1].split if raw.test else None,
        raw.class_names,
        digest_of((one for part in parts for one in part.prints), raw.backbone),
        sum((part.sizes for part in parts), Counter()),
        note_of(raw, origin),
        raw.backbone,
        raw.official,
    )
    return _divide(name, whole, origin, holdout=holdout, size=size, by_name=by_name, development=development)


def note_of(raw: RawSet, origin: str) -> tuple[str, ...]:
    """For people, a line each: what was left out, and what was done to numbers."""
    parts = (raw.train, raw.test)
    notes = dict.fromkeys(part.note for part in parts if part is not None and part.note)
    return (*describe(raw.left_out, origin), *notes)


@dataclass(frozen=True)
class _Whole:
    """A set at one size, before anything of it is held out."""

    train: Split
    test: Split | None
    class_names: tuple[str, ...]
    digest: str
    sizes: Counter[tuple[int, int]]
    notes: tuple[str, ...]
    backbone: Recipe | None
    official: bool


def _stored(store: Store) -> _Whole:
    """A set that was prepared: nothing of it is read but its labels."""
    facts = store.facts
    check_names(facts.class_names, str(store.folder))
    splits = {part: StoredSplit(store, part, np.arange(len(labels))) for part, labels in store.labels.items()}
    return _Whole(
        splits["train"],
        splits.get("test"),
        facts.class_names,
        facts.digest,
        facts.sizes,
        facts.notes,
        facts.backbone,
        facts.official,
    )


def _divide(
    name: str,
    whole: _Whole,
    origin: str,
    *,
    holdout: float,
    size: int,
    by_name: bool = False,
    development: bool = False,
    called: str | None = None,
) -> Dataset:
    """Training and test part. `called`: the name of the set whose contents it has, where that is another."""
    train, notes, known = whole.train, whole.notes, called or name
    if whole.test is not None:
        test = whole.test
    else:
        labels = train.labels.numpy()
        names = whole.class_names if by_name else None
        mask = every_fifth(labels) if known == "digits" else held_out(labels, holdout, names)
        if not mask.any():
            kind = noun(train.shape)
            what = f"no class has two {kind}, so that none can be held out for the test"
            raise broken(origin, what, f"add {kind}, or a test part")
        train, test = _part(train, ~mask), _part(train, mask)
        notes += _untested(labels, mask, whole.class_names)
    counts = len(train.labels), len(test.labels)
    variant = sources.identify(known, whole.digest, counts, official=whole.official)
    if development:
        mask = held_out(train.labels.numpy(), holdout, whole.class_names)
        train, test = _part(train, ~mask), _part(train, mask)
        variant += DEVELOPMENT
    return Dataset(
        name,
        whole.class_names,
        whole.digest,
        variant,
        train=train,
        test=test,
        scaling="" if is_vector(train.shape) else describe_scaling(whole.sizes, size),
        notes=notes,
        backbone=whole.backbone,
    )


DEVELOPMENT = ", tested on held-out training images"
"""What the variant of a set says where its test part is left alone."""


def load_dataset(
    name: str,
    *,
    holdout: float = 0.2,
    image_size: int = 32,
    development: bool = False,
    root: Path | None = None,
) -> Dataset:
    """A set by name, or `folder:PATH`, `npz:PATH`.

    `holdout` is the share of each class that becomes the test part where the user's files bring none; a class
    with a single image is then not tested. `image_size` is 32 or 64: images that are not square are squeezed into
    it. `development`: the test part is left alone, and `holdout` of the training images are held out in its place, to
    choose settings by. `root` replaces $ENGRAM_DATA and the cache as the place to look in.

    Where `engram data prepare` made a copy of the set at this size, and its files have not changed since, the copy is
    read instead, class by class when they are asked for. `prepared:FOLDER` is a copy that lies in a folder of its own.

    >>> from engram import load_dataset
    >>> load_dataset("digits").class_names[:4]
    ('0', '1', '2', '3')
    """
    if not 0 < holdout < 1:
        raise ConfigError(f"holdout = {holdout}: must lie between 0 and 1, both excluded")
    check_size(image_size)
    store, notes = _prepared(name, image_size, root)
    if store is not None:
        called, origin = store.facts.name, str(store.folder)
        whole = _stored(store)
        return _divide(name, whole, origin, holdout=holdout, size=image_size, development=development, called=called)
    raw, origin = read_raw(name, root)
    dataset = assemble(name, raw, origin, holdout=holdout, size=image_size, development=development)
    if not notes and isinstance(raw.train.images, ImageFiles) and len(raw.train.images) >= MANY:
        notes = (f"every start decodes {len(raw.train.images):,} files; once is enough by `engram data prepare`",)
    dataset.notes += notes
    return dataset


MANY = 20_000
"""Files that are slow enough to decode for a hint."""


def _prepared(name: str, size: int, root: Path | None) -> tuple[Store | None, tuple[str, ...]]:
    """The copy to read a set from, where there is one; and a line where there is one that may not be used."""
    kind, _, path = name.partition(":")
    if kind != cache.OUT or not path:
        return cache.fresh_copy(name, size, root)
    store = Store(Path(os.path.expanduser(path)))
    if store.facts.size not in (None, size):
        raise ConfigError(f"{name}: its images have the size {store.facts.size}, not {size}; set stream.image_size")
    return store, ()


# ---------------------------------------------------------------- check and survey


@dataclass(frozen=True)
class Check:
    """One line of `engram data check` and `engram verify`."""

    what: str
    ok: bool | None
    """None: could not be checked, which is no pass."""
    detail: str


def check(name: str, *, image_size: int = 32) -> list[Check]:
    """Files, readability, shapes, counts and contents of a set; stops at the first that hinders the next."""
    check_size(image_size)
    if name.startswith(f"{cache.OUT}:"):
        return _check_prepared(name)
    if name.startswith(("folder:", "npz:")) or name == "digits":
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
        raw, origin = read_raw(name)
        data = assemble(name, raw, origin, holdout=0.2, size=image_size)
    except DataError as error:
        return [*lines, Check("readable", False, str(error))]
    lines.append(Check("readable", True, f"every {noun(data.shape, many=False)} and label"))
    lines += [Check("note", True, note) for note in data.notes]
    shapes = f"{data.shape[0]} numbers a vector, float32, finite"
    if not is_vector(data.shape):
        shapes = f"{data.shape[0]} channel(s), uint8, {data.scaling}"
    lines.append(Check("shapes", True, shapes))
    if data.backbone is not None:
        lines.append(Check("backbone", True, f"{data.backbone}: {data.backbone.preparation}, {data.backbone.output}"))
    return [*lines, _check_counts(data), _check_copies(data), _check_contents(data), *_check_in_cache(data, image_size)]


def _check_in_cache(data: Dataset, size: int) -> list[Check]:
    """The prepared copy, where there is one: every byte, and whether it is of these contents."""
    try:
        store, notes = cache.fresh_copy(data.name, size)
    except DataError as error:
        return [Check("prepared", False, str(error))]
    if store is None:
        return [Check("prepared", None, note) for note in notes]
    if damage := store.check():
        return [Check("prepared", False, damage)]
    if store.facts.digest != data.digest:
        what = "holds other contents, though no file looks changed; remove it with `engram data cache --clear`"
        return [Check("prepared", False, f"{store.folder}: {what}")]
    return [Check("prepared", True, f"{store.folder}: the same contents, every byte as written")]


def _check_prepared(name: str) -> list[Check]:
    """A copy that is a data set of its own: its bytes are what was written. What they were made from is not here.

    So whether it is what it is called can only be told of the user's own files, which claim to be nothing else.
    """
    try:
        store = Store(Path(os.path.expanduser(name.partition(":")[2])))
        damage = store.check()
    except DataError as error:
        return [Check("readable", False, str(error))]
    if damage:
        return [Check("readable", False, damage)]
    facts, counts = store.facts, " / ".join(f"{sum(own):,}" for own in store.counts.values())
    contents = f"{facts.digest} (as {facts.name} had it when it was prepared)"
    return [
        Check("readable", True, f"{store.folder}: every byte as written"),
        Check("counts", True, f"{counts} {described(facts.shape)} of {len(facts.class_names)} classes"),
        Check("contents", None if facts.name in DATASETS else True, one_line(contents)),
    ]


def _check_counts(data: Dataset) -> Check:
    test_counts = torch.bincount(data.test.labels, minlength=len(data.class_names)).tolist()
    spans = [" to ".join(f"{n:,}" for n in sorted({min(c), max(c)})) for c in (data.train_counts, test_counts)]
    total = f"{sum(data.train_counts):,} / {len(data.test.labels):,}"
    classes = "1 class" if len(data.class_names) == 1 else f"{len(data.class_names)} classes, each"
    per_class = f"{classes} {spans[0]} for training and {spans[1]} for test"
    return Check("counts", True, f"{total} {noun(data.shape)}; {per_class}")


def _check_copies(data: Dataset) -> Check:
    """How many test images are training images too, and how many stand under two labels, by their pixels.

    No fault of the files, and many sets have some: it passes, and says what there is.
    """
    parts = (data.train, data.test)
    prints = [[blake2b(row.data, digest_size=16).digest() for row in part.images.numpy()] for part in parts]
    labels: dict[bytes, set[int]] = {}
    for part, own in zip(parts, prints, strict=True):
        for one, label in zip(own, part.labels.tolist(), strict=True):
            labels.setdefault(one, set()).add(label)
    trained = set(prints[0])
    shared = sum(one in trained for one in prints[1])
    torn = [found for found in labels.values() if len(found) > 1]
    kind, said = noun(data.shape), []
    if shared:
        said.append(f"{shared:,} of {len(prints[1]):,} test {kind} are training {kind} too")
    if torn:
        first = " and ".join(repr(data.class_names[label]) for label in sorted(torn[0])[:2])
        said.append(f"{len(torn):,} {noun(data.shape, many=len(torn) > 1)} under two labels or more (first: {first})")
    where = "" if is_vector(data.shape) else f", at {data.shape[1]}x{data.shape[2]}"
    text = " and ".join(said) or f"no test {noun(data.shape, many=False)} is a training one, none has two labels"
    return Check("copies", True, one_line(text + where))


def _check_contents(data: Dataset) -> Check:
    """Passed where a digest vouches for them, or where the files are the user's own and claim to be nothing else."""
    text = f"{data.digest} ({data.variant})"
    if data.name not in DATASETS or sources.is_verified(data.name, data.variant):
        return Check("contents", True, text)
    if data.variant != sources.OWN:
        return Check("contents", None, f"{text}: the number of images fits, the contents match no known digest")
    text = f"{data.digest} matches no known digest of {data.name}"
    if data.name == "imagenet50":  # everybody cuts a set of their own: there is no copy that it ought to match
        return Check("contents", None, text)
    return Check("contents", False, f"{text}: altered, or another part of it")


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
