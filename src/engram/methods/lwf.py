"""Learning without forgetting (Li & Hoiem 2016): what the network said before of the old classes it should say again.

The task's own images carry both: the truth over all classes, and the old network's answers over the classes that it
knew. Nothing is replayed, so with one class a task there is no image that tells old classes from new ones.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.config import MOST_WEIGHT, Group, MethodSettings, setting
from engram.context import Context
from engram.data.examples import Examples
from engram.data.stream import Task
from engram.methods.answering import classifier_answer
from engram.methods.classifier import Classifier, frozen_classifier
from engram.methods.classifier_phase import distillation
from engram.methods.learner import SILENT, Method, Observer, State


@dataclass(frozen=True)
class DistillationSettings(Group):
    """How much the old answers weigh."""

    group = "distillation"
    weight: float = setting(
        1.0, "of the old network's answers beside the truth; the paper has 1", at_least=0, at_most=MOST_WEIGHT
    )


@dataclass(frozen=True)
class LwFSettings(MethodSettings):
    """Groups of LwF."""

    distillation: DistillationSettings = DistillationSettings()


class LwF:
    """The learner."""

    def __init__(self, ctx: Context[LwFSettings]) -> None:
        self.ctx = ctx
        self.classifier = Classifier(ctx)
        self.teacher: nn.Module | None = None
        """The network as it was before the task, while the task is learned."""
        self.old = 0
        """How many classes it knew."""

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        """Train on the task's images; goes on where it was stopped."""
        if not self.classifier.progress.running:
            self.old = self.classifier.classes
            self.teacher = copy.deepcopy(self.classifier.net).eval() if self.old else None
            self.classifier.begin(len(task.seen), task=task.index, images=len(task), start="warm")
        self.classifier.fit(
            lambda _: Examples(task.images, task.targets), task=task.index, observe=observe, loss=self._loss
        )
        self.teacher = None

    def _loss(self, x: Tensor, scores: Tensor, examples: Examples) -> Tensor:
        truth = F.cross_entropy(scores, examples.targets, label_smoothing=self.ctx.classifier.label_smoothing)
        if self.teacher is None:
            return truth
        with torch.no_grad():
            before: Tensor = self.teacher(x)
        return truth + self.ctx.settings.distillation.weight * distillation(scores[:, : self.old], before)

    def scores(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, classes seen)."""
        return self.classifier.scores(images)

    def answer_net(self) -> nn.Module:
        """The classifier: (B, C, H, W) in [-1, 1] -> (B, classes seen)."""
        return classifier_answer(self.classifier)

    def state(self) -> State:
        """For a checkpoint, in the middle of a task too."""
        state: State = {"classifier": self.classifier.state(), "old": self.old}
        if self.teacher is not None:
            state["teacher"] = dict(self.teacher.state_dict())
        return state

    def load(self, state: State) -> None:
        """Back from a checkpoint."""
        self.classifier.load(state["classifier"])
        self.old = state["old"]
        self.teacher = frozen_classifier(self.ctx, self.old, state["teacher"]) if "teacher" in state else None


LWF = Method(
    build=LwF,
    settings=LwFSettings(),
    summary="learning without forgetting: the old network's answers on the new images",
    stores="nothing",
    source="Li & Hoiem 2016",
)
