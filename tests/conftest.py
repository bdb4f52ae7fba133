"""Small data that every test can afford."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from engram.config import ClassifierSettings, Config, compose
from engram.context import Context, Shape
from engram.data.datasets import Dataset, load_dataset
from engram.methods.learner import Progress, Silent
from engram.methods.registry import METHODS

# toy networks gain nothing from a second thread, and processes that spin on the same cores slow each other down
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)


# sizes at which the generative methods learn the toy classes in seconds; `group.field` -> value
SMALL_GAN = {
    "gan.epochs": 6, "gan.steps": 20, "gan.batch_size": 16, "gan.beta1": 0.5, "gan.rare_power": 0.0,
    "generator.width": 3, "generator.latent_dim": 16, "generator.bn_batches": 3, "critic.width": 8,
    "critic.penalty_stride": 2, "masks.fraction": 0.5, "masks.lambda_ru": 0.05, "masks.max_units_ratio": 0.0,
    "replay.images": 256,
}  # fmt: skip
SMALL_CRITIC_ANSWERS = {**SMALL_GAN, "replay.classifier": "critic"}
SMALL_BASELINE = {
    "gan.epochs": 8, "gan.steps": 20, "gan.batch_size": 16, "gan.learning_rate": 3e-3, "gan.beta1": 0.5,
    "gan.rare_power": 0.0, "gan.new_fraction": 0.0, "generator.width": 6, "generator.latent_dim": 16,
    "generator.bn_batches": 3, "critic.width": 8, "replay.images": 256,
}  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "dgmw": SMALL_GAN,
    # about half of the units open, whatever the machine's rounding; of three a layer a task may open or close all
    "dgma": {**SMALL_GAN, "generator.width": 5, "masks.lambda_ru": 0.15},
    "dgr": SMALL_BASELINE,
    "mergan": {**SMALL_BASELINE, "gan.steps": 80},
    "mergan-ra": {**SMALL_BASELINE, "gan.steps": 40},
    "ewcm": SMALL_BASELINE,
    "icarl": {"exemplars.budget": 40},
    **{name: {"features.filters": 8} for name in ("ncm", "slda", "ridge", "fecam")},
}


def context(
    method: str,
    settings: Mapping[str, Any] | None = None,
    *,
    shape: Shape = (1, 32, 32),
    classifier: ClassifierSettings | None = None,
    seed: int = 0,
    precision: Literal["float32", "bfloat16"] = "float32",
) -> Context[Any]:
    """What a learner of this method is told: the method's defaults, then `group.field` settings."""
    own = METHODS[method]
    config = compose(
        Config(method=method, settings=own.settings, classifier=classifier or own.classifier), settings or {}
    )
    return Context(shape, config.classifier, config.settings, seed, precision=precision)


class Interrupt(Silent):
    """Stops the learner after some number of batches and epochs; 0: never."""

    def __init__(self, after: int) -> None:
        self.left = after

    def batch(self, progress: Progress) -> None:
        self.left -= 1
        if self.left == 0:
            raise InterruptedError

    def epoch(self, losses: Mapping[str, float]) -> None:
        self.batch(Progress())


def write_npz(path: Path, *, classes: int = 4, channels: int = 1, per_class: int = 40, seed: int = 0) -> Path:
    """Classes that a small network can tell apart: a bright square whose place depends on the class, plus noise."""
    draws = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), per_class)
    images = draws.integers(0, 60, (len(labels), 16, 16, channels), dtype=np.uint8)
    for row, label in enumerate(labels):
        y, x = divmod(int(label), 4)
        images[row, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4] += 180
    order = draws.permutation(len(labels))
    np.savez(path, images=images[order], labels=labels[order])
    return path


def saved_bits(folder: Path) -> bytes:
    """Of the last checkpoint of a run folder: its tensors, and which parts it refers to, by their hashes."""
    body = json.loads((folder / "checkpoint.json").read_text())["body"]
    return (folder / str(body["file"])).read_bytes() + json.dumps(body["tree"]).encode()


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    return write_npz(tmp_path / "tiny.npz")


@pytest.fixture
def tiny(npz: Path) -> Dataset:
    """4 classes, 32 training and 8 test images each, one channel."""
    return load_dataset(f"npz:{npz}")


@pytest.fixture(autouse=True)
def _numbers_as_they_are() -> Iterator[None]:
    """A run in this process has tiny numbers taken for 0; the next test has them as they are, after a doctest too."""
    torch.set_flush_denormal(False)
    yield
    torch.set_flush_denormal(False)
