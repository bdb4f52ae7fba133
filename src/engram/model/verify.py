"""What a model or a run folder promises, checked: integrity, exact retention, strictness."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from engram.data.datasets import Check, load_dataset
from engram.errors import EngramError
from engram.experiment import checkpoint
from engram.experiment.folder import is_run
from engram.kinds import level, noun
from engram.methods.learner import Retains
from engram.model import file
from engram.model.audit import Audit, missing_from
from engram.model.audit import read as read_audit
from engram.model.lineage import first_data, moved
from engram.model.model import Model
from engram.model.search_images import found_in, prints

GREY_LEVEL = 1
"""How far drawings may lie from the stored ones: libraries add up in other orders, also on one machine."""


def verify(path: Path, audit: Path | None = None) -> list[Check]:
    """All checks of a model file or a run folder; a broken one stops the checks that need it whole.

    `audit`: the file that `engram learn --audit` wrote, to look for the images that a model file has learned from.
    """
    try:
        model = Model.open(path)
    except EngramError as error:
        return [Check("integrity", False, str(error))]
    return verify_model(model, audit)


def verify_model(model: Model, audit: Path | None = None) -> list[Check]:
    """All checks of a model that is open."""
    return [_integrity(model), retention_check(model), _strictness(model, audit)]


def _integrity(model: Model) -> Check:
    what = f"{len(model.classes)} classes, {model.tasks} tasks"
    if model.unsaved:
        return Check("integrity", None, f"{what}; changed since it was read or written: save it, then check the file")
    if model.path is not None and model.path.is_dir():
        return Check("integrity", True, f"every file matches its checksum; checkpoint after task {model.tasks}")
    if model.digest is None:
        return Check("integrity", None, f"{what}; not read from a file, so there is no checksum to compare")
    return Check("integrity", True, f"{what}; matches its checksum {model.digest[:16]}…")


# ---------------------------------------------------------------- retention


def retention_check(model: Model) -> Check:
    """The stored bits decide. Drawings lie within one grey level of the stored ones; last bits are the machine's."""
    learner, names = model.learner, model.classes
    if not isinstance(learner, Retains):
        if isinstance(model.whole_learner(), Retains):
            return Check("retention", None, "the engrams were left out of this file; check the file that has them")
        return Check("retention", True, f"{model.config.method} keeps no engrams: nothing to compare")
    if changed := learner.retention():
        return Check("retention", False, f"stored bits of {', '.join(names[c] for c in changed)} have changed")
    detail = f"{len(names)} classes, all stored bits that they depend on are as they were"
    redrawn = learner.redrawn()
    if not redrawn:
        kind = noun(model.shape or (1, 1, 1))
        return Check("retention", True, f"{detail}, and so are their {kind} for fixed noise, to the bit")
    differences = learner.largest_difference()
    if far := {names[c]: differences[c] for c in redrawn if differences.get(c, 0) > GREY_LEVEL}:
        assert model.shape is not None
        what = f"yet this machine draws {', '.join(far)} up to {max(far.values())} {level(model.shape)}s off"
        return Check("retention", False, f"{detail}; {what}")
    compared = all(c in differences for c in redrawn)
    assert model.shape is not None
    apart = f"by at most one {level(model.shape)}" if compared else "in last bits (not compared, none are stored)"
    return Check("retention", True, f"{detail}; drawings differ {apart}, {_since(model, [names[c] for c in redrawn])}")


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


def _strictness(model: Model, audit: Path | None) -> Check:
    """Look for training images in everything that is stored. A model's own are gone: an audit file knows them."""
    if audit is not None:
        return _audited(model, read_audit(audit, first_data(model.lineage)))
    if model.path is None or not is_run(model.path):
        return Check("strictness", None, "the images that it learned from are not at hand, and no audit file is")
    try:
        own = model.config.stream
        dataset = load_dataset(
            model.config.dataset, holdout=own.holdout, image_size=own.image_size, development=own.development
        )
    except EngramError as error:
        return Check("strictness", None, f"the data is not here ({error})")
    return searched(model, frozenset(prints(dataset.take_train().images.numpy())))


def _audited(model: Model, audit: Audit) -> Check:
    """Tasks that were learned without the audit file cannot be checked; what is found is found."""
    check = searched(model, audit.known, audit.salt)
    if check.ok and model.is_strict and (missing := missing_from(audit, model.lineage)):
        names = ", ".join(name for step in missing for name in step.classes)
        return replace(check, ok=None, detail=f"{check.detail}; those of {names} are not in the audit file")
    return check


def searched(model: Model, known: Set[bytes], key: bytes = b"") -> Check:
    """Whether the model's state holds an image with one of these prints."""
    found = 0 if model.shape is None else len(found_in(_stored_state(model), model.shape, known, key))
    if model.is_strict:
        kind = noun(model.shape or (1, 1, 1))
        return Check("strictness", found == 0, f"{found} training {kind} in the state, of {len(known)} looked for")
    kept = "stores real images, as it was set to" if model.method.strict else f"stores {model.method.stores}"
    return Check("strictness", True, f"{model.config.method} is not strict: it {kept}; {found} found")


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
