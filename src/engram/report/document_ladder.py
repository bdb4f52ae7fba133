"""Runs of `benchmarks/ladder.py` -> the documents' table of what each change is worth, in points and in seconds."""

from __future__ import annotations

from engram.report.document_rows import NONE_YET, Place, mean_cell, method_cell, table, text
from engram.report.ladder import Step, steps


def ladder(place: Place) -> str:
    """Each rung against the one before it, our default without one change against itself, then the controls."""
    rows = [_row(place, step) for step in steps(place.current)]
    columns = ["data", "method", "label", "kind", "A_t % at the end", "against", "worth, points", "CPU seconds"]
    return table([*columns, "worth, CPU seconds", "seeds"], rows) if rows else NONE_YET


def _row(place: Place, step: Step) -> list[str]:
    g = step.group
    seconds = mean_cell(g.cpu_seconds, 0)
    worths = ["" if one is None else one.told(digits) for one, digits in ((step.points, 2), (step.seconds, 0))]
    row = [
        text(g.data.title),
        method_cell(g),
        place.link(g),
        step.kind if step.against else "first rung",
        mean_cell(g.final),
    ]
    return [*row, step.against, worths[0], seconds, worths[1], _seeds(step)]


def _seeds(step: Step) -> str:
    """`0, 1, 2`; where the other row has fewer of them, how many were compared."""
    mine = step.group
    if step.points is None:
        return f"{mine.seeds}; none in common" if step.other else mine.seeds
    return mine.seeds if step.points.n == len(mine.runs) else f"{mine.seeds}; {step.points.n} compared"
