"""Settings of the closed-form methods. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engram.config import MOST_FILTERS, MOST_WEIGHT, Group, MethodSettings, setting

MOST_FEATURES = 1152
"""Of a method that keeps a matrix a class."""


@dataclass(frozen=True)
class FeatureSettings(Group):
    """Fixed features: random and convolutional of images, as they are or projected at random of vectors."""

    group = "features"
    filters: int = setting(
        192,
        "random filters for images, 18 features each; a Gram matrix grows with their square",
        at_least=1,
        at_most=MOST_FILTERS,
    )
    projections: int = setting(
        0, "random projections of vectors, rectified; 0: vectors as they are", at_least=0, at_most=18 * MOST_FILTERS
    )


@dataclass(frozen=True)
class ClosedFormSettings(MethodSettings):
    """Groups of a closed-form method."""

    features: FeatureSettings = FeatureSettings()


@dataclass(frozen=True)
class DiscriminantSettings(Group):
    """Linear discriminant analysis."""

    group = "discriminant"
    shrinkage: float = setting(
        3e-3, "how far the covariance is drawn towards its mean variance: 0 not at all", at_least=0, at_most=1
    )


@dataclass(frozen=True)
class SLDASettings(ClosedFormSettings):
    """Groups of `slda`."""

    discriminant: DiscriminantSettings = DiscriminantSettings()


@dataclass(frozen=True)
class RidgeGroup(Group):
    """Ridge regression."""

    group = "ridge"
    strength: float = setting(
        3e-4, "penalty on the squared weights, in units of trace(G) / D", above=0, at_most=MOST_WEIGHT
    )
    choose: Literal["fixed", "task"] = setting(
        "fixed",
        "the strength as set, or RanPAC's: what does best on a fifth of the newest task, if it has two classes",
    )


@dataclass(frozen=True)
class RidgeSettings(ClosedFormSettings):
    """Groups of `ridge`."""

    ridge: RidgeGroup = RidgeGroup()


@dataclass(frozen=True)
class CorrelationSettings(Group):
    """FeCAM's distance."""

    group = "correlation"
    power: float = setting(
        1.0,
        "of Tukey's transformation of features; those of images are roots already, the paper has 0.5",
        above=0,
        at_most=100,
    )
    shrinkage: float = setting(
        1.0, "how much of the mean variance and covariance is added to each", at_least=0, at_most=MOST_WEIGHT
    )


@dataclass(frozen=True)
class FewFeatures(FeatureSettings):
    """The same for a method that keeps a matrix a class: at most 1,152 features."""

    filters: int = setting(
        64, "random filters for images, 18 features each; a matrix a class is kept", at_least=1, at_most=64
    )
    projections: int = setting(
        0, "random projections of vectors, rectified; 0: vectors as they are", at_least=0, at_most=MOST_FEATURES
    )


@dataclass(frozen=True)
class FeCAMSettings(ClosedFormSettings):
    """Groups of `fecam`."""

    features: FewFeatures = FewFeatures()
    correlation: CorrelationSettings = CorrelationSettings()
