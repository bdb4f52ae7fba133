"""A DGM learner at any task without the hours that lead there.

    run folder (config.json, records.jsonl) ──> a learner of the same settings and, task by task, masks as dense as
    the run's own: so many of the free entries, so many of the reserved ones, drawn at random between as many units

The network reserves and grows by the same functions as in a run, so it reaches the run's sizes to the unit. Its
weights mean nothing; what a step costs depends on sizes alone. Where the folder holds a checkpoint too, the masks are
the run's own. Beyond the last recorded task the shares go on as the mean of the last three.
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

from engram.config import Config, RuntimeConfig, compose, from_dict
from engram.data.stream import Task
from engram.experiment.machine import prepare
from engram.experiment.reopen import reopen
from engram.memory.generative import Engram, consolidate, extract, shared_weights
from engram.methods.dgm import DGM
from engram.methods.learner import Surroundings
from engram.methods.registry import find_method
from engram.nets.generator import PlasticGenerator
from engram.plastic.relevance import limits
from engram.plastic.wiring import WIRINGS
from engram.seeding import generator

ROOT = Path(__file__).resolve().parent.parent
RUNS = [ROOT / "results" / "dgm" / name for name in ("mnist-dgmw-seed0", "mnist-dgma-seed0")]
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
class Past:
    """What a run folder tells of its growth."""

    folder: Path
    config: Config
    channels: int
    shares: list[list[Share]]
    """By task and layer."""
    voices: list[list[int]]
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
        return self.folder.name

    def share(self, task: int, layer: int) -> Share:
        if task < len(self.shares):
            return self.shares[task][layer]
        known = [shares[layer] for shares in self.shares[-LAST:]]
        return Share(sum(s.free for s in known) / len(known), sum(s.reserved for s in known) / len(known))

    def taken(self, task: int, layer: int, *, free: int, reserved: int, fade: float = 1.0) -> tuple[int, int]:
        """How many mask entries a task opens of the free and of the reserved ones; `fade`: so much fewer free ones.

        Where units are opened, a task may have no more than `method.most_units` lets it keep.
        """
        share, settings = self.share(task, layer), self.config.method_settings
        new, again = round(share.free * fade * free), round(share.reserved * reserved)
        if self.config.method == "dgma" and settings.most_units:
            most = limits(WIRINGS["dcgan"], settings.width, settings.most_units)[layer]
            if new + again > most:
                new = round(most * new / (new + again))
                again = most - new
        return new, again

    def masks(self, net: PlasticGenerator, task: int) -> list[Tensor]:
        """Binary masks for a task, for a network of the size that it has when this task begins."""
        if task < len(self.engrams):
            return self.engrams[task].binary_masks()
        draws, kept = generator(0, "benchmark masks", task), self._kept(net, task)
        masks = []
        for number, layer in enumerate(net.plastic):
            between = torch.ones_like(layer.reserved)
            if layer.reserved.dim() > 1:  # (in, out, 4, 4)
                between &= (kept[number][:, None] & kept[number + 1][None, :])[:, :, None, None]
            reserved = int(layer.reserved.sum())
            counts = self.taken(task, number, free=layer.reserved.numel() - reserved, reserved=reserved)
            masks.append(_draw(layer.reserved, between, counts, draws))
        return masks

    def kept(self, task: int, units: Sequence[int]) -> list[int]:
        """How many of a chain's units a task keeps; all of them where the record does not tell."""
        known = self.voices[task : task + 1] or self.voices[-LAST:] or [list(units)]
        return [min(n, round(sum(row[level] for row in known) / len(known))) for level, n in enumerate(units)]

    def _kept(self, net: PlasticGenerator, task: int) -> list[Tensor]:
        """By level, the noise first: which units these are, drawn at random."""
        chosen = [torch.ones(net.noise, dtype=torch.bool)]
        for level, (n, count) in enumerate(zip(net.units, self.kept(task, net.units), strict=True)):
            order = torch.randperm(n, generator=generator(0, "benchmark units", task, level))
            chosen.append(order < count)
        return chosen


def _draw(reserved: Tensor, between: Tensor, counts: tuple[int, int], draws: torch.Generator) -> Tensor:
    """A mask with so many of the free and of the reserved entries, all of it `between` units that are kept."""
    flat, inside = reserved.flatten(), between.flatten()
    opened = torch.zeros_like(flat)
    for part, wanted in zip((~flat, flat), counts, strict=True):
        places = (part & inside).nonzero().squeeze(1)
        some = torch.randperm(len(places), generator=draws)[:wanted]
        opened[places[some]] = True
    return opened.view_as(reserved)


def past_of(folder: Path, settings: Mapping[str, Any] | None = None) -> Past:
    """Read a run folder. `settings` replace the run's own: shares hold for other widths too."""
    plain = json.loads((folder / "config.json").read_text())["config"]
    config = compose(from_dict(plain, find_method(plain["method"]).settings), settings or {})
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    growth = [record["layers"] for record in records if record["kind"] == "growth"]
    channels = next(record["channels"] for record in records if record["kind"] == "run")
    engrams: list[Engram] = []
    resized = bool({"method.width", "method.noise"} & set(settings or {}))
    if (folder / "checkpoint.json").exists() and not resized:
        learner = reopen(folder).learner
        assert isinstance(learner, DGM), "not a run of DGM"
        engrams = learner.engrams
    return Past(
        folder,
        config,
        channels,
        shares=shares_of(growth),
        voices=[] if resized else [[layer["voices"] for layer in layers] for layers in growth if "voices" in layers[0]],
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


def new_learner(past: Past) -> DGM:
    """Before its first task."""
    config = past.config
    around = Surroundings(past.channels, config.training, config.method_settings, seed=config.seed)
    learner = find_method(config.method).build(around)
    assert isinstance(learner, DGM), "not a run of DGM"
    assert learner.settings.network == "dcgan", "the reference loop knows the chain only"
    return learner


@torch.no_grad()
def advance(learner: DGM, past: Past, tasks: int, *, classes: int = 1, batch: int = 16) -> DGM:
    """Let tasks pass as `DGM.learn` does but for the training: consolidate, reserve, grow; the solver gains columns.

    `batch`: of the noise that the norms are estimated from, once instead of fifty times.
    """
    net = learner.net
    for _ in range(tasks):
        task, seen = len(learner.engrams), len(learner.nets)
        net.begin(classes, generator=generator(0, "benchmark private", task))
        masks = past.masks(net, task)
        draws = generator(0, "benchmark noise", task)
        engram = consolidate(net, masks, range(seen, seen + classes), batches=1, batch_size=batch, generator=draws)
        for layer, mask in zip(net.plastic, masks, strict=True):
            layer.reserve_(mask)
        net.private = None
        net.grow_(generator=generator(0, "benchmark growth", task))
        learner.engrams.append(engram)
        learner.nets += extract(engram, shared_weights(net))
        learner.rehearsal.begin(len(learner.nets), task=task, begins=0.0)
    return learner


def learner_at(past: Past, task: int) -> DGM:
    """At the beginning of a task, counted from 1."""
    return advance(new_learner(past), past, task - 1)


def some_task(learner: DGM, *, classes: int = 1, images: int = 600) -> Task:
    """The next task, of noise."""
    seen = len(learner.nets)
    draws = generator(0, "benchmark images", seen)
    shape = (images, learner.around.channels, 32, 32)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=draws)
    targets = seen + torch.arange(images) % classes
    columns = tuple(range(seen + classes))
    return Task(len(learner.engrams), columns[seen:], columns, pixels, targets, ("noise",) * classes)


def sizes(past: Past, learner: DGM) -> str:
    """What the network has come to, and what the run recorded at that point."""
    done, units = len(learner.engrams), learner.net.units
    weights = sum(layer.weight.numel() for layer in learner.net.plastic)
    text = f"task {done + 1}: units {'-'.join(map(str, units))}, {weights:,} weights"
    if 0 < done <= len(past.weights) and not past.resized:
        text += f" (recorded: {'-'.join(map(str, past.units[done - 1]))}, {past.weights[done - 1]:,})"
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
    prepare(RuntimeConfig(threads=given.threads, device="cpu"))
    return dict(given.settings)
