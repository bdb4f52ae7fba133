"""The solver, the network that answers, and the class step that several methods share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from engram import parallel
from engram.config import TrainingConfig
from engram.errors import RunError
from engram.methods.augment import changed
from engram.methods.learner import Clock, Observer, State, Surroundings, tick
from engram.nets.dcgan import GrowingHead, Trunk
from engram.nets.residual import ResNet18
from engram.seeding import generator

Examples = tuple[torch.Tensor, torch.Tensor]
"""(N, C, 32, 32) uint8 images, (N,) columns of the answer"""

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(the batch as the network saw it, its scores, its columns) -> the loss to descend"""


class Solver:
    """Trunk and growing head, their optimiser, and the place within the task.

    A method holds one and calls `begin` when a task starts and `fit` to learn it. Every random draw is named by
    (seed, purpose, task, epoch, batch), so a solver saved in the middle of an epoch goes on with the same draws.
    """

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.clock = Clock()
        self.net = self._fresh(0)
        self.optimiser = adam(self.net, around.training)

    @property
    def classes(self) -> int:
        """Columns of the answer."""
        return self._head.classes

    def begin(self, columns: int, *, task: int, images: int, start: Literal["fresh", "warm"]) -> None:
        """Make room for all `columns` classes and set the clock to the start of a task."""
        if start == "fresh":
            self.net = self._fresh(task)
        new = columns - self.classes
        if new:
            self._head.grow(new, generator=generator(self.around.seed, "head", task))
        training = self.around.training
        self.optimiser = adam(self.net, training)
        self.clock = Clock(epochs=training.epochs, batches=max(1, images // training.batch_size))

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
        """Learn an epoch's images and targets, from where the clock stands to the end of the task.

        Cross-entropy, unless `loss` is given. `before_step` finds the loss's gradients in place and may add to them.
        """
        training, seed, device = self.around.training, self.around.seed, self.around.device
        images = targets = order = torch.empty(0)
        ready = -1

        def step(epoch: int, batch: int) -> Mapping[str, torch.Tensor]:
            nonlocal images, targets, order, ready
            if ready != epoch:
                images, targets = data(epoch)
                order = torch.randperm(len(images), generator=generator(seed, "batches", task, epoch))
                ready = epoch
            rows = order[batch * training.batch_size : (batch + 1) * training.batch_size]
            x = normalise(images[rows].to(device))
            if training.augment != "none":
                x = changed(x, training.augment, generator=generator(seed, "augment", task, epoch, batch))
            set_rate(self.optimiser, training, self.clock.share)
            # shared out last: every process changes the whole batch in the same way
            x, truth = parallel.own(x), parallel.own(targets[rows]).to(device)
            with self.around.lowered():
                scores = self.net(x)
            scores = scores.float()
            if loss is None:
                value = F.cross_entropy(scores, truth, label_smoothing=training.label_smoothing)
            else:
                value = loss(x, scores, truth)
            self.optimiser.zero_grad()
            parallel.backward(value, self.net.parameters(), rows=len(rows))
            if before_step is not None:
                before_step()
            self.optimiser.step()
            if after_step is not None:
                after_step()
            return parallel.mean({"class": value}, rows=len(rows))

        self.net.train()
        tick(self.clock, step, observe)
        self.clock = Clock()

    @torch.inference_mode()
    def scores(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, 32, 32) uint8 -> (B, classes)."""
        self.net.eval()
        scores: torch.Tensor = self.net(normalise(images.to(self.around.device)))
        return scores

    @torch.inference_mode()
    def features(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, 32, 32) uint8 -> (B, features), what the trunk makes of them."""
        self.net.eval()
        features: torch.Tensor = self.net[0](normalise(images.to(self.around.device)))
        return features.cpu()

    def state(self) -> State:
        return {
            "classes": self.classes,
            "net": dict(self.net.state_dict()),
            "optimiser": optimiser_state(self.optimiser),
            "clock": self.clock.state(),
        }

    def load(self, state: State) -> None:
        self.net = self._fresh(0)
        self._head.grow(state["classes"], generator=generator(0))
        self.net.load_state_dict(state["net"])
        self.optimiser = adam(self.net, self.around.training)
        load_optimiser(self.optimiser, state["optimiser"])
        self.clock = Clock.of(state["clock"], self.around.device)

    @property
    def _head(self) -> GrowingHead:
        head = self.net[1]
        assert isinstance(head, GrowingHead)
        return head

    def _fresh(self, task: int) -> nn.Sequential:
        training, draws = self.around.training, generator(self.around.seed, "trunk", task)
        kind = ResNet18 if training.network == "resnet18" else Trunk
        trunk = kind(self.around.channels, training.width, generator=draws)
        net = nn.Sequential(trunk, GrowingHead(trunk.features)).to(self.around.device)
        # a quarter faster than the usual order of memory on a CPU; `normalise` gives images the same order
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def solver_net(around: Surroundings, classes: int, weights: State) -> nn.Module:
    """A solver's network as it was saved, to be asked and not to be trained."""
    old = Solver(around)
    old.begin(classes, task=0, images=1, start="warm")
    old.net.load_state_dict(weights)
    return old.net.eval()


def normalise(images: torch.Tensor) -> torch.Tensor:
    """uint8 0 … 255 -> float -1 … 1. One batch at a time: the whole set never exists as floats."""
    return images.to(torch.float32, memory_format=torch.channels_last).div_(127.5).sub_(1.0)


def adam(net: nn.Module, training: TrainingConfig) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        net.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True
    )


def one_cycle(share: float, peak: float) -> float:
    """Learning rate at a share of the task: a cosine up to `peak` over the first 30 %, then down to nearly 0.

    >>> [round(one_cycle(share, 1.0), 3) for share in (0.0, 0.3, 1.0)]
    [0.04, 1.0, 0.0]
    """
    low, end, turn = peak / 25, peak / 1e4, 0.3
    if share < turn:
        start, stop, part = low, peak, share / turn
    else:
        start, stop, part = peak, end, (share - turn) / (1 - turn)
    return stop + (start - stop) * (1 + math.cos(math.pi * part)) / 2


def set_rate(optimiser: torch.optim.Optimizer, training: TrainingConfig, share: float) -> None:
    rate = training.learning_rate
    if training.schedule == "one-cycle":
        rate = one_cycle(share, rate)
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
                "the checkpoint was saved in the middle of a task by another version of engram, which trained other "
                "parts of the network; finish the task with that version, or start the run anew"
            )
        optimiser.state[p] = {
            name: torch.empty_like(p, dtype=value.dtype).copy_(value) if value.shape == p.shape else value.to(p.device)
            for name, value in saved.items()
        }
