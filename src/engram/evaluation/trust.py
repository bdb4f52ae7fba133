"""Trust: what makes an answer's probability honest, and tells what no class fits; and how good that is on test images.

An image is known where the answer is sure enough (calibration.py) and the image is like what was learned
(typicality.py). Both are measured after a task, from drawings of all classes and from the task's own held-out images.

    ece, ece_before     expected calibration error with the temperature, and with none
    kept                of the test images of known classes, the share that is not called unknown
    auroc               chance that an image of a known class is surer than one of a class that is not known
    auroc_typical       the same by how typical they are
    rejected            of the images of classes that are not known, the share that is called unknown

Nothing is chosen by these figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engram.data.datasets import Dataset
from engram.data.examples import Examples
from engram.errors import RunError
from engram.evaluation.calibration import KEEP, Calibration, calibrate
from engram.evaluation.confidence import auroc, confidence, expected_calibration_error, probabilities
from engram.evaluation.evaluate import BATCH, Answers
from engram.evaluation.typicality import DrawsAndEmbeds, Typicality, measure_typicality
from engram.methods.learner import Embeds

KEEP_BESIDE = 0.96
"""What the confidence keeps where typicality, which keeps 99 %, stands beside it: together 95 %."""


@dataclass(frozen=True)
class Trust:
    """All that is kept for it: no image and no feature of one."""

    calibration: Calibration
    typicality: Typicality | None
    """None for a learner that cannot draw or has no features."""

    @property
    def temperature(self) -> float:
        """By which scores are divided before they become probabilities."""
        return self.calibration.temperature

    def known(self, scores: Tensor, features: Tensor | None) -> Tensor:
        """(B, C) scores, (B, F) features -> (B,) bool."""
        sure = self.calibration.known(scores)
        return sure if self.typicality is None or features is None else sure & self.typicality.typical(features)

    def without(self, class_index: int) -> Trust:
        """A class is forgotten; what was measured with it is to be measured anew."""
        typicality = self.typicality and self.typicality.without(class_index)
        return Trust(self.calibration.without(class_index), typicality)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        typicality = None if self.typicality is None else self.typicality.as_dict()
        return {"calibration": self.calibration.as_dict(), "typicality": typicality}

    @classmethod
    def from_dict(cls, values: Any) -> Trust:
        """Back from JSON."""
        if not isinstance(values, dict) or set(values) != {"calibration", "typicality"}:
            raise RunError("what makes answers honest cannot be read; restore the model from a copy")
        typicality = values["typicality"]
        return cls(
            Calibration.from_dict(values["calibration"]),
            None if typicality is None else Typicality.from_dict(typicality),
        )


def measure(
    learner: Answers,
    *,
    seen: int,
    class_indices: Sequence[int],
    held: Examples | None,
    before: Trust | None,
    seed: int,
    task: int,
) -> Trust:
    """After a task, for all `seen` classes; `held`: real images of the task's classes that were not learned from."""
    common: dict[str, Any] = {
        "seen": seen, "class_indices": class_indices, "held": held, "seed": seed, "task": task,
    }  # fmt: skip
    typicality = None
    if isinstance(learner, DrawsAndEmbeds):
        typicality = measure_typicality(learner, before=None if before is None else before.typicality, **common)
    keep = KEEP if typicality is None else KEEP_BESIDE
    past = None if before is None else before.calibration
    return Trust(calibrate(learner, before=past, keep=keep, **common), typicality)


# ---------------------------------------------------------------- on test images


@dataclass(frozen=True)
class _Seen:
    """What a learner makes of images."""

    scores: Tensor
    features: Tensor | None


def figures(learner: Answers, trust: Trust, dataset: Dataset, seen: Sequence[int]) -> dict[str, Any]:
    """On the test images; those of classes still to come are the unknowns."""
    place = torch.full((len(dataset.class_names),), -1)
    place[list(seen)] = torch.arange(len(seen))
    targets = place[dataset.test.labels]
    ours = targets >= 0
    found: dict[str, Any] = {"tested": int(ours.sum())}
    if not ours.any():
        return found
    known = _look(learner, dataset.test.rows(ours), trust)
    found |= known_figures(known.scores, targets[ours], trust)
    found["kept"] = round(float(trust.known(known.scores, known.features).double().mean()), 6)
    if (~ours).any():
        found |= unknown_figures(known, _look(learner, dataset.test.rows(~ours), trust), trust)
    return found


def against(learner: Answers, trust: Trust, known: Tensor, unknown: Tensor) -> dict[str, Any]:
    """Images of known classes against others of any kind; both (N, C, H, W) uint8."""
    return unknown_figures(_look(learner, known, trust), _look(learner, unknown, trust), trust)


def known_figures(scores: Tensor, targets: Tensor, trust: Trust) -> dict[str, Any]:
    """On images of known classes: scores (N, C), targets (N,)."""
    plain, calibrated = probabilities(scores), probabilities(scores, trust.temperature)
    return {
        "ece_before": round(expected_calibration_error(plain, targets), 6),
        "ece": round(expected_calibration_error(calibrated, targets), 6),
    }


def unknown_figures(known: _Seen, unknown: _Seen, trust: Trust) -> dict[str, Any]:
    """How well the two are told apart."""
    found: dict[str, Any] = {
        "unknown": len(unknown.scores),
        "rejected": round(float((~trust.known(unknown.scores, unknown.features)).double().mean()), 6),
    }
    if known.scores.shape[1] > 1:  # of a single class every answer is sure
        sure, unsure = (confidence(one.scores, trust.temperature) for one in (known, unknown))
        found["auroc"] = round(auroc(sure, unsure), 6)
    if trust.typicality is not None and known.features is not None and unknown.features is not None:
        near, far = (trust.typicality.distances(one) for one in (known.features, unknown.features))
        found["auroc_typical"] = round(auroc(-near, -far), 6)
    return found


@torch.inference_mode()
def _look(learner: Answers, images: Tensor, trust: Trust) -> _Seen:
    scores = torch.cat([learner.scores(some).float().cpu() for some in torch.split(images, BATCH)])
    embeds = trust.typicality is not None and isinstance(learner, Embeds)
    return _Seen(scores, learner.features(images) if embeds and isinstance(learner, Embeds) else None)
