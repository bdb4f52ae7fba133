"""Elastic Weight Consolidation (Kirkpatrick et al. 2017): important is what the Fisher information says is.

One penalty for all past tasks, around the last weights, the Fisher informations added up (Huszar 2018).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from engram.config import demand
from engram.methods.anchored import Anchored, AnchoredSettings
from engram.methods.importance import Weights, fisher, widen
from engram.methods.learner import Method, State, Surroundings
from engram.methods.solver import Examples, normalise
from engram.seeding import generator


@dataclass(frozen=True)
class EWCSettings(AnchoredSettings):
    """Settings of EWC."""

    strength: float = 100.0
    fisher_images: int = 500
    """Images of the task from which the Fisher information is estimated."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand(self.fisher_images >= 1, "method.fisher_images", self.fisher_images, "1 or more")


@dataclass(frozen=True)
class EWCSSettings(EWCSettings):
    """Settings of EWC with stored samples."""

    samples: int = 10


class FisherWatch:
    """The sum of the Fisher informations of all tasks."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.total: Weights = {}

    def begin(self, weights: Mapping[str, Tensor]) -> None:
        pass

    def before_step(self, weights: Mapping[str, Tensor]) -> None:
        pass

    def after_step(self, weights: Mapping[str, Tensor]) -> None:
        pass

    def end(self, net: nn.Module, examples: Examples, task: int) -> Weights:
        draws = generator(self.around.seed, "fisher", task)
        rows = torch.randperm(len(examples[0]), generator=draws)[: self.around.settings.fisher_images]
        new = fisher(net, normalise(examples[0][rows].to(self.around.device)), generator=draws)
        self.total = {
            name: value + widen(self.total[name], value) if name in self.total else value for name, value in new.items()
        }
        return self.total

    def state(self) -> State:
        return {"total": dict(self.total)}

    def load(self, state: State, device: torch.device) -> None:
        self.total = {name: value.to(device) for name, value in state["total"].items()}


EWC = Method(
    build=partial(Anchored, watch=FisherWatch),
    settings=EWCSettings,
    summary="Elastic Weight Consolidation: weights are held by their Fisher information",
    stores="a copy and an importance of every weight",
    source="Kirkpatrick et al. 2017",
)

EWC_S = Method(
    build=partial(Anchored, watch=FisherWatch),
    settings=EWCSSettings,
    summary="EWC with stored samples",
    stores="10 real images a class; a copy and an importance of every weight",
    source="Kirkpatrick et al. 2017; Chaudhry et al. 2018",
    strict=False,
)
