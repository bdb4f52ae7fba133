"""Scores over test images -> counts. The only reader of test data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from engram.data.datasets import Dataset
from engram.errors import DataError, DivergedError, EngramError
from engram.evaluation import metrics

BATCH = 500
"""Images per pass: large enough to keep the cores busy, small enough not to dominate the memory."""


class Answers(Protocol):
    """What the evaluation needs of a learner."""

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) uint8 -> (B, classes seen)."""
        ...


@dataclass(frozen=True)
class OtherAnswer:
    """One of a learner's other ways to answer, as if it were the only one."""

    scores: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Evaluation:
    """Counts over the test images of all classes seen, in order of appearance.

    >>> from engram import Evaluation
    >>> result = Evaluation(classes=(3, 5), confusion=[[8, 2], [0, 10]], top5_hits=[10, 10])
    >>> result.accuracy
    0.9
    """

    classes: tuple[int, ...]
    confusion: list[list[int]]
    """True class by answered class."""
    top5_hits: list[int]
    """Per class, images whose class was among the five best answers."""

    @property
    def accuracy(self) -> float:
        """A_t over the images."""
        return metrics.micro(self.confusion)

    @property
    def macro(self) -> float:
        """A_t as the mean of the per-class accuracies."""
        return metrics.macro(self.confusion)

    @property
    def top5(self) -> float | None:
        """Top-5 accuracy; None up to five classes, where it says nothing."""
        if len(self.classes) <= 5:
            return None
        return metrics.top_k(self.top5_hits, list(map(sum, self.confusion)))

    def as_record(self) -> dict[str, Any]:
        """Plain values for the records."""
        plain = metrics.as_plain(self.confusion)
        return {
            "classes": list(self.classes),
            "accuracy": self.accuracy,
            "macro": self.macro,
            "top5": self.top5,
            **({"per_class": metrics.per_class(self.confusion)} if isinstance(plain, list) else {}),
            "confusion": plain,
        }


@torch.inference_mode()
def evaluate(learner: Answers, dataset: Dataset, seen: Sequence[int], *, partly: bool = False) -> Evaluation:
    """Ask the learner for every test image of the classes seen so far, without any task label.

    `partly`: some of them may have none, as where the images of earlier classes are deleted.

    >>> from engram import ClassStream, build, evaluate, load_dataset
    >>> digits = load_dataset("digits")
    >>> learner = build("finetune", digits, settings={"classifier.epochs": 1})
    >>> for task in ClassStream(digits, order=["3", "5"]):
    ...     learner.learn(task)
    ...     print(evaluate(learner, digits, task.seen).classes)
    (3,)
    (3, 5)
    """
    seen = tuple(seen)
    if not partly:
        require_test_images(dataset, seen)
    size = len(seen)
    class_index = torch.full((len(dataset.class_names),), -1)
    class_index[list(seen)] = torch.arange(size)
    targets = class_index[dataset.test.labels]  # (N,), -1 for classes still to come
    rows = torch.nonzero(targets >= 0).squeeze(1)
    confusion = torch.zeros(size * size, dtype=torch.int64)
    hits = torch.zeros(size, dtype=torch.int64)
    for part in torch.split(rows, BATCH):
        scores = learner.scores(dataset.test.rows(part)).to("cpu", torch.float32)
        if scores.shape != (len(part), size):
            raise EngramError(
                f"the learner gave scores of shape {tuple(scores.shape)}; {(len(part), size)} were asked for"
            )
        if not torch.isfinite(scores).all():
            raise DivergedError("the learner's scores are not finite; lower classifier.learning_rate")
        truth = targets[part]
        confusion += torch.bincount(truth * size + scores.argmax(1), minlength=size * size)
        among = (scores.topk(min(5, size)).indices == truth[:, None]).any(1)
        hits += torch.bincount(truth[among], minlength=size)
    return Evaluation(seen, confusion.view(size, size).tolist(), hits.tolist())


def require_test_images(dataset: Dataset, classes: Sequence[int]) -> None:
    """Every class needs a test image: an accuracy over none is no figure."""
    counts = torch.bincount(dataset.test.labels, minlength=len(dataset.class_names)).tolist()
    if without := [dataset.class_names[c] for c in classes if not counts[c]]:
        raise DataError(
            f"{dataset.name}: class {without[0]!r} has no test image; add images of it, or leave it out by stream.order"
        )
