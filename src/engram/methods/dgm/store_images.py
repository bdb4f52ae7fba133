"""The relaxed setting: some real images of the task's classes are kept, and shown beside drawings from then on."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engram.context import Context
from engram.data.stream import Task
from engram.memory.exemplars import herd, pick
from engram.methods.classifier_phase import ClassifierPhase
from engram.methods.dgm.settings import DGMSettings
from engram.seeding import generator


def store_images(
    phase: ClassifierPhase, task: Task, ctx: Context[DGMSettings], engrams_of: Callable[[int], int]
) -> None:
    """Keep copies of some of the task's images; a budget is shared out anew among all classes.

    A class that was known before keeps as many as it had, from the task of each of its engrams alike.
    """
    own, kept, mean = ctx.settings.exemplars, phase.exemplars, len(task) // len(task.classes)
    per_class = own.budget // len(task.seen) if own.budget else round(own.ratio * mean)
    known = set(kept.images)
    if not known.issuperset(task.class_indices):  # more of known classes alone does not tell how large a class is
        kept.shrink(per_class)
        phase.real_share = min(1.0, per_class / mean)
    for index in task.class_indices:
        rows = torch.nonzero(task.targets == index).squeeze(1)
        wanted = len(kept.images[index]) if index in known else per_class
        if own.selection == "herding":
            best = herd(phase.classifier.features(task.images[rows]), wanted)
        else:
            best = pick(wanted, len(rows), generator=generator(ctx.seed, "store", index))
        if index in known:
            kept.mix(index, task.images[rows[best]], share=1 / engrams_of(index))
        else:
            kept.add(index, task.images[rows[best]])
