"""The card's sections on what was measured: classes and accuracy; and how figures are written."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from engram.evaluation.metrics import classes_right
from engram.evaluation.privacy import wilson
from engram.model.card_page import Block, Cell, Section, Share, Table
from engram.model.history import Figure, History, OfClass
from engram.model.lineage import Step

NOT_MEASURED = "not measured"
NOT_NOTED = "not noted"
SHORT = 12
"""Letters of a digest that tell two apart."""


# ---------------------------------------------------------------- how figures are written


def percent(share: float, images: int | None = None) -> str:
    """With as many digits as so many images can bear.

    >>> percent(2 / 3, 18), percent(2 / 3, 600), percent(1.0, 10_000)
    ('67 %', '66.7 %', '100.00 %')
    """
    digits = 1 if images is None else 0 if images < 200 else 1 if images < 10_000 else 2
    return f"{100 * share:.{digits}f} %"


def counted(number: int, one: str, many: str = "") -> str:
    """
    >>> counted(1, "class", "classes"), counted(1200, "image")
    ('1 class', '1,200 images')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def moment(when: str | None) -> str:
    """
    >>> moment("2026-05-04T10:11:12+00:00"), moment(None)
    ('2026-05-04 10:11 UTC', 'not noted')
    """
    try:
        return NOT_NOTED if when is None else f"{datetime.fromisoformat(when).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return str(when)


def task_of(step: Step) -> str:
    """Which task a step was, as people count."""
    return "no task" if step.task is None else f"task {step.task + 1}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """
    >>> listed(["a", "b"]), listed(list("abcdefg"))
    ('a, b', 'a, b, c, d, e and 2 more')
    """
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def changes(past: History, figure: Figure) -> list[str]:
    """What has happened to the model since a figure was measured; nothing where it is of today."""
    later, gone = past.later(figure), past.gone(figure)
    found = []
    if later:
        are = "is" if len(later) == 1 else "are"
        found.append(f"{counted(len(later), 'later one', 'later ones')} {are} not in it ({listed(later)})")
    elif past.trained_since(figure.place):
        found.append("more was learned since")
    if gone:
        found.append(f"{listed(gone)} forgotten since")
    if past.relearned_since(figure.place):
        found.append("the classifier was trained anew since")
    return found


def measured(past: History, figure: Figure) -> str:
    """When, and among how many classes."""
    step = past.steps[figure.place]
    base = f"after {task_of(step)}, {moment(step.when)}, among {counted(len(figure.among), 'class', 'classes')}"
    return "; ".join([base, *changes(past, figure)])


def old(past: History, figure: Figure) -> str:
    """A word of warning before a figure that is not of today."""
    return "old figure: " if changes(past, figure) else ""


# ---------------------------------------------------------------- classes


def classes(past: History) -> Section:
    """A row a class."""
    heading = "Classes"
    if not past.classes:
        return Section(heading, ("The model knows no class yet.",))
    columns = ("Class", "Id", "Learned", "From", "Images", "Test accuracy", "Measured", "Drawings recognised")
    return Section(
        heading,
        (
            "Test accuracy: the share of a class's test images, which were not learned from, that is answered rightly "
            "among all classes that the model knew at that time. In brackets: the range in which it lies with 95 % "
            "confidence, given how few or many images were tested. Drawings recognised: the share of the model's own "
            "drawings of a class that its classifier takes for that class. Images: of the class, or where it says so "
            "of its whole task, held-out ones included.",
            Table(columns, tuple(_class_row(past, one) for one in past.classes), numbers=(1, 4)),
        ),
    )


def _class_row(past: History, one: OfClass) -> tuple[Cell, ...]:
    steps = [past.steps[place] for place in one.learned]
    learned, data, images = (_each(steps, tell) for tell in (_learned, _data, _images))
    when = NOT_MEASURED if one.accuracy is None else old(past, one.accuracy) + measured(past, one.accuracy)
    return (one.name, str(one.number), learned, data, images, _accuracy(one.accuracy), when, _recognised(past, one))


def _each(steps: Sequence[Step], tell: Any) -> str:
    first, *more = [tell(step) for step in steps] or [NOT_NOTED]
    return "; ".join([first, *(f"updated: {text}" for text in more)])


def _learned(step: Step) -> str:
    return f"{task_of(step)}, {moment(step.when)}"


def _data(step: Step) -> str:
    digest = str(step.data.get("digest") or "")
    return f"{step.data.get('name', NOT_NOTED)}{f' ({digest[:SHORT]})' if digest else ''}"


def _images(step: Step) -> str:
    """A task's images are counted together."""
    images = step.data.get("images")
    if not isinstance(images, int):
        return NOT_NOTED
    return f"{images:,}" if len(step.classes) == 1 else f"{images:,} for {len(step.classes)} classes"


def _accuracy(figure: Figure | None) -> Cell:
    if figure is None:
        return NOT_MEASURED
    if not figure.images:
        return Share(figure.value, percent(figure.value))
    around = wilson(figure.value, figure.images)
    low, high = (percent(end, figure.images).removesuffix(" %") for end in (around.low, around.high))
    text = f"{percent(figure.value, figure.images)} of {figure.images:,} ({low} to {high} %)"
    return Share(figure.value, text)


def _recognised(past: History, one: OfClass) -> str:
    if one.recognised is None:
        return NOT_MEASURED
    since = changes(past, one.recognised)
    return percent(one.recognised.value, 100) + (f" (old figure: {'; '.join(since)})" if since else "")


# ---------------------------------------------------------------- accuracy over time


def accuracy(past: History) -> Section:
    """A row a task."""
    heading = "Accuracy over time"
    if not past.overall:
        return Section(heading, (f"Accuracy: {NOT_MEASURED}.",))
    columns = (
        "After",
        "When",
        "Learned",
        "Classes known",
        "Accuracy",
        "Test images",
        "Classes tested",
        "Lost since best",
    )
    since = changes(past, past.overall[-1])
    blocks: list[Block] = [
        "Over all test images that were at hand after each task, without telling the model which task an image is of. "
        "Where test images of earlier classes were no longer at hand, those classes are not in the figure: see "
        "“Classes tested”. Lost since best: how many percentage points earlier tasks have lost, on average, since "
        "they were at their best.",
        Table(columns, tuple(_task_row(past, figure) for figure in past.overall), numbers=(3, 5, 6, 7)),
    ]
    if since:
        blocks.append(f"The last of these figures is old: {'; '.join(since)}. The accuracy of today: {NOT_MEASURED}.")
    return Section(heading, tuple(blocks))


def _tested(past: History, figure: Figure) -> int | None:
    """Of how many classes there were test images; None where it is not noted."""
    shares = classes_right(past.steps[figure.place].facts["evaluation"])
    return None if shares is None else sum(share is not None for share in shares)


def tested_of(past: History, figure: Figure) -> str:
    """`1 of 4 classes`, where some had no test images at hand."""
    tested, known = _tested(past, figure), len(figure.among)
    return "" if tested in (None, known) else f"{tested} of {known} classes"


def _task_row(past: History, figure: Figure) -> tuple[Cell, ...]:
    step, known = past.steps[figure.place], len(figure.among)
    lost, count = step.facts["evaluation"].get("forgetting"), _tested(past, figure)
    tested = NOT_NOTED if count is None else f"{count} of {known}"
    return (
        task_of(step).capitalize(),
        moment(step.when),
        listed([f"{name} (update)" if name in step.updated else name for name in step.classes]),
        str(known),
        Share(figure.value, percent(figure.value, figure.images)),
        NOT_NOTED if figure.images is None else f"{figure.images:,}",
        tested,
        NOT_MEASURED if lost is None else f"{100 * lost:.1f}",
    )
