"""Fixed features of an image: random filters on contrast-normalised patches, both signs, roots of means over windows.

    image (B, C, 32, 32) ─ 6x6 patches, each less its mean and over its standard deviation
                         ─ their products with K random filters ─> responses (B, K, 27, 27)
                         ─ above 1, and below -1; mean over 3 x 3 windows of 13 x 13 places; root ─> features (B, 18K)

Nothing here is trained. Filters are drawn once and then kept, so features are the same at every task, in any order.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.context import Shape

SIDE, PATCH = 32, 6
"""Pixels of an image, of a patch. Larger images are averaged down to SIDE first."""
WINDOWS, WINDOW, STEP = 3, 13, 7
"""Windows a side, places of a window a side, places from one to the next: they overlap by half."""
PIXELS_ALIKE, COLOURS_ALIKE = 0.95, 0.9
"""Correlation of neighbouring pixels, and of two colours of a pixel, in the photographs that one may expect."""
THRESHOLD = 1.0
"""In standard deviations of a filter's response to such photographs."""
FLOOR = 0.05
"""Standard deviation below which a patch counts as flat; pixels lie in [-1, 1]."""
UNIT, MOST = 80, 127
"""A feature of 1 is so many levels, and no feature has more than MOST."""


class RandomFeatures(nn.Module):
    """The features; its filters are a buffer."""

    filters: Tensor
    at_once = 8
    """Images whose responses fit into a processor's cache; with more at a time each takes several times as long."""

    def __init__(self, shape: Shape, filters: int, *, generator: torch.Generator) -> None:
        super().__init__()
        drawn = torch.randn(filters, shape[0] * PATCH**2, generator=generator)
        drawn -= drawn.mean(1, keepdim=True)  # a patch's mean makes no difference
        drawn /= ((drawn @ expected_covariance(shape[0])) * drawn).sum(1, keepdim=True).sqrt()
        self.register_buffer("filters", drawn.reshape(filters, shape[0], PATCH, PATCH))
        self.shrink = shape[1] // SIDE
        self.features = 2 * WINDOWS**2 * filters

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) in [-1, 1] -> (B, features), 0 to MOST."""
        x = F.avg_pool2d(x, self.shrink) if self.shrink > 1 else x
        mean, square = (F.avg_pool2d(one.mean(1, keepdim=True), PATCH, stride=1) for one in (x, x.square()))
        contrast = ((square - mean.square()).clamp_min(0) + FLOOR**2).rsqrt()
        beyond = F.softshrink(F.conv2d(x, self.filters) * contrast, THRESHOLD)
        signed, either = (F.avg_pool2d(one, WINDOW, STEP) for one in (beyond, beyond.abs()))
        both = torch.cat([either + signed, either - signed], 1) / 2  # above, and below
        return (UNIT * both.clamp_min(0).sqrt()).clamp_max(MOST).flatten(1)

    def for_sums(self, features: Tensor) -> Tensor:
        """As they are summed up: whole numbers, so that sums of products are exact whatever the order."""
        return features.round()


def expected_covariance(channels: int) -> Tensor:
    """(C P P, C P P): of a patch of a photograph, whose pixels are the more alike the nearer they are."""
    place = torch.cartesian_prod(torch.arange(PATCH), torch.arange(PATCH)).float()
    pixels = PIXELS_ALIKE ** torch.cdist(place, place)
    colours = torch.full((channels, channels), COLOURS_ALIKE).fill_diagonal_(1.0)
    return torch.kron(colours, pixels)
