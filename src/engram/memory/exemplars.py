"""Stored real images of past classes: the relaxed setting, and the methods that rely on them. Never the strict one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engram.data.stream import Task


def herd(features: Tensor, count: int) -> Tensor:
    """Rows whose running mean stays nearest to the mean of all, best first (Rebuffi et al. 2017, algorithm 4).

    features (N, F) -> (min(count, N),) row numbers.
    """
    features = torch.nn.functional.normalize(features.double(), dim=1)
    centre = features.mean(0)
    chosen: list[int] = []
    total = torch.zeros_like(centre)
    free = torch.ones(len(features), dtype=torch.bool)
    for number in range(1, min(count, len(features)) + 1):
        distance = (centre - (total + features) / number).norm(dim=1)
        distance[~free] = torch.inf
        best = int(distance.argmin())
        chosen.append(best)
        free[best] = False
        total += features[best]
    return torch.tensor(chosen, dtype=torch.int64)


def pick(count: int, images: int, *, generator: torch.Generator) -> Tensor:
    """Row numbers of a random choice."""
    return torch.randperm(images, generator=generator)[:count]


@dataclass
class Exemplars:
    """Real images by column of the answer, the most wanted first."""

    images: dict[int, Tensor] = field(default_factory=dict)

    def add(self, column: int, images: Tensor) -> None:
        """Keep copies: the task's own memory closes with the task."""
        self.images[column] = images.clone()

    def shrink(self, per_class: int) -> None:
        """Keep the first `per_class` of every class; the rest is gone."""
        self.images = {column: kept[:per_class].clone() for column, kept in self.images.items()}

    def draw(self, column: int, count: int, *, generator: torch.Generator) -> Tensor:
        """`count` images of a class, with replacement."""
        kept = self.images[column]
        return kept[torch.randint(len(kept), (count,), generator=generator)]

    @property
    def bytes(self) -> int:
        return sum(kept.numel() for kept in self.images.values())

    def state(self) -> dict[str, Any]:
        return {str(column): kept for column, kept in self.images.items()}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Exemplars:
        return cls({int(column): kept for column, kept in state.items()})


def evenly(task: Task, exemplars: Exemplars, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """An epoch's images and columns, as many in all as the task has, the same number of every class seen.

    Stored images come back again and again; of the task's own a random part is taken. Unless the classes are even, ten
    old images beside thousands of new ones teach a solver to answer with the new class.
    """
    count, rest = divmod(len(task), len(task.seen))
    images, targets = [], []
    for column in range(len(task.seen)):
        some = count + (column < rest)
        if column in task.columns:
            rows = torch.nonzero(task.targets == column).squeeze(1)
            images.append(task.images[rows[torch.randint(len(rows), (some,), generator=generator)]])
        else:
            images.append(exemplars.draw(column, some, generator=generator))
        targets.append(torch.full((some,), column))
    return torch.cat(images), torch.cat(targets)
