"""The moving average of a generator's weights, which is what is kept of its training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


class WeightAverage:
    """Exponential moving average with a decay of 0 (none) up to 1; empty until it is started."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.means: list[Tensor] = []

    def start(self, parameters: Iterable[Tensor]) -> None:
        """From the weights as they are."""
        self.means = [p.detach().clone() for p in parameters] if self.decay else []

    @torch.no_grad()
    def update(self, parameters: Iterable[Tensor]) -> None:
        """A step is done. Weights that a gate holds are equal on both sides, and so keep their bits."""
        for mean, now in zip(self.means, parameters if self.means else [], strict=True):
            mean.lerp_(now, 1 - self.decay)

    @torch.no_grad()
    def put(self, parameters: Iterable[Tensor]) -> None:
        """The averages in the place of the weights; then it is empty again."""
        for now, mean in zip(parameters if self.means else [], self.means, strict=True):
            now.copy_(mean)
        self.means = []

    def state(self) -> dict[str, Tensor]:
        return {str(number): mean for number, mean in enumerate(self.means)}

    def load(self, state: Mapping[str, Tensor], parameters: Iterable[Tensor]) -> None:
        """Each average takes the device and the memory layout of its parameter."""
        pairs = zip(parameters if state else [], state.values(), strict=True)
        self.means = [torch.empty_like(now, requires_grad=False).copy_(mean) for now, mean in pairs]
