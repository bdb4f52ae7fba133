"""Labelled images as a classifier learns from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Examples:
    """Images and the places of their classes in the answer."""

    images: Tensor
    """(N, C, H, W) uint8; of vectors (N, D) float32"""
    targets: Tensor
    """(N,) int64"""
    among_new: Tensor | None = None
    """(N,) bool: images that are compared among the task's own classes only; None: all among all classes."""

    def __len__(self) -> int:
        return len(self.targets)

    def rows(self, rows: Tensor) -> Examples:
        """Some of them, by number."""
        among_new = None if self.among_new is None else self.among_new[rows]
        return Examples(self.images[rows], self.targets[rows], among_new)


def within(class_indices: Sequence[int], targets: Tensor) -> Tensor:
    """(N,) places in the answer -> (N,) positions among some classes, which hold them all.

    >>> within((4, 1), torch.tensor([1, 4, 4])).tolist()
    [1, 0, 0]
    """
    positions = torch.full((max(class_indices) + 1,), -1)
    positions[list(class_indices)] = torch.arange(len(class_indices))
    return positions.to(targets.device)[targets]
