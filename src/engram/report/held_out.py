"""The two kinds of records that only runs with held-out images have: `calibration` and `privacy`, one each a task.

And what `benchmarks/unknown.py` adds to such a run: images of other data sets against it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from engram.errors import RunError
from engram.opening import read_regular, why
from engram.report.fields import demand, list_of, maybe, plain, share, text, whole
from engram.report.records import Fields

LARGEST = 10_000_000
"""Bytes of the file of other data sets."""


@dataclass(frozen=True)
class Trust:
    """How far answers could be trusted after a task, on test images. None: there was nothing to measure it on."""

    task: int
    ece_before: float | None
    """Expected calibration error without a temperature."""
    ece: float | None
    kept: float | None
    """Of the images of known classes, the share that is not called unknown."""
    auroc: float | None
    """Of images of known classes against those of classes still to come."""
    rejected: float | None
    """Of the images of classes still to come, the share that is called unknown."""
    by_typicality: bool
    """Whether an image was called unknown for its features, too; older records know the confidence alone."""


@dataclass(frozen=True)
class Others:
    """Images of another data set against a finished run."""

    data: str
    images: int
    auroc: float | None
    """Of images of known classes against these, by confidence."""
    auroc_typical: float | None
    """The same by typicality."""
    rejected: float
    """The share of them that is called unknown."""


OTHERS = "unknown.jsonl"
"""In a run folder, a line of JSON a data set."""


@dataclass(frozen=True)
class Estimate:
    """A share or an AUC with its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """Drawings of a class against its training and its held-out images, in one space."""

    nearer_to_training: Estimate
    near_copies: Estimate
    near_copies_of_real: Estimate
    """The base line: the same share of real images that were held out."""
    attack: Estimate


@dataclass(frozen=True)
class Tested:
    """A class, and what was found of it. None: not compared in this space."""

    name: str
    drawings: int
    training: int
    held_out: int
    pixels: Comparison | None
    features: Comparison | None
    outcome: str

    @property
    def spaces(self) -> dict[str, Comparison]:
        """Those in which it was compared."""
        both = {"pixels": self.pixels, "features": self.features}
        return {name: one for name, one in both.items() if one is not None}


@dataclass(frozen=True)
class Privacy:
    """The classes of a task."""

    task: int
    classes: tuple[Tested, ...]


def trust(r: Fields) -> Trust:
    whole(r["tested"])  # all else may be missing: with no image of the kind there is nothing to measure
    ece_before, ece, kept, auroc, rejected = (
        maybe(r.get(name), share) for name in ("ece_before", "ece", "kept", "auroc", "rejected")
    )
    return Trust(whole(r["task"]), ece_before, ece, kept, auroc, rejected, r.get("reach") is not None)


def others(folder: Path) -> tuple[Others, ...]:
    """What a run folder says of other data sets; nothing where nobody has asked."""
    path = folder / OTHERS
    if not path.exists():
        return ()
    try:
        lines = read_regular(path, LARGEST).decode(errors="replace").splitlines()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}; make it anew") from None
    try:
        return tuple(_others(json.loads(line)) for line in lines)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        what = plain(why(error))
        raise RunError(f"{path} cannot be read ({what}); make it anew with benchmarks/unknown.py") from None


def _others(r: Fields) -> Others:
    auroc, typical = (maybe(r.get(name), share) for name in ("auroc", "auroc_typical"))
    return Others(text(r["others"]), whole(r["unknown"]), auroc, typical, share(r["rejected"]))


def privacy(r: Fields) -> Privacy:
    names, found = list_of(r["classes"], lambda name: plain(str(name))), list_of(r["found"], dict)
    demand(len(names) == len(found), "values that do not match the classes")
    return Privacy(whole(r["task"]), tuple(map(_tested, names, found)))


def _tested(name: str, r: Fields) -> Tested:
    return Tested(
        name=name,
        drawings=whole(r["drawings"]),
        training=whole(r["training"]),
        held_out=whole(r["held_out"]),
        pixels=maybe(r.get("pixels"), _comparison),
        features=maybe(r.get("features"), _comparison),
        outcome=text(r["outcome"]),
    )


def _comparison(r: Fields) -> Comparison:
    names = ("nearer_to_training", "near_copies", "near_copies_of_real", "attack")
    return Comparison(*(_estimate(r[name]) for name in names))


def _estimate(values: object) -> Estimate:
    found = list_of(values, share)
    demand(len(found) == 3 and found[1] <= found[0] <= found[2], f"{values!r:.40} is no value with its interval")
    return Estimate(*found)
