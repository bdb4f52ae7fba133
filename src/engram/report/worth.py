"""Two groups of runs -> what the one has more than the other, over the seeds that both have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engram.evaluation import metrics
from engram.report.gather import Run
from engram.report.groups import Group

Seed = tuple[int, int | None]
"""Of the run, and of the order of its classes."""
BySeed = Mapping[Seed, float]


@dataclass(frozen=True)
class Worth:
    """A mean difference. It counts from two standard errors on; of one seed nobody can tell."""

    mean: float
    error: float | None
    """Standard error over the seeds; None for one seed."""
    n: int
    """Seeds that both have."""

    @property
    def none(self) -> bool:
        """Whether the difference is within two standard errors."""
        return self.error is not None and abs(self.mean) <= 2 * self.error

    def told(self, digits: int = 2) -> str:
        """
        >>> Worth(-0.03, 0.07, 3).told(), Worth(-1.0, None, 1).told(), Worth(1234.5, 10, 2).told(0)
        ('none (-0.03 ± 0.07)', '-1.00 (one seed)', '+1,234 ± 10')
        """
        found = f"{self.mean:+,.{digits}f}"
        if self.error is None:
            return f"{found} (one seed)"
        found += f" ± {self.error:,.{digits}f}"
        return f"none ({found})" if self.none else found


def worth(ours: BySeed, theirs: BySeed) -> Worth | None:
    """None without a common seed.

    >>> worth({(0, None): 98.0, (1, None): 98.4, (2, None): 9.0}, {(0, None): 97.0, (1, None): 97.0})
    Worth(mean=1.2000000000000028, error=0.20000000000000284, n=2)
    """
    found = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys(), key=_in_order)]
    if not found:
        return None
    error = metrics.std(found) / math.sqrt(len(found)) if len(found) > 1 else None
    return Worth(metrics.mean(found), error, len(found))


def _in_order(seed: Seed) -> tuple[int, int]:
    return seed[0], -1 if seed[1] is None else seed[1]


def by_seed(g: Group, measure: Callable[[Run], float | None]) -> dict[Seed, float]:
    """Of the finished runs that have it."""
    found = {(run.head.seed, run.head.order_seed): measure(run) for run in g.runs if run.state == "done"}
    return {seed: value for seed, value in found.items() if value is not None}


def finals(g: Group) -> dict[Seed, float]:
    """A_t after the last task, in per cent."""
    return by_seed(g, lambda run: 100 * run.evaluations[-1].accuracy)


def processor_seconds(g: Group) -> dict[Seed, float]:
    return by_seed(g, lambda run: run.cpu_seconds)


def against(ours: BySeed, theirs: BySeed, digits: int = 2) -> str:
    """The mean difference in words; empty without a common seed."""
    found = worth(ours, theirs)
    return found.told(digits) if found else ""
