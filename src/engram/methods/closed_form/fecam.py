"""FeCAM (Goswami et al. 2023): the nearest class mean by a Mahalanobis distance with every class's own correlations.

A departure: means and covariances are those of the transformed features of unit length, so that distances and
covariances are of the same thing; the authors normalise the mean of the features. They are summed up as whole numbers
of 1/2048, which changes distances by less than the images of a class do, and makes sums exact.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engram.context import Context
from engram.errors import ConfigError
from engram.methods.closed_form.heads import CorrelationHead, FixedHead, unit_tukey
from engram.methods.closed_form.learner import ClosedForm
from engram.methods.closed_form.settings import MOST_FEATURES, FeCAMSettings
from engram.methods.closed_form.statistics import means, packed, shrunk_correlation, symmetric, triangle
from engram.methods.learner import Freed, Method

UNIT = 2048
"""Of transformed features: 1 is so many."""


class FeCAM(ClosedForm):
    """The learner: a Gram matrix a class."""

    def __init__(self, ctx: Context[FeCAMSettings]) -> None:
        super().__init__(ctx)
        self.own = ctx.settings.correlation
        side = self.sums.shape[1]
        if side > MOST_FEATURES:
            raise ConfigError(
                f"fecam would keep a matrix of {side} x {side} numbers for every class; set features.projections to at "
                f"most {MOST_FEATURES}"
            )
        self.grams = torch.zeros(0, side, side, dtype=torch.float64)
        """(classes, D, D)"""
        self.whitening: dict[int, Tensor] = {}
        """By class index (D, D), made of the sums when it is first needed; derived, not state."""

    def grow(self, classes: int) -> None:
        """Make room for so many classes in all."""
        new = classes - len(self.counts)
        super().grow(classes)
        self.grams = torch.cat([self.grams, self.grams.new_zeros(new, *self.grams.shape[1:])])

    def add(self, features: Tensor, targets: Tensor) -> None:
        """More examples: features (B, D), targets (B,)."""
        changed = (UNIT * unit_tukey(features.double(), self.own.power)).round()
        super().add(changed, targets)
        for index in set(targets.tolist()):
            some = changed[targets == index]
            self.grams[index].addmm_(some.T, some)
            self.whitening.pop(index, None)

    def make_head(self) -> FixedHead:
        """A mean and a whitening a class."""
        eye = torch.eye(self.sums.shape[1], dtype=torch.float64)
        for index, one in enumerate(zip(self.grams, self.counts, self.sums, strict=True)):
            if index not in self.whitening:
                lower = torch.linalg.cholesky(shrunk_correlation(*one, self.own.shrinkage))
                self.whitening[index] = torch.linalg.solve_triangular(lower, eye, upper=False).float()
        whitening = torch.stack([self.whitening[index] for index in range(len(self.counts))])
        return CorrelationHead(means(self.counts, self.sums) / UNIT, whitening, self.own.power)

    def forget(self, class_index: int) -> Freed:
        """Between tasks: drop a class's count, sum and Gram matrix, which are all that is kept of it."""
        self.whitening = {}
        return self.drop(class_index, "grams")

    def statistics(self) -> dict[str, Tensor]:
        """All that is kept of the images."""
        return super().statistics() | {"grams": packed(triangle(self.grams))}

    def take_statistics(self, found: Mapping[str, Tensor]) -> None:
        """Back from `statistics`."""
        super().take_statistics(found)
        self.grams = symmetric(found["grams"].double(), self.sums.shape[1])
        self.whitening = {}


FECAM = Method(
    build=FeCAM,
    settings=FeCAMSettings(),
    summary="nearest class mean under each class's own correlations, on fixed random features, in closed form",
    stores="feature sums and a Gram matrix of each class",
    source="Goswami et al. 2023",
    scales_vectors=False,
)
