"""Which images of a class are unlike the rest, so that a generator can be shown them more often.

A GAN learns first what most images of a class look like; a way of writing that one hand in ten has may never be drawn,
and a classifier that learns from drawings then takes it for another class. For its sake the generator need not match
how *often* each way occurs, but it must know them all: rare images are shown more often than common ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engram.kinds import to_search

NEIGHBOURS = 10
REFERENCE = 5000
"""Neighbours are looked for among at most this many images of a class, evenly spread."""
LIMITS = (0.2, 5.0)
"""No image counts less or more than this, next to the median one: the rarest of all may be a mistake."""


def distances(images: Tensor) -> Tensor:
    """(N, C, H, W) uint8 images of one class, or vectors (N, D) -> (N,) distance of each to its tenth nearest."""
    places = to_search(images)
    reference = places[:: -(-len(places) // REFERENCE)]
    nth = min(NEIGHBOURS + 1, len(reference))  # the nearest is the image itself
    return torch.cat([torch.cdist(some, reference).kthvalue(nth, dim=1).values for some in torch.split(places, 500)])


def sampling_weights(images: Tensor, targets: Tensor, power: float) -> Tensor:
    """(N,) how often each image is to be drawn, adding up to 1: its distance within its class to the given power.

    Classes keep their shares: what one image gains, another of its class loses.
    """
    weights = torch.ones(len(images), dtype=torch.float64)
    for target in sorted(set(targets.tolist())) if power > 0 else []:
        own = targets == target
        apart = distances(images[own]).double()
        middle = apart.median()
        if middle > 0:
            weight = (apart / middle).pow(power).clamp(*LIMITS)
            weights[own] = weight * (own.sum() / weight.sum())
    return weights / weights.sum()


def draw_rows(weights: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
    """(count,) row numbers, with replacement; `weights` (N,) add up to 1."""
    rows = torch.searchsorted(weights.cumsum(0), torch.rand(count, dtype=torch.float64, generator=generator))
    return rows.clamp_(max=len(weights) - 1)  # the sum may end a bit below 1
