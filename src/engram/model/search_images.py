"""Whether a state holds certain images, however they may be encoded. Pure functions; images are known by a hash alone.

A tensor is read in every way in which it may hold images of the shape (C, H, W):

    order     whole images one after the other, whatever the dimensions: (N, C, H, W), (N, C*H*W), (N, H, W),
              (A, B, C, H, W), or with the channels last
    values    whole numbers 0 to 255; floating point -1 to 1, 0 to 1 or 0 to 255, half precision too
    bytes     those of any tensor, taken as grey levels

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
from engram.data.raw import Pixels

SIZE = 16
"""Bytes of a print."""


def prints(images: Pixels, key: bytes = b"") -> list[bytes]:
    """A hash of each image's pixels, under a key where one is given. images: (N, C, H, W) or (N, C*H*W) uint8."""
    return [hashlib.blake2b(image.data, digest_size=SIZE, key=key).digest() for image in np.ascontiguousarray(images)]


def found_in(state: Any, shape: Shape, known: Set[bytes], key: bytes = b"") -> set[bytes]:
    """Which of the known prints are those of images in a state: a tree of dictionaries and lists with tensors."""
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
