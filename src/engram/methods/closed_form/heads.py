"""Heads whose weights were computed, not trained: what closed-form methods answer with."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.methods.closed_form.settings import ClosedFormSettings, FeCAMSettings
from engram.methods.closed_form.statistics import tukey

HeadKind = Literal["linear", "correlation"]


class LinearHead(nn.Module):
    """One weight vector a class: features (B, D) -> scores (B, classes)."""

    kind: ClassVar[HeadKind] = "linear"
    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight.float())  # (classes, D)
        self.register_buffer("bias", bias.float())

    @property
    def classes(self) -> int:
        """How many it tells apart."""
        return self.weight.shape[0]

    def forward(self, features: Tensor) -> Tensor:
        """(B, D) -> (B, classes)."""
        return F.linear(features, self.weight, self.bias)


class CorrelationHead(nn.Module):
    """Minus the Mahalanobis distance to each class's mean, under the class's own correlations, squared and halved."""

    kind: ClassVar[HeadKind] = "correlation"
    means: Tensor
    whitening: Tensor

    def __init__(self, means: Tensor, whitening: Tensor, power: float) -> None:
        super().__init__()
        self.register_buffer("means", means.float())  # (classes, D) of transformed features
        self.register_buffer("whitening", whitening.float())  # (classes, D, D): w' w is the inverse of the correlations
        self.power = power

    @property
    def classes(self) -> int:
        """How many it tells apart."""
        return self.means.shape[0]

    def forward(self, features: Tensor) -> Tensor:
        """(B, D) -> (B, classes)."""
        away = unit_tukey(features, self.power)[:, None] - self.means  # (B, classes, D)
        white = torch.einsum("bcd,ced->bce", away, self.whitening)
        return -white.square().sum(2) / 2


FixedHead = LinearHead | CorrelationHead


def unit_tukey(features: Tensor, power: float) -> Tensor:
    """Transformed features of unit length: (B, D) -> (B, D)."""
    return F.normalize(tukey(features, power), dim=1)


def blank_head(settings: ClosedFormSettings, classes: int, features: int) -> FixedHead:
    """A head of the method's kind and size, whose weights are yet to be loaded."""
    if isinstance(settings, FeCAMSettings):
        square = torch.zeros(classes, features, features)
        return CorrelationHead(torch.zeros(classes, features), square, settings.correlation.power)
    return LinearHead(torch.zeros(classes, features), torch.zeros(classes))
