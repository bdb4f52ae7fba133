"""The step as the paper's algorithm says it, in plain PyTorch: what ours is measured against.

    critic      cross-entropy over one batch of the task's real images and one of every earlier class
                + E[D(fake)] - E[D(real)] + lambda_GP (||grad D(x_hat)|| - 1)^2
    generator   -E[D(fake)] + lambda_RU alpha R^t

Networks, sizes, batch and formulas are ours, and a test compares the losses; none of our shortcuts is taken. Every unit
is computed and multiplied by its mask, open or not, at today's size, in replay as well. Earlier classes are drawn and
learned at every step, a batch each. The penalty is taken at every step and differentiates the critic twice. Gradients
of the critic are computed in the generator's step and thrown away. As in common loops, critic and generator share one
batch of fakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.gan.step import BETA2
from engram.masking.masks import Variant
from engram.memory.engram import Engram
from engram.methods.dgm.learner import DGM
from engram.methods.dgm.train_task import TaskTrainer
from engram.nets.critic import Critic

EPSILON = 1e-5


def layer(number: int, x: Tensor, weight: Tensor) -> Tensor:
    """4x4 from the noise, then 4x4 with stride 2."""
    return F.conv_transpose2d(x, weight, stride=2 if number else 1, padding=1 if number else 0)


def head(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.tanh(F.conv_transpose2d(x, weight, bias, stride=2, padding=1))


class PlainGenerator(nn.Module):
    """Dense masked layers, each with its embedding, a norm, and the head of the task in training."""

    def __init__(self, weights: Sequence[Tensor], last: Tensor, bias: Tensor, variant: Variant) -> None:
        super().__init__()
        self.variant = variant
        units = [w.shape[1] for w in weights]
        self.weights = nn.ParameterList(w.detach().clone() for w in weights)
        masked = [torch.zeros_like(w) if variant == "weights" else torch.zeros(w.shape[1]) for w in weights]
        self.embeddings = nn.ParameterList(masked)
        self.scales = nn.ParameterList(torch.ones(n) for n in units)
        self.shifts = nn.ParameterList(torch.zeros(n) for n in units)
        self.head = nn.Parameter(last.detach().clone())
        self.bias = nn.Parameter(bias.detach().clone())

    def masks(self, s: float) -> list[Tensor]:
        return [torch.sigmoid(s * e) for e in self.embeddings]

    def forward(self, z: Tensor, masks: Sequence[Tensor]) -> Tensor:
        x = z[:, :, None, None]
        for number, (weight, m) in enumerate(zip(self.weights, masks, strict=True)):
            x = layer(number, x, m * weight if self.variant == "weights" else weight)
            x = F.batch_norm(x, None, None, self.scales[number], self.shifts[number], training=True, eps=EPSILON)
            x = F.relu(x)
            x = x if self.variant == "weights" else x * m[:, None, None]
        return head(x, self.head, self.bias)


@dataclass(frozen=True)
class PlainClass:
    """An earlier class: its binary masks as numbers, its norms, its head."""

    variant: Variant
    masks: list[Tensor]
    scales: list[Tensor]
    shifts: list[Tensor]
    head: Tensor
    bias: Tensor

    @classmethod
    def of(cls, engram: Engram, weights: Sequence[Tensor], *, today: bool, number: int = 0) -> PlainClass:
        """A class by its number within its task. `today`: filled up with zeros to the network's present size."""
        own = [engram.latent_dim, *engram.units]
        units = [w.shape[1] for w in weights] if today else list(engram.units)
        ends = [engram.latent_dim, *units]
        masks = []
        for n, mask in enumerate(engram.binary_masks()):
            full = torch.zeros(ends[n], ends[n + 1], 4, 4) if mask.dim() > 1 else torch.zeros(units[n])
            (full[: own[n], : own[n + 1]] if mask.dim() > 1 else full[: own[n + 1]]).copy_(mask)
            masks.append(full)
        last = torch.zeros(units[-1], *engram.head.shape[1:])
        last[: engram.units[-1]] = engram.head
        scales, shifts = (
            [F.pad(part[number], (0, n - len(part[number]))) for part, n in zip(parts, units, strict=True)]
            for parts in (engram.scales, engram.shifts)
        )
        return cls(engram.variant, masks, scales, shifts, last, engram.bias)

    def __call__(self, weights: Sequence[Tensor], z: Tensor) -> Tensor:
        """(B, latent_dim) -> images: all units, closed ones times 0."""
        x = z[:, :, None, None]
        for number, (weight, m) in enumerate(zip(weights, self.masks, strict=True)):
            w = weight[: x.shape[1], : len(self.scales[number])]
            x = layer(number, x, m * w if self.variant == "weights" else w)
            x = F.relu(x * self.scales[number][:, None, None] + self.shifts[number][:, None, None])
            x = x if self.variant == "weights" else x * m[:, None, None]
        return head(x, self.head, self.bias)


class PlainCritic(nn.Module):
    """Three convolutions, a score, class scores."""

    def __init__(self, critic: Critic, classes: int) -> None:
        super().__init__()
        parts = [c for c in critic.trunk.modules() if isinstance(c, nn.Conv2d)]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(c.in_channels, c.out_channels, c.kernel_size[0], stride=2, padding=(c.kernel_size[0] - 1) // 2)
            for c in parts
        )
        for mine, theirs in zip(self.convolutions, parts, strict=True):
            mine.load_state_dict(theirs.state_dict())
        self.score = nn.Linear(critic.trunk.features, 1)
        self.score.load_state_dict(critic.score.state_dict())
        self.classes = nn.Linear(critic.trunk.features, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for convolution in self.convolutions:
            x = F.leaky_relu(convolution(x), 0.2)
        features = x.flatten(1)
        return self.score(features).squeeze(1), self.classes(features)


def penalty(critic: PlainCritic, real: Tensor, fake: Tensor, u: Tensor) -> Tensor:
    """(||grad D(x_hat)|| - 1)^2, by autograd, so that it can be differentiated once more."""
    x = (u[:, None, None, None] * real + (1 - u[:, None, None, None]) * fake).requires_grad_()
    (input_gradient,) = torch.autograd.grad(critic(x)[0].sum(), x, create_graph=True)
    norms: Tensor = torch.linalg.vector_norm(input_gradient.flatten(1), dim=1)
    return ((norms - 1) ** 2).mean()


class PlainLoop:
    """One task's training, beginning with the very weights that a `TaskTrainer` begins with."""

    def __init__(self, learner: DGM, trainer: TaskTrainer) -> None:
        net, task_params, settings = learner.net, trainer.net.task_params, learner.settings
        assert task_params is not None
        weights = [plastic.weight for plastic in net.plastic]
        self.settings, self.pressure = settings, trainer.pressure
        self.generator = PlainGenerator(weights, task_params.head, task_params.bias, net.variant)
        self.earlier = [
            PlainClass.of(engram, weights, today=True, number=number)
            for engram in learner.engrams
            for number in range(len(engram.class_indices))
        ]
        self.critic = PlainCritic(trainer.critic, len(self.earlier) + 1)
        self.reserved = [plastic.reserved.float() for plastic in net.plastic]
        self.gates = [1 - r if net.variant == "weights" else self._unit_gate(n) for n, r in enumerate(self.reserved)]
        rate, betas = settings.gan.learning_rate, (settings.gan.beta1, BETA2)
        self.of_critic = torch.optim.Adam(self.critic.parameters(), rate, betas)
        self.of_generator = torch.optim.Adam(self.generator.parameters(), rate, betas)

    def _unit_gate(self, number: int) -> Tensor:
        """A weight is closed when both its ends are reserved; the noise is."""
        n_in = self.generator.weights[number].shape[0]
        sources = self.reserved[number - 1] if number else torch.ones(n_in)
        return (1 - sources[:, None] * self.reserved[number][None, :])[:, :, None, None]

    def class_term(self, real: Tensor) -> Tensor:
        """Cross-entropy over the class batches: the newest class is real, the others are drawn anew."""
        weights = [w.detach() for w in self.generator.weights]
        batches = [real]
        for earlier in self.earlier:
            with torch.no_grad():
                batches.insert(-1, earlier(weights, torch.randn(len(real), self.settings.generator.latent_dim)))
        terms = [F.cross_entropy(self.critic(x)[1], torch.full((len(x),), c)) for c, x in enumerate(batches)]
        return torch.stack(terms).mean()

    def sparsity(self, masks: Sequence[Tensor]) -> Tensor:
        taken = sum((m * (1 - r)).sum() for m, r in zip(masks, self.reserved, strict=True))
        return torch.as_tensor(taken) / sum((1 - r).sum() for r in self.reserved)

    def step(self, real: Tensor, z: Tensor, u: Tensor, *, s: float, s_max_i: float) -> dict[str, Tensor]:
        """real (B, C, 32, 32) in [-1, 1], z (B, latent_dim), u (B,)."""
        masks = self.generator.masks(s)
        fake = self.generator(z, masks)

        losses = {"class": self.class_term(real)}
        losses["critic"] = self.critic(fake.detach())[0].mean() - self.critic(real)[0].mean()
        losses["penalty"] = penalty(self.critic, real, fake.detach(), u)
        self.of_critic.zero_grad()
        loss = losses["class"] + losses["critic"] + self.settings.critic.lambda_gp * losses["penalty"]
        torch.autograd.backward(loss)
        self.of_critic.step()

        losses["generator"] = -self.critic(fake)[0].mean()
        losses["sparsity"] = self.sparsity(masks)
        self.of_generator.zero_grad()
        torch.autograd.backward(losses["generator"] + self.pressure * losses["sparsity"])
        with torch.no_grad():
            for e in self.generator.embeddings:
                assert e.grad is not None
                sharp = torch.cosh((s * e).clamp(-50, 50)) + 1
                e.grad *= s_max_i / s * sharp / (torch.cosh(e) + 1)
            for weight, gate in zip(self.generator.weights, self.gates, strict=True):
                assert weight.grad is not None
                weight.grad *= gate
            self.of_generator.step()
            for e in self.generator.embeddings:
                e.clamp_(-6, 6)
        return losses
