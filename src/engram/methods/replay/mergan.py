"""Memory Replay GAN (Wu et al. 2018): one conditional GAN, kept from forgetting by what it drew before the task.

    mergan      joint retraining: the critic sees the task's real images and replayed ones of all classes before
    mergan-ra   replay alignment: the critic sees the task alone; for the same noise and an old class the generator
                must draw what it drew before, pixel by pixel

The classifier learns every class from generated images, as DGM's does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from engram.config import MOST_WEIGHT, setting
from engram.context import Context
from engram.data.examples import Examples
from engram.data.stream import Task
from engram.gan.settings import BaselineGanSettings, ConditionalReplaySettings
from engram.gan.step import Term
from engram.kinds import blank
from engram.methods.classifier_phase import REPLAY_CLASSIFIER
from engram.methods.learner import Method, State
from engram.methods.replay.conditional_gan import EpochPool, draw
from engram.methods.replay.learner import ConditionalReplayLearner
from engram.seeding import generator


class MeRGAN(ConditionalReplayLearner[ConditionalReplaySettings]):
    """Joint retraining."""

    def __init__(self, ctx: Context[ConditionalReplaySettings]) -> None:
        super().__init__(ctx)
        self.pool = EpochPool()

    def begin(self, task: Task) -> None:
        """Room for the task's classes; the critic tells all classes apart."""
        old, new = task.class_indices[0], len(task.classes)
        self.gan.begin(task.index, new=new, group=0, known=old + new, old=old)

    def step(self, task: Task, epoch: int, batch: int) -> Mapping[str, Tensor]:
        """Real images of the task and replayed ones of every class before."""
        seed, size = self.ctx.seed, self.settings.gan.batch_size
        draws = generator(seed, "gan", task.index, epoch, batch)
        some = self.pool.batch(
            epoch,
            batch,
            size,
            lambda: self._examples(task, epoch, size * self.progress.batches),
            generator(seed, "pool", task.index, epoch),
        )
        targets = some.targets if len(task.seen) > 1 else None
        return self.gan.step(some.images, targets, some.targets, share=self.progress.share, draws=draws)

    def end(self, task: Task) -> dict[str, int]:
        """Statistics over classes in the proportions in which the critic was shown them."""
        mix = self._shares(task, self.settings.gan.batch_size * self.progress.batches)
        self.gan.finish(task.index, mix, group=0)
        self.pool = EpochPool()
        return {}

    def _examples(self, task: Task, epoch: int, total: int) -> Examples:
        draws = generator(self.ctx.seed, "replay", task.index, epoch)
        targets = self._shares(task, total)
        images = blank(total, task.shape)
        for index in task.class_indices:
            rows, own = torch.nonzero(task.targets == index).squeeze(1), targets == index
            images[own] = task.images[self.gan.pick(task, int(own.sum()), among=rows, generator=draws)]
        past = targets < task.class_indices[0]
        if self.gan.previous is not None:
            images[past] = draw(self.gan.previous, targets[past], generator=draws)
        return Examples(images, targets)

    def _shares(self, task: Task, total: int) -> Tensor:
        """(total,) classes, in the proportions in which the critic is shown them: old ones evenly, new ones evenly."""
        old, count = task.class_indices[0], self.gan.own_count(task, total)
        return torch.cat([torch.arange(total - count) % max(old, 1), old + torch.arange(count) % len(task.classes)])

    def load(self, state: State) -> None:
        """Back from a checkpoint."""
        super().load(state)
        self.pool = EpochPool()


@dataclass(frozen=True)
class AlignmentGanSettings(BaselineGanSettings):
    """Of a generator that must draw as before."""

    lambda_ra: float = setting(
        100.0, "weight of the mean squared difference to the old drawings", at_least=0, at_most=MOST_WEIGHT
    )


@dataclass(frozen=True)
class AlignmentSettings(ConditionalReplaySettings):
    """Groups of replay alignment."""

    gan: AlignmentGanSettings = AlignmentGanSettings()


class MeRGANAlignment(ConditionalReplayLearner[AlignmentSettings]):
    """Replay alignment."""

    def begin(self, task: Task) -> None:
        """Room for the task's classes; the critic tells these apart."""
        self.gan.begin(task.index, new=len(task.classes), group=0, known=len(task.classes))

    def step(self, task: Task, epoch: int, batch: int) -> Mapping[str, Tensor]:
        """The critic sees the task's classes; the other half of the fakes are old classes, to be drawn as before."""
        size = self.settings.gan.batch_size
        draws = generator(self.ctx.seed, "gan", task.index, epoch, batch)
        rows = self.gan.pick(task, size, generator=draws)
        classes = task.targets[rows]
        previous = self.gan.previous
        others = None if previous is None else torch.randint(task.class_indices[0], (size,), generator=draws)

        def align(z: Tensor, classes: Tensor, fakes: Tensor) -> Term:
            assert previous is not None
            with torch.no_grad():
                before = previous(z, classes, settled=True)
            return Term("alignment", F.mse_loss(fakes, before), self.settings.gan.lambda_ra)

        return self.gan.step(
            task.images[rows],
            classes - task.class_indices[0] if len(task.classes) > 1 else None,
            classes,
            share=self.progress.share,
            draws=draws,
            others=others,
            align=align if previous is not None else None,
        )

    def end(self, task: Task) -> dict[str, int]:
        """Statistics over old and new classes, half and half, as in a batch."""
        seen, old = torch.arange(len(task.seen)), task.class_indices[0]
        past, new = seen[:old], seen[old:]
        mix = torch.cat([past.repeat(len(new)), new.repeat(len(past))]) if task.index else seen
        self.gan.finish(task.index, mix, group=0)
        return {}


MERGAN = Method(
    build=MeRGAN,
    settings=ConditionalReplaySettings(gan=BaselineGanSettings(new_fraction=0.5)),
    classifier=REPLAY_CLASSIFIER,
    summary="Memory Replay GAN, joint retraining with its own replay",
    stores="a generator of fixed size",
    source="Wu et al. 2018",
    draws=True,
)

MERGAN_RA = Method(
    build=MeRGANAlignment,
    settings=AlignmentSettings(),
    classifier=REPLAY_CLASSIFIER,
    summary="Memory Replay GAN, replay alignment",
    stores="a generator of fixed size",
    source="Wu et al. 2018",
    draws=True,
)
