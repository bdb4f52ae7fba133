"""The nearest class mean (Mensink et al. 2013): the class whose mean feature is nearest."""

from __future__ import annotations

from engram.methods.closed_form.heads import FixedHead, LinearHead
from engram.methods.closed_form.learner import ClosedForm
from engram.methods.closed_form.settings import ClosedFormSettings, FeatureSettings
from engram.methods.closed_form.statistics import means, nearest_mean_weights
from engram.methods.learner import Freed, Method


class NearestClassMean(ClosedForm):
    """The learner."""

    def make_head(self) -> FixedHead:
        """One mean a class."""
        return LinearHead(*nearest_mean_weights(means(self.counts, self.sums)))

    def forget(self, class_index: int) -> Freed:
        """Between tasks: drop a class's count and sum, which are all that is kept of it."""
        return self.drop(class_index)


NCM = Method(
    build=NearestClassMean,
    settings=ClosedFormSettings(FeatureSettings(filters=64)),
    summary="nearest class mean on fixed random features, in closed form",
    stores="feature sums of each class",
    source="Mensink et al. 2013",
    scales_vectors=False,
)
