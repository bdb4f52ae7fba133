"""Which fixed features an example has: the one place that tells images from vectors.

images   random convolutional features (`engram.nets.random_features`)
vectors  as they are, or so many random projections of them, rectified (RanPAC, McDonnell et al. 2023)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.methods.closed_form.settings import FeatureSettings
from engram.nets.random_features import RandomFeatures


class VectorFeatures(nn.Module):
    """(B, inputs) -> (B, features): the inputs themselves, or random projections above 0."""

    filters: Tensor
    at_once = 1024
    """Vectors that are looked at together."""

    def __init__(self, inputs: int, projections: int, *, generator: torch.Generator) -> None:
        super().__init__()
        drawn = torch.randn(projections, inputs, generator=generator) / inputs**0.5
        self.register_buffer("filters", drawn)  # (projections, inputs); none: (0, inputs)
        self.features = projections or inputs

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs) -> (B, features)."""
        return F.relu(F.linear(x, self.filters)) if len(self.filters) else x

    def for_sums(self, features: Tensor) -> Tensor:
        """As they are summed up: in float64."""
        return features.double()


FixedFeatures = RandomFeatures | VectorFeatures
"""What they share: `filters` and `features`, how many; `for_sums`, in what numbers they are summed up."""


def features_of(shape: tuple[int, ...], settings: FeatureSettings, *, generator: torch.Generator) -> FixedFeatures:
    """The fixed features of examples of this shape: (C, H, W) of images, (N,) of vectors.

    >>> features_of((1, 32, 32), FeatureSettings(filters=2), generator=torch.Generator()).features
    36
    >>> features_of((384,), FeatureSettings(), generator=torch.Generator()).features
    384
    """
    if len(shape) == 1:
        return VectorFeatures(shape[0], settings.projections, generator=generator)
    channels, height, _ = shape
    return RandomFeatures((channels, height, height), settings.filters, generator=generator)
