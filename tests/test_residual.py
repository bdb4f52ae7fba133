"""The residual networks: what is known of them from elsewhere, zeros through sums, and a step at the paper's size."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conftest import write_npz
from engram.data.datasets import load_dataset
from engram.data.stream import ClassStream
from engram.gan import sampling
from engram.masking.masks import Variant
from engram.memory.class_generator import ClassGenerator, sample
from engram.memory.engram import Engram, consolidate, extract, shared_weights
from engram.methods.dgm import learner as dgm_learner
from engram.methods.dgm.learner import DGM
from engram.methods.learner import Progress, Silent
from engram.methods.registry import build, configure, find_method
from engram.methods.replay import ewcm
from engram.nets.architectures import graph_of
from engram.nets.graph import Edge, Operation
from engram.nets.masked_generator import ClassNorm, MaskedGenerator
from engram.nets.reachability import prune, reachable_units
from engram.nets.residual_critic import CriticBlock, ResidualTrunk
from engram.nets.resnet import ResNet18
from engram.nets.subnetwork import Subnetwork
from engram.seeding import generator

# of four units a node DGMa may close all
OWN: dict[str, dict[str, Any]] = {"dgma": {"generator.width": 6, "masks.lambda_ru": 0.0}}
VARIANTS: list[Variant] = ["weights", "units"]
TINY: dict[str, Any] = {
    "generator.architecture": "residual", "generator.width": 4, "generator.latent_dim": 8, "generator.bn_batches": 2,
    "critic.width": 4, "gan.epochs": 2, "gan.steps": 2, "gan.batch_size": 4, "gan.beta1": 0.5, "gan.rare_power": 0.0,
    "replay.images": 16, "classifier.epochs": 1, "classifier.batch_size": 8,
}  # fmt: skip


def test_resnet_18_is_the_known_one() -> None:
    net = ResNet18((3, 32, 32), 64, generator=generator(0))
    assert sum(p.numel() for p in net.parameters()) == 11_168_832  # the usual 11,173,962 for ten classes less its head
    assert net.features == 512
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 512)


def test_the_generator_has_the_published_weights() -> None:
    """128 channels, noise 128 (Gulrajani et al. 2017): 4x4x128x128, then three blocks of 3x3, 3x3 and 1x1."""
    net = MaskedGenerator(
        graph_of("residual", 32), 3, width=128, latent_dim=128, variant="units", generator=generator(0)
    )
    assert sum(layer.weight.numel() for layer in net.plastic) == 128 * 128 * (16 + 3 * (9 + 9 + 1))


def test_one_kernel_for_a_convolution_beside_a_doubling_or_a_halving() -> None:
    draws = generator(0)
    x, w = torch.randn(2, 5, 8, 8, generator=draws).double(), torch.randn(4, 5, 3, 3, generator=draws).double()
    bias = torch.randn(4, generator=draws).double()
    doubled = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    edge = Edge(1, 2, Operation("conv", 3, padding=1), doubles=True)
    torch.testing.assert_close(edge(x, w, bias), F.conv2d(doubled, w, bias, padding=1))
    block = CriticBlock(5, 4, halves=True, first=False, generator=draws).double()
    inner = F.conv2d(x.relu(), block.inner.weight, block.inner.bias, padding=1).relu()
    long = F.avg_pool2d(F.conv2d(inner, block.outer.weight, block.outer.bias, padding=1), 2)
    assert block.short is not None
    torch.testing.assert_close(block(x), long + F.avg_pool2d(block.short(x), 2))


@pytest.mark.parametrize("trunk", [ResidualTrunk, partial(ResNet18, norm="none")])
def test_a_critic_treats_images_one_by_one(trunk: Callable[..., nn.Module]) -> None:
    net = trunk((3, 32, 32), 6, generator=generator(0))
    x = torch.randn(4, 3, 32, 32, generator=generator(1))
    torch.testing.assert_close(net(x)[1:2], net(x[1:2]), atol=1e-6, rtol=1e-5)


def test_sums_without_normalisation_keep_their_scale() -> None:
    net = ResNet18((3, 32, 32), 16, norm="none", generator=generator(0))
    assert not [name for name, _ in net.named_buffers()]
    x = F.relu(net.stem(torch.randn(8, 3, 32, 32, generator=generator(1))))
    start = x.square().mean()
    for block in net.blocks:
        x = block(x)
        assert 0.3 < x.square().mean() / start < 6


def test_closed_units_send_exactly_zero_through_sums() -> None:
    net = MaskedGenerator(graph_of("residual", 32), 1, width=5, latent_dim=8, variant="units", generator=generator(0))
    net.begin(1, generator=generator(1))
    assert net.task_params is not None
    with torch.no_grad():
        for norm in net.task_params.norms:
            assert isinstance(norm, ClassNorm)
            norm.shift.fill_(3.0)
    masks = [torch.rand(5, generator=generator(2, number)) < 0.5 for number in range(len(net.plastic))]
    for mask in masks:
        mask[0] = True
    reachable = reachable_units(net.graph, masks)
    seen: list[torch.Tensor] = []
    z, classes = torch.randn(3, 8, generator=generator(3)), torch.zeros(3, dtype=torch.int64)
    whole = net(z, classes, [mask.float() for mask in masks], observe=seen.append)
    for node, total in enumerate(seen, start=1):
        closed = ~reachable[node - 1]
        if net.graph.is_sum(node):
            assert not total[:, closed].any()
            assert total[:, ~closed].any()
    few = Subnetwork(net, masks).net(z, classes)  # closed units left out: the same images, so they had sent nothing
    torch.testing.assert_close(few, whole, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_branch_may_close_altogether(variant: Variant) -> None:
    """The shortcut leads past it: the image is that of the shortcut alone, and what led into the branch is let go."""
    net = MaskedGenerator(graph_of("residual", 32), 1, width=4, latent_dim=8, variant=variant, generator=generator(0))
    net.begin(1, generator=generator(1))
    masks = [torch.ones_like(layer.embedding, dtype=torch.bool) for layer in net.plastic]
    masks[5].zero_()  # the second block's outer convolution: nobody reads its inner one (4)
    pruned = prune(net.graph, masks, variant)
    assert [int(mask.sum()) == 0 for mask in pruned] == [number in (4, 5) for number in range(10)]
    reachable = reachable_units(net.graph, pruned)
    assert [bool(units.any()) for units in reachable] == [True, True, True, False, True, True, True]
    engram = consolidate(net, pruned, [0], batches=2, generator=generator(2))
    weights = shared_weights(net)
    z = torch.randn(3, 8, generator=generator(3))
    images = extract(engram, weights)[0](z)
    assert images.std() > 0
    changed = [w + 1.0 if number in (4, 5) else w for number, w in enumerate(weights)]
    assert torch.equal(extract(engram, changed)[0](z), images)
    few = Subnetwork(net, pruned).net(z, torch.zeros(3, dtype=torch.int64))
    assert few.shape == images.shape
    masks[8].zero_()
    masks[9].zero_()  # both ways into the last node
    assert not reachable_units(net.graph, masks)[-1].any()


@pytest.mark.parametrize("method", ["dgmw", "dgma", "dgr", "mergan", "mergan-ra", "ewcm"])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_generative_methods_run_on_them(
    method: str, channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ewcm, "FISHER_IMAGES", 4)
    dataset = load_dataset(f"npz:{write_npz(tmp_path / 'a.npz', channels=channels, per_class=12)}")
    settings = {**TINY, "classifier.architecture": "resnet18", "classifier.width": 4}
    if method in OWN:
        settings |= OWN[method]
    learner = build(method, dataset, settings=settings)
    for task in ClassStream(dataset, 2):
        learner.learn(task)
        assert learner.scores(dataset.test.images[:5]).shape == (5, len(task.seen))
        if isinstance(learner, DGM):
            assert learner.retention() == []
            for edges in learner.net.graph.incoming[1:]:
                assert len({learner.net.plastic[n].size().units for n in edges}) == 1


COUNTS: dict[str, Any] = {
    "gan.epochs": 2, "gan.steps": 1, "gan.batch_size": 2, "generator.bn_batches": 1, "replay.images": 2,
    "classifier.epochs": 1, "classifier.batch_size": 2,
}  # fmt: skip


class StopAfterOne(Silent):
    """Stops the learner after a step."""

    def batch(self, progress: Progress) -> None:
        raise InterruptedError


@pytest.mark.parametrize("method", ["dgmw", "dgma"])
@pytest.mark.parametrize(("preset", "width", "critic"), [("cifar10", 128, ResidualTrunk), ("imagenet50", 64, ResNet18)])
def test_a_step_at_the_papers_size(
    preset: str, width: int, critic: type[nn.Module], method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The presets that are meant for a GPU, only their counts made small: shapes, gradients, growth, retention."""
    # 256 images give statistics; 4 do to see that they are taken
    monkeypatch.setattr(dgm_learner, "consolidate", partial(consolidate, batch_size=4))
    config = configure(dataset=preset, method=method, settings=COUNTS)
    assert config.stream.classes_per_task == (1 if preset == "cifar10" else 10)
    learner = find_method(method).learner(config, (3, 32, 32), torch.device("cpu"))
    assert isinstance(learner, DGM)
    assert learner.net.units == [width] * 7
    trunk = learner.classifier_phase.classifier.net[0]
    assert isinstance(trunk, ResNet18)
    assert trunk.features == 512
    before = [layer.weight.detach().clone() for layer in learner.net.plastic]
    stream = iter(ClassStream(load_dataset(f"npz:{write_npz(tmp_path / 'a.npz', channels=3, per_class=6)}"), 2))
    task = next(stream)

    with contextlib.suppress(InterruptedError):
        learner.learn(task, observe=StopAfterOne())
    assert learner.trainer is not None
    assert isinstance(learner.trainer.critic.trunk, critic)
    for name, parameter in [*learner.trainer.critic.named_parameters(), *learner.net.named_parameters()]:
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any() or name == "score.bias", name  # which adds as much to real as to fake

    learner.learn(task)
    assert learner.retention() == []
    assert learner.scores(task.images[:2]).shape == (2, 2)
    sizes = [(old.numel(), layer.weight.numel()) for old, layer in zip(before, learner.net.plastic, strict=True)]
    assert all(now >= old for old, now in sizes)
    assert sum(now for _, now in sizes) > sum(old for old, _ in sizes)
    for old, layer in zip(before, learner.net.plastic, strict=True):
        assert not torch.equal(old, layer.weight[: old.shape[0], : old.shape[1]]), "every layer has learned"

    del task
    with contextlib.suppress(InterruptedError):  # a step of the next task, in the grown network
        learner.learn(next(stream), observe=StopAfterOne())
    assert learner.retention() == []


@pytest.mark.parametrize("graph", ["dcgan", "residual"])
def test_a_grown_network_computes_fewer_images_at_a_time(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same images, and statistics of as many, within a bound on what a node holds."""
    net = MaskedGenerator(graph_of(graph, 32), 1, width=4, latent_dim=8, variant="weights", generator=generator(0))
    net.begin(1, generator=generator(1))
    masks = [torch.ones_like(layer.embedding, dtype=torch.bool) for layer in net.plastic]
    sizes: list[int] = []
    whole = ClassGenerator.__call__

    def counted(self: ClassGenerator, z: torch.Tensor) -> torch.Tensor:
        sizes.append(len(z))
        return whole(self, z)

    def made() -> tuple[Engram, torch.Tensor]:
        engram = consolidate(net, masks, [0], batches=2, batch_size=64, generator=generator(2))
        sizes.clear()
        return engram, sample(extract(engram, shared_weights(net))[0], 48, generator=generator(3))

    monkeypatch.setattr(ClassGenerator, "__call__", counted)
    wide, images = made()
    assert sizes == [48]
    monkeypatch.setitem(sampling.LARGEST_NODE, "cpu", 16 * 4 * (16 if graph == "dcgan" else 32) ** 2)  # 16 images
    few, again = made()
    assert sizes == [16, 16, 16]
    for one, other in zip(wide.scales, few.scales, strict=True):
        torch.testing.assert_close(one, other, rtol=0.2, atol=0)  # of other draws, as many
    narrow = sample(extract(wide, shared_weights(net))[0], 48, generator=generator(3))
    assert (narrow.int() - images.int()).abs().max() <= 1
    assert again.shape == images.shape
