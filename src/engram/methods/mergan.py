"""Memory Replay GAN (Wu et al. 2018): one conditional GAN, kept from forgetting by what it drew before the task.

    mergan      joint retraining: the critic sees the task's real images and replayed ones of all classes before
    mergan-ra   replay alignment: the critic sees the task alone; for the same noise and an old class the generator
                must draw what it drew before, pixel by pixel

The solver learns every class from generated images, as DGM's does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from engram.config import demand
from engram.data.stream import Task
from engram.methods.conditioned import Conditioned, ConditionedSettings
from engram.methods.gan import batch_of, draw
from engram.methods.learner import Method, State, Surroundings
from engram.methods.solver import Examples
from engram.seeding import generator


@dataclass(frozen=True)
class AlignmentSettings(ConditionedSettings):
    """Settings of replay alignment."""

    lambda_ra: float = 100.0
    """Weight of the mean squared difference to the old drawings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand(self.lambda_ra >= 0, "method.lambda_ra", self.lambda_ra, "0 or more")


class MeRGAN(Conditioned):
    """The learner."""

    def __init__(self, around: Surroundings, *, form: Literal["replay", "alignment"]) -> None:
        super().__init__(around)
        self.form = form
        self.pool: tuple[int, Examples, Tensor] | None = None
        """An epoch's images and their order; derived, not state."""

    def begin(self, task: Task) -> None:
        old, new = task.columns[0] if self.form == "replay" else 0, len(task.classes)
        self.gan.begin(task.index, new=new, group=0, known=old + new, old=old)

    def step(self, task: Task, epoch: int, batch: int) -> Mapping[str, Tensor]:
        return (self._replay_step if self.form == "replay" else self._alignment_step)(task, epoch, batch)

    def end(self, task: Task) -> dict[str, int]:
        self.gan.finish(task.index, self._mix(task), group=0)
        self.pool = None
        return {}

    def _replay_step(self, task: Task, epoch: int, batch: int) -> Mapping[str, Tensor]:
        """Real images of the task and replayed ones of every class before."""
        seed, size = self.around.seed, self.settings.batch_size
        draws = generator(seed, "gan", task.index, epoch, batch)
        if self.pool is None or self.pool[0] != epoch:
            examples = self._examples(task, epoch, size * self.clock.batches)
            order = torch.randperm(len(examples[0]), generator=generator(seed, "pool", task.index, epoch))
            self.pool = epoch, examples, order
        real, columns = batch_of(self.pool[1], self.pool[2], batch, size)
        targets = columns if len(task.seen) > 1 else None
        return self.gan.step(real, targets, columns, share=self.clock.share, draws=draws)

    def _examples(self, task: Task, epoch: int, total: int) -> Examples:
        draws = generator(self.around.seed, "replay", task.index, epoch)
        targets = self._shares(task, total)
        images = torch.empty(total, *task.images.shape[1:], dtype=torch.uint8)
        for column in task.columns:
            rows, own = torch.nonzero(task.targets == column).squeeze(1), targets == column
            images[own] = task.images[self.gan.pick(task, int(own.sum()), among=rows, generator=draws)]
        past = targets < task.columns[0]
        if self.gan.previous is not None:
            images[past] = draw(self.gan.previous, targets[past], generator=draws)
        return images, targets

    def _shares(self, task: Task, total: int) -> Tensor:
        """(total,) classes, in the proportions in which the critic is shown them: old ones evenly, new ones evenly."""
        old, count = task.columns[0], self.gan.own_count(task, total)
        return torch.cat([torch.arange(total - count) % max(old, 1), old + torch.arange(count) % len(task.classes)])

    def _alignment_step(self, task: Task, epoch: int, batch: int) -> Mapping[str, Tensor]:
        """The critic sees the task's classes; the other half of the fakes are old classes, to be drawn as before."""
        size = self.settings.batch_size
        draws = generator(self.around.seed, "gan", task.index, epoch, batch)
        rows = self.gan.pick(task, size, generator=draws)
        columns = task.targets[rows]
        previous = self.gan.previous
        others = None if previous is None else torch.randint(task.columns[0], (size,), generator=draws)

        def apart(z: Tensor, classes: Tensor, fakes: Tensor) -> Tensor:
            assert previous is not None
            with torch.no_grad():
                before = previous(z, classes, settled=True)
            strength: float = self.around.settings.lambda_ra
            return strength * F.mse_loss(fakes, before)

        return self.gan.step(
            task.images[rows],
            columns - task.columns[0] if len(task.classes) > 1 else None,
            columns,
            share=self.clock.share,
            draws=draws,
            others=others,
            extra=apart if previous is not None else None,
        )

    def _mix(self, task: Task) -> Tensor:
        """Classes in the proportions of a batch."""
        if self.form == "replay":
            return self._shares(task, self.settings.batch_size * self.clock.batches)
        seen = torch.arange(len(task.seen))
        if task.index == 0:
            return seen
        past, new = seen[: task.columns[0]], seen[task.columns[0] :]
        return torch.cat([past.repeat(len(new)), new.repeat(len(past))])

    def load(self, state: State) -> None:
        super().load(state)
        self.pool = None


MERGAN = Method(
    build=partial(MeRGAN, form="replay"),
    settings=ConditionedSettings,
    summary="Memory Replay GAN, joint retraining with its own replay",
    stores="a generator of fixed size",
    source="Wu et al. 2018",
)

MERGAN_RA = Method(
    build=partial(MeRGAN, form="alignment"),
    settings=AlignmentSettings,
    summary="Memory Replay GAN, replay alignment",
    stores="a generator of fixed size",
    source="Wu et al. 2018",
)
