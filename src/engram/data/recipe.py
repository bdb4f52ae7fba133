"""By what vectors were made: which frozen network, and how images were prepared for it. No network is needed here.

A recipe travels with the vectors: into their file, their data's digest, and the model that learns from them. So vectors
of other weights, or of the same weights and other preparation, are never taken for the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engram.errors import DataError

RESIZE = "bilinear with antialiasing, both sides to the size, rounded to whole grey levels"
"""What `datasets.resize` does."""


@dataclass(frozen=True)
class Recipe:
    """How images became vectors."""

    name: str
    """What the ONNX file was called; for people, no part of the digest."""
    sha256: str
    """Of the ONNX file."""
    shape: tuple[int, int, int]
    """(C, H, W) of what it is shown."""
    values: str
    """"float32": x / 255, less the mean, over the deviation. "uint8": x as it is."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    output: str
    resize: str = RESIZE

    @property
    def digest(self) -> str:
        """Over all but the name: equal recipes give equal vectors."""
        plain = {key: value for key, value in asdict(self).items() if key != "name"}
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the digest."""
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return {**plain, "digest": self.digest}

    @classmethod
    def of(cls, plain: Any) -> Recipe:
        """Back from plain values; ValueError where they are no recipe, or not the one that the digest is of."""
        try:
            values: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()
            }
            digest = values.pop("digest")
            made = cls(**values)
            if made.digest == digest:
                return made
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no description of a backbone ({type(error).__name__}: {error})") from None
        raise ValueError("its description of the backbone does not match its digest")

    @property
    def text(self) -> str:
        """For a file: JSON on one line."""
        return json.dumps(self.as_dict(), sort_keys=True)

    def __str__(self) -> str:
        """For people: which file."""
        return _one_line(f"{self.name} ({self.digest[:12]})")

    @property
    def preparation(self) -> str:
        """For people: what is done to an image."""
        channels, height, width = self.shape
        size = f"{width} x {height} pixels, {'grey' if channels == 1 else 'RGB'}"
        if self.values == "uint8":
            return f"{size}, 0 to 255"
        mean, std = (", ".join(f"{value:g}" for value in some) for some in (self.mean, self.std))
        return f"{size}, (x / 255 - ({mean})) / ({std})"


def require_same(wanted: Recipe | None, found: Recipe | None, origin: str) -> None:
    """Vectors that were made otherwise mean something else, even where they are as long."""
    if wanted == found or (wanted and found and wanted.digest == found.digest):
        return
    if wanted is None:
        what = f"vectors by the backbone {found}, and the model learned from vectors that name none"
        raise DataError(_one_line(f"{origin}: {what}; make a new model for them"))
    what = f"vectors by the backbone {found}" if found else "vectors that name no backbone"
    why = ""
    if found and found.sha256 == wanted.sha256:
        why = f": the same file, other preparation ({found.preparation}; {found.output})"
    remedy = "make them by that one, with `engram embed`"
    raise DataError(_one_line(f"{origin}: {what}{why}, the model learned from those of {wanted}; {remedy}"))


def require_kind(vectors: bool, wanted: Recipe | None, origin: str) -> None:
    """Images have to go the way of those that were learned from."""
    if wanted is not None and not vectors:
        what = f"images, and the model learned from vectors by the backbone {wanted}"
        raise DataError(_one_line(f"{origin}: {what}; give its file: --backbone FILE, or backbone= in Python"))


def recipe_in(data: Mapping[str, Any]) -> Recipe | None:
    """Of what a record or a step of the lineage says of its data."""
    return Recipe.of(data["backbone"]) if "backbone" in data else None


def recipe_of(entry: object, origin: Path | str) -> Recipe:
    """From a file's JSON text."""
    try:
        return Recipe.of(json.loads(str(entry)))
    except ValueError as error:
        raise DataError(_one_line(f"{origin}: backbone: {error}; write it anew with `engram embed`")) from None


def _one_line(text: str) -> str:
    return " ".join(text.split())
