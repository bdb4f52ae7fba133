"""Runs of `benchmarks/ladder.py` -> what each change is worth: the rows of a table, and a figure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engram.report import charts
from engram.report.charts import INK, SERIES, Figure, Rows, Spec
from engram.report.groups import Data, Group, by_folder
from engram.report.worth import Worth, finals, processor_seconds, worth

RUNG = re.compile(r"ladder-(\d\d)-(.+)")
WITHOUT = "without-"
PAPER, OURS = "ladder-00-paper", "ladder-10-bound"
"""The first rung and the last, which is our default."""
CONTROLS = {"growth-off": OURS, "paper-no-class-term": PAPER}
"""Label -> that of the rung which it is compared with."""
KINDS = ("one change more", "our default without one change", "control")


@dataclass(frozen=True)
class Step:
    """A row of the ladder and what it is worth against another one, over the seeds that both have."""

    group: Group
    kind: str
    name: str
    """In the figure."""
    against: str
    """The label of the row that it is compared with; empty for the first rung."""
    other: Group | None
    """That row; None where it has no run yet."""
    points: Worth | None
    seconds: Worth | None
    """Of a processor. None: no common seed, or not measured."""


def steps(groups: Iterable[Group]) -> list[Step]:
    """From groups of one folder each: the rungs, our default without one change, the controls; ladder by ladder.

    A rung is compared with the one before it and with no other: where that has no run yet, with nothing.
    """
    ladders: dict[tuple[str, str], dict[str, Group]] = {}
    for g in groups:
        label = g.runs[0].label
        if g.finished and (RUNG.fullmatch(label) or label.startswith(WITHOUT) or label in CONTROLS):
            ladders.setdefault((g.data.digest, g.method), {})[label] = g
    return [step for rows in ladders.values() for step in _steps(rows)]


def _steps(rows: dict[str, Group]) -> list[Step]:
    numbered = {int(found[1]): label for label in sorted(rows) if (found := RUNG.fullmatch(label))}
    made = [
        _step(rows, label, KINDS[0], label.removeprefix("ladder-").replace("-", " ", 1), _before(numbered, number))
        for number, label in numbered.items()
    ]
    made += [
        _step(rows, label, KINDS[1], label.replace("-", " ", 1), OURS)
        for label in sorted(rows)
        if label.startswith(WITHOUT)
    ]
    return made + [_step(rows, label, KINDS[2], label, CONTROLS[label]) for label in CONTROLS if label in rows]


def _before(numbered: dict[int, str], number: int) -> str:
    return numbered.get(number - 1, f"rung {number - 1:02d}") if number else ""


def _step(rows: dict[str, Group], label: str, kind: str, name: str, against: str) -> Step:
    mine, other = rows[label], rows.get(against)
    if other is None:
        return Step(mine, kind, name, f"{against}, no run yet" if against else "", None, None, None)
    points = worth(finals(mine), finals(other))
    seconds = worth(processor_seconds(mine), processor_seconds(other))
    return Step(mine, kind, name, against, other, points, seconds)


# ---------------------------------------------------------------- the figure


def figure(data: Data, groups: Sequence[Group]) -> Figure | None:
    """The longest ladder of a data set, from two rungs on: A_t, and what each row is worth in points and in seconds."""
    found = steps(by_folder(run for g in groups for run in g.runs))
    rows = max(([s for s in found if s.group.method == step.group.method] for step in found), key=len, default=[])
    if sum(step.kind == KINDS[0] for step in rows) < 2:
        return None
    names = [step.name for step in rows]
    reached, points, seconds = _reached(rows), _worths(rows, "points"), _worths(rows, "seconds")
    panels = [_panel(reached, names, f"A_{data.classes}, %", 150, None, first=True)]
    panels.append(_panel(points, names, "worth, points", 190, 0, first=False))
    panels += [_panel(seconds, names, "worth, CPU seconds", 190, 0, first=False)] * bool(seconds)
    method = rows[0].group.method
    told = [row["label"] for row in (*reached, *points, *seconds)]
    alt = f"What each change from the paper's algorithm to ours is worth, {method} on {data.title}: {'; '.join(told)}."
    note = "A rung is compared with the one before it; our default without one change, and growth-off, with our "
    note += "default; paper-no-class-term with the paper's rung. Only seeds that both have count. Lines: one standard "
    note += "deviation of A_t; two standard errors of what a row is worth, none for one seed."
    title = f"{data.title}: from the paper's algorithm to ours, {method}"
    return Figure(f"ladder-{data.slug}", title, alt, {"hconcat": panels, "spacing": 14}, note)


def _reached(rows: Sequence[Step]) -> Rows:
    finals_of = [(step, step.group.final) for step in rows]
    return [_bar(step, mean.value, mean.std, f"{mean.value:.2f} %") for step, mean in finals_of if mean]


def _worths(rows: Sequence[Step], of: str) -> Rows:
    unit, digits = ("points", 2) if of == "points" else ("CPU seconds", 0)
    found: list[tuple[Step, Worth | None]] = [(step, getattr(step, of)) for step in rows]
    return [
        _bar(step, one.mean, None if one.error is None else 2 * one.error, f"{one.told(digits)} {unit}")
        for step, one in found
        if one
    ]


def _bar(step: Step, value: float, around: float | None, told: str) -> dict[str, object]:
    ends = {} if around is None else {"low": value - around, "high": value + around}
    return {"name": step.name, "series": step.kind, "value": value, **ends, "label": f"{step.name}: {told}"}


def _panel(rows: Rows, names: Sequence[str], title: str, width: int, zero: float | None, first: bool) -> Spec:
    """A mark a row: bars from zero, or points where zero says nothing; with a line around it. The first panel names the
    rows, which are the same in all."""
    x = charts.quantity(
        "value", title, scale={"zero": zero is not None, "padding": 8}, axis={"tickCount": 4, "labelFlush": False}
    )
    axis = {"labelLimit": 170, "grid": True} | ({} if first else {"labels": False, "ticks": False, "domain": False})
    y = charts.category("name", None, scale={"domain": list(names)}, axis=axis)
    colour = charts.category("series", scale={"domain": list(KINDS), "range": list(SERIES[: len(KINDS)])})
    mark: Spec = {"type": "point", "size": 70} if zero is None else {"type": "bar", "height": 11}
    layers: list[Spec] = [
        {"mark": mark, "encoding": {"x": x, "y": y, "color": colour, "description": {"field": "label"}}}
    ]
    if any("low" in row for row in rows):
        around = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y}
        line: Spec = {"mark": {"type": "rule", "color": INK, "strokeWidth": 1.6, "aria": False}, "encoding": around}
        layers.append({**line, "transform": [{"filter": "isValid(datum.low)"}]})
    if zero is not None:
        rule: Spec = {"mark": {"type": "rule", "color": INK, "aria": False}, "encoding": {"x": {**x, "field": "zero"}}}
        layers.append({**rule, "data": {"values": [{"zero": zero}]}})
    return {"data": {"values": rows}, "layer": layers, "width": width, "height": 22 * len(names)}
