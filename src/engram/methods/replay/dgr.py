"""Deep Generative Replay (Shin et al. 2017): a scholar is a generator and a classifier; each teaches its successor.

generator    learns a mix of the task's images and its predecessor's drawings, without classes
classifier   learns the task's images and those drawings, which its predecessor labels

The generator is not told classes, so nothing holds it to drawing all of them alike: a class that it draws seldom would
be drawn more seldom by every successor. Its drawings are therefore replayed evenly by their labels, and those whose
label is least sure are left out. The authors leave the mixture open.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.context import Context
from engram.data.examples import Examples
from engram.data.stream import Task
from engram.gan.oversampling import draw_rows
from engram.gan.settings import BaselineSettings
from engram.methods.answering import classifier_answer
from engram.methods.classifier import Classifier, frozen_classifier, normalise
from engram.methods.classifier_phase import REPLAY_CLASSIFIER
from engram.methods.learner import SILENT, Method, Observer, Progress, State, run_epochs
from engram.methods.replay.conditional_gan import GAN_SHARE, ConditionalGan, EpochPool, draw, generator_state
from engram.nets.conditional_generator import ConditionalGenerator
from engram.seeding import generator


class DGR:
    """The learner. The generator has a single class: whatever it has seen."""

    def __init__(self, ctx: Context[BaselineSettings]) -> None:
        self.ctx, self.settings = ctx, ctx.settings
        self.gan = ConditionalGan(ctx)
        self.classifier = Classifier(ctx)
        self.teacher: nn.Module | None = None
        """The classifier of the task before, and who draws for it, while a task is learned."""
        self.drawing: ConditionalGenerator | None = None
        self.known = 0
        """How many classes the teacher tells apart."""
        self.progress = Progress()
        self.phase: Literal["idle", "generator", "classifier"] = "idle"
        self.pool = EpochPool()

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        """Train the generator, then the classifier; goes on where it was stopped."""
        if self.phase == "idle":
            self._begin(task)
        if self.phase == "generator":
            run_epochs(self.progress, partial(self._gan_step, task), observe)
            self.gan.finish(task.index, torch.zeros(1, dtype=torch.int64), group=0)
            self.progress, self.pool, self.phase = Progress(), EpochPool(), "classifier"
            self.classifier.begin(len(task.seen), task=task.index, images=self.settings.replay.images, start="warm")
            observe.note("memory", bytes={**self.gan.bytes, "classifier": self.classifier.bytes})
            self.classifier.progress.begins = GAN_SHARE
        if len(task.seen) > 1:  # a single class needs no classifier
            total = self.settings.replay.images
            new = round(total * len(task.classes) / len(task.seen))
            lessons = partial(self._examples, task, "lessons", total=total, new=new)
            self.classifier.fit(lessons, task=task.index, observe=observe)
        self.classifier.progress, self.teacher, self.drawing, self.phase = Progress(), None, None, "idle"

    def scores(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, classes seen)."""
        return self.classifier.scores(images)

    def answer_net(self) -> nn.Module:
        """The classifier: (B, C, H, W) in [-1, 1] -> (B, classes seen)."""
        return classifier_answer(self.classifier)

    def _begin(self, task: Task) -> None:
        self.gan.begin(task.index, new=0 if task.index else 1, group=0, known=1)
        self.known = self.classifier.classes
        self.teacher = copy.deepcopy(self.classifier.net).eval() if task.index else None
        self.drawing = self.gan.previous
        steps = self.settings.gan.steps_of(images=len(task), classes=len(task.classes))
        self.progress = Progress(epochs=self.settings.gan.epochs, batches=steps, ends=GAN_SHARE)
        self.phase = "generator"

    def _gan_step(self, task: Task, epoch: int, batch: int) -> Mapping[str, Tensor]:
        seed, size = self.ctx.seed, self.settings.gan.batch_size
        total = size * self.progress.batches
        some = self.pool.batch(
            epoch,
            batch,
            size,
            lambda: self._examples(task, "mix", epoch, total=total, new=self.gan.own_count(task, total)),
            generator(seed, "pool", task.index, epoch),
        )
        draws = generator(seed, "gan", task.index, epoch, batch)
        classes = torch.zeros(size, dtype=torch.int64)
        return self.gan.step(some.images, None, classes, share=self.progress.share, draws=draws)

    def _examples(self, task: Task, purpose: str, epoch: int, *, total: int, new: int) -> Examples:
        """Some of the task's own; the rest is drawn by the old generator and labelled by the old classifier."""
        draws = generator(self.ctx.seed, purpose, task.index, epoch)
        rows = self.gan.pick(task, new, generator=draws)
        images, targets = task.images[rows], task.targets[rows]
        if self.drawing is None or self.teacher is None:
            return Examples(images, targets)
        old, labels = self._replay(self.drawing, self.teacher, total - new, draws)
        return Examples(torch.cat([images, old]), torch.cat([targets, labels]))

    def _replay(
        self, drawing: ConditionalGenerator, teacher: nn.Module, count: int, draws: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """The old generator's drawings with the old classifier's labels, as many of each class as it still draws."""
        keep = self.settings.replay.keep_fraction
        more = math.ceil(count / keep)
        images = draw(drawing, torch.zeros(more, dtype=torch.int64), generator=draws)
        with torch.inference_mode():
            answers = [
                F.softmax(teacher(normalise(some.to(self.ctx.device))), 1).max(1) for some in torch.split(images, 500)
            ]
        sure, labels = (torch.cat([answer[part].cpu() for answer in answers]) for part in (0, 1))
        rows = draw_rows(even_weights(labels, sure, keep), count, generator=draws)
        return images[rows], labels[rows]

    def state(self) -> State:
        """For a checkpoint, in the middle of a task too."""
        state: State = {
            "phase": self.phase,
            "progress": self.progress.state(),
            "gan": self.gan.state(),
            "classifier": self.classifier.state(),
        }
        if self.teacher is not None and self.drawing is not None:
            state["teacher"] = {"classes": self.known, "net": dict(self.teacher.state_dict())}
            state["drawing"] = generator_state(self.drawing)
        return state

    def load(self, state: State) -> None:
        """Back from a checkpoint."""
        self.phase, self.pool = state["phase"], EpochPool()
        self.progress = Progress.of(state["progress"], self.ctx.device)
        self.gan.load(state["gan"])
        self.classifier.load(state["classifier"])
        self.teacher = self.drawing = None
        if "teacher" in state:
            self.known = state["teacher"]["classes"]
            self.teacher = frozen_classifier(self.ctx, self.known, state["teacher"]["net"])
            self.drawing = self.gan.generator_of(state["drawing"])


def even_weights(labels: Tensor, sure: Tensor, keep: float) -> Tensor:
    """(N,) shares of drawings in the replay: every label alike, of each the share `keep` that is surest.

    >>> even_weights(torch.tensor([0, 0, 0, 0, 1]), torch.tensor([0.9, 0.6, 0.8, 0.7, 0.5]), 0.5).tolist()
    [0.25, 0.0, 0.25, 0.0, 0.5]
    """
    weights = torch.zeros(len(labels), dtype=torch.float64)
    for label in sorted(set(labels.tolist())):
        own = torch.nonzero(labels == label).squeeze(1)
        best = own[sure[own].argsort(descending=True, stable=True)[: math.ceil(keep * len(own))]]
        weights[best] = 1 / len(best)
    return weights / weights.sum()


DGR_METHOD = Method(
    build=DGR,
    settings=BaselineSettings(),
    classifier=REPLAY_CLASSIFIER,
    summary="Deep Generative Replay: generator and classifier are retrained on their own replay",
    stores="a generator of fixed size",
    source="Shin et al. 2017",
)
