"""Riemannian Walk (Chaudhry et al. 2018): Fisher information as a moving average, plus a score along the path.

F      moving average over steps of the squared gradient
score  per stretch of `stretch` steps, fall of the loss over 1/2 F change^2; halved into what earlier tasks left
importance = F + score, each scaled into 0 … 1 first
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from engram.config import demand
from engram.methods.anchored import Anchored, AnchoredSettings
from engram.methods.importance import Weights, path, scale_to_one, score, widen
from engram.methods.learner import Method, State, Surroundings
from engram.methods.solver import Examples


@dataclass(frozen=True)
class RWalkSettings(AnchoredSettings):
    """Settings of RWalk."""

    strength: float = 1.0
    average: float = 0.9
    """Share of the old value in the moving average of the Fisher information: 1 - alpha."""
    stretch: int = 10
    """Delta t: steps over which the fall of the loss is gathered before it is set against the distance."""
    damping: float = 1e-8
    """epsilon in the score."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand(0 <= self.average < 1, "method.average", self.average, "0 or more and below 1")
        demand(self.stretch >= 1, "method.stretch", self.stretch, "1 or more")
        demand(self.damping > 0, "method.damping", self.damping, "above 0")


@dataclass(frozen=True)
class RWalkSSettings(RWalkSettings):
    """Settings of RWalk with stored samples."""

    samples: int = 10


PARTS = ("information", "mark", "fall", "scores", "old_scores")


class WalkWatch:
    """The two parts of the importance, as the walk goes on."""

    def __init__(self, around: Surroundings) -> None:
        self.around, self.settings = around, around.settings
        self.information: Weights = {}
        """F, kept from task to task: that is what makes it a moving average."""
        self.mark: Weights = {}
        """The weights where the stretch began."""
        self.fall: Weights = {}
        """Fall of the loss by weight since then."""
        self.scores: Weights = {}
        self.old_scores: Weights = {}
        self.steps = 0
        self.seen: Weights = {}
        """Gradient and weights before the step at hand."""
        self.before: Weights = {}

    def begin(self, weights: Mapping[str, Tensor]) -> None:
        now = {name: p.detach() for name, p in weights.items()}
        zeros = {name: torch.zeros_like(p) for name, p in now.items()}
        self.information = {name: widen(self.information.get(name, zero), zero) for name, zero in zeros.items()}
        self.old_scores = {name: widen(self.old_scores.get(name, zero), zero) for name, zero in zeros.items()}
        self.scores, self.steps = {name: torch.zeros_like(p) for name, p in now.items()}, 0
        self._start_stretch(now)

    def _start_stretch(self, now: Mapping[str, Tensor]) -> None:
        self.mark = {name: p.clone() for name, p in now.items()}
        self.fall = {name: torch.zeros_like(p) for name, p in now.items()}

    def before_step(self, weights: Mapping[str, Tensor]) -> None:
        self.before = {name: p.detach().clone() for name, p in weights.items()}
        self.seen = {name: p.grad.clone() for name, p in weights.items() if p.grad is not None}
        for name, gradient in self.seen.items():
            self.information[name].lerp_(gradient.square(), 1 - self.settings.average)

    def after_step(self, weights: Mapping[str, Tensor]) -> None:
        for name, gradient in self.seen.items():
            self.fall[name] += path(gradient, weights[name].detach() - self.before[name])
        self.steps += 1
        if self.steps % self.settings.stretch == 0:
            for name, p in weights.items():
                moved = p.detach() - self.mark[name]
                self.scores[name] += score(self.fall[name], self.information[name], moved, self.settings.damping)
            self._start_stretch({name: p.detach() for name, p in weights.items()})

    def end(self, net: nn.Module, examples: Examples, task: int) -> Weights:
        # the mean of old and new, so that the score does not grow with the number of tasks
        self.old_scores = {
            name: (self.old_scores[name] + new) / (2 if task else 1) for name, new in self.scores.items()
        }
        information, scores = scale_to_one(self.information), scale_to_one(self.old_scores)
        return {name: information[name] + scores[name] for name in information}

    def state(self) -> State:
        return {**{part: dict(getattr(self, part)) for part in PARTS}, "steps": self.steps}

    def load(self, state: State, device: torch.device) -> None:
        for part in PARTS:
            setattr(self, part, {name: value.to(device) for name, value in state[part].items()})
        self.steps = state["steps"]


RWALK = Method(
    build=partial(Anchored, watch=WalkWatch),
    settings=RWalkSettings,
    summary="Riemannian Walk: weights are held by Fisher information and path score together",
    stores="a copy and an importance of every weight",
    source="Chaudhry et al. 2018",
)

RWALK_S = Method(
    build=partial(Anchored, watch=WalkWatch),
    settings=RWalkSSettings,
    summary="RWalk with stored samples",
    stores="10 real images a class; a copy and an importance of every weight",
    source="Chaudhry et al. 2018",
    strict=False,
)
