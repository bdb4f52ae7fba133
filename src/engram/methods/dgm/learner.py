"""Dynamic Generative Memory (Ostapenko et al. 2019), both variants: DGMw masks weights, DGMa masks units.

A task is learned in three phases:

    masks, finetune   a GAN on the task's images trains it into the masked generator (train_task.py)
    classifier        consolidate into an engram, reserve, grow; then learn to answer from images of *all* classes

`replay.classifier=generated` (default) is ours: the classifier sees generated images only, of the newest class too.
Where past classes are generated and the current one is real, a classifier learns to tell real from generated and calls
every real test image the newest class; evidence in which every class looks alike in kind has no such short cut.
`replay.classifier=critic` is the paper's: the critic's class output answers, trained on the task's real images and
replayed ones within the GAN training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from engram import distributed
from engram.context import Context
from engram.data.examples import Examples
from engram.data.stream import Task
from engram.gan.step import new_critic
from engram.masking.masks import Variant
from engram.memory.engram import (
    ClassGenerator,
    Engram,
    consolidate,
    content_hashes,
    engram_of,
    engram_state,
    extract,
    fingerprint,
    sample,
    shared_weights,
)
from engram.memory.exemplars import herd, pick
from engram.memory.ledger import ledger
from engram.methods.classifier import normalise
from engram.methods.classifier_phase import REPLAY_CLASSIFIER, ClassifierPhase
from engram.methods.dgm.settings import DGMA_SETTINGS, DGMSettings
from engram.methods.dgm.train_task import TaskTrainer
from engram.methods.learner import SILENT, Method, Observer, Progress, State, run_epochs
from engram.nets.architectures import graph_of
from engram.nets.critic import Critic
from engram.nets.masked_generator import MaskedGenerator
from engram.nets.reachability import reachable_units
from engram.seeding import generator

GAN_SHARE = 0.8
"""Roughly how much of a task's time goes into the generator; for the display only."""


class DGM:
    """The learner: a masked generator, its engrams, and a classifier."""

    def __init__(self, ctx: Context[DGMSettings], *, variant: Variant) -> None:
        self.ctx, self.variant = ctx, variant
        self.settings = ctx.settings
        self.phase: Literal["idle", "generator", "classifier"] = "idle"
        self.progress = Progress()
        """Of the generator's training; the classifier has its own."""
        self.net = MaskedGenerator(
            graph_of(self.settings.generator.architecture, ctx.shape[1]),
            ctx.shape[0],
            width=self.settings.generator.width,
            latent_dim=self.settings.generator.latent_dim,
            variant=variant,
            generator=generator(ctx.seed, "generator"),
        ).to(ctx.device)
        self.trainer: TaskTrainer | None = None
        self.engrams: list[Engram] = []
        self.nets: list[ClassGenerator] = []
        """One compact network per class seen, in order of appearance; derived from engrams and weights."""
        self.classifier_phase = ClassifierPhase(ctx, self.settings.replay)
        self.critic: Critic | None = None
        """The last task's, where it is the classifier or where the next task's goes on from it."""
        self.pool: tuple[int, Examples] | None = None
        """Replayed images of one epoch, for a critic that answers; derived, not state."""

    @property
    def critic_answers(self) -> bool:
        """The paper's solver: the critic's class output."""
        return self.settings.replay.classifier == "critic"

    @property
    def warm(self) -> bool:
        """A task's critic goes on from the one before."""
        return self.settings.critic.start == "warm"

    @property
    def answering(self) -> Critic | None:
        """The critic that is the classifier, once it has learned a task."""
        return self.critic if self.critic_answers else None

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        """Train the task into the generator, consolidate it, then the classifier; goes on where it was stopped."""
        if self.phase == "idle":
            known = len(task.seen) if self.critic_answers else len(task.classes)
            before = self.critic if self.warm else None
            self.trainer = TaskTrainer(
                self.net, self.ctx, task=task.index, classes=len(task.classes), known=known, before=before
            )
            if not self.critic_answers:  # taken over; where it is the classifier, it answers until the task is done
                self.critic = None
            self.progress = Progress(epochs=self.settings.gan.epochs, batches=self.trainer.steps, ends=GAN_SHARE)
            self.phase = "generator"
        if self.phase == "generator":
            run_epochs(self.progress, partial(self._step, task), _MaskNotes(observe, self))
            self._consolidate(task, observe)
        if self.critic_answers:
            self.classifier_phase.end()
        else:
            self.classifier_phase.fit(self._draw, task=task, observe=observe)
        self.phase = "idle"

    def scores(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, classes seen)."""
        if self.answering is None:
            return self.classifier_phase.classifier.scores(images)
        with torch.inference_mode():
            return self.answering(normalise(images.to(self.ctx.device)))[1]  # type: ignore[no-any-return]

    def features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, features), what the classifier makes of them."""
        if self.answering is None:
            return self.classifier_phase.classifier.features(images)
        with torch.inference_mode():
            return self.answering.trunk(normalise(images.to(self.ctx.device))).cpu()

    def sample(self, class_indices: Sequence[int], count: int, *, generator: torch.Generator) -> Tensor:
        """(len(class_indices) * count, C, H, W) uint8, class by class, from the engrams alone."""
        return torch.cat([sample(self.nets[index], count, generator=generator) for index in class_indices])

    def retention(self) -> list[int]:
        """Indices of the classes of which a stored bit that they depend on has changed."""
        weights = shared_weights(self.net)
        return [
            index
            for engram in self.engrams
            for index, known, now in zip(
                engram.class_indices, engram.contents, content_hashes(engram, weights), strict=True
            )
            if now != known
        ]

    def redrawn(self) -> list[int]:
        """Indices of the classes whose images for fixed noise are not, to the bit, what they were."""
        weights = shared_weights(self.net)
        return [
            index
            for engram in self.engrams
            for net, index, known in zip(
                extract(engram, weights), engram.class_indices, engram.fingerprints, strict=True
            )
            if fingerprint(net, index) != known
        ]

    # ---------------------------------------------------------------- train, consolidate, grow

    def _step(self, task: Task, epoch: int, batch: int) -> Mapping[str, Tensor]:
        assert self.trainer is not None
        return self.trainer.step(task, epoch, batch, self._past(task, epoch, batch) if self.critic_answers else None)

    @torch.no_grad()
    def _consolidate(self, task: Task, observe: Observer) -> None:
        """From a trained task to an engram; what it opened is reserved, and the network grows by as much."""
        assert self.trainer is not None
        seed, masks = self.ctx.seed, self.trainer.finish(task.index)
        draws, batches = generator(seed, "consolidate", task.index), self.settings.generator.bn_batches
        engram = consolidate(self.net, masks, task.class_indices, batches=batches, generator=draws)
        observe.note("growth", layers=self._reserve_and_grow(masks, task.index))
        self.engrams.append(engram)
        self.nets += extract(engram, shared_weights(self.net))
        self.critic = self.trainer.critic if self.critic_answers or self.warm else None
        self.trainer = self.pool = None
        if self.settings.stores_images:
            self._store(task)
        kept = ledger(self.net, self.engrams) | {"exemplars": self.classifier_phase.exemplars.bytes}
        if self.warm and self.critic is not None:
            kept["critic"] = self.critic.bytes
        observe.note("memory", bytes=kept)
        observe.note("retention", classes=len(self.nets), changed=self.retention(), redrawn=self.redrawn())
        self.progress = Progress()
        self.classifier_phase.begin(len(task.seen), task=task.index, begins=GAN_SHARE)
        self.phase = "classifier"

    def _reserve_and_grow(self, masks: Sequence[Tensor], task: int) -> list[dict[str, int]]:
        """By layer, what the task did with its mask, how many units it keeps, and how much the layer has grown."""
        reachable = reachable_units(self.net.graph, masks)
        active = [int(reachable[edge.target - 1].sum()) for edge in self.net.graph.edges]
        usage = [layer.reserve_(mask) for layer, mask in zip(self.net.plastic, masks, strict=True)]
        before = [(layer.weight.numel(), layer.size().units) for layer in self.net.plastic]
        self.net.task_params = None
        self.net.grow_(generator=generator(self.ctx.seed, "grow", task))
        after = [(layer.weight.numel(), layer.size().units) for layer in self.net.plastic]
        return [
            {**vars(use), "weights_before": a[0], "weights_after": b[0], "units_before": a[1], "units_after": b[1]}
            | {"active_units": units}
            for use, units, a, b in zip(usage, active, before, after, strict=True)
        ]

    def _store(self, task: Task) -> None:
        """The relaxed setting: keep some real images of the task's classes; a budget is shared out anew among all."""
        own, phase, mean = self.settings.exemplars, self.classifier_phase, len(task) // len(task.classes)
        per_class = own.budget // len(task.seen) if own.budget else round(own.ratio * mean)
        phase.exemplars.shrink(per_class)
        for index in task.class_indices:
            rows = torch.nonzero(task.targets == index).squeeze(1)
            if own.selection == "herding":
                best = herd(phase.classifier.features(task.images[rows]), per_class)
            else:
                best = pick(per_class, len(rows), generator=generator(self.ctx.seed, "store", index))
            phase.exemplars.add(index, task.images[rows[best]])
        phase.real_share = min(1.0, per_class / mean)

    # ---------------------------------------------------------------- replay

    def _past(self, task: Task, epoch: int, batch: int) -> tuple[Tensor, Tensor] | None:
        """A batch of replayed images, evenly over the past classes, for a critic that answers; always of one size."""
        if not self.nets:
            return None
        size = self.settings.gan.batch_size
        if self.pool is None or self.pool[0] != epoch:
            total, classes = size * self.progress.batches, len(self.nets)
            drawn = self.classifier_phase.draw(self._draw, total, classes=classes, task=task.index, epoch=epoch)
            order = torch.randperm(len(drawn), generator=generator(self.ctx.seed, "pool", task.index, epoch))
            self.pool = epoch, drawn.rows(order)
        some = slice(batch * size, (batch + 1) * size)
        images, targets = (distributed.own(whole[some]) for whole in (self.pool[1].images, self.pool[1].targets))
        return normalise(images.to(self.ctx.device)), targets.to(self.ctx.device)

    def _draw(self, class_index: int, count: int, draws: torch.Generator) -> Tensor:
        return sample(self.nets[class_index], count, generator=draws)

    # ---------------------------------------------------------------- state

    def state(self) -> State:
        """For a checkpoint, in the middle of a task too."""
        if self.trainer is not None:
            self.trainer.write_back()
        state: State = {
            "phase": self.phase,
            "progress": self.progress.state(),
            "classifier_phase": self.classifier_phase.state(),
            "layers": {str(n): dict(layer.state_dict()) for n, layer in enumerate(self.net.plastic)},
            "engrams": {str(n): engram_state(engram) for n, engram in enumerate(self.engrams)},
        }
        if self.trainer is not None:
            state["trainer"] = self.trainer.state()
        if self.critic is not None:
            state["critic"] = {"known": self.critic.classes.classes, "net": dict(self.critic.state_dict())}
        return state

    def load(self, state: State) -> None:
        """Back from a checkpoint."""
        device = self.ctx.device
        self.phase = state["phase"]
        self.progress = Progress.of(state["progress"], device)
        self.classifier_phase.load(state["classifier_phase"])
        for layer, saved in zip(self.net.plastic, state["layers"].values(), strict=True):
            layer.restore_(saved, device)
        self.engrams = [engram_of(saved) for saved in state["engrams"].values()]
        self.nets = [net for engram in self.engrams for net in extract(engram, shared_weights(self.net))]
        self.trainer = self.pool = self.critic = self.net.task_params = None
        if "trainer" in state:
            self.trainer = TaskTrainer.of(state["trainer"], self.net, self.ctx)
        if "critic" in state:
            self.critic = new_critic(self.ctx, state["critic"]["known"], 0)
            self.critic.load_state_dict(state["critic"]["net"])


class _MaskNotes:
    """An observer's observer: notes the state of the masks before it passes an epoch on."""

    def __init__(self, observe: Observer, dgm: DGM) -> None:
        self.observe, self.dgm = observe, dgm
        self.batch, self.note = observe.batch, observe.note

    def epoch(self, losses: Mapping[str, float]) -> None:
        trainer = self.dgm.trainer
        assert trainer is not None
        if not trainer.fixed:
            done = min(self.dgm.progress.epoch, trainer.mask_epochs)
            s = trainer.scale_at_end(done)
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
    settings=DGMSettings(),
    classifier=REPLAY_CLASSIFIER,
    summary="Dynamic Generative Memory with masks over single weights",
    stores="a generator and a mask per task",
    source="Ostapenko et al. 2019",
    draws=True,
)

DGMA = Method(
    build=partial(DGM, variant="units"),
    settings=DGMA_SETTINGS,
    classifier=REPLAY_CLASSIFIER,
    summary="Dynamic Generative Memory with masks over units",
    stores="a generator and a mask per task",
    source="Ostapenko et al. 2019",
    draws=True,
)
