"""Two answers as one: a product of experts (Hinton 2002). Pure functions, and the network that answers so.

    log p  =  a log p_1  +  b s_2  +  constant         p_1: probabilities of the first, s_2: scores of the second

The weights (a, b) say how far each is trusted. Both 0 would be no answer at all; a = 0 leaves the second alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.methods.closed_form.heads import LinearHead

FIRST = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0)
"""Weights that the first is tried with."""
SECOND = tuple(2.0 ** (power / 2) for power in range(-20, 3))
"""Weights that the second is tried with: about 0.001 to 2."""


def product(first: Tensor, second: Tensor, weights: Tensor) -> Tensor:
    """Log-probabilities but for a constant: scores (B, classes) of both, weights (2,) -> (B, classes).

    >>> scores = product(torch.zeros(1, 2), torch.tensor([[1.0, 3.0]]), torch.tensor([1.0, 0.5]))
    >>> (scores[0, 1] - scores[0, 0]).item()
    1.0
    """
    return weights[0] * F.log_softmax(first, 1) + weights[1] * second


def losses(first: Tensor, second: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropies of every pair of weights: scores (N, classes) of both, targets (N,) -> (N, FIRST, SECOND)."""
    first = F.log_softmax(first.double(), 1)
    second = second.double()
    rows = torch.arange(len(targets))
    found = torch.empty(len(targets), len(FIRST), len(SECOND), dtype=torch.float64)
    for i, a in enumerate(FIRST):
        for j, b in enumerate(SECOND):
            found[:, i, j] = -F.log_softmax(a * first + b * second, 1)[rows, targets]
    return found


def best_weights(mean_losses: Tensor) -> Tensor:
    """(FIRST, SECOND) -> (2,): the pair whose loss is least.

    >>> table = torch.ones(len(FIRST), len(SECOND))
    >>> table[2, 20] = 0.5
    >>> best_weights(table)
    tensor([0.1000, 1.0000])
    """
    i, j = divmod(int(mean_losses.argmin()), mean_losses.shape[1])
    return torch.tensor([FIRST[i], SECOND[j]])


class ProductTrunk(nn.Module):
    """The features of both, side by side: (B, …) -> (B, F_1 + F_2)."""

    def __init__(self, trunks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.trunks = nn.ModuleList(trunks)

    def forward(self, x: Tensor) -> Tensor:
        """(B, …) -> (B, F_1 + F_2)."""
        return torch.cat([trunk(x) for trunk in self.trunks], 1)


class ProductHead(nn.Module):
    """What both answer from their own features, multiplied."""

    weights: Tensor

    def __init__(self, first: nn.Module, second: LinearHead, weights: Tensor) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.register_buffer("weights", weights)  # (2,)

    @property
    def classes(self) -> int:
        """How many it tells apart."""
        return self.second.classes

    def forward(self, features: Tensor) -> Tensor:
        """(B, F_1 + F_2) -> (B, classes)."""
        own = features.shape[1] - self.second.weight.shape[1]  # F_1
        return product(self.first(features[:, :own]), self.second(features[:, own:]), self.weights)
