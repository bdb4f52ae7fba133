"""Dynamic Generative Memory (Ostapenko et al. 2019), both variants: DGMw masks weights, DGMa masks units.

A task is learned in three movements:

    masks, polish   a GAN on the task's images imprints it into the plastic generator (imprint.py)
    solve           consolidate into an engram, reserve, grow; then learn to answer from images of *all* classes

`solver=symmetric` (default) is ours: the solver sees generated images only, of the newest class too. Where past classes
are generated and the current one is real, a classifier learns to tell real from generated and calls every real test
image the newest class; evidence in which every class looks alike in kind has no such short cut. `solver=shared` is the
paper's: the critic's class output answers, trained on the task's real images and replayed ones within the GAN training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from engram import parallel
from engram.data.stream import Task
from engram.memory.exemplars import herd, pick
from engram.memory.generative import (
    ClassNet,
    Engram,
    consolidate,
    engram_of,
    engram_state,
    extract,
    fingerprint,
    sample,
    shared_weights,
)
from engram.memory.ledger import ledger
from engram.methods.adversarial import Critic, new_critic
from engram.methods.dgm_settings import DGMaSettings, DGMwSettings
from engram.methods.imprint import Imprint
from engram.methods.learner import SILENT, Clock, Method, Observer, State, Surroundings, tick
from engram.methods.rehearsal import Rehearsal
from engram.methods.solver import Examples, normalise
from engram.nets.generator import PlasticGenerator
from engram.plastic.masks import Variant
from engram.plastic.wiring import WIRINGS, alive_units
from engram.seeding import generator

GAN_SHARE = 0.8
"""Roughly how much of a task's time goes into the generator; for the display only."""


class DGM:
    """The learner: a plastic generator, its engrams, and a solver."""

    def __init__(self, around: Surroundings, *, variant: Variant) -> None:
        self.around, self.variant = around, variant
        self.settings: DGMwSettings = around.settings
        self.stage: Literal["idle", "imprint", "solve"] = "idle"
        self.clock = Clock()
        """Of the imprinting; the solver has its own."""
        self.net = PlasticGenerator(
            WIRINGS[self.settings.network],
            around.channels,
            width=self.settings.width,
            noise=self.settings.noise,
            variant=variant,
            generator=generator(around.seed, "generator"),
        ).to(around.device)
        self.imprint: Imprint | None = None
        self.engrams: list[Engram] = []
        self.nets: list[ClassNet] = []
        """One compact network per class seen, in order of appearance; derived from engrams and weights."""
        self.rehearsal = Rehearsal(
            around,
            replay=self.settings.replay,
            keep=self.settings.keep,
            real_now=self.settings.real_now,
            distil=self.settings.distil,
        )
        self.critic: Critic | None = None
        """The last task's, where it is the solver or where the next task's goes on from it."""
        self.pool: tuple[int, Examples] | None = None
        """Replayed images of one epoch, for the paper's solver; derived, not state."""

    @property
    def shared(self) -> bool:
        """The paper's solver: the critic's class output."""
        return self.settings.solver == "shared"

    @property
    def warm(self) -> bool:
        """A task's critic goes on from the one before."""
        return self.settings.critic_start == "warm"

    @property
    def answering(self) -> Critic | None:
        """The critic that is the solver, once it has learned a task."""
        return self.critic if self.shared else None

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        if self.stage == "idle":
            known = len(task.seen) if self.shared else len(task.classes)
            before = self.critic if self.warm else None
            self.imprint = Imprint(
                self.net, self.around, task=task.index, classes=len(task.classes), known=known, before=before
            )
            if not self.shared:  # taken over; where it is the solver, it answers until the task is done
                self.critic = None
            self.clock = Clock(epochs=self.settings.epochs, batches=self.imprint.steps, ends=GAN_SHARE)
            self.stage = "imprint"
        if self.stage == "imprint":
            tick(self.clock, partial(self._imprint_step, task), _MaskNotes(observe, self))
            self._consolidate(task, observe)
        if self.shared:
            self.rehearsal.end()
        else:
            self.rehearsal.fit(self._draw, task=task, observe=observe)
        self.stage = "idle"

    def scores(self, images: Tensor) -> Tensor:
        if self.answering is None:
            return self.rehearsal.solver.scores(images)
        with torch.inference_mode():
            return self.answering(normalise(images.to(self.around.device)))[1]  # type: ignore[no-any-return]

    def features(self, images: Tensor) -> Tensor:
        """(B, C, 32, 32) uint8 -> (B, features), what the solver makes of them."""
        if self.answering is None:
            return self.rehearsal.solver.features(images)
        with torch.inference_mode():
            return self.answering.trunk(normalise(images.to(self.around.device))).cpu()  # type: ignore[no-any-return]

    def sample(self, columns: Sequence[int], count: int, *, generator: torch.Generator) -> Tensor:
        """(len(columns) * count, C, 32, 32) uint8, class by class, from the engrams alone."""
        return torch.cat([sample(self.nets[column], count, generator=generator) for column in columns])

    def retention(self) -> list[int]:
        """Columns whose images for fixed noise are not, to the bit, what they were when their task ended."""
        weights = shared_weights(self.net)
        return [
            column
            for engram in self.engrams
            for net, column, known in zip(extract(engram, weights), engram.columns, engram.fingerprints, strict=True)
            if fingerprint(net, column) != known
        ]

    # ---------------------------------------------------------------- imprint, consolidate, grow

    def _imprint_step(self, task: Task, epoch: int, batch: int) -> Mapping[str, Tensor]:
        assert self.imprint is not None
        return self.imprint.step(task, epoch, batch, self._past(task, epoch, batch) if self.shared else None)

    @torch.no_grad()
    def _consolidate(self, task: Task, observe: Observer) -> None:
        """From a trained task to an engram; what it opened is reserved, and the network grows by as much."""
        assert self.imprint is not None
        seed, masks = self.around.seed, self.imprint.finish(task.index)
        draws = generator(seed, "consolidate", task.index)
        engram = consolidate(self.net, masks, task.columns, batches=self.settings.statistics, generator=draws)
        alive = alive_units(self.net.wiring, masks, self.variant)
        voices = [int(alive[wire.writes - 1].sum()) for wire in self.net.wiring.wires]
        usage = [layer.reserve_(mask) for layer, mask in zip(self.net.plastic, masks, strict=True)]
        before = [(layer.weight.numel(), layer.size().units) for layer in self.net.plastic]
        self.net.private = None
        self.net.grow_(generator=generator(seed, "grow", task.index))
        self.engrams.append(engram)
        self.nets += extract(engram, shared_weights(self.net))
        self.critic = self.imprint.critic if self.shared or self.warm else None
        self.imprint = self.pool = None
        if self.settings.stores_images:
            self._store(task)
        after = [(layer.weight.numel(), layer.size().units) for layer in self.net.plastic]
        layers = [
            {**vars(use), "weights_before": a[0], "weights_after": b[0], "units_before": a[1], "units_after": b[1]}
            | {"voices": kept}
            for use, kept, a, b in zip(usage, voices, before, after, strict=True)
        ]
        observe.note("growth", layers=layers)
        kept = ledger(self.net, self.engrams) | {"exemplars": self.rehearsal.stored.bytes}
        if self.warm and self.critic is not None:
            kept["critic"] = self.critic.bytes
        observe.note("memory", bytes=kept)
        observe.note("retention", classes=len(self.nets), changed=self.retention())
        self.clock = Clock()
        self.rehearsal.begin(len(task.seen), task=task.index, begins=GAN_SHARE)
        self.stage = "solve"

    def _store(self, task: Task) -> None:
        """The relaxed setting: keep some real images of the task's classes; K is shared out anew among all."""
        mean = len(task) // len(task.classes)
        per_class = self.settings.K // len(task.seen) if self.settings.K else round(self.settings.r * mean)
        self.rehearsal.stored.shrink(per_class)
        for column in task.columns:
            rows = torch.nonzero(task.targets == column).squeeze(1)
            if self.settings.selection == "herding":
                features = [self.rehearsal.solver.features(task.images[some]) for some in torch.split(rows, 500)]
                best = herd(torch.cat(features), per_class)
            else:
                best = pick(per_class, len(rows), generator=generator(self.around.seed, "store", column))
            self.rehearsal.stored.add(column, task.images[rows[best]])
        self.rehearsal.real_share = min(1.0, per_class / mean)

    # ---------------------------------------------------------------- replay

    def _past(self, task: Task, epoch: int, batch: int) -> Examples | None:
        """A batch of replayed images, evenly over the past classes, for the paper's solver; always of one size."""
        if not self.nets:
            return None
        size = self.settings.batch_size
        if self.pool is None or self.pool[0] != epoch:
            total, columns = size * self.clock.batches, len(self.nets)
            images, targets = self.rehearsal.draw(self._draw, total, columns=columns, task=task.index, epoch=epoch)
            order = torch.randperm(len(images), generator=generator(self.around.seed, "pool", task.index, epoch))
            self.pool = epoch, (images[order], targets[order])
        some = slice(batch * size, (batch + 1) * size)
        images, targets = (parallel.own(whole[some]) for whole in self.pool[1])
        return normalise(images.to(self.around.device)), targets.to(self.around.device)

    def _draw(self, column: int, count: int, draws: torch.Generator) -> Tensor:
        return sample(self.nets[column], count, generator=draws)

    # ---------------------------------------------------------------- state

    def state(self) -> State:
        if self.imprint is not None:
            self.imprint.settle()
        state: State = {
            "stage": self.stage,
            "clock": self.clock.state(),
            "rehearsal": self.rehearsal.state(),
            "layers": {str(n): dict(layer.state_dict()) for n, layer in enumerate(self.net.plastic)},
            "engrams": {str(n): engram_state(engram) for n, engram in enumerate(self.engrams)},
        }
        if self.imprint is not None:
            state["imprint"] = self.imprint.state()
        if self.critic is not None:
            state[self._critics_name] = {"known": self.critic.classes.classes, "net": dict(self.critic.state_dict())}
        return state

    @property
    def _critics_name(self) -> str:
        """In the state; runs from before a critic could go on have it where it answers."""
        return "answering" if self.shared else "critic"

    def load(self, state: State) -> None:
        device = self.around.device
        self.stage = state["stage"]
        self.clock = Clock.of(state["clock"], device)
        self.rehearsal.load(state["rehearsal"])
        for layer, saved in zip(self.net.plastic, state["layers"].values(), strict=True):
            layer.restore_(saved, device)
        self.engrams = [engram_of(saved) for saved in state["engrams"].values()]
        self.nets = [net for engram in self.engrams for net in extract(engram, shared_weights(self.net))]
        self.imprint = self.pool = self.critic = self.net.private = None
        if "imprint" in state:
            self.imprint = Imprint.of(state["imprint"], self.net, self.around)
        if self._critics_name in state:
            saved = state[self._critics_name]
            self.critic = new_critic(self.around, saved["known"], 0)
            self.critic.load_state_dict(saved["net"])


class _MaskNotes:
    """An observer's observer: notes the state of the masks before it passes an epoch on."""

    def __init__(self, observe: Observer, dgm: DGM) -> None:
        self.observe, self.dgm = observe, dgm
        self.batch, self.note = observe.batch, observe.note

    def epoch(self, losses: Mapping[str, float]) -> None:
        imprint = self.dgm.imprint
        assert imprint is not None
        if not imprint.fixed:
            done = min(self.dgm.clock.epoch, imprint.mask_epochs)
            s = imprint.scale_at_end(done)
            masks = [layer.soft_mask(s).detach() for layer in self.dgm.net.plastic]
            self.note(
                "mask",
                epoch=done,
                s=s,
                occupancy=[round(mask.mean().item(), 6) for mask in masks],
                sample=[[round(v, 4) for v in _spread(mask, MASK_SAMPLE)] for mask in masks],
            )
        self.observe.epoch(losses)


MASK_SAMPLE = 16
"""Mask entries per layer whose values are recorded after each epoch, always the same ones."""


def _spread(mask: Tensor, count: int) -> list[float]:
    """Values at evenly spread places."""
    flat = mask.flatten()
    places = torch.linspace(0, flat.numel() - 1, min(count, flat.numel())).round().long()
    return [float(value) for value in flat[places].tolist()]


DGMW = Method(
    build=partial(DGM, variant="weights"),
    settings=DGMwSettings,
    summary="Dynamic Generative Memory with masks over single weights",
    stores="a generator and a mask per task",
    source="Ostapenko et al. 2019",
)

DGMA = Method(
    build=partial(DGM, variant="units"),
    settings=DGMaSettings,
    summary="Dynamic Generative Memory with masks over units",
    stores="a generator and a mask per task",
    source="Ostapenko et al. 2019",
)
