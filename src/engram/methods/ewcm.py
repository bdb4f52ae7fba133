"""EWC-M (Seff et al. 2017): a conditional GAN whose generator is held by Elastic Weight Consolidation.

The generator learns each task's images alone; the weights that drew the classes before are pulled back to where they
were, by the Fisher information of the critic's verdict. Each task keeps its own statistics of the normalisation: with
those of the newest class no old one could be drawn, however well its weights are held. The solver learns every class
from generated images, as DGM's does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from engram.config import demand
from engram.data.stream import Task
from engram.methods.conditioned import Conditioned, ConditionedSettings
from engram.methods.importance import Weights, mean_square_gradient, pull, widen
from engram.methods.learner import Method, State, Surroundings
from engram.seeding import generator


@dataclass(frozen=True)
class EWCMSettings(ConditionedSettings):
    """Settings of EWC-M."""

    strength: float = 1e4
    """lambda: how hard important weights of the generator are held."""
    fisher_images: int = 200
    """Generated images from which the Fisher information is estimated."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand(self.strength >= 0, "method.strength", self.strength, "0 or more")
        demand(self.fisher_images >= 1, "method.fisher_images", self.fisher_images, "1 or more")


class EWCM(Conditioned):
    """The learner."""

    settings: EWCMSettings

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self.anchor: Weights = {}
        self.importance: Weights = {}

    def begin(self, task: Task) -> None:
        self.gan.begin(task.index, new=len(task.classes), group=task.index, known=len(task.classes))
        now = dict(self.gan.generator.named_parameters())
        for noted in (self.anchor, self.importance):
            noted.update({name: widen(value, now[name]) for name, value in noted.items()})

    def end(self, task: Task) -> dict[str, int]:
        self.gan.finish(task.index, torch.tensor(task.columns), group=task.index)
        self._consolidate(task)
        return {"importance": 4 * sum(v.numel() for noted in (self.anchor, self.importance) for v in noted.values())}

    def step(self, task: Task, epoch: int, batch: int) -> Mapping[str, Tensor]:
        draws = generator(self.around.seed, "gan", task.index, epoch, batch)
        rows = self.gan.pick(task, self.settings.batch_size, generator=draws)
        columns = task.targets[rows]
        targets = columns - task.columns[0] if len(task.classes) > 1 else None
        share = self.clock.share
        return self.gan.step(task.images[rows], targets, columns, share=share, draws=draws, edit=self._hold)

    def _hold(self) -> None:
        for name, p in self.gan.generator.named_parameters():
            if name in self.importance:
                assert p.grad is not None
                p.grad += pull(p.detach(), self.anchor[name], self.importance[name], self.settings.strength)

    def _consolidate(self, task: Task) -> None:
        """Add the Fisher information of this task's drawings; the anchor is where the weights are now."""
        net, critic = self.gan.generator, self.gan.critic
        buffers = dict(net.named_buffers())
        draws = generator(self.around.seed, "fisher", task.index)
        count = self.settings.fisher_images
        z = torch.randn(count, net.noise, generator=draws).to(self.around.device)
        columns = (torch.arange(count) % len(task.classes) + task.columns[0]).to(self.around.device)

        def verdict(weights: Weights, noise: Tensor, column: Tensor) -> Tensor:
            image = functional_call(net, {**weights, **buffers}, (noise[None], column[None]), {"settled": True})
            score: Tensor = critic(image)[0][0]
            return score

        weights = {name: p.detach() for name, p in net.named_parameters()}
        new = mean_square_gradient(verdict, weights, (z, columns), batch=20)
        self.importance = {name: value + self.importance.get(name, 0.0) for name, value in new.items()}
        self.anchor = {name: p.clone() for name, p in weights.items()}

    def state(self) -> State:
        return {**super().state(), "anchor": dict(self.anchor), "importance": dict(self.importance)}

    def load(self, state: State) -> None:
        super().load(state)
        device = self.around.device
        self.anchor = {name: value.to(device) for name, value in state["anchor"].items()}
        self.importance = {name: value.to(device) for name, value in state["importance"].items()}


EWC_M = Method(
    build=EWCM,
    settings=EWCMSettings,
    summary="conditional GAN held by Elastic Weight Consolidation",
    stores="a generator of fixed size; a copy and an importance of every weight",
    source="Seff et al. 2017",
)
