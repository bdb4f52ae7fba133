"""What the paper claims, as rules that records answer: groups of runs -> figures in words, and a verdict.

Every rule is a function of the runs alone. What it asks for stands in its docstring's first line, and in the table of
`document_claims.py` beside the paper's own words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engram.evaluation import metrics
from engram.report.gather import Run
from engram.report.groups import Group, setting
from engram.report.plasticity import reuse_of_masks, share_of_use
from engram.report.views import last_weights
from engram.report.worth import by_seed, finals, worth

HOLDS, FAILS, UNTESTABLE, NO_RUN = "holds", "does not hold", "not testable here", "no run yet"
NEAR = 1.0
"""Points of A_t within which two accuracies are comparable; the paper's own two are 0.52 apart."""
CLOSED, OPEN = 0.1, 0.9
"""Mask values below the one and above the other are binary."""
FILLED = 0.05
"""By so much the mean mask value has to rise for a mask to have filled again."""
MB = 1e-6


@dataclass(frozen=True)
class Finding:
    """What some runs say of a claim."""

    groups: tuple[Group, ...]
    told: str
    verdict: str


def verdict(ok: bool) -> str:
    return HOLDS if ok else FAILS


def _mean(values: Sequence[float]) -> float:
    return metrics.mean(values)


# ---------------------------------------------------------------- growth and sizes


def units_after(run: Run, tasks: int) -> float | None:
    """The generator's units after so many tasks; 0: at the start."""
    if not run.growth:
        return None
    return float(run.growth[0].units[0] if tasks == 0 else run.growth[tasks - 1].units[1])


def added_units(run: Run) -> float | None:
    first, last = units_after(run, 0), units_after(run, len(run.growth))
    return None if first is None or last is None else last - first


def stored_bytes(run: Run) -> float | None:
    """Of weights and masks after the last task: what the paper's table 4 counts."""
    last = run.memory[max(run.memory)] if run.memory else {}
    return float(last["weights"] + last["masks"]) if {"weights", "masks"} <= last.keys() else None


def less_than(ours: Group, theirs: Group, measure: Callable[[Run], float | None], unit: str, scale: float) -> Finding:
    """Holds: less in every common seed, and A_t within one point of the other's."""
    mine, other = by_seed(ours, measure), by_seed(theirs, measure)
    common = sorted(mine.keys() & other.keys())
    groups = (ours, theirs)
    if not common:
        return Finding(groups, "no seed in common", NO_RUN)
    apart = worth(finals(ours), finals(theirs))
    assert apart is not None
    digits = 0 if scale == 1 else 2
    means = [f"{scale * _mean([of[seed] for seed in common]):,.{digits}f}" for of in (mine, other)]
    told = f"{means[0]} {unit} against {means[1]}; A_t {apart.mean:+.2f} points"
    return Finding(groups, told, verdict(all(mine[s] < other[s] for s in common) and abs(apart.mean) <= NEAR))


def sublinear(g: Group) -> Finding:
    """Holds: in every seed the second half of the tasks adds fewer units than the first half."""
    runs = [run for run in g.runs if run.growth]
    halves = []
    for run in runs:
        tasks = len(run.growth)
        at = [units_after(run, t) or 0 for t in (0, tasks // 2, tasks - tasks // 2, tasks)]
        halves.append((at[1] - at[0], at[3] - at[2]))
    if not halves or len(runs[0].growth) < 2:
        return Finding((g,), "no growth on record", NO_RUN)
    told = "units added in the first and in the second half of the tasks: "
    told += ", ".join(f"{first:,.0f} and {second:,.0f}" for first, second in halves)
    return Finding((g,), told, verdict(all(second < first for first, second in halves)))


def smaller(ours: Group, theirs: Group, paper: float) -> Finding:
    """Holds: at the end the generator has fewer parameters in every seed."""
    mine, other = ours.mean(last_weights), theirs.mean(last_weights)
    if mine is None or other is None:
        return Finding((ours, theirs), "no sizes on record", NO_RUN)
    apart = 1 - mine.value / other.value
    told = f"{mine.value:,.0f} parameters against {other.value:,.0f}: {100 * abs(apart):.0f} % "
    told += f"{'smaller' if apart > 0 else 'larger'} (the paper: {100 * paper:.0f} % smaller)"
    ends = [last_weights(run) for run in ours.runs]
    return Finding((ours, theirs), told, verdict(all(end is not None and end < other.value for end in ends)))


def against_images(g: Group) -> Finding:
    """Holds: in every seed, all that is kept of the past takes less than the training images, a byte a value."""
    kept = g.bytes
    images = sum(g.runs[0].head.images) * g.runs[0].head.image_bytes
    if kept is None or not images:
        return Finding((g,), "no sizes on record", NO_RUN)
    each = [sum(run.memory[max(run.memory)].values()) for run in g.runs]
    told = f"{MB * kept.value:.2f} MB against {MB * images:.1f} MB"
    return Finding((g,), told, verdict(all(size < images for size in each)))


# ---------------------------------------------------------------- what masks do


def reuse_rises(g: Group) -> Finding:
    """Holds: in every seed the reused share of what the masks open rises from the second to the last task, where it is
    above chance. Not testable where only what a bound on units left is on record: it leaves out unevenly."""
    last = len(g.runs[0].head.tasks) - 1
    found = [
        (reuse_of_masks(run, 1), reuse_of_masks(run, last), share_of_use(run, last, "reused by chance"))
        for run in g.runs
    ]
    known = [(a, b, c) for a, b, c in found if a is not None and b is not None and c is not None]
    if not known or len(known) < len(g.runs) or last < 2:
        return Finding((g,), "no growth on record", NO_RUN)
    second, end, chance = (_mean([one[i] for one in known]) for i in range(3))
    told = f"reused {second:.1f} % at the second task, {end:.1f} % at the last, where chance is {chance:.1f} %"
    bounded = setting(g, "masks.max_units_ratio") not in ("", "0")
    if bounded and any(growth.opened is None for run in g.runs for growth in run.growth):
        return Finding((g,), f"{told}; after a bound on units, which changes both", UNTESTABLE)
    return Finding((g,), told, verdict(all(b > a and b > c for a, b, c in known)))


@dataclass(frozen=True)
class Trajectory:
    """Mask values over the epochs in which they are learned, means over tasks and layers."""

    closed: float
    """The largest share of values near 0 in the first third of the epochs."""
    lowest: float
    """The smallest mean value in the first third."""
    end: float
    """The mean value after the last epoch."""
    early: float
    """Share of binary values after a third of the epochs."""
    late: float
    """… and after two thirds."""

    @property
    def parts(self) -> dict[str, bool]:
        """What the paper sees in its figure 3b, in its order."""
        return {
            "sparse": self.closed > 0.5,
            "filling": self.end > self.lowest + FILLED,
            "binary": self.late >= OPEN,
        }


def trajectory(run: Run) -> Trajectory | None:
    """None where fewer than three epochs of masks are on record. The first epoch is not sparse by its making: there
    every value is at a half."""
    steps = [step for step in run.masks if step.task < len(run.evaluations)]
    epochs = sorted({step.epoch for step in steps})
    if len(epochs) < 3:
        return None

    def over(epoch: int, of: Callable[[Sequence[float]], float]) -> float:
        at = [step for step in steps if step.epoch == epoch]
        return _mean([of([v for row in step.sample for v in row]) for step in at])

    closed = [over(e, lambda values: _mean([value < CLOSED for value in values])) for e in epochs]
    binary = [over(e, lambda values: _mean([not CLOSED <= value <= OPEN for value in values])) for e in epochs]
    means = [_mean([_mean(step.occupancy) for step in steps if step.epoch == e]) for e in epochs]
    third, two_thirds = (math.ceil(part * len(epochs) / 3) for part in (1, 2))
    first = slice(0, max(third, 2))
    return Trajectory(max(closed[first]), min(means[first]), means[-1], binary[third - 1], binary[two_thirds - 1])


def mask_trajectory(g: Group) -> Finding:
    """Holds: at first most values are near 0, the mean rises again, and by two thirds of the epochs nine tenths of the
    values are binary: in every seed."""
    found = [one for run in g.runs if (one := trajectory(run))]
    if not found:
        return Finding((g,), "no masks of three epochs on record", NO_RUN)
    parts = {name: all(one.parts[name] for one in found) for name in found[0].parts}
    closed, lowest, end, early, late = (
        _mean([getattr(one, name) for one in found]) for name in ("closed", "lowest", "end", "early", "late")
    )
    told = f"sparse first: {_word(parts['sparse'])} (at most {100 * closed:.0f} % of the values near 0); "
    told += f"filling: {_word(parts['filling'])} (mean {lowest:.2f}, at the end {end:.2f}); "
    told += f"binary: {_word(parts['binary'])} ({100 * early:.0f} % after a third, {100 * late:.0f} % after two thirds)"
    return Finding((g,), told, verdict(all(parts.values())))


def _word(true: bool) -> str:
    return "yes" if true else "no"


# ---------------------------------------------------------------- accuracy


def beats(ours: Group, theirs: Group, classes: int) -> bool | None:
    """Above the other in every common seed at so many classes; None without a common seed."""

    def at(run: Run) -> float | None:
        found = run.at(classes)
        return None if found is None else found.accuracy

    mine, other = by_seed(ours, at), by_seed(theirs, at)
    common = mine.keys() & other.keys()
    return all(mine[seed] > other[seed] for seed in common) if common else None


def above_all(ours: Sequence[Group], rivals: Sequence[Group]) -> Finding:
    """Holds: the best of ours is above every rival at the end, in every common seed."""
    scored = [g for g in ours if g.final]
    if not scored or not rivals:
        return Finding((*ours, *rivals), "no rival on the same images", NO_RUN)
    best = max(scored, key=lambda g: g.final.value if g.final else 0.0)
    told = f"{_score(best)} against " + ", ".join(_score(g) for g in rivals)
    found = [beats(best, g, best.data.classes) for g in rivals]
    if None in found:
        return Finding((best, *rivals), f"{told}; not all have a seed in common", NO_RUN)
    return Finding((best, *rivals), told, verdict(all(found)))


def _score(g: Group) -> str:
    return f"{g.method} {g.final.value:.2f} %" if g.final else g.method


def near(ours: Group, joint: Group, classes: int) -> Finding:
    """Holds: no more than one point below joint training at so many classes, in the mean over the seeds."""
    mine, bound = ours.score(classes), joint.score(classes)
    if mine is None or bound is None:
        return Finding((ours, joint), f"no A_{classes} on record", NO_RUN)
    told = f"A_{classes}: {mine.value:.2f} against {bound.value:.2f} %"
    return Finding((ours, joint), told, verdict(mine.value >= bound.value - NEAR))


def crosses(ours: Group, theirs: Group, middle: int, end: int) -> Finding:
    """Holds: above the other after the middle station and below it after the last, in every common seed."""
    told = f"A_{middle}, A_{end}: {_pair(ours, middle, end)} against {_pair(theirs, middle, end)}"
    first, last = beats(ours, theirs, middle), beats(theirs, ours, end)
    if first is None or last is None:
        return Finding((ours, theirs), "no seed in common", NO_RUN)
    return Finding((ours, theirs), told, verdict(first and last))


def all_above(ours: Group, rivals: Sequence[Group], middle: int, end: int) -> Finding:
    """Holds: above every rival at both stations, in every common seed."""
    found = [beats(ours, rival, t) for rival in rivals for t in (middle, end)]
    if not found or None in found:
        return Finding((ours, *rivals), "no seed in common", NO_RUN)
    told = f"A_{middle}, A_{end}: {_pair(ours, middle, end)} against "
    told += " and ".join(_pair(rival, middle, end) for rival in rivals)
    return Finding((ours, *rivals), told, verdict(all(found)))


def _pair(g: Group, middle: int, end: int) -> str:
    return " / ".join(f"{found.value:.2f}" if (found := g.score(t)) else "–" for t in (middle, end))


# ---------------------------------------------------------------- controls


def late_classes(run: Run) -> float | None:
    """Share of test images that are right at the end, over the classes of the second half of the tasks but the last:
    those had to find a place in a generator that others were in before, and are answered from its drawings."""
    tasks = run.head.tasks
    late = {c for task in tasks[(len(tasks) + 1) // 2 : -1] for c in task}
    if not late or run.state != "done":
        return None
    end = run.evaluations[-1]
    rows = [(i, row) for i, (c, row) in enumerate(zip(end.classes, end.confusion, strict=True)) if c in late]
    return sum(row[i] for i, row in rows) / sum(sum(row) for _, row in rows)


def cannot_take_in(fixed: Group, growing: Group) -> Finding:
    """Holds: without growth fewer than half as many images of the late classes are right, in every common seed."""
    mine, other = by_seed(fixed, late_classes), by_seed(growing, late_classes)
    common = sorted(mine.keys() & other.keys())
    apart = worth(finals(fixed), finals(growing))
    if not common or apart is None:
        return Finding((fixed, growing), "no seed in common", NO_RUN)
    means = [100 * _mean([of[seed] for seed in common]) for of in (mine, other)]
    told = f"of the late classes {means[0]:.1f} % are right, with growth {means[1]:.1f} %; A_t {apart.told()} points"
    return Finding((fixed, growing), told, verdict(all(mine[s] < other[s] / 2 for s in common)))


def learned_are_better(learned: Group, controls: Sequence[Group]) -> Finding:
    """Holds: above shuffled and above random masks by more than two standard errors, over two common seeds or more."""
    kinds = [setting(g, "masks.choice") for g in controls]
    found = [worth(finals(learned), finals(g)) for g in controls]
    told = "; ".join(f"against {kind} {one.told()} points" for kind, one in zip(kinds, found, strict=True) if one)
    groups = (learned, *controls)
    counted = [one for one in found if one is not None and one.error is not None]
    if any(one.none or one.mean < 0 for one in counted):
        return Finding(groups, told, FAILS)
    if len(counted) < len(found) or {"shuffled", "random"} - set(kinds):
        return Finding(groups, f"{told}; two seeds of both controls are needed".removeprefix("; "), NO_RUN)
    return Finding(groups, told, HOLDS)
