"""Engrams: exact retention, compact networks that equal the masked one, growth that keeps its promise."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from conftest import SMALL_GAN, Interrupt
from engram.config import TrainingConfig
from engram.data.datasets import Dataset, load
from engram.data.stream import ClassStream
from engram.errors import DivergedError
from engram.experiment.checkpoint import fingerprint as state_fingerprint
from engram.memory.generative import (
    Engram,
    consolidate,
    extract,
    fingerprint,
    sample,
    shared_weights,
)
from engram.methods.dgm import DGM
from engram.methods.dgm_settings import DGMaSettings, DGMwSettings
from engram.methods.imprint import Imprint
from engram.methods.learner import Silent, Surroundings
from engram.nets.generator import PlasticGenerator
from engram.nets.part import Part
from engram.plastic.masks import IN_AXIS, OUT_AXIS, Variant, count_usage
from engram.plastic.wiring import WIRINGS, alive_units, prune
from engram.seeding import generator

VARIANTS: list[Variant] = ["weights", "units"]


def network(variant: Variant, seed: int = 0, channels: int = 1, wiring: str = "dcgan") -> PlasticGenerator:
    draws = generator(seed, "net")
    net = PlasticGenerator(WIRINGS[wiring], channels, width=3, noise=8, variant=variant, generator=draws)
    with torch.no_grad():
        for layer in net.plastic:
            layer.weight.normal_(std=0.5, generator=generator(seed, "weight", layer.weight.numel()))
    return net


def random_masks(net: PlasticGenerator, share: float, seed: int) -> list[Tensor]:
    draws = generator(seed, "masks")
    return [torch.rand(layer.embedding.shape, generator=draws) < share for layer in net.plastic]


def trained(net: PlasticGenerator, classes: int, seed: int = 0) -> None:
    """Private parts with values of their own, as training leaves them."""
    net.begin(classes, generator=generator(seed, "private"))
    assert net.private is not None
    with torch.no_grad():
        for number, parameter in enumerate(net.private.parameters()):
            parameter.add_(torch.randn(parameter.shape, generator=generator(seed, "values", number)) * 0.3)


def dense_residual(engram: Engram, weights: Sequence[Tensor], z: Tensor, number: int) -> Tensor:
    """The residual network written out block by block, closed entries multiplied by zero, nothing dropped."""
    masks, units = engram.binary_masks(), [engram.inputs, *engram.units]

    def weight(wire: int, n_in: int, n_out: int) -> Tensor:
        own = weights[wire][:n_in, :n_out] if wire == 0 else weights[wire][:n_out, :n_in]
        return own * masks[wire] if engram.variant == "weights" else own

    def out(wire: int, x: Tensor) -> Tensor:
        return x * masks[wire][:, None, None] if engram.variant == "units" else x

    def active(level: int, x: Tensor, *wires: int) -> Tensor:
        x = x * engram.scales[level - 1][number][:, None, None] + engram.shifts[level - 1][number][:, None, None]
        if engram.variant == "units":
            x = x * torch.stack([masks[wire] for wire in wires]).any(0)[:, None, None]
        else:  # a unit that nothing leads into has no voice
            heard = alive_units(engram.wiring, masks, "weights")[level - 1]
            x = x * heard[:, None, None]
        return F.relu(x)

    def double(x: Tensor) -> Tensor:
        return x.repeat_interleave(2, 2).repeat_interleave(2, 3)

    x = out(0, F.conv_transpose2d(z[:, :, None, None], weight(0, units[0], units[1])))
    into: tuple[int, ...] = (0,)
    for level, wire in ((1, 1), (3, 4), (5, 7)):
        inner = double(active(level, x, *into))
        inner = F.conv2d(inner, weight(wire, units[level], units[level + 1]), padding=1)
        inner = active(level + 1, inner, wire)
        inner = out(wire + 1, F.conv2d(inner, weight(wire + 1, units[level + 1], units[level + 2]), padding=1))
        short = out(wire + 2, F.conv2d(double(x), weight(wire + 2, units[level], units[level + 2])))
        x, into = inner + short, (wire + 1, wire + 2)
    return torch.tanh(F.conv2d(active(7, x, *into), engram.head, engram.bias, padding=1))


def dense(engram: Engram, weights: Sequence[Tensor], z: Tensor, number: int) -> Tensor:
    """The masked network written out in full: every closed weight or unit multiplied by zero, nothing dropped."""
    if engram.network == "residual":
        return dense_residual(engram, weights, z, number)
    masks = engram.binary_masks()
    x, inputs = z[:, :, None, None], engram.inputs
    for layer, (weight, mask, units) in enumerate(zip(weights, masks, engram.units, strict=True)):
        w = weight[:inputs, :units]
        w = w * mask if engram.variant == "weights" else w
        x = F.conv_transpose2d(x, w, stride=1 if layer == 0 else 2, padding=0 if layer == 0 else 1)
        x = x * engram.scales[layer][number][:, None, None] + engram.shifts[layer][number][:, None, None]
        x = F.relu(x)
        if engram.variant == "units":
            x = x * mask[:, None, None]
        inputs = units
    return torch.tanh(F.conv_transpose2d(x, engram.head, engram.bias, stride=2, padding=1))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_the_compact_network_gives_the_masked_networks_images(
    variant: Variant, share: float, channels: int, wiring: str
) -> None:
    net = network(variant, channels=channels, wiring=wiring)
    if variant == "weights" and wiring == "residual":
        share = max(share, 0.2)  # seven levels: with fewer open weights nothing comes through
    trained(net, classes=2)
    masks = prune(net.wiring, random_masks(net, max(share, 0.3) if variant == "units" else share, 1), variant)
    engram = consolidate(net, masks, [4, 5], batches=3, generator=generator(1))
    nets = extract(engram, shared_weights(net))
    z = torch.randn(6, 8, generator=generator(2))
    for number in range(2):
        torch.testing.assert_close(nets[number](z), dense(engram, shared_weights(net), z, number), atol=5e-5, rtol=0)
    alive = alive_units(net.wiring, masks, variant)
    voices = [int(units.sum()) for units in alive]
    for wire, weight in zip(net.wiring.wires, nets[0].weights, strict=True):
        assert weight.shape[OUT_AXIS[wire.shape.layout]] == voices[wire.writes - 1]
    assert not torch.equal(nets[0](z), nets[1](z)), "the classes of a task have affine terms of their own"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("wiring", WIRINGS)
def test_folded_statistics_agree_with_batch_statistics(variant: Variant, wiring: str) -> None:
    net = network(variant, wiring=wiring)
    trained(net, classes=1)
    masks = prune(net.wiring, random_masks(net, 0.7, 3), variant)
    engram = consolidate(net, masks, [0], batches=20, generator=generator(1))
    z = torch.randn(2000, 8, generator=generator(5))
    with torch.no_grad():
        by_batch = Part(net, masks).net(z, torch.zeros(2000, dtype=torch.int64))
        by_engram = extract(engram, shared_weights(net))[0](z)
    assert (by_batch - by_engram).abs().mean() < 0.02


@pytest.mark.parametrize(("wiring", "share"), [("dcgan", 0.03), ("residual", 0.08)])
def test_pruning_closes_exactly_what_cannot_be_heard(wiring: str, share: float) -> None:
    """Brute force: a weight matters if changing it changes an image. Pruned ones must not; kept ones mostly do."""
    net = network("weights", seed=4, wiring=wiring)
    trained(net, classes=1)
    masks = random_masks(net, share, 6)
    pruned = prune(net.wiring, masks, "weights")
    assert any(int(m.sum()) > int(p.sum()) for m, p in zip(masks, pruned, strict=True)), "something to prune"
    assert all(not (p & ~m).any() for m, p in zip(masks, pruned, strict=True))
    engram = consolidate(net, masks, [0], batches=2, generator=generator(1))
    after = consolidate(net, pruned, [0], batches=2, generator=generator(1))
    weights = shared_weights(net)
    assert fingerprint(extract(engram, weights)[0], 0) == fingerprint(extract(after, weights)[0], 0)
    before = fingerprint(extract(engram, weights)[0], 0)
    for layer, (mask, keep) in enumerate(zip(masks, pruned, strict=True)):
        for place in torch.nonzero(mask & ~keep)[:20].tolist():
            changed = [w.clone() for w in weights]
            changed[layer][tuple(place)] += 1.0
            assert fingerprint(extract(engram, changed)[0], 0) == before
    assert prune(net.wiring, pruned, "weights")[0].equal(pruned[0]), "pruning twice is pruning once"


def learner(variant: Variant, seed: int = 0, **settings: Any) -> DGM:
    kind = DGMwSettings if variant == "weights" else DGMaSettings
    chosen = replace(kind(), **{**SMALL_GAN, "epochs": 3, "steps": 6, "replay": 64, **settings})
    training = TrainingConfig(epochs=1, batch_size=16)
    return DGM(Surroundings(1, training, chosen, seed), variant=variant)


class Notes(Silent):
    """Keeps what a learner notes."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, dict[str, Any]]] = []

    def note(self, kind: str, **facts: Any) -> None:
        self.kept.append((kind, facts))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("wiring", WIRINGS)
def test_old_images_are_identical_after_every_later_task(tiny: Dataset, variant: Variant, wiring: str) -> None:
    dgm, images = learner(variant, network=wiring), []
    z = torch.randn(5, 16, generator=generator(9))
    for task in ClassStream(tiny, 1):
        dgm.learn(task, observe=Silent())
        assert dgm.retention() == []
        again = [net for e in dgm.engrams for net in extract(e, shared_weights(dgm.net))]
        images.append([net(z) for net in again])
        for earlier in images:
            assert all(torch.equal(a, b) for a, b in zip(earlier, images[-1], strict=False))
        other = learner(variant, seed=5, network=wiring)
        other.load(dgm.state())
        assert other.retention() == []
        assert state_fingerprint(other.state()) == state_fingerprint(dgm.state())
    assert len(dgm.nets) == 4


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("wiring", WIRINGS)
def test_the_check_can_fail_and_names_the_class(tiny: Dataset, variant: Variant, wiring: str) -> None:
    dgm = learner(variant, network=wiring)
    for task in ClassStream(tiny, 2):
        dgm.learn(task, observe=Silent())
    engram = dgm.engrams[0]
    masks, alive = engram.binary_masks(), alive_units(engram.wiring, engram.binary_masks(), variant)
    for number, (wire, layer) in enumerate(zip(engram.wiring.wires, dgm.net.plastic, strict=True)):
        if not masks[number].any():
            continue  # a branch may close altogether
        if variant == "weights":
            place = tuple(torch.nonzero(masks[number])[0].tolist())
        else:
            source = int(torch.nonzero(alive[wire.reads - 1])[0]) if wire.reads else 0
            ends = {IN_AXIS[layer.layout]: source, OUT_AXIS[layer.layout]: int(torch.nonzero(masks[number])[0])}
            place = (ends[0], ends[1], 0, 0)
        before = layer.weight[place].item()
        with torch.no_grad():
            layer.weight[place] += 0.5
        assert set(dgm.retention()) >= {0, 1}, f"a reserved weight of layer {number} changes both classes of its task"
        with torch.no_grad():
            layer.weight[place] = before
        assert dgm.retention() == []


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("wiring", WIRINGS)
def test_free_capacity_is_kept_and_the_notes_tell(tiny: Dataset, variant: Variant, wiring: str) -> None:
    dgm, notes = learner(variant, network=wiring), Notes()
    start = [layer.embedding.numel() for layer in dgm.net.plastic]
    for task in ClassStream(tiny, 1):
        reserved = [layer.reserved.clone() for layer in dgm.net.plastic]
        dgm.learn(task, observe=notes)
        for layer, free in zip(dgm.net.plastic, start, strict=True):
            assert int((~layer.reserved).sum()) >= free
        growth = [facts["layers"] for kind, facts in notes.kept if kind == "growth"][-1]
        for told, mask, old in zip(growth, dgm.engrams[-1].binary_masks(), reserved, strict=True):
            usage = count_usage(mask, old)
            assert (told["newly_reserved"], told["reused"], told["unused"]) == (
                usage.newly_reserved,
                usage.reused,
                usage.unused,
            )
    ledgers = [facts["bytes"] for kind, facts in notes.kept if kind == "memory"]
    assert ledgers[-1]["weights"] == 4 * sum(layer.weight.numel() for layer in dgm.net.plastic)
    assert ledgers[-1]["masks"] == sum(
        -(-mask.numel() // 8) for engram in dgm.engrams for mask in engram.binary_masks()
    )
    assert [facts["changed"] for kind, facts in notes.kept if kind == "retention"] == [[]] * 4


def test_samples_repeat_and_are_uint8(tiny: Dataset) -> None:
    dgm = learner("weights")
    for task in ClassStream(tiny, 4):
        dgm.learn(task, observe=Silent())
    images = dgm.sample([2, 0], 300, generator=generator(1))
    assert images.shape == (600, 1, 32, 32)
    assert images.dtype == torch.uint8
    assert torch.equal(images[:300], sample(dgm.nets[2], 300, generator=generator(1)))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_task_keeps_no_more_units_than_it_may(tiny: Dataset, variant: Variant, wiring: str) -> None:
    """And all that was promised of engrams holds; closed weights stay closed while the part is trained."""
    notes = Notes()
    dgm = learner(variant, network=wiring, width=4, most_units=0.5)
    for task in ClassStream(tiny, 2):
        dgm.learn(task, observe=notes)
        assert dgm.retention() == []
    limits = [2 * multiple for multiple in dgm.net.wiring.multiples]
    told = [facts["layers"] for kind, facts in notes.kept if kind == "growth"]
    for engram, layers in zip(dgm.engrams, told, strict=True):
        alive = alive_units(dgm.net.wiring, engram.binary_masks(), variant)
        assert all(0 < int(units.sum()) <= limit for units, limit in zip(alive, limits, strict=True))
        for wire, layer in zip(dgm.net.wiring.wires, layers, strict=True):
            assert layer["voices"] == int(alive[wire.writes - 1].sum())
    assert all(net.units == [int(units.sum()) for units in alive] for net in dgm.nets[-2:])


def test_a_bound_that_leaves_no_way_to_the_image_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    dgm = learner("weights", most_units=0.01)
    imprint = Imprint(dgm.net, dgm.around, task=0, classes=1, known=1)
    with torch.no_grad():
        for layer in dgm.net.plastic:
            layer.embedding.normal_(generator=generator(0))
    closed = [torch.zeros_like(layer.embedding, dtype=torch.bool) for layer in dgm.net.plastic]
    monkeypatch.setattr("engram.methods.imprint.foremost", lambda *_: closed)
    with pytest.raises(DivergedError, match=r"raise method\.most_units, which is 0\.01"):
        imprint.fix_masks(0)
    monkeypatch.undo()
    imprint.fix_masks(0)
    assert imprint.part is not None
    assert imprint.part.units == [1, 1, 1], "at least one of each"


@pytest.mark.parametrize(("value", "word"), [(-1.0, "closed"), (1.0, "open")])
def test_collapsed_masks_are_said(value: float, word: str) -> None:
    dgm = learner("weights")
    imprint = Imprint(dgm.net, dgm.around, task=0, classes=1, known=1)
    with torch.no_grad():
        for layer in dgm.net.plastic:
            layer.embedding.fill_(value)
    with pytest.raises(DivergedError, match=f"all {word}"):
        imprint.fix_masks(0)


@pytest.mark.parametrize("critic", ["auto", "resnet18"])
@pytest.mark.parametrize("solver", ["symmetric", "shared"])
def test_a_critic_that_goes_on_survives_stops_within_and_between_tasks(npz: Path, critic: str, solver: str) -> None:
    settings: dict[str, Any] = {"critic": critic, "critic_start": "warm", "solver": solver, "critic_width": 4}
    settings |= {"epochs": 2, "steps": 4, "batch_size": 4}
    whole, stopped, notes = learner("weights", **settings), learner("weights", **settings), Notes()
    images = load(f"npz:{npz}").test.images[:4]
    streams = (ClassStream(load(f"npz:{npz}"), 1, order=[0, 1]) for _ in range(2))
    for task, again in zip(*streams, strict=True):
        whole.learn(task, observe=notes)
        assert whole.critic is not None
        (*_, told) = (facts["bytes"] for kind, facts in notes.kept if kind == "memory")
        assert told["critic"] == 4 * sum(p.numel() for p in whole.critic.parameters())
        assert whole.critic.classes.classes == (len(task.seen) if solver == "shared" else 1)
        for after in (2, 4, 4, 0):  # in both movements and with the solver, each time by a new learner
            resumed = learner("weights", **settings)
            resumed.load(copy.deepcopy(stopped.state()))
            stopped = resumed
            with contextlib.suppress(InterruptedError):
                stopped.learn(again, observe=Interrupt(after))
                break
        assert state_fingerprint(stopped.state()) == state_fingerprint(whole.state())
        assert torch.equal(stopped.scores(images), whole.scores(images))
    assert whole.retention() == []


@pytest.mark.parametrize(("known", "old"), [(1, 0), (3, 2)])
def test_a_warm_critic_begins_as_the_last_one_ended(known: int, old: int) -> None:
    """Its verdicts are the same; of the class outputs those of old classes, where it has any."""
    dgm = learner("weights", critic_start="warm")
    before = Imprint(dgm.net, dgm.around, task=0, classes=1, known=2).critic
    after = Imprint(dgm.net, dgm.around, task=1, classes=known - old, known=known, before=before).critic
    fresh = Imprint(dgm.net, dgm.around, task=1, classes=known - old, known=known).critic
    images = torch.randn(3, 1, 32, 32, generator=generator(0, "images"))
    (verdict, classes), (known_verdict, known_classes) = after(images), before(images)
    assert torch.equal(verdict, known_verdict)
    torch.testing.assert_close(classes[:, :old], known_classes[:, :old])
    assert torch.equal(after.classes.weight[old:], fresh.classes.weight[old:])
