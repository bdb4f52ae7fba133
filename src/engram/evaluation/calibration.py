"""How far an answer can be trusted: calibrated probabilities, and "unknown" for what no class fits.

    probabilities   softmax(scores / T), with one temperature T (Guo et al. 2017)
    confidence      the largest of them
    known           whether the confidence reaches a threshold, one for all classes

The threshold is to keep 95 % of the real images of all classes, after every task, though only the newest classes have
real images at hand. So a class's real images leave one number behind, its level: the share of its drawings that are
less sure than 95 % of its real images were. After a later task, fresh drawings under the classifier of that time stand
for the real images: at their level they are taken to lose 5 %, below and above it in proportion.

    real images, held out      |-----5 %--x-----------------|      confidence ->
    drawings of the class         |-level-x-----------|

Of vectors a class has few to hold out, and where 5 % of its real ones are lost there lies no drawing at all: no level
tells where. So a task's vectors leave another number behind, its stretch: how many times as far from their mean the
scores of drawings must lie to be as unsure as the real vectors that were held out. Under a linear classifier that is
the same as drawings that lie so far from theirs. After a later task all drawings are stretched so and stand for the
real ones. It is one number for all classes, the mean of all tasks', and as much more as that mean is uncertain.

The temperature moves, with every task, about half of the way to the one that fits the task's held-out images best:
those of a single class say too little alone. Drawings have no say in it: the classifier learned from the like, and is
surer of them than of real images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from engram.data.examples import Examples
from engram.errors import ConfigError, DivergedError, EngramError, RunError, StrictnessError
from engram.evaluation.confidence import confidence, fit_temperature
from engram.evaluation.evaluate import BATCH, Answers
from engram.methods.learner import Samples
from engram.seeding import generator

KEEP = 0.95
"""The share of real images of known classes that is to be kept."""
DRAWINGS, DRAWINGS_IN_ALL = 1000, 4000
"""At least so many per class, and of all classes together: levels are often near 1 %, where few drawings say little."""
VECTORS, VECTORS_IN_ALL = 60, 10_000
"""Of vectors: at least so many per class, and about so many of all classes together."""
STRETCHES: tuple[float, ...] = tuple(2.0 ** (power / 8) for power in range(-8, 25))
"""Stretches that are tried: 0.5 to 8. The least that fits is taken: farther out lies what is sure of another class."""
FEWEST = 8
"""Held-out vectors of a task, under which its stretch is not measured."""
UNCERTAIN = 1.3
"""Of the logarithm of a stretch measured on one vector; of n it is less by the root of n. Rather keep too many."""
LEAST = 0.01
"""The lowest level: so few drawings lie below that less is not told from chance."""
FEW_FOR_LEVEL, FEW = 300, 30
"""So many held-out images of a class count as much, for its level, as what all other classes say together; and so many
of a task count as much, for the temperature, as what was known before."""
ALIKE = 0.1
"""What the assumption that drawings are like real images counts, where one class with many held-out images counts 1."""
UNMEASURED = 0.7
"""The most for the level of a class without held-out images, as a part of 1 - keep: rather keep too many than too few.
The first of all classes is one, if it was learned alone."""
SUREST = 1 - 1e-6
"""The highest threshold: nearer to 1 the difference is lost in float32."""


# ---------------------------------------------------------------- pure functions


def level(drawn: Tensor, real: Tensor, keep: float = KEEP) -> float:
    """The share of `drawn` (N,) below what `keep` of `real` (M,) reach; never quite 1, and at least `LEAST`.

    >>> level(torch.arange(9.0), torch.full((5,), 2.5))
    0.35
    """
    reached = torch.quantile(real.double(), 1 - keep)
    return max(LEAST, (int((drawn < reached).sum()) + 0.5) / (len(drawn) + 1))


def trusted_levels(levels: Sequence[float | None], counts: Sequence[int], keep: float = KEEP) -> list[float]:
    """What to take for the level of every class, given what was measured on `counts` held-out images each.

    Few images say little: their level moves towards the mean of the measured ones, in log-odds, and where all are few,
    this towards 1 - keep, as if drawings were like real images. A class without any takes the mean, but less than
    1 - keep: where the others' drawings are worse than their real images, its own need not be.

    >>> [round(one, 3) for one in trusted_levels([None, 0.2, 0.01], [0, 600, 600])]
    [0.035, 0.128, 0.017]
    """
    alike = _log_odds(1 - keep)
    measured = [
        (_log_odds(one), n / (n + FEW_FOR_LEVEL)) for one, n in zip(levels, counts, strict=True) if one is not None
    ]
    others = sum((odds * trust for odds, trust in measured), ALIKE * alike) / sum((t for _, t in measured), ALIKE)
    none = min(others, _log_odds(UNMEASURED * (1 - keep)))
    mixed = [
        none if one is None else (count * _log_odds(one) + FEW_FOR_LEVEL * others) / (count + FEW_FOR_LEVEL)
        for one, count in zip(levels, counts, strict=True)
    ]
    return [1 / (1 + math.exp(-value)) for value in mixed]


def _log_odds(share: float) -> float:
    return math.log(share / (1 - share))


def find_threshold(parts: Sequence[Tensor], levels: Sequence[float], keep: float = KEEP) -> float:
    """The highest confidence that is taken to lose no more than 1 - keep of the real images; classes count alike.

    Of each class: the confidences (N,) of images that stand for it, and the level at which they lose 1 - keep.

    >>> drawn = torch.arange(100) / 128
    >>> find_threshold([drawn, drawn], [0.1, 0.3], keep=0.9) * 128  # 15 % of the drawings: loses 15 % and 5 %
    15.0
    """
    candidates = torch.cat(list(parts)).double().sort().values
    lost = torch.zeros_like(candidates)
    for part, one in zip(parts, levels, strict=True):
        below = torch.searchsorted(part.double().sort().values, candidates).double() / len(part)
        lost += ((1 - keep) / one * below).clamp(max=1) / len(parts)
    return min(float(candidates[lost <= 1 - keep + 1e-9][-1]), SUREST)


def stretched(scores: Tensor, by: float) -> Tensor:
    """Scores (N, C) of one class's drawings, so many times as far from their mean.

    >>> stretched(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), by=2.0)
    tensor([[0., 0.],
            [4., 0.]])
    """
    mean = scores.mean(0)
    return mean + by * (scores - mean)


def find_stretch(parts: Sequence[Tensor], real: Tensor, temperature: float, keep: float = KEEP) -> float:
    """By how much drawings, per class (N, C), are to be stretched to be as unsure as `real` (M,) confidences.

    Compared by the k-th lowest of M, which a share of k / (M + 1) of all real ones lies below in the mean, however
    few there are: the nearest to 1 - keep.
    """
    lowest = max(1, int((len(real) + 1) * (1 - keep) + 0.5))
    share, aim = lowest / (len(real) + 1), float(real.double().sort().values[lowest - 1])
    found = []
    for by in STRETCHES:
        unsure = torch.cat([confidence(stretched(one, by), temperature) for one in parts])
        found.append(float(unsure.quantile(share)) - aim)
        if found[-1] <= 0:
            break
    if len(found) > 1 and found[-1] <= 0:  # between the last two, in proportion
        part = found[-2] / max(found[-2] - found[-1], 1e-12)
        return float(STRETCHES[len(found) - 2] * (STRETCHES[1] / STRETCHES[0]) ** part)
    return STRETCHES[found.index(min(found))]


def trusted_stretch(stretches: Sequence[float | None], counts: Sequence[int]) -> float:
    """What to take for all classes, given what was measured on `counts` held-out vectors each.

    >>> round(trusted_stretch([None, 2.0, 2.0], [0, 50, 50]), 2)  # 2 e^0.13
    2.28
    """
    known = [(math.log(one), n) for one, n in zip(stretches, counts, strict=True) if one is not None and n]
    total = sum(n for _, n in known)
    return math.exp(sum(log * n for log, n in known) / total + UNCERTAIN / math.sqrt(total)) if total else 1.0


# ---------------------------------------------------------------- what is kept


@dataclass(frozen=True)
class Calibration:
    """Temperature and threshold, with what they were made from. No image and no feature is in it."""

    temperature: float
    threshold: float
    """The least confidence of a known image."""
    levels: tuple[float | None, ...]
    """Per class, from when its real images could be read; None: never measured."""
    held_out: tuple[int, ...]
    """Per class: real images that its level was measured on."""
    drawings: int
    """Per class; 0: the learner cannot draw, so all this says nothing about classes of past tasks."""
    stretches: tuple[float | None, ...] | None = None
    """Of vectors, in the place of levels: per class, that of the task that it was measured with."""

    def known(self, scores: Tensor) -> Tensor:
        """(B, C) scores -> (B,) bool."""
        return confidence(scores, self.temperature) >= self.threshold

    def without(self, class_index: int) -> Calibration:
        """As if a class had never been: its place disappears, later ones move up. The next task measures anew."""
        size = len(self.levels)
        if not 0 <= class_index < size:
            raise ConfigError(f"the calibration has no class {class_index}; it has {size}, counted from 0")
        after = class_index + 1
        return replace(
            self,
            levels=self.levels[:class_index] + self.levels[after:],
            held_out=self.held_out[:class_index] + self.held_out[after:],
            stretches=self.stretches and self.stretches[:class_index] + self.stretches[after:],
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain = {**vars(self), "levels": list(self.levels), "held_out": list(self.held_out)}
        stretches = plain.pop("stretches")
        return plain if stretches is None else {**plain, "stretches": list(stretches)}

    @classmethod
    def from_dict(cls, values: Any) -> Calibration:
        """Back from JSON; what no calibration says is refused."""
        if not isinstance(values, dict) or set(values) | {"stretches"} != set(_CHECKS):
            raise RunError(f"a calibration holds {', '.join(_CHECKS)} and nothing else; calibrate it again")
        for name, check in _CHECKS.items():
            if name in values and not check(values[name]):
                raise RunError(f"a calibration cannot have {name}={values[name]!r}; calibrate it again")
        levels, held_out = tuple(values["levels"]), tuple(values["held_out"])
        measured = [one is not None for one in levels]
        if len(levels) != len(held_out) or any(m > n for m, n in zip(measured, held_out, strict=True)):
            raise RunError("a calibration needs a count of held-out images for every level; calibrate it again")
        stretches = tuple(values["stretches"]) if "stretches" in values else None
        if stretches is not None and len(stretches) != len(levels):
            raise RunError("a calibration needs as many stretches as levels; calibrate it again")
        return cls(**{**values, "levels": levels, "held_out": held_out, "stretches": stretches})


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _level(value: Any) -> bool:
    return value is None or (_number(value) and 0 < value < 1)


def _stretch(value: Any) -> bool:
    return value is None or (_number(value) and value > 0)


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "temperature": lambda value: _number(value) and value > 0,
    "threshold": lambda value: _number(value) and 0 <= value <= 1,
    "levels": lambda values: isinstance(values, list) and all(map(_level, values)),
    "held_out": lambda values: isinstance(values, list) and all(map(_count, values)),
    "drawings": _count,
    "stretches": lambda values: isinstance(values, list) and all(map(_stretch, values)),
}


# ---------------------------------------------------------------- measuring


@torch.inference_mode()
def calibrate(
    learner: Answers,
    *,
    seen: int,
    class_indices: Sequence[int],
    held: Examples | None,
    before: Calibration | None,
    seed: int,
    task: int,
    keep: float = KEEP,
    drawings: int | None = None,
) -> Calibration:
    """Temperature and thresholds after a task, for all `seen` classes.

    `held` are real images of this task's classes, `class_indices`, that were not learned from; `before` is what the
    last task left. With a single class every probability is 1: nothing is measured and every image is known.
    """
    require_own(held, class_indices)
    past = _past(before, seen)
    if seen < 2:
        return past
    drawings = drawings_of(learner, seen, DRAWINGS, DRAWINGS_IN_ALL) if drawings is None else drawings
    drawn = _drawn(learner, seen, drawings, seed=seed, task=task)
    real = _real(learner, seen, held)
    temperature = _temperature(real, past.temperature)
    drawn_sure = [confidence(one, temperature) for one in drawn]
    real_sure = [confidence(one, temperature) for one in real]
    held_out = tuple(len(r) or old for r, old in zip(real, past.held_out, strict=True))
    if len(drawn[0]) and draws_vectors(learner):
        stretches = _stretches(drawn, real_sure, past, temperature, keep)
        by = trusted_stretch(stretches, held_out)
        unsure = [confidence(stretched(one, by), temperature) for one in drawn]
        threshold = find_threshold(unsure, [1 - keep] * len(unsure), keep)
        return Calibration(temperature, threshold, past.levels, held_out, len(drawn[0]), stretches)
    levels = tuple(
        level(d, r, keep) if len(d) and len(r) else old
        for d, r, old in zip(drawn_sure, real_sure, past.levels, strict=True)
    )
    if len(drawn[0]):
        threshold = find_threshold(drawn_sure, trusted_levels(levels, held_out, keep), keep)
    elif filled := [one for one in real_sure if len(one)]:
        threshold = find_threshold(filled, [1 - keep] * len(filled), keep)
    else:
        threshold = past.threshold
    return Calibration(temperature, threshold, levels, held_out, len(drawn[0]))


def _stretches(
    drawn: list[Tensor], real_sure: list[Tensor], past: Calibration, temperature: float, keep: float
) -> tuple[float | None, ...]:
    """Per class: one for all that have held-out vectors now, together, and the old ones."""
    before = past.stretches or (None,) * len(drawn)
    own = [c for c, sure in enumerate(real_sure) if len(sure)]
    if sum(len(real_sure[c]) for c in own) < FEWEST:
        return before
    found = find_stretch([drawn[c] for c in own], torch.cat([real_sure[c] for c in own]), temperature, keep)
    return tuple(found if c in own else old for c, old in enumerate(before))


def draws_vectors(learner: object) -> bool:
    """Whether what it draws are vectors."""
    return isinstance(learner, Samples) and learner.sample([0], 1, generator=generator(0, "kind")).dim() == 2


def drawings_of(learner: object, seen: int, each: int, in_all: int = 0) -> int:
    """How many drawings per class are measured: `each`, or more of few classes, so that there are `in_all`.

    Of vectors, which are learned in a second, so many in all as `VECTORS_IN_ALL`: what is measured is one limit for
    all classes, and drawing each of hundreds of classes a thousand times would take longer than learning one.
    """
    if draws_vectors(learner):
        return min(each, max(VECTORS, VECTORS_IN_ALL // seen))
    return max(each, in_all // seen)


def require_own(held: Examples | None, class_indices: Sequence[int]) -> None:
    """Real images of other tasks are closed here too."""
    others = sorted(set() if held is None else set(held.targets.tolist()) - set(class_indices))
    if others:
        raise StrictnessError(f"held-out images of class {others[0]} are not of this task; hold out its own alone")


def _drawn(learner: Answers, seen: int, count: int, *, seed: int, task: int) -> list[Tensor]:
    """Scores of drawings, per class (N, seen); N = 0 where the learner cannot draw."""
    if not isinstance(learner, Samples):
        return [torch.empty(0, seen)] * seen
    draws = (learner.sample([c], count, generator=generator(seed, "calibration", task, c)) for c in range(seen))
    return [_scores(learner, images, seen) for images in draws]


def _real(learner: Answers, seen: int, held: Examples | None) -> list[Tensor]:
    """Scores of the held-out images, per class (N, seen)."""
    if held is None or not len(held):
        return [torch.empty(0, seen)] * seen
    scores = _scores(learner, held.images, seen)
    return [scores[held.targets == c] for c in range(seen)]


def _scores(learner: Answers, images: Tensor, seen: int) -> Tensor:
    scores = torch.cat([learner.scores(some).to("cpu", torch.float32) for some in torch.split(images, BATCH)])
    if scores.shape[1] != seen:
        raise EngramError(f"the learner gave {scores.shape[1]} scores an image; {seen} classes were seen")
    if not torch.isfinite(scores).all():
        raise DivergedError("the learner's scores are not finite; lower classifier.learning_rate")
    return scores


def _past(before: Calibration | None, seen: int) -> Calibration:
    """What was known before, with places for the new classes."""
    if before is None:
        before = Calibration(1.0, 0.0, (), (), 0)
    new = seen - len(before.levels)
    if new < 0:
        raise EngramError(f"the calibration before has {seen - new} classes, {seen} were seen; forget the others first")
    more = (None,) * new
    stretches = None if before.stretches is None else before.stretches + more
    return replace(before, levels=before.levels + more, held_out=before.held_out + (0,) * new, stretches=stretches)


def _temperature(real: list[Tensor], before: float) -> float:
    """From the one before towards the best for these scores, per class (N, C); all the way if no class is missing."""
    filled = [(c, one) for c, one in enumerate(real) if len(one)]
    if not filled:
        return before
    targets = torch.cat([torch.full((len(one),), c) for c, one in filled])
    weights = torch.cat([torch.full((len(one),), 1 / len(one)) for _, one in filled])  # classes count alike
    best = fit_temperature(torch.cat([one for _, one in filled]), targets, weights)
    step = (1 + len(filled) / len(real)) / 2 * len(targets) / (len(targets) + FEW)
    return math.exp((1 - step) * math.log(before) + step * math.log(best))
