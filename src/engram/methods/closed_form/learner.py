"""The learner that the closed-form methods share: one pass over a task's images, sums, and a head made of them.

    learn    features of every image ─> sums (float64), and nothing else is kept
    answer   the method makes a head out of the sums, when it is first asked after a task

Features are fixed (`features.py`), and those of images are summed up as whole numbers. So it makes no difference in
which order classes come, or how they are cut into tasks: the sums are the same, to the bit.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from engram.context import Context
from engram.data.stream import Task
from engram.methods.answering import AnswerNet
from engram.methods.classifier import normalise
from engram.methods.closed_form.features import features_of
from engram.methods.closed_form.heads import FixedHead
from engram.methods.closed_form.settings import ClosedFormSettings
from engram.methods.closed_form.statistics import add_sums, packed
from engram.methods.learner import SILENT, Freed, Observer, Progress, State, run_epochs
from engram.seeding import generator

BATCH = 1024
"""Examples that are summed up at a time: so many products of whole numbers up to 127 are exact in float32."""


class ClosedForm(abc.ABC):
    """Counts and sums by class; what else is summed up, and what is made of it, is the method's."""

    def __init__(self, ctx: Context[ClosedFormSettings]) -> None:
        self.ctx = ctx
        draws = generator(ctx.seed, "features")
        self.trunk = features_of(ctx.shape, ctx.settings.features, generator=draws).to(ctx.device)
        self.counts = torch.zeros(0, dtype=torch.int64)
        """(classes,)"""
        self.sums = torch.zeros(0, self.trunk.features, dtype=torch.float64)
        """(classes, D)"""
        self.progress = Progress()
        self._head: FixedHead | None = None
        """Made of the sums; derived, not state."""

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        """Add the task's images to the sums, a batch at a time; goes on where it was stopped."""
        if not self.progress.running:
            self._head = None
            self.grow(len(task.seen))
            self.progress = Progress(epochs=1, batches=-(-len(task) // BATCH))

        def step(epoch: int, batch: int) -> Mapping[str, Tensor]:
            rows = slice(batch * BATCH, (batch + 1) * BATCH)
            self.add_images(task.images[rows], task.targets[rows])
            return {}

        run_epochs(self.progress, step, observe)
        self.end(task)
        self.progress = Progress()
        observe.note("memory", bytes=self.bytes)

    def grow(self, classes: int) -> None:
        """Make room for so many classes in all."""
        new = classes - len(self.counts)
        self.counts = torch.cat([self.counts, self.counts.new_zeros(new)])
        self.sums = torch.cat([self.sums, self.sums.new_zeros(new, self.sums.shape[1])])

    def add_images(self, images: Tensor, targets: Tensor) -> None:
        """More images (N, C, H, W) uint8 of classes that there is room for, targets (N,)."""
        self._head = None
        for some, own in zip(torch.split(images, BATCH), torch.split(targets, BATCH), strict=True):
            self.add(self.trunk.for_sums(self.features(some)), own)

    def add(self, features: Tensor, targets: Tensor) -> None:
        """More examples, of known classes too: features (B, D) as they are summed up, targets (B,)."""
        self.counts, self.sums = add_sums(self.counts, self.sums, features, targets)

    def end(self, task: Task) -> None:  # noqa: B027 (most methods have nothing to do)
        """The task's images are summed up, and still at hand."""

    def drop(self, class_index: int, *more: str) -> Freed:
        """Take a class out of counts, sums, and what else is kept class by class; those behind it move up."""
        before = sum(self.bytes.values())
        rest = [index for index in range(len(self.counts)) if index != class_index]
        for name in ("counts", "sums", *more):
            setattr(self, name, getattr(self, name)[rest])
        self._head = None
        return Freed(weights=0, all_weights=0, engrams=0, bytes=before - sum(self.bytes.values()))

    @abc.abstractmethod
    def make_head(self) -> FixedHead:
        """What answers, made of the sums."""

    @property
    def bytes(self) -> dict[str, int]:
        """What is kept, by part, as it lies in a checkpoint."""
        kept = {**self.statistics(), "filters": self.trunk.filters}
        return {name: tensor.numel() * tensor.element_size() for name, tensor in kept.items()}

    def statistics(self) -> dict[str, Tensor]:
        """All that is kept of the images, in as few bytes as hold it exactly."""
        return {"counts": self.counts, "sums": packed(self.sums)}

    def take_statistics(self, found: Mapping[str, Tensor]) -> None:
        """Back from `statistics`."""
        self.counts, self.sums = found["counts"], found["sums"].double()

    @property
    def head(self) -> FixedHead:
        """What answers now."""
        if self._head is None:
            self._head = self.make_head().to(self.ctx.device)
        return self._head

    def features(self, images: Tensor) -> Tensor:
        """(N, C, H, W) uint8 -> (N, D)."""
        return self._features(images).cpu()

    @torch.inference_mode()
    def scores(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, classes seen)."""
        scores: Tensor = self.head(self._features(images))
        return scores

    @torch.inference_mode()
    def _features(self, images: Tensor) -> Tensor:
        parts = torch.split(images, self.trunk.at_once)
        return torch.cat([self.trunk(normalise(some.to(self.ctx.device))) for some in parts])

    def answer_net(self) -> nn.Module:
        """Features and head: (B, C, H, W) in [-1, 1] -> (B, classes seen)."""
        return AnswerNet(self.head.kind, self.trunk, self.head)

    def state(self) -> State:
        """For a checkpoint, in the middle of a task too."""
        return {
            "filters": self.trunk.filters.clone(),
            "statistics": self.statistics(),
            "progress": self.progress.state(),
        }

    def load(self, state: State) -> None:
        """Back from a checkpoint."""
        self.trunk.filters = state["filters"].to(self.ctx.device)
        self.take_statistics(state["statistics"])
        self.progress = Progress.of(state["progress"], self.ctx.device)
        self._head = None
