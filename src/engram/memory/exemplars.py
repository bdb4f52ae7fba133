"""Stored real images of past classes: the relaxed setting, and the methods that rely on them. Never the strict one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engram.data.examples import Examples
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
    """Real images by class index, the most wanted first."""

    images: dict[int, Tensor] = field(default_factory=dict)

    def add(self, class_index: int, images: Tensor) -> None:
        """Keep copies: the task's own memory closes with the task."""
        self.images[class_index] = images.clone()

    def mix(self, class_index: int, images: Tensor, *, share: float) -> None:
        """New images of a class that is stored take a share of its places; each kind is spread over all of them."""
        known = self.images[class_index]
        new = min(len(images), round(share * len(known)))
        kinds = [known[: len(known) - new], images[:new]]
        ranks = torch.cat([(torch.arange(len(kind)) + 0.5) / max(1, len(kind)) for kind in kinds])
        self.images[class_index] = torch.cat(kinds)[ranks.argsort(stable=True)]

    def forget(self, class_index: int) -> None:
        """Drop the images of a class, if there are any; the classes behind it move up by a place."""
        others = {place: kept for place, kept in self.images.items() if place != class_index}
        self.images = {place - (place > class_index): kept for place, kept in others.items()}

    def shrink(self, per_class: int) -> None:
        """Keep the first `per_class` of every class; the rest is gone."""
        self.images = {class_index: kept[:per_class].clone() for class_index, kept in self.images.items()}

    def draw(self, class_index: int, count: int, *, generator: torch.Generator) -> Tensor:
        """`count` images of a class, with replacement."""
        kept = self.images[class_index]
        return kept[torch.randint(len(kept), (count,), generator=generator)]

    @property
    def bytes(self) -> int:
        """As they would lie on disc, uncompressed."""
        return sum(kept.numel() * kept.element_size() for kept in self.images.values())

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {str(class_index): kept for class_index, kept in self.images.items()}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Exemplars:
        """Back from a checkpoint."""
        return cls({int(class_index): kept for class_index, kept in state.items()})


def balanced(task: Task, exemplars: Exemplars, *, generator: torch.Generator) -> Examples:
    """An epoch's examples, as many in all as the task has, the same number of every class seen.

    Stored images come back again and again; of the task's own a random part is taken. Unless the classes are even, ten
    old images beside thousands of new ones teach a classifier to answer with the new class.
    """
    count, rest = divmod(len(task), len(task.seen))
    images, targets = [], []
    for class_index in range(len(task.seen)):
        some = count + (class_index < rest)
        if class_index in task.class_indices:
            rows = torch.nonzero(task.targets == class_index).squeeze(1)
            images.append(task.images[rows[torch.randint(len(rows), (some,), generator=generator)]])
        else:
            images.append(exemplars.draw(class_index, some, generator=generator))
        targets.append(torch.full((some,), class_index))
    return Examples(torch.cat(images), torch.cat(targets))
