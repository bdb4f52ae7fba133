"""What a user asks about, as examples of the model's shape: files, PIL images, numpy and torch arrays; vectors.

Values are checked, never guessed: whole numbers are grey levels 0 to 255, floating-point numbers lie between 0 and 1.
Everything else is refused with a line that says what was found.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from engram.context import Shape
from engram.data.datasets import resize
from engram.data.images import decode_image, holds_numbers, numbers_of
from engram.data.npz import npz_features
from engram.data.raw import Pixels, Vectors, as_vectors, broken
from engram.errors import DataError
from engram.kinds import is_vector


def as_images(x: Any, shape: Shape) -> Tensor:
    """(B, C, H, W) uint8 of this shape, from one image or many; images of another size are scaled.

    x: a path, a PIL image, an array, or a sequence of paths, PIL images or arrays. An array of one image is (H, W),
    (H, W, C) or (C, H, W), of many (B, H, W), (B, H, W, C) or (B, C, H, W).
    Of a model of vectors: (B, D) float32, from a row of numbers or many; a path names an .npz file with `features`.
    """
    if is_vector(shape):
        return torch.from_numpy(vectors_of(x, *shape))
    if isinstance(x, np.ndarray | Tensor):
        return _scaled(as_pixels(x, shape[0]), shape)
    if isinstance(x, str | os.PathLike | Image.Image):
        x = [x]
    if not isinstance(x, Sequence) or isinstance(x, bytes):
        raise DataError(f"images cannot be a {type(x).__name__}; give paths, PIL images, or numpy or torch arrays")
    if not x:
        return torch.empty(0, *shape, dtype=torch.uint8)
    return torch.cat([_one(item, number, shape) for number, item in enumerate(x)])


def told(x: Any) -> str:
    """What a user gave, as a line names it."""
    return os.fspath(x) if isinstance(x, str | os.PathLike) else f"a {type(x).__name__}"


def are_vectors(x: Any, shape: Shape) -> bool:
    """Whether these are vectors for a model of vectors, and no images.

    >>> are_vectors(np.zeros((4, 3)), (3,)), are_vectors("photo.jpg", (3,)), are_vectors([0.5, 1.0, 2.0], (3,))
    (True, False, True)
    """
    if not is_vector(shape) or isinstance(x, Image.Image):
        return False
    if isinstance(x, str | os.PathLike):
        return os.fspath(x).lower().endswith((".npz", ".npy"))
    if isinstance(x, np.ndarray | Tensor):
        return x.ndim == 1 or (x.ndim == 2 and tuple(x.shape[1:]) == shape)
    if isinstance(x, Sequence) and x and not isinstance(x, bytes):
        return isinstance(x[0], int | float | np.number) or are_vectors(x[0], shape)
    return True


def vectors_of(x: Any, size: int) -> Vectors:
    """(B, size) float32, checked.

    >>> vectors_of([0.5, 1.0, 2.0], 3).shape
    (1, 3)
    >>> vectors_of(np.zeros((4, 2)), 3)
    Traceback (most recent call last):
    engram.errors.DataError: the vectors: features has 2 numbers a vector, the model takes 3; give vectors of 3 numbers
    """
    origin = "the vectors"
    if isinstance(x, str | os.PathLike):
        origin, x = os.fspath(x), npz_features(Path(x))
    elif isinstance(x, np.ndarray | Tensor):
        x = as_array(x)
    else:
        try:
            x = np.array([as_array(row) if isinstance(row, Tensor) else row for row in x])
        except (TypeError, ValueError):
            raise DataError(f"vectors cannot be a {type(x).__name__} of this kind; give an array, (N, D)") from None
    if x.shape == (0,):
        return np.empty((0, size), np.float32)
    rows = x[None] if x.ndim == 1 else x
    if len(rows) == 0 and rows.ndim == 2:
        return np.empty((0, size), np.float32)
    vectors, _ = as_vectors(rows, origin)
    if vectors.shape[1] != size:
        what = f"features has {vectors.shape[1]} numbers a vector, the model takes {size}"
        raise broken(origin, what, f"give vectors of {size} numbers")
    return vectors


def _one(item: Any, number: int, shape: Shape) -> Tensor:
    if isinstance(item, str | os.PathLike):
        return _scaled(decode_image(Path(item), shape[0])[None], shape)
    if isinstance(item, Image.Image) and holds_numbers(item):
        item = numbers_of(item)
    if isinstance(item, Image.Image):
        if 0 in item.size:
            raise DataError(f"image {number} of the list is {item.width}x{item.height}: there is nothing to see")
        return _scaled(decode_image(item, shape[0])[None], shape)
    if isinstance(item, np.ndarray | Tensor):
        pixels = as_pixels(item, shape[0])
        if len(pixels) != 1:
            raise DataError(f"image {number} of the list has the shape {tuple(item.shape)}; it must be one image")
        return _scaled(pixels, shape)
    raise DataError(f"image {number} of the list is a {type(item).__name__}; give paths, PIL images or arrays")


def _scaled(pixels: Pixels, shape: Shape) -> Tensor:
    return resize(pixels, shape[1])


def as_pixels(array: npt.NDArray[Any] | Tensor, channels: int) -> Pixels:
    """(B, C, H, W) uint8 with so many channels; values and channels are checked, the size stays."""
    return _with_channels(_laid_out(as_grey_levels(as_array(array)), channels), channels)


def as_array(array: npt.NDArray[Any] | Tensor) -> npt.NDArray[Any]:
    """The same numbers for numpy, without a copy where they lie in plain order in this machine's memory."""
    if not isinstance(array, Tensor):
        return array
    try:
        return array.detach().cpu().numpy()
    except (TypeError, RuntimeError):  # sparse, quantised, without contents, or of a type that numpy does not know
        kind = f"{array.dtype}, {array.layout}, on {array.device}"
        raise DataError(
            f"a tensor of this kind cannot be read ({kind}); give a dense one of uint8 or float32"
        ) from None


def as_grey_levels(array: npt.NDArray[Any]) -> Pixels:
    """Values 0 to 255: whole numbers as they are, floating-point numbers times 255.

    >>> as_grey_levels(np.array([0.0, 0.5, 1.0])).tolist()
    [0, 128, 255]
    >>> as_grey_levels(np.array([-1.0, 1.0]))
    Traceback (most recent call last):
    engram.errors.DataError: images of float64 lie between -1 and 1; give 0…1, or whole numbers 0…255
    """
    kind = array.dtype.kind
    if array.dtype == np.uint8 or array.size == 0:
        return array.astype(np.uint8, copy=False)
    if kind not in "iuf":
        raise DataError(f"images of {array.dtype} cannot be read; give uint8 0…255, or floating-point numbers 0…1")
    if kind == "f" and not np.isfinite(array).all():
        raise DataError(f"images of {array.dtype} hold NaN or infinite values; clean them first")
    low, high = array.min().item(), array.max().item()
    top = 1 if kind == "f" else 255
    if low < 0 or high > top:
        raise DataError(f"images of {array.dtype} lie between {low:g} and {high:g}; give 0…1, or whole numbers 0…255")
    return np.rint(array * 255).astype(np.uint8) if kind == "f" else array.astype(np.uint8)


def _laid_out(array: Pixels, channels: int) -> Pixels:
    """(B, C, H, W), from the layouts of `as_images`. Where two fit, the model's own number of channels decides."""
    found = tuple(array.shape)
    if array.ndim == 2:
        return array[None, None]
    if array.ndim == 3:
        if found[0] == channels == 3:  # three grey images look the same: for a colour model it is one in colour
            return array[None]
        return array.transpose(2, 0, 1)[None] if found[2] in (1, 3) else array[:, None]
    if array.ndim == 4 and found[1] in (1, 3) and (found[3] not in (1, 3) or found[1] == channels):
        return array
    if array.ndim == 4 and found[3] in (1, 3):
        return array.transpose(0, 3, 1, 2)
    raise DataError(f"images have the shape {found}; give (B, H, W), (B, H, W, C) or (B, C, H, W) with C = 1 or 3")


def _with_channels(pixels: Pixels, channels: int) -> Pixels:
    found = pixels.shape[1]
    if 0 in pixels.shape[2:]:
        raise DataError(f"images have the shape {tuple(pixels.shape)}: there is nothing to see")
    if found == channels:
        return np.ascontiguousarray(pixels)
    if found == 1:  # grey is a colour too
        return np.repeat(pixels, channels, axis=1)
    raise DataError(f"images have {found} channels, the model takes {channels}; convert them to grey first")
