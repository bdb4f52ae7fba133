"""What a model or a run folder promises, audited: every check says what was compared, and what could not be.

    integrity    every byte matches its checksum, those of the checkpoint before and of all parts too
    retention    no stored bit that a class depends on has changed (every class that was learned is compared)
    strictness   no training image lies in anything that is stored: a search, tried on images that were planted
    size         every byte of the state is accounted for, and how many images it could hold
    figures      what follows from confusion matrices is computed anew
    records      of a run folder: records, configuration and checkpoint belong together
    answers      of a run folder whose data is here: the last evaluation, done once more

What no check can show: that a folder is not, as a whole, the honest folder of another run. Whoever writes every file
anew, with its hashes, has made another run; its answers and its images are still those of the checks above.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engram.context import Shape
from engram.data.datasets import Check, Dataset, load_dataset
from engram.errors import EngramError
from engram.evaluation.evaluate import evaluate
from engram.evaluation.metrics import counts
from engram.experiment import checkpoint
from engram.experiment.folder import is_run, read_origin
from engram.experiment.records import Record, read_records
from engram.kinds import blank, is_vector, level, noun
from engram.methods.learner import Retains, TellsCompared
from engram.model import file
from engram.model.audit import Audit, missing_from
from engram.model.audit import read as read_audit
from engram.model.lineage import first_data, moved
from engram.model.model import Model
from engram.model.search_images import found_in, prints, tensors
from engram.model.search_state import Sought, control, found_in_state, searched_folder
from engram.model.verify_figures import NOT_DERIVED, figures_in, wrong_figures, wrong_in_step
from engram.model.verify_records import records_check, within_task
from engram.model.verify_size import size_check
from engram.opening import why

GREY_LEVEL = 1
"""How far drawings may lie from the stored ones: libraries add up in other orders, also on one machine."""
OTHERWISE = 0.002
"""Share of the test images that another machine may answer otherwise: their two best answers are as good as even."""
BROKEN = (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, AssertionError, OverflowError)
"""What code meets in files that were edited by hand."""


def verify(path: Path, audit: Path | None = None, *, quick: bool = False) -> list[Check]:
    """All checks of a model file or a run folder; a broken one stops the checks that need it whole.

    `audit`: the file that `engram learn --audit` wrote, to look for the images that a model file has learned from.
    `quick`: without the last evaluation done once more.
    """
    try:
        model = Model.open(path)
    except EngramError as error:
        return [Check("integrity", False, str(error))]
    return verify_model(model, audit, quick=quick)


def verify_model(model: Model, audit: Path | None = None, *, quick: bool = False) -> list[Check]:
    """All checks of a model that is open."""
    folder = model.path if model.path is not None and is_run(model.path) and not model.unsaved else None
    state = _stored_state(model)
    dataset, missing = (None, "") if folder is None else _at_hand(folder)
    checks = [
        _integrity(model),
        retention_check(model),
        strictness_check(model, state, audit, folder, dataset, missing),
        _guarded("size", lambda: size_check(model, state)),
        _guarded("figures", lambda: _figures(model, folder)),
    ]
    if folder is not None:
        saved = checkpoint.load(folder)
        assert saved is not None
        checks.append(_guarded("records", lambda: records_check(folder, saved)))
        checks.append(_guarded("answers", lambda: _answers(model, folder, dataset, missing, quick=quick)))
    return checks


def _guarded(what: str, check: Any) -> Check:
    """A record that lacks a part, or has another kind of value there, fails the check that reads it."""
    try:
        found: Check = check()
    except (EngramError, *BROKEN) as error:
        said = str(error) if isinstance(error, EngramError) else f"cannot be followed: {why(error)}"
        return Check(what, False, said)
    return found


def _integrity(model: Model) -> Check:
    what = f"{len(model.classes)} classes, {model.tasks} tasks"
    if model.unsaved:
        return Check("integrity", None, f"{what}; changed since it was read or written: save it, then check the file")
    folder = model.path
    if folder is not None and folder.is_dir():
        return _guarded("integrity", lambda: _integrity_of_folder(folder, model.tasks))
    if model.digest is None:
        return Check("integrity", None, f"{what}; not read from a file, so there is no checksum to compare")
    return Check("integrity", True, f"{what}; matches its checksum {model.digest[:16]}…")


def _integrity_of_folder(folder: Path, tasks: int) -> Check:
    """The last checkpoint is whole, or the folder would not have been opened; what else is there may not be."""
    before, wrong = checkpoint.load_before(folder), checkpoint.wrong_parts(folder)
    if wrong:
        return Check("integrity", False, f"{', '.join(wrong)} in {checkpoint.PARTS}: not what was written there")
    detail = f"the checkpoint after task {tasks} matches its checksums"
    if before is not None:
        detail += ", and so does the one before"
    if others := [str(path.relative_to(folder)) for path in checkpoint.left_overs(folder)]:
        detail += f"; left over, named by neither: {', '.join(others[:3])}" + (" and more" if others[3:] else "")
    return Check("integrity", True, detail)


# ---------------------------------------------------------------- retention


def retention_check(model: Model) -> Check:
    """The stored bits decide. Drawings lie within one grey level of the stored ones; last bits are the machine's."""
    try:
        return _retention(model)
    except BROKEN as error:
        return Check("retention", False, f"the engrams cannot be compared ({type(error).__name__}: {error})")


def _retention(model: Model) -> Check:
    learner, names = model.learner, model.classes
    if not isinstance(learner, Retains):
        if isinstance(model.whole_learner(), Retains):
            return Check("retention", None, "the engrams were left out of this file; check the file that has them")
        return Check("retention", True, f"{model.config.method} keeps no engrams: nothing to compare")
    detail = "all stored bits that they depend on are as they were"
    if isinstance(learner, TellsCompared):
        compared = learner.compared()
        if without := [name for place, name in enumerate(names) if place not in compared]:
            return Check("retention", False, f"no engram of {', '.join(without)}, which the records say were learned")
        hashes, drawn = (sum(getattr(one, of) for one in compared.values()) for of in ("hashes", "drawings"))
        detail += f" ({hashes} hashes over {sum(one.bytes for one in compared.values()):,} bytes compared)"
    else:
        drawn = 0
    if changed := learner.retention():
        return Check("retention", False, f"stored bits of {', '.join(names[c] for c in changed)} have changed")
    detail = f"{len(names)} classes, {detail}"
    redrawn, differences = learner.redrawn(), learner.largest_difference()
    kind = noun(model.shape or (1, 1, 1))
    held = f"; {drawn} {kind} drawn anew and held against stored ones" if drawn else ""
    if not redrawn and not any(differences.values()):
        return Check("retention", True, f"{detail}, and so are their {kind} for fixed noise, to the bit{held}")
    assert model.shape is not None
    if far := {names[c]: apart for c, apart in differences.items() if apart > GREY_LEVEL}:
        what = f"yet this machine draws {', '.join(far)} up to {max(far.values())} {level(model.shape)}s off"
        return Check("retention", False, f"{detail}; {what}")
    every = all(c in differences for c in redrawn)
    apart = f"by at most one {level(model.shape)}" if every else "in last bits (not compared, none are stored)"
    since = _since(model, [names[c] for c in redrawn])
    return Check("retention", True, f"{detail}; drawings differ {apart}, {since}{held}")


def _since(model: Model, classes: list[str]) -> str:
    """What of the machine has changed since these were drawn. A program may set its libraries so that nothing shows."""
    reasons = dict.fromkeys(line for name in classes for line in _moved(model, name))
    return f"since they were made: {'; '.join(reasons)}" if reasons else "though the machine looks the same"


def _moved(model: Model, name: str) -> list[str]:
    """What has changed since the engrams of a class were made that may change bits."""
    steps = [step for step in model.lineage if step.kind == "learned" and name in step.classes]
    if not all(step.machine for step in steps):
        return ["nobody noted on which machine"]
    return list(dict.fromkeys(line for step in steps for line in moved(step, model.device)))


# ---------------------------------------------------------------- strictness


def _at_hand(folder: Path) -> tuple[Dataset | None, str]:
    """The data that a run has learned, or why it is not here."""
    try:
        origin = read_origin(folder)
        own = origin.config.stream
        dataset = load_dataset(
            origin.config.dataset, holdout=own.holdout, image_size=own.image_size, development=own.development
        )
    except EngramError as error:
        return None, f"the data is not here ({error})"
    if dataset.digest != origin.data.get("digest"):
        return None, f"the data here is not what the run has learned: {dataset.digest[:16]}…"
    return dataset, ""


def strictness_check(
    model: Model, state: dict[str, Any], audit: Path | None, folder: Path | None, dataset: Dataset | None, missing: str
) -> Check:
    """Look for training images in everything that is stored. A model's own are gone: an audit file knows them."""
    if audit is not None:
        known = read_audit(audit, first_data(model.lineage))
        return _guarded("strictness", lambda: _audited(model, state, known))
    if folder is None:
        return Check("strictness", None, "the images that it learned from are not at hand, and no audit file is")
    if dataset is None:
        return Check("strictness", None, missing)
    return _guarded("strictness", lambda: _searched(model, state, dataset, folder))


def _searched(model: Model, state: dict[str, Any], dataset: Dataset, folder: Path) -> Check:
    """Whether any of the training images lies in the state, or in any file of the folder."""
    assert model.shape is not None
    sought = Sought.of(dataset.take_train().images)
    tried, total = control(sought, tensors(state)), searched_folder(folder, sought, state)
    found, kind = total.found, noun(model.shape)
    detail = (
        f"{len(found.whole)} training {kind} in the state, of {len(sought)} looked for in {total.files} files, "
        f"{total.tensors} tensors, {total.bytes:,} bytes"
    )
    if parts := len(found.parts - found.whole):
        detail += f", runs of pixels of {parts} more"
    if found.bits:
        detail += f", {len(found.bits)} in black and white"
    detail += f" (planted {kind} found in {sum(tried.values())} of {len(tried)} encodings)"
    if found.any and model.is_strict:
        return Check("strictness", False, f"{detail}; they lie in {', '.join(total.places) or 'the state'}")
    if failed := [name for name, good in tried.items() if not good]:
        return Check("strictness", None, f"the search itself failed: {kind} that were planted as {', '.join(failed)} "
                     f"were not found; {detail}")  # fmt: skip
    if not tried:
        return Check("strictness", None, f"none of the {kind} has anything to be told by; {detail}")
    if total.unread:
        return Check("strictness", None, f"{', '.join(total.unread)} cannot be read; {detail}")
    if model.is_strict:
        return Check("strictness", True, detail)
    now = found_in_state(state, sought).whole
    check = _as_promised(model, Check("strictness", True, detail), len(now), model.shape)
    return _with_those_before(model, check, folder, sought, now, found.whole)


def _with_those_before(
    model: Model, check: Check, folder: Path, sought: Sought, now: Set[int], everywhere: Set[int]
) -> Check:
    """The checkpoint before holds images that the last one dropped, as many as the ledger of its own time names."""
    before = checkpoint.load_before(folder)
    then = frozenset[int]() if before is None else found_in_state(before.state, sought).whole
    detail = check.detail
    if dropped := then - now:
        detail += f"; {len(dropped)} more in the checkpoint before, which the next save removes"
    if elsewhere := everywhere - then - now:
        detail += f"; {len(elsewhere)} more in files of no checkpoint"
    assert model.shape is not None
    named = None if before is None or within_task(before) else _named(_ledger_before(folder, before), model.shape)
    if named is not None and len(then) > named:
        detail += f"; the checkpoint before holds {len(then)}, the ledger of its time names {named}"
        return Check("strictness", False, detail)
    return replace(check, detail=detail, ok=check.ok and not elsewhere)


def _ledger_before(folder: Path, before: checkpoint.Checkpoint) -> dict[str, int]:
    """What the records say was kept when that checkpoint was saved."""
    told = [one for one in read_records(folder) if one["kind"] == "memory" and one["task"] < before.meta["task"]]
    ledger: dict[str, int] = told[-1]["bytes"] if told else {}
    return ledger


def _named(ledger: Mapping[str, int], shape: Shape) -> int | None:
    """How many real images a ledger names; None where it has no line for them."""
    return ledger["exemplars"] // blank(1, shape).nbytes if "exemplars" in ledger else None


def _as_promised(model: Model, check: Check, found: int, shape: Shape) -> Check:
    """A method that says so may store images, as many as its ledger names."""
    if model.is_strict:
        return check
    kept = "stores real images, as it was set to" if model.method.strict else f"stores {model.method.stores}"
    said = f"{model.config.method} is not strict: it {kept}; {found} found; {check.detail}"
    steps = [step for step in model.lineage if step.kind == "learned"]
    named = _named(steps[-1].facts.get("memory", {}).get("bytes", {}) if steps else {}, shape)
    if named is not None and found > named and not model.within_task:
        return Check("strictness", False, f"{said}; its ledger names {named}")
    return Check("strictness", True, said)


def _audited(model: Model, state: dict[str, Any], audit: Audit) -> Check:
    """Tasks that were learned without the audit file cannot be checked; what is found is found."""
    check = _searched_by_prints(model, state, audit.known, audit.salt)
    if check.ok and model.is_strict and (missing := missing_from(audit, model.lineage)):
        names = ", ".join(name for step in missing for name in step.classes)
        return replace(check, ok=None, detail=f"{check.detail}; those of {names} are not in the audit file")
    return check


def _searched_by_prints(model: Model, state: dict[str, Any], known: Set[bytes], key: bytes) -> Check:
    """Whether whole images with one of these prints lie in the state. Parts of images have no print."""
    if model.shape is None:
        return Check("strictness", True, f"0 training images in the state, of {len(known)} looked for")
    found = len(found_in(state, model.shape, known, key))
    detail = f"{found} training {noun(model.shape)} in the state, of {len(known)} looked for"
    planted = blank(2, model.shape).numpy()
    planted[:] = np.random.default_rng(0).integers(0, 256, planted.shape)
    wanted = {*prints(planted, key)}
    hidden = {"state": state, "planted": torch.from_numpy(planted).float() / (1 if is_vector(model.shape) else 255)}
    if not wanted <= found_in(hidden, model.shape, wanted | known, key):
        return Check("strictness", None, f"the search itself failed: what was planted was not found; {detail}")
    if model.is_strict:
        return Check("strictness", found == 0, f"{detail}, whole and one after the other")
    return _as_promised(model, Check("strictness", True, detail), found, model.shape)


def _stored_state(model: Model) -> dict[str, Any]:
    """What lies on disc, of which the learner may have left something unread; of a changed model, what it holds."""
    if model.unsaved:
        return {} if model.learner is None else model.learner.state()
    if model.path is not None and model.path.is_dir():
        saved = checkpoint.load(model.path)
        return {} if saved is None else saved.state
    if model.path is not None:
        return file.read(model.path).state
    return {} if model.learner is None else model.learner.state()


# ---------------------------------------------------------------- figures and answers


def _figures(model: Model, folder: Path | None) -> Check:
    if folder is not None:
        compared, wrong = wrong_figures(list(read_records(folder)))
    else:
        told = [step for step in model.lineage if step.facts.get("evaluation", {}).get("confusion")]
        compared = sum(figures_in(step.facts["evaluation"]) for step in told)
        wrong = [f"task {step.task}: {line}" for step in told for line in wrong_in_step(step.facts)]
    if wrong:
        return Check("figures", False, "; ".join(wrong[:5]) + (f"; and {len(wrong) - 5} more" if wrong[5:] else ""))
    return Check("figures", True, f"{compared} computed anew from the confusion matrices; {NOT_DERIVED}")


def _answers(model: Model, folder: Path, dataset: Dataset | None, missing: str, *, quick: bool) -> Check:
    """The last evaluation once more, by the model that is stored."""
    if quick:
        return Check("answers", None, "left out (--quick)")
    if dataset is None:
        return Check("answers", None, missing)
    records = list(read_records(folder))
    if model.within_task or model.learner is None:
        return Check("answers", None, "the run was stopped within a task: what it would answer was never recorded")
    last = [record for record in records if record["kind"] == "evaluation" and record["task"] < model.tasks][-1]
    found = evaluate(model.learner, dataset, last["classes"], partly=bool(records[0].get("known")))
    images, apart = sum(map(sum, found.confusion)), _apart(found.confusion, counts(last["confusion"]))
    top5 = 0.0 if found.top5 is None else abs(found.top5 - last["top5"])
    if apart > OTHERWISE * images or top5 > OTHERWISE:
        said = f"accuracy {100 * found.accuracy:.2f} %, recorded are {100 * last['accuracy']:.2f} %"
        return Check("answers", False, f"the stored model answers {apart} of {images:,} test images otherwise: {said}")
    if sizes := _other_sizes(dataset, records[0], model):
        return Check("answers", False, sizes)
    exactly = "the same for each" if not apart else f"otherwise for {apart}, as another machine may by last bits"
    said = f"{100 * found.accuracy:.2f} %"
    return Check("answers", True, f"asked for {images:,} test images once more: {exactly}; accuracy {said}")


def _apart(confusion: list[list[int]], recorded: list[list[int]]) -> int:
    """How many answers, at least, are not those that were recorded; all of them where the test images are others."""
    rows = list(zip(confusion, recorded, strict=True))
    if any(sum(now) != sum(then) for now, then in rows):
        return sum(map(sum, confusion))
    moved: int = sum(abs(a - b) for now, then in rows for a, b in zip(now, then, strict=True))
    return moved // 2


def _other_sizes(dataset: Dataset, head: Record, model: Model) -> str:
    """Whether the records tell of as many training images as there are; nothing where some were kept out."""
    config = read_origin(model.path).config if model.path is not None else model.config
    if config.stream.validation or model.method.given_all_data:
        return ""
    counts = [sum(dataset.train_counts[number] for number in task) for task in head["tasks"]]
    return "" if counts == head["images"] else f"{head['images']} training images are recorded, the data has {counts}"
