"""Riemannian Walk (Chaudhry et al. 2018): Fisher information as a moving average, plus a score along the path.

F      moving average over steps of the squared gradient
score  per stretch of steps, fall of the loss over 1/2 F change^2; halved into what earlier tasks left
importance = F + score, each scaled into 0 … 1 first
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from engram.context import Context
from engram.data.examples import Examples
from engram.methods.learner import Method, State
from engram.methods.regularised.importance import Weights, path, path_score, scale_to_one, to_device, widen
from engram.methods.regularised.learner import WITH_SAMPLES, RegularisedLearner, RegularisedSettings

FISHER_DECAY = 0.9
"""Share of the old value in the moving average of the Fisher information: 1 - alpha."""
STRETCH = 10
"""Delta t: steps over which the fall of the loss is gathered before it is set against the distance."""
DAMPING = 1e-8
"""epsilon in the score."""
PARTS = ("information", "mark", "fall", "scores", "old_scores")


class WalkImportance:
    """The two parts of the importance, as the walk goes on."""

    def __init__(self, ctx: Context[RegularisedSettings]) -> None:
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
        """The walk starts here."""
        now = {name: p.detach() for name, p in weights.items()}
        zeros = {name: torch.zeros_like(p) for name, p in now.items()}
        self.information = {name: widen(self.information.get(name, zero), zero) for name, zero in zeros.items()}
        # zeros of its own: the information is changed in place
        self.old_scores = {name: widen(self.old_scores.get(name, zero.clone()), zero) for name, zero in zeros.items()}
        self.scores, self.steps = {name: torch.zeros_like(p) for name, p in now.items()}, 0
        self._start_stretch(now)

    def _start_stretch(self, now: Mapping[str, Tensor]) -> None:
        self.mark = {name: p.clone() for name, p in now.items()}
        self.fall = {name: torch.zeros_like(p) for name, p in now.items()}

    def before_step(self, weights: Mapping[str, Tensor]) -> None:
        """Note gradients and weights; the moving average."""
        self.before = {name: p.detach().clone() for name, p in weights.items()}
        self.seen = {name: p.grad.clone() for name, p in weights.items() if p.grad is not None}
        for name, gradient in self.seen.items():
            self.information[name].lerp_(gradient.square(), 1 - FISHER_DECAY)

    def after_step(self, weights: Mapping[str, Tensor]) -> None:
        """One more step of the stretch; its score, where it ends."""
        for name, gradient in self.seen.items():
            self.fall[name] += path(gradient, weights[name].detach() - self.before[name])
        self.steps += 1
        if self.steps % STRETCH == 0:
            for name, p in weights.items():
                moved = p.detach() - self.mark[name]
                self.scores[name] += path_score(self.fall[name], self.information[name], moved, DAMPING)
            self._start_stretch({name: p.detach() for name, p in weights.items()})

    def end(self, net: nn.Module, examples: Examples, task: int) -> Weights:
        """Both parts, scaled and added."""
        # the mean of old and new, so that the score does not grow with the number of tasks
        self.old_scores = {
            name: (self.old_scores[name] + new) / (2 if task else 1) for name, new in self.scores.items()
        }
        information, scores = scale_to_one(self.information), scale_to_one(self.old_scores)
        return {name: information[name] + scores[name] for name in information}

    def state(self) -> State:
        """For a checkpoint."""
        return {**{part: dict(getattr(self, part)) for part in PARTS}, "steps": self.steps}

    def load(self, state: State, device: torch.device) -> None:
        """Back from a checkpoint."""
        for part in PARTS:
            setattr(self, part, to_device(state[part], device))
        self.steps = state["steps"]


RWALK = Method(
    build=partial(RegularisedLearner, estimator=WalkImportance),
    settings=RegularisedSettings(),
    summary="Riemannian Walk: weights are held by Fisher information and path score together",
    stores="a copy and an importance of every weight",
    source="Chaudhry et al. 2018",
)

RWALK_S = Method(
    build=partial(RegularisedLearner, estimator=WalkImportance),
    settings=RegularisedSettings(exemplars=WITH_SAMPLES),
    summary="RWalk with stored samples",
    stores="10 real images a class; a copy and an importance of every weight",
    source="Chaudhry et al. 2018",
    strict=False,
)
