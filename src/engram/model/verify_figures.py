"""Figures that follow from others, computed anew: whoever edits one of them has to edit all. Pure functions of records.

Everything that is said of accuracy follows from the confusion matrices. Losses, top-5 hits, the quality of drawings and
clock times follow from nothing that is recorded: what can be said of them is that they lie where they must.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engram.evaluation import metrics
from engram.experiment.records import Record

CLOSE = 1e-9
"""How far a figure may be from the one that is computed: sums in another order."""
NOT_DERIVED = "top-5 beyond its bounds, losses, drawings' quality and clock times follow from nothing recorded"


def wrong_figures(records: Sequence[Record]) -> tuple[int, list[str]]:
    """How many figures were computed anew from a run's records, and what is wrong, in words."""
    head = records[0]
    start, known = head.get("start", 0), head.get("known", [])
    matrix: list[list[float]] = []
    rows: dict[Any, int] = {}
    compared, wrong = 0, []
    for record in records:
        if record["kind"] not in ("evaluation", "other_answer"):
            continue
        place = record["task"] - start
        name = f"task {record['task'] + 1}" + (f", {record['way']}" if record["kind"] == "other_answer" else "")
        done = head["tasks"][: place + 1]
        seen = [*known, *(number for task in done for number in task if number not in known)]
        told = [*_of_evaluation(record, seen, rows)]
        if record["kind"] == "evaluation" and not known and not told:
            matrix.append(metrics.task_row(metrics.counts(record["confusion"]), [len(task) for task in done]))
            told += _of_matrix(record, matrix)
            compared += 3
        compared += figures_in(record)
        wrong += [f"{name}: {line}" for line in told]
    return compared, wrong + _wrong_growth(records)


def figures_in(record: Mapping[str, Any]) -> int:
    """How many figures of an evaluation are held against its matrix: two in all, the bound of top-5, and by class."""
    return 3 + len(record.get("per_class", ()))


def wrong_in_step(facts: Mapping[str, Any]) -> list[str]:
    """What is wrong in the figures that a model's lineage tells of a task."""
    record = facts.get("evaluation")
    if not record or not record.get("confusion"):
        return []
    return [*_of_evaluation(record, record.get("classes"), {})]


def _of_evaluation(record: Mapping[str, Any], seen: Sequence[Any] | None, rows: dict[Any, int]) -> Iterator[str]:
    """`rows`: test images a class, as earlier records had them; what is new is added."""
    classes, confusion = record["classes"], metrics.counts(record["confusion"])
    if seen is not None and list(classes) != list(seen):
        yield f"it tells of classes {classes}, where {list(seen)} were learned"
    if len(confusion) != len(classes) or any(len(row) != len(classes) for row in confusion):
        yield "the confusion matrix has another size than the classes"
        return
    if any(not isinstance(count, int) or count < 0 for row in confusion for count in row) or not any(
        map(any, confusion)
    ):
        yield "the confusion matrix holds something that is no count"
        return
    for number, row in zip(classes, confusion, strict=True):
        if rows.setdefault(number, sum(row)) != sum(row):
            yield f"class {number} has {sum(row)} test images, and had {rows[number]} before"
    derived = {"accuracy": metrics.micro(confusion), "macro": metrics.macro(confusion)}
    yield from (
        _differs(name, record.get(name), value) for name, value in derived.items() if _far(record.get(name), value)
    )
    if "per_class" not in record and isinstance(record["confusion"], dict):
        shares: Sequence[Any] = metrics.per_class(confusion)  # beside a matrix in short form they are not written
    else:
        shares = record["per_class"]
    for number, told, value in zip(classes, shares, metrics.per_class(confusion), strict=len(shares) == len(classes)):
        if _far(told, value):
            yield _differs(f"class {number}", told, value)
    if len(shares) != len(classes):
        yield f"{len(shares)} classes have an accuracy, of {len(classes)}"
    top5 = record.get("top5")
    if (top5 is None) != (len(classes) <= 5) or (top5 is not None and not derived["accuracy"] - CLOSE <= top5 <= 1):
        yield f"top-5 says {top5}, with an accuracy of {derived['accuracy']:.4f} among {len(classes)} classes"


def _of_matrix(record: Record, matrix: Sequence[Sequence[float]]) -> Iterator[str]:
    derived = {
        "task_mean": metrics.mean(matrix[-1]),
        "forgetting": metrics.forgetting(matrix),
        "backward_transfer": metrics.backward_transfer(matrix),
    }
    yield from (
        _differs(name, record.get(name), value) for name, value in derived.items() if _far(record.get(name), value)
    )


def _wrong_growth(records: Sequence[Record]) -> list[str]:
    """A layer begins a task as large as the one before has left it."""
    growth = [record for record in records if record["kind"] == "growth"]
    return [
        f"task {later['task'] + 1}: layer {number} begins with {layer['weights_before']} weights, "
        f"the task before left {left['weights_after']}"
        for earlier, later in itertools.pairwise(growth)
        for number, (left, layer) in enumerate(zip(earlier["layers"], later["layers"], strict=False))
        if left["weights_after"] != layer["weights_before"]
    ]


def _far(told: Any, value: float | None) -> bool:
    if told is None or value is None or isinstance(told, bool) or not isinstance(told, int | float):
        return told is not value
    return not math.isclose(told, value, rel_tol=0, abs_tol=CLOSE)


def _differs(name: str, told: Any, value: float | None) -> str:
    return f"{name} says {told}, its confusion matrix {value if value is None else round(value, 6)}"
