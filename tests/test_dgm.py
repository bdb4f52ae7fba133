"""Dynamic Generative Memory on real images: it remembers what fine-tuning forgets; and on larger images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import write_npz
from engram.data.datasets import load_dataset
from engram.data.stream import ClassStream
from engram.evaluation.evaluate import evaluate
from engram.experiment.checkpoint import fingerprint
from engram.masking.masks import Variant
from engram.methods.dgm.learner import DGM
from engram.methods.registry import build
from engram.seeding import generator

CLASSES = [0, 1, 7]


def accuracy_at_the_end(method: str) -> float:
    """On three classes of the embedded digits, one a task, with the method's own preset."""
    dataset = load_dataset("digits")
    learner = build(method, dataset)
    for task in ClassStream(dataset, 1, order=CLASSES):
        learner.learn(task)
    return evaluate(learner, dataset, CLASSES).accuracy


@pytest.mark.parametrize("method", ["dgmw", "dgma"])
def test_it_remembers_what_fine_tuning_forgets(method: str) -> None:
    assert accuracy_at_the_end("finetune") < 0.4
    assert accuracy_at_the_end(method) > 0.85


# a few steps; sizes at which neither variant opens or closes all of a layer, over several seeds
AT_64: dict[str, Any] = {
    "generator.width": 6, "generator.latent_dim": 8, "generator.bn_batches": 1, "critic.width": 4, "gan.epochs": 3,
    "gan.steps": 3, "gan.batch_size": 8, "masks.fraction": 0.7, "masks.lambda_ru": 0.0, "masks.max_units_ratio": 0.0,
    "replay.images": 32, "classifier.epochs": 1, "classifier.batch_size": 16, "classifier.width": 4,
}  # fmt: skip


@pytest.mark.parametrize("variant", ["weights", "units"])
@pytest.mark.parametrize("architecture", ["dcgan", "residual"])
@pytest.mark.parametrize("channels", [1, 3])
def test_two_tasks_of_64_pixels(variant: Variant, architecture: str, channels: int, tmp_path: Path) -> None:
    data = write_npz(tmp_path / "a.npz", channels=channels, per_class=12)
    dataset = load_dataset(f"npz:{data}", image_size=64)
    settings = {**AT_64, "generator.architecture": architecture}
    method = "dgmw" if variant == "weights" else "dgma"
    learner, other = (build(method, dataset, seed=seed, settings=settings) for seed in (0, 1))
    assert isinstance(learner, DGM)
    assert isinstance(other, DGM)
    assert learner.net.graph.image_size == 64
    kept = []
    for task in ClassStream(dataset, 2):
        learner.learn(task)
        assert learner.retention() == []
        images = learner.sample(range(len(task.seen)), 3, generator=generator(0, "images"))
        assert images.shape == (3 * len(task.seen), channels, 64, 64)
        assert images.dtype == torch.uint8
        kept.append(learner.sample([0, 1], 3, generator=generator(1, "images")))
        assert torch.equal(kept[-1], kept[0]), "the first task's images stay as they were"
        assert learner.scores(dataset.test.images[:4]).shape == (4, len(task.seen))

        other.load(learner.state())
        assert fingerprint(other.state()) == fingerprint(learner.state())
        assert other.retention() == []
        again = other.sample(range(len(task.seen)), 3, generator=generator(0, "images"))
        assert torch.equal(again, images)
        assert torch.equal(other.scores(dataset.test.images[:4]), learner.scores(dataset.test.images[:4]))
    assert [engram.image_size for engram in learner.engrams] == [64, 64]
    assert [net.shape for nets in learner.nets for net in nets] == [(channels, 64, 64)] * 4
