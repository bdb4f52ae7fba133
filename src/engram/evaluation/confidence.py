"""How sure an answer is, and how right that is: pure functions of scores (N, C) and targets (N,).

The temperature T divides the scores before the softmax (Guo et al. 2017): above 1 the answers become less sure.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

COLDEST, HOTTEST = 0.25, 10.0
"""Bounds of the temperature: where all answers are right, the likelihood knows none."""


def probabilities(scores: Tensor, temperature: float = 1.0) -> Tensor:
    """(B, C) scores -> (B, C) float64 probabilities."""
    return torch.softmax(scores.double() / temperature, 1)


def confidence(scores: Tensor, temperature: float = 1.0) -> Tensor:
    """(B, C) scores -> (B,), the probability of the answer. 1 where a single class is known.

    >>> confidence(torch.tensor([[0.0, 0.0], [4.0, 0.0]]), temperature=2.0)
    tensor([0.5000, 0.8808], dtype=torch.float64)
    """
    return probabilities(scores, temperature).amax(1)


def expected_calibration_error(probabilities: Tensor, targets: Tensor, bins: int = 15) -> float:
    """How far confidence and accuracy lie apart, as a mean over bins of equal width, weighed by their images.

    (N, C) probabilities, (N,) targets; a bin holds its upper border (Guo et al. 2017, eq. 3).

    >>> sure = torch.tensor([[0.9, 0.1], [0.9, 0.1]])
    >>> round(expected_calibration_error(sure, torch.tensor([0, 1])), 6)
    0.4
    """
    sure, answers = probabilities.double().max(1)
    gap = (answers == targets).double() - sure  # (N,)
    numbers = (sure * bins).ceil().long().clamp(1, bins) - 1
    sums = torch.zeros(bins, dtype=torch.float64).index_add_(0, numbers, gap)
    return float(sums.abs().sum() / len(targets))


def fit_temperature(scores: Tensor, targets: Tensor, weights: Tensor | None = None) -> float:
    """The temperature under which the targets are likeliest; (N, C) scores, (N,) targets, (N,) weights.

    >>> scores = torch.tensor([[9.0, 0.0]]).expand(4, 2)  # right three times of four: softmax([9, 0] / T) = [3/4, 1/4]
    >>> round(fit_temperature(scores, torch.tensor([0, 0, 0, 1])), 4) == round(9 / math.log(3), 4)
    True
    """
    scores = scores.double()
    weights = torch.ones(len(targets), dtype=torch.float64) if weights is None else weights.double()

    def loss(log_t: float) -> float:
        each = F.cross_entropy(scores / math.exp(log_t), targets, reduction="none")
        return float((each * weights).sum() / weights.sum())

    # the loss is convex in 1 / T, so it has one valley in log T, which the golden section narrows down
    low, high, ratio = math.log(COLDEST), math.log(HOTTEST), (math.sqrt(5) - 1) / 2
    for _ in range(50):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if loss(left) <= loss(right):
            high = right
        else:
            low = left
    return math.exp((low + high) / 2)


def auroc(positive: Tensor, negative: Tensor) -> float:
    """The chance that one of `positive` (N,) is greater than one of `negative` (M,); equal ones count half.

    >>> auroc(torch.tensor([3.0, 2.0]), torch.tensor([1.0, 2.0]))
    0.875
    """
    below, order = positive.double().contiguous(), negative.double().sort().values
    less = torch.searchsorted(order, below)
    less_or_equal = torch.searchsorted(order, below, right=True)
    return float((less + less_or_equal).double().mean() / 2 / len(order))
