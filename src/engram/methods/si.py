"""Synaptic Intelligence (Zenke et al. 2017; the paper's PI): important is what made the loss fall."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from engram.config import demand
from engram.methods.anchored import Anchored, AnchoredSettings
from engram.methods.importance import Weights, path, path_importance, widen
from engram.methods.learner import Method, State, Surroundings
from engram.methods.solver import Examples


@dataclass(frozen=True)
class SISettings(AnchoredSettings):
    """Settings of SI."""

    strength: float = 1.0
    """c in the paper."""
    damping: float = 0.1
    """xi: keeps the importance of weights that hardly moved finite."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand(self.damping > 0, "method.damping", self.damping, "above 0")


@dataclass(frozen=True)
class SISSettings(SISettings):
    """Settings of SI with stored samples."""

    samples: int = 10


class PathWatch:
    """The path integral of the task under way, and the importance gathered over all."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.start: Weights = {}
        self.gone: Weights = {}
        """The path integral."""
        self.total: Weights = {}
        self.seen: Weights = {}
        """Gradient and weights before the step at hand."""
        self.before: Weights = {}

    def begin(self, weights: Mapping[str, Tensor]) -> None:
        self.start = {name: p.detach().clone() for name, p in weights.items()}
        self.gone = {name: torch.zeros_like(p) for name, p in self.start.items()}

    def before_step(self, weights: Mapping[str, Tensor]) -> None:
        self.before = {name: p.detach().clone() for name, p in weights.items()}
        self.seen = {name: p.grad.clone() for name, p in weights.items() if p.grad is not None}

    def after_step(self, weights: Mapping[str, Tensor]) -> None:
        for name, gradient in self.seen.items():
            self.gone[name] += path(gradient, weights[name].detach() - self.before[name])

    def end(self, net: nn.Module, examples: Examples, task: int) -> Weights:
        for name, p in net.named_parameters():
            new = path_importance(self.gone[name], p.detach() - self.start[name], self.around.settings.damping)
            self.total[name] = new + widen(self.total[name], new) if name in self.total else new
        return self.total

    def state(self) -> State:
        return {"start": dict(self.start), "gone": dict(self.gone), "total": dict(self.total)}

    def load(self, state: State, device: torch.device) -> None:
        self.start, self.gone, self.total = (
            {name: value.to(device) for name, value in state[part].items()} for part in ("start", "gone", "total")
        )


SI = Method(
    build=partial(Anchored, watch=PathWatch),
    settings=SISettings,
    summary="Synaptic Intelligence: weights are held by their share in the fall of the loss",
    stores="a copy and an importance of every weight",
    source="Zenke et al. 2017",
)

SI_S = Method(
    build=partial(Anchored, watch=PathWatch),
    settings=SISSettings,
    summary="SI with stored samples (the paper's PI-S)",
    stores="10 real images a class; a copy and an importance of every weight",
    source="Zenke et al. 2017; Chaudhry et al. 2018",
    strict=False,
)
