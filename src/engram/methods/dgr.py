"""Deep Generative Replay (Shin et al. 2017): a scholar is a generator and a solver; each teaches its successor.

generator   learns a mix of the task's images and its predecessor's drawings, without classes
solver      learns the task's images and those drawings, which its predecessor labels
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from engram.data.stream import Task
from engram.methods.gan import GAN_SHARE, Gan, GanSettings, batch_of, draw, net_state
from engram.methods.learner import SILENT, Clock, Method, Observer, State, Surroundings, tick
from engram.methods.solver import Examples, Solver, normalise
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
            observe.note("memory", bytes={"generator": self.gan.bytes})
            self.solver.begin(len(task.seen), task=task.index, images=self.settings.replay, start="warm")
            self.solver.clock.begins = GAN_SHARE
        if len(task.seen) > 1:  # a single class needs no solver
            lessons = partial(self._examples, task, "lessons", total=self.settings.replay)
            self.solver.fit(lessons, task=task.index, observe=observe)
        self.solver.clock, self.teacher, self.drawing, self.stage = Clock(), None, None, "idle"

    def scores(self, images: Tensor) -> Tensor:
        return self.solver.scores(images)

    def _gan_step(self, task: Task, epoch: int, batch: int) -> Mapping[str, Tensor]:
        seed, size = self.around.seed, self.settings.batch_size
        if self.pool is None or self.pool[0] != epoch:
            examples = self._examples(task, "mix", epoch, total=size * self.clock.batches)
            order = torch.randperm(len(examples[0]), generator=generator(seed, "pool", task.index, epoch))
            self.pool = epoch, examples, order
        real, _ = batch_of(self.pool[1], self.pool[2], batch, size)
        draws = generator(seed, "gan", task.index, epoch, batch)
        columns = torch.zeros(size, dtype=torch.int64)
        return self.gan.step(real, None, columns, share=self.clock.share, draws=draws)

    def _examples(self, task: Task, purpose: str, epoch: int, *, total: int) -> Examples:
        """The task's share by its classes; the rest is drawn by the old generator and labelled by the old solver."""
        draws = generator(self.around.seed, purpose, task.index, epoch)
        new = total if self.drawing is None else round(total * len(task.classes) / len(task.seen))
        rows = self.gan.pick(task, new, generator=draws)
        images, targets = task.images[rows], task.targets[rows]
        if self.drawing is None or self.teacher is None:
            return images, targets
        old = draw(self.drawing, torch.zeros(total - new, dtype=torch.int64), generator=draws)
        with torch.inference_mode():
            labels = [
                self.teacher(normalise(some.to(self.around.device))).argmax(1).cpu() for some in torch.split(old, 500)
            ]
        return torch.cat([images, old]), torch.cat([targets, *labels])

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
            old = Solver(self.around)
            old.begin(self.known, task=0, images=1, start="warm")
            old.net.load_state_dict(state["teacher"]["net"])
            self.teacher, self.drawing = old.net.eval(), self.gan.net_of(state["drawing"])


DGR_METHOD = Method(
    build=DGR,
    settings=GanSettings,
    summary="Deep Generative Replay: generator and solver are retrained on their own replay",
    stores="a generator of fixed size",
    source="Shin et al. 2017",
)
