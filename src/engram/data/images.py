"""One image file -> (channels, H, W) uint8: PNG, JPEG, WebP or BMP, upright, on white; whole or refused."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, ImageOps

from engram.data import limits, png
from engram.data.raw import Pixels, broken
from engram.data.reading import decoding, size_of, within
from engram.errors import DataError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
DECODERS = ("PNG", "JPEG", "WEBP", "BMP")
"""Pillow's names. It has many more, some of which start other programs: none of them is ever tried."""
IMAGES = "PNG, JPEG, WebP or BMP"
GREY_MODES = {"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N"}
REMEDY, SMALLER = "repair or remove it", "scale the image down"


def decode_image(source: Path | bytes | Image.Image, channels: int, origin: str = "image") -> Pixels:
    """One PNG, JPEG, WebP or BMP -> (channels, H, W), upright as its EXIF note says. `origin` names mere bytes."""
    if isinstance(source, Image.Image):
        _check_size(source, origin)
        with decoding(origin, "cannot be read"):
            return _pixels(source.copy(), channels)
    origin, data = (str(source), _bytes_of(source)) if isinstance(source, Path) else (origin, source)
    with _opened(data, origin) as image:
        if ImageFile.LOAD_TRUNCATED_IMAGES:
            remedy = "set PIL.ImageFile.LOAD_TRUNCATED_IMAGES = False"
            raise DataError(f"Pillow is told to read truncated images as if they were whole; {remedy}")
        image.load()
        if image.format == "PNG" and not png.has_every_row(image, data):
            raise ValueError("rows are missing")
        return _pixels(image, channels)


def is_grey(path: Path) -> bool:
    with _opened(_bytes_of(path), str(path)) as image:
        return image.mode in GREY_MODES


def holds_numbers(image: Image.Image) -> bool:
    """Whether an image has numbers of any range for pixels. Some versions of Pillow read a PNG of 16 bits as mode I."""
    return image.mode == "F" or (image.mode == "I" and image.format != "PNG")


def numbers_of(image: Image.Image) -> npt.NDArray[Any]:
    """(H, W) as they are: what they mean, whoever asks has to find out."""
    _check_size(image, "image")
    with decoding("image", "cannot be read"):
        return np.asarray(ImageOps.exif_transpose(image))


def _bytes_of(path: Path) -> bytes:
    within(path, "bytes of an image file:", size_of(path), limits.IMAGE_FILE, SMALLER)
    with decoding(path, "cannot be read", "check the path and your rights"):
        return path.read_bytes()


@contextmanager
def _opened(data: bytes, origin: str) -> Iterator[Image.Image]:
    """An image, its header read; `origin` names it in an error.

    Of bytes in memory, because Pillow reads as much from a file as the file asks for, and takes the memory beforehand.
    """
    with decoding(origin, f"no readable {IMAGES} image", REMEDY):
        try:
            opened = Image.open(io.BytesIO(data), formats=DECODERS)
        except Image.DecompressionBombError as error:
            raise broken(origin, str(error), SMALLER) from None
        with opened as image:
            _check_size(image, origin)
            yield image


def _check_size(image: Image.Image, origin: str) -> None:
    """Before anything is decoded. Above its own limit, which somebody may have set lower, Pillow merely warns."""
    within(origin, "pixels along a side:", max(image.size), limits.SIDE, SMALLER)
    limit = min(limits.PIXELS, Image.MAX_IMAGE_PIXELS or limits.PIXELS)
    within(origin, "pixels:", image.width * image.height, limit, SMALLER)


def _pixels(image: Image.Image, channels: int) -> Pixels:
    """An image that may be changed -> (channels, H, W)."""
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I"):  # 16 bits a pixel, in a file: Pillow's own conversion would clip, not scale
        grey = np.clip(np.asarray(image).astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        return np.repeat(grey[None], channels, axis=0)
    pixels = np.array(_on_white(image, "L" if channels == 1 else "RGB"), np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _on_white(image: Image.Image, mode: str) -> Image.Image:
    """Transparent parts become white paper; without an alpha channel, a plain conversion."""
    if image.mode in ("LA", "La", "RGBA", "RGBa", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image.convert(mode)
