"""Learning without forgetting: the loss, whom it asks, and that old answers are held where images speak for them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from conftest import Interrupt, context
from engram.data.examples import Examples
from engram.data.stream import ClassStream
from engram.methods.classifier_phase import TEMPERATURE
from engram.methods.lwf import LWF, LwF
from engram.testing import toy_dataset

SMALL = {"classifier.epochs": 2, "classifier.batch_size": 8, "classifier.width": 4}


def build(**settings: Any) -> LwF:
    learner = LWF.build(context("lwf", {**SMALL, **settings}))
    assert isinstance(learner, LwF)
    return learner


Array = npt.NDArray[np.float64]


def soft(scores: Array) -> Array:
    powers = np.exp(scores / TEMPERATURE)
    chances: Array = powers / powers.sum(1, keepdims=True)
    return chances


def test_the_loss_is_the_truth_and_the_old_answers() -> None:
    learner, tasks = build(**{"distillation.weight": 0.5}), ClassStream(toy_dataset(), 2)
    learner.learn(next(tasks))
    second = next(tasks)
    learner.teacher, learner.old = copy.deepcopy(learner.classifier.net).eval(), 2
    x, targets = torch.randn(8, 1, 32, 32, generator=torch.Generator().manual_seed(0)), second.targets[:8]
    scores = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        before = learner.teacher(x).double().numpy()
    now, then = soft(scores[:, :2].double().numpy()), soft(before)
    apart = TEMPERATURE**2 * (then * (np.log(then) - np.log(now))).sum(1).mean()
    chances = np.exp(scores.double().numpy())
    truth = -np.log((chances / chances.sum(1, keepdims=True))[np.arange(8), targets.numpy()]).mean()
    loss = learner._loss(x, scores, Examples(second.images[:8], targets))
    np.testing.assert_allclose(loss.item(), truth + 0.5 * apart, rtol=1e-5)


def test_the_teacher_is_the_network_before_the_task_through_any_stop() -> None:
    learner, tasks = build(), ClassStream(toy_dataset(), 2)
    learner.learn(next(tasks))
    before = copy.deepcopy(learner.classifier.net.state_dict())
    task = next(tasks)
    with pytest.raises(InterruptedError):
        learner.learn(task, observe=Interrupt(3))
    other = build()
    other.load(learner.state())
    assert other.teacher is not None
    assert all(torch.equal(value, before[key]) for key, value in other.teacher.state_dict().items())
    other.learn(task)
    assert other.teacher is None
    assert "teacher" not in other.state()


def test_a_large_weight_holds_the_old_answers() -> None:
    """On the new images: the old classes' chances among themselves stay what they were."""
    apart = {}
    for weight in (0.0, 50.0):
        learner, tasks = build(**{"distillation.weight": weight, "classifier.epochs": 4}), ClassStream(toy_dataset(), 2)
        learner.learn(next(tasks))
        task = next(tasks)
        images = task.images.clone()
        before = torch.softmax(learner.scores(images), 1)
        learner.learn(task)
        apart[weight] = (torch.softmax(learner.scores(images)[:, :2], 1) - before).abs().mean().item()
    assert apart[50.0] < apart[0.0] / 2
