"""Figure 5: the picture of generated samples that `engram sample` left in a run folder, whatever its size."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from PIL import Image

from engram.opening import read_regular
from engram.report.gather import GRIDS

LARGEST = 600_000
"""Bytes of a PNG file that the page takes as it is; a larger one is shown as a JPEG."""
QUALITY = 85
MOST = 50_000_000
"""Bytes of a PNG file at all."""


def find(folder: Path) -> Path | None:
    return next((path for name in GRIDS if (path := folder / name).is_file()), None)


def read(path: Path) -> bytes | None:
    """The file's bytes; None where it is gone by now, or no such file."""
    try:
        return read_regular(path, MOST)
    except OSError:
        return None


def source(contents: bytes) -> str | None:
    """The picture as an address that holds its own data; None where it is no PNG."""
    if not contents.startswith(b"\x89PNG"):
        return None
    kind = "png"
    if len(contents) > LARGEST:
        try:
            contents, kind = _jpeg(contents), "jpeg"
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            return None
    return f"data:image/{kind};base64,{base64.b64encode(contents).decode()}"


def _jpeg(contents: bytes) -> bytes:
    out = io.BytesIO()
    with Image.open(io.BytesIO(contents)) as picture:
        picture.convert("RGB").save(out, "JPEG", quality=QUALITY)
    return out.getvalue()
