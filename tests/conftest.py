"""Small data that every test can afford."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engram.data.datasets import Dataset, load
from engram.methods.learner import Clock, Silent

# toy networks gain nothing from a second thread, and processes that spin on the same cores slow each other down
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)


# sizes at which the generative methods learn the toy classes in seconds
SMALL_GAN = {
    "width": 3, "noise": 16, "epochs": 6, "steps": 20, "batch_size": 16, "critic_width": 8, "replay": 256,
    "statistics": 3, "lambda_ru": 0.05, "masking": 0.5, "penalty_every": 2,
}  # fmt: skip
SMALL_SHARED = {**SMALL_GAN, "solver": "shared"}
SMALL_RIVAL = {
    "width": 6, "noise": 16, "epochs": 8, "steps": 20, "batch_size": 16, "critic_width": 8, "replay": 256,
    "statistics": 3, "learning_rate": 3e-3,
}  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "dgmw": SMALL_GAN,
    # about half of the units open, whatever the machine's rounding; of three a layer a task may open or close all
    "dgma": {**SMALL_GAN, "width": 5, "lambda_ru": 0.15},
    "dgr": SMALL_RIVAL,
    "mergan": {**SMALL_RIVAL, "steps": 80},
    "mergan-ra": {**SMALL_RIVAL, "steps": 40},
    "ewcm": {**SMALL_RIVAL, "fisher_images": 20},
    "icarl": {"K": 40},
    "ewc": {"fisher_images": 20},
    "ewc-s": {"fisher_images": 20},
}


class Interrupt(Silent):
    """Stops the learner after some number of batches and epochs; 0: never."""

    def __init__(self, after: int) -> None:
        self.left = after

    def batch(self, clock: Clock) -> None:
        self.left -= 1
        if self.left == 0:
            raise InterruptedError

    def epoch(self, losses: Mapping[str, float]) -> None:
        self.batch(Clock())


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


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    return write_npz(tmp_path / "tiny.npz")


@pytest.fixture
def tiny(npz: Path) -> Dataset:
    """4 classes, 32 training and 8 test images each, one channel."""
    return load(f"npz:{npz}")
