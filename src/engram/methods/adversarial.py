"""The critic's and the generator's steps, shared by the generative methods.

    critic      E[D(fake)] - E[D(real)] + lambda_GP * penalty  (+ class term)
    generator   -E[D(fake)] + lambda_aux * class term on fakes + whatever the method adds

One step draws one batch of fakes and uses it for both, the critic first: the generator's graph is built once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram import parallel
from engram.methods.learner import Surroundings
from engram.nets.dcgan import GrowingHead, Held, Trace, Trunk
from engram.nets.residual import ResidualTrunk, ResNet18
from engram.plastic.losses import between, critic_loss, generator_loss, slope_penalty
from engram.seeding import generator as named_generator

Lowered = Callable[[], contextlib.AbstractContextManager[object]]
"""`Surroundings.lowered`: the precision of forward passes. Losses and the penalty have their own, float32."""


class Critic(nn.Module):
    """A trunk without normalisation (a penalty per image forbids mixing images), one score, and class scores."""

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        network: str = "dcgan",
        width: int,
        kernel: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.trunk: Trunk | ResidualTrunk | ResNet18
        if network == "residual":
            self.trunk = ResidualTrunk(channels, width, generator=generator)
        elif network == "resnet18":
            self.trunk = ResNet18(channels, width, norm="none", generator=generator)
        else:
            self.trunk = Trunk(channels, width, kernel=kernel, norm="none", generator=generator)
        self.score = GrowingHead(self.trunk.features)
        self.score.grow(1, generator=generator)
        self.classes = GrowingHead(self.trunk.features)
        self.classes.grow(classes, generator=generator)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, 32, 32) -> scores (B,), class scores (B, classes)."""
        return self.heads(self.trunk(x))

    def heads(self, features: Tensor, *, held: bool = False) -> tuple[Tensor, Tensor]:
        """(B, features) -> scores (B,), class scores (B, classes); `held`: without gradients of their weights."""
        return self.score(features, held=held).squeeze(1), self.classes(features, held=held)

    @torch.no_grad()
    def take_over(self, other: Critic, *, classes: int) -> None:
        """Go on from another critic: its trunk, its score, and what it knows of the first classes."""
        self.trunk.load_state_dict(other.trunk.state_dict())
        self.score.load_state_dict(other.score.state_dict())
        self.classes.weight[:classes] = other.classes.weight[:classes]
        self.classes.bias[:classes] = other.classes.bias[:classes]

    def slope(self, x: Tensor) -> Tensor:
        """The gradient of each image's score with respect to it, (B, C, 32, 32), differentiable in the weights."""
        return self.trunk.pull_back(x, self.score.weight.expand(len(x), -1))

    @property
    def bytes(self) -> int:
        """As it would lie on disc."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state_dict().values())


def new_critic(around: Surroundings, known: int, task: int) -> Critic:
    """A fresh critic for a task, which tells `known` classes apart."""
    settings = around.settings
    critic = Critic(
        around.channels,
        known,
        network=settings.network if settings.critic == "auto" else settings.critic,
        width=settings.critic_width,
        kernel=settings.critic_kernel,
        generator=named_generator(around.seed, "critic", task),
    ).to(around.device)
    return critic.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def gan_optimisers(around: Surroundings, **parameters: Iterable[nn.Parameter]) -> dict[str, torch.optim.Optimizer]:
    """Adam for each of the networks, by name."""
    settings = around.settings
    return {
        name: torch.optim.Adam(some, lr=settings.learning_rate, betas=(settings.beta1, settings.beta2), fused=True)
        for name, some in parameters.items()
    }


@dataclass(frozen=True)
class CriticTerms:
    """What the critic's step adds up; None: not in this step."""

    adversarial: Tensor
    penalty: Tensor | None
    classes: Tensor | None

    @property
    def plain(self) -> Tensor:
        """All but the penalty."""
        return self.adversarial if self.classes is None else self.adversarial + self.classes


Labelled = tuple[Tensor, Tensor]
"""Images and their classes."""


def critic_gradients(
    around: Surroundings,
    critic: Critic,
    real: Tensor,
    fake: Tensor,
    *,
    targets: Tensor | None = None,
    replay: Labelled | None = None,
    u: Tensor,
    penalty_every: int = 1,
    penalty_weight: float,
    rows: int,
) -> CriticTerms:
    """Put the gradients of the critic's loss in place; `rows` is the whole batch, of which these images are a part.

    The terms are those of `critic_terms`, with the penalty taken on every so-manieth line of the whole batch. A chain
    of convolutions has its gradients written out (`Trace`).
    """
    chosen, more = parallel.every(penalty_every, rows)
    lines = between(real[chosen], fake[chosen], u[chosen])
    penalty_weight *= more
    critic.zero_grad()
    if isinstance(critic.trunk, Trunk) and around.precision == "float32":
        terms = _written_out(critic, real, fake, targets, replay, lines, penalty_weight=penalty_weight, rows=rows)
        parallel.add_up(critic.parameters())
        return terms
    terms = critic_terms(critic, real, fake, targets=targets, replay=replay, lines=lines, lowered=around.lowered)
    loss = terms.plain if terms.penalty is None else terms.plain + penalty_weight * terms.penalty
    parallel.backward(loss, critic.parameters(), rows=rows)
    return terms


def _written_out(
    critic: Critic,
    real: Tensor,
    fake: Tensor,
    targets: Tensor | None,
    replay: Labelled | None,
    lines: Tensor,
    *,
    penalty_weight: float,
    rows: int,
) -> CriticTerms:
    assert isinstance(critic.trunk, Trunk)
    images = [real, fake] if replay is None else [real, fake, replay[0]]
    plain = sum(map(len, images))
    trace = Trace(critic.trunk, torch.cat([*images, lines]), slopes=len(lines))
    features, share = trace.features, parallel.share(rows)
    with torch.no_grad():
        answers = critic.heads(features[:plain])
    scores, classes = (answer.requires_grad_() for answer in answers)
    terms = _terms(scores, classes, count=len(real), targets=targets, replayed=None if replay is None else replay[1])
    told = [(critic.score, scores), (critic.classes, classes)] if targets is not None else [(critic.score, scores)]
    gradients = torch.autograd.grad(terms.plain * share, [answer for _, answer in told])
    direction = torch.zeros_like(features)
    direction[plain:] = critic.score.weight.detach()
    for (head, _), gradient in zip(told, gradients, strict=True):
        head.put_gradients(features[:plain], gradient.view(plain, -1))
        direction[:plain].addmm_(gradient.view(plain, -1), head.weight.detach())
    slope = trace.back(direction).requires_grad_()
    if len(lines):
        penalty = slope_penalty(slope)
        (gradient,) = torch.autograd.grad(penalty * (penalty_weight * share), slope)
        assert critic.score.weight.grad is not None
        critic.score.weight.grad += trace.forth(gradient).sum(0)
        terms = replace(terms, penalty=penalty)
    trace.put_gradients()
    return terms


def critic_terms(
    critic: Critic,
    real: Tensor,
    fake: Tensor,
    *,
    targets: Tensor | None = None,
    replay: Labelled | None = None,
    lines: Tensor,
    lowered: Lowered = contextlib.nullcontext,
) -> CriticTerms:
    """Real, fake and replayed images in one pass.

    The class term, where `targets` of the real images are given, is over real and replayed ones. `lines`: images at
    which the penalty is taken, if any.
    """
    old, old_targets = replay if replay is not None else (real[:0], None)
    with lowered():
        scores, classes = critic(torch.cat([real, fake, old]))
    terms = _terms(scores.float(), classes.float(), count=len(real), targets=targets, replayed=old_targets)
    return replace(terms, penalty=slope_penalty(critic.slope(lines))) if len(lines) else terms


def _terms(
    scores: Tensor, classes: Tensor, *, count: int, targets: Tensor | None, replayed: Tensor | None
) -> CriticTerms:
    """The terms but for the penalty; images are `count` real ones, as many fakes, then the replayed ones."""
    class_term = None
    if targets is not None:
        answers, truth = classes[:count], targets
        if replayed is not None:
            answers, truth = torch.cat([answers, classes[2 * count :]]), torch.cat([truth, replayed])
        class_term = F.cross_entropy(answers, truth)
    return CriticTerms(critic_loss(scores[:count], scores[count : 2 * count]), None, class_term)


def generator_terms(
    around: Surroundings, critic: Critic, fake: Tensor, targets: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The generator's adversarial term and its class term. The critic is held still: its gradients are not computed."""
    if isinstance(critic.trunk, Trunk) and around.precision == "float32":
        features: Tensor = Held.apply(fake, critic.trunk)  # type: ignore[no-untyped-call]
        scores, classes = critic.heads(features, held=True)
    else:
        critic.requires_grad_(False)
        try:
            with around.lowered():
                scores, classes = critic(fake)
        finally:
            critic.requires_grad_(True)
    return generator_loss(scores.float()), None if targets is None else F.cross_entropy(classes.float(), targets)
