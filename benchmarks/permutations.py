"""MNIST under fixed permutations of its pixels, as one set of 10 classes a permutation: many classes of equal size.

    python benchmarks/permutations.py OUT.npz [--dataset mnist] [--permutations 5] [--each 0]

The first permutation leaves every pixel where it is. `--each` keeps so many training images a class, the first ones; 0
keeps all. Then, say:

    engram run --dataset npz:OUT.npz --method dgma --set masks.candidates=2
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engram.data.datasets import Split, load_dataset

Pixels = npt.NDArray[np.uint8]


def orders(pixels: int, count: int, *, seed: int = 0) -> list[npt.NDArray[np.int64]]:
    """So many permutations of the pixels, always the same; the first changes nothing."""
    draws = np.random.default_rng(seed)
    return [np.arange(pixels), *(draws.permutation(pixels) for _ in range(count - 1))]


def permuted(images: Pixels, order: npt.NDArray[np.int64]) -> Pixels:
    """(N, C, H, W) -> (N, H, W, C): every channel in this order."""
    flat = images.reshape(*images.shape[:2], -1)[:, :, order]
    return np.ascontiguousarray(flat.reshape(images.shape).transpose(0, 2, 3, 1))


def first_of_each(labels: npt.NDArray[np.int64], each: int) -> npt.NDArray[np.int64]:
    """Row numbers of the first so many of every class; of all, where `each` is 0."""
    rows = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    return np.sort(np.concatenate([own[: each or len(own)] for own in rows]))


def part(split: Split, count: int, classes: int, each: int = 0) -> tuple[Pixels, npt.NDArray[np.int64]]:
    """Images and labels of all permutations of one part."""
    images, labels = split.images.numpy(), split.labels.numpy().astype(np.int64)
    rows = first_of_each(labels, each)
    images, labels = images[rows], labels[rows]
    found = [permuted(images, order) for order in orders(images[0, 0].size, count)]
    return np.concatenate(found), np.concatenate([labels + classes * number for number in range(count)])


def main() -> None:
    asks = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asks.add_argument("out", type=Path)
    asks.add_argument("--dataset", default="mnist")
    asks.add_argument("--permutations", type=int, default=5)
    asks.add_argument("--each", type=int, default=0, help="training images a class; 0: all")
    given = asks.parse_args()
    dataset = load_dataset(given.dataset)
    classes, test = len(dataset.class_names), part(dataset.test, given.permutations, len(dataset.class_names))
    train = part(dataset.take_train(), given.permutations, classes, given.each)
    names = [f"{name} order {number}" for number in range(given.permutations) for name in dataset.class_names]
    np.savez(
        given.out,
        train_images=train[0],
        train_labels=train[1],
        test_images=test[0],
        test_labels=test[1],
        class_names=np.array(names),
    )
    print(f"{given.out}: {len(names)} classes, {len(train[1])} images to learn from, {len(test[1])} to test on")


if __name__ == "__main__":
    main()
