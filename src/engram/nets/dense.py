"""Trunks for vectors: of a classifier, and of the critic.

Plain         vector ─> features: the classifier is linear
HiddenLayer   vector ─ linear ─ norm ─ ReLU ─> 16w features
DenseTrunk    vector ─ linear ─> 8w ─ linear ─> 8w, leaky ReLU 0.2, without normalisation: the critic's
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.context import Shape
from engram.nets.classifier import LEAK
from engram.ops.batch_norm import BatchNorm1d

HIDDEN = 16
"""Units of the classifier's hidden layer, as a multiple of its width."""
CRITIC = (8, 8)
"""Units of the critic's layers, as multiples of its width."""


class _BlankLinear(nn.Linear):
    """A layer whose weights are yet to be set; torch by itself would draw them from the global generator."""

    def reset_parameters(self) -> None:
        pass


def blank_linear(n_in: int, n_out: int, *, bias: bool = True) -> nn.Linear:
    """A linear layer with no weights drawn yet."""
    return _BlankLinear(n_in, n_out, bias=bias)


class Plain(nn.Module):
    """Nothing: the head behind it reads the vector itself."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        (self.features,) = shape

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, D)."""
        return x


class HiddenLayer(nn.Module):
    """One hidden layer."""

    def __init__(self, shape: Shape, width: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.features = HIDDEN * width
        self.layer = blank_linear(shape[0], self.features, bias=False)
        self.norm = BatchNorm1d(self.features)
        nn.init.kaiming_normal_(self.layer.weight, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, features)."""
        return F.relu(self.norm(self.layer(x)))


class DenseTrunk(nn.Module):
    """Linear layers with leaky ReLU 0.2, for a critic."""

    def __init__(self, shape: Shape, width: int, *, generator: torch.Generator) -> None:
        super().__init__()
        sizes = [*shape, *(width * multiple for multiple in CRITIC)]
        self.layers = nn.ModuleList(blank_linear(a, b) for a, b in itertools.pairwise(sizes))
        self.features = sizes[-1]
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            nn.init.kaiming_normal_(layer.weight, a=LEAK, nonlinearity="leaky_relu", generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, features)."""
        for layer in self.layers:
            x = F.leaky_relu(layer(x), LEAK)
        return x

    def pull_back(self, x: Tensor, direction: Tensor) -> Tensor:
        """The gradient of <direction, features> with respect to each vector, as `ConvTrunk.pull_back`."""
        pre_activations = []
        with torch.no_grad():
            for layer in self.layers:
                pre_activations.append(layer(x))
                x = F.leaky_relu(pre_activations[-1], LEAK)
        delta = direction
        for layer, pre_activation in zip(reversed(self.layers), reversed(pre_activations), strict=True):
            assert isinstance(layer, nn.Linear)
            delta = torch.ops.aten.leaky_relu_backward(delta, pre_activation, LEAK, False) @ layer.weight
        return delta
