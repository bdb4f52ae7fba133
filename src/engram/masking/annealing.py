"""Annealing of the mask scale s, and the gradient compensation that goes with it.

Epochs i = 1..I and batches b = 1..B count from 1, as in the paper.
"""

from __future__ import annotations

import torch
from torch import Tensor

EMBEDDING_BOUND = 6.0
"""HAT's bound on |e|: sigmoid(6) = 0.9975, an entry that is still able to turn round."""

EXPONENT_BOUND = 50.0
"""HAT's bound on |s e| inside cosh: cosh(50) = 2.6e21 leaves room in float32."""


def s_max_of_epoch(epoch: int, epochs: int, s_max: float) -> float:
    """Global annealing: s_max^i climbs linearly from 1/s_max to s_max; a single epoch takes the end, s_max.

    >>> [s_max_of_epoch(i, 3, 4.0) for i in (1, 2, 3)]
    [0.25, 2.125, 4.0]
    """
    assert 1 <= epoch <= epochs, (epoch, epochs)
    assert s_max >= 1, s_max
    # Eq. 3
    return _climb(1 / s_max, s_max, epoch, epochs)


def weight_scale(epoch: int, epochs: int, batch: int, batches: int, s_max: float) -> float:
    """DGMw: within epoch i, s climbs linearly from min(1/s_max^i, s_max^i) to s_max^i.

    A single batch takes the end, s_max^i.

    Departure from Eq. 4, which starts at 1/s_max^i. While s_max^i < 1, in the first epoch above all, that is
    the *larger* end: s would start at s_max, where the mask is a step function and the sign of an embedding's
    first, random move already decides it, and run down to 1/s_max. The text says "anneal incrementally", so
    s never falls: in such an epoch it stays at s_max^i, every mask entry stays near 0.5, and the weights
    learn before the mask chooses among them. From s_max^i >= 1 on this is Eq. 4 to the letter.

    >>> [weight_scale(2, 2, b, 3, 4.0) for b in (1, 2, 3)]
    [0.25, 2.125, 4.0]
    >>> [weight_scale(1, 2, b, 3, 4.0) for b in (1, 2, 3)]
    [0.25, 0.25, 0.25]
    """
    assert 1 <= batch <= batches, (batch, batches)
    s_max_i = s_max_of_epoch(epoch, epochs, s_max)
    # Eq. 4
    return _climb(min(1 / s_max_i, s_max_i), s_max_i, batch, batches)


def unit_scale(epoch: int, epochs: int, s_max: float) -> float:
    """DGMa: s = s_max^i for the whole epoch; the paper found global annealing alone to work better here."""
    return s_max_of_epoch(epoch, epochs, s_max)


def _climb(start: float, end: float, step: int, steps: int) -> float:
    # written so that the last step is `end` exactly, not up to rounding
    return end if step == steps else start + (end - start) * (step - 1) / (steps - 1)


def compensate(grad: Tensor, e: Tensor, s: float, s_max_i: float) -> Tensor:
    """The gradient of e without the sharpness of the current s (Serrà et al. 2018, HAT, its section 2.4).

        g <- g (s_max^i / s) (cosh(s e) + 1) / (cosh(e) + 1)

    The factor s_max^i / s is the authors'; HAT has the constant s_max in the place of s_max^i.
    As sigmoid'(x) = 1 / (2 cosh(x) + 2), this is s_max^i times the gradient that e would get through the
    unscaled sigmoid(e): embeddings go on learning where the sharp mask is flat. Two limits: beyond
    |s e| = 50 the correction stops growing, so the gradient fades; and in float32 sigmoid is exactly 1 from
    about s e = 17 on, so a wide open entry has no gradient left to correct, while a closed one still has.
    """
    assert grad.shape == e.shape
    assert s > 0
    e = e.detach()
    sharp = (s * e).clamp_(-EXPONENT_BOUND, EXPONENT_BOUND).cosh_().add_(1)
    return (grad * (s_max_i / s)).mul_(sharp).div_(torch.cosh(e).add_(1))


def clamp_embedding_(e: Tensor) -> Tensor:
    """In place: e within [-6, 6], where `compensate` still gives it a gradient to come back with."""
    return e.clamp_(-EMBEDDING_BOUND, EMBEDDING_BOUND)
