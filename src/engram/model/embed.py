"""From files to a file: a set of images, as vectors by a frozen network, in one .npz file that learns like any other.

DATA ──> Backbone ──> features, labels, test_features, test_labels, class_names, backbone
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engram.data.backbone import BATCH, Backbone, embed
from engram.data.raw import RawSet, broken
from engram.errors import ConfigError
from engram.experiment.files import os_errors, whole_file
from engram.model.intake import as_tested, files


@dataclass(frozen=True)
class Embedded:
    """What was written."""

    path: Path
    train: int
    test: int
    classes: int
    width: int
    """How many numbers a vector has."""
    bytes: int


def embed_data(
    data: str,
    backbone: Backbone,
    out: Path,
    *,
    batch: int = BATCH,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Embedded:
    """Write the vectors of all images of `data` to `out`: whole or not at all, with a test part where the data has one.

    data: a folder with one folder a class, an .npz file, or the name of a data set, as for `Model.learn`.
    """
    if batch < 1:
        raise ConfigError(f"--batch {batch} must be 1 or more")
    if out.suffix != ".npz" or os.path.isdir(out):
        raise ConfigError(f"--out {out}: name an .npz file, such as features.npz")
    raw, name, origin = files(data)
    if raw.train.vectors:
        raise broken(origin, "holds vectors already", "give images")
    if os.path.exists(out) and os.path.exists(origin) and os.path.samefile(out, origin):
        raise ConfigError(f"--out {out} is the data itself; name another file")
    vectors = embed(as_tested(raw, name), backbone, origin, batch=batch, progress=progress)
    write(vectors, out)
    test = 0 if vectors.test is None else len(vectors.test.labels)
    return Embedded(out, len(vectors.train.labels), test, len(vectors.class_names), backbone.width, out.stat().st_size)


def write(vectors: RawSet, out: Path) -> None:
    """An .npz file that `npz:PATH` reads; the same vectors give the same bytes."""
    assert vectors.backbone is not None
    arrays = {"features": vectors.train.images, "labels": vectors.train.labels}
    if vectors.test is not None:
        arrays |= {"test_features": vectors.test.images, "test_labels": vectors.test.labels}
    texts = {"class_names": np.array(vectors.class_names, str), "backbone": np.array(vectors.backbone.text)}
    with os_errors(out, kept="the file before, if there was one, is intact"), whole_file(out) as file:
        np.savez(file, **arrays, **texts)  # type: ignore[arg-type]
