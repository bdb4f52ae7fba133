"""The relaxed setting: some real images of the task's classes are kept, and shown beside drawings from then on.

While a task is learned, all its real images can be shown (`share_of_real`). When it has been learned, the classifier
knows its classes, and its features say which images to keep (`store_images`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engram.context import Context
from engram.data.stream import Task
from engram.memory.exemplars import herd, pick
from engram.methods.classifier_phase import ClassifierPhase
from engram.methods.dgm.settings import DGMSettings, ExemplarSettings
from engram.seeding import generator


def share_of_real(phase: ClassifierPhase, task: Task, own: ExemplarSettings) -> float:
    """How much of each class's examples is real, before the task is learned: as much as will be stored of a class."""
    if set(phase.exemplars.images).issuperset(task.class_indices):
        return phase.real_share  # more of known classes alone does not tell how large a class is
    return min(1.0, _per_class(task, own) / (len(task) // len(task.classes)))


def store_images(
    phase: ClassifierPhase,
    task: Task,
    ctx: Context[DGMSettings],
    engrams_of: Callable[[int], int],
    features: Callable[[Tensor], Tensor],
) -> None:
    """Keep copies of some of the task's images; a budget is shared out anew among all classes.

    A class that was known before keeps as many as it had, from the task of each of its engrams alike. `features`: of
    what answers, (N, C, H, W) -> (N, F), once it has learned the task.
    """
    own, kept, per_class = ctx.settings.exemplars, phase.exemplars, _per_class(task, ctx.settings.exemplars)
    known = set(kept.images)
    if not known.issuperset(task.class_indices):
        kept.shrink(per_class)
    for index in task.class_indices:
        rows = torch.nonzero(task.targets == index).squeeze(1)
        wanted = len(kept.images[index]) if index in known else per_class
        if own.selection == "herding":
            best = herd(features(task.images[rows]), wanted)
        else:
            best = pick(wanted, len(rows), generator=generator(ctx.seed, "store", index))
        if index in known:
            kept.mix(index, task.images[rows[best]], share=1 / engrams_of(index))
        else:
            kept.add(index, task.images[rows[best]])


def _per_class(task: Task, own: ExemplarSettings) -> int:
    return own.budget // len(task.seen) if own.budget else round(own.ratio * (len(task) // len(task.classes)))
