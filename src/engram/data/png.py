"""Whether a PNG holds every row that its header promises: Pillow shows rows that are missing as black ones."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from PIL import Image

PIECE = 1 << 20
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Numbers a pixel, by the header's type of colour."""
WHOLE = ((0, 0, 1, 1),)
INTERLACED = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""First column and row of each pass, and the steps from there."""


def has_every_row(image: Image.Image, data: bytes) -> bool:
    """Of a decoded image and its file. A last row that is not all zeros was there, and so were those above it."""
    if not image.info.get("interlace"):
        last = image.crop((0, image.height - 1, image.width, image.height)).tobytes()
        if last.strip(b"\0"):
            return True
    needed = _bytes_of_rows(data)
    return _unpacked_to(data, needed) >= needed


def _bytes_of_rows(data: bytes) -> int:
    """Each row has a byte for its filter, and its pixels filled up to whole bytes."""
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    bits = data[24] * SAMPLES[data[25]]
    total = 0
    for left, top, across, down in INTERLACED if data[28] else WHOLE:
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        if columns > 0 and rows > 0:
            total += rows * (1 + -(-columns * bits // 8))
    return total


def _unpacked_to(data: bytes, enough: int) -> int:
    """How many bytes the image data unpack to, counted no further than `enough`."""
    unpacker, count = zlib.decompressobj(), 0
    for packed in _image_data(data):
        while packed and count < enough and not unpacker.eof:
            count += len(unpacker.decompress(packed, PIECE))
            packed = unpacker.unconsumed_tail
    return count + (len(unpacker.flush()) if count < enough and not unpacker.eof else 0)


def _image_data(data: bytes) -> Iterator[bytes]:
    """The contents of the chunks IDAT."""
    at = 8
    while at + 8 <= len(data):
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if kind == b"IDAT":
            yield data[at + 8 : at + 8 + length]
        at += 12 + length
