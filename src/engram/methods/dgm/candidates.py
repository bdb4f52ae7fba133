"""Which units a task sees: all free ones and, up to a fixed number in all, some that earlier tasks reserved.

By relevance, the reserved ones are those of the classes that the task's images look like. Two numbers say so, and
neither needs an image of the past:

    likeness     how much of its answer the classifier, as the tasks before left it, gives a known class for the images
    share        how much of the power of that class's drawings passes through a unit, for some noise

A unit's score is the sum of their products over the classes that are most alike. Only a few are looked at, so choosing
takes as long after a thousand classes as after ten. At random, as a control, all scores are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from engram.memory.class_generator import unit_shares
from engram.memory.engram import Engram, extract
from engram.nets.candidates import choose, reserved_units
from engram.nets.graph import Graph
from engram.seeding import generator

LOOKED_AT = 8
"""The classes most alike, whose units are scored."""
IMAGES = 512
"""Of the task, that the classifier is asked about."""
NOISE = 128
"""Drawings by which a unit's share is measured."""


def likeness(scores: Tensor) -> Tensor:
    """Scores (B, classes) of a task's images -> (classes,), the mean of the answers; they sum to 1.

    >>> likeness(torch.tensor([[0.0, 0.0], [9.0, -9.0]])).round(decimals=2).tolist()
    [0.75, 0.25]
    """
    return F.softmax(scores.float().cpu(), 1).mean(0)


def unit_scores(
    units: Sequence[int],
    engrams: Sequence[Engram],
    weights: Sequence[Tensor],
    alike: Tensor,
    *,
    draws: torch.Generator,
) -> list[Tensor]:
    """By node, (units,): what each unit did for the classes that are `alike`, (classes,) the more the larger."""
    scores = [torch.zeros(count) for count in units]
    near = {index: float(alike[index]) for index in alike.argsort(descending=True, stable=True)[:LOOKED_AT].tolist()}
    for engram in engrams:
        if not near.keys() & set(engram.class_indices):
            continue
        z = torch.randn(NOISE, engram.latent_dim, generator=draws).to(weights[0].device)
        kept = engram.kept_units()
        for index, net in zip(engram.class_indices, extract(engram, weights), strict=True):
            for score, numbers, share in zip(scores, kept, unit_shares(net, z), strict=True):
                score[numbers] += near.get(index, 0.0) * share.cpu()
    return scores


def seen_units(
    graph: Graph,
    reserved: Sequence[Tensor],
    limits: Sequence[int],
    score: Callable[[], Sequence[Tensor]] | None,
    *,
    draws: torch.Generator,
) -> list[Tensor] | None:
    """By node, the numbers of the units that a task sees; None where these are all. Without `score`: at random."""
    known = [units.cpu() for units in reserved_units(graph, reserved)]
    if all(len(units) <= limit or not units.any() for units, limit in zip(known, limits, strict=True)):
        return None
    scores = [torch.zeros(len(units)) for units in known] if score is None else score()
    return choose(known, scores, limits, generator=draws)


def some_images(images: Tensor, *, seed: int, task: int) -> Tensor:
    """Those of a task that are asked about."""
    return images[torch.randperm(len(images), generator=generator(seed, "candidates images", task))[:IMAGES]]
