"""How generative methods end a task: the classifier learns every class from images that are alike in kind.

By itself it sees generated images only, of the newest classes too. Where generated images are far from real ones, as
those of photographs are, two things can be added that look at nothing but the present task:

    real_fraction    part of the images of the task's classes are its own. They teach to tell *these classes* apart:
                     real images of one class beside generated ones of another would teach to tell real from generated,
                     and every real image would be called new. Old and new are told apart by images of one kind
    distill_weight   what the classifier said before of the classes that it knew, of any image, it should say again
                     (Li & Hoiem 2016, "learning without forgetting"; here on generated images of old classes as well).
                     Not of a known class that the task brings more of: there it is to say something else

How many images of each class an epoch shows is even. By need (`replay.by=need`) half of them are shared out by how
unsure the confidence filter is of a class: it judges a few drawings of each, whose noise has a name of its own, so
nothing is to be saved.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.config import ClassifierSettings
from engram.context import Context
from engram.data.examples import Examples, within
from engram.data.stream import Task
from engram.gan.settings import ClassifierReplaySettings, GanMethodSettings
from engram.memory.class_generator import even_parts
from engram.memory.exemplars import Exemplars
from engram.methods.classifier import Classifier, Loss, frozen_classifier, normalise
from engram.methods.learner import Observer, Progress, State
from engram.seeding import generator

TEMPERATURE = 2.0
"""At which answers are compared."""

EVEN = 0.5
"""Share of an epoch's images that every class has an even part of, by need too."""
JUDGED = 0.03
"""How many drawings are judged to find the needs, as a share of an epoch's images."""

REPLAY_CLASSIFIER = ClassifierSettings(epochs=5, augment="strong", label_smoothing=0.05)
"""For a classifier that learns from drawings: a class must not be told by the tone of its generator."""

Source = Callable[[int, int, torch.Generator], Tensor]
"""(class index, count, generator) -> (count, C, H, W) uint8 images of that class

Of several engrams of the class one after the other, in even parts."""


class ClassifierPhase:
    """The classifier, and the confidence filter: itself as it was at the start of the epoch, which leaves out doubt."""

    def __init__(
        self,
        ctx: Context[GanMethodSettings],
        replay: ClassifierReplaySettings,
        *,
        engrams_of: Callable[[int], int] = lambda _: 1,
    ) -> None:
        self.ctx, self.replay = ctx, replay
        self.engrams_of = engrams_of
        """How many parts the drawings of a class have; each gives its share of those that are not left out."""
        self.classifier = Classifier(ctx)
        self.confidence_filter: nn.Module | None = None
        self.teacher: nn.Module | None = None
        """The classifier as the task before left it, while a task is learned; only where it is to be repeated."""
        self.old = 0
        """How many classes were known before the task."""
        self.exemplars = Exemplars()
        self.real_share = 0.0
        """How much of the replay comes from the stored images; 0 in the strict setting."""

    def begin(self, classes: int, *, task: int, begins: float) -> None:
        """Room for so many classes in all; `begins`: at which share of the task, for the display."""
        self.old = self.classifier.classes
        if self.replay.distill_weight and self.old > 1:
            self.teacher = copy.deepcopy(self.classifier.net).eval()
        self.classifier.begin(classes, task=task, images=self.replay.images, start="warm")
        self.classifier.progress.begins = begins

    def fit(self, source: Source, *, task: Task, observe: Observer) -> None:
        """To the end of the task; a single class needs no classifier."""
        compared = self.replay.real_fraction > 0 or self.teacher is not None
        loss = partial(self._loss, task.class_indices) if compared else None
        self._fit(source, task.index, observe, own=task, loss=loss)

    def fit_drawings(self, source: Source, *, task: int, observe: Observer) -> None:
        """The same without a task's images; `task` names the draws."""
        self._fit(source, task, observe)

    def _fit(
        self, source: Source, task: int, observe: Observer, *, own: Task | None = None, loss: Loss | None = None
    ) -> None:
        if self.classifier.classes > 1:
            self.classifier.fit(partial(self._lessons, source, task, own), task=task, observe=observe, loss=loss)
        self.end()

    def forget(self, class_index: int) -> None:
        """Between tasks: the class's output and its stored images are gone; those behind it move up by a place."""
        self.classifier.forget(class_index)
        self.exemplars.forget(class_index)

    def end(self) -> None:
        """The task is over."""
        self.classifier.progress, self.confidence_filter, self.teacher = Progress(), None, None

    def _lessons(self, source: Source, task: int, own: Task | None, epoch: int) -> Examples:
        """What the classifier learns from in an epoch: images of every class, evenly, fresh."""
        if self.classifier.progress.batch == 0:  # else resumed within the epoch: the filter was saved with it
            filtered = epoch > 0 and self.replay.keep_fraction < 1
            self.confidence_filter = copy.deepcopy(self.classifier.net).eval() if filtered else None
        classes, total, counts = self.classifier.classes, self.replay.images, None
        if self.replay.by == "need" and self.confidence_filter is not None:
            counts = by_need(total, self._needs(source, classes, task=task, epoch=epoch))
        return self.draw(source, total, classes=classes, task=task, epoch=epoch, own=own, counts=counts)

    def _needs(self, source: Source, classes: int, *, task: int, epoch: int) -> list[float]:
        """By class, how much of the filter's answers to a few of its drawings goes to other classes."""
        some = max(2, round(JUDGED * self.replay.images / classes))
        needs = []
        for class_index in range(classes):
            drawings = source(class_index, some, generator(self.ctx.seed, "need", task, epoch, class_index))
            needs.append(1 - self._sureness(drawings, class_index).double().exp().mean().item())
        return needs

    def draw(
        self,
        source: Source,
        total: int,
        *,
        classes: int,
        task: int,
        epoch: int,
        own: Task | None = None,
        counts: Sequence[int] | None = None,
    ) -> Examples:
        """`total` images, evenly over the first `classes`, or by `counts`.

        In the relaxed setting a share of every class is real: for the classes of `own` from all its images, for the
        others from the stored ones. By `real_fraction` more of those of `own` are, and compared among its classes only.
        """
        images, targets, among_new = [], [], []
        for class_index, some in enumerate(counts or even_parts(total, classes)):
            draws = generator(self.ctx.seed, "replay", task, epoch, class_index)
            stored = round(self.real_share * some)
            real = 0
            if own is not None and class_index in own.class_indices:
                real = round(self.replay.real_fraction * (some - stored))
            images.append(self._confident(source, class_index, some - stored - real, draws))
            new = 0
            if stored and own is not None and class_index in own.class_indices:
                new = round(stored / self.engrams_of(class_index))  # an engram is of a task, and each is shown alike
            if stored - new:
                images.append(self.exemplars.draw(class_index, stored - new, generator=draws))
            if own is not None and new + real:
                rows = torch.nonzero(own.targets == class_index).squeeze(1)
                images.append(own.images[rows[torch.randint(len(rows), (new + real,), generator=draws)]])
            targets.append(torch.full((some,), class_index))
            among_new.append(torch.arange(some) >= some - real)
        marked = own is not None and self.replay.real_fraction > 0
        return Examples(torch.cat(images), torch.cat(targets), torch.cat(among_new) if marked else None)

    def _loss(self, own: tuple[int, ...], x: Tensor, scores: Tensor, examples: Examples) -> Tensor:
        """The truth, and what the teacher says of the classes that it knows; `own`: the task's."""
        smoothing = self.ctx.classifier.label_smoothing
        truth = class_loss(scores, examples.targets, examples.among_new, own=own, smoothing=smoothing)
        if self.teacher is None:
            return truth
        with torch.no_grad():
            before: Tensor = self.teacher(x)
        now = scores[:, : self.old]
        share = self.old / scores.shape[1]
        if more := [index for index in own if index < self.old]:
            held = ~torch.isin(examples.targets, torch.tensor(more, device=x.device))
            if not held.any():
                return truth
            # a mean over all images, of which some are held to nothing
            now, before, share = now[held], before[held], share * held.float().mean().item()
        return truth + self.replay.distill_weight * share * distillation(now, before)

    def _confident(self, source: Source, class_index: int, count: int, draws: torch.Generator) -> Tensor:
        """Drawings of a class; the doubtful ones left out, where there is a filter."""
        if self.confidence_filter is None:
            return source(class_index, count, draws)
        images = source(class_index, math.ceil(count / self.replay.keep_fraction), draws)
        engrams, sure = self.engrams_of(class_index), self._sureness(images, class_index)
        parts = zip(images.tensor_split(engrams), sure.tensor_split(engrams), strict=True)
        best = [some[certainty.argsort(descending=True, stable=True)] for some, certainty in parts]
        return torch.cat([some[:n] for some, n in zip(best, even_parts(count, engrams), strict=True)])

    @torch.inference_mode()
    def _sureness(self, images: Tensor, class_index: int) -> Tensor:
        """(N,): the logarithm of the share that the filter gives the class."""
        assert self.confidence_filter is not None
        sure = [
            F.log_softmax(self.confidence_filter(normalise(some.to(self.ctx.device))), 1)[:, class_index].cpu()
            for some in torch.split(images, 500)
        ]
        return torch.cat(sure)

    def state(self) -> State:
        """For a checkpoint."""
        state: State = {
            "classifier": self.classifier.state(),
            "exemplars": self.exemplars.state(),
            "real_share": self.real_share,
            "old": self.old,
        }
        if self.confidence_filter is not None:
            state["confidence_filter"] = dict(self.confidence_filter.state_dict())
        if self.teacher is not None:
            state["teacher"] = dict(self.teacher.state_dict())
        return state

    def load(self, state: State) -> None:
        """Back from a checkpoint."""
        self.classifier.load(state["classifier"])
        self.exemplars = Exemplars.of(state["exemplars"])
        self.real_share, self.old = state["real_share"], state["old"]
        self.confidence_filter = self.teacher = None
        if "confidence_filter" in state:
            self.confidence_filter = copy.deepcopy(self.classifier.net).eval()
            self.confidence_filter.load_state_dict(state["confidence_filter"])
        if "teacher" in state:
            self.teacher = frozen_classifier(self.ctx, self.old, state["teacher"])


def by_need(total: int, needs: Sequence[float]) -> list[int]:
    """Shares of a total: half of it even, half in proportion to the needs; they add up to it.

    >>> by_need(100, [0.0, 0.1, 0.3])
    [17, 29, 54]
    """
    whole = sum(needs)
    if not whole > 0:
        return even_parts(total, len(needs))
    wished = [total * (EVEN / len(needs) + (1 - EVEN) * need / whole) for need in needs]
    counts = [math.floor(wish) for wish in wished]
    # what rounding left over goes to those who lost most by it
    behind = sorted(range(len(needs)), key=lambda place: counts[place] - wished[place])
    for place in behind[: total - sum(counts)]:
        counts[place] += 1
    return counts


def class_loss(
    scores: Tensor, targets: Tensor, among_new: Tensor | None, *, own: Sequence[int], smoothing: float
) -> Tensor:
    """Cross-entropy over all classes; over the task's own alone for images that may not be compared with the others.

    scores (B, classes), targets (B,), among_new (B,) bool, own: the places of the task's classes.

    >>> scores, target = torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([1])
    >>> marked = [torch.tensor([bit]) for bit in (False, True)]
    >>> [round(class_loss(scores, target, bit, own=(1, 2), smoothing=0.0).item(), 2) for bit in marked]
    [9.0, 0.69]
    """
    if among_new is None:
        return F.cross_entropy(scores, targets, label_smoothing=smoothing, reduction="sum") / len(targets)
    places = torch.tensor(own, device=scores.device)
    marked = scores[among_new].index_select(1, places), within(own, targets[among_new])
    parts = ((scores[~among_new], targets[~among_new]), marked)
    total = sum(F.cross_entropy(*part, label_smoothing=smoothing, reduction="sum") for part in parts)
    assert isinstance(total, Tensor)
    return total / len(targets)


def distillation(scores: Tensor, before: Tensor) -> Tensor:
    """How far the answers are from the earlier ones: the mean Kullback-Leibler divergence, both softened.

    scores, before (B, classes). The factor makes the gradient as large as without softening (Hinton et al. 2015).

    >>> distillation(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])).item()
    0.0
    """
    now, then = F.log_softmax(scores / TEMPERATURE, 1), F.log_softmax(before / TEMPERATURE, 1)
    return TEMPERATURE**2 * F.kl_div(now, then, reduction="batchmean", log_target=True)
