"""The classifier, the network that answers (the paper's solver), and its training, which all methods share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram import distributed
from engram.config import MethodSettings
from engram.context import Context
from engram.data.examples import Examples
from engram.errors import RunError
from engram.kinds import to_network
from engram.methods.augment import changed
from engram.methods.learner import Observer, Progress, State, run_epochs
from engram.nets.architectures import classifier_trunk
from engram.nets.classifier import GrowingHead
from engram.seeding import generator

Loss = Callable[[Tensor, Tensor, Examples], Tensor]
"""(the batch as the network saw it, its scores, its examples on the device) -> the loss to descend"""

FEATURE_BATCH = 500


class Classifier:
    """Trunk and growing head, their optimiser, and the place within the task.

    A method holds one and calls `begin` when a task starts and `fit` to learn it. Every random draw is named by
    (seed, purpose, task, epoch, batch), so a classifier saved in the middle of an epoch goes on with the same draws.
    """

    def __init__(self, ctx: Context[MethodSettings]) -> None:
        self.ctx = ctx
        self.progress = Progress()
        self.net = self._fresh(0)
        self._optimiser: torch.optim.Optimizer | None = None

    @property
    def optimiser(self) -> torch.optim.Optimizer:
        """Of the task; made where it is first needed, as it brings torch's compiler: a second for whoever only asks."""
        if self._optimiser is None:
            rate = self.ctx.classifier.learning_rate
            self._optimiser = torch.optim.AdamW(self.net.parameters(), lr=rate, weight_decay=0.0, fused=True)
        return self._optimiser

    @property
    def classes(self) -> int:
        """How many it tells apart."""
        return self._head.classes

    def begin(self, classes: int, *, task: int, images: int, start: Literal["fresh", "warm"]) -> None:
        """Make room for so many classes in all and stand at the start of a task."""
        if start == "fresh":
            self.net = self._fresh(task)
        new = classes - self.classes
        if new:
            self._head.grow(new, generator=generator(self.ctx.seed, "head", task))
        settings = self.ctx.classifier
        self._optimiser = None
        self.progress = Progress(epochs=settings.epochs, batches=max(1, images // settings.batch_size))

    def fit(
        self,
        data: Callable[[int], Examples],
        *,
        task: int,
        observe: Observer,
        loss: Loss | None = None,
        before_step: Callable[[], None] | None = None,
        after_step: Callable[[], None] | None = None,
    ) -> None:
        """Learn the examples of each epoch, from where the progress stands to the end of the task.

        Cross-entropy, unless `loss` is given. `before_step` finds the loss's gradients in place and may add to them.
        """
        settings, seed, device = self.ctx.classifier, self.ctx.seed, self.ctx.device
        examples, order, ready = Examples(torch.empty(0), torch.empty(0)), torch.empty(0), -1

        def step(epoch: int, batch: int) -> Mapping[str, Tensor]:
            nonlocal examples, order, ready
            if ready != epoch:
                examples = data(epoch)
                order = torch.randperm(len(examples), generator=generator(seed, "batches", task, epoch))
                ready = epoch
            some = examples.rows(order[batch * settings.batch_size : (batch + 1) * settings.batch_size])
            x = normalise(some.images.to(device))
            if settings.augment != "none":
                x = changed(x, settings.augment, generator=generator(seed, "augment", task, epoch, batch))
            _set_rate(self.optimiser, one_cycle(self.progress.share, settings.learning_rate))
            # shared out last: every process changes the whole batch in the same way
            rows, x, some = len(some), distributed.own(x), _own(some, device)
            with self.ctx.autocast():
                scores = self.net(x)
            scores = scores.float()
            if loss is None:
                value = F.cross_entropy(scores, some.targets, label_smoothing=settings.label_smoothing)
            else:
                value = loss(x, scores, some)
            self.optimiser.zero_grad()
            distributed.backward(value, self.net.parameters(), rows=rows)
            if before_step is not None:
                before_step()
            self.optimiser.step()
            if after_step is not None:
                after_step()
            return distributed.mean({"class": value}, rows=rows)

        self.net.train()
        run_epochs(self.progress, step, observe)
        self.progress = Progress()

    @property
    def bytes(self) -> int:
        """As it would lie on disc."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.net.state_dict().values())

    @torch.inference_mode()
    def scores(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, classes)."""
        self.net.eval()
        scores: Tensor = self.net(normalise(images.to(self.ctx.device)))
        return scores

    @torch.inference_mode()
    def features(self, images: Tensor) -> Tensor:
        """(N, C, H, W) uint8 -> (N, features), what the trunk makes of them, in batches."""
        self.net.eval()
        parts = [self.net[0](normalise(some.to(self.ctx.device))).cpu() for some in torch.split(images, FEATURE_BATCH)]
        return torch.cat(parts)

    def forget(self, class_index: int) -> None:
        """Between tasks: take a class's output away, and the optimiser's moments. The trunk stays."""
        self._head.drop(class_index)
        self._optimiser = None

    def state(self) -> State:
        """For a checkpoint. The optimiser's moments are part of it while a task is under way: each begins anew."""
        return {
            "classes": self.classes,
            "net": dict(self.net.state_dict()),
            "optimiser": optimiser_state(self.optimiser) if self.progress.running else {},
            "progress": self.progress.state(),
        }

    def load(self, state: State) -> None:
        """Back from a checkpoint."""
        self.net = self._fresh(0)
        self._head.grow(state["classes"], generator=generator(0))
        self.net.load_state_dict(state["net"])
        self._optimiser = None
        if state["optimiser"]:
            load_optimiser(self.optimiser, state["optimiser"])
        self.progress = Progress.of(state["progress"], self.ctx.device)

    @property
    def _head(self) -> GrowingHead:
        head = self.net[1]
        assert isinstance(head, GrowingHead)
        return head

    def _fresh(self, task: int) -> nn.Sequential:
        settings, draws = self.ctx.classifier, generator(self.ctx.seed, "trunk", task)
        trunk = classifier_trunk(settings.architecture, self.ctx.shape, settings.width, generator=draws)
        net = nn.Sequential(trunk, GrowingHead(trunk.features)).to(self.ctx.device)
        # a quarter faster than the usual order of memory on a CPU; `normalise` gives images the same order
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _own(examples: Examples, device: torch.device) -> Examples:
    """This process's rows, on the device; the images are not needed any more."""
    among_new = examples.among_new
    if among_new is not None:
        among_new = distributed.own(among_new).to(device)
    return Examples(examples.images[:0], distributed.own(examples.targets).to(device), among_new)


def frozen_classifier(ctx: Context[MethodSettings], classes: int, weights: State) -> nn.Module:
    """A classifier's network as it was saved, to be asked and not to be trained."""
    old = Classifier(ctx)
    old.begin(classes, task=0, images=1, start="warm")
    old.net.load_state_dict(weights)
    return old.net.eval()


normalise = to_network


def one_cycle(share: float, peak: float) -> float:
    """Learning rate at a share of the task (Smith & Topin 2019): a cosine up to `peak` over the first 30 %, then down.

    >>> [round(one_cycle(share, 1.0), 3) for share in (0.0, 0.3, 1.0)]
    [0.04, 1.0, 0.0]
    """
    low, end, turn = peak / 25, peak / 1e4, 0.3
    if share < turn:
        start, stop, part = low, peak, share / turn
    else:
        start, stop, part = peak, end, (share - turn) / (1 - turn)
    return stop + (start - stop) * (1 + math.cos(math.pi * part)) / 2


def _set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate


def optimiser_state(optimiser: torch.optim.Optimizer) -> State:
    """Moments and step counts, by the parameter's number. Settings come from the configuration."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    return {str(n): dict(optimiser.state[p]) for n, p in enumerate(parameters) if p in optimiser.state}


def load_optimiser(optimiser: torch.optim.Optimizer, state: State) -> None:
    """Put saved moments back; each takes the device and the memory layout of its parameter."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for number, saved in state.items():
        p = parameters[int(number)]
        if any(value.dim() and value.shape != p.shape for value in saved.values()):
            raise RunError(
                "the checkpoint's moments are not those of the network's weights: it was changed by hand, or saved by "
                "another version of engram; finish the task with that version, or start the run anew"
            )
        optimiser.state[p] = {
            name: torch.empty_like(p, dtype=value.dtype).copy_(value) if value.shape == p.shape else value.to(p.device)
            for name, value in saved.items()
        }
