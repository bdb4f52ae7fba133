"""What every method is to the rest of the project: a `Learner`, and what else some can do: `Samples`, `Retains`, …

A learner is told its `Context`, handed one `Task` at a time, and tells an `Observer` how it is getting on. Nothing
tells it how many tasks or classes are to come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from engram.config import ClassifierSettings, Config, MethodSettings
from engram.context import Context, Shape
from engram.data.stream import Task
from engram.kinds import is_vector
from engram.memory.retention import Compared
from engram.methods import budget

State = dict[str, Any]
"""A tree of dictionaries with text keys; its leaves are tensors or plain JSON values."""


class Observer(Protocol):
    """Whom a learner tells how it is getting on. `batch` and `epoch` may save the learner, and may stop it.

    >>> from engram import ClassStream, build, load_dataset
    >>> class Epochs:
    ...     count = 0
    ...     def batch(self, progress): ...
    ...     def epoch(self, losses):
    ...         self.count += 1
    ...     def note(self, kind, **facts): ...
    >>> digits, observer = load_dataset("digits"), Epochs()
    >>> learner = build("finetune", digits, settings={"classifier.epochs": 2})
    >>> learner.learn(next(ClassStream(digits, order=["3"])), observe=observer)
    >>> observer.count
    2
    """

    def batch(self, progress: Progress) -> None:
        """A step is done and the progress stands at the next one."""
        ...

    def epoch(self, losses: Mapping[str, float]) -> None:
        """An epoch is done; its mean losses."""
        ...

    def note(self, kind: str, **facts: Any) -> None:
        """A fact for the records. The same facts for the same seed: no clock times."""
        ...


class Silent:
    """An observer that does nothing, for use as a library."""

    def batch(self, progress: Progress) -> None:
        """Nothing."""

    def epoch(self, losses: Mapping[str, float]) -> None:
        """Nothing."""

    def note(self, kind: str, **facts: Any) -> None:
        """Nothing."""


SILENT = Silent()


class Learner(Protocol):
    """A method at work: any object with these five functions. `build` makes one.

    >>> from engram import ClassStream, build, load_dataset
    >>> digits = load_dataset("digits")
    >>> learner = build("finetune", digits, settings={"classifier.epochs": 1})
    >>> for task in ClassStream(digits, order=["3", "5"]):
    ...     learner.learn(task)
    >>> learner.scores(digits.test.images[:4]).shape
    torch.Size([4, 2])
    """

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        """Learn the task, or go on with it where `load` put the learner in the middle of it."""
        ...

    def scores(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, classes seen), in order of appearance. No task label."""
        ...

    def answer_net(self) -> nn.Module:
        """A copy of what answers, in eval mode: (B, C, H, W) floats in [-1, 1] -> what `scores` gives for the images.

        It is for use elsewhere: learning goes on without it, and it stays as it is.
        """
        ...

    def state(self) -> State:
        """Everything that the rest of the run depends on, in the middle of a task too."""
        ...

    def load(self, state: State) -> None:
        """Take over a state; the learner was built with the same context."""
        ...


# ---------------------------------------------------------------- what some learners can do


@runtime_checkable
class Samples(Protocol):
    """A learner that can draw the classes that it remembers.

    >>> from engram import Samples, build, load_dataset
    >>> digits = load_dataset("digits")
    >>> isinstance(build("dgmw", digits), Samples), isinstance(build("finetune", digits), Samples)
    (True, False)
    """

    def sample(self, class_indices: Sequence[int], count: int, *, generator: torch.Generator) -> Tensor:
        """(len(class_indices) * count, C, H, W) uint8, class by class."""
        ...


@runtime_checkable
class Retains(Protocol):
    """A learner whose memory of a class never changes, and can be checked for that.

    >>> from engram import Model, Retains, load_dataset
    >>> digits = load_dataset("digits").take_train()
    >>> model = Model.create(preset="fast")
    >>> model.learn(digits.images[digits.labels == 3][:12], ["three"] * 12).new
    ('three',)
    >>> isinstance(model.learner, Retains), model.learner.retention()
    (True, [])
    """

    def retention(self) -> list[int]:
        """Indices of the classes of which a stored bit that they depend on has changed; the same on every machine."""
        ...

    def redrawn(self) -> list[int]:
        """Indices of the classes whose images for fixed noise are not, to the bit, what they were.

        Another kind of processor, or other code, adds up in another order: there this is no sign of forgetting.
        """
        ...

    def largest_difference(self) -> dict[int, int]:
        """By class index, for classes that have reference drawings: how far today's drawings are, in grey levels."""
        ...


@runtime_checkable
class TellsCompared(Protocol):
    """A learner that says how much is behind its answers to `Retains`."""

    def compared(self) -> dict[int, Compared]:
        """By class index, what is compared with what it was; a class of which nothing is stored is not in it."""
        ...


@dataclass(frozen=True)
class Freed:
    """What forgetting a class has freed."""

    weights: int
    """Shared weights that the class needed and no other does; they are drawn afresh."""
    all_weights: int
    """Shared weights in all, as many as before."""
    engrams: int
    """Dropped as a whole; one that has other classes too stays without this one."""
    bytes: int
    """Of the memory beside the shared weights, no longer stored."""


@runtime_checkable
class Forgets(Protocol):
    """A learner that can drop a class so that nothing of it is left in what it keeps of the past.

    >>> from engram import build, load_dataset
    >>> from engram.methods.learner import Forgets
    >>> digits = load_dataset("digits")
    >>> isinstance(build("ncm", digits), Forgets), isinstance(build("ridge", digits), Forgets)
    (True, False)
    """

    def forget(self, class_index: int) -> Freed:
        """Between tasks: drop a class; the classes behind it move up by a place."""
        ...


@runtime_checkable
class AddsUp(Protocol):
    """A learner whose memory is sums over examples: more images of a known class are added to them, exactly."""

    def add(self, features: Tensor, targets: Tensor) -> None:
        """More examples, of known classes too: features (B, D), targets (B,)."""
        ...


@runtime_checkable
class KeepsEngrams(Retains, Forgets, Protocol):
    """A learner that remembers by engrams. One can be added to a class that is known, and taken away."""

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        """As `Learner.learn`; the task may also bring more images of classes that are known already."""
        ...

    def forget(self, class_index: int) -> Freed:
        """Between tasks: drop a class; the classes behind it move up by a place, and their memory keeps its bits."""
        ...

    def relearn(self, *, task_index: int, observe: Observer = SILENT) -> None:
        """Between tasks: a new classifier from drawings of all classes alone; `task_index` names the draws."""
        ...


@runtime_checkable
class Embeds(Protocol):
    """A learner whose network has features to show."""

    def features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, features), what the network makes of them before it answers."""
        ...


@runtime_checkable
class AnswersApart(Protocol):
    """A learner with other ways to answer, recorded beside the first; there may be none."""

    def other_answers(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """By name, what each way gives: (B, C, H, W) uint8 -> (B, classes seen)."""
        ...


# ---------------------------------------------------------------- a line of the registry

S = TypeVar("S", bound=MethodSettings)


class MethodEntry(Protocol):
    """A method as the registry lists it, whatever its settings are."""

    @property
    def settings(self) -> MethodSettings:
        """Its own groups at their defaults."""
        ...

    @property
    def classifier(self) -> ClassifierSettings:
        """How its classifier is trained by default."""
        ...

    @property
    def summary(self) -> str: ...

    @property
    def stores(self) -> str:
        """What it keeps of past tasks."""
        ...

    @property
    def source(self) -> str:
        """The publication it comes from."""
        ...

    @property
    def strict(self) -> bool:
        """Keeps to the strict protocol: no real data of past tasks."""
        ...

    @property
    def bound(self) -> Literal["upper", "lower"] | None:
        """A yardstick rather than a contender."""
        ...

    @property
    def given_all_data(self) -> bool:
        """Joint training alone: every task brings the images of all classes so far."""
        ...

    @property
    def draws(self) -> bool:
        """Whether its learner can draw the classes that it remembers."""
        ...

    def is_strict(self, settings: MethodSettings) -> bool:
        """Strict, unless the settings relax it by storing real images."""
        ...

    def learner(self, config: Config, shape: Shape, device: torch.device) -> Learner:
        """A new learner with a configuration."""
        ...


@dataclass(frozen=True)
class Method(Generic[S]):
    """One line of the registry: a `MethodEntry` that knows the type of its settings.

    To add a method of your own, make one of these, and check it by `engram.testing.check_learner`.

    >>> from engram import METHODS, Method
    >>> from engram.config import MethodSettings
    >>> mine = Method(
    ...     build=METHODS["finetune"].build,  # your class, which takes a Context
    ...     settings=MethodSettings(),
    ...     summary="learns each task and nothing else",
    ...     stores="nothing",
    ...     source="a publication",
    ... )
    >>> mine.strict, mine.draws
    (True, False)
    """

    build: Callable[[Context[S]], Learner]
    settings: S
    summary: str
    stores: str
    source: str
    classifier: ClassifierSettings = ClassifierSettings()
    strict: bool = True
    bound: Literal["upper", "lower"] | None = None
    draws: bool = False
    scales_vectors: bool = True
    """Whether vectors reach it scaled by what the first task was like: not where the order of classes cannot matter."""

    def is_strict(self, settings: MethodSettings) -> bool:
        """Strict, unless the settings relax it by storing real images."""
        return self.strict and not settings.stores_images

    @property
    def given_all_data(self) -> bool:
        """Joint training alone: every task brings the images of all classes so far."""
        return self.bound == "upper"

    def learner(self, config: Config, shape: Shape, device: torch.device) -> Learner:
        """A new learner with a configuration."""
        own = config.settings
        assert isinstance(own, type(self.settings)), (type(own), type(self.settings))
        budget.require(config, shape, device, training=False)
        learner = self.build(Context(shape, config.classifier, own, config.seed, device, config.runtime.precision))
        if not is_vector(shape) or not self.scales_vectors:
            return learner
        from engram.methods.scaling import scaled

        return scaled(learner, *shape)


# ---------------------------------------------------------------- progress within a task


@dataclass
class Progress:
    """Where a learner stands within its task; part of its state."""

    epochs: int = 0
    """How many epochs this task takes. 0: no task is under way."""
    batches: int = 0
    """How many batches an epoch has."""
    epoch: int = 0
    batch: int = 0
    begins: float = 0.0
    ends: float | None = None
    """Which part of the task this covers, for the display; None: to the end."""
    totals: dict[str, Tensor] = field(default_factory=dict)
    """Sums of the losses over this epoch's batches so far, kept where the losses are to avoid waiting for a device."""

    @property
    def running(self) -> bool:
        """Whether a task is under way."""
        return self.epochs > 0

    @property
    def share(self) -> float:
        """How much of these epochs is done, 0 to 1."""
        return (self.epoch + self.batch / self.batches) / self.epochs

    @property
    def share_of_task(self) -> float:
        """How much of the task is done, 0 to 1, where this covers a part of it."""
        return self.begins + (1 - self.begins if self.ends is None else self.ends - self.begins) * self.share

    def means(self) -> dict[str, float]:
        """Mean losses over this epoch's batches so far."""
        return {name: total.item() / max(self.batch, 1) for name, total in self.totals.items()}

    def state(self) -> State:
        """For a checkpoint."""
        names = ("epochs", "batches", "epoch", "batch", "begins", "ends")
        return {"counts": {name: getattr(self, name) for name in names}, "totals": dict(self.totals)}

    @classmethod
    def of(cls, state: State, device: torch.device) -> Progress:
        """Back from a checkpoint."""
        totals = {name: total.to(device) for name, total in state["totals"].items()}
        return cls(**state["counts"], totals=totals)


def run_epochs(progress: Progress, step: Callable[[int, int], Mapping[str, Tensor]], observe: Observer) -> None:
    """Run `step(epoch, batch)` from where the progress stands to the end of its last epoch."""
    while progress.epoch < progress.epochs:
        while progress.batch < progress.batches:
            for name, loss in step(progress.epoch, progress.batch).items():
                loss = loss.detach().double() if loss.device.type != "mps" else loss.detach()
                progress.totals[name] = progress.totals[name] + loss if name in progress.totals else loss
            progress.batch += 1
            if progress.batch < progress.batches:
                observe.batch(progress)
        means = progress.means()
        progress.epoch, progress.batch, progress.totals = progress.epoch + 1, 0, {}
        observe.epoch(means)
