"""Drawings of a model as a file: images as one picture, vectors as numbers or as a map."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engram.errors import ConfigError
from engram.experiment.files import write_atomically
from engram.experiment.maps import picture, svg, vector_map
from engram.experiment.pictures import png, sheet
from engram.kinds import is_vector
from engram.model.model import Model


def write_drawings(model: Model, indices: Sequence[int], per_class: int, out: Path, *, seed: int = 0) -> None:
    """Draw classes into a file: a .png of images; of vectors an .npz that is a data set, or a map as .png or .svg."""
    _, shape = model.ready("draw")
    if not is_vector(shape):
        _write(out, png(sheet(model.draw(indices, per_class, seed=seed), per_class)), "a .png file")
        return
    if out.suffix not in (".npz", ".png", ".svg"):
        raise ConfigError(f"--out {out}: vectors are written as .npz, or as a map to a .png or .svg file")
    drawn = model.draw(indices, per_class, seed=seed)
    labels = torch.arange(len(indices)).repeat_interleave(per_class)
    names = [model.classes[index] for index in indices]
    _write(out, _as_file(drawn, labels, names, out.suffix), "an .npz, .png or .svg file")


def _as_file(drawn: Tensor, labels: Tensor, names: Sequence[str], suffix: str) -> bytes:
    if suffix == ".npz":
        file = io.BytesIO()
        np.savez(file, features=drawn.numpy(), labels=labels.numpy(), class_names=np.array(names, str))
        return file.getvalue()
    shown = vector_map(drawn, labels, names)
    return svg(shown).encode() if suffix == ".svg" else png(picture(shown), zoom=1)


def _write(out: Path, content: bytes, remedy: str) -> None:
    try:
        write_atomically(out, content)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written ({error}); name {remedy}") from error
