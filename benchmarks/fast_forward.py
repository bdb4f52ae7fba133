"""A DGM learner at any task, without the hours of training that lead there.

    run folder (config.json, records.jsonl) ──> a learner with the run's settings. Task by task it gets masks as dense
    as the run's own: the same share of the free entries and of the reserved ones, at random places.

The network reserves and grows by the same functions as in a run, so it reaches the run's sizes to the unit. Its
weights mean nothing: what a step costs depends on sizes alone. Where the folder holds a checkpoint too, the masks are
the run's own. After the last recorded task the shares stay at the mean of the last three.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engram.config import Config, RuntimeSettings, compose, from_dict
from engram.context import Shape
from engram.data.stream import Task
from engram.experiment.machine import prepare
from engram.memory.engram import Engram, consolidate
from engram.methods.dgm.candidates import seen_units
from engram.methods.dgm.learner import DGM
from engram.methods.dgm.settings import DGMSettings
from engram.methods.registry import find_method
from engram.model.model import Model
from engram.nets.architectures import graph_of
from engram.nets.candidates import Candidates
from engram.nets.graph import Graph
from engram.nets.masked_generator import MaskedGenerator
from engram.nets.pruning import unit_limits
from engram.seeding import generator

ROOT = Path(__file__).resolve().parent.parent
RUNS = [ROOT / "results" / "mnist" / method / "default" / "seed0" for method in ("dgmw", "dgma")]
LAST = 3
"""Recorded tasks whose mean share stands for all later ones."""


@dataclass(frozen=True)
class Share:
    """How much of a layer's mask a task opened."""

    free: float
    """Of the entries that were free."""
    reserved: float
    """Of those that earlier tasks had reserved."""


@dataclass(frozen=True)
class RecordedRun:
    """What a run folder tells of its growth."""

    folder: Path
    config: Config
    shape: Shape
    """Of an image."""
    shares: list[list[Share]]
    """By task and layer."""
    active_units: list[list[int]]
    """Units of each layer that a task kept, by task; none where the run is from before that was recorded."""
    weights: list[int]
    """Plastic weights after each task has grown the network."""
    units: list[list[int]]
    """The same for the units of each layer."""
    engrams: list[Engram]
    """Those of the checkpoint; none where there is none."""
    resized: bool
    """Whether settings change the sizes, so that the recorded ones are not to be expected."""

    @property
    def name(self) -> str:
        """The last four folders of results/<data>/<method>/<label>/seed<N>."""
        return "/".join(self.folder.resolve().parts[-4:])

    @property
    def settings(self) -> DGMSettings:
        assert isinstance(self.config.settings, DGMSettings), "not a run of DGM"
        return self.config.settings

    @property
    def graph(self) -> Graph:
        return graph_of(self.settings.generator.architecture, self.shape[1])

    def share(self, task: int, layer: int) -> Share:
        if task < len(self.shares):
            return self.shares[task][layer]
        known = [shares[layer] for shares in self.shares[-LAST:]]
        return Share(sum(s.free for s in known) / len(known), sum(s.reserved for s in known) / len(known))

    def taken(self, task: int, layer: int, *, free: int, reserved: int, fade: float = 1.0) -> tuple[int, int]:
        """How many mask entries a task opens of the free and of the reserved ones; `fade`: so much fewer free ones.

        Where masks open units, a task may have no more than `masks.max_units_ratio` lets it keep.
        """
        share, ratio = self.share(task, layer), self.settings.masks.max_units_ratio
        new, again = round(share.free * fade * free), round(share.reserved * reserved)
        if self.config.method == "dgma" and ratio:
            most = unit_limits(self.graph, self.settings.generator.width, ratio)[layer]
            if new + again > most:
                new = round(most * new / (new + again))
                again = most - new
        return new, again

    def masks(self, net: MaskedGenerator, task: int) -> list[Tensor]:
        """Binary masks for a task, for a network of the size that it has when this task begins."""
        if task < len(self.engrams):
            return self.engrams[task].binary_masks()
        draws, seen = generator(0, "benchmark masks", task), seen_by(net, self.settings, task)
        kept, masks = self._kept(net, task, seen), []
        for number, layer in enumerate(net.plastic):
            between = torch.ones_like(layer.reserved)
            if layer.reserved.dim() > 1:  # (in, out, 4, 4)
                between &= (kept[number][:, None] & kept[number + 1][None, :])[:, :, None, None]
            elif seen is not None:
                between = torch.zeros_like(between).index_fill_(0, seen[number], True)
            reserved = int(layer.reserved.sum())
            counts = self.taken(task, number, free=layer.reserved.numel() - reserved, reserved=reserved)
            masks.append(_draw(layer.reserved, between, counts, draws))
        return masks

    def kept(self, task: int, units: Sequence[int]) -> list[int]:
        """How many units of each node a task keeps; all of them where the record does not tell."""
        known = self.active_units[task : task + 1] or self.active_units[-LAST:] or [list(units)]
        return [min(n, round(sum(row[node] for row in known) / len(known))) for node, n in enumerate(units)]

    def _kept(self, net: MaskedGenerator, task: int, seen: Sequence[Tensor] | None) -> list[Tensor]:
        """By node, the noise first: which units these are, drawn at random from those that the task sees."""
        chosen = [torch.ones(net.latent_dim, dtype=torch.bool)]
        for node, (n, count) in enumerate(zip(net.units, self.kept(task, net.units), strict=True)):
            order = torch.randperm(n, generator=generator(0, "benchmark units", task, node))
            if seen is None:
                chosen.append(order < count)
                continue
            few = seen[node][order[seen[node]].argsort()[:count]]
            chosen.append(torch.zeros(n, dtype=torch.bool).index_fill_(0, few, True))
        return chosen


def seen_by(net: MaskedGenerator, settings: DGMSettings, task: int) -> list[Tensor] | None:
    """By node, the units that a task sees, chosen at random; None for all of them."""
    if not settings.masks.candidates:
        return None
    limits = unit_limits(net.graph, settings.generator.width, settings.masks.candidates)
    draws = generator(0, "benchmark candidates", task)
    return seen_units(net.graph, [layer.reserved for layer in net.plastic], limits, None, draws=draws)


def _draw(reserved: Tensor, between: Tensor, counts: tuple[int, int], draws: torch.Generator) -> Tensor:
    """A mask with so many of the free and of the reserved entries, all of it `between` units that are kept."""
    flat, inside = reserved.flatten(), between.flatten()
    opened = torch.zeros_like(flat)
    for part, wanted in zip((~flat, flat), counts, strict=True):
        places = (part & inside).nonzero().squeeze(1)
        some = torch.randperm(len(places), generator=draws)[:wanted]
        opened[places[some]] = True
    return opened.view_as(reserved)


def read_run(folder: Path, settings: Mapping[str, Any] | None = None) -> RecordedRun:
    """Read a run folder. `settings` replace the run's own: shares hold for other widths too."""
    plain = json.loads((folder / "config.json").read_text())["config"]
    config = compose(from_dict(plain, find_method(plain["method"]).settings), settings or {})
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    growth = [record["layers"] for record in records if record["kind"] == "growth"]
    channels, height, width = next(record["shape"] for record in records if record["kind"] == "run")
    engrams: list[Engram] = []
    resized = bool({"generator.width", "generator.latent_dim"} & set(settings or {}))
    if (folder / "checkpoint.json").exists() and not resized:
        learner = Model.open(folder).learner
        assert isinstance(learner, DGM), "not a run of DGM"
        engrams = learner.engrams
    told = [layers for layers in growth if not resized and "active_units" in layers[0]]
    return RecordedRun(
        folder,
        config,
        (channels, height, width),
        shares=shares_of(growth),
        active_units=[[layer["active_units"] for layer in layers] for layers in told],
        weights=[sum(layer["weights_after"] for layer in layers) for layers in growth],
        units=[[layer["units_after"] for layer in layers] for layers in growth],
        engrams=engrams,
        resized=resized,
    )


def shares_of(growth: Sequence[Sequence[Mapping[str, int]]]) -> list[list[Share]]:
    """Growth records -> shares. What was reserved before a task is what all tasks before it took newly."""
    reserved = [0] * len(growth[0])
    shares = []
    for layers in growth:
        row = []
        for number, layer in enumerate(layers):
            entries = layer["newly_reserved"] + layer["reused"] + layer["unused"]
            free = entries - reserved[number]
            row.append(Share(layer["newly_reserved"] / max(free, 1), layer["reused"] / max(reserved[number], 1)))
            reserved[number] += layer["newly_reserved"]
        shares.append(row)
    return shares


def new_learner(recorded: RecordedRun) -> DGM:
    """Before its first task."""
    config = recorded.config
    assert recorded.graph.name == "dcgan", "the reference loop knows the chain only"
    learner = find_method(config.method).learner(config, recorded.shape, torch.device("cpu"))
    assert isinstance(learner, DGM), "not a run of DGM"
    return learner


@torch.no_grad()
def advance(learner: DGM, recorded: RecordedRun, tasks: int, *, classes: int = 1, batch: int = 16) -> DGM:
    """Let tasks pass as `DGM.learn` does, but for the training: consolidate, reserve, grow, enlarge the classifier.

    `batch`: of the noise that the norms are estimated from, once instead of fifty times.
    """
    net = learner.net
    for _ in range(tasks):
        task, seen = len(learner.engrams), len(learner.nets)
        net.begin(classes, generator=generator(0, "benchmark private", task))
        masks = recorded.masks(net, task)
        draws = generator(0, "benchmark noise", task)
        units = seen_by(net, learner.settings, task)
        part = None if units is None else Candidates(net, units)
        own = net if part is None else part.net
        if part is not None:
            own.begin(classes, generator=generator(0, "benchmark private", task))
        engram = consolidate(
            own,
            masks if part is None else part.narrow(masks),
            range(seen, seen + classes),
            batches=1,
            batch_size=batch,
            generator=draws,
            seen=part,
        )
        for layer, mask in zip(net.plastic, masks, strict=True):
            layer.reserve_(mask)
        net.task_params = None
        net.grow_([0] * len(net.plastic), generator=generator(0, "benchmark growth", task))
        learner.engrams.append(engram)
        learner.nets.add(engram)
        learner.classifier_phase.begin(len(learner.nets), task=task, begins=0.0)
    return learner


def learner_at(recorded: RecordedRun, task: int) -> DGM:
    """At the beginning of a task, counted from 1."""
    return advance(new_learner(recorded), recorded, task - 1)


def some_task(learner: DGM, *, classes: int = 1, images: int = 600) -> Task:
    """The next task, of noise."""
    seen = len(learner.nets)
    draws = generator(0, "benchmark images", seen)
    pixels = torch.randint(0, 256, (images, *learner.ctx.shape), dtype=torch.uint8, generator=draws)
    targets = seen + torch.arange(images) % classes
    indices = tuple(range(seen + classes))
    return Task(len(learner.engrams), indices[seen:], indices, pixels, targets, ("noise",) * classes)


def sizes(recorded: RecordedRun, learner: DGM) -> str:
    """What the network has come to, and what the run recorded at that point."""
    done, units = len(learner.engrams), learner.net.units
    weights = sum(layer.weight.numel() for layer in learner.net.plastic)
    text = f"task {done + 1}: units {'-'.join(map(str, units))}, {weights:,} weights"
    if 0 < done <= len(recorded.weights) and not recorded.resized:
        text += f" (recorded: {'-'.join(map(str, recorded.units[done - 1]))}, {recorded.weights[done - 1]:,})"
    return text


# ---------------------------------------------------------------- the command line that the scripts share


def parser(description: str | None) -> argparse.ArgumentParser:
    """With what all scripts know: which runs to follow, threads, settings."""
    asks = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    asks.add_argument("--runs", type=Path, nargs="+", default=RUNS, help="run folders of dgmw or dgma to follow")
    asks.add_argument("--threads", type=int, default=0, help="0: as torch would")
    asks.add_argument("--rounds", type=int, default=5, help="the best of so many")
    add_settings(asks)
    return asks


def add_settings(asks: argparse.ArgumentParser) -> None:
    asks.add_argument("--set", dest="settings", nargs="*", type=_setting, default=[], metavar="GROUP.FIELD=VALUE")


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not GROUP.FIELD=VALUE")
    return name, value


def settings_of(given: argparse.Namespace) -> dict[str, str]:
    """And the machine prepared as for a run, before anything is computed."""
    prepare(RuntimeSettings(threads=given.threads, device="cpu"))
    return dict(given.settings)
