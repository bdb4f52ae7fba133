"""What the generative baselines share: a conditional GAN that goes on learning from task to task.

The critic and the step are those of DGM (gan/step.py); the generator has a fixed size (nets/conditional_generator.py).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from engram import distributed
from engram.context import Context
from engram.data.examples import Examples
from engram.data.stream import Task
from engram.gan.average import WeightAverage
from engram.gan.oversampling import draw_rows, sampling_weights
from engram.gan.sampling import SAMPLE_BATCH, sample_images
from engram.gan.settings import BaselineSettings
from engram.gan.step import GanBatch, Optimisers, Term, gan_optimisers, gan_step, new_critic, set_rate
from engram.methods.classifier import load_optimiser, normalise, optimiser_state
from engram.methods.learner import State
from engram.nets.architectures import graph_for
from engram.nets.conditional_generator import ConditionalGenerator
from engram.seeding import generator

GAN_SHARE = 0.8
"""Roughly how much of a task's time goes into the GAN; for the display only."""

Alignment = Callable[[Tensor, Tensor, Tensor], Term]
"""(z, classes, fakes) of the images that the critic does not see -> a term of the generator's loss"""


class ConditionalGan:
    """A conditional generator, its critic and optimisers, and the generator as the task before left it."""

    def __init__(self, ctx: Context[BaselineSettings]) -> None:
        self.ctx, self.settings = ctx, ctx.settings
        self.generator = self._new_generator(generator(ctx.seed, "generator"))
        self.critic = new_critic(ctx, 0, 0)
        self.previous: ConditionalGenerator | None = None
        """While a task is learned: who replays the classes before it."""
        self.average = WeightAverage(self.settings.generator.ema_decay)
        self.optimisers = self._optimisers()
        self.weights: tuple[int, Tensor] | None = None
        """The task, and how often each of its images is shown; derived, not state."""

    def pick(self, task: Task, count: int, *, among: Tensor | None = None, generator: torch.Generator) -> Tensor:
        """Row numbers of the task's images, or of some `among` them, the rare ones more often."""
        if self.weights is None or self.weights[0] != task.index:
            power = self.settings.gan.rare_power
            self.weights = task.index, sampling_weights(task.images, task.targets, power)
        if among is None:
            return draw_rows(self.weights[1], count, generator=generator)
        shares = self.weights[1][among]
        return among[draw_rows(shares / shares.sum(), count, generator=generator)]

    def own_count(self, task: Task, total: int) -> int:
        """How many of so many images are the task's own; the rest is replayed."""
        if not task.index:
            return total
        return round(total * max(self.settings.gan.new_fraction, len(task.classes) / len(task.seen)))

    def begin(self, task: int, *, new: int, group: int, known: int, old: int = 0) -> None:
        """Room for new classes; a critic that tells `known` apart, the first `old` as before; fresh optimisers."""
        self.previous = copy.deepcopy(self.generator) if self.generator.classes else None
        if new:
            self.generator.grow(new, group=group)
        before, self.critic = self.critic, new_critic(self.ctx, known, task)
        if task and self.settings.critic.start == "warm":
            self.critic.take_over(before, classes=old)
        self.average.start(self.generator.parameters())
        self.optimisers = self._optimisers()

    def step(
        self,
        real: Tensor,
        targets: Tensor | None,
        classes: Tensor,
        *,
        share: float,
        draws: torch.Generator,
        others: Tensor | None = None,
        align: Alignment | None = None,
        edit: Callable[[], None] | None = None,
    ) -> Mapping[str, Tensor]:
        """One step of critic and generator, on one batch of fakes of the given `classes`.

        real (B, C, H, W) uint8; `targets`: their classes for the critic, or None for no class term. `share` of the task
        is done. `others`: classes of as many more fakes, which the critic does not see and `align` makes a term of.
        `edit` may change the generator's gradients before its step.
        """
        settings, device = self.settings, self.ctx.device
        # level, then down to 0 in a straight line
        set_rate(self.optimisers, settings.gan.learning_rate * min(1.0, 2 * (1 - share)))
        size, batches = len(classes), [classes] if others is None else [classes, others]
        noise = torch.randn(size * len(batches), settings.generator.latent_dim, generator=draws)
        z = torch.cat([distributed.own(some) for some in torch.split(noise, size)]).to(device)
        classes = torch.cat([distributed.own(some) for some in batches]).to(device)
        u = distributed.own(torch.rand(size, generator=draws))
        with self.ctx.autocast():
            fakes = self.generator(z, classes)
        fakes = fakes.float()
        real = normalise(distributed.own(real).to(device))
        targets = distributed.own(targets).to(device) if targets is not None else None
        shown, rest = slice(len(real)), slice(len(real), None)
        term = None if align is None else align(z[rest], classes[rest], fakes[rest])
        batch = GanBatch(real, fakes[shown], u, rows=size, targets=targets, fake_targets=targets)
        hook = _Hook(self, term, edit)
        return gan_step(self.critic, self.generator, self.optimisers, batch, settings, hook)

    @torch.no_grad()
    def finish(self, task: int, mix: Tensor, *, group: int) -> None:
        """The averaged weights in place, and the statistics that go with them."""
        self.average.put(self.generator.parameters())
        draws = generator(self.ctx.seed, "settle", task)
        self.generator.settle(mix, group=group, batches=self.settings.generator.bn_batches, generator=draws)
        self.previous = None

    @property
    def bytes(self) -> dict[str, int]:
        """What the next task finds, by part, as it would lie on disc."""
        kept = {"generator": sum(t.numel() * t.element_size() for t in self.generator.state_dict().values())}
        return {**kept, "critic": self.critic.bytes} if self.settings.critic.start == "warm" else kept

    def state(self) -> State:
        """For a checkpoint."""
        state: State = {
            "generator": generator_state(self.generator),
            "critic": {"known": self.critic.classes.classes, "net": dict(self.critic.state_dict())},
            "optimisers": {name: optimiser_state(optimiser) for name, optimiser in self.optimisers.items()},
            "average": self.average.state(),
        }
        if self.previous is not None:
            state["previous"] = generator_state(self.previous)
        return state

    def load(self, state: State) -> None:
        """Back from a checkpoint."""
        self.generator = self.generator_of(state["generator"])
        self.critic = new_critic(self.ctx, state["critic"]["known"], 0)
        self.critic.load_state_dict(state["critic"]["net"])
        self.previous = self.generator_of(state["previous"]) if "previous" in state else None
        self.average.load(state["average"], self.generator.parameters())
        self.optimisers = self._optimisers()
        for name, optimiser in self.optimisers.items():
            load_optimiser(optimiser, state["optimisers"][name])

    def _optimisers(self) -> Optimisers:
        return gan_optimisers(self.settings, critic=self.critic.parameters(), generator=self.generator.parameters())

    def _new_generator(self, draws: torch.Generator) -> ConditionalGenerator:
        own, shape = self.settings.generator, self.ctx.shape
        return ConditionalGenerator(
            graph_for(own.architecture, shape),
            shape[0],
            width=own.width,
            latent_dim=own.latent_dim,
            generator=draws,
        ).to(self.ctx.device)

    def generator_of(self, state: State) -> ConditionalGenerator:
        """A generator back from its `generator_state`."""
        fresh = self._new_generator(torch.Generator())
        for group in state["groups"]:
            fresh.grow(1, group=group)
        fresh.load_state_dict(state["net"])
        return fresh


class _Hook:
    """Around the generator's half: the term of alignment, whoever edits the gradients, and the moving average."""

    def __init__(self, gan: ConditionalGan, term: Term | None, edit: Callable[[], None] | None) -> None:
        self.gan, self.term, self.edit = gan, term, edit

    def terms(self) -> Sequence[Term]:
        return [] if self.term is None else [self.term]

    def after_backward(self) -> None:
        if self.edit is not None:
            self.edit()

    def after_step(self) -> None:
        self.gan.average.update(self.gan.generator.parameters())


def generator_state(net: ConditionalGenerator) -> State:
    """For a checkpoint."""
    return {"groups": net.group_of.tolist(), "net": dict(net.state_dict())}


def draw(net: ConditionalGenerator, classes: Tensor, *, generator: torch.Generator) -> Tensor:
    """(N, C, H, W) uint8 images of the given classes (N,), with settled statistics."""
    device = net.bias.device
    return sample_images(
        lambda z, rows: net(z, classes[rows].to(device), settled=True),
        len(classes),
        net.graph.example_shape(len(net.bias)),
        latent_dim=net.latent_dim,
        batch_size=SAMPLE_BATCH,
        device=device,
        generator=generator,
    )


class EpochPool:
    """An epoch's images for the critic, drawn once and taken batch by batch in a random order; derived, not state."""

    def __init__(self) -> None:
        self.epoch, self.examples = -1, Examples(torch.empty(0), torch.empty(0))

    def batch(
        self, epoch: int, batch: int, size: int, fill: Callable[[], Examples], order: torch.Generator
    ) -> Examples:
        """The rows of one batch; `fill` draws an epoch's examples, `order` shuffles them."""
        if self.epoch != epoch:
            examples = fill()
            self.epoch, self.examples = epoch, examples.rows(torch.randperm(len(examples), generator=order))
        rows = torch.arange(batch * size, (batch + 1) * size)
        return self.examples.rows(rows)
