"""Drawings as one picture: a class a row."""

from __future__ import annotations

import io

import torch
from PIL import Image
from torch import Tensor

GAP = 2
"""Dark pixels around every image."""


def sheet(images: Tensor, per_row: int) -> Tensor:
    """(N, C, H, W) uint8 -> one image (C, rows * (H + 2) + 2, per_row * (W + 2) + 2), row by row."""
    channels, height, width = images.shape[1:]
    rows = -(-len(images) // per_row)
    out = torch.zeros(channels, rows * (height + GAP) + GAP, per_row * (width + GAP) + GAP, dtype=torch.uint8)
    for number, image in enumerate(images):
        row, column = divmod(number, per_row)
        top, left = row * (height + GAP) + GAP, column * (width + GAP) + GAP
        out[:, top : top + height, left : left + width] = image
    return out


def png(image: Tensor, *, zoom: int = 2) -> bytes:
    """A (C, H, W) uint8 image, grey or in colour, as a PNG file."""
    pixels = image[0] if len(image) == 1 else image.permute(1, 2, 0).contiguous()
    picture = Image.fromarray(pixels.numpy())
    picture = picture.resize((picture.width * zoom, picture.height * zoom), Image.Resampling.NEAREST)
    file = io.BytesIO()
    picture.save(file, format="PNG")
    return file.getvalue()
