"""Vectors reach a learner scaled: `scaled` puts a learner behind the scale that the first task fixes.

    vectors ─ Scale ─> learner ─> scores            features, answer_net alike
    vectors <─ back ── learner: drawings

The scale is what the very first task was like, and is never changed: nothing later than a task decides how it is seen,
and no task has to be read again. It is part of the state and of the network that answers. Whoever writes a learner
needs to know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engram.data.stream import Task
from engram.memory.retention import Compared
from engram.methods.answering import AnswerNet, with_scale
from engram.methods.learner import (
    SILENT,
    AnswersApart,
    Embeds,
    Freed,
    KeepsEngrams,
    Learner,
    Observer,
    Retains,
    Samples,
    State,
    TellsCompared,
)
from engram.nets.scale import Scale


def scaled(learner: Learner, size: int) -> Learner:
    """A learner of vectors with so many numbers; it can do what the learner behind it can."""
    abilities = [mixin for protocol, mixin in _ABILITIES.items() if isinstance(learner, protocol)]
    made: Learner = type("ScaledLearner", (*abilities, ScaledLearner), {})(learner, size)
    return made


class ScaledLearner:
    """What every learner does; `within` is the learner that sees scaled vectors."""

    def __init__(self, within: Any, size: int) -> None:
        self.within, self.size = within, size
        self.scale: Scale | None = None
        """None before the first task."""

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        """Hand a scaled copy of the task on; the very first fixes the scale."""
        if self.scale is None:
            self.scale = Scale.of(task.images)
        own = Task(
            task.index,
            task.classes,
            task.seen,
            self.scale(task.images),
            task.targets,
            task.class_names,
            class_indices=task.class_indices,
        )
        try:
            self.within.learn(own, observe=observe)
        finally:
            own._close()

    def scores(self, images: Tensor) -> Tensor:
        """(B, D) -> (B, classes seen)."""
        scores: Tensor = self.within.scores(self._seen(images))
        return scores

    def answer_net(self) -> nn.Module:
        """With the scale before it: vectors (B, D) as they are stored -> (B, classes seen)."""
        net, scale = self.within.answer_net(), self.scale or Scale.blank(self.size)
        if isinstance(net, AnswerNet):
            return with_scale(net, scale)
        return nn.Sequential(Scale(scale.mean, scale.deviation), net).eval()

    def state(self) -> State:
        """The scale, and the learner's own."""
        scale = {} if self.scale is None else {"scale": dict(self.scale.state_dict())}
        return {**scale, "learner": self.within.state()}

    def load(self, state: State) -> None:
        """Back from a checkpoint."""
        self.scale = Scale(**{key: value.cpu() for key, value in state["scale"].items()}) if "scale" in state else None
        self.within.load(state["learner"])

    def _seen(self, images: Tensor) -> Tensor:
        images = images.cpu()
        return images if self.scale is None else self.scale(images)


class _Samples(ScaledLearner):
    def sample(self, class_indices: Sequence[int], count: int, *, generator: torch.Generator) -> Tensor:
        """(len(class_indices) * count, D), class by class, in the unit of the data."""
        drawn: Tensor = self.within.sample(class_indices, count, generator=generator)
        return drawn if self.scale is None else self.scale.back(drawn)


class _Retains(ScaledLearner):
    def retention(self) -> list[int]:
        """As the learner's own."""
        found: list[int] = self.within.retention()
        return found

    def redrawn(self) -> list[int]:
        """As the learner's own."""
        found: list[int] = self.within.redrawn()
        return found

    def largest_difference(self) -> dict[int, int]:
        """As the learner's own, in scaled vectors."""
        found: dict[int, int] = self.within.largest_difference()
        return found


class _TellsCompared(ScaledLearner):
    def compared(self) -> dict[int, Compared]:
        """As the learner's own."""
        found: dict[int, Compared] = self.within.compared()
        return found


class _KeepsEngrams(_Retains):
    def forget(self, class_index: int) -> Freed:
        """As the learner's own. The scale stays, as the classifier's trunk does."""
        freed: Freed = self.within.forget(class_index)
        return freed

    def relearn(self, *, task_index: int, observe: Observer = SILENT) -> None:
        """As the learner's own."""
        self.within.relearn(task_index=task_index, observe=observe)


class _Embeds(ScaledLearner):
    def features(self, images: Tensor) -> Tensor:
        """(N, D) -> (N, features)."""
        found: Tensor = self.within.features(self._seen(images))
        return found


class _AnswersApart(ScaledLearner):
    def other_answers(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """By name: (B, D) -> (B, classes seen)."""
        return {way: self._behind(scores) for way, scores in self.within.other_answers().items()}

    def _behind(self, scores: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda vectors: scores(self._seen(vectors))


_ABILITIES: dict[Any, type[ScaledLearner]] = {
    Samples: _Samples,
    KeepsEngrams: _KeepsEngrams,
    Retains: _Retains,
    TellsCompared: _TellsCompared,
    Embeds: _Embeds,
    AnswersApart: _AnswersApart,
}
"""A protocol that the learner fulfils -> what hands it through; those that hold more stand first."""
