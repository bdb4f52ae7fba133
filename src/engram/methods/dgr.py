"""Deep Generative Replay (Shin et al. 2017): a scholar is a generator and a solver; each teaches its successor.

generator   learns a mix of the task's images and its predecessor's drawings, without classes
solver      learns the task's images and those drawings, which its predecessor labels

The generator is not told classes, so nothing holds it to drawing all of them alike: a class that it draws seldom would
be drawn more seldom by every successor. Its drawings are therefore replayed evenly by their labels, and those whose
label is least sure are left out. The authors leave the mixture open.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.data.stream import Task
from engram.methods.gan import GAN_SHARE, Gan, GanSettings, batch_of, draw, net_state
from engram.methods.learner import SILENT, Clock, Method, Observer, State, Surroundings, tick
from engram.methods.rarity import draw_rows
from engram.methods.solver import Examples, Solver, normalise, solver_net
from engram.nets.conditional import ConditionalGenerator
from engram.seeding import generator


class DGR:
    """The learner. The generator has a single class: whatever it has seen."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.settings: GanSettings = around.settings
        self.gan = Gan(around)
        self.solver = Solver(around)
        self.teacher: nn.Module | None = None
        """The solver of the task before, and who draws for it, while a task is learned."""
        self.drawing: ConditionalGenerator | None = None
        self.known = 0
        """How many classes the teacher tells apart."""
        self.clock = Clock()
        self.stage: Literal["idle", "gan", "solve"] = "idle"
        self.pool: tuple[int, Examples, Tensor] | None = None

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        if self.stage == "idle":
            self.gan.begin(task.index, new=0 if task.index else 1, group=0, known=1)
            self.known = self.solver.classes
            self.teacher = copy.deepcopy(self.solver.net).eval() if task.index else None
            self.drawing = self.gan.previous
            self.clock = Clock(
                epochs=self.settings.epochs, batches=self.settings.steps * len(task.classes), ends=GAN_SHARE
            )
            self.stage = "gan"
        if self.stage == "gan":
            tick(self.clock, partial(self._gan_step, task), observe)
            self.gan.finish(task.index, torch.zeros(1, dtype=torch.int64), group=0)
            self.clock, self.pool, self.stage = Clock(), None, "solve"
            observe.note("memory", bytes=self.gan.bytes)
            self.solver.begin(len(task.seen), task=task.index, images=self.settings.replay, start="warm")
            self.solver.clock.begins = GAN_SHARE
        if len(task.seen) > 1:  # a single class needs no solver
            total = self.settings.replay
            new = round(total * len(task.classes) / len(task.seen))
            lessons = partial(self._examples, task, "lessons", total=total, new=new)
            self.solver.fit(lessons, task=task.index, observe=observe)
        self.solver.clock, self.teacher, self.drawing, self.stage = Clock(), None, None, "idle"

    def scores(self, images: Tensor) -> Tensor:
        return self.solver.scores(images)

    def _gan_step(self, task: Task, epoch: int, batch: int) -> Mapping[str, Tensor]:
        seed, size = self.around.seed, self.settings.batch_size
        if self.pool is None or self.pool[0] != epoch:
            total = size * self.clock.batches
            examples = self._examples(task, "mix", epoch, total=total, new=self.gan.own_count(task, total))
            order = torch.randperm(len(examples[0]), generator=generator(seed, "pool", task.index, epoch))
            self.pool = epoch, examples, order
        real, _ = batch_of(self.pool[1], self.pool[2], batch, size)
        draws = generator(seed, "gan", task.index, epoch, batch)
        columns = torch.zeros(size, dtype=torch.int64)
        return self.gan.step(real, None, columns, share=self.clock.share, draws=draws)

    def _examples(self, task: Task, purpose: str, epoch: int, *, total: int, new: int) -> Examples:
        """Some of the task's own; the rest is drawn by the old generator and labelled by the old solver."""
        draws = generator(self.around.seed, purpose, task.index, epoch)
        rows = self.gan.pick(task, new, generator=draws)
        images, targets = task.images[rows], task.targets[rows]
        if self.drawing is None or self.teacher is None:
            return images, targets
        old, labels = self._replay(total - new, draws)
        return torch.cat([images, old]), torch.cat([targets, labels])

    def _replay(self, count: int, draws: torch.Generator) -> Examples:
        """The old generator's drawings with the old solver's labels, as many of each class as it still draws."""
        assert self.drawing is not None
        assert self.teacher is not None
        more = math.ceil(count / self.settings.keep)
        images = draw(self.drawing, torch.zeros(more, dtype=torch.int64), generator=draws)
        with torch.inference_mode():
            answers = [
                F.softmax(self.teacher(normalise(some.to(self.around.device))), 1).max(1)
                for some in torch.split(images, 500)
            ]
        sure, labels = (torch.cat([answer[part].cpu() for answer in answers]) for part in (0, 1))
        rows = draw_rows(even_odds(labels, sure, self.settings.keep), count, generator=draws)
        return images[rows], labels[rows]

    def state(self) -> State:
        state: State = {
            "stage": self.stage,
            "clock": self.clock.state(),
            "gan": self.gan.state(),
            "solver": self.solver.state(),
        }
        if self.teacher is not None and self.drawing is not None:
            state["teacher"] = {"classes": self.known, "net": dict(self.teacher.state_dict())}
            state["drawing"] = net_state(self.drawing)
        return state

    def load(self, state: State) -> None:
        self.stage, self.pool = state["stage"], None
        self.clock = Clock.of(state["clock"], self.around.device)
        self.gan.load(state["gan"])
        self.solver.load(state["solver"])
        self.teacher = self.drawing = None
        if "teacher" in state:
            self.known = state["teacher"]["classes"]
            self.teacher = solver_net(self.around, self.known, state["teacher"]["net"])
            self.drawing = self.gan.net_of(state["drawing"])


def even_odds(labels: Tensor, sure: Tensor, keep: float) -> Tensor:
    """(N,) odds of drawings to be replayed: every label alike, of each the share `keep` that the solver is surest of.

    >>> even_odds(torch.tensor([0, 0, 0, 0, 1]), torch.tensor([0.9, 0.6, 0.8, 0.7, 0.5]), 0.5).tolist()
    [0.25, 0.0, 0.25, 0.0, 0.5]
    """
    odds = torch.zeros(len(labels), dtype=torch.float64)
    for label in sorted(set(labels.tolist())):
        own = torch.nonzero(labels == label).squeeze(1)
        best = own[sure[own].argsort(descending=True, stable=True)[: math.ceil(keep * len(own))]]
        odds[best] = 1 / len(best)
    return odds / odds.sum()


DGR_METHOD = Method(
    build=DGR,
    settings=GanSettings,
    summary="Deep Generative Replay: generator and solver are retrained on their own replay",
    stores="a generator of fixed size",
    source="Shin et al. 2017",
)
