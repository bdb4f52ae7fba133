"""One battery over the whole registry: what every method must do, whatever it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conftest import SMALL, write_npz
from engram.config import TrainingConfig
from engram.data.datasets import Dataset, load
from engram.data.stream import ClassStream
from engram.evaluation.evaluate import evaluate
from engram.experiment.checkpoint import fingerprint
from engram.methods.learner import Learner, Silent, Surroundings
from engram.methods.registry import METHODS

TRAINING = TrainingConfig(epochs=4, batch_size=8)


def build(name: str, dataset: Dataset, seed: int = 0) -> Learner:
    method = METHODS[name]
    return method.build(Surroundings(dataset.channels, TRAINING, method.settings(**SMALL.get(name, {})), seed))


def learn(name: str, dataset: Dataset, classes_per_task: int = 2, seed: int = 0) -> Learner:
    learner = build(name, dataset, seed)
    for task in ClassStream(dataset, classes_per_task, cumulative=METHODS[name].given_all_data):
        learner.learn(task, observe=Silent())
    return learner


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("classes_per_task", [1, 2])
def test_learns_the_last_task(name: str, tmp_path: Path, channels: int, classes_per_task: int) -> None:
    dataset = load(f"npz:{write_npz(tmp_path / 'a.npz', channels=channels)}")
    learner = learn(name, dataset, classes_per_task)
    result = evaluate(learner, dataset, range(4))
    last = [result.confusion[c][c] / sum(result.confusion[c]) for c in range(4 - classes_per_task, 4)]
    assert sum(last) / len(last) > 0.5


@pytest.mark.parametrize("name", METHODS)
def test_answers_over_the_classes_seen_and_no_others(name: str, tiny: Dataset) -> None:
    learner = build(name, tiny)
    images = tiny.test.images[:5]
    for task in ClassStream(tiny, 1, order=[3, 0, 2], cumulative=METHODS[name].given_all_data):
        learner.learn(task, observe=Silent())
        assert learner.scores(images).shape == (5, len(task.seen))


@pytest.mark.parametrize("name", METHODS)
def test_repeats_under_a_seed_whatever_else_draws_numbers(name: str, npz: Path) -> None:
    torch.manual_seed(1)
    first = learn(name, load(f"npz:{npz}"))
    torch.manual_seed(2)
    again = learn(name, load(f"npz:{npz}"))
    other = learn(name, load(f"npz:{npz}"), seed=1)
    assert fingerprint(first.state()) == fingerprint(again.state())
    assert fingerprint(first.state()) != fingerprint(other.state())


@pytest.mark.parametrize("name", METHODS)
def test_survives_save_and_load(name: str, npz: Path) -> None:
    dataset = load(f"npz:{npz}")
    learner = learn(name, dataset)
    other = build(name, dataset, seed=9)
    other.load(learner.state())
    images = dataset.test.images
    assert torch.equal(learner.scores(images), other.scores(images))
    assert fingerprint(learner.state()) == fingerprint(other.state())


@pytest.mark.parametrize("name", METHODS)
def test_describes_itself(name: str) -> None:
    method = METHODS[name]
    assert method.summary
    assert method.stores
    assert method.source
    if method.bound:
        assert f"{method.bound} bound" in method.summary
    if method.given_all_data:
        assert not method.strict
