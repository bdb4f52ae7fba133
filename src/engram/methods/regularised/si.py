"""Synaptic Intelligence (Zenke et al. 2017; the paper's PI): important is what made the loss fall."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from engram.context import Context
from engram.data.examples import Examples
from engram.methods.learner import Method, State
from engram.methods.regularised.importance import Weights, path, path_importance, to_device, widen
from engram.methods.regularised.learner import WITH_SAMPLES, RegularisedLearner, RegularisedSettings

DAMPING = 0.1
"""xi: keeps the importance of weights that hardly moved finite."""
PARTS = ("start", "gone", "total")


class PathImportance:
    """The path integral of the task under way, and the importance gathered over all."""

    def __init__(self, ctx: Context[RegularisedSettings]) -> None:
        self.start: Weights = {}
        self.gone: Weights = {}
        """The path integral."""
        self.total: Weights = {}
        self.seen: Weights = {}
        """Gradient and weights before the step at hand."""
        self.before: Weights = {}

    def begin(self, weights: Mapping[str, Tensor]) -> None:
        """The path starts here."""
        self.start = {name: p.detach().clone() for name, p in weights.items()}
        self.gone = {name: torch.zeros_like(p) for name, p in self.start.items()}

    def before_step(self, weights: Mapping[str, Tensor]) -> None:
        """Note gradients and weights."""
        self.before = {name: p.detach().clone() for name, p in weights.items()}
        self.seen = {name: p.grad.clone() for name, p in weights.items() if p.grad is not None}

    def after_step(self, weights: Mapping[str, Tensor]) -> None:
        """One more piece of the path."""
        for name, gradient in self.seen.items():
            self.gone[name] += path(gradient, weights[name].detach() - self.before[name])

    def end(self, net: nn.Module, examples: Examples, task: int) -> Weights:
        """This task's importance on top."""
        for name, p in net.named_parameters():
            new = path_importance(self.gone[name], p.detach() - self.start[name], DAMPING)
            self.total[name] = new + widen(self.total[name], new) if name in self.total else new
        return self.total

    def state(self) -> State:
        """For a checkpoint."""
        return {part: dict(getattr(self, part)) for part in PARTS}

    def load(self, state: State, device: torch.device) -> None:
        """Back from a checkpoint."""
        self.start, self.gone, self.total = (to_device(state[part], device) for part in PARTS)


SI = Method(
    build=partial(RegularisedLearner, estimator=PathImportance),
    settings=RegularisedSettings(),
    summary="Synaptic Intelligence: weights are held by their share in the fall of the loss",
    stores="a copy and an importance of every weight",
    source="Zenke et al. 2017",
)

SI_S = Method(
    build=partial(RegularisedLearner, estimator=PathImportance),
    settings=RegularisedSettings(exemplars=WITH_SAMPLES),
    summary="SI with stored samples (the paper's PI-S)",
    stores="10 real images a class; a copy and an importance of every weight",
    source="Zenke et al. 2017; Chaudhry et al. 2018",
    strict=False,
)
