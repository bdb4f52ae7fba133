"""How well a finished run notices images of other data sets: AUROC, and the share that it calls unknown.

    python benchmarks/unknown.py runs/mnist-dgmw-seed0 svhn cifar10     # a run with stream.validation > 0; ENGRAM_DATA

A line of JSON a data set: 2,000 of its test images, in the run's number of channels, against the run's own test images.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from engram.data.datasets import load_dataset
from engram.errors import ConfigError
from engram.evaluation.trust import against
from engram.model.model import Model

IMAGES = 2000
GREY = torch.tensor([0.299, 0.587, 0.114])
"""Weights of red, green and blue (ITU-R 601), as Pillow has them."""


def with_channels(images: Tensor, channels: int) -> Tensor:
    """(N, C, H, W) uint8 -> with so many channels."""
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1)
    return (images.float() * GREY[:, None, None]).sum(1, keepdim=True).round().to(torch.uint8)


def test_images(name: str, channels: int, size: int) -> Tensor:
    """Every so many of the test part, evenly over it."""
    images = load_dataset(name, image_size=size).test.images
    return with_channels(images[:: max(1, len(images) // IMAGES)][:IMAGES], channels)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    words.add_argument("run", type=Path)
    words.add_argument("others", nargs="+", metavar="DATASET")
    chosen = words.parse_args()
    model = Model.open(chosen.run)
    learner, shape = model.ready("answer")
    if model.trust is None:
        raise ConfigError(f"{chosen.run} was not calibrated; run it with --set stream.validation=0.1")
    own = test_images(model.config.dataset, *shape[:2])
    for name in chosen.others:
        found = against(learner, model.trust, own, test_images(name, *shape[:2]))
        print(json.dumps({"data": model.config.dataset, "classes": len(model.classes), "others": name, **found}))


if __name__ == "__main__":
    main()
