"""Streaming linear discriminant analysis (Hayes & Kanan 2020): class means and one covariance for all classes.

A departure: the paper updates mean and covariance image by image; here they are made of exact sums, so that the order
cannot matter. Shrinkage is relative to the mean variance; the paper adds 1e-4 to features of a given scale.
"""

from __future__ import annotations

from torch import Tensor

from engram.context import Context
from engram.methods.closed_form.gram import WithGram
from engram.methods.closed_form.heads import FixedHead, LinearHead
from engram.methods.closed_form.settings import SLDASettings
from engram.methods.closed_form.statistics import discriminant_weights, left_out_scores, means, shared_covariance
from engram.methods.learner import Method


class StreamingLDA(WithGram):
    """The learner."""

    def __init__(self, ctx: Context[SLDASettings]) -> None:
        super().__init__(ctx)
        self.shrinkage = ctx.settings.discriminant.shrinkage

    def make_head(self) -> FixedHead:
        """Linear in the features."""
        covariance = shared_covariance(self.gram, self.counts, self.sums)
        return LinearHead(*discriminant_weights(covariance, means(self.counts, self.sums), self.shrinkage))

    def left_out_scores(self, images: Tensor, targets: Tensor) -> Tensor:
        """(N, classes): what it would answer had it never seen the image that it is asked for; all are in the sums."""
        return left_out_scores(
            self.trunk.for_sums(self.features(images)).double(),
            targets,
            covariance=shared_covariance(self.gram, self.counts, self.sums),
            counts=self.counts,
            centres=means(self.counts, self.sums),
            shrinkage=self.shrinkage,
        )


SLDA = Method(
    build=StreamingLDA,
    settings=SLDASettings(),
    summary="streaming linear discriminant analysis on fixed random features, in closed form",
    stores="feature sums of each class, and one Gram matrix over all",
    source="Hayes & Kanan 2020",
    scales_vectors=False,
)
