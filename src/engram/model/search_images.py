"""Whether a state holds certain images, however they may be encoded. Pure functions; images are known by a hash alone.

A tensor is read in every way in which it may hold images of the shape (C, H, W):

    order     whole images one after the other, whatever the dimensions: (N, C, H, W), (N, C*H*W), (N, H, W),
              (A, B, C, H, W), or with the channels last
    values    whole numbers 0 to 255; floating point -1 to 1, 0 to 1 or 0 to 255, half precision too
    bytes     those of any tensor, taken as grey levels

A vector is known by its numbers as whole parts of its largest one, so that it is found in any unit and precision that
keeps them; a state that scales its vectors is read in the data's own unit too.

What is not found: images that were changed (scaled, blurred, added up), images that begin in the middle of a row of
others, and images of a single grey level, which look like the zeros of any other tensor.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.context import Shape
from engram.data.raw import Pixels, Vectors
from engram.kinds import is_vector

SIZE = 16
"""Bytes of a print."""


def prints(images: Pixels | Vectors, key: bytes = b"") -> list[bytes]:
    """A hash of each image's pixels, under a key where one is given.

    images: (N, C, H, W) or (N, C*H*W) uint8; or vectors (N, D).
    """
    if images.dtype != np.uint8:
        images = as_parts(images.astype(np.float32, copy=False))
    return [hashlib.blake2b(image.data, digest_size=SIZE, key=key).digest() for image in np.ascontiguousarray(images)]


def found_in(state: Any, shape: Shape, known: Set[bytes], key: bytes = b"") -> set[bytes]:
    """Which of the known prints are those of images in a state: a tree of dictionaries and lists with tensors."""
    if is_vector(shape):
        scale = state.get("scale") if isinstance(state, dict) else None
        vectors = (rows for tensor in tensors(state) for rows in read_as_vectors(tensor, *shape, scale=scale))
        return {one for rows in vectors for one in prints(rows[np.any(rows != 0, axis=1)], key) if one in known}
    readings = (rows for tensor in tensors(state) for rows in read_as_images(tensor, shape))
    return {one for rows in readings for one in prints(_telling(rows), key) if one in known}


def tensors(node: Any) -> Iterator[Tensor]:
    """All tensors of a tree."""
    if isinstance(node, Tensor):
        yield node.detach().cpu()
    elif isinstance(node, dict | list | tuple):
        for value in node.values() if isinstance(node, dict) else node:
            yield from tensors(value)


def read_as_images(tensor: Tensor, shape: Shape) -> Iterator[Pixels]:
    """(N, C*H*W) uint8, for every way to read a tensor as images of the shape (C, H, W)."""
    for values in _grey_levels(tensor.contiguous().reshape(-1)):
        if len(values) == 0 or len(values) % math.prod(shape):
            continue
        rows = values.reshape(-1, math.prod(shape))
        yield rows
        if shape[0] > 1:
            channels, height, width = shape
            last = rows.reshape(-1, height, width, channels)
            yield np.ascontiguousarray(last.transpose(0, 3, 1, 2)).reshape(rows.shape)


PARTS = 100
"""Into how many parts a vector's largest number is divided: coarse enough for the rounding of another unit."""


def as_parts(vectors: Vectors) -> Pixels:
    """(N, D) -> (N, D) whole numbers, the bytes of -PARTS … PARTS."""
    largest = np.abs(vectors).max(1, keepdims=True, initial=0)
    parts = np.rint(vectors.astype(np.float64) * (PARTS / np.where(largest > 0, largest, 1)))
    return parts.astype(np.int8).view(np.uint8)


def read_as_vectors(tensor: Tensor, size: int, *, scale: dict[str, Tensor] | None = None) -> Iterator[Vectors]:
    """(N, D) float32, for every way to read a tensor as vectors of so many numbers."""
    if not tensor.is_floating_point() or tensor.numel() == 0 or tensor.numel() % size:
        return
    rows = tensor.contiguous().reshape(-1, size).float().nan_to_num(0, 0, 0)
    yield rows.numpy()
    if scale is not None:
        yield (rows * scale["deviation"] + scale["mean"]).numpy()


def _grey_levels(flat: Tensor) -> Iterator[Pixels]:
    """(n,) of any type -> its values as grey levels, in every encoding; its bytes as they lie."""
    if flat.dtype == torch.bool or flat.is_complex():
        return
    yield flat.view(torch.uint8).numpy()
    if flat.is_floating_point():
        values = flat.float().nan_to_num(0, 0, 0).clamp(-1, 255).numpy()
        for levels in ((values + 1) * 127.5, values * 255, values):
            yield np.rint(levels).clip(0, 255).astype(np.uint8)
    elif flat.dtype != torch.uint8:
        yield flat.clamp(0, 255).to(torch.uint8).numpy()


def _telling(rows: Pixels) -> Pixels:
    """Without the images of one grey level: a tensor of zeros would be one of them."""
    kept: Pixels = rows[rows.min(1) != rows.max(1)]
    return kept
