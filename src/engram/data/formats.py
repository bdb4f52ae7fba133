"""Files -> `RawSet`: IDX, SVHN `.mat`, CIFAR-10 binary, image folders, `.npz`.

A file that cannot be read raises `DataError`: one line with the file, what is wrong with it and what to do.
Third-party decoders fail in many ways (zlib.error, struct.error, SyntaxError from a broken PNG, ...), so the
calls into them catch `Exception`; nothing of theirs reaches the user raw.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import threading
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from engram.data.raw import (
    INTACT,
    ImageFiles,
    InPieces,
    Labels,
    LeftOut,
    Pixels,
    Raw,
    RawSet,
    Vectors,
    broken,
    check_labels,
)
from engram.data.recipe import Recipe, recipe_of
from engram.errors import DataError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
DECODERS = ("PNG", "JPEG", "WEBP", "BMP")
"""Pillow's names. It has many more, some of which start other programs: none of them is ever tried."""
IMAGES = "PNG, JPEG, WebP or BMP"
CIFAR_ROW = 1 + 3 * 32 * 32  # one label byte, then the red, green and blue planes
CIFAR_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
GREY_MODES = {"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N"}


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
                warnings.simplefilter("error", Image.DecompressionBombWarning)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                self.before.close()


_QUIET = _Quiet()


@contextmanager
def _decoding(path: Path | str, what: str, remedy: str = INTACT) -> Iterator[None]:
    """Whatever a decoder raises becomes one DataError; what it merely warns about is let pass."""
    with _QUIET:
        try:
            yield
        except DataError:
            raise
        except FileNotFoundError:
            raise broken(path, "no such file", "check the path") from None
        except Exception as error:
            raise broken(path, f"{what} ({error or type(error).__name__})", remedy) from error


def _paired(images: Pixels | Vectors, labels: Labels, images_at: Path | str, labels_at: Path | str) -> Raw:
    if len(images) != len(labels):
        kind = "vectors" if images.ndim == 2 else "images"
        what = f"holds {len(images)} {kind}, but {labels_at} holds {len(labels)} labels"
        raise broken(images_at, what, "the two must belong together")
    return Raw(images, labels)


# ---------------------------------------------------------------- IDX


def _idx_shape(head: bytes, path: Path) -> tuple[int, ...]:
    """The shape in an IDX header: 0, 0, type (8 = uint8), ndim, then ndim big-endian 32-bit sizes."""
    if len(head) < 4 or head[:3] != b"\x00\x00\x08" or head[3] not in (1, 3):
        raise broken(path, f"no IDX file of bytes (starts with {head[:4].hex(' ') or 'nothing'})")
    if len(head) < 4 + 4 * head[3]:
        raise broken(path, "truncated within its IDX header")
    return tuple(int.from_bytes(head[4 + 4 * i : 8 + 4 * i], "big") for i in range(head[3]))


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"  # by content: browsers unpack and keep the name


def read_idx(path: Path) -> Pixels:
    """One IDX file, raw or gzip: (N,) labels or (N, H, W) images."""
    with _decoding(path, "cannot be unpacked, truncated or damaged"):
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    shape = _idx_shape(data[:16], path)
    start, size = 4 + 4 * len(shape), math.prod(shape)
    if len(data) - start != size:
        raise broken(path, f"its header promises {size} bytes {shape}, it holds {len(data) - start}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _idx_part(images_at: Path, labels_at: Path) -> Raw:
    images, labels = read_idx(images_at), read_idx(labels_at)
    if images.ndim != 3 or images.size == 0:
        raise broken(images_at, f"holds no images (shape {images.shape})")
    if labels.ndim != 1:
        raise broken(labels_at, f"holds no labels (shape {labels.shape})")
    return _paired(images[:, None], labels.astype(np.int64), images_at, labels_at)


def read_idx_set(train_images: Path, train_labels: Path, test_images: Path, test_labels: Path) -> RawSet:
    return RawSet(_idx_part(train_images, train_labels), _idx_part(test_images, test_labels), ())


def count_idx(train_images: Path, train_labels: Path, test_images: Path, test_labels: Path) -> tuple[int, int]:
    """Sizes of both parts from the headers of the image files alone."""
    sizes = []
    for path in (train_images, test_images):
        with (
            _decoding(path, "cannot be unpacked, truncated or damaged"),
            gzip.open(path) if _is_gzip(path) else path.open("rb") as file,
        ):
            sizes.append(_idx_shape(file.read(16), path)[0])
    return sizes[0], sizes[1]


# ---------------------------------------------------------------- SVHN


def _svhn_part(path: Path) -> Raw:
    from scipy.io import loadmat  # here, because the import alone costs a third of a second

    with _decoding(path, "no readable MATLAB file, truncated or foreign"):
        content = loadmat(str(path), variable_names=["X", "y"])
    if "X" not in content or "y" not in content:
        missing = " and ".join(key for key in ("X", "y") if key not in content)
        remedy = "take the cropped digits, train_32x32.mat and test_32x32.mat"
        raise broken(path, f"has no variable {missing}", remedy)
    x, y = np.asarray(content["X"]), np.asarray(content["y"])
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3 or x.size == 0:
        raise broken(path, f"X is {x.dtype} {x.shape}, not uint8 (H, W, 3, N)")
    if y.dtype.kind not in "iuf" or y.size == 0 or not np.isin(y, range(11)).all():
        raise broken(path, "y holds other labels than 1..10")
    images = np.ascontiguousarray(x.transpose(3, 2, 0, 1))  # (H, W, 3, N) -> (N, 3, H, W)
    labels = y.reshape(-1).astype(np.int64) % 10  # the digit 0 is labelled 10
    return _paired(images, labels, path, "its y")


def read_svhn(train: Path, test: Path) -> RawSet:
    return RawSet(_svhn_part(train), _svhn_part(test), ())


def count_svhn(train: Path, test: Path) -> tuple[int, int]:
    """Sizes from the variables' headers; nothing is unpacked."""
    from scipy.io import whosmat

    sizes = []
    for path in (train, test):
        with _decoding(path, "no readable MATLAB file, truncated or foreign"):
            sizes.append({name: shape for name, shape, _ in whosmat(str(path))}["X"][-1])
    return int(sizes[0]), int(sizes[1])


# ---------------------------------------------------------------- CIFAR-10


def _cifar_rows(path: Path) -> int:
    with _decoding(path, "cannot be read"):
        size = path.stat().st_size
    if size == 0 or size % CIFAR_ROW:
        raise broken(path, f"{size} bytes, no multiple of {CIFAR_ROW}: truncated or no CIFAR-10 binary batch")
    return size // CIFAR_ROW


def _cifar_part(paths: tuple[Path, ...]) -> Raw:
    counts = [_cifar_rows(path) for path in paths]
    images = np.empty((sum(counts), 3, 32, 32), np.uint8)
    labels = np.empty(sum(counts), np.int64)
    start = 0
    for path, count in zip(paths, counts, strict=True):
        with _decoding(path, "cannot be read"):
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


def _on_white(image: Image.Image, mode: str) -> Image.Image:
    """Transparent parts become white paper; without an alpha channel, a plain conversion."""
    if image.mode in ("LA", "La", "RGBA", "RGBa", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image.convert(mode)


@contextmanager
def _opened(source: Path | bytes, origin: Path | str) -> Iterator[Image.Image]:
    """An image file, its header read; `origin` names it in an error."""
    with (
        _decoding(origin, f"no readable {IMAGES} image", "repair or remove it"),
        Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=DECODERS) as image,
    ):
        yield image


def decode_image(source: Path | bytes | Image.Image, channels: int, origin: str = "image") -> Pixels:
    """One PNG, JPEG, WebP or BMP -> (channels, H, W), upright as its EXIF note says. `origin` names mere bytes."""
    if isinstance(source, Image.Image):
        with _decoding(origin, "cannot be read"):
            return _pixels(source.copy(), channels)
    with _opened(source, source if isinstance(source, Path) else origin) as image:
        return _pixels(image, channels)


def holds_numbers(image: Image.Image) -> bool:
    """Whether an image has numbers of any range for pixels. Some versions of Pillow read a PNG of 16 bits as mode I."""
    return image.mode == "F" or (image.mode == "I" and image.format != "PNG")


def numbers_of(image: Image.Image) -> npt.NDArray[Any]:
    """(H, W) as they are: what they mean, whoever asks has to find out."""
    with _decoding("image", "cannot be read"):
        return np.asarray(ImageOps.exif_transpose(image))


def _pixels(image: Image.Image, channels: int) -> Pixels:
    """An image that may be changed -> (channels, H, W)."""
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I"):  # 16 bits a pixel, in a file: Pillow's own conversion would clip, not scale
        grey = np.clip(np.asarray(image).astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        return np.repeat(grey[None], channels, axis=0)
    pixels = np.array(_on_white(image, "L" if channels == 1 else "RGB"), np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _is_grey(path: Path) -> bool:
    with _opened(path, path) as image:
        return image.mode in GREY_MODES


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    """Sorted by name. `scandir` knows files from folders without asking the disc about each of thousands."""
    with _decoding(folder, "cannot be listed"), os.scandir(folder) as entries:
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
    channels = 1 if all(_is_grey(path) for path in every) else 3  # stops at the first coloured one

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


# ---------------------------------------------------------------- npz


def _npz_images(array: npt.NDArray[Any], path: Path, key: str) -> Pixels:
    """(N, H, W), (N, H, W, C) or (N, C, H, W) -> (N, C, H, W)."""
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise broken(path, f"{key} contains NaN", "clean it and convert it to uint8, 0..255")
    return np.ascontiguousarray(_channels_first(array, path, key))


def _channels_first(array: npt.NDArray[Any], path: Path, key: str) -> Pixels:
    """A view of (N, C, H, W)."""
    if array.dtype != np.uint8:
        raise broken(path, f"{key} is {array.dtype}", "convert it to uint8, 0..255")
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in (1, 3) or array.size == 0:
        remedy = "it must be (N, H, W) or (N, H, W, C) with C = 1 or 3"
        raise broken(path, f"{key} has the shape {array.shape}", remedy)
    return array


def as_vectors(
    array: npt.NDArray[Any], origin: Path | str, what: str = "features", *, first: int = 0
) -> tuple[Vectors, str]:
    """(N, D) numbers -> the float32 that is learned from, and what was done to them, if anything.

    `first`: the number of the first row, of a block of them.
    """
    note = _check_vectors(array, origin, what)
    with np.errstate(over="ignore"):
        vectors = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(vectors).all():
        row, column = (int(place) for place in np.argwhere(~np.isfinite(vectors))[0])
        where = f"{array[row, column]} in row {first + row}, column {column}"
        raise broken(origin, f"{what} holds {where}", "every number must be finite, also as float32; clean them first")
    return vectors, note


def _check_vectors(array: npt.NDArray[Any], origin: Path | str, what: str) -> str:
    """Shape and type; what will be done to them, if anything."""
    if array.ndim != 2 or array.size == 0:
        raise broken(origin, f"{what} has the shape {array.shape}", "it must be (N, D): a row of numbers a vector")
    if array.dtype.kind not in "iuf" or array.dtype.itemsize > 8:
        raise broken(origin, f"{what} is {array.dtype}", "give float32, float16, float64 or whole numbers")
    return "" if array.dtype == np.float32 else f"{what} are {array.dtype}, taken as float32"


def _npz_vectors(array: npt.NDArray[Any], path: Path, key: str) -> tuple[Vectors, str]:
    if array.dtype.kind != "f":
        raise broken(path, f"{key} is {array.dtype}", "features are float32, float16 or float64")
    return as_vectors(array, path, key)


def _npz_blocks(path: Path, key: str, step: int) -> Iterator[Pixels | Vectors]:
    """An array of an .npz file as it is learned from, `step` examples at a time: it need not fit into memory."""
    with _decoding(path, f"{key} cannot be read"), zipfile.ZipFile(path) as file, file.open(f"{key}.npy") as member:
        shape, _, dtype = _npy_header(member)
        size = math.prod(shape[1:]) * dtype.itemsize
        for at in range(0, shape[0], step):
            content = member.read(min(step, shape[0] - at) * size)
            if len(content) != min(step, shape[0] - at) * size:
                raise broken(path, f"{key} ends early")
            block = np.frombuffer(content, dtype).reshape(-1, *shape[1:])
            if key.endswith("features"):
                yield as_vectors(block, path, key, first=at)[0]
            else:
                yield _npz_images(block, path, key)
        if member.read(1):  # up to the last byte, for its checksum
            raise broken(path, f"{key} holds more than its header says")


def _npy_header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and type."""
    read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    return read[np.lib.format.read_magic(member)[0]](member)


def _without_memory(path: Path, key: str) -> npt.NDArray[Any] | None:
    """An array of an .npz file by its header alone; None where it has to be read whole, as where its type is wrong."""
    with zipfile.ZipFile(path) as file, file.open(f"{key}.npy") as member:
        shape, columns_first, dtype = _npy_header(member)
    plain = not columns_first and len(shape) > 1 and dtype.kind == ("f" if key.endswith("features") else "u")
    return np.broadcast_to(np.zeros((), dtype), shape) if plain else None


def _npz_labels(array: npt.NDArray[Any], path: Path, key: str) -> Labels:
    if array.dtype.kind not in "iu":
        raise broken(path, f"{key} is {array.dtype}", "labels must be integers 0..n-1")
    if array.ndim != 1:
        raise broken(path, f"{key} has the shape {array.shape}", "labels must be one number an image, (N,)")
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise broken(path, f"{key} holds {int(array.max())}, which is out of range", "labels must be integers 0..n-1")
    return array.astype(np.int64)


KINDS = ("images", "features")
NPZ_ARRAYS = (*(f"{part}{kind}" for part in ("", "train_", "test_") for kind in (*KINDS, "labels")), "class_names")


def npz_set(path: Path, *, in_pieces: bool = False) -> tuple[Raw, Raw | None, tuple[str, ...]]:
    """`images` + `labels` (or `train_images` + `train_labels`), optionally `test_images` + `test_labels`.

    Vectors are called `features` in the place of `images`. Labels as they stand there, any whole numbers; with their
    names where the file has `class_names`, one a number. `in_pieces`: images stay in the file until they are asked for.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    pieces: dict[str, npt.NDArray[Any]] = {}
    remedy = "write it with numpy.savez(path, images=..., labels=...), or features=... for vectors"
    with _decoding(path, "no readable .npz file", remedy), path.open("rb") as file:
        loaded = np.load(file, allow_pickle=False)  # never unpickle: a data file must not run code
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise broken(path, "a single array, no .npz file", remedy)
        with loaded:
            for key in NPZ_ARRAYS:
                if key in loaded.files:
                    bare = _without_memory(path, key) if in_pieces and key.endswith(KINDS) else None
                    if bare is not None:
                        pieces[key] = bare
                    arrays[key] = loaded[key] if bare is None else bare
                    if not isinstance(arrays[key], np.ndarray):
                        raise broken(path, f"{key} is no numpy array", remedy)
    found = [kind for kind in KINDS if any(key.endswith(kind) for key in arrays)] or ["images"]
    if len(found) > 1:
        raise broken(path, "has images and features", "keep one of the two: a set is of one kind")
    own = found[0]
    prefix = "train_" if f"train_{own}" in arrays or "train_labels" in arrays else ""
    with_test = f"test_{own}" in arrays or "test_labels" in arrays
    prefixes = [prefix, "test_"] if with_test else [prefix]
    needed = [f"{p}{kind}" for p in prefixes for kind in (own, "labels")]
    if absent := [key for key in needed if key not in arrays]:
        held = ", ".join(sorted(arrays)) or "none of these"
        raise broken(path, f"has no array {' and '.join(absent)} (found: {held})", remedy)

    def part(p: str) -> Raw:
        labels, note = _npz_labels(arrays[f"{p}labels"], path, f"{p}labels"), ""
        images: Pixels | Vectors
        if (key := f"{p}{own}") in pieces:
            if own == "features":
                note, images = _check_vectors(pieces[key], path, key), pieces[key]
            else:
                images = _channels_first(pieces[key], path, key)
            checked = _paired(images, labels, f"{path}: {key}", f"{p}labels")
            return InPieces(images, checked.labels, note, read=partial(_npz_blocks, path, key))
        if own == "features":
            images, note = _npz_vectors(arrays[f"{p}{own}"], path, f"{p}{own}")
        else:
            images = _npz_images(arrays[f"{p}{own}"], path, f"{p}{own}")
        return replace(_paired(images, labels, f"{path}: {p}{own}", f"{p}labels"), note=note)

    train, test = part(prefix), part("test_") if with_test else None
    if test and test.channels != train.channels:
        each = "numbers a vector" if own == "features" else "channels"
        what = f"{train.channels} {each} for training, {test.channels} for test"
        raise broken(path, what, "make them equal")
    return train, test, _npz_names(arrays.get("class_names"), path)


def _npz_names(array: npt.NDArray[Any] | None, path: Path) -> tuple[str, ...]:
    if array is None:
        return ()
    if array.ndim != 1 or array.dtype.kind not in "US":
        raise broken(path, f"class_names is {array.dtype} {array.shape}", "it must be a list of texts, one a label")
    with _decoding(path, "class_names are no texts in UTF-8", "write them as texts: numpy.array([...], str)"):
        return tuple(name.decode() if isinstance(name, bytes) else name for name in array.tolist())


def npz_features(path: Path) -> npt.NDArray[Any]:
    """The array `features` of an .npz file, as it stands there; whether there are labels does not matter."""
    remedy = "write it with numpy.savez(path, features=...)"
    with _decoding(path, "no readable .npz file", remedy), path.open("rb") as file:
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            return np.asarray(loaded)
        with loaded:
            if "features" not in loaded.files:
                held = ", ".join(loaded.files) or "nothing"
                raise broken(path, f"has no array features (found: {held})", remedy)
            return np.asarray(loaded["features"])


def holds_vectors(path: Path) -> bool:
    """Whether an .npz file says that it holds vectors; nothing of it is read but the names of its arrays."""
    try:
        with zipfile.ZipFile(path) as file:
            return any(name.removesuffix(".npy").endswith("features") for name in file.namelist())
    except (OSError, zipfile.BadZipFile):
        return False  # whoever reads it says what is wrong


def npz_backbone(path: Path) -> Recipe | None:
    """By what the vectors of an .npz file were made: its `backbone`, a JSON text that `engram embed` wrote."""
    with _decoding(path, "no readable .npz file"), path.open("rb") as file:
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            return None
        with loaded:
            entry = loaded["backbone"] if "backbone" in loaded.files else None
    if entry is None:
        return None
    if entry.ndim or entry.dtype.kind != "U":
        raise broken(path, f"backbone is {entry.dtype} {entry.shape}, no text", "write it anew with `engram embed`")
    return recipe_of(entry.item(), path)


def read_npz(path: Path) -> RawSet:
    """Labels 0..n-1, every number present, in both parts."""
    return _whole_npz(path, *npz_set(path))


def read_npz_in_pieces(path: Path) -> RawSet:
    """The same, with images that stay in the file until they are asked for."""
    return _whole_npz(path, *npz_set(path, in_pieces=True))


def _whole_npz(path: Path, train: Raw, test: Raw | None, names: tuple[str, ...]) -> RawSet:
    classes = check_labels(train.labels, path)
    if test:
        check_labels(test.labels, f"{path}: test_labels", classes)
    if names and len(names) != classes:
        raise broken(path, f"has {len(names)} class_names for {classes} classes", "name each of them once")
    backbone = npz_backbone(path) if train.vectors else None
    return RawSet(train, test, names or tuple(map(str, range(classes))), backbone=backbone)
