"""How generative methods end a task: a solver learns every class from images that are alike in kind.

By itself it sees generated images only, of the newest classes too. Where generated images are far from real ones, as
those of photographs are, two things can be added that look at nothing but the present task:

    real_now   part of the new classes' images are the task's own. They teach to tell the *new classes* apart: real
               images of one class beside generated ones of another would teach to tell real from generated, and every
               real image would be called new. Old and new are told apart by images of one kind
    distil     what the solver said before of the classes that it knew, of any image, it should say again (Li & Hoiem
               2016, "learning without forgetting"; here on generated images of old classes as well)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.data.stream import Task
from engram.memory.exemplars import Exemplars
from engram.methods.learner import Clock, Observer, State, Surroundings
from engram.methods.solver import Examples, Solver, normalise, solver_net
from engram.seeding import generator

SOFTNESS = 2.0
"""The temperature at which answers are compared."""

Source = Callable[[int, int, torch.Generator], Tensor]
"""(column, count, generator) -> (count, C, 32, 32) uint8 images of that class"""


class Rehearsal:
    """The solver, and the judge: the solver as it was at the start of the epoch, who says which images are replayed."""

    def __init__(self, around: Surroundings, *, replay: int, keep: float, real_now: float, distil: float) -> None:
        self.around, self.replay, self.keep = around, replay, keep
        self.real_now, self.distil = real_now, distil
        self.solver = Solver(around)
        self.judge: nn.Module | None = None
        self.teacher: nn.Module | None = None
        """The solver as the task before left it, while a task is learned; only where it is to be repeated."""
        self.old = 0
        """How many classes came before the task's own."""
        self.stored = Exemplars()
        self.real_share = 0.0
        """How much of the replay comes from the stored images; 0 in the strict setting."""

    def begin(self, columns: int, *, task: int, begins: float) -> None:
        self.old = self.solver.classes
        if self.distil and self.old > 1:
            self.teacher = copy.deepcopy(self.solver.net).eval()
        self.solver.begin(columns, task=task, images=self.replay, start="warm")
        self.solver.clock.begins = begins

    def fit(self, source: Source, *, task: Task, observe: Observer) -> None:
        """To the end of the task; a single class needs no solver."""
        if self.solver.classes > 1:
            loss = self._loss if self.real_now or self.teacher is not None else None
            lessons = partial(self._lessons, source, task)
            self.solver.fit(lessons, task=task.index, observe=observe, loss=loss)
        self.end()

    def end(self) -> None:
        """The task is over."""
        self.solver.clock, self.judge, self.teacher = Clock(), None, None

    def _lessons(self, source: Source, task: Task, epoch: int) -> Examples:
        """What the solver learns from in an epoch: images of every class, evenly, fresh."""
        if self.solver.clock.batch == 0:  # else resumed within the epoch: the judge was saved with it
            self.judge = copy.deepcopy(self.solver.net).eval() if epoch > 0 and self.keep < 1 else None
        own = task if self.real_now else None
        return self.draw(source, self.replay, columns=self.solver.classes, task=task.index, epoch=epoch, own=own)

    def draw(
        self, source: Source, total: int, *, columns: int, task: int, epoch: int, own: Task | None = None
    ) -> Examples:
        """`total` images, evenly over the first `columns` classes.

        Those of `own` are in part its real ones, and marked as such: their target is `columns` plus their class's.
        """
        count, rest = divmod(total, columns)
        images, targets = [], []
        for column in range(columns):
            draws = generator(self.around.seed, "replay", task, epoch, column)
            some = count + (column < rest)
            real = round(self.real_share * some)
            within = round(self.real_now * (some - real)) if own is not None and column in own.columns else 0
            images.append(self._choose(source, column, some - real - within, draws))
            if real:
                images.append(self.stored.draw(column, real, generator=draws))
            targets.append(torch.full((some - within,), column))
            if own is not None and within:
                rows = torch.nonzero(own.targets == column).squeeze(1)
                images.append(own.images[rows[torch.randint(len(rows), (within,), generator=draws)]])
                targets.append(torch.full((within,), columns + column))
        return torch.cat(images), torch.cat(targets)

    def _loss(self, x: Tensor, scores: Tensor, columns: Tensor) -> Tensor:
        """The truth, and what the teacher says of the classes that it knows."""
        truth = class_loss(scores, columns, old=self.old, smoothing=self.around.training.label_smoothing)
        if self.teacher is None:
            return truth
        with torch.no_grad():
            before: Tensor = self.teacher(x)
        share = self.old / scores.shape[1]
        return truth + self.distil * share * apart(scores[:, : self.old], before)

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
            "old": self.old,
        }
        if self.judge is not None:
            state["judge"] = dict(self.judge.state_dict())
        if self.teacher is not None:
            state["teacher"] = dict(self.teacher.state_dict())
        return state

    def load(self, state: State) -> None:
        self.solver.load(state["solver"])
        self.stored, self.real_share, self.old = Exemplars.of(state["stored"]), state["real_share"], state["old"]
        self.judge = self.teacher = None
        if "judge" in state:
            self.judge = copy.deepcopy(self.solver.net).eval()
            self.judge.load_state_dict(state["judge"])
        if "teacher" in state:
            self.teacher = solver_net(self.around, self.old, state["teacher"])


def class_loss(scores: Tensor, columns: Tensor, *, old: int, smoothing: float) -> Tensor:
    """Cross-entropy over all classes; over the new ones alone for images that may not be compared with the old.

    scores (B, classes); columns (B,): `classes + column` marks such an image. The first `old` classes are the old.

    >>> scores = torch.tensor([[9.0, 0.0, 0.0]])
    >>> [round(class_loss(scores, torch.tensor([c]), old=1, smoothing=0.0).item(), 2) for c in (1, 3 + 1)]
    [9.0, 0.69]
    """
    classes = scores.shape[1]
    within = columns >= classes
    parts = ((scores[~within], columns[~within]), (scores[within, old:], columns[within] - classes - old))
    total = sum(F.cross_entropy(*part, label_smoothing=smoothing, reduction="sum") for part in parts)
    assert isinstance(total, Tensor)
    return total / len(columns)


def apart(scores: Tensor, before: Tensor) -> Tensor:
    """How far the answers are from the earlier ones: the mean Kullback-Leibler divergence, both softened.

    scores, before (B, classes). The factor makes the gradient as large as without softening (Hinton et al. 2015).

    >>> apart(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])).item()
    0.0
    """
    now, then = F.log_softmax(scores / SOFTNESS, 1), F.log_softmax(before / SOFTNESS, 1)
    return SOFTNESS**2 * F.kl_div(now, then, reduction="batchmean", log_target=True)
