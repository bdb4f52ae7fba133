"""Elastic Weight Consolidation (Kirkpatrick et al. 2017): important is what the Fisher information says is.

One penalty for all past tasks, around the last weights, the Fisher informations added up (Huszar 2018).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from engram.context import Context
from engram.data.examples import Examples
from engram.gan.settings import RegularisationSettings
from engram.methods.classifier import normalise
from engram.methods.learner import Method, State
from engram.methods.regularised.importance import Weights, fisher, to_device, widen
from engram.methods.regularised.learner import WITH_SAMPLES, RegularisedLearner, RegularisedSettings
from engram.seeding import generator

FISHER_IMAGES = 500
"""Images of the task from which the Fisher information is estimated."""
STRENGTH = RegularisationSettings(strength=100.0)


class FisherImportance:
    """The sum of the Fisher informations of all tasks."""

    def __init__(self, ctx: Context[RegularisedSettings]) -> None:
        self.ctx = ctx
        self.total: Weights = {}

    def begin(self, weights: Mapping[str, Tensor]) -> None:
        """Nothing to note."""

    def before_step(self, weights: Mapping[str, Tensor]) -> None:
        """Nothing to note."""

    def after_step(self, weights: Mapping[str, Tensor]) -> None:
        """Nothing to note."""

    def end(self, net: nn.Module, examples: Examples, task: int) -> Weights:
        """This task's Fisher information on top."""
        draws = generator(self.ctx.seed, "fisher", task)
        rows = torch.randperm(len(examples), generator=draws)[:FISHER_IMAGES]
        new = fisher(net, normalise(examples.images[rows].to(self.ctx.device)), generator=draws)
        self.total = {
            name: value + widen(self.total[name], value) if name in self.total else value for name, value in new.items()
        }
        return self.total

    def state(self) -> State:
        """For a checkpoint."""
        return {"total": dict(self.total)}

    def load(self, state: State, device: torch.device) -> None:
        """Back from a checkpoint."""
        self.total = to_device(state["total"], device)


EWC = Method(
    build=partial(RegularisedLearner, estimator=FisherImportance),
    settings=RegularisedSettings(STRENGTH),
    summary="Elastic Weight Consolidation: weights are held by their Fisher information",
    stores="a copy and an importance of every weight",
    source="Kirkpatrick et al. 2017",
)

EWC_S = Method(
    build=partial(RegularisedLearner, estimator=FisherImportance),
    settings=RegularisedSettings(STRENGTH, WITH_SAMPLES),
    summary="EWC with stored samples",
    stores="10 real images a class; a copy and an importance of every weight",
    source="Kirkpatrick et al. 2017; Chaudhry et al. 2018",
    strict=False,
)
