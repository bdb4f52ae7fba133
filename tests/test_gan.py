"""What the generative baselines show their critics: how much of the task, how much replay, and what they leave out."""

from __future__ import annotations

import pytest
import torch

from conftest import context
from engram.config import ClassifierSettings
from engram.context import Context
from engram.data.stream import Task
from engram.gan import step
from engram.gan.oversampling import draw_rows
from engram.gan.settings import ConditionalReplaySettings
from engram.methods.replay.conditional_gan import ConditionalGan
from engram.methods.replay.dgr import even_weights
from engram.methods.replay.mergan import MeRGAN
from engram.seeding import generator

TINY = {
    "generator.width": 2, "generator.latent_dim": 4, "critic.width": 2, "gan.steps": 1, "gan.batch_size": 8,
    "gan.new_fraction": 0.0,
}  # fmt: skip


def ctx(settings: dict[str, float] | None = None) -> Context[ConditionalReplaySettings]:
    return context("mergan", TINY | (settings or {}), classifier=ClassifierSettings(width=2))


def task(index: int, new: int, seen: int) -> Task:
    classes = tuple(range(seen))
    targets = seen - new + torch.arange(12) % new
    return Task(index, classes[seen - new :], classes, torch.zeros(12, 1, 32, 32, dtype=torch.uint8), targets, ("",))


@pytest.mark.parametrize(
    ("index", "new", "seen", "share", "expected"),
    [(0, 1, 1, 0.5, 1000), (9, 1, 10, 0.0, 100), (9, 1, 10, 0.5, 500), (1, 4, 5, 0.5, 800), (4, 2, 10, 0.3, 300)],
)
def test_the_tasks_own_share_is_that_of_its_classes_or_more(
    index: int, new: int, seen: int, share: float, expected: int
) -> None:
    assert ConditionalGan(ctx({"gan.new_fraction": share})).own_count(task(index, new, seen), 1000) == expected


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_mergan_shows_old_classes_evenly_and_new_ones_evenly(share: float) -> None:
    learner = MeRGAN(ctx({"gan.new_fraction": share}))
    some = task(4, 2, 6)
    counts = torch.bincount(learner._shares(some, 600), minlength=6).tolist()
    new = 600 * max(share, 2 / 6)
    assert counts == [(600 - new) / 4] * 4 + [new / 2] * 2
    first = MeRGAN(ctx({"gan.new_fraction": share}))._shares(task(0, 2, 2), 10)
    assert torch.bincount(first).tolist() == [5, 5]


def test_dgr_replays_every_label_alike_and_leaves_out_the_doubtful() -> None:
    labels = torch.tensor([0] * 90 + [1] * 10)
    sure = torch.rand(100, generator=generator(0, "sure"))
    rows = draw_rows(even_weights(labels, sure, 0.8), 20_000, generator=generator(0, "rows"))
    assert labels[rows].float().mean().item() == pytest.approx(0.5, abs=0.02)
    for label in (0, 1):
        own = torch.nonzero(labels == label).squeeze(1)
        kept = set(own[sure[own].argsort(descending=True)[: round(0.8 * len(own))]].tolist())
        assert set(rows[labels[rows] == label].tolist()) == kept


def test_the_rate_is_level_and_then_falls_to_nothing() -> None:
    gan = ConditionalGan(ctx({"gan.learning_rate": 0.1}))
    gan.begin(0, new=1, group=0, known=1)
    real, classes = torch.zeros(8, 1, 32, 32, dtype=torch.uint8), torch.zeros(8, dtype=torch.int64)
    rates = []
    for share in (0.0, 0.5, 0.75, 1.0):
        gan.step(real, None, classes, share=share, draws=generator(0))
        rates.append({group["lr"] for optimiser in gan.optimisers.values() for group in optimiser.param_groups})
    assert rates == [{0.1}, {0.1}, {0.05}, {0.0}]


def test_momentum_is_a_setting() -> None:
    """Two steps by hand, against each optimiser's."""
    rate, beta1, beta2 = 0.1, 0.25, 0.999
    assert beta2 == step.BETA2
    gan = ConditionalGan(ctx({"gan.learning_rate": rate, "gan.beta1": beta1}))
    gan.begin(0, new=1, group=0, known=1)
    for name, net in (("critic", gan.critic), ("generator", gan.generator)):
        weight = next(net.parameters())
        mean = square = 0.0
        moved = torch.zeros_like(weight)
        before = weight.detach().clone()
        for number, gradient in enumerate((2.0, -1.0), start=1):
            weight.grad = torch.full_like(weight, gradient)
            gan.optimisers[name].step()
            mean, square = beta1 * mean + (1 - beta1) * gradient, beta2 * square + (1 - beta2) * gradient**2
            moved -= rate * (mean / (1 - beta1**number)) / (square / (1 - beta2**number)) ** 0.5
        torch.testing.assert_close(weight.detach() - before, moved, rtol=1e-4, atol=1e-6)
        weight.grad = None
