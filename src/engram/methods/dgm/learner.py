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

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from engram import distributed
from engram.context import Context
from engram.data.examples import Examples
from engram.data.stream import Task
from engram.errors import ConfigError, RunError
from engram.gan.step import critic_name, new_critic
from engram.masking.masks import Variant
from engram.memory.class_generator import sample_evenly
from engram.memory.compact_nets import CompactNets
from engram.memory.engram import Engram, consolidate, engram_of, shared_weights
from engram.memory.forgetting import release_, without_class
from engram.memory.ledger import ledger
from engram.memory.retention import (
    Compared,
    changed_classes,
    closed_weights,
    compared_classes,
    hash_of_closed,
    largest_differences,
    redrawn_classes,
)
from engram.methods.answering import AnswerNet, classifier_answer, critic_answer, product_answer
from engram.methods.classifier import normalise
from engram.methods.classifier_phase import REPLAY_CLASSIFIER, ClassifierPhase
from engram.methods.dgm.candidates import likeness, seen_units, some_images, unit_scores
from engram.methods.dgm.feature_statistics import FeatureStatistics
from engram.methods.dgm.mask_counts import read_counts
from engram.methods.dgm.mask_notes import MaskNotes
from engram.methods.dgm.settings import DGMA_SETTINGS, DGMSettings
from engram.methods.dgm.store_images import share_of_real, store_images
from engram.methods.dgm.train_task import TaskTrainer
from engram.methods.learner import SILENT, Freed, Method, Observer, Progress, State, run_epochs
from engram.nets.architectures import graph_for
from engram.nets.critic import Critic, Replayed
from engram.nets.masked_generator import MaskedGenerator
from engram.nets.pruning import unit_limits
from engram.nets.reachability import reachable_units
from engram.seeding import generator

GAN_SHARE = 0.8
"""Roughly how much of a task's time goes into the generator; for the display only."""


CHECK_ALL = 10
"""After so many tasks every class is checked by itself again."""


class DGM:
    """The learner: a masked generator, its engrams, and a classifier.

    >>> from engram import DGM, build, load_dataset
    >>> learner = build("dgmw", load_dataset("digits"), settings={"generator.width": 4})
    >>> isinstance(learner, DGM), learner.engrams
    (True, [])
    """

    def __init__(self, ctx: Context[DGMSettings], *, variant: Variant) -> None:
        critic_name(ctx)  # one that does not go with the data is refused before anything is learned
        self.ctx, self.variant = ctx, variant
        self.settings = ctx.settings
        self.phase: Literal["idle", "generator", "classifier"] = "idle"
        self.progress = Progress()
        """Of the generator's training; the classifier has its own."""
        self.net = MaskedGenerator(
            graph_for(self.settings.generator.architecture, ctx.shape),
            ctx.shape[0],
            width=self.settings.generator.width,
            latent_dim=self.settings.generator.latent_dim,
            variant=variant,
            generator=generator(ctx.seed, "generator"),
        ).to(ctx.device)
        self.trainer: TaskTrainer | None = None
        self.engrams: list[Engram] = []
        self.nets = CompactNets(self.net)
        """By class, in order of appearance: one compact network an engram; derived from engrams and weights."""
        self.relied_on: str | None = None
        """A hash of all weights that the past relies on, taken when the task began; derived, not state."""
        self.classifier_phase = self._new_phase()
        self.critic: Critic | None = None
        """The last task's, where it is the classifier or where the next task's goes on from it."""
        self.pool: tuple[int, Examples] | None = None
        """Replayed images of one epoch, for a critic that answers; derived, not state."""
        self.statistics = FeatureStatistics(ctx) if self.settings.statistics.kept else None
        """The second memory, if it is asked for."""
        self.forgotten = 0
        """How many classes have been forgotten; names the draws of the next."""

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
            assert {*range(len(self.nets), len(task.seen))} <= {*task.class_indices}, "a new class without images"
            known, old = (len(task.seen), len(self.nets)) if self.critic_answers else (len(task.classes), 0)
            before = self.critic if self.warm else None
            own = self.settings.masks
            self.trainer = TaskTrainer(
                self.net,
                self.ctx,
                task=task.index,
                classes=len(task.classes),
                known=known,
                images=len(task),
                before=before,
                old=old,
                counts=read_counts(own.counts_of, task.index) if own.choice == "random" else None,
                units=self._seen_units(task) if own.candidates else None,
            )
            self.trainer.start_at(task)
            if not self.critic_answers:  # taken over; where it is the classifier, it answers until the task is done
                self.critic = None
            self.progress = Progress(epochs=self.settings.gan.epochs, batches=self.trainer.steps, ends=GAN_SHARE)
            self.phase = "generator"
        if self.phase == "generator":
            assert self.trainer is not None
            run_epochs(self.progress, partial(self._step, task), MaskNotes(observe, self.trainer, self.progress))
            self._consolidate(task, observe)
        if self.critic_answers:
            self.classifier_phase.end()
        else:
            self.classifier_phase.fit(self._draw, task=task, observe=observe)
        if self.settings.stores_images:
            store_images(self.classifier_phase, task, self.ctx, self._engrams_of, self.features)
        if self.statistics is not None:
            self.statistics.learn(task, self.classifier_scores)
        answers = {} if self.critic_answers else {"classifier": self.classifier_phase.classifier.bytes}
        observe.note("memory", bytes=self._kept() | answers)
        self.phase = "idle"

    def scores(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, classes seen)."""
        found = self.classifier_scores(images)
        return found if self.statistics is None else self.statistics.scores(found, images)

    def classifier_scores(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, classes seen): of the first memory alone."""
        if self.answering is None:
            return self.classifier_phase.classifier.scores(images)
        with torch.inference_mode():
            return self.answering(normalise(images.to(self.ctx.device)))[1]  # type: ignore[no-any-return]

    def other_answers(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Of each memory alone, where there are two."""
        if self.statistics is None:
            return {}
        return {"generative": self.classifier_scores, "statistical": self.statistics.lda.scores}

    def answer_net(self) -> nn.Module:
        """The classifier, or the critic's class output, and the second memory: (B, C, H, W) -> (B, classes seen)."""
        net = self._classifier_net()
        if self.statistics is None:
            return net
        return product_answer(net, self.statistics.trunk, self.statistics.head(), self.statistics.weights)

    def _classifier_net(self) -> AnswerNet:
        if self.answering is None:
            return classifier_answer(self.classifier_phase.classifier)
        return critic_answer(self.answering)

    def features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, features), what the classifier makes of them; the fixed ones behind, if any."""
        found = self._classifier_features(images)
        return found if self.statistics is None else torch.cat([found, self.statistics.lda.features(images)], 1)

    def _classifier_features(self, images: Tensor) -> Tensor:
        if self.answering is None:
            return self.classifier_phase.classifier.features(images)
        with torch.inference_mode():
            return self.answering.trunk(normalise(images.to(self.ctx.device))).cpu()

    def sample(self, class_indices: Sequence[int], count: int, *, generator: torch.Generator) -> Tensor:
        """(len(class_indices) * count, C, H, W) uint8, class by class, from the engrams alone."""
        return torch.cat([self._draw(index, count, generator) for index in class_indices])

    def retention(self) -> list[int]:
        """Indices of the classes of which a stored bit that they depend on has changed."""
        return changed_classes(self.engrams, shared_weights(self.net))

    def redrawn(self) -> list[int]:
        """Indices of the classes whose images for fixed noise are not, to the bit, what they were."""
        return redrawn_classes(self.engrams, shared_weights(self.net))

    def largest_difference(self) -> dict[int, int]:
        """By class index, in grey levels: how far today's drawings are from the references."""
        return largest_differences(self.engrams, shared_weights(self.net))

    def compared(self) -> dict[int, Compared]:
        """By class index, what these three compare; a class without an engram is not in it."""
        return compared_classes(self.engrams, shared_weights(self.net))

    # ---------------------------------------------------------------- forget, relearn

    def forget(self, class_index: int) -> Freed:
        """Drop a class from generator, head and stored images; every weight that no other class needs is drawn afresh.

        The classifier's trunk stays as it is: what it learned from the class cannot be told from the rest. `relearn`
        trains another one.
        """
        self._require_idle(f"class {class_index} cannot be forgotten")
        if not 0 <= class_index < len(self.nets):
            known = f"there are classes 0 to {len(self.nets) - 1}" if self.nets else "no class is known"
            raise ConfigError(f"class {class_index} cannot be forgotten: {known}")
        kept, before = sum(self._kept().values()), self.engrams
        self.engrams = without_class(before, class_index)
        freed = release_(self.net, before, self.engrams, generator(self.ctx.seed, "forget", self.forgotten))
        self.nets, self.relied_on = CompactNets(self.net, self.engrams), None
        self.classifier_phase.forget(class_index)
        self._forget_in_critic(class_index)
        if self.statistics is not None:
            draws = generator(self.ctx.seed, "forget-statistics", self.forgotten)
            self.statistics.forget(class_index, lambda place, count: self._draw(place, count, draws))
        self.pool, self.forgotten = None, self.forgotten + 1
        return Freed(
            weights=freed,
            all_weights=sum(layer.weight.numel() for layer in self.net.plastic),
            engrams=len(before) - len(self.engrams),
            bytes=kept - sum(self._kept().values()),
        )

    def _forget_in_critic(self, class_index: int) -> None:
        """One that answers loses its output for the class; any other has seen its images, and goes."""
        if self.answering is not None and self.nets:
            self.answering.classes.drop(class_index)
        else:
            self.critic = None

    def relearn(self, *, task_index: int, observe: Observer = SILENT) -> None:
        """Train a new classifier from drawings of all classes, and from nothing else. Until it is done the old answers.

        `task_index` names the draws. Stored images stay stored and are not shown to it.
        """
        self._require_idle("a new classifier cannot be trained")
        if self.critic_answers:
            raise RunError(
                "the critic answers here (replay.classifier=critic), and it learns beside a generator only; "
                "learn the classes anew with replay.classifier=generated"
            )
        phase, old = self._new_phase(), self.classifier_phase
        phase.begin(len(self.nets), task=task_index, begins=0.0)
        phase.fit_drawings(self._draw, task=task_index, observe=observe)
        phase.exemplars, phase.real_share = old.exemplars, old.real_share
        self.classifier_phase = phase

    def _new_phase(self) -> ClassifierPhase:
        return ClassifierPhase(self.ctx, self.settings.replay, engrams_of=self._engrams_of)

    def _engrams_of(self, class_index: int) -> int:
        return self.nets.engrams_of(class_index)

    def _require_idle(self, what: str) -> None:
        if self.phase != "idle":
            raise RunError(f"{what} in the middle of a task; finish the task first, with the run's --resume")

    # ---------------------------------------------------------------- train, consolidate, grow

    def _seen_units(self, task: Task) -> list[Tensor] | None:
        """By node, the units that a task sees; None for all. Known before it begins, so it can be part of the state."""
        graph, own, seed = self.net.graph, self.settings.masks, self.ctx.seed

        def scores() -> list[Tensor]:
            alike = likeness(self.classifier_scores(some_images(task.images, seed=seed, task=task.index)))
            draws = generator(seed, "candidates noise", task.index)
            return unit_scores(self.net.units, self.engrams, shared_weights(self.net), alike, draws=draws)

        return seen_units(
            graph,
            [layer.reserved for layer in self.net.plastic],
            unit_limits(graph, self.settings.generator.width, own.candidates),
            scores if own.candidates_by == "relevance" else None,
            draws=generator(seed, "candidates", task.index),
        )

    def _step(self, task: Task, epoch: int, batch: int) -> Mapping[str, Tensor]:
        assert self.trainer is not None
        return self.trainer.step(task, epoch, batch, self._past(task, epoch, batch) if self.critic_answers else None)

    @torch.no_grad()
    def _consolidate(self, task: Task, observe: Observer) -> None:
        """From a trained task to an engram; what it opened is reserved, and the network grows by as much."""
        assert self.trainer is not None
        seed, masks = self.ctx.seed, self.trainer.finish(task.index)
        draws, batches = generator(seed, "consolidate", task.index), self.settings.generator.bn_batches
        net, seen = self.trainer.net, self.trainer.seen
        engram = consolidate(net, masks, task.class_indices, batches=batches, generator=draws, seen=seen)
        closed = closed_weights(self.net)
        observe.note("growth", layers=self._reserve_and_grow(masks, self.trainer, task.index))
        self.engrams.append(engram)
        self.nets.add(engram)
        self.critic = self.trainer.critic if self.critic_answers or self.warm else None
        self.trainer = self.pool = None
        if self.settings.stores_images:
            self.classifier_phase.real_share = share_of_real(self.classifier_phase, task, self.settings.exemplars)
        self.progress = Progress()
        self.classifier_phase.begin(len(task.seen), task=task.index, begins=GAN_SHARE)
        found = self._check(closed)
        observe.note("retention", classes=len(self.nets), **found)
        self.relied_on = None if any(found.values()) else hash_of_closed(self.net, closed_weights(self.net))
        self.phase = "classifier"

    def _check(self, closed: Sequence[Tensor]) -> dict[str, list[int]]:
        """Classes of which stored bits, or drawings, are not what they were; `closed`: weights of tasks before this.

        The new ones by themselves, the others by one hash over all that they rely on; and every one by itself where
        that differs, now and then, and after a start, when there is nothing to compare with.
        """
        weights = shared_weights(self.net)
        held = self.relied_on is not None and self.relied_on == hash_of_closed(self.net, closed)
        some = self.engrams[-1:] if held and len(self.engrams) % CHECK_ALL else self.engrams
        return {"changed": changed_classes(some, weights), "redrawn": redrawn_classes(some, weights)}

    def _kept(self) -> dict[str, int]:
        """Bytes by part."""
        kept = ledger(self.net, self.engrams) | {"exemplars": self.classifier_phase.exemplars.bytes}
        if self.warm and self.critic is not None:
            kept["critic"] = self.critic.bytes
        if self.statistics is not None:
            kept["statistics"] = self.statistics.bytes
        return kept

    def _reserve_and_grow(self, masks: Sequence[Tensor], trainer: TaskTrainer, task: int) -> list[dict[str, int]]:
        """By layer, what the task did with its mask, how many units it keeps, and how much the layer has grown."""
        reachable = reachable_units(self.net.graph, masks)
        active = [int(reachable[edge.target - 1].sum()) for edge in self.net.graph.edges]
        whole = trainer.of_whole(masks)
        usage = [layer.reserve_(mask) for layer, mask in zip(self.net.plastic, whole, strict=True)]
        before = [(layer.weight.numel(), layer.size().units) for layer in self.net.plastic]
        self.net.task_params = None
        new = [use.newly_reserved for use in usage]
        self.net.grow_(new, rule=self.settings.masks.growth, generator=generator(self.ctx.seed, "grow", task))
        after = [(layer.weight.numel(), layer.size().units) for layer in self.net.plastic]
        return [
            {**vars(use), "weights_before": a[0], "weights_after": b[0], "units_before": a[1], "units_after": b[1]}
            | {"active_units": units, "opened_free": own.free, "opened_reserved": own.reserved}
            for use, units, own, a, b in zip(usage, active, trainer.opened, before, after, strict=True)
        ]

    # ---------------------------------------------------------------- replay

    def _past(self, task: Task, epoch: int, batch: int) -> Replayed | None:
        """Replayed images for a critic that answers, evenly over the past classes; always as many."""
        if not self.nets:
            return None
        each = self.settings.replay.critic_batch == "per-class"
        size = self.settings.gan.batch_size * (len(self.nets) if each else 1)
        if self.pool is None or self.pool[0] != epoch:
            total, classes = size * self.progress.batches, len(self.nets)
            drawn = self.classifier_phase.draw(self._draw, total, classes=classes, task=task.index, epoch=epoch)
            # one of each class after the other, in random order: so every batch holds the classes evenly
            turns = torch.cat([torch.arange(int(n)) for n in torch.bincount(drawn.targets)])
            jitter = torch.rand(len(drawn), generator=generator(self.ctx.seed, "pool", task.index, epoch))
            self.pool = epoch, drawn.rows((turns + jitter.double()).argsort())
        some = slice(batch * size, (batch + 1) * size)
        images, targets = (distributed.own(whole[some]) for whole in (self.pool[1].images, self.pool[1].targets))
        return Replayed(
            normalise(images.to(self.ctx.device)),
            targets.to(self.ctx.device),
            class_share=len(self.nets) / (len(self.nets) + len(task.classes)),
            rows=size,
        )

    def _draw(self, class_index: int, count: int, draws: torch.Generator) -> Tensor:
        return sample_evenly(self.nets[class_index], count, generator=draws)

    # ---------------------------------------------------------------- state

    def state(self) -> State:
        """For a checkpoint, in the middle of a task too."""
        if self.trainer is not None:
            self.trainer.write_back()
        state: State = {
            "phase": self.phase,
            "progress": self.progress.state(),
            "classifier_phase": self.classifier_phase.state(),
            "layers": {str(n): layer.saved(self.trainer is not None) for n, layer in enumerate(self.net.plastic)},
            "engrams": {str(n): engram.stored for n, engram in enumerate(self.engrams)},
            "forgotten": self.forgotten,
        }
        if self.trainer is not None:
            state["trainer"] = self.trainer.state()
        if self.statistics is not None:
            state["statistics"] = self.statistics.state()
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
        self.forgotten = state.get("forgotten", 0)
        self.nets, self.relied_on = CompactNets(self.net, self.engrams).make_all(), None
        if self.statistics is not None:
            self.statistics.load(state["statistics"])
        self.trainer = self.pool = self.critic = self.net.task_params = None
        if "trainer" in state:
            self.trainer = TaskTrainer.of(state["trainer"], self.net, self.ctx)
        if "critic" in state:
            self.critic = new_critic(self.ctx, state["critic"]["known"], 0)
            self.critic.load_state_dict(state["critic"]["net"])


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
