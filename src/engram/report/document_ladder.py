"""Runs of `benchmarks/ladder.py` -> the documents' table of what each change is worth, in points and in seconds."""

from __future__ import annotations

from itertools import pairwise

from engram.report.document_masks import NONE_YET, against, finals
from engram.report.document_rows import Place, mean_cell, seconds, table, text
from engram.report.groups import Group

RUNG, WITHOUT = "ladder-", "without-"


def ladder(place: Place) -> str:
    """Each rung against the one before it, then our default against itself without one change."""
    found = sorted((g for g in place.current if g.runs[0].label.startswith(RUNG)), key=lambda g: g.runs[0].label)
    if not found:
        return NONE_YET
    rows = [_row(place, found[0], None), *(_row(place, g, before) for before, g in pairwise(found))]
    rows += [_row(place, g, found[-1]) for g in place.current if g.runs[0].label.startswith(WITHOUT)]
    columns = [
        "data",
        "label",
        "A_t % at the end",
        "worth, points",
        "seconds (threads, CPU)",
        "worth, seconds",
        "seeds",
    ]
    return table(columns, rows)


def _row(place: Place, g: Group, before: Group | None) -> list[str]:
    points = time = ""
    if before is not None:
        points = against(finals(g), finals(before))
        if g.seconds is not None and before.seconds is not None:
            time = f"{g.seconds.value - before.seconds.value:+,.0f}"
    return [text(g.data.title), place.link(g), mean_cell(g.final), points, seconds(g), time, g.seeds]
