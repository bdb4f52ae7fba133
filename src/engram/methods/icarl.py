"""iCaRL (Rebuffi et al. 2017): a fixed number of stored images, chosen by herding; the nearest class mean answers.

    learn     every class has an output of its own (a sigmoid): truth for the new classes, for the old ones what the
              network said before the task (distillation)
    store     K images over all classes: for each class those whose mean feature stays nearest to the class's own
    answer    the class whose stored images have the nearest mean feature

A departure: an epoch holds as many images of every class, stored ones again and again. In the paper the stored images
are simply added to the new ones, which suits its hundred classes of 500 images and not one class of 6,000 against ten.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.config import MOST_IMAGES, Group, MethodSettings, setting
from engram.context import Context
from engram.data.examples import Examples
from engram.data.stream import Task
from engram.memory.exemplars import Exemplars, balanced, herd
from engram.methods.answering import nearest_mean_answer
from engram.methods.classifier import Classifier, frozen_classifier
from engram.methods.learner import SILENT, Method, Observer, State
from engram.seeding import generator


@dataclass(frozen=True)
class ExemplarBudget(Group):
    """Real images that iCaRL stores."""

    group = "exemplars"
    budget: int = setting(2000, "K: real images stored over all classes at any time", at_least=1, at_most=MOST_IMAGES)


@dataclass(frozen=True)
class ICaRLSettings(MethodSettings):
    """Groups of iCaRL."""

    exemplars: ExemplarBudget = ExemplarBudget()


class ICaRL:
    """The learner."""

    def __init__(self, ctx: Context[ICaRLSettings]) -> None:
        self.ctx = ctx
        self.classifier = Classifier(ctx)
        self.exemplars = Exemplars()
        self.teacher: nn.Module | None = None
        """The network as it was before the task, while the task is learned."""
        self.means = torch.empty(0)
        """(classes seen, features) of unit length; derived from the stored images."""

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        """Train the network, then choose what to store; goes on where it was stopped."""
        if not self.classifier.progress.running:
            if task.index:
                self.teacher = copy.deepcopy(self.classifier.net).eval()
            self.classifier.begin(len(task.seen), task=task.index, images=len(task), start="warm")
        self.classifier.fit(
            lambda epoch: self._examples(task, epoch), task=task.index, observe=observe, loss=self._loss
        )
        self.teacher = None
        per_class = max(1, self.ctx.settings.exemplars.budget // len(task.seen))
        self.exemplars.shrink(per_class)
        for index in task.class_indices:
            images = task.images[torch.nonzero(task.targets == index).squeeze(1)]
            self.exemplars.add(index, images[herd(self.classifier.features(images), per_class)])
        self._find_means()
        observe.note("memory", bytes={"exemplars": self.exemplars.bytes, "classifier": self.classifier.bytes})

    def scores(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, classes seen): nearness to the mean of each class."""
        features = F.normalize(self.classifier.features(images), dim=1)
        return -torch.cdist(features, self.means)

    def answer_net(self) -> nn.Module:
        """The nearest mean: (B, C, H, W) in [-1, 1] -> (B, classes seen)."""
        return nearest_mean_answer(self.classifier, self.means)

    def other_answers(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """The network's own."""
        return {"network": self.classifier.scores}

    def _examples(self, task: Task, epoch: int) -> Examples:
        if not self.exemplars.images:
            return Examples(task.images, task.targets)
        return balanced(task, self.exemplars, generator=generator(self.ctx.seed, "examples", task.index, epoch))

    def _loss(self, x: Tensor, scores: Tensor, examples: Examples) -> Tensor:
        wanted = F.one_hot(examples.targets, scores.shape[1]).to(scores)
        if self.teacher is not None:
            with torch.no_grad():
                before = self.teacher(x).sigmoid()
            wanted[:, : before.shape[1]] = before
        return F.binary_cross_entropy_with_logits(scores, wanted, reduction="none").sum(1).mean()

    def _find_means(self) -> None:
        means = [
            F.normalize(self.classifier.features(self.exemplars.images[index]), dim=1).mean(0)
            for index in range(len(self.exemplars.images))
        ]
        self.means = F.normalize(torch.stack(means), dim=1)

    def state(self) -> State:
        """For a checkpoint, in the middle of a task too."""
        state: State = {"classifier": self.classifier.state(), "exemplars": self.exemplars.state()}
        if self.teacher is not None:
            known = len(self.exemplars.images)
            state["teacher"] = {"classes": known, "net": dict(self.teacher.state_dict())}
        return state

    def load(self, state: State) -> None:
        """Back from a checkpoint."""
        self.classifier.load(state["classifier"])
        self.exemplars = Exemplars.of(state["exemplars"])
        self.teacher = None
        if "teacher" in state:
            self.teacher = frozen_classifier(self.ctx, state["teacher"]["classes"], state["teacher"]["net"])
        if self.exemplars.images:
            self._find_means()


ICARL = Method(
    build=ICaRL,
    settings=ICaRLSettings(),
    summary="iCaRL: distillation, herding, and the nearest mean of stored images",
    stores="K real images",
    source="Rebuffi et al. 2017",
    strict=False,
)
