"""The scale of vectors: a mean and a deviation for every number, fixed by the first task and never changed.

One scale for every number, not one for all: the columns of a table may be lengths and prices, and a number that varies
a thousand times more than the others would be all that a network sees. Where a number hardly varies in the first task
(its one class may be alike in it), a later class can lie a thousand deviations away; so no deviation is taken for less
than a hundredth of the number's own size, and one that does not vary at all takes the median of the others.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LEAST = 0.01
"""The smallest deviation, as a part of the mean's own size."""


class Scale(nn.Module):
    """(B, D) vectors as they are stored -> as the networks see them, and back."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    @classmethod
    def blank(cls, size: int) -> Scale:
        """One that changes nothing, whose numbers are yet to be loaded."""
        return cls(torch.zeros(size), torch.ones(size))

    @classmethod
    def of(cls, vectors: Tensor) -> Scale:
        """What the vectors (N, D) of the first task are like.

        >>> Scale.of(torch.tensor([[1.0, 0.0], [3.0, 0.0]])).forward(torch.tensor([[3.0, 1.0]]))
        tensor([[1., 1.]])
        """
        values = vectors.double()
        mean, deviation = values.mean(0), values.std(0, correction=0)
        deviation = torch.maximum(deviation, LEAST * mean.abs())
        varying = deviation > 0
        usual = deviation[varying].median() if varying.any() else torch.ones((), dtype=torch.float64)
        return cls(mean.float(), torch.where(varying, deviation, usual).float())

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, D), of the first task with mean 0 and deviation 1."""
        return (x - self.mean) / self.deviation

    def back(self, x: Tensor) -> Tensor:
        """The inverse, but for the last bits."""
        return x * self.deviation + self.mean
