"""EWC-M (Seff et al. 2017): a conditional GAN whose generator is held by Elastic Weight Consolidation.

The generator learns each task's images alone; the weights that drew the classes before are pulled back to where they
were, by the Fisher information of the critic's verdict. Each task keeps its own statistics of the normalisation: with
those of the newest class no old one could be drawn, however well its weights are held. The classifier learns every
class from generated images, as DGM's does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from engram.context import Context
from engram.data.stream import Task
from engram.gan.settings import ConditionalReplaySettings, RegularisationSettings
from engram.methods.classifier_phase import REPLAY_CLASSIFIER
from engram.methods.learner import Method, State
from engram.methods.regularised.importance import Weights, mean_square_gradient, pull, to_device, widen
from engram.methods.replay.learner import ConditionalReplayLearner
from engram.seeding import generator

FISHER_IMAGES = 200
"""Drawings from which the Fisher information is estimated."""


@dataclass(frozen=True)
class EWCMSettings(ConditionalReplaySettings):
    """Groups of EWC-M."""

    regularisation: RegularisationSettings = RegularisationSettings(strength=1e4)


class EWCM(ConditionalReplayLearner[EWCMSettings]):
    """The learner."""

    def __init__(self, ctx: Context[EWCMSettings]) -> None:
        super().__init__(ctx)
        self.anchor: Weights = {}
        """Where the last task left the generator's weights."""
        self.importance: Weights = {}

    def begin(self, task: Task) -> None:
        """Room for the task's classes, with statistics of their own."""
        self.gan.begin(task.index, new=len(task.classes), group=task.index, known=len(task.classes))
        now = dict(self.gan.generator.named_parameters())
        for noted in (self.anchor, self.importance):
            noted.update({name: widen(value, now[name]) for name, value in noted.items()})

    def end(self, task: Task) -> dict[str, int]:
        """The task's statistics, and what its weights matter."""
        self.gan.finish(task.index, torch.tensor(task.class_indices), group=task.index)
        self._consolidate(task)
        return {"importance": 4 * sum(v.numel() for noted in (self.anchor, self.importance) for v in noted.values())}

    def step(self, task: Task, epoch: int, batch: int) -> Mapping[str, Tensor]:
        """The task's images alone; weights that matter are pulled back."""
        draws = generator(self.ctx.seed, "gan", task.index, epoch, batch)
        rows = self.gan.pick(task, self.settings.gan.batch_size, generator=draws)
        classes = task.targets[rows]
        targets = classes - task.class_indices[0] if len(task.classes) > 1 else None
        share = self.progress.share
        return self.gan.step(task.images[rows], targets, classes, share=share, draws=draws, edit=self._hold)

    def _hold(self) -> None:
        strength = self.settings.regularisation.strength
        for name, p in self.gan.generator.named_parameters():
            if name in self.importance:
                assert p.grad is not None
                p.grad += pull(p.detach(), self.anchor[name], self.importance[name], strength)

    def _consolidate(self, task: Task) -> None:
        """Add the Fisher information of this task's drawings; the anchor is where the weights are now."""
        net, critic = self.gan.generator, self.gan.critic
        buffers = dict(net.named_buffers())
        draws = generator(self.ctx.seed, "fisher", task.index)
        z = torch.randn(FISHER_IMAGES, net.latent_dim, generator=draws).to(self.ctx.device)
        classes = (torch.arange(FISHER_IMAGES) % len(task.classes) + task.class_indices[0]).to(self.ctx.device)

        def verdict(weights: Weights, noise: Tensor, class_index: Tensor) -> Tensor:
            image = functional_call(net, {**weights, **buffers}, (noise[None], class_index[None]), {"settled": True})
            score: Tensor = critic(image)[0][0]
            return score

        weights = {name: p.detach() for name, p in net.named_parameters()}
        new = mean_square_gradient(verdict, weights, (z, classes), batch=20)
        self.importance = {name: value + self.importance.get(name, 0.0) for name, value in new.items()}
        self.anchor = {name: p.clone() for name, p in weights.items()}

    def state(self) -> State:
        """For a checkpoint, in the middle of a task too."""
        return {**super().state(), "anchor": dict(self.anchor), "importance": dict(self.importance)}

    def load(self, state: State) -> None:
        """Back from a checkpoint."""
        super().load(state)
        self.anchor = to_device(state["anchor"], self.ctx.device)
        self.importance = to_device(state["importance"], self.ctx.device)


EWC_M = Method(
    build=EWCM,
    settings=EWCMSettings(),
    classifier=REPLAY_CLASSIFIER,
    summary="conditional GAN held by Elastic Weight Consolidation",
    stores="a generator of fixed size; a copy and an importance of every weight",
    source="Seff et al. 2017",
    draws=True,
)
