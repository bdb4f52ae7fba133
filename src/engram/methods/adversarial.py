"""The critic's and the generator's steps, shared by the generative methods.

    critic      E[D(fake)] - E[D(real)] + lambda_GP * penalty / share of steps that have one  (+ class term)
    generator   -E[D(fake)] + lambda_aux * class term on fakes + whatever the method adds

One step draws one batch of fakes and uses it for both, the critic first: the generator's graph is built once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.methods.learner import Surroundings
from engram.nets.dcgan import GrowingHead, Trunk
from engram.nets.residual import ResidualTrunk, ResNet18
from engram.plastic.losses import critic_loss, generator_loss, gradient_penalty
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
        features = self.trunk(x)
        return self.score(features).squeeze(1), self.classes(features)

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


def gan_optimisers(around: Surroundings, **nets: nn.Module) -> dict[str, torch.optim.Optimizer]:
    """Adam for each of the networks, by name."""
    settings = around.settings
    return {
        name: torch.optim.Adam(
            net.parameters(), lr=settings.learning_rate, betas=(settings.beta1, settings.beta2), fused=True
        )
        for name, net in nets.items()
    }


@dataclass(frozen=True)
class CriticTerms:
    """What the critic's step adds up; None: not in this step."""

    adversarial: Tensor
    penalty: Tensor | None
    classes: Tensor | None


def critic_terms(
    critic: Critic,
    real: Tensor,
    fake: Tensor,
    *,
    targets: Tensor | None = None,
    replay: tuple[Tensor, Tensor] | None = None,
    u: Tensor | None,
    lowered: Lowered = contextlib.nullcontext,
) -> CriticTerms:
    """Real, fake and replayed images in one pass.

    The class term, where `targets` of the real images are given, is over real and replayed ones (images, targets). `u`:
    where on the lines from fakes to real images the penalty is taken; None for none.
    """
    old, old_targets = replay if replay is not None else (real[:0], None)
    with lowered():
        scores, classes = critic(torch.cat([real, fake, old]))
    scores, classes, count = scores.float(), classes.float(), len(real)
    class_term = None
    if targets is not None:
        answers, truth = classes[:count], targets
        if old_targets is not None:
            answers, truth = torch.cat([answers, classes[2 * count :]]), torch.cat([truth, old_targets])
        class_term = F.cross_entropy(answers, truth)
    return CriticTerms(
        adversarial=critic_loss(scores[:count], scores[count : 2 * count]),
        penalty=None if u is None else gradient_penalty(critic.slope, real, fake, u=u),
        classes=class_term,
    )


def generator_terms(
    critic: Critic, fake: Tensor, targets: Tensor | None, *, lowered: Lowered = contextlib.nullcontext
) -> tuple[Tensor, Tensor | None]:
    """The generator's adversarial term and its class term. The critic is held still: its gradients are not computed."""
    critic.requires_grad_(False)
    try:
        with lowered():
            scores, classes = critic(fake)
    finally:
        critic.requires_grad_(True)
    return generator_loss(scores.float()), None if targets is None else F.cross_entropy(classes.float(), targets)
