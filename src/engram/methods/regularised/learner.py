"""EWC, SI and RWalk: one classifier whose important weights are pulled back to where the past left them.

    loss of the task + strength / 2 * sum_i importance_i (theta_i - anchor_i)^2

They differ in how importance is found (`ImportanceEstimator`), and in nothing else. With some real images stored per
class, each is the "-S" of Chaudhry et al. 2018; without, it keeps to the strict protocol, and fails there: a penalty
cannot teach a classifier to tell an old class from a new one that it never saw beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from engram.config import MOST_IMAGES, Group, MethodSettings, setting
from engram.context import Context
from engram.data.examples import Examples
from engram.data.stream import Task
from engram.gan.settings import RegularisationSettings
from engram.memory.exemplars import Exemplars, balanced, pick
from engram.methods.answering import classifier_answer
from engram.methods.classifier import Classifier
from engram.methods.learner import SILENT, Observer, State
from engram.methods.regularised.importance import Weights, pull, to_device, widen
from engram.seeding import generator


@dataclass(frozen=True)
class ExemplarsPerClass(Group):
    """Real images that the "-S" forms store."""

    group = "exemplars"
    per_class: int = setting(
        0, "real images stored per class, chosen at random; 0 is the strict setting", at_least=0, at_most=MOST_IMAGES
    )


@dataclass(frozen=True)
class RegularisedSettings(MethodSettings):
    """Groups of the three."""

    regularisation: RegularisationSettings = RegularisationSettings()
    exemplars: ExemplarsPerClass = ExemplarsPerClass()

    @property
    def stores_images(self) -> bool:
        """Whether this is the "-S" form."""
        return self.exemplars.per_class > 0


WITH_SAMPLES = ExemplarsPerClass(per_class=10)


class ImportanceEstimator(Protocol):
    """Finds out, while and after a task is learned, how much each weight matters."""

    def begin(self, weights: Mapping[str, Tensor]) -> None:
        """A task starts from these weights."""
        ...

    def before_step(self, weights: Mapping[str, Tensor]) -> None:
        """The gradients of the task's loss are in place."""
        ...

    def after_step(self, weights: Mapping[str, Tensor]) -> None:
        """The weights have moved."""
        ...

    def end(self, net: nn.Module, examples: Examples, task: int) -> Weights:
        """The task is learned: the importance of every weight to all tasks so far."""
        ...

    def state(self) -> State: ...

    def load(self, state: State, device: torch.device) -> None: ...


class RegularisedLearner:
    """The learner."""

    def __init__(
        self,
        ctx: Context[RegularisedSettings],
        *,
        estimator: Callable[[Context[RegularisedSettings]], ImportanceEstimator],
    ) -> None:
        self.ctx, self.settings = ctx, ctx.settings
        self.classifier = Classifier(ctx)
        self.estimator = estimator(ctx)
        self.anchor: Weights = {}
        """Where the last task left the weights."""
        self.importance: Weights = {}
        self.exemplars = Exemplars()

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        """Train the classifier with its important weights held; goes on where it was stopped."""
        if not self.classifier.progress.running:
            self.classifier.begin(len(task.seen), task=task.index, images=len(task), start="warm")
            now = self._weights()
            for noted in (self.anchor, self.importance):
                noted.update({name: widen(noted[name], p) for name, p in now.items() if name in noted})
            self.estimator.begin(now)
        self.classifier.fit(
            lambda epoch: self._examples(task, epoch),
            task=task.index,
            observe=observe,
            before_step=self._before_step,
            after_step=lambda: self.estimator.after_step(self._weights()),
        )
        net = self.classifier.net.eval()
        self.importance = self.estimator.end(net, self._examples(task, self.ctx.classifier.epochs), task.index)
        self.anchor = {name: p.detach().clone() for name, p in self._weights().items()}
        self._store(task)
        kept = {"importance": self._bytes(), "exemplars": self.exemplars.bytes}
        observe.note("memory", bytes={**kept, "classifier": self.classifier.bytes})

    def scores(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, classes seen)."""
        return self.classifier.scores(images)

    def answer_net(self) -> nn.Module:
        """The classifier: (B, C, H, W) in [-1, 1] -> (B, classes seen)."""
        return classifier_answer(self.classifier)

    def _before_step(self) -> None:
        weights = self._weights()
        self.estimator.before_step(weights)
        strength = self.settings.regularisation.strength
        for name, importance in self.importance.items():
            p = weights[name]
            assert p.grad is not None
            p.grad += pull(p.detach(), self.anchor[name], importance, strength)

    def _weights(self) -> Weights:
        return dict(self.classifier.net.named_parameters())

    def _examples(self, task: Task, epoch: int) -> Examples:
        """The task's images; with stored ones, as many of every class seen."""
        if not self.exemplars.images:
            return Examples(task.images, task.targets)
        return balanced(task, self.exemplars, generator=generator(self.ctx.seed, "examples", task.index, epoch))

    def _store(self, task: Task) -> None:
        per_class = self.settings.exemplars.per_class
        for index in task.class_indices if per_class else []:
            rows = torch.nonzero(task.targets == index).squeeze(1)
            chosen = pick(per_class, len(rows), generator=generator(self.ctx.seed, "store", index))
            self.exemplars.add(index, task.images[rows[chosen]])

    def _bytes(self) -> int:
        return 4 * sum(value.numel() for noted in (self.anchor, self.importance) for value in noted.values())

    def state(self) -> State:
        """For a checkpoint, in the middle of a task too."""
        return {
            "classifier": self.classifier.state(),
            "anchor": dict(self.anchor),
            "importance": dict(self.importance),
            "estimator": self.estimator.state(),
            "exemplars": self.exemplars.state(),
        }

    def load(self, state: State) -> None:
        """Back from a checkpoint."""
        self.classifier.load(state["classifier"])
        self.anchor = to_device(state["anchor"], self.ctx.device)
        self.importance = to_device(state["importance"], self.ctx.device)
        self.estimator.load(state["estimator"], self.ctx.device)
        self.exemplars = Exemplars.of(state["exemplars"])
