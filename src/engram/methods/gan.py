"""What the generative rivals share: a conditional GAN that goes on learning from task to task, and draws what it knows.

The critic and its steps are those of DGM (adversarial.py); the generator has a fixed size (nets/conditional.py).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from engram import parallel
from engram.config import demand
from engram.data.stream import Task
from engram.methods.adversarial import critic_gradients, gan_optimisers, generator_terms, new_critic
from engram.methods.learner import State, Surroundings
from engram.methods.rarity import draw_rows, odds
from engram.methods.solver import Examples, load_optimiser, normalise, optimiser_state
from engram.nets.conditional import ConditionalGenerator
from engram.plastic.wiring import WIRINGS
from engram.seeding import generator

SAMPLE_BATCH = 256

GAN_SHARE = 0.8
"""Roughly how much of a task's time goes into the GAN; for the display only."""


@dataclass(frozen=True)
class GanSettings:
    """Settings of a rival's GAN and of the solver that learns from it."""

    network: Literal["dcgan", "residual"] = "dcgan"
    """Generator and critic, as DGM's."""
    critic: Literal["auto", "dcgan", "residual", "resnet18"] = "auto"
    """As DGM's."""
    width: int = 40
    """n: the generator has 4n, 2n and n units (residual: n everywhere), for good."""
    noise: int = 100
    """Length of the noise vector."""
    epochs: int = 15
    """Rounds of GAN training per task: with them a run takes as long as DGM's own."""
    steps: int = 50
    """Steps per round, for each class of the task."""
    batch_size: int = 32
    """Images per step."""
    rare: float = 0.0
    """How much more often the critic is shown real images that are unlike the rest of their class, as in DGM."""
    new_share: float = 0.0
    """Least share of the task's own images in what the critic is shown. By its number of classes alone, the tenth class
    would have a tenth of the steps to be learned in, while the other nine have been learned before."""
    learning_rate: float = 2e-3
    """Of generator and critic (Adam); falls to 0 over the second half of the task."""
    beta1: float = 0.5
    """Adam's momentum, of generator and critic."""
    beta2: float = 0.999
    """Decay of Adam's mean of squared gradients."""
    lambda_gp: float = 1.0
    """Weight of the gradient penalty."""
    lambda_aux: float = 1.0
    """Weight of the class term in the generator's loss."""
    critic_width: int = 24
    """w: as DGM's."""
    critic_kernel: int = 4
    """As DGM's."""
    critic_start: Literal["warm", "fresh"] = "warm"
    """The critic at a new task: it goes on, as these methods' authors let it, or starts anew, as DGM's does."""
    average: float = 0.99
    """Decay of the moving average of the generator's weights, which is what remains; 0 for none."""
    statistics: int = 50
    """Batches of noise from which the normalisation is estimated at the end of a task."""
    replay: int = 12800
    """Images per epoch of the solver's training, evenly over all classes."""
    keep: float = 0.8
    """Share of the generated images that the solver learns from, after its first epoch: those it is surest of."""

    def __post_init__(self) -> None:
        for name in ("width", "noise", "epochs", "steps", "critic_width", "statistics"):
            demand(getattr(self, name) >= 1, f"method.{name}", getattr(self, name), "1 or more")
        for name in ("batch_size", "replay"):
            demand(getattr(self, name) >= 2, f"method.{name}", getattr(self, name), "2 or more")
        for name in ("rare", "lambda_gp", "lambda_aux"):
            demand(getattr(self, name) >= 0, f"method.{name}", getattr(self, name), "0 or more")
        demand(0 < self.learning_rate < 1, "method.learning_rate", self.learning_rate, "above 0 and below 1")
        for name in ("average", "beta1", "beta2"):
            demand(0 <= getattr(self, name) < 1, f"method.{name}", getattr(self, name), "0 or more and below 1")
        demand(self.critic_kernel in (3, 4, 5), "method.critic_kernel", self.critic_kernel, "3, 4 or 5")
        demand(0 <= self.new_share < 1, "method.new_share", self.new_share, "0 or more and below 1")
        demand(0 < self.keep <= 1, "method.keep", self.keep, "above 0 and at most 1")


class Gan:
    """A conditional generator, its critic and optimisers, and the generator as the task before left it."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.settings: GanSettings = around.settings
        self.generator = ConditionalGenerator(
            WIRINGS[self.settings.network],
            around.channels,
            width=self.settings.width,
            noise=self.settings.noise,
            generator=generator(around.seed, "generator"),
        ).to(around.device)
        self.critic = new_critic(around, 0, 0)
        self.previous: ConditionalGenerator | None = None
        """While a task is learned: who replays the classes before it."""
        self.averaged: list[Tensor] = []
        self.optimisers = self._optimisers()
        self.odds: tuple[int, Tensor] | None = None
        """The task, and how often each of its images is drawn; derived, not state."""

    def pick(self, task: Task, count: int, *, among: Tensor | None = None, generator: torch.Generator) -> Tensor:
        """Row numbers of the task's images, or of some `among` them, the rare ones more often."""
        if self.odds is None or self.odds[0] != task.index:
            self.odds = task.index, odds(task.images, task.targets, self.settings.rare)
        if among is None:
            return draw_rows(self.odds[1], count, generator=generator)
        shares = self.odds[1][among]
        return among[draw_rows(shares / shares.sum(), count, generator=generator)]

    def own_count(self, task: Task, total: int) -> int:
        """How many of so many images are the task's own; the rest is replayed."""
        if not task.index:
            return total
        return round(total * max(self.settings.new_share, len(task.classes) / len(task.seen)))

    def begin(self, task: int, *, new: int, group: int, known: int, old: int = 0) -> None:
        """Room for new classes; a critic that tells `known` apart, the first `old` as before; fresh optimisers."""
        self.previous = copy.deepcopy(self.generator) if self.generator.classes else None
        if new:
            self.generator.grow(new, group=group)
        before, self.critic = self.critic, new_critic(self.around, known, task)
        if task and self.settings.critic_start == "warm":
            self.critic.take_over(before, classes=old)
        self.averaged = [p.detach().clone() for p in self.generator.parameters()] if self.settings.average else []
        self.optimisers = self._optimisers()

    def step(
        self,
        real: Tensor,
        targets: Tensor | None,
        columns: Tensor,
        *,
        share: float,
        draws: torch.Generator,
        others: Tensor | None = None,
        extra: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
        edit: Callable[[], None] | None = None,
    ) -> Mapping[str, Tensor]:
        """One step of critic and generator, on one batch of fakes of the classes `columns`.

        real (B, C, H, W) uint8; `targets`: their classes for the critic, or None for no class term. `share` of the task
        is done. `others`: classes of as many more fakes, which the critic does not see; `extra(z, classes, fakes)` of
        these is added to the generator's loss. `edit` may change the generator's gradients before its step.
        """
        settings, device = self.settings, self.around.device
        self._set_rate(share)
        size, batches = len(columns), [columns] if others is None else [columns, others]
        noise = torch.split(torch.randn(size * len(batches), settings.noise, generator=draws), size)
        z = torch.cat([parallel.own(some) for some in noise]).to(device)
        columns = torch.cat([parallel.own(some) for some in batches]).to(device)
        u = parallel.own(torch.rand(size, generator=draws))
        with self.around.lowered():
            all_fakes = self.generator(z, columns)
        all_fakes = all_fakes.float()
        real = normalise(parallel.own(real).to(device))
        fake, rest = all_fakes[: len(real)], slice(len(real), None)
        targets = parallel.own(targets).to(device) if targets is not None else None
        terms = critic_gradients(
            self.around,
            self.critic,
            real,
            fake.detach(),
            targets=targets,
            u=u,
            penalty_weight=settings.lambda_gp,
            rows=size,
        )
        self.optimisers["critic"].step()

        adversarial, aux = generator_terms(self.around, self.critic, fake, targets)
        losses = {"critic": terms.adversarial, "generator": adversarial}
        loss = adversarial
        if aux is not None:
            loss = loss + settings.lambda_aux * aux
            losses["class"] = aux
        if extra is not None:
            losses["extra"] = extra(z[rest], columns[rest], all_fakes[rest])
            loss = loss + losses["extra"]
        self.optimisers["generator"].zero_grad()
        parallel.backward(loss, self.generator.parameters(), rows=size)
        if edit is not None:
            edit()
        self.optimisers["generator"].step()
        with torch.no_grad():
            for mean, now in zip(self.averaged, self.generator.parameters() if self.averaged else [], strict=True):
                mean.lerp_(now, 1 - settings.average)
        return parallel.mean(losses, rows=size)

    def _set_rate(self, share: float) -> None:
        """Level, then down to 0 in a straight line."""
        for optimiser in self.optimisers.values():
            for group in optimiser.param_groups:
                group["lr"] = self.settings.learning_rate * min(1.0, 2 * (1 - share))

    @torch.no_grad()
    def finish(self, task: int, mix: Tensor, *, group: int) -> None:
        """The averaged weights in place, and the statistics that go with them."""
        for now, mean in zip(self.generator.parameters() if self.averaged else [], self.averaged, strict=True):
            now.copy_(mean)
        draws = generator(self.around.seed, "settle", task)
        self.generator.settle(mix, group=group, batches=self.settings.statistics, generator=draws)
        self.previous, self.averaged = None, []

    @property
    def bytes(self) -> dict[str, int]:
        """What the next task finds, by part, as it would lie on disc."""
        kept = {"generator": sum(t.numel() * t.element_size() for t in self.generator.state_dict().values())}
        return {**kept, "critic": self.critic.bytes} if self.settings.critic_start == "warm" else kept

    def state(self) -> State:
        state: State = {
            "generator": net_state(self.generator),
            "critic": {"known": self.critic.classes.classes, "net": dict(self.critic.state_dict())},
            "optimisers": {name: optimiser_state(optimiser) for name, optimiser in self.optimisers.items()},
            "averaged": {str(number): mean for number, mean in enumerate(self.averaged)},
        }
        if self.previous is not None:
            state["previous"] = net_state(self.previous)
        return state

    def load(self, state: State) -> None:
        self.generator = self.net_of(state["generator"])
        self.critic = new_critic(self.around, state["critic"]["known"], 0)
        self.critic.load_state_dict(state["critic"]["net"])
        self.previous = self.net_of(state["previous"]) if "previous" in state else None
        self.averaged = [mean.to(self.around.device) for mean in state["averaged"].values()]
        self.optimisers = self._optimisers()
        for name, optimiser in self.optimisers.items():
            load_optimiser(optimiser, state["optimisers"][name])

    def _optimisers(self) -> dict[str, torch.optim.Optimizer]:
        return gan_optimisers(self.around, critic=self.critic.parameters(), generator=self.generator.parameters())

    def net_of(self, state: State) -> ConditionalGenerator:
        """A generator back from its `net_state`."""
        fresh = ConditionalGenerator(
            WIRINGS[self.settings.network],
            self.around.channels,
            width=self.settings.width,
            noise=self.settings.noise,
            generator=torch.Generator(),
        ).to(self.around.device)
        for group in state["groups"]:
            fresh.grow(1, group=group)
        fresh.load_state_dict(state["net"])
        return fresh


def net_state(net: ConditionalGenerator) -> State:
    return {"groups": net.group_of.tolist(), "net": dict(net.state_dict())}


@torch.inference_mode()
def draw(net: ConditionalGenerator, columns: Tensor, *, generator: torch.Generator) -> Tensor:
    """(N, C, 32, 32) uint8 images of the given classes, with settled statistics, in large batches."""
    device = net.bias.device
    out = torch.empty(len(columns), len(net.bias), 32, 32, dtype=torch.uint8)
    for start in range(0, len(columns), SAMPLE_BATCH):
        some = columns[start : start + SAMPLE_BATCH]
        z = torch.randn(len(some), net.noise, generator=generator)
        images = net(z.to(device), some.to(device), settled=True)
        out[start : start + len(some)] = images.add_(1).mul_(127.5).round_().to(torch.uint8).cpu()
    return out


def batch_of(examples: Examples, order: Tensor, batch: int, size: int) -> Examples:
    """The rows of one batch, in an order drawn for the epoch."""
    rows = order[batch * size : (batch + 1) * size]
    return examples[0][rows], examples[1][rows]
