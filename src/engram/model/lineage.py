"""Where a model comes from: a step for everything that was learned or forgotten, oldest first. No images, no weights.

A step that learned a task is read off the records of the loop that learned it, so a run folder has the same lineage
as a model file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Literal

import torch

from engram.data.recipe import Recipe, recipe_in
from engram.errors import RunError
from engram.experiment.folder import environment
from engram.experiment.records import Record

FACTS = ("evaluation", "quality", "growth", "memory", "retention", "calibration", "unknown", "privacy")
"""Kinds of records of a task that the card tells of."""
MACHINE = ("processor", "cpu", "instructions", "libraries", "device", "versions", "commit")
"""What decides the last bits of a computation."""


@dataclass(frozen=True)
class Step:
    """One change of a model."""

    kind: Literal["learned", "forgot", "relearned"]
    classes: tuple[str, ...]
    """The classes that it is about, by name."""
    ids: tuple[int, ...]
    """Their numbers, which no other class ever gets."""
    when: str | None = None
    """ISO 8601, UTC; None where nobody noted it."""
    parent: str | None = None
    """Digest of the model that it started from; None for the first, and for a run folder."""
    task: int | None = None
    """Which task it was, counted from 0; None where none was learned."""
    known: tuple[str, ...] = ()
    """All classes that the model knew afterwards."""
    updated: tuple[str, ...] = ()
    """Of the classes, those that were known before."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Name, variant and digest of the data, and how many images the task had."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    """Spent on learning; None where nobody noted it, and under SOURCE_DATE_EPOCH."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the loop recorded of the task, by kind; of an audit file, its bytes and images."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the file."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def of(cls, plain: Any) -> Step:
        """Back from a file."""
        names = {spec.name for spec in fields(cls)}
        if not isinstance(plain, dict) or not {"kind", "classes", "ids"} <= set(plain) <= names:
            raise RunError("a step of the lineage is not one; restore the model from a copy")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
        return cls(**values)


def first_data(lineage: Sequence[Step]) -> str | None:
    """Digest of the first data that was learned: the same for all versions of a model, None for a new one."""
    return next((step.data.get("digest") for step in lineage if step.kind == "learned"), None)


def first_backbone(lineage: Sequence[Step]) -> Recipe | None:
    """By what the vectors were made that a model learned from first, and so all others; None where nobody said."""
    return recipe_in(next((step.data for step in lineage if step.kind == "learned"), {}))


def now() -> str:
    """The time, to the second; SOURCE_DATE_EPOCH takes its place where somebody wants equal files."""
    fixed = _fixed_clock()
    moment = datetime.now(UTC) if fixed is None else datetime.fromtimestamp(fixed, UTC)
    return moment.isoformat(timespec="seconds")


def _fixed_clock() -> int | None:
    """Seconds since 1970, where the clock is to leave no trace in a file."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    return int(fixed) if fixed.isdecimal() else None


def machine(device: torch.device) -> dict[str, Any]:
    """What of this machine decides the last bits."""
    here = environment(device)
    return {key: here[key] for key in MACHINE}


def moved(step: Step, device: torch.device) -> list[str]:
    """What differs between the machine of a step and this one; nothing where nobody noted it."""
    here = machine(device)
    return [f"{key}: {step.machine[key]} -> {here[key]}" for key in step.machine if step.machine[key] != here.get(key)]


def learned_steps(
    records: Sequence[Record],
    *,
    ids: Mapping[str, int],
    when: str | None = None,
    parent: str | None = None,
    on: Mapping[str, Any] | None = None,
    audited: Mapping[int, Mapping[str, int]] | None = None,
) -> list[Step]:
    """A step for every task that these records tell to the end. `ids`: by name, of all classes.

    `audited`: by task, what an audit file holds of it.
    """
    head = next(record for record in records if record["kind"] == "run")
    names, known = head["class_names"], [head["class_names"][number] for number in head.get("known", [])]
    steps = []
    for place, numbers in enumerate(head["tasks"]):
        index = head.get("start", 0) + place
        own = {record["kind"]: record for record in records if record.get("task") == index}
        if "task" not in own:
            break
        classes = tuple(names[number] for number in numbers)
        updated = tuple(name for name in classes if name in known)
        known += [name for name in classes if name not in known]
        facts = {kind: _bare(own[kind]) for kind in FACTS if kind in own}
        if "classes" in facts.get("evaluation", {}):
            facts["evaluation"]["classes"] = [names[number] for number in facts["evaluation"]["classes"]]
        if noted := (audited or {}).get(index):
            facts["audit"] = dict(noted)
        steps.append(
            Step(
                "learned",
                classes,
                tuple(ids[name] for name in classes),
                when=when,
                parent=parent,
                task=index,
                known=tuple(known),
                updated=updated,
                data={**head["dataset"], "images": head["images"][place]},
                machine=on or {},
                seconds=round(own["timing"]["seconds"], 1) if "timing" in own and _fixed_clock() is None else None,
                facts=facts,
            )
        )
    return steps


def _bare(record: Record) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in ("kind", "task")}
