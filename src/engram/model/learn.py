"""Learning from file to file: a model goes on in a folder beside its file until it is done, whatever happens.

    products.engram ──> products.engram.learning/ ──> products.engram
                        a run folder: config, records, checkpoint

The folder holds the model, never its images. Killed and called again with the same data, learning goes on where it was
and ends with the same bits. Of the data, the classes that are not learned yet are enough.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engram.config import differences
from engram.context import Shape
from engram.data.backbone import Backbone
from engram.data.datasets import Dataset
from engram.data.recipe import Recipe, recipe_in
from engram.data.stream import ClassStream
from engram.errors import ConfigError, DataError, EngramError, InUseError, RunError
from engram.experiment import checkpoint
from engram.experiment.files import CONFIG, LOCK, clear_left_overs, move, os_errors
from engram.experiment.folder import (
    Origin,
    describe_data,
    is_run,
    locked,
    note_environment,
    read_origin,
    write_origin,
)
from engram.experiment.loop import Stop
from engram.experiment.progress import Display
from engram.experiment.records import read_records
from engram.experiment.restore import restored
from engram.kinds import is_vector
from engram.model.card import card_paths, write_card
from engram.model.file import SUFFIX, work_folder
from engram.model.file import read as read_file
from engram.model.intake import Intake, brought, read
from engram.model.learning import (
    Learned,
    loop_for,
    note_in,
    old_accuracy,
    require_learns,
    suited,
    take_in,
    take_over,
)
from engram.model.lineage import Step
from engram.model.model import Model
from engram.model.parts import shape_of
from engram.opening import opening
from engram.presets import VECTORS

NEW = "model.new"
"""In the work folder: the model that is done, before it takes its place."""


@contextmanager
def held(path: Path) -> Iterator[Path]:
    """Keep other processes from changing the model at `path`; its work folder, which goes where it holds nothing."""
    work = work_folder(path)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(work))
        except InUseError as error:  # of a run a bench can wait for it; of a model it is a mistake like any other
            raise RunError(str(error)) from None
        for file in (path, *card_paths(path)):  # half a version of before may hold a class that is to be forgotten
            clear_left_overs(file)
        try:
            yield work
        finally:
            if not is_run(work):
                shutil.rmtree(work, ignore_errors=True)


def require_at_rest(path: Path, work: Path) -> None:
    """Nobody has begun to learn there and not finished."""
    if is_run(work):
        raise RunError(f"{path} is in the middle of learning; finish it by the same `engram learn`, or remove {work}")


def require_own_place(model: Model, out: Path) -> None:
    """What lies at `out` is the version that was opened, another version of the same model, or nothing.

    To be asked while the place is held: another process may have written there since the model was opened.
    """
    if not out.is_file():
        return
    if model.path is not None and model.path.resolve() == out.resolve():
        if read_file(out).digest != model.digest:
            raise RunError(f"{out} was changed by another process since it was opened; call the same command again")
    elif not is_version(out, model):
        raise RunError(f"{out} is there already and is no version of this model; name another file")


def is_version(path: Path, model: Model) -> bool:
    """Whether a file holds the same model at some time: one with the same first step, to the second."""
    first = [json.loads(json.dumps(step.as_dict())) for step in model.lineage[:1]]
    with suppress(EngramError, KeyError, TypeError, ValueError):
        return bool(first) and read_file(path).body["lineage"][:1] == first
    return False


def put(model: Model, out: Path, work: Path) -> None:
    """Write the model by way of its work folder: a process killed while it writes leaves nothing beside `out`."""
    if os.path.isdir(out):
        raise RunError(f"{out} is a folder; name a file, such as {out / 'model'}{SUFFIX}")
    model.save(work / NEW, card=False)
    with os_errors(out, kept="the version before, if there was one, is intact"):
        move(work / NEW, out)
    clear_left_overs(out)
    model.path = out


def learn(
    model: Model,
    data: Any,
    out: Path,
    *,
    update: bool = False,
    audit: Path | None = None,
    backbone: Backbone | str | Path | None = None,
    display: Display | None = None,
    stop: Stop | None = None,
) -> Learned | None:
    """Learn `data` and write the model to `out`; goes on with what an earlier call has begun there.

    None where there is nothing to do: an earlier call was killed when all was done and only its folder was left, or
    an update brings the very images that were learned last. `audit`, `backbone`: see `Model.learn`.
    """
    if audit is not None and audit.resolve() == out.resolve():
        raise ConfigError(f"{audit} cannot be model and audit file in one; name another file, apart from the model")
    left, through = os.path.exists(work_folder(out)), model.through(backbone, data)
    with held(out) as work:
        require_own_place(model, out)
        begun = _begun(model, out, work, update)
        if begun is None:
            require_learns(model, update)
            if not isinstance(data, ClassStream):
                data = read(
                    data,
                    model.config.stream,
                    shape=model.shape,
                    known=model.classes,
                    backbone=through,
                    recipe=model.backbone,
                )
                if was_last(model.lineage, data, update):
                    if left or update:
                        return None
                    raise DataError(
                        f"{data.name}: class {brought(data)[0]!r} is known already, from these very examples: nothing "
                        "is left to do; give other classes, or more of it by update=True (engram learn --update)"
                    )
        intake = _take_in(model, data, update, begun, work, through)
        model.config = suited(model, vectors=is_vector(intake.dataset.shape))
        origin = begun or _origin(model, intake, update)
        _require_same_images(work, origin, intake)
        audited = note_in(model, audit, intake, str(origin.data["digest"]))
        if begun is None:
            write_origin(work, origin)
        before = old_accuracy(model, intake)
        loop = loop_for(model, intake, work, display=display, stop=stop)
        offset = restored(work, loop, intake.stream)
        with opening(work):
            changes = note_environment(work, model.device)
        moved = [f"since the start, {line}; the last bits may differ" for line in changes]
        loop.go(intake.dataset, intake.stream, offset, (*intake.notes, *moved))
        require_own_place(model, out)  # once more: a program may have saved there in the meantime
        learned = take_over(model, loop, intake, before, audited)
        put(model, out, work)
        write_card(model, out)
        _clear(work, out)
    return learned


def _origin(model: Model, intake: Intake, update: bool) -> Origin:
    data = {**describe_data(intake.dataset), "parent": model.digest, "update": update, "classes": intake.digests}
    return Origin(model.config, data)


def _begun(model: Model, out: Path, work: Path, update: bool) -> Origin | None:
    """What was begun there and is not done; what a process left that was killed when all was done is removed."""
    if not is_run(work):
        return None
    begun = read_origin(work)
    if model.path == out and is_outcome(model.lineage, begun):
        write_card(model, out)
        _clear(work, out)
        return None
    if begun.config.preset == VECTORS:
        model.config = suited(model, vectors=True)
    _require_same(work, begun, model, update)
    return begun


def _clear(work: Path, out: Path) -> None:
    """Remove all but the lock. What tells whose it was goes last: after a kill in the middle it can be understood."""
    with os_errors(work, kept=f"{out} is whole"):
        for entry in sorted(work.iterdir(), key=lambda entry: entry.name == CONFIG):
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != LOCK:
                entry.unlink()


def last_learned(lineage: Sequence[Step]) -> tuple[Step, ...]:
    """The tasks that were learned last, all from the same data and the same model; none after a forgotten class."""
    ends = itertools.takewhile(lambda step: _whence(step) == _whence(lineage[-1]), reversed(lineage))
    return tuple(step for step in ends if step.kind == "learned")


def _whence(step: Step) -> tuple[str | None, Any]:
    """The model and the data that a step came from; of the data, None where nothing was learned."""
    return step.parent, step.data.get("digest")


def is_outcome(lineage: Sequence[Step], begun: Origin) -> bool:
    """Whether a model is what came of the learning that was begun so."""
    whence = begun.data.get("parent"), begun.data.get("digest")
    return any(_whence(step) == whence for step in last_learned(lineage))


def was_last(lineage: Sequence[Step], dataset: Dataset, update: bool) -> bool:
    """Whether these very images, under these names, are the last that was learned."""
    last = last_learned(lineage)
    names = {name for step in last for name in step.classes}
    again = {step.data.get("digest") for step in last} == {dataset.digest} and names == {*brought(dataset)}
    return again and update == any(step.updated for step in last)


@dataclass(frozen=True)
class Done:
    """What was learned in a work folder to the end."""

    tasks: list[list[str]]
    """By their classes."""
    shape: Shape
    """Of their images, which those of the other classes are to have."""
    recipe: Recipe | None
    """By what their vectors were made."""


def tasks_done(work: Path, model: Model) -> Done | None:
    """The tasks that were learned there to the end; None where none was."""
    saved, head = checkpoint.load(work, or_before=True), next(read_records(work), None)
    count = 0 if saved is None else int(saved.meta["task"]) - model.tasks
    if head is None or count < 1:
        return None
    names = head["class_names"]
    tasks = [[names[number] for number in task] for task in head["tasks"][:count]]
    return Done(tasks, shape_of(head["shape"]), recipe_in(head["dataset"]))


def _take_in(
    model: Model, data: Any, update: bool, begun: Origin | None, work: Path, backbone: Backbone | None
) -> Intake:
    """All of the data where all of it is still there, so that nothing differs from learning without a stop."""
    done = None if begun is None else tasks_done(work, model)
    if begun is None or done is None:
        return take_in(model, data, update=update, backbone=backbone)
    with suppress(DataError):
        whole = take_in(model, data, update=update, backbone=backbone)
        if whole.digests == begun.data.get("classes"):
            return whole
    return take_in(model, data, update=update, done=done.tasks, shape=done.shape, backbone=backbone, recipe=done.recipe)


def _remedy(work: Path) -> str:
    return f"finish that first, or remove {work} to begin anew"


def _require_same(work: Path, begun: Origin, model: Model, update: bool) -> None:
    """What was begun there is what is asked for now."""
    if begun.data.get("parent") != model.digest or begun.data.get("update") != update:
        raise RunError(f"{work} holds the learning of another model or of other data; {_remedy(work)}")
    here = replace(begun.config, runtime=model.config.runtime)
    if other := differences(here, model.config):
        raise RunError(f"{work} was begun with other settings ({other[0]}); {_remedy(work)}")


def _require_same_images(work: Path, begun: Origin, intake: Intake) -> None:
    classes = begun.data.get("classes", {})
    if wrong := [name for name, digest in intake.digests.items() if classes.get(name) != digest]:
        raise RunError(f"{work} was begun with other images of {wrong[0]!r}; {_remedy(work)}")
