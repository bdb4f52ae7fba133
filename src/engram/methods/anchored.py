"""EWC, SI and RWalk: one solver whose important weights are pulled back to where the past left them.

    loss of the task + strength / 2 * sum_i importance_i (theta_i - anchor_i)^2

They differ in how importance is found (`Watch`), and in nothing else. With `samples` real images stored per class, each
is the "-S" of Chaudhry et al. 2018; without, it keeps to the strict protocol, and fails there: a penalty cannot teach
a solver to tell an old class from a new one that it never saw beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from engram.config import demand
from engram.data.stream import Task
from engram.memory.exemplars import Exemplars, evenly, pick
from engram.methods.importance import Weights, pull, widen
from engram.methods.learner import SILENT, Observer, State, Surroundings
from engram.methods.solver import Examples, Solver
from engram.seeding import generator


@dataclass(frozen=True)
class AnchoredSettings:
    """What the three have in common."""

    strength: float = 1.0
    """lambda: how hard important weights are held."""
    samples: int = 0
    """Real images stored per class, chosen at random; 0 is the strict setting."""

    def __post_init__(self) -> None:
        demand(self.strength >= 0, "method.strength", self.strength, "0 or more")
        demand(self.samples >= 0, "method.samples", self.samples, "0 or more")

    @property
    def stores_images(self) -> bool:
        """Whether this is the "-S" form."""
        return self.samples > 0


class Watch(Protocol):
    """Finds out, while and after a task is learned, how much each weight matters."""

    def begin(self, weights: Mapping[str, Tensor]) -> None:
        """A task starts from these weights."""
        ...

    def before_step(self, weights: Mapping[str, Tensor]) -> None:
        """The gradients of the task's loss are in place."""
        ...

    def after_step(self, weights: Mapping[str, Tensor]) -> None:
        """The weights have moved."""
        ...

    def end(self, net: nn.Module, examples: Examples, task: int) -> Weights:
        """The task is learned: the importance of every weight to all tasks so far."""
        ...

    def state(self) -> State: ...

    def load(self, state: State, device: torch.device) -> None: ...


class Anchored:
    """The learner."""

    def __init__(self, around: Surroundings, *, watch: Callable[[Surroundings], Watch]) -> None:
        self.around, self.settings = around, around.settings
        self.solver = Solver(around)
        self.watch = watch(around)
        self.anchor: Weights = {}
        """Where the last task left the weights."""
        self.importance: Weights = {}
        self.exemplars = Exemplars()

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        if not self.solver.clock.running:
            self.solver.begin(len(task.seen), task=task.index, images=len(task), start="warm")
            now = self._weights()
            for noted in (self.anchor, self.importance):
                noted.update({name: widen(noted[name], p) for name, p in now.items() if name in noted})
            self.watch.begin(now)
        self.solver.fit(
            lambda epoch: self._examples(task, epoch),
            task=task.index,
            observe=observe,
            before_step=self._before_step,
            after_step=lambda: self.watch.after_step(self._weights()),
        )
        self.solver.net.eval()
        self.importance = self.watch.end(self.solver.net, self._examples(task, self.around.training.epochs), task.index)
        self.anchor = {name: p.detach().clone() for name, p in self._weights().items()}
        self._store(task)
        observe.note("memory", bytes={"importance": self._bytes(), "exemplars": self.exemplars.bytes})

    def scores(self, images: Tensor) -> Tensor:
        return self.solver.scores(images)

    def _before_step(self) -> None:
        weights = self._weights()
        self.watch.before_step(weights)
        for name, importance in self.importance.items():
            p = weights[name]
            assert p.grad is not None
            p.grad += pull(p.detach(), self.anchor[name], importance, self.settings.strength)

    def _weights(self) -> Weights:
        return dict(self.solver.net.named_parameters())

    def _examples(self, task: Task, epoch: int) -> Examples:
        """The task's images; with stored ones, as many of every class seen."""
        if not self.exemplars.images:
            return task.images, task.targets
        return evenly(task, self.exemplars, generator=generator(self.around.seed, "examples", task.index, epoch))

    def _store(self, task: Task) -> None:
        for column in task.columns if self.settings.samples else []:
            rows = torch.nonzero(task.targets == column).squeeze(1)
            chosen = pick(self.settings.samples, len(rows), generator=generator(self.around.seed, "store", column))
            self.exemplars.add(column, task.images[rows[chosen]])

    def _bytes(self) -> int:
        return 4 * sum(value.numel() for noted in (self.anchor, self.importance) for value in noted.values())

    def state(self) -> State:
        return {
            "solver": self.solver.state(),
            "anchor": dict(self.anchor),
            "importance": dict(self.importance),
            "watch": self.watch.state(),
            "exemplars": self.exemplars.state(),
        }

    def load(self, state: State) -> None:
        device = self.around.device
        self.solver.load(state["solver"])
        self.anchor = {name: value.to(device) for name, value in state["anchor"].items()}
        self.importance = {name: value.to(device) for name, value in state["importance"].items()}
        self.watch.load(state["watch"], device)
        self.exemplars = Exemplars.of(state["exemplars"])
