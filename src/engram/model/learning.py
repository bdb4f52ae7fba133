"""What a model does around the loop over tasks: take data in, and take over what was learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engram.config import Config, changed_settings
from engram.context import Shape
from engram.data.backbone import Backbone
from engram.data.recipe import Recipe
from engram.errors import ConfigError
from engram.evaluation.evaluate import evaluate
from engram.evaluation.metrics import counts
from engram.experiment.loop import Stop, TaskLoop
from engram.experiment.progress import Display
from engram.methods import budget
from engram.methods.learner import AddsUp, KeepsEngrams, Samples
from engram.methods.registry import configure
from engram.model import intake as intakes
from engram.model.audit import note
from engram.model.intake import Intake
from engram.model.lineage import Step, first_data, learned_steps, machine, now
from engram.model.parts import BY_ITSELF

if TYPE_CHECKING:
    from engram.model.model import Model

Audited = Mapping[int, Mapping[str, int]]
"""Task -> what the lineage says of its part of an audit file."""


@dataclass(frozen=True)
class Learned:
    """What `learn` did, in figures."""

    new: tuple[str, ...]
    updated: tuple[str, ...]
    accuracy_new: float
    """Over the test images of the data's own classes, among all classes that the model knows."""
    tested_new: int
    """How many these are."""
    accuracy_old: float | None
    """The same over test images of other classes, where the data has some."""
    accuracy_old_before: float | None
    """What it was before."""
    tested_old: int
    steps: tuple[Step, ...]
    notes: tuple[str, ...]


def require_learns(model: Model, update: bool) -> None:
    """It can learn more, or more of a known class."""
    model.require_between_tasks("learn more")
    model.require_whole("learn")
    if update and model.learner is not None and not isinstance(model.learner, KeepsEngrams | AddsUp):
        raise ConfigError(
            f"{model.config.method} cannot learn more of a known class; dgmw, dgma and the closed forms can"
        )


def take_in(
    model: Model,
    data: Any,
    *,
    update: bool = False,
    done: Sequence[Sequence[str]] = (),
    shape: Shape | None = None,
    backbone: Backbone | None = None,
    recipe: Recipe | None = None,
) -> Intake:
    """The data as the model's next tasks; mistakes in it are found here, before anything is learned.

    `done`: tasks of the data that were learned before this start, by their classes; `shape`: of their images,
    `recipe`: by what their vectors were made. `backbone`: what the images go through.
    """
    require_learns(model, update)
    intake = intakes.take_in(
        data,
        model.config.stream,
        shape=shape or model.shape,
        known=model.classes,
        start=model.tasks + len(done),
        update=update,
        done=[name for task in done for name in task],
        backbone=backbone,
        recipe=recipe or model.backbone,
    )
    if model.trust is None and model.classes and model.config.stream.validation:
        unmeasured = "no images of the earlier classes were held out: for their calibration drawings alone speak"
        if not isinstance(model.learner, Samples):
            unmeasured = "no images of the earlier classes were held out: the calibration knows nothing of them"
        return replace(intake, notes=(*intake.notes, unmeasured))
    return intake


def suited(model: Model, *, vectors: bool) -> Config:
    """The settings of a new model go with the kind of its first examples, where none were chosen (preset auto)."""
    config = model.config
    if not vectors or model.shape is not None or config.preset != "auto":
        return config
    common: dict[str, Any] = {"dataset": config.dataset, "method": config.method, "seed": config.seed}
    asked = model.asked
    if asked is None:  # it was saved and opened: what differs from the defaults was asked for
        asked = changed_settings(config, configure(**common, vectors=False))
    return configure(**common, vectors=True, settings={**BY_ITSELF, **asked})


def note_in(model: Model, audit: str | Path | None, intake: Intake, data: str) -> Audited:
    """Note the images of the coming tasks in an audit file, where one is wanted."""
    if audit is None:
        return {}
    return note(Path(audit), intake.stream, data=data, model=first_data(model.lineage) or data)


def loop_for(
    model: Model, intake: Intake, folder: Path | None, *, display: Display | None, stop: Stop | None
) -> TaskLoop:
    """A loop that goes on where the model stands; it changes the model's own learner, where there is one."""
    budget.require(model.config, intake.dataset.shape, model.device, training=True)
    learner = model.learner if model.learner is not None else model.new_learner(intake.dataset.shape)
    return TaskLoop(folder, model.config, learner, display=display, stop=stop, start=model.tasks, trust=model.trust)


def take_over(model: Model, loop: TaskLoop, intake: Intake, before: float | None, audited: Audited) -> Learned:
    """The loop has come to its end: the model gets its learner, the new names, the new steps."""
    for name in intake.dataset.class_names:
        if name not in model.ids:
            model.ids[name] = model.next_id
            model.next_id += 1
    steps = learned_steps(
        loop.past_records(),
        ids=model.ids,
        when=now(),
        parent=model.digest,
        on=machine(model.device),
        audited=audited,
    )
    model.learner, model.shape, model.tasks = loop.learner, intake.dataset.shape, loop.task
    model.trust = loop.trust
    model.lineage += tuple(steps)
    model.changed()
    own, others = _accuracies(counts(steps[-1].facts["evaluation"]["confusion"]), intake)
    return Learned(
        intake.new, intake.updated, own[0] or 0.0, own[1], others[0], before, others[1], tuple(steps), intake.notes
    )


# ---------------------------------------------------------------- on the data's test images


def old_accuracy(model: Model, intake: Intake) -> float | None:
    """Over classes that the data does not bring, before these are learned; None where it has no images of them."""
    if model.learner is None or not model.ids:
        return None
    known, own = range(len(model.ids)), _brought(intake)
    confusion = evaluate(model.learner, intake.dataset, known, partly=True).confusion
    return _share(confusion, [place for place in known if place not in own])[0]


def _accuracies(
    confusion: Sequence[Sequence[int]], intake: Intake
) -> tuple[tuple[float | None, int], tuple[float | None, int]]:
    """(accuracy, images) over the data's own classes, and over others that it has test images of."""
    places, own = range(len(confusion)), _brought(intake)
    return _share(confusion, sorted(own)), _share(confusion, [place for place in places if place not in own])


def _brought(intake: Intake) -> set[int]:
    """Places of the classes that the data brings."""
    return {place for task in intake.stream.tasks for place in task}


def _share(confusion: Sequence[Sequence[int]], rows: Sequence[int]) -> tuple[float | None, int]:
    """Accuracy over some classes' images, and how many these are."""
    total = sum(sum(confusion[row]) for row in rows)
    return (sum(confusion[row][row] for row in rows) / total if total else None), total
