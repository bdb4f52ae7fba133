"""What the records are told of the masks while they are learned."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engram.methods.dgm.train_task import TaskTrainer
from engram.methods.learner import Observer, Progress

MASK_SAMPLE = 16
"""Mask entries per layer whose values are recorded after each epoch, always the same ones."""


class MaskNotes:
    """An observer's observer: notes the state of the masks before it passes an epoch on."""

    def __init__(self, observe: Observer, trainer: TaskTrainer, progress: Progress) -> None:
        self.observe, self.trainer, self.progress = observe, trainer, progress
        self.batch, self.note = observe.batch, observe.note

    def epoch(self, losses: Mapping[str, float]) -> None:
        """Where the masks stand, while they are learned; then the epoch."""
        if not self.trainer.fixed:
            done = min(self.progress.epoch, self.trainer.mask_epochs)
            s = self.trainer.scale_at_end(done)
            masks = [layer.soft_mask(s).detach() for layer in self.trainer.net.plastic]
            self.note(
                "mask",
                epoch=done,
                s=s,
                occupancy=[round(mask.mean().item(), 6) for mask in masks],
                sample=[[round(v, 4) for v in _spread(mask, MASK_SAMPLE)] for mask in masks],
            )
        self.observe.epoch(losses)


def _spread(mask: Tensor, count: int) -> list[float]:
    """Values at evenly spread places."""
    flat = mask.flatten()
    places = torch.linspace(0, flat.numel() - 1, min(count, flat.numel())).round().long()
    return [float(value) for value in flat[places].tolist()]
