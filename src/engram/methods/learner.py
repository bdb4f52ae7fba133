"""What every method is to the rest of the house: a `Learner`; what it is given: `Surroundings`, `Task`s, an `Observer`.

A learner is told the shape of the images and its own settings. Nothing tells it how many tasks or classes are to come.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from engram.config import TrainingConfig
from engram.data.stream import Task

State = dict[str, Any]
"""A tree of dictionaries with text keys; its leaves are tensors or plain JSON values."""


@dataclass(frozen=True)
class Surroundings:
    """All that a learner knows before its first task."""

    channels: int
    training: TrainingConfig
    settings: Any
    """The method's own dataclass."""
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: Literal["float32", "bfloat16"] = "float32"

    def lowered(self) -> contextlib.AbstractContextManager[object]:
        """Around a forward pass of training: it is computed in the lower precision, where that is asked for.

        What comes out of the pass is then to be made float32, and losses, penalties, weights, masks and whatever is
        kept or told is computed outside of it.
        """
        if self.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


class Observer(Protocol):
    """Whom a learner tells how it is getting on. `batch` and `epoch` may save the learner, and may stop it."""

    def batch(self, clock: Clock) -> None:
        """A step is done and the clock stands at the next one."""
        ...

    def epoch(self, losses: Mapping[str, float]) -> None:
        """An epoch is done; its mean losses."""
        ...

    def note(self, kind: str, **facts: Any) -> None:
        """A fact for the records. The same facts for the same seed: no clock times."""
        ...


class Silent:
    """An observer that does nothing, for use as a library."""

    def batch(self, clock: Clock) -> None:
        pass

    def epoch(self, losses: Mapping[str, float]) -> None:
        pass

    def note(self, kind: str, **facts: Any) -> None:
        pass


SILENT = Silent()


class Learner(Protocol):
    """A method at work."""

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        """Learn the task, or go on with it where `load` put the learner in the middle of it."""
        ...

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, 32, 32) uint8 -> (B, classes seen), columns in order of appearance. No task label."""
        ...

    def state(self) -> State:
        """Everything that the rest of the run depends on, in the middle of a task too."""
        ...

    def load(self, state: State) -> None:
        """Take over a state; the learner was built with the same surroundings."""
        ...


@dataclass(frozen=True)
class Method:
    """One line of the registry."""

    build: Callable[[Surroundings], Learner]
    settings: type
    """The method's own configuration."""
    summary: str
    stores: str
    """What it keeps of past tasks."""
    source: str
    """The publication it comes from."""
    strict: bool = True
    """Keeps to the strict protocol: no real data of past tasks."""
    bound: Literal["upper", "lower"] | None = None
    """A yardstick rather than a contender."""

    def is_strict(self, settings: Any) -> bool:
        """Strict, unless the settings relax it by storing real images."""
        return self.strict and not getattr(settings, "stores_images", False)

    @property
    def given_all_data(self) -> bool:
        """Joint training alone: every task brings the images of all classes so far."""
        return self.bound == "upper"


@dataclass
class Clock:
    """Where a learner stands within its task; part of its state."""

    epochs: int = 0
    """How many epochs this task takes. 0: no task is under way."""
    batches: int = 0
    """How many batches an epoch has."""
    epoch: int = 0
    batch: int = 0
    begins: float = 0.0
    ends: float | None = None
    """Which part of the task this clock covers, for the display; None: to the end."""
    totals: dict[str, torch.Tensor] = field(default_factory=dict)
    """Sums of the losses over this epoch's batches so far, kept where the losses are to avoid waiting for a device."""

    @property
    def running(self) -> bool:
        return self.epochs > 0

    @property
    def share(self) -> float:
        """How much of this clock's epochs is done, 0 to 1."""
        return (self.epoch + self.batch / self.batches) / self.epochs

    @property
    def share_of_task(self) -> float:
        """How much of the task is done, 0 to 1, where the clock covers a part of it."""
        return self.begins + (1 - self.begins if self.ends is None else self.ends - self.begins) * self.share

    def means(self) -> dict[str, float]:
        """Mean losses over this epoch's batches so far."""
        return {name: total.item() / max(self.batch, 1) for name, total in self.totals.items()}

    def state(self) -> State:
        names = ("epochs", "batches", "epoch", "batch", "begins", "ends")
        return {"counts": {name: getattr(self, name) for name in names}, "totals": dict(self.totals)}

    @classmethod
    def of(cls, state: State, device: torch.device) -> Clock:
        totals = {name: total.to(device) for name, total in state["totals"].items()}
        return cls(**state["counts"], totals=totals)


def tick(clock: Clock, step: Callable[[int, int], Mapping[str, torch.Tensor]], observe: Observer) -> None:
    """Run `step(epoch, batch)` from where the clock stands to the end of its last epoch."""
    while clock.epoch < clock.epochs:
        while clock.batch < clock.batches:
            for name, loss in step(clock.epoch, clock.batch).items():
                loss = loss.detach().double() if loss.device.type != "mps" else loss.detach()
                clock.totals[name] = clock.totals[name] + loss if name in clock.totals else loss
            clock.batch += 1
            if clock.batch < clock.batches:
                observe.batch(clock)
        means = clock.means()
        clock.epoch, clock.batch, clock.totals = clock.epoch + 1, 0, {}
        observe.epoch(means)
