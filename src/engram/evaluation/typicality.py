"""Whether an image is like anything that was learned at all: a second guard beside the confidence.

A classifier can be very sure of an image that is like none of its classes (digits of another data set, say). Its
features tell: those of drawings of all classes are projected at random to 32 numbers, whose mean and covariance give
every image a distance (Mahalanobis). Images of classes still to come often lie within: these are the confidence's part.

    typical   the distance is within reach

The reach is to hold 99 % of the real images. Real features lie farther out than drawn ones, so a class's held-out
images leave one number behind, its stretch: how much farther 99 % of them reach than 90 % of its drawings. It works
from the first class on, where the confidence does not; there the reach holds 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from engram.data.examples import Examples
from engram.errors import ConfigError, EngramError, RunError
from engram.evaluation.calibration import FEW, drawings_of, require_own
from engram.methods.learner import Embeds, Samples
from engram.seeding import generator

KEEP = 0.99
"""The share of real images that is to be within reach."""
KEEP_ALONE = 0.95
"""The same where a single class is known."""
MOST = 0.9
"""Drawings are measured by what most of them reach: the farthest few say little about the rest."""
DRAWINGS = 500
"""Per class."""
LEAST = 20
"""Held-out images of a class, under which how far they reach is chance."""
WIDTH = 32
"""Numbers per image after the projection."""


@runtime_checkable
class DrawsAndEmbeds(Samples, Embeds, Protocol):
    """A learner whose drawings have features."""


@dataclass(frozen=True)
class Typicality:
    """A centre, a shape and a reach in projected features, and what is left of the held-out images."""

    seed: int
    """Of the projection."""
    inputs: int
    """Features of an image before the projection."""
    centre: tuple[float, ...]
    shape: tuple[tuple[float, ...], ...]
    """What makes the drawings' covariance the identity, a row per projected feature."""
    reach: float
    """The farthest distance of a typical image."""
    stretches: tuple[float | None, ...]
    """Per class; None: never measured."""
    held_out: tuple[int, ...]
    """Per class: real images that its stretch was measured on."""

    def distances(self, features: Tensor) -> Tensor:
        """(B, F) -> (B,), in standard deviations of the drawings."""
        if features.shape[1] != self.inputs:
            raise EngramError(f"{features.shape[1]} features an image; the typicality was measured on {self.inputs}")
        offset = project(features, self.seed) - torch.tensor(self.centre, dtype=torch.float64)
        return (offset @ torch.tensor(self.shape, dtype=torch.float64)).square().sum(1).sqrt()

    def typical(self, features: Tensor) -> Tensor:
        """(B, F) -> (B,) bool."""
        return self.distances(features) <= self.reach

    def without(self, class_index: int) -> Typicality:
        """As if a class had left nothing: its place disappears. The next task measures centre and shape anew."""
        size = len(self.stretches)
        if not 0 <= class_index < size:
            raise ConfigError(f"the typicality has no class {class_index}; it has {size}, counted from 0")
        rest = [c for c in range(size) if c != class_index]
        stretches = tuple(self.stretches[c] for c in rest)
        return replace(self, stretches=stretches, held_out=tuple(self.held_out[c] for c in rest))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**vars(self), "shape": [list(row) for row in self.shape]} | {
            name: list(getattr(self, name)) for name in ("centre", "stretches", "held_out")
        }

    @classmethod
    def from_dict(cls, values: Any) -> Typicality:
        """Back from JSON; what cannot be is refused."""
        try:
            made = {name: read(values[name]) for name, read in _READ.items()}
            found = cls(**made)
            whole = {len(found.shape), *map(len, found.shape)} == {len(found.centre)} and len(values) == len(made)
        except (KeyError, TypeError, ValueError):
            raise RunError("the typicality has a part that cannot be read; calibrate it again") from None
        numbers = [*found.centre, *(x for row in found.shape for x in row), found.reach, *found.held_out]
        known = [(one, n) for one, n in zip(found.stretches, found.held_out, strict=False) if one is not None]
        fits = len(found.stretches) == len(found.held_out) and all(0 < one < math.inf and n for one, n in known)
        if not (whole and fits and all(map(math.isfinite, numbers))):
            raise RunError("the typicality holds numbers that cannot be; calibrate it again")
        return found


_READ: dict[str, Callable[[Any], Any]] = {
    "seed": int,
    "inputs": int,
    "centre": lambda values: tuple(map(float, values)),
    "shape": lambda rows: tuple(tuple(map(float, row)) for row in rows),
    "reach": float,
    "stretches": lambda values: tuple(None if one is None else float(one) for one in values),
    "held_out": lambda values: tuple(map(int, values)),
}


def project(features: Tensor, seed: int) -> Tensor:
    """(B, F) -> (B, WIDTH) float64, at random and for a seed always alike."""
    draws = torch.randn(features.shape[1], WIDTH, generator=generator(seed, "typicality"))
    return features.double().cpu() @ draws.double() / math.sqrt(features.shape[1])


def whitening(points: Tensor) -> Tensor:
    """(N, D) float64 -> (D, D): (points - mean) times this has the identity for its covariance, nearly."""
    covariance = torch.cov(points.T)
    size = len(covariance)
    ridge = 1e-4 * float(covariance.diagonal().mean()) + 1e-12  # features that never vary have no inverse
    inverse = torch.linalg.inv(covariance + ridge * torch.eye(size, dtype=torch.float64))
    factor: Tensor = torch.linalg.cholesky(inverse)
    return factor


def trusted_stretches(stretches: Sequence[float | None], counts: Sequence[int]) -> list[float]:
    """What to take for the stretch of every class: few images move it towards the mean of all, and none leave that.

    >>> [round(one, 2) for one in trusted_stretches([1.2, None, 1.8], [600, 0, 600])]
    [1.21, 1.47, 1.78]
    """
    known = [(math.log(one), n / (n + FEW)) for one, n in zip(stretches, counts, strict=True) if one is not None]
    others = sum(log * trust for log, trust in known) / max(sum(trust for _, trust in known), 1e-9)
    pairs = zip(stretches, counts, strict=True)
    return [math.exp(others if one is None else (n * math.log(one) + FEW * others) / (n + FEW)) for one, n in pairs]


@torch.inference_mode()
def measure_typicality(
    learner: DrawsAndEmbeds,
    *,
    seen: int,
    class_indices: Sequence[int],
    held: Examples | None,
    before: Typicality | None,
    seed: int,
    task: int,
    keep: float = KEEP,
    drawings: int | None = None,
) -> Typicality | None:
    """After a task, for all `seen` classes; arguments as for `calibrate`. None until a class had enough
    held-out images."""
    require_own(held, class_indices)
    stretches, held_out = _past(before, seen)
    drawings = drawings_of(learner, seen, DRAWINGS) if drawings is None else drawings
    features = [
        learner.features(learner.sample([c], drawings, generator=generator(seed, "typical", task, c)))
        for c in range(seen)
    ]
    drawn = [project(one, seed) for one in features]
    centre, shape = torch.cat(drawn).mean(0), whitening(torch.cat(drawn))
    most = [float(((one - centre) @ shape).norm(dim=1).quantile(MOST)) for one in drawn]
    alone = None
    for c, images in _by_class(held):
        far = ((project(learner.features(images), seed) - centre) @ shape).norm(dim=1)
        stretches[c], held_out[c] = float(far.quantile(keep)) / most[c], len(images)
        if seen == 1:
            alone = float(far.quantile(KEEP_ALONE))
    if not any(held_out):
        return None
    # of a single class every answer is sure: nothing else tells the unknown
    reach = alone or sum(m * s for m, s in zip(most, trusted_stretches(stretches, held_out), strict=True)) / seen
    plain = tuple(centre.tolist()), tuple(map(tuple, shape.tolist()))
    return Typicality(seed, features[0].shape[1], *plain, reach, tuple(stretches), tuple(held_out))


def _past(before: Typicality | None, seen: int) -> tuple[list[float | None], list[int]]:
    """Stretches and counts of the past, with places for new classes."""
    stretches, counts = ([], []) if before is None else (list(before.stretches), list(before.held_out))
    if len(counts) > seen:
        raise EngramError(f"the typicality before has {len(counts)} classes, {seen} were seen; forget the others first")
    return stretches + [None] * (seen - len(counts)), counts + [0] * (seen - len(counts))


def _by_class(held: Examples | None) -> list[tuple[int, Tensor]]:
    if held is None:
        return []
    found = [(c, held.images[held.targets == c]) for c in sorted(set(held.targets.tolist()))]
    return [(c, images) for c, images in found if len(images) >= LEAST]
