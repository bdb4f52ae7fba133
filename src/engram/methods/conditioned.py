"""What MeRGAN and EWC-M share: a GAN that is told the class, then a solver that learns every class by its drawings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from engram.config import demand
from engram.data.stream import Task
from engram.methods.gan import GAN_SHARE, Gan, GanSettings, draw
from engram.methods.learner import SILENT, Clock, Observer, State, Surroundings, tick
from engram.methods.rehearsal import Rehearsal


@dataclass(frozen=True)
class ConditionedSettings(GanSettings):
    """Settings of a GAN that is told the class, and of the solver that learns from it."""

    real_now: float = 0.0
    """Share of the task's own real images among what the solver learns of the new classes; the rest is generated."""
    distil: float = 0.0
    """How strongly the solver is held to what it said before of the classes that it knew; 0 for not at all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand(0 <= self.real_now <= 1, "method.real_now", self.real_now, "0 to 1")
        demand(self.distil >= 0, "method.distil", self.distil, "0 or more")


class Conditioned(ABC):
    """A learner: `begin`, then `step` by step, then `end`; then the solver's lessons."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.settings: ConditionedSettings = around.settings
        self.gan = Gan(around)
        self.rehearsal = Rehearsal(
            around,
            replay=self.settings.replay,
            keep=self.settings.keep,
            real_now=self.settings.real_now,
            distil=self.settings.distil,
        )
        self.clock = Clock()
        self.stage: Literal["idle", "gan", "solve"] = "idle"

    @abstractmethod
    def begin(self, task: Task) -> None:
        """Room for the task's classes."""

    @abstractmethod
    def step(self, task: Task, epoch: int, batch: int) -> Mapping[str, Tensor]:
        """One step of the GAN; its losses."""

    @abstractmethod
    def end(self, task: Task) -> dict[str, int]:
        """What remains of the task; bytes that are kept beside the generator, by part."""

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        if self.stage == "idle":
            self.begin(task)
            steps = self.settings.steps * len(task.classes)
            self.clock, self.stage = Clock(epochs=self.settings.epochs, batches=steps, ends=GAN_SHARE), "gan"
        if self.stage == "gan":
            tick(self.clock, partial(self.step, task), observe)
            kept = self.end(task)
            self.clock, self.stage = Clock(), "solve"
            observe.note("memory", bytes={**self.gan.bytes, **kept})
            self.rehearsal.begin(len(task.seen), task=task.index, begins=GAN_SHARE)
        self.rehearsal.fit(self._draw, task=task, observe=observe)
        self.stage = "idle"

    def scores(self, images: Tensor) -> Tensor:
        return self.rehearsal.solver.scores(images)

    def features(self, images: Tensor) -> Tensor:
        return self.rehearsal.solver.features(images)

    def sample(self, columns: Sequence[int], count: int, *, generator: torch.Generator) -> Tensor:
        """(len(columns) * count, C, 32, 32) uint8, class by class."""
        return torch.cat([self._draw(column, count, generator) for column in columns])

    def _draw(self, column: int, count: int, draws: torch.Generator) -> Tensor:
        return draw(self.gan.generator, torch.full((count,), column), generator=draws)

    def state(self) -> State:
        return {
            "stage": self.stage,
            "clock": self.clock.state(),
            "gan": self.gan.state(),
            "rehearsal": self.rehearsal.state(),
        }

    def load(self, state: State) -> None:
        self.stage = state["stage"]
        self.clock = Clock.of(state["clock"], self.around.device)
        self.gan.load(state["gan"])
        self.rehearsal.load(state["rehearsal"])
