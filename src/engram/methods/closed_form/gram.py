"""What `slda` and `ridge` share: the Gram matrix of all features, stored as a triangle."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engram.context import Context
from engram.methods.closed_form.learner import ClosedForm
from engram.methods.closed_form.settings import ClosedFormSettings
from engram.methods.closed_form.statistics import packed, symmetric, triangle


class WithGram(ClosedForm):
    """Counts, sums, and the Gram matrix."""

    def __init__(self, ctx: Context[ClosedFormSettings]) -> None:
        super().__init__(ctx)
        side = self.sums.shape[1]
        self.gram = torch.zeros(side, side, dtype=torch.float64)

    def add(self, features: Tensor, targets: Tensor) -> None:
        """More examples: features (B, D) as they are summed up, targets (B,)."""
        super().add(features, targets)
        self.gram += features.T @ features

    def statistics(self) -> dict[str, Tensor]:
        """All that is kept of the images."""
        return super().statistics() | {"gram": packed(triangle(self.gram))}

    def take_statistics(self, found: Mapping[str, Tensor]) -> None:
        """Back from `statistics`."""
        super().take_statistics(found)
        self.gram = symmetric(found["gram"].double(), self.sums.shape[1])
