"""What MeRGAN and EWC-M share: a GAN that is told the class, then a classifier that learns from its drawings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from engram.context import Context
from engram.data.stream import Task
from engram.gan.settings import ConditionalReplaySettings
from engram.methods.answering import classifier_answer
from engram.methods.classifier_phase import ClassifierPhase
from engram.methods.learner import SILENT, Observer, Progress, State, run_epochs
from engram.methods.replay.conditional_gan import GAN_SHARE, ConditionalGan, draw

S = TypeVar("S", bound=ConditionalReplaySettings)


class ConditionalReplayLearner(ABC, Generic[S]):
    """A learner: `begin`, then `step` by step, then `end`; then the classifier's lessons."""

    def __init__(self, ctx: Context[S]) -> None:
        self.ctx, self.settings = ctx, ctx.settings
        self.gan = ConditionalGan(ctx)
        self.classifier_phase = ClassifierPhase(ctx, self.settings.replay)
        self.progress = Progress()
        self.phase: Literal["idle", "generator", "classifier"] = "idle"

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
        """Train the GAN, then the classifier; goes on where it was stopped."""
        if self.phase == "idle":
            self.begin(task)
            steps = self.settings.gan.steps_of(images=len(task), classes=len(task.classes))
            self.progress = Progress(epochs=self.settings.gan.epochs, batches=steps, ends=GAN_SHARE)
            self.phase = "generator"
        if self.phase == "generator":
            run_epochs(self.progress, partial(self.step, task), observe)
            kept = self.end(task)
            self.progress, self.phase = Progress(), "classifier"
            self.classifier_phase.begin(len(task.seen), task=task.index, begins=GAN_SHARE)
            kept["classifier"] = self.classifier_phase.classifier.bytes
            observe.note("memory", bytes={**self.gan.bytes, **kept})
        self.classifier_phase.fit(self._draw, task=task, observe=observe)
        self.phase = "idle"

    def scores(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, classes seen)."""
        return self.classifier_phase.classifier.scores(images)

    def answer_net(self) -> nn.Module:
        """The classifier: (B, C, H, W) in [-1, 1] -> (B, classes seen)."""
        return classifier_answer(self.classifier_phase.classifier)

    def features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, features), what the classifier makes of them."""
        return self.classifier_phase.classifier.features(images)

    def sample(self, class_indices: Sequence[int], count: int, *, generator: torch.Generator) -> Tensor:
        """(len(class_indices) * count, C, H, W) uint8, class by class."""
        return torch.cat([self._draw(index, count, generator) for index in class_indices])

    def _draw(self, class_index: int, count: int, draws: torch.Generator) -> Tensor:
        return draw(self.gan.generator, torch.full((count,), class_index), generator=draws)

    def state(self) -> State:
        """For a checkpoint, in the middle of a task too."""
        return {
            "phase": self.phase,
            "progress": self.progress.state(),
            "gan": self.gan.state(),
            "classifier_phase": self.classifier_phase.state(),
        }

    def load(self, state: State) -> None:
        """Back from a checkpoint."""
        self.phase = state["phase"]
        self.progress = Progress.of(state["progress"], self.ctx.device)
        self.gan.load(state["gan"])
        self.classifier_phase.load(state["classifier_phase"])
