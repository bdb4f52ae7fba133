"""One battery over the whole registry: what every method must do, whatever it is."""

from __future__ import annotations

import copy
import functools
import tempfile
from pathlib import Path

import pytest
import torch

from conftest import SMALL, Interrupt, write_npz
from engram.config import TrainingConfig
from engram.data.datasets import Dataset, load
from engram.data.stream import ClassStream
from engram.evaluation.evaluate import evaluate
from engram.experiment.checkpoint import fingerprint
from engram.methods.learner import Learner, Silent, Surroundings
from engram.methods.registry import METHODS

TRAINING = TrainingConfig(epochs=4, batch_size=8)


BRIEF = {"epochs": 4, "steps": 8}
"""For a GAN that goes through all its movements and need not have learned much."""


def build(name: str, dataset: Dataset, seed: int = 0, *, brief: bool = True) -> Learner:
    method, settings = METHODS[name], SMALL.get(name, {})
    if brief and "steps" in settings:
        settings = {**settings, **BRIEF}
    return method.build(Surroundings(dataset.channels, TRAINING, method.settings(**settings), seed))


def learn(name: str, dataset: Dataset, classes_per_task: int = 2, seed: int = 0, *, brief: bool = True) -> Learner:
    learner = build(name, dataset, seed, brief=brief)
    for task in ClassStream(dataset, classes_per_task, cumulative=METHODS[name].given_all_data):
        learner.learn(task, observe=Silent())
    return learner


@functools.cache
def trained(name: str) -> Learner:
    """Learned once for all tests that only look: 4 classes, two a task, one channel."""
    with tempfile.TemporaryDirectory() as folder:
        return learn(name, load(f"npz:{write_npz(Path(folder) / 'tiny.npz')}"))


# the tests of a method run in one process, where `trained` is shared
every_method = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in METHODS]
)


@every_method
@pytest.mark.parametrize(("channels", "classes_per_task"), [(1, 1), (3, 2)])
def test_learns_the_last_task(name: str, tmp_path: Path, channels: int, classes_per_task: int) -> None:
    dataset = load(f"npz:{write_npz(tmp_path / 'a.npz', channels=channels)}")
    learner = learn(name, dataset, classes_per_task, brief=False)
    result = evaluate(learner, dataset, range(4))
    last = [result.confusion[c][c] / sum(result.confusion[c]) for c in range(4 - classes_per_task, 4)]
    assert sum(last) / len(last) > 0.5


@every_method
def test_answers_over_the_classes_seen_and_no_others(name: str, tiny: Dataset) -> None:
    learner = build(name, tiny)
    images = tiny.test.images[:5]
    for task in ClassStream(tiny, 1, order=[3, 0], cumulative=METHODS[name].given_all_data):
        learner.learn(task, observe=Silent())
        assert learner.scores(images).shape == (5, len(task.seen))


@every_method
def test_another_seed_gives_other_bits(name: str, npz: Path) -> None:
    assert fingerprint(trained(name).state()) != fingerprint(learn(name, load(f"npz:{npz}"), seed=1).state())


@every_method
def test_survives_save_and_load(name: str, tiny: Dataset) -> None:
    other = build(name, tiny, seed=9)
    other.load(trained(name).state())
    images = tiny.test.images
    assert torch.equal(trained(name).scores(images), other.scores(images))
    assert fingerprint(trained(name).state()) == fingerprint(other.state())


@every_method
def test_repeats_under_a_seed_though_stopped_again_and_again(name: str, npz: Path) -> None:
    """Whatever else draws numbers; and saved in the middle of a task, loaded by a new learner: the same bits."""
    torch.manual_seed(1)
    learner = build(name, load(f"npz:{npz}"))
    for task in ClassStream(load(f"npz:{npz}"), 2, cumulative=METHODS[name].given_all_data):
        stops = iter([3, 8, 13, 60, 101, 47] if task.index else [])
        done = False
        while not done:
            try:
                learner.learn(task, observe=Interrupt(next(stops, 0)))
                done = True
            except InterruptedError:
                state = copy.deepcopy(learner.state())
                learner = build(name, load(f"npz:{npz}"))
                learner.load(state)
    assert fingerprint(learner.state()) == fingerprint(trained(name).state())


def past_images_in(state: object, images: torch.Tensor) -> int:
    """How many of the images lie somewhere in a state, whatever the shape, as bytes or as floats of either scale."""
    texts: list[bytes] = []

    def collect(node: object) -> None:
        if isinstance(node, dict):
            for value in node.values():
                collect(value)
        elif isinstance(node, torch.Tensor):
            ways = [node] if node.dtype == torch.uint8 else [node, node * 255, (node + 1) * 127.5]
            for way in ways:
                # in the order of its dimensions, and in the order of the memory
                flat = way.double().nan_to_num().round().clamp(0, 255).to(torch.uint8)
                texts.append(flat.contiguous().numpy().tobytes())
                if flat.dim() == 4:
                    texts.append(flat.permute(0, 2, 3, 1).contiguous().numpy().tobytes())

    collect(state)
    whole = b"|".join(texts)
    return sum(
        any(way.contiguous().numpy().tobytes() in whole for way in (image, image.permute(1, 2, 0))) for image in images
    )


@every_method
def test_keeps_no_past_image_unless_it_says_so(name: str, npz: Path) -> None:
    past = load(f"npz:{npz}").take_train()
    images = past.images[torch.as_tensor(past.labels) < 2]
    found = past_images_in(trained(name).state(), images)
    method = METHODS[name]
    if method.is_strict(method.settings()):
        assert found == 0
    elif not method.given_all_data:  # joint training is handed all images anew, and keeps none
        assert found > 0


def test_the_search_finds_a_hidden_image(npz: Path) -> None:
    images = load(f"npz:{npz}").take_train().images[:3]
    for hidden in (images[:1], images[0].flatten(), images[:1].float() / 127.5 - 1, images[:1].float().flatten() / 255):
        assert past_images_in({"a": {"b": hidden.clone(), "c": torch.zeros(5)}}, images) == 1
    assert past_images_in({"a": torch.zeros(3, 1, 32, 32)}, images) == 0


@every_method
def test_describes_itself(name: str) -> None:
    method = METHODS[name]
    assert method.summary
    assert method.stores
    assert method.source
    if method.bound:
        assert f"{method.bound} bound" in method.summary
    if method.given_all_data:
        assert not method.strict
