"""A lineage read class by class: when each was learned, from which data, and what was measured of it last.

A class that was forgotten and learned again has a new number: figures of the old one are not its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engram.evaluation.metrics import classes_right, counts
from engram.model.lineage import Step


@dataclass(frozen=True)
class Figure:
    """Something that was measured of a class, or of all together."""

    value: float
    place: int
    """Of the step in the lineage after which it was measured."""
    among: tuple[int, ...]
    """Numbers of all classes that the model knew then."""
    images: int | None = None
    """On which it was measured; None: nobody noted it."""


@dataclass(frozen=True)
class OfClass:
    """What the lineage tells of a class that the model knows."""

    name: str
    number: int
    learned: tuple[int, ...] = ()
    """Places of the steps that learned it; all but the first brought more images of it."""
    accuracy: Figure | None = None
    recognised: Figure | None = None
    """Share of its drawings that the classifier takes for it."""
    privacy: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    """(place, what was found), one for each step that tested its drawings."""


@dataclass(frozen=True)
class History:
    """A lineage, and what it says of every class."""

    steps: tuple[Step, ...]
    ids: Mapping[str, int]
    """Of the classes that the model knows."""
    classes: tuple[OfClass, ...]
    overall: tuple[Figure, ...]
    """Accuracy over all test images, after every task that has one."""
    names: Mapping[int, str]
    """By number, of all classes that were ever known."""

    def later(self, figure: Figure) -> list[str]:
        """Classes that the model knows and did not know when the figure was measured."""
        return [name for name, number in self.ids.items() if number not in figure.among]

    def gone(self, figure: Figure) -> list[str]:
        """Classes that it knew then and has forgotten since."""
        return [self.names[number] for number in figure.among if number not in self.ids.values()]

    def trained_since(self, place: int) -> bool:
        """Whether a task was learned after a step."""
        return any(step.kind == "learned" for step in self.steps[place + 1 :])

    def relearned_since(self, place: int) -> Step | None:
        """The last training of the classifier from scratch after a step."""
        return next((step for step in reversed(self.steps[place + 1 :]) if step.kind == "relearned"), None)

    def last(self, kind: str, key: str = "") -> tuple[int, Mapping[str, Any]] | None:
        """(place, facts) of the last step that recorded facts of this kind, and a figure of this key among them."""
        found = [(place, step.facts[kind]) for place, step in enumerate(self.steps) if kind in step.facts]
        return next(((place, facts) for place, facts in reversed(found) if not key or key in facts), None)

    def known_after(self, place: int) -> tuple[int, ...]:
        """Numbers of the classes that were known after a step."""
        return tuple(list(_numbered(self.steps, self.ids))[place][1].values())


def history(steps: Sequence[Step], ids: Mapping[str, int]) -> History:
    """`ids`: by name, of the classes that the model knows now."""
    learned: dict[int, list[int]] = {}
    accuracy: dict[int, Figure] = {}
    recognised: dict[int, Figure] = {}
    privacy: dict[int, list[tuple[int, Mapping[str, Any]]]] = {}
    overall: list[Figure] = []
    names = {number: name for name, number in ids.items()}
    for place, (step, known) in enumerate(_numbered(steps, ids)):
        names |= {number: name for name, number in known.items()}
        if step.kind != "learned":
            continue
        among = tuple(known.values())
        for number in step.ids:
            learned.setdefault(number, []).append(place)
        for name, share, images in _shares(step):
            if name in known:
                accuracy[known[name]] = Figure(share, place, among, images)
        for name, share in _recognised(step):
            if name in known:
                recognised[known[name]] = Figure(share, place, among)
        for name, found in _found(step):
            if name in known:
                privacy.setdefault(known[name], []).append((place, found))
        overall += _overall(step, place, among)
    classes = tuple(
        OfClass(
            name,
            number,
            tuple(learned.get(number, ())),
            accuracy.get(number),
            recognised.get(number),
            tuple(privacy.get(number, ())),
        )
        for name, number in ids.items()
    )
    return History(tuple(steps), ids, classes, tuple(overall), names)


def _numbered(steps: Sequence[Step], ids: Mapping[str, int]) -> Iterator[tuple[Step, dict[str, int]]]:
    """Every step, with the numbers of the classes that were known after it."""
    told = {number for step in steps if step.kind == "learned" for number in step.ids}
    known = {name: number for name, number in ids.items() if number not in told}  # before the lineage begins
    for step in steps:
        if step.kind == "learned":
            known |= dict(zip(step.classes, step.ids, strict=True))
        elif step.kind == "forgot":
            known = {name: number for name, number in known.items() if number not in step.ids}
        yield step, dict(known)


def _shares(step: Step) -> Iterator[tuple[str, float, int | None]]:
    """(class, accuracy, test images), of classes that had some."""
    record = step.facts.get("evaluation", {})
    names, shares, confusion = record.get("classes", step.known), classes_right(record), _confusion(record)
    for row, (name, share) in enumerate(zip(names, shares or (), strict=False)):
        if share is not None:
            yield name, share, sum(confusion[row]) if confusion else None


def _confusion(evaluation: Mapping[str, Any]) -> list[list[int]] | None:
    return counts(evaluation["confusion"]) if evaluation.get("confusion") else None


def _recognised(step: Step) -> Iterator[tuple[str, float]]:
    record = step.facts.get("quality", {})
    yield from zip(record.get("classes", step.known), record.get("recognised", ()), strict=False)


def _found(step: Step) -> Iterator[tuple[str, Mapping[str, Any]]]:
    record = step.facts.get("privacy", {})
    yield from zip(record.get("classes", ()), record.get("found", ()), strict=False)


def _overall(step: Step, place: int, among: tuple[int, ...]) -> list[Figure]:
    record = step.facts.get("evaluation", {})
    if record.get("accuracy") is None:
        return []
    confusion = _confusion(record)
    return [Figure(record["accuracy"], place, among, sum(map(sum, confusion)) if confusion else None)]
