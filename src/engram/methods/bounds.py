"""The two bounds between which every method lies: `joint` (upper) and `finetune` (lower). Neither is a contender.

Both train the plain classifier on whatever images a task brings. Joint training is the one learner that is given all
data: each of its tasks brings the images of *all* classes so far, and it learns them from scratch, as if there were no
stream. What it reaches is what the same classifier, data and budget allow when nothing can be forgotten. Fine-tuning
keeps one classifier from task to task, sees the current task alone, and does nothing against forgetting.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from torch import Tensor, nn

from engram.config import MethodSettings
from engram.context import Context
from engram.data.examples import Examples
from engram.data.stream import Task
from engram.methods.answering import classifier_answer
from engram.methods.classifier import Classifier
from engram.methods.learner import SILENT, Method, Observer, State


class PlainLearner:
    """A classifier and nothing else; `fresh` or `warm` at each new task."""

    def __init__(self, ctx: Context[MethodSettings], *, start: Literal["fresh", "warm"]) -> None:
        self.classifier = Classifier(ctx)
        self.start = start

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        """Train on the task's images; goes on where it was stopped."""
        if not self.classifier.progress.running:
            self.classifier.begin(len(task.seen), task=task.index, images=len(task), start=self.start)
        self.classifier.fit(lambda _: Examples(task.images, task.targets), task=task.index, observe=observe)

    def scores(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, classes seen)."""
        return self.classifier.scores(images)

    def answer_net(self) -> nn.Module:
        """The classifier: (B, C, H, W) in [-1, 1] -> (B, classes seen)."""
        return classifier_answer(self.classifier)

    def state(self) -> State:
        """For a checkpoint, in the middle of a task too."""
        return self.classifier.state()

    def load(self, state: State) -> None:
        """Back from a checkpoint."""
        self.classifier.load(state)


JOINT = Method(
    build=partial(PlainLearner, start="fresh"),
    settings=MethodSettings(),
    summary="upper bound: trained from scratch on all images of all classes so far",
    stores="all real images",
    source="the paper's JT",
    strict=False,
    bound="upper",
)

FINETUNE = Method(
    build=partial(PlainLearner, start="warm"),
    settings=MethodSettings(),
    summary="lower bound: trained on the current task alone, nothing done against forgetting",
    stores="nothing",
    source="McCloskey & Cohen 1989",
    bound="lower",
)
