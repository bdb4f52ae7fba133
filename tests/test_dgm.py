"""Dynamic Generative Memory on real images: it remembers what fine-tuning forgets."""

from __future__ import annotations

import pytest

from engram.data.datasets import load
from engram.data.stream import ClassStream
from engram.evaluation.evaluate import evaluate
from engram.methods.registry import build

CLASSES = [0, 1, 7]


def accuracy_at_the_end(method: str) -> float:
    """On three classes of the embedded digits, one a task, with the method's own preset."""
    dataset = load("digits")
    learner = build(method, dataset)
    for task in ClassStream(dataset, 1, order=CLASSES):
        learner.learn(task)
    return evaluate(learner, dataset, CLASSES).accuracy


@pytest.mark.parametrize("method", ["dgmw", "dgma"])
def test_it_remembers_what_fine_tuning_forgets(method: str) -> None:
    assert accuracy_at_the_end("finetune") < 0.4
    assert accuracy_at_the_end(method) > 0.85
