"""The classifier's parts against independent computations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engram.config import ClassifierSettings, MethodSettings
from engram.context import Context
from engram.data.datasets import Dataset
from engram.data.examples import Examples
from engram.data.stream import ClassStream
from engram.errors import RunError
from engram.experiment.checkpoint import fingerprint
from engram.methods.classifier import Classifier, load_optimiser, normalise, one_cycle, optimiser_state
from engram.methods.learner import Progress, Silent, run_epochs
from engram.nets.classifier import ConvTrunk, GrowingHead
from engram.seeding import derive, generator

TRAINING = ClassifierSettings(epochs=2, batch_size=8)


def adam(net: nn.Module) -> torch.optim.Optimizer:
    """As the classifier has it."""
    return torch.optim.AdamW(net.parameters(), lr=TRAINING.learning_rate, weight_decay=0.0, fused=True)


def test_one_cycle_agrees_with_torchs_own() -> None:
    steps, peak = 50, 0.3
    weight = nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([weight], lr=peak)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, peak, total_steps=steps + 1, pct_start=(0.3 * steps + 1) / (steps + 1), final_div_factor=400
    )
    for step in range(steps):
        assert one_cycle(step / steps, peak) == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-6)
        optimiser.step()
        schedule.step()


def test_pixels_are_normalised_exactly() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).reshape(2, 2, 8, 8)
    out = normalise(pixels)
    assert out.min() == -1
    assert out.max() == 1
    torch.testing.assert_close(out.double(), pixels.double() / 127.5 - 1, atol=1e-6, rtol=0)
    assert torch.equal(pixels.flatten(), torch.arange(256, dtype=torch.uint8)), "the images are left alone"


def test_the_head_keeps_its_old_classes_to_the_bit() -> None:
    head = GrowingHead(6)
    head.grow(2, generator=generator(0))
    features = torch.randn(5, 6, generator=generator(1))
    before, weight = head(features), head.weight.detach().clone()
    head.grow(3, generator=generator(2))
    assert head.classes == 5
    assert torch.equal(head.weight[:2], weight)
    torch.testing.assert_close(head(features)[:, :2], before)


def test_the_trunk_is_the_papers() -> None:
    trunk = ConvTrunk((3, 32, 32), norm="none", generator=generator(0))
    x = torch.randn(2, 3, 32, 32, generator=generator(1))
    a, b, c = (m for m in trunk.convolutions if isinstance(m, nn.Conv2d))
    expected = x
    for layer, width in ((a, 32), (b, 64), (c, 128)):
        expected = F.leaky_relu(F.conv2d(expected, layer.weight, layer.bias, stride=2, padding=2), 0.2)
        assert expected.shape[1] == width
        assert layer.weight.shape[2:] == (5, 5)
    assert expected.shape == (2, 128, 4, 4)
    torch.testing.assert_close(trunk(x), expected.flatten(1))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_restored_optimiser_takes_the_same_steps(layout: torch.memory_format) -> None:
    def network() -> nn.Conv2d:
        net = nn.Conv2d(2, 4, 3)
        with torch.no_grad():
            net.weight.normal_(generator=generator(0))
            net.bias.zero_()  # type: ignore[union-attr]
        return net.to(memory_format=layout)  # type: ignore[call-overload,no-any-return]

    def step(net: nn.Conv2d, optimiser: torch.optim.Optimizer, number: int) -> None:
        x = torch.randn(3, 2, 8, 8, generator=generator(number))
        optimiser.zero_grad()
        torch.autograd.backward(net(x).square().mean())
        optimiser.step()

    net = network()
    optimiser = adam(net)
    for number in range(3):
        step(net, optimiser, number)
    other = network()
    other.load_state_dict(net.state_dict())
    restored = adam(other)
    saved = {k: {n: v.contiguous().clone() for n, v in s.items()} for k, s in optimiser_state(optimiser).items()}
    load_optimiser(restored, saved)
    for number in range(3, 6):
        step(net, optimiser, number)
        step(other, restored, number)
    assert torch.equal(net.weight, other.weight)
    assert fingerprint(optimiser_state(optimiser)) == fingerprint(optimiser_state(restored))


class StopAt(Silent):
    """Stops the classifier after a number of batches, as an interrupted run does."""

    def __init__(self, batch: int) -> None:
        self.left = batch

    def batch(self, progress: Progress) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("batches", [1, 3, 5])
def test_a_classifier_saved_in_the_middle_of_an_epoch_ends_with_the_same_bits(tiny: Dataset, batches: int) -> None:
    ctx = Context(tiny.shape, replace(TRAINING, augment="affine"), MethodSettings(), seed=4)
    task = next(iter(ClassStream(tiny, 4)))

    def fit(classifier: Classifier, observe: Any) -> None:
        if not classifier.progress.running:
            classifier.begin(4, task=0, images=len(task), start="fresh")
        classifier.fit(lambda _: Examples(task.images, task.targets), task=0, observe=observe)

    whole = Classifier(ctx)
    fit(whole, Silent())
    stopped = Classifier(ctx)
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, StopAt(batches))
    resumed = Classifier(ctx)
    resumed.load(stopped.state())
    assert fingerprint(resumed.state()) == fingerprint(stopped.state())
    assert stopped.state()["optimiser"], "moments are saved within a task"
    assert whole.state()["optimiser"] == {}, "and not after it: the next begins with none"
    fit(resumed, Silent())
    assert fingerprint(resumed.state()) == fingerprint(whole.state())


def test_progress_counts_and_averages() -> None:
    seen: list[tuple[int, int]] = []
    means: list[dict[str, float]] = []

    class Note(Silent):
        def epoch(self, losses: Any) -> None:
            means.append(dict(losses))

    def step(epoch: int, batch: int) -> dict[str, torch.Tensor]:
        seen.append((epoch, batch))
        return {"loss": torch.tensor(float(10 * epoch + batch))}

    progress = Progress(epochs=2, batches=3)
    run_epochs(progress, step, Note())
    assert seen == [(e, b) for e in range(2) for b in range(3)]
    assert means == [{"loss": 1.0}, {"loss": 11.0}]
    assert progress.share == 1.0


@pytest.mark.parametrize("size", [32, 64])
def test_a_trunk_halves_any_image_to_the_same_side(size: int) -> None:
    trunk = ConvTrunk((1, size, size), 4, generator=generator(0))
    assert len(trunk.convolutions) == {32: 3, 64: 4}[size]
    assert trunk(torch.zeros(2, 1, size, size)).shape == (2, trunk.features)
    assert trunk.features == 4 * 2 ** (len(trunk.convolutions) - 1) * 16


def test_names_decide_the_numbers_and_nothing_else_does() -> None:
    torch.manual_seed(0)
    first = torch.randn(4, generator=generator(3, "x", 1))
    torch.randn(100)
    assert torch.equal(first, torch.randn(4, generator=generator(3, "x", 1)))
    seeds = {derive(s, *names) for s in (0, 1) for names in [(), ("x",), ("x", 1), ("x", "1"), ("x1",), (1, "x")]}
    assert len(seeds) == 12


def test_moments_of_another_size_are_refused_with_a_remedy() -> None:
    first, second = nn.Linear(3, 2), nn.Linear(3, 1)
    optimiser = adam(first)
    torch.autograd.backward(first(torch.ones(1, 3)).sum())
    optimiser.step()
    with pytest.raises(RunError, match="start the run anew"):
        load_optimiser(adam(second), optimiser_state(optimiser))
