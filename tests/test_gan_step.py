"""One step of a GAN against the same step written out: autograd for the gradients, Adam by hand."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conftest import context
from engram.context import Context
from engram.gan.settings import GanMethodSettings
from engram.gan.step import (
    BETA2,
    GanBatch,
    Term,
    gan_optimisers,
    gan_step,
    new_critic,
    set_rate,
)
from engram.nets.classifier import ConvTrunk
from engram.nets.critic import Critic, CriticBatch, CriticTerms, Replayed
from engram.nets.critic_backward import WrittenOutCritic
from engram.nets.residual_critic import ResidualTrunk
from engram.nets.resnet import ResNet18
from engram.seeding import generator

RATE, BETA1, LAMBDA_GP, LAMBDA_AUX, PULL = 0.01, 0.3, 0.7, 0.5, 0.2
SETTINGS = {
    "gan.learning_rate": RATE, "gan.beta1": BETA1, "gan.lambda_aux": LAMBDA_AUX, "critic.lambda_gp": LAMBDA_GP,
    "critic.width": 3,
}  # fmt: skip
BATCH, LATENT = 6, 4


class Drawer(nn.Module):
    """A generator that is easy to see through."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(LATENT, 32 * 32, dtype=torch.float64)
        for number, parameter in enumerate(self.parameters()):
            nn.init.normal_(parameter, std=0.3, generator=generator(0, "drawer", number))

    def forward(self, z: Tensor) -> Tensor:
        return torch.tanh(self.layer(z)).view(-1, 1, 32, 32)


def edit(net: Drawer) -> None:
    """What a method might do to gradients: some are closed, some are made larger."""
    assert net.layer.weight.grad is not None
    net.layer.weight.grad[:100] = 0
    net.layer.weight.grad[100:200] *= 3


@dataclass
class Hook:
    """Adds a term, edits gradients, and keeps what it finds at each call."""

    net: Drawer
    calls: list[str] = field(default_factory=list)

    def terms(self) -> Sequence[Term]:
        self.calls.append("terms")
        return [Term("pull", self.net.layer.weight.square().mean(), PULL)]

    def after_backward(self) -> None:
        assert all(p.grad is not None and p.grad.any() for p in self.net.parameters())
        edit(self.net)
        self.calls.append("after_backward")

    def after_step(self) -> None:
        self.calls.append("after_step")


class Nothing:
    """A hook of a method that adds nothing."""

    def terms(self) -> Sequence[Term]:
        return []

    def after_backward(self) -> None:
        pass

    def after_step(self) -> None:
        pass


class AdamByHand:
    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self.means = [torch.zeros_like(p) for p in parameters]
        self.squares = [torch.zeros_like(p) for p in parameters]
        self.steps = 0

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        self.steps += 1
        for p, g, mean, square in zip(self.parameters, gradients, self.means, self.squares, strict=True):
            mean.mul_(BETA1).add_((1 - BETA1) * g)
            square.mul_(0.999).add_((1 - 0.999) * g**2)
            unbiased, spread = mean / (1 - BETA1**self.steps), square / (1 - 0.999**self.steps)
            p -= RATE * unbiased / (spread.sqrt() + 1e-8)


def critic_in_double(ctx: Context[GanMethodSettings], classes: int) -> Critic:
    critic = new_critic(ctx, classes, 0).double()
    for number, parameter in enumerate(critic.parameters()):  # biases too
        nn.init.normal_(parameter, std=0.3, generator=generator(0, "critic", number))
    return critic


def images(name: str, count: int = BATCH) -> Tensor:
    return torch.rand(count, 1, 32, 32, dtype=torch.float64, generator=generator(0, name)) * 2 - 1


@pytest.mark.parametrize("architecture", ["dcgan", "residual"])
@pytest.mark.parametrize("stride", [1, 2, 5])
@pytest.mark.parametrize("told", ["nothing", "classes", "replay"])
def test_a_step_is_the_one_written_out(
    architecture: str, stride: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them, so that the optimisers' memory takes part."""
    # a critic that is differentiated gives float32; Adam would make a lot of what rounding leaves of a gradient
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    ctx = context("dgmw", {**SETTINGS, "critic.architecture": architecture, "critic.penalty_stride": stride})
    critic, net = critic_in_double(ctx, 3), Drawer()
    assert type(critic) is (WrittenOutCritic if architecture == "dcgan" else Critic)
    our_critic, our_net = copy.deepcopy(critic), copy.deepcopy(net)
    adams = AdamByHand(list(our_critic.parameters())), AdamByHand(list(our_net.parameters()))
    optimisers, hook = gan_optimisers(ctx.settings, critic=critic.parameters(), generator=net.parameters()), Hook(net)
    targets = None if told == "nothing" else torch.tensor([0, 1, 2, 1, 1, 0])
    replayed = Replayed(images("old", 2), torch.tensor([2, 0]), class_share=0.4, rows=2) if told == "replay" else None
    for number in range(2):
        z = torch.randn(BATCH, LATENT, dtype=torch.float64, generator=generator(number, "z"))
        u = torch.rand(BATCH, dtype=torch.float64, generator=generator(number, "u"))
        real = images(f"real {number}")
        batch = GanBatch(real, net(z), u, rows=BATCH, targets=targets, fake_targets=targets, replayed=replayed)
        losses = gan_step(critic, net, optimisers, batch, ctx.settings, hook)

        # the critic's half: nothing flows into the generator
        fake = our_net(z).detach()
        at = (u[:, None, None, None] * real + (1 - u)[:, None, None, None] * fake)[::stride].requires_grad_()
        (slopes,) = torch.autograd.grad(our_critic(at)[0].sum(), at, create_graph=True)
        adversarial = our_critic(fake)[0].mean() - our_critic(real)[0].mean()
        loss = adversarial + LAMBDA_GP * (slopes.flatten(1).norm(dim=1) - 1).square().mean()
        if targets is not None:
            class_term = F.cross_entropy(our_critic(real)[1], targets)
            if replayed is not None:
                class_term = 0.6 * class_term + 0.4 * F.cross_entropy(our_critic(replayed.images)[1], replayed.targets)
            loss = loss + class_term
        parameters = list(our_critic.parameters())
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        adams[0].step([torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)])

        # the generator's: the critic has moved, and is held still
        fake = our_net(z)
        scores, answers = our_critic(fake)
        generator_loss, pull = -scores.mean(), our_net.layer.weight.square().mean()
        loss = generator_loss + PULL * pull
        if targets is not None:
            loss = loss + LAMBDA_AUX * F.cross_entropy(answers, targets)
        our_net.zero_grad()
        torch.autograd.backward(loss, inputs=list(our_net.parameters()))
        edit(our_net)
        adams[1].step([p.grad for p in our_net.parameters() if p.grad is not None])

        expected = {"critic": adversarial, "generator": generator_loss, "pull": pull}
        if targets is not None:
            expected["class"] = F.cross_entropy(answers, targets)
        assert losses.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(losses[name], value, rtol=1e-9, atol=1e-9)
        ours = [*our_critic.parameters(), *our_net.parameters()]
        for one, other in zip([*critic.parameters(), *net.parameters()], ours, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert not torch.equal(our_net.layer.weight, Drawer().layer.weight)
    assert torch.equal(net.layer.weight[:100], Drawer().layer.weight[:100]), "what the hook closes stays"


def test_the_hook_is_called_in_its_turn() -> None:
    ctx = context("dgmw", SETTINGS)
    critic, net = critic_in_double(ctx, 1), Drawer()
    hook = Hook(net)
    optimisers = gan_optimisers(ctx.settings, critic=critic.parameters(), generator=net.parameters())
    for name in optimisers:
        optimisers[name].register_step_post_hook(lambda *_, name=name: hook.calls.append(name))
    fake = net(torch.randn(BATCH, LATENT, dtype=torch.float64, generator=generator(0)))
    before = [p.detach().clone() for p in critic.parameters()]
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)  # of a step before: not to be added to
    gan_step(critic, net, optimisers, GanBatch(images("real"), fake, torch.rand(BATCH), rows=BATCH), ctx.settings, hook)
    assert hook.calls == ["critic", "terms", "after_backward", "generator", "after_step"]
    assert all(p.isfinite().all() for p in net.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(critic.parameters(), before, strict=True))


@pytest.mark.parametrize("architecture", ["dcgan", "residual"])
def test_the_generators_half_leaves_the_critic_alone(architecture: str) -> None:
    """Neither its weights nor its gradients: those of its own half are still there."""
    ctx = context("dgmw", {**SETTINGS, "critic.architecture": architecture})
    critic, net = critic_in_double(ctx, 3), Drawer()
    optimisers = gan_optimisers(ctx.settings, critic=critic.parameters(), generator=net.parameters())
    kept: list[list[Tensor]] = []

    def keep(*_: object) -> None:
        kept.append([p.grad.clone() for p in critic.parameters() if p.grad is not None])
        kept.append([p.detach().clone() for p in critic.parameters()])

    optimisers["critic"].register_step_post_hook(keep)
    fake, targets = net(torch.randn(BATCH, LATENT, dtype=torch.float64)), torch.arange(BATCH) % 3
    batch = GanBatch(images("real"), fake, torch.rand(BATCH), rows=BATCH, targets=targets, fake_targets=targets)
    gan_step(critic, net, optimisers, batch, ctx.settings, Nothing())
    gradients, weights = kept
    assert len(gradients) == len(weights)
    for parameter, gradient, weight in zip(critic.parameters(), gradients, weights, strict=True):
        assert torch.equal(parameter, weight)
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)
        assert parameter.requires_grad


@pytest.mark.parametrize(("stride", "rows"), [(1, 6), (2, 3), (4, 2), (9, 1)])
def test_the_penalty_is_taken_at_every_so_manieth_interpolate(
    stride: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the batch, the first one included, with the same weight."""
    ctx = context("dgmw", {**SETTINGS, "critic.penalty_stride": stride})
    critic, net = critic_in_double(ctx, 1), Drawer()
    shown: list[CriticBatch] = []
    whole = critic.backward

    def backward(batch: CriticBatch) -> CriticTerms:
        shown.append(batch)
        return whole(batch)

    monkeypatch.setattr(critic, "backward", backward)
    optimisers = gan_optimisers(ctx.settings, critic=critic.parameters(), generator=net.parameters())
    real, fake, u = images("real"), net(torch.randn(BATCH, LATENT, dtype=torch.float64)), torch.rand(BATCH)
    gan_step(critic, net, optimisers, GanBatch(real, fake, u, rows=BATCH), ctx.settings, Nothing())
    (batch,) = shown
    between = torch.stack([u[n] * real[n] + (1 - u[n]) * fake[n].detach() for n in range(BATCH)])
    torch.testing.assert_close(batch.interpolates, between[::stride])
    assert len(batch.interpolates) == rows
    assert batch.penalty_weight == pytest.approx(LAMBDA_GP)
    assert not batch.fake.requires_grad
    assert not batch.interpolates.requires_grad


def test_losses_without_classes_have_no_class_term() -> None:
    ctx = context("dgmw", SETTINGS)
    critic, net = critic_in_double(ctx, 1), Drawer()
    optimisers = gan_optimisers(ctx.settings, critic=critic.parameters(), generator=net.parameters())
    fake = net(torch.randn(BATCH, LATENT, dtype=torch.float64))
    batch = GanBatch(images("real"), fake, torch.rand(BATCH), rows=BATCH)
    assert gan_step(critic, net, optimisers, batch, ctx.settings, Nothing()).keys() == {"critic", "generator"}


def test_optimisers_have_the_settings_and_take_one_rate() -> None:
    ctx = context("dgmw", SETTINGS)
    nets = nn.Linear(2, 3), nn.Linear(3, 2)
    optimisers = gan_optimisers(ctx.settings, critic=nets[0].parameters(), generator=nets[1].parameters())
    assert list(optimisers) == ["critic", "generator"]
    for optimiser, net in zip(optimisers.values(), nets, strict=True):
        assert isinstance(optimiser, torch.optim.Adam)
        (group,) = optimiser.param_groups
        assert group["params"] == list(net.parameters())
        assert (group["lr"], group["betas"], group["weight_decay"]) == (RATE, (BETA1, BETA2), 0)
    set_rate(optimisers, 0.125)
    assert {group["lr"] for optimiser in optimisers.values() for group in optimiser.param_groups} == {0.125}


@pytest.mark.parametrize("side", [32, 64])
def test_the_critic_that_goes_with_the_generator(side: int) -> None:
    """By itself, or the one that is asked for; its gradients are written out where they can be."""
    cases = [
        ("dcgan", "auto", ConvTrunk, WrittenOutCritic), ("residual", "auto", ResidualTrunk, Critic),
        ("residual", "dcgan", ConvTrunk, WrittenOutCritic), ("dcgan", "residual", ResidualTrunk, Critic),
        ("dcgan", "resnet18", ResNet18, Critic),
    ]  # fmt: skip
    for architecture, own, trunk, kind in cases:
        chosen = {**SETTINGS, "generator.architecture": architecture, "critic.architecture": own}
        ctx = context("dgmw", chosen, shape=(3, side, side))
        critic = new_critic(ctx, 2, 0)
        assert isinstance(critic.trunk, trunk)
        assert type(critic) is kind
        scores, classes = critic(torch.randn(2, 3, side, side, generator=generator(1)))
        assert (scores.shape, classes.shape) == ((2,), (2, 2))
        assert type(new_critic(replace(ctx, precision="bfloat16"), 2, 0)) is Critic
        again, other = new_critic(ctx, 2, 0), new_critic(ctx, 2, 1)
        assert torch.equal(again.score.weight, critic.score.weight)
        assert not torch.equal(other.score.weight, critic.score.weight), "every task draws its own"
