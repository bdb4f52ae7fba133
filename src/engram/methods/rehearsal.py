"""A solver that learns every class from generated images, alike in kind: how generative methods end a task."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.memory.exemplars import Exemplars
from engram.methods.learner import Clock, Observer, State, Surroundings
from engram.methods.solver import Examples, Solver, normalise
from engram.seeding import generator

Source = Callable[[int, int, torch.Generator], Tensor]
"""(column, count, generator) -> (count, C, 32, 32) uint8 images of that class"""


class Rehearsal:
    """The solver, and the judge: the solver as it was at the start of the epoch, who says which images are replayed."""

    def __init__(self, around: Surroundings, *, replay: int, keep: float) -> None:
        self.around, self.replay, self.keep = around, replay, keep
        self.solver = Solver(around)
        self.judge: nn.Module | None = None
        self.stored = Exemplars()
        self.real_share = 0.0
        """How much of the replay comes from the stored images; 0 in the strict setting."""

    def begin(self, columns: int, *, task: int, begins: float) -> None:
        self.solver.begin(columns, task=task, images=self.replay, start="warm")
        self.solver.clock.begins = begins

    def fit(self, source: Source, *, task: int, observe: Observer) -> None:
        """To the end of the task; a single class needs no solver."""
        if self.solver.classes > 1:
            self.solver.fit(lambda epoch: self._lessons(source, task, epoch), task=task, observe=observe)
        self.end()

    def end(self) -> None:
        """The task is over."""
        self.solver.clock, self.judge = Clock(), None

    def _lessons(self, source: Source, task: int, epoch: int) -> Examples:
        """What the solver learns from in an epoch: images of every class, evenly, fresh."""
        if self.solver.clock.batch == 0:  # else resumed within the epoch: the judge was saved with it
            self.judge = copy.deepcopy(self.solver.net).eval() if epoch > 0 and self.keep < 1 else None
        return self.draw(source, self.replay, columns=self.solver.classes, task=task, epoch=epoch)

    def draw(self, source: Source, total: int, *, columns: int, task: int, epoch: int) -> Examples:
        """`total` images, evenly over the first `columns` classes."""
        count, rest = divmod(total, columns)
        images, targets = [], []
        for column in range(columns):
            draws = generator(self.around.seed, "replay", task, epoch, column)
            some = count + (column < rest)
            real = round(self.real_share * some)
            images.append(self._choose(source, column, some - real, draws))
            if real:
                images.append(self.stored.draw(column, real, generator=draws))
            targets.append(torch.full((some,), column))
        return torch.cat(images), torch.cat(targets)

    def _choose(self, source: Source, column: int, count: int, draws: torch.Generator) -> Tensor:
        """The doubtful ones left out, where there is a judge."""
        if self.judge is None:
            return source(column, count, draws)
        images = source(column, math.ceil(count / self.keep), draws)
        with torch.inference_mode():
            sure = [
                F.log_softmax(self.judge(normalise(some.to(self.around.device))), 1)[:, column].cpu()
                for some in torch.split(images, 500)
            ]
        return images[torch.cat(sure).argsort(descending=True, stable=True)[:count]]

    def state(self) -> State:
        state: State = {
            "solver": self.solver.state(),
            "stored": self.stored.state(),
            "real_share": self.real_share,
        }
        if self.judge is not None:
            state["judge"] = dict(self.judge.state_dict())
        return state

    def load(self, state: State) -> None:
        self.solver.load(state["solver"])
        self.stored, self.real_share = Exemplars.of(state["stored"]), state["real_share"]
        self.judge = None
        if "judge" in state:
            self.judge = copy.deepcopy(self.solver.net).eval()
            self.judge.load_state_dict(state["judge"])
