"""The two bounds between which every method lies: `joint` (upper) and `finetune` (lower). Neither is a contender.

Both train the plain solver on whatever images a task brings. Joint training is the one learner that is given all
data: each of its tasks brings the images of *all* classes so far, and it learns them from scratch, as if there were no
stream. What it reaches is what the same solver, data and budget allow when nothing can be forgotten. Fine-tuning
keeps one solver from task to task, sees the current task alone, and does nothing against forgetting.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch

from engram.config import NoSettings
from engram.data.stream import Task
from engram.methods.learner import SILENT, Method, Observer, State, Surroundings
from engram.methods.solver import Solver


class Plain:
    """A solver and nothing else; `fresh` or `warm` at each new task."""

    def __init__(self, around: Surroundings, *, start: Literal["fresh", "warm"]) -> None:
        self.solver = Solver(around)
        self.start = start

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        if not self.solver.clock.running:
            self.solver.begin(len(task.seen), task=task.index, images=len(task), start=self.start)
        self.solver.fit(lambda _: (task.images, task.targets), task=task.index, observe=observe)

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        return self.solver.scores(images)

    def state(self) -> State:
        return self.solver.state()

    def load(self, state: State) -> None:
        self.solver.load(state)


JOINT = Method(
    build=partial(Plain, start="fresh"),
    settings=NoSettings,
    summary="upper bound: trained from scratch on all images of all classes so far",
    stores="all real images",
    source="the paper's JT",
    strict=False,
    bound="upper",
)

FINETUNE = Method(
    build=partial(Plain, start="warm"),
    settings=NoSettings,
    summary="lower bound: trained on the current task alone, nothing done against forgetting",
    stores="nothing",
    source="McCloskey & Cohen 1989",
    bound="lower",
)
