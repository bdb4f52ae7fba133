"""Ridge regression to one-hot targets on random features (RanPAC, McDonnell et al. 2023, without a pretrained network).

Here the strength is a fixed multiple of trace(G) / D. RanPAC's rule, the strength that does best on a part of the
newest task, is `ridge.choose=task`. It needs two classes in a task; with one the strength stays as it is.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from engram.context import Context
from engram.data.stream import Task
from engram.methods.closed_form.gram import WithGram
from engram.methods.closed_form.heads import FixedHead, LinearHead
from engram.methods.closed_form.settings import RidgeSettings
from engram.methods.closed_form.statistics import best_strength, ridge_weights
from engram.methods.learner import Method, State
from engram.seeding import generator

STRENGTHS = tuple(10.0**power for power in range(-6, 2))
"""From which RanPAC's rule chooses, in units of trace(G) / D."""
PART = 5
"""One image in so many of a task is kept aside to choose by."""


class Ridge(WithGram):
    """The learner."""

    def __init__(self, ctx: Context[RidgeSettings]) -> None:
        super().__init__(ctx)
        self.strength = ctx.settings.ridge.strength
        self.chooses = ctx.settings.ridge.choose == "task"

    def end(self, task: Task) -> None:
        """RanPAC's rule, where it is asked for and can tell anything."""
        if not self.chooses or len(task.class_indices) < 2 or len(task) < PART:
            return
        order = torch.randperm(len(task), generator=generator(self.ctx.seed, "ridge", task.index))
        aside, rest = order[: len(task) // PART], order[len(task) // PART :]
        features = self.trunk.for_sums(self.features(task.images)).double()
        wanted = F.one_hot(task.targets, len(self.counts)).double()
        self.strength = best_strength(features[rest], wanted[rest], features[aside], wanted[aside], STRENGTHS)

    def make_head(self) -> FixedHead:
        """Linear in the features."""
        weights = ridge_weights(self.gram, self.sums, self.strength)
        return LinearHead(weights, torch.zeros(len(weights)))

    def state(self) -> State:
        """For a checkpoint, in the middle of a task too."""
        return {**super().state(), "strength": self.strength}

    def load(self, state: State) -> None:
        """Back from a checkpoint."""
        super().load(state)
        self.strength = state["strength"]


RIDGE = Method(
    build=Ridge,
    settings=RidgeSettings(),
    summary="ridge regression on fixed random features, in closed form",
    stores="feature sums of each class, and one Gram matrix over all",
    source="McDonnell et al. 2023",
    scales_vectors=False,
)
