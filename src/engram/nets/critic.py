"""The critic: a trunk without normalisation, one score, and class scores; and the gradients of its loss.

    E[D(fake)] - E[D(real)] + lambda_GP * penalty  (+ class term on real and replayed images)

A penalty per image forbids mixing images, so no trunk of a critic has batch normalisation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram import distributed
from engram.masking.losses import critic_loss, gradient_penalty
from engram.nets.classifier import GrowingHead

Autocast = Callable[[], contextlib.AbstractContextManager[object]]
"""`Context.autocast`: the precision of forward passes. Losses and the penalty are float32."""


class CriticTrunk(Protocol):
    """What a critic needs of its trunk, an `nn.Module`."""

    features: int

    def __call__(self, x: Tensor) -> Tensor:
        """(B, C, H, W) in [-1, 1] -> (B, features)."""
        ...

    def pull_back(self, x: Tensor, direction: Tensor) -> Tensor:
        """The gradient of <direction, features> with respect to each image, differentiable in the weights."""
        ...


@dataclass(frozen=True)
class Replayed:
    """Images of past classes for the class term; with several processes, this one's rows."""

    images: Tensor
    """(R, C, H, W) in [-1, 1]"""
    targets: Tensor
    """(R,) class indices, evenly over the past classes"""
    class_share: float
    """Past classes over all classes seen: what their mean counts, so that every class weighs the same."""
    rows: int
    """Over all processes."""


@dataclass(frozen=True)
class CriticBatch:
    """What a step shows the critic; images (B, C, H, W) in [-1, 1]. With several processes, this one's rows."""

    real: Tensor
    fake: Tensor
    interpolates: Tensor
    """Between real and fake images, where the penalty is taken; may be none."""
    penalty_weight: float
    rows: int
    """Of the whole batch, over all processes."""
    targets: Tensor | None = None
    """Classes of the real images; None: no class term."""
    replayed: Replayed | None = None


@dataclass(frozen=True)
class CriticTerms:
    """What the critic's loss adds up; None: not in this step."""

    adversarial: Tensor
    penalty: Tensor | None
    classes: Tensor | None

    @property
    def plain(self) -> Tensor:
        """All but the penalty."""
        return self.adversarial if self.classes is None else self.adversarial + self.classes


class Critic(nn.Module):
    """Any trunk; its gradients are found by differentiating."""

    def __init__(
        self,
        trunk: CriticTrunk,
        classes: int,
        *,
        generator: torch.Generator,
        autocast: Autocast = contextlib.nullcontext,
    ) -> None:
        super().__init__()
        assert isinstance(trunk, nn.Module)
        self.trunk, self.autocast = trunk, autocast
        self.score = GrowingHead(trunk.features)
        self.score.grow(1, generator=generator)
        self.classes = GrowingHead(trunk.features)
        self.classes.grow(classes, generator=generator)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) -> scores (B,), class scores (B, classes)."""
        return self.heads(self.trunk(x))

    def heads(self, features: Tensor, *, held: bool = False) -> tuple[Tensor, Tensor]:
        """(B, features) -> scores (B,), class scores (B, classes); `held`: without gradients of their weights."""
        return self.score(features, held=held).squeeze(1), self.classes(features, held=held)

    def backward(self, batch: CriticBatch) -> CriticTerms:
        """Put the gradients of the critic's loss in place; the terms that it adds up."""
        self.zero_grad()
        terms = self.terms(batch)
        loss = terms.plain if terms.penalty is None else terms.plain + batch.penalty_weight * terms.penalty
        distributed.backward(loss, self.parameters(), rows=batch.rows)
        return terms

    def terms(self, batch: CriticBatch) -> CriticTerms:
        """Real, fake and replayed images in one pass; then the penalty."""
        with self.autocast():
            scores, classes = self(images_of(batch))
        terms = plain_terms(scores.float(), classes.float(), batch)
        if not len(batch.interpolates):
            return terms
        return replace(terms, penalty=gradient_penalty(self.input_gradient(batch.interpolates)))

    def held(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and class scores through which gradients reach the images, and nothing of the critic."""
        self.requires_grad_(False)
        try:
            with self.autocast():
                scores, classes = self(x)
        finally:
            self.requires_grad_(True)
        return scores.float(), classes.float()

    def input_gradient(self, x: Tensor) -> Tensor:
        """The gradient of each image's score with respect to it, (B, C, H, W), differentiable in the weights."""
        return self.trunk.pull_back(x, self.score.weight.expand(len(x), -1))

    @torch.no_grad()
    def take_over(self, other: Critic, *, classes: int) -> None:
        """Go on from another critic: its trunk, its score, and what it knows of the first classes."""
        self.trunk.load_state_dict(other.trunk.state_dict())
        self.score.load_state_dict(other.score.state_dict())
        self.classes.weight[:classes] = other.classes.weight[:classes]
        self.classes.bias[:classes] = other.classes.bias[:classes]

    @property
    def bytes(self) -> int:
        """As it would lie on disc."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state_dict().values())


def images_of(batch: CriticBatch) -> Tensor:
    """Real, fake and replayed images, one after the other."""
    return torch.cat([batch.real, batch.fake, *([] if batch.replayed is None else [batch.replayed.images])])


def plain_terms(scores: Tensor, classes: Tensor, batch: CriticBatch) -> CriticTerms:
    """The terms but for the penalty, from the answers to `images_of(batch)`."""
    count, class_term = len(batch.real), None
    if batch.targets is not None:
        class_term = F.cross_entropy(classes[:count], batch.targets)
        if (past := batch.replayed) is not None:
            replayed = F.cross_entropy(classes[2 * count :], past.targets)
            # a process may have more of one batch than of the other
            more = distributed.share(past.rows) / distributed.share(batch.rows)
            class_term = (1 - past.class_share) * class_term + past.class_share * more * replayed
    return CriticTerms(critic_loss(scores[:count], scores[count : 2 * count]), None, class_term)
