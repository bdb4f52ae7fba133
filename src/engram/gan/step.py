"""One step of a GAN, the same for DGM and the generative baselines.

    critic      E[D(fake)] - E[D(real)] + lambda_GP * penalty  (+ class term)
    generator   -E[D(fake)] + lambda_aux * class term on fakes + whatever the method adds

One batch of fakes serves both, the critic first: the generator's graph is built once. What a method adds to the
generator's half (masks and gates, an alignment, a penalty on weights that matter) comes in through a `GeneratorHook`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram import distributed
from engram.context import Context
from engram.gan.settings import CriticSettings, GanMethodSettings
from engram.masking.losses import generator_loss, interpolate
from engram.nets.architectures import chosen, critic_trunk
from engram.nets.critic import Critic, CriticBatch, Replayed
from engram.nets.critic_backward import TRUNKS, WrittenOutCritic
from engram.seeding import generator as named_generator

Optimisers = dict[str, torch.optim.Optimizer]
"""Of the `critic` and of the `generator`."""


@dataclass(frozen=True)
class Term:
    """One more term of the generator's loss."""

    name: str
    value: Tensor
    weight: float = 1.0


class GeneratorHook(Protocol):
    """What a method does around the generator's half of a step."""

    def terms(self) -> Sequence[Term]:
        """To be added to the generator's loss."""
        ...

    def after_backward(self) -> None:
        """The gradients are in place and may be changed."""
        ...

    def after_step(self) -> None:
        """The weights have moved."""
        ...


@dataclass(frozen=True)
class GanBatch:
    """A step's images (B, C, H, W) in [-1, 1], or scaled vectors (B, D); with several processes, this one's rows."""

    real: Tensor
    fake: Tensor
    """Still with the generator's graph."""
    u: Tensor
    """(B,) where the interpolates lie, 0 to 1."""
    rows: int
    """Of the whole batch, over all processes."""
    targets: Tensor | None = None
    """Classes of the real images, for the critic; None: no class term."""
    fake_targets: Tensor | None = None
    """Classes of the fakes, for the generator; None: no class term."""
    replayed: Replayed | None = None
    """Images of past classes, for the critic's class term."""


def gan_step(
    critic: Critic,
    generator: nn.Module,
    optimisers: Optimisers,
    batch: GanBatch,
    settings: GanMethodSettings,
    hook: GeneratorHook,
) -> Mapping[str, Tensor]:
    """The critic's step, then the generator's; the losses by name."""
    terms = critic.backward(_critic_batch(batch, settings.critic))
    optimisers["critic"].step()
    scores, answers = critic.held(batch.fake)
    loss = generator_loss(scores)
    losses = {"critic": terms.adversarial, "generator": loss}
    added = []
    if batch.fake_targets is not None and settings.gan.lambda_aux:
        added.append(Term("class", F.cross_entropy(answers, batch.fake_targets), settings.gan.lambda_aux))
    for term in (*added, *hook.terms()):
        losses[term.name] = term.value
        loss = loss + term.weight * term.value
    optimisers["generator"].zero_grad()
    distributed.backward(loss, generator.parameters(), rows=batch.rows)
    hook.after_backward()
    optimisers["generator"].step()
    hook.after_step()
    return distributed.mean(losses, rows=batch.rows)


def _critic_batch(batch: GanBatch, settings: CriticSettings) -> CriticBatch:
    """The penalty at every `penalty_stride`-th interpolate of the whole batch."""
    chosen, more = distributed.every(settings.penalty_stride, batch.rows)
    fake = batch.fake.detach()
    return CriticBatch(
        real=batch.real,
        fake=fake,
        interpolates=interpolate(batch.real[chosen], fake[chosen], batch.u[chosen]),
        penalty_weight=settings.lambda_gp * more,
        rows=batch.rows,
        targets=batch.targets,
        replayed=batch.replayed,
    )


def critic_name(ctx: Context[GanMethodSettings]) -> str:
    """The architecture of the critic: the one that is set, or the one that goes with the generator."""
    own, generator = ctx.settings.critic.architecture, ctx.settings.generator.architecture
    return chosen("generator", generator, ctx.shape) if own == "auto" else chosen("critic", own, ctx.shape)


def new_critic(ctx: Context[GanMethodSettings], classes: int, task: int) -> Critic:
    """A fresh critic for a task, which tells so many classes apart."""
    settings, draws = ctx.settings, named_generator(ctx.seed, "critic", task)
    own = settings.critic
    trunk = critic_trunk(critic_name(ctx), ctx.shape, width=own.width, kernel=own.kernel, generator=draws)
    kind = WrittenOutCritic if isinstance(trunk, TRUNKS) and ctx.precision == "float32" else Critic
    critic = kind(trunk, classes, generator=draws, autocast=ctx.autocast).to(ctx.device)
    return critic.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def gan_optimisers(settings: GanMethodSettings, **parameters: Iterable[nn.Parameter]) -> Optimisers:
    """Adam for each of the networks, by name."""
    own = settings.gan
    return {
        name: torch.optim.Adam(some, lr=own.learning_rate, betas=(own.beta1, BETA2), fused=True)
        for name, some in parameters.items()
    }


BETA2 = 0.999
"""Decay of Adam's mean of squared gradients."""


def set_rate(optimisers: Optimisers, rate: float) -> None:
    """The learning rate of all."""
    for optimiser in optimisers.values():
        for group in optimiser.param_groups:
            group["lr"] = rate
