"""Files -> `RawSet`: IDX, SVHN `.mat`, CIFAR-10 binary, image folders. `.npz` has a file of its own.

A file that cannot be read raises `DataError`: one line with the file, what is wrong with it and what to do.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engram.data import limits
from engram.data.images import IMAGE_SUFFIXES, IMAGES, decode_image, is_grey
from engram.data.mat import mat_shapes, read_mat
from engram.data.raw import BLOCK, ImageFiles, LeftOut, Pixels, Raw, RawSet, broken, paired
from engram.data.reading import decoding, fill, size_of, unpacked, within

PACKED = "cannot be unpacked, truncated or damaged"
SVHN = ("X", "y")
CIFAR_ROW = 1 + 3 * 32 * 32  # one label byte, then the red, green and blue planes
CIFAR_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


# ---------------------------------------------------------------- IDX


def _idx_shape(source: io.BufferedReader, path: Path) -> tuple[int, ...]:
    """The shape in an IDX header: 0, 0, type (8 = uint8), ndim, then ndim big-endian 32-bit sizes."""
    head = source.read(4)
    if len(head) < 4 or head[:3] != b"\x00\x00\x08" or head[3] not in (1, 3):
        raise broken(path, f"no IDX file of bytes (starts with {head.hex(' ') or 'nothing'})")
    sizes = source.read(4 * head[3])
    if len(sizes) < 4 * head[3]:
        raise broken(path, "truncated within its IDX header")
    return tuple(int.from_bytes(sizes[at : at + 4], "big") for at in range(0, len(sizes), 4))


def read_idx(path: Path) -> Pixels:
    """One IDX file, raw or gzip: (N,) labels or (N, H, W) images."""
    with decoding(path, PACKED), unpacked(path) as source:
        shape = _idx_shape(source, path)
        size = math.prod(shape)
        within(path, "its header promises bytes:", size, limits.UNPACKED, "take fewer images")
        data = fill(source, size, path)
        more = source.read(1)  # one byte more than was promised is enough to know
        if len(data) != size or more:
            held = f"{len(data) + 1} or more" if more else len(data)
            raise broken(path, f"its header promises {size} bytes {shape}, it holds {held}")
        return data.reshape(shape)


def _idx_part(images_at: Path, labels_at: Path) -> Raw:
    images, labels = read_idx(images_at), read_idx(labels_at)
    if images.ndim != 3 or images.size == 0:
        raise broken(images_at, f"holds no images (shape {images.shape})")
    if labels.ndim != 1:
        raise broken(labels_at, f"holds no labels (shape {labels.shape})")
    return paired(images[:, None], labels.astype(np.int64), images_at, labels_at)


def read_idx_set(train_images: Path, train_labels: Path, test_images: Path, test_labels: Path) -> RawSet:
    return RawSet(_idx_part(train_images, train_labels), _idx_part(test_images, test_labels), ())


def count_idx(train_images: Path, train_labels: Path, test_images: Path, test_labels: Path) -> tuple[int, int]:
    """Sizes of both parts from the headers of the image files alone."""
    sizes = []
    for path in (train_images, test_images):
        with decoding(path, PACKED), unpacked(path) as source:
            sizes.append(_idx_shape(source, path)[0])
    return sizes[0], sizes[1]


# ---------------------------------------------------------------- SVHN


def _svhn_part(path: Path) -> Raw:
    content = read_mat(path, SVHN)
    if len(content) < len(SVHN):
        missing = " and ".join(key for key in SVHN if key not in content)
        raise broken(path, f"has no variable {missing}", "take the cropped digits, train_32x32.mat and test_32x32.mat")
    x, y = content["X"], content["y"]
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3 or x.size == 0:
        raise broken(path, f"X is {x.dtype} {x.shape}, not uint8 (H, W, 3, N)")
    if y.size == 0 or not np.isin(y, range(11)).all():
        raise broken(path, "y holds other labels than 1..10")
    labels = y.reshape(-1).astype(np.int64) % 10  # the digit 0 is labelled 10
    return paired(_upright(x.transpose(3, 2, 1, 0)), labels, path, "its y")


def _upright(images: Pixels) -> Pixels:
    """(N, C, W, H) -> (N, C, H, W), in the same memory: a second copy of the set would be the largest thing in it."""
    count, channels, width, height = images.shape
    turned = images.reshape(count, channels, height, width)
    step = max(1, BLOCK // images[0].size)
    for i in range(0, count, step):
        turned[i : i + step] = images[i : i + step].transpose(0, 1, 3, 2).copy()
    return turned


def read_svhn(train: Path, test: Path) -> RawSet:
    return RawSet(_svhn_part(train), _svhn_part(test), ())


def count_svhn(train: Path, test: Path) -> tuple[int, int]:
    """Sizes from what stands before the pixels; they are not read."""
    sizes = []
    for path in (train, test):
        shape = mat_shapes(path, ["X"]).get("X", ())
        if len(shape) != 4:
            raise broken(path, "has no variable X of images", "take the cropped digits")
        sizes.append(shape[3])
    return sizes[0], sizes[1]


# ---------------------------------------------------------------- CIFAR-10


def _cifar_rows(path: Path) -> int:
    size = size_of(path)
    if size == 0 or size % CIFAR_ROW:
        raise broken(path, f"{size} bytes, no multiple of {CIFAR_ROW}: truncated or no CIFAR-10 binary batch")
    return size // CIFAR_ROW


def _cifar_part(paths: tuple[Path, ...]) -> Raw:
    counts = [_cifar_rows(path) for path in paths]
    within(paths[0].parent, "bytes of images:", sum(counts) * CIFAR_ROW, limits.UNPACKED, "take fewer")
    images = np.empty((sum(counts), 3, 32, 32), np.uint8)
    labels = np.empty(sum(counts), np.int64)
    start = 0
    for path, count in zip(paths, counts, strict=True):
        with decoding(path, "cannot be read"):
            rows = np.fromfile(path, np.uint8).reshape(count, CIFAR_ROW)
        if rows[:, 0].max() > 9:
            raise broken(path, f"holds the label {rows[:, 0].max()}, above 9: no CIFAR-10 binary batch")
        labels[start : start + count] = rows[:, 0]
        images[start : start + count] = rows[:, 1:].reshape(count, 3, 32, 32)
        start += count
    return Raw(images, labels)


def read_cifar(*paths: Path) -> RawSet:
    """Training batches, then the test batch."""
    return RawSet(_cifar_part(paths[:-1]), _cifar_part(paths[-1:]), CIFAR_NAMES)


def count_cifar(*paths: Path) -> tuple[int, int]:
    return sum(_cifar_rows(path) for path in paths[:-1]), _cifar_rows(paths[-1])


# ---------------------------------------------------------------- images


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    """Sorted by name. `scandir` knows files from folders without asking the disc about each of thousands."""
    with decoding(folder, "cannot be listed"), os.scandir(folder) as entries:
        return sorted((entry for entry in entries if entry.name[0] != "."), key=lambda entry: entry.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Links are followed; one that leads nowhere or in a circle is no folder."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def _is_file(entry: os.DirEntry[str]) -> bool:
    return os.path.isfile(entry.path) if entry.is_symlink() else entry.is_file()


def _below(folder: Path) -> list[os.DirEntry[str]]:
    """Every visible entry below a folder, itself no folder, sorted by its path.

    A link to a folder is one of them and is not followed: it may lead in a circle, or to the images of other classes.
    """
    found, folders = [], [folder]
    while folders:
        for entry in _visible(folders.pop()):
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry))
            else:
                found.append(entry)
    return sorted(found, key=lambda entry: entry.path.replace(os.sep, "/"))


def class_images(folder: Path) -> tuple[tuple[Path, ...], list[LeftOut]]:
    """The image files in a class folder and the folders inside it, sorted by path; and what else lies there."""
    images, left_out = [], []
    for entry in _below(folder):
        path = Path(entry)
        if _is_folder(entry):
            left_out.append(LeftOut(path, "link", "links to folders are not followed"))
        elif not entry.name.lower().endswith(IMAGE_SUFFIXES):
            left_out.append(LeftOut(path, "file", f"not {IMAGES}"))
        elif not _is_file(entry):
            left_out.append(LeftOut(path, "link" if entry.is_symlink() else "file", "there is nothing to read"))
        else:
            images.append(path)
    return tuple(images), left_out


def _class_files(folder: Path) -> tuple[dict[str, tuple[Path, ...]], list[LeftOut]]:
    """Class name -> its image files, both sorted; and what was left out."""
    classes: dict[str, tuple[Path, ...]] = {}
    left_out: list[LeftOut] = []
    for sub in _visible(folder):
        if not _is_folder(sub):
            left_out.append(LeftOut(Path(sub), "file", "outside every class folder"))
            continue
        if sub.is_symlink() and folder.resolve().is_relative_to(Path(sub).resolve()):
            raise broken(sub.path, "this class folder is a link to a folder around it", "remove the link")
        classes[sub.name], more = class_images(Path(sub))
        left_out += more
        if not classes[sub.name]:
            raise broken(sub.path, f"this class folder holds no {IMAGES} image", "add images or remove the folder")
    if not classes:
        raise broken(folder, "has no class folders", "put the images of each class into a folder named after it")
    return classes, left_out


def _check_classes(
    train: dict[str, Any], test: dict[str, Any], train_at: Path, test_at: Path, known: Sequence[str] = ()
) -> None:
    for classes, others, at in ((test, {*train, *known}, train_at), (train, set(test), test_at)):
        if extra := sorted(set(classes) - others):
            raise broken(at, f"has no class {extra[0]!r}", f"{train_at.name}/ and {test_at.name}/ need the same")


def read_image_folder(train_at: Path, test_at: Path | None, *, known: Sequence[str] = ()) -> RawSet:
    """Class folders of images under each folder; 1 channel where every image is grey, else 3.

    The test folder may hold `known` classes too, which no training image has.
    """
    train, left_out = _class_files(train_at)
    test: dict[str, tuple[Path, ...]] = {}
    if test_at:
        test, more = _class_files(test_at)
        left_out += more
        _check_classes(train, test, train_at, test_at, known)
    names = tuple(dict.fromkeys((*train, *test)))
    every = [path for part in (train, test) for files in part.values() for path in files]
    channels = 1 if all(is_grey(path) for path in every) else 3  # stops at the first coloured one

    def part(files: dict[str, tuple[Path, ...]]) -> Raw:
        labels = np.repeat(np.arange(len(names), dtype=np.int64), [len(files.get(name, ())) for name in names])
        paths = tuple(path for name in names for path in files.get(name, ()))
        return Raw(ImageFiles(paths, channels, decode_image), labels)

    return RawSet(part(train), part(test) if test_at else None, names, tuple(left_out))


def find_parts(folder: Path) -> tuple[Path, Path | None]:
    """The training and test folder inside `folder`: train/ with test/ or val/, or the folder itself."""
    if not os.path.isdir(folder):
        raise broken(folder, "no such folder", "check the path")
    train, *tests = (folder / name for name in ("train", "test", "val"))
    if not os.path.isdir(train):
        return folder, None
    return train, next((test for test in tests if os.path.isdir(test)), None)


def read_own_folder(folder: Path, *, known: Sequence[str] = ()) -> RawSet:
    """A folder of the user's own, in either layout of `find_parts`; what lies beside train/ is left out."""
    train, test = find_parts(folder)
    raw = read_image_folder(train, test, known=known)
    if train == folder:
        return raw
    # a set may well have a class that is called "train": whoever has one must see where the others went
    beside = [entry for entry in _visible(folder) if Path(entry) not in (train, test)]
    folders = [LeftOut(Path(entry), "folder", "beside train/") for entry in beside if _is_folder(entry)]
    files = [LeftOut(Path(entry), "file", "outside every class folder") for entry in beside if not _is_folder(entry)]
    return replace(raw, left_out=(*folders, *files, *raw.left_out))


def count_images(train: Path, test: Path) -> tuple[int, int]:
    train_files, test_files = _class_files(train)[0], _class_files(test)[0]
    _check_classes(train_files, test_files, train, test)
    return sum(map(len, train_files.values())), sum(map(len, test_files.values()))
