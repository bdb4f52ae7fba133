"""How good a memory's drawings are, judged while the task's own images may still be read.

    recognised          of every class seen: the share of its drawings that the classifier takes for it
    precision, recall   of the task's own classes: how many drawings lie among the real images, and how many real
                        images lie among the drawings (Kynkäänniemi et al. 2019), in the classifier's features

Real images of past classes are gone, so no figure of theirs needs one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from engram.data.stream import Task
from engram.evaluation.evaluate import Answers
from engram.evaluation.metrics import by_place
from engram.methods.learner import Embeds, Samples

DRAWINGS = 200
"""Per class."""
NEIGHBOURS = 3
"""An image's region reaches as far as its third nearest of the same kind."""


@runtime_checkable
class DrawsAndAnswers(Samples, Embeds, Answers, Protocol):
    """A learner whose drawings can be judged by itself."""


@dataclass(frozen=True)
class Quality:
    """One value per class seen, in order of appearance; None where it cannot be known."""

    recognised: list[float]
    precision: list[float | None]
    recall: list[float | None]

    def as_record(self) -> dict[str, Any]:
        """Plain values for the records."""
        return {name: by_place([_short(value) for value in values]) for name, values in vars(self).items()}


def replay_quality(
    learner: DrawsAndAnswers, task: Task, *, generator: torch.Generator, known: Collection[int] = ()
) -> Quality:
    """Judge drawings of every class seen, those of the task's own classes against its images.

    `known`: classes that were known before the task. Their drawings also show earlier images, which are gone: how many
    lie among the real ones cannot be said.
    """
    recognised: list[float] = []
    precision: list[float | None] = []
    recall: list[float | None] = []
    for class_index in range(len(task.seen)):
        drawn = learner.sample([class_index], DRAWINGS, generator=generator)
        recognised.append((learner.scores(drawn).argmax(1) == class_index).float().mean().item())
        near, reached = None, None
        if class_index in task.class_indices:
            real = task.images[torch.nonzero(task.targets == class_index).squeeze(1)]
            real = real[:: -(-len(real) // DRAWINGS)]  # as many as are drawn, evenly over the task
            real_features, drawn_features = learner.features(real), learner.features(drawn)
            near = None if class_index in known else coverage(real_features, drawn_features)
            reached = coverage(drawn_features, real_features)
        precision.append(near)
        recall.append(reached)
    return Quality(recognised, precision, recall)


def direct_accuracy(
    judge: Answers, memory: Samples, classes: int, drawings: int, *, generator: torch.Generator
) -> list[float]:
    """By class: the share of drawings that a judge, trained on real images, takes for the class.

    The paper's starred rows. A memory that draws one good image of every class over and over would have 1: it says
    nothing about variety, nor what a classifier learns from the drawings.
    """
    shares = []
    for class_index in range(classes):
        answers = judge.scores(memory.sample([class_index], drawings, generator=generator)).argmax(1)
        shares.append((answers == class_index).float().mean().item())
    return shares


def coverage(region: Tensor, points: Tensor) -> float | None:
    """The share of `points` (M, D) within reach of one of `region` (N, D); None for a region of too few.

    Each of the region reaches as far as its own third nearest neighbour.

    >>> line = torch.arange(6.0)[:, None]
    >>> coverage(line, torch.tensor([[2.5], [7.9], [8.1], [20.0]]))
    0.5
    """
    if len(region) <= NEIGHBOURS:
        return None
    reach = torch.cdist(region, region).kthvalue(NEIGHBOURS + 1, dim=1).values  # the nearest is itself
    return (torch.cdist(points, region) <= reach).any(1).float().mean().item()


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
