"""A noise of its own for every number of a vector, made of the noise that its generator is given.

    z ─ units ─ head ─> where most of a class's vectors vary
    z ─ cos(W z) ─────> times a deviation a number: what they vary by beside that

A head draws as many directions as there are units. Vectors vary in all of theirs, and a classifier that never saw the
rest takes it for a difference between classes. W is fixed, and so steep that the cosines of two numbers have nothing in
common with each other, nor with what the units send.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from engram.seeding import generator

STEEPNESS = 10.0
"""Deviation of the angles: many turns."""


def grain(z: Tensor, size: int) -> Tensor:
    """z (B, latent_dim), standard normal -> (B, size) of mean 0 and deviation 1, uncorrelated."""
    return math.sqrt(2) * torch.cos(z @ _steep(z.shape[1], size).to(z))


@cache
def _steep(latent_dim: int, size: int) -> Tensor:
    """W, (latent_dim, size)."""
    draws = torch.randn(latent_dim, size, generator=generator(0, "grain"))
    steep: Tensor = draws * (STEEPNESS / draws.norm(dim=0))
    return steep


def with_grain(drawn: Tensor, z: Tensor, rest: Tensor | None) -> Tensor:
    """Vectors (B, D) with deviations (D,) or (B, D) for what the head leaves out; where there are none, as drawn."""
    return drawn if rest is None else torch.addcmul(drawn, rest, grain(z, drawn.shape[1]))
