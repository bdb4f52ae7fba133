"""The card's sections on what the model is made of: memory, bytes, growth, what was forgotten, where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from engram.data.datasets import Check
from engram.methods.learner import AddsUp, KeepsEngrams, Retains
from engram.model.card_figures import NOT_MEASURED, NOT_NOTED, SHORT, counted, listed, moment, task_of
from engram.model.card_page import Block, Cell, Code, Mono, Section, Table
from engram.model.history import History
from engram.model.lineage import Step
from engram.model.model import Model

PARTS = {
    "weights": "the generator's weights, shared by all classes",
    "masks": "which weights each task opens, a bit each",
    "heads": "first layer of each task",
    "normalisation": "scale and shift of each class",
    "references": "a few drawings of each class, to check it by",
    "exemplars": "real training images",
    "critic": "the judge of the generator's training",
    "importance": "a copy and an importance of every weight",
    "counts": "how many images each class had",
    "sums": "sum of the features of each class",
    "gram": "sums of products of two features, over all classes",
    "grams": "sums of products of two features, class by class",
    "filters": "random filters, drawn once",
    "statistics": "a second memory: sums of fixed features of real images, over each class and over all",
}
"""What the records call the parts of a memory."""


# ---------------------------------------------------------------- retention


def retention(model: Model, check: Check) -> Section:
    """Whether anything of a class has changed since it was learned; `check`: what `engram verify` says."""
    return Section("Memory unchanged", (_retained(model, check),))


def _retained(model: Model, check: Check) -> str:
    if not model.classes:
        return "The model knows no class yet: there is nothing to compare."
    if model.answers_only:
        return "Not checked: this file only answers, its engrams were left out. Check the file that has the generator."
    if isinstance(model.learner, AddsUp):
        return "It keeps sums over the images of each class. Later tasks add to them and take nothing away."
    if not isinstance(model.learner, Retains):
        return f"{check.detail}. What it remembers of earlier classes may change with every task: {NOT_MEASURED}."
    mark = {True: "Checked when this card was written", False: "FAILED when this card was written"}[bool(check.ok)]
    return (
        f"{mark}: {check.detail}. An engram is what the generator keeps of a class; its bits are frozen when the class "
        "is learned. That says nothing about the classifier, which is trained with every task: see the accuracy."
    )


# ---------------------------------------------------------------- bytes


def sizes(model: Model, past: History, path: Path | None) -> Section:
    """Bytes by part."""
    found, blocks = past.last("memory"), []
    rows: list[tuple[Cell, ...]] = []
    if found is not None and not model.answers_only:
        place, record = found
        rows += [
            (name.capitalize(), f"{size:,}", PARTS.get(name, ""))
            for name, size in record["bytes"].items()
            if size and name != "classifier"  # which is counted below, as it is now
        ]
        freed = sum(step.facts.get("bytes", 0) for step in past.steps[place + 1 :] if step.kind == "forgot")
        since = f" Forgetting has freed {freed:,} of these bytes since." if freed else ""
        blocks.append(f"The memory as recorded after {task_of(past.steps[place])}.{since}")
    elif not model.answers_only and model.classes:
        blocks.append(f"Bytes of the memory by part: {NOT_MEASURED}.")
    if model.learner is not None and model.classes:
        net = model.learner.answer_net()
        size = sum(one.numel() * one.element_size() for one in (*net.parameters(), *net.buffers()))
        rows.append(("Classifier", f"{size:,}", "the network that answers"))
    if audited := [step.facts["audit"] for step in past.steps if "audit" in step.facts]:
        what = (
            "outside the model: salted hashes of its training images, to look for them later; it tells who was a member"
        )
        rows.append(("Audit file", f"{sum(one['bytes'] for one in audited):,}", what))
    if path is not None and path.is_file():
        rows.append(("File", f"{path.stat().st_size:,}", "everything, with settings, bookkeeping and lineage"))
    else:
        blocks.append(f"Size of a model file: {NOT_MEASURED}, there is none.")
    table = (Table(("Part", "Bytes", "What it is"), tuple(rows), numbers=(1,)),) if rows else ()
    return Section("Size by part", (*blocks, *table))


# ---------------------------------------------------------------- growth


def growth(past: History) -> Section:
    """What every task added to the generator."""
    rows = tuple(_growth_row(step) for step in past.steps if "growth" in step.facts)
    if not rows:
        return Section("Growth of the generator", ("No growth is on record for this model.",))
    columns = ("Task", "Classes", "Weights before", "Weights after", "Reserved anew", "Shared with earlier tasks")
    note = (
        "Reserved anew: weights that the task was the first to need; no later task changes them. The network then "
        "grows, so that the next task has room."
    )
    return Section("Growth of the generator", (note, Table(columns, rows, numbers=(2, 3, 4, 5))))


def _growth_row(step: Step) -> tuple[Cell, ...]:
    layers = step.facts["growth"]["layers"]
    keys = ("weights_before", "weights_after", "newly_reserved", "reused")
    totals = (sum(layer[key] for layer in layers) if all(key in layer for layer in layers) else None for key in keys)
    numbers = (NOT_MEASURED if total is None else f"{total:,}" for total in totals)
    return task_of(step).capitalize(), listed(step.classes), *numbers


# ---------------------------------------------------------------- forgotten classes


def forgotten(model: Model, past: History, name: str) -> Section:
    """What was dropped, and what may remain."""
    gone = [(place, step) for place, step in enumerate(past.steps) if step.kind == "forgot"]
    if not gone:
        return Section("Forgotten classes", ("None.",))
    if isinstance(model.learner, AddsUp):
        return Section("Forgotten classes", _sums_gone(gone))
    columns = ("Class", "Id", "Forgotten", "Weights freed", "Engrams dropped", "Classifier trained anew")
    rows = tuple(_gone_row(past, place, step) for place, step in gone)
    kept = [one for place, step in gone if past.relearned_since(place) is None for one in step.classes]
    blocks: list[Block] = [
        "Their engrams, their answers and every weight that no other class needs are gone from this file. Weights that "
        "engrams of other classes share with them stay as they are. Copies and earlier versions of the file still hold "
        "them.",
        Table(columns, rows, numbers=(1, 4)),
    ]
    if (found := past.last("memory")) is not None and "statistics" in found[1]["bytes"]:
        blocks.append(
            "Of the second memory their sums are gone; the sums of products, which all classes share, were made anew "
            "from drawings of the other classes."
        )
    return Section("Forgotten classes", (*blocks, *_remains(model, kept, name)))


def _sums_gone(gone: list[tuple[int, Step]]) -> tuple[Block, ...]:
    rows = tuple(
        (listed(step.classes), ", ".join(map(str, step.ids)), moment(step.when), f"{step.facts['bytes']:,}")
        for _, step in gone
    )
    return (
        "The sums over their images are gone from this file, and nothing else was ever made of these images: it "
        "answers as a model that never learned these classes. Copies and earlier versions of the file still hold them.",
        Table(("Class", "Id", "Forgotten", "Bytes freed"), rows, numbers=(1, 3)),
    )


def _gone_row(past: History, place: int, step: Step) -> tuple[Cell, ...]:
    facts, anew = step.facts, past.relearned_since(place)
    weights = f"{facts['weights']:,} of {facts['all_weights']:,}" if "all_weights" in facts else NOT_NOTED
    engrams, ids = str(facts.get("engrams", NOT_NOTED)), ", ".join(map(str, step.ids))
    return listed(step.classes), ids, moment(step.when), weights, engrams, moment(anew.when) if anew else "no"


def _remains(model: Model, kept: list[str], name: str) -> Iterator[Block]:
    """The classifier's trunk is one for all classes."""
    if not kept:
        yield (
            "The classifier has been trained anew since, from drawings of the other classes alone: it never saw the "
            "forgotten ones."
        )
        return
    yield (
        f"The classifier's trunk, the layers that all classes share, was trained on {listed(kept)} too, and has not "
        "been trained anew since: traces may remain in it. Forgetting with --retrain (engram forget MODEL CLASS "
        "--retrain) trains another classifier from drawings of the other classes."
    )
    if model.classes and isinstance(model.learner, KeepsEngrams):
        yield "For classes that are forgotten already:"
        yield Code(
            "python",
            f"from engram import Model\n\nmodel = Model.open({name!r})\nmodel.relearn()\nmodel.save({name!r})",
        )


# ---------------------------------------------------------------- lineage


def lineage(past: History) -> Section:
    """Every step, oldest first."""
    if not past.steps:
        return Section("Lineage", ("Nothing was learned yet.",))
    columns = ("Step", "What", "When", "Parent", "Data", "Seconds", "Machine")
    rows = tuple(_step_row(number, step) for number, step in enumerate(past.steps, 1))
    note = (
        "Every change of the model, oldest first. Parent: digest of the model that it started from. Data: name and "
        "digest of what was learned; the same digest means the same images."
    )
    return Section("Lineage", (note, Table(columns, rows, numbers=(5,))))


def _step_row(number: int, step: Step) -> tuple[Cell, ...]:
    parent: Cell = Mono(step.parent[:SHORT]) if step.parent else "none noted"
    seconds = NOT_NOTED if step.seconds is None else f"{step.seconds:,.1f}"
    return str(number), _what(step), moment(step.when), parent, _data(step), seconds, _machine(step)


def _what(step: Step) -> str:
    if step.kind == "relearned":
        return f"trained the classifier anew for {counted(len(step.classes), 'class', 'classes')}"
    if step.kind == "forgot":
        return f"forgot {listed(step.classes)}"
    new = [name for name in step.classes if name not in step.updated]
    parts = [listed(new)] if new else []
    parts += [f"more images of {listed(step.updated)}"] if step.updated else []
    return f"learned {' and '.join(parts)} ({task_of(step)})"


def _data(step: Step) -> str:
    if step.kind != "learned":
        return "none needed"
    digest = str(step.data.get("digest") or "no digest")
    return f"{step.data.get('name', NOT_NOTED)} ({digest[:SHORT]})"


def _machine(step: Step) -> str:
    known = step.machine
    versions = known.get("versions") or {}
    parts = [str(known[key]) for key in ("processor", "instructions", "device") if known.get(key)]
    parts += [f"{key} {versions[key]}" for key in ("engram", "torch") if key in versions]
    parts += [f"commit {str(known['commit'])[:7]}"] if known.get("commit") else []
    return ", ".join(parts) or NOT_NOTED
