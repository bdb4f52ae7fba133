"""Groups -> how far answers can be trusted, task by task: a table, and a figure of what is kept and what is noticed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from engram.report import charts
from engram.report.charts import FAINT, INK, MOST_SERIES, Figure, Rows, Spec
from engram.report.figures import HALF, legend, point
from engram.report.gather import Run
from engram.report.groups import Data, Group, Mean
from engram.report.tables import Row, Table, mean, number
from engram.report.views import in_full, in_sections, seeds

AIM = (93, 97)
"""Per cent of the images of known classes: 95 are to be kept, and so far off is still well met."""
GUESSING = 0.5
MEASURES = {
    "ECE % before": ("ece_before", 100),
    "ECE % after": ("ece", 100),
    "known kept %": ("kept", 100),
    "AUROC": ("auroc", 1),
    "unknown rejected %": ("rejected", 100),
}
"""Column -> field of the record, and what it is multiplied by."""

NOTE = (
    "On test images. ECE, the expected calibration error: how far confidence and accuracy lie apart, before and after "
    "calibration. Known kept: images of known classes that are not called unknown; 95 % are aimed at. AUROC: the "
    "chance that an image of a known class is surer than one of a class still to come; 0.5 is guessing. Unknown "
    "rejected: images of classes still to come that are called unknown. While one class is known, every answer "
    "is sure: only an image that is unlike the class's drawings is called unknown. After the last "
    "task no class is still to come."
)


def measured(run: Run, task: int, name: str) -> float | None:
    """A field of the record after a task."""
    return next((getattr(found, name) for found in run.trust if found.task == task), None)


def over_seeds(g: Group, task: int, name: str) -> Mean | None:
    return g.mean(partial(measured, task=task, name=name))


def tasks_of(g: Group) -> list[int]:
    """Those after which some run was calibrated."""
    return sorted({found.task for run in g.runs for found in run.trust})


def judged(g: Group) -> list[int]:
    """Of these, the ones after which an answer could be unsure: two classes were known, or more."""
    return [task for task in tasks_of(g) if g.runs[0].head.seen(task) > 1]


def table(data: Data, groups: Sequence[Group]) -> Table | None:
    """A row a task. None where no run was calibrated."""
    shown = in_sections(g for g in groups if tasks_of(g))
    rows = [_row(g, task) for g in shown for task in tasks_of(g)]
    if not rows:
        return None
    columns = ("after task", "classes known", *MEASURES)
    title = f"{data.title}: calibration and unknown images, after every task"
    return Table(f"trust-{data.slug}", title, columns, tuple(rows), NOTE, in_full(shown))


def _row(g: Group, task: int) -> Row:
    cells = [number(task + 1, 0), number(g.runs[0].head.seen(task), 0)]
    for name, scale in MEASURES.values():
        cells.append(mean(over_seeds(g, task, name), 2 if scale == 100 else 3, scale=scale))
    return Row(tuple(cells), f"{g.label}; {'seeds' if len(g.runs) > 1 else 'seed'} {seeds(g)}", g.method)


def figure(data: Data, groups: Sequence[Group]) -> Figure | None:
    """What is kept of the known, and how well the unknown is told from it, over the tasks."""
    shown = in_sections(g for g in groups if judged(g))[:MOST_SERIES]
    kept, auroc = _rows(shown, "kept", 100, "% kept"), _rows(shown, "auroc", 1, "AUROC")
    if not kept and not auroc:
        return None
    names = [legend(g) for g in shown]
    panels = [panel(rows, names) for panel, rows in ((_kept, kept), (_auroc, auroc)) if rows]
    last = {(row["series"], row["unit"]): row["label"] for row in (*kept, *auroc)}
    alt = f"Images of known classes that are kept, and AUROC against classes still to come, on {data.title}. "
    note = f"Band: {AIM[0]} to {AIM[1]} % kept; 95 % are aimed at. Line at {GUESSING}: guessing."
    return Figure(
        f"trust-{data.slug}-tasks",
        f"{data.title}: what is kept of the known, and whether the unknown is noticed",
        f"{alt}At the end: {'; '.join(last.values())}.",
        {"hconcat": panels},
        note,
    )


def _rows(groups: Sequence[Group], name: str, scale: int, unit: str) -> Rows:
    rows: Rows = []
    for g in groups:
        for task in judged(g):
            found = over_seeds(g, task, name)
            if found is not None:
                scaled = Mean(scale * found.value, None if found.std is None else scale * found.std, found.n)
                rows += [{**row, "unit": unit} for row in point(g, task + 1, scaled, unit, "task")]
    return rows


def _kept(rows: Rows, names: Sequence[str]) -> Spec:
    lowest = min(min(row["value"], row.get("low", 100)) for row in rows)
    scale = {"domain": [max(0, min(90, 10 * (lowest // 10))), 100], "nice": False, "clamp": True}
    y = charts.quantity("value", "known images kept, %", scale=scale, axis={"grid": True})
    mark = {"type": "rect", "color": FAINT, "opacity": 0.6, "aria": False}
    low, high = AIM
    return _panel(rows, names, y, {"mark": mark, "encoding": {"y": {**y, "datum": low}, "y2": {"datum": high}}})


def _auroc(rows: Rows, names: Sequence[str]) -> Spec:
    lowest = min(min(row["value"], row.get("low", 1)) for row in rows)
    scale = {"domain": [0.4 if lowest > 0.4 else 0, 1], "nice": False, "clamp": True}
    y = charts.quantity("value", "AUROC, known against unknown", scale=scale, axis={"grid": True})
    mark = {"type": "rule", "color": INK, "strokeDash": [2, 3], "aria": False}
    return _panel(rows, names, y, {"mark": mark, "encoding": {"y": {**y, "datum": GUESSING}}})


def _panel(rows: Rows, names: Sequence[str], y: Spec, behind: Spec) -> Spec:
    """Lines over the tasks, with a mark behind them that spans them all."""
    del behind["encoding"]["y"]["field"]
    x = charts.counted("x", "after task", sorted({row["x"] for row in rows}), HALF)
    drawn = charts.lines(rows, names, x, y)
    ahead = [{**layer, "encoding": {"x": x, **layer["encoding"]}} for layer in drawn["layer"]]
    layers = [{**behind, "data": {"values": [{}]}}, *ahead]
    return {"data": drawn["data"], "layer": layers, "width": 255, "height": 220}
