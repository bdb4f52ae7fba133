"""Groups -> matrices as heat maps: what was forgotten, and what was taken for what."""

from __future__ import annotations

from collections.abc import Sequence

from engram.evaluation import metrics
from engram.report import charts
from engram.report.charts import Figure, Rows
from engram.report.figures import faceted, legend, panels
from engram.report.gather import Run
from engram.report.groups import Data, Group, mean_of


def forgetting(data: Data, groups: Sequence[Group]) -> Figure | None:
    """The accuracy on each task after each task, as a heat map: a column that pales is a task forgotten."""
    rows: Rows = []
    names = []
    for g in panels(groups):
        if not (matrix := mean_matrix(g)):
            continue
        names.append(legend(g))
        for after, line in enumerate(matrix, start=1):
            for task, value in enumerate(line, start=1):
                label = f"{legend(g)}: task {task} after task {after}: {value:.2f} %"
                rows.append(
                    {
                        "panel": legend(g),
                        "after": after,
                        "task": task,
                        "value": value,
                        "text": _short(value),
                        "label": label,
                    }
                )
    if not rows:
        return None
    count = max(row["after"] for row in rows)
    x = {"field": "task", "type": "ordinal", "title": "task tested", "axis": {"labelAngle": 0}}
    y = {"field": "after", "type": "ordinal", "title": "after task"}
    panel = charts.heat(rows, x, y, legend="accuracy %", numbers=count <= 12, size=270)
    ends = [row["label"] for row in rows if row["after"] == count and row["task"] == 1]
    alt = f"Accuracy on every task after every task, on {data.title}. At the end, on the first: {'; '.join(ends)}."
    note = "Mean over the seeds. Where a column gets lighter from top to bottom, the task is being forgotten."
    spec = faceted(rows, panel, names)
    return Figure(f"forgetting-{data.slug}", f"{data.title}: the forgetting matrix", alt, spec, note)


def mean_matrix(g: Group) -> list[list[float]]:
    """[after task i][on task j] in per cent, over the runs as far as all have come."""
    each = [_matrix(run) for run in g.runs]
    depth = min(map(len, each))
    return [
        [100 * m.value for j in range(i + 1) if (m := mean_of([matrix[i][j] for matrix in each]))] for i in range(depth)
    ]


def _matrix(run: Run) -> list[list[float]]:
    """Rows as far as no evaluation is missing."""
    sizes = [len(task) for task in run.head.tasks]
    whole = [e for i, e in enumerate(run.evaluations) if e.task == i]
    return [metrics.task_row(e.confusion, sizes[: e.task + 1]) for e in whole]


def confusion(data: Data, groups: Sequence[Group]) -> Figure | None:
    """What was taken for what after the last task, in per cent of each class's images, over all seeds."""
    rows: Rows = []
    chosen = panels([g for g in groups if any(run.evaluations for run in g.runs)])
    if data.classes > 20:
        chosen = chosen[:1]
    order: list[str] = []
    for g in chosen:
        names, counts = summed_confusion(g)
        order = order if len(order) >= len(names) else names
        for true, line in zip(names, counts, strict=True):
            for answered, count in zip(names, line, strict=True):
                share = 100 * count / sum(line)
                label = f"{legend(g)}: {true} taken for {answered}: {share:.1f} % ({count} images)"
                shown = "" if share < 0.05 else _short(share)
                rows.append(
                    {
                        "panel": legend(g),
                        "true": true,
                        "answered": answered,
                        "value": share,
                        "text": shown,
                        "label": label,
                    }
                )
    if not rows:
        return None
    size = 270 if len(chosen) > 1 else min(640, max(420, 13 * len(order)))
    space = size / len(order)  # pixels for a name; with hundreds of classes there is none, and the pointer has to tell
    axis = {"labelLimit": 90, "labelFontSize": max(5, min(12, int(0.85 * space))), "labels": space >= 5}
    angle = 0 if max(map(len, order)) < 3 else -60 if space > 20 else -90
    x = charts.category("answered", "answered", sort=order, axis={**axis, "labelAngle": angle})
    y = charts.category("true", "true class", sort=order, axis=axis)
    names = [legend(g) for g in chosen]
    panel = charts.heat(rows, x, y, legend="% of class", numbers=len(order) <= 12, size=size)
    worst = max((row for row in rows if row["true"] != row["answered"]), key=lambda row: row["value"], default=None)
    alt = f"Confusion matrices on {data.title} for {', '.join(names)}."
    alt += f" The most frequent mistake: {worst['label']}." if worst else ""
    spec = faceted(rows, panel, names)
    return Figure(
        f"confusion-{data.slug}",
        f"{data.title}: confusion after the last task",
        alt,
        spec,
        "The images of all seeds are counted together.",
    )


def summed_confusion(g: Group) -> tuple[list[str], list[list[int]]]:
    """By class, whatever the order of appearance: class names in the data set's order, counts over the runs."""
    last = [run.evaluations[-1] for run in g.runs if run.evaluations]
    deepest = max(len(e.classes) for e in last)
    last = [e for e in last if len(e.classes) == deepest]
    classes = sorted({c for e in last for c in e.classes})
    place = {c: i for i, c in enumerate(classes)}
    counts = [[0] * len(classes) for _ in classes]
    for e in last:
        for true, line in zip(e.classes, e.confusion, strict=True):
            for answered, count in zip(e.classes, line, strict=True):
                counts[place[true]][place[answered]] += count
    names = g.runs[0].head.class_names
    unique = len(set(names)) == len(names)
    return [names[c] if unique else f"{names[c]} ({c})" for c in classes], counts


def _short(value: float) -> str:
    """What fits into a cell: 100, 99.6, 0."""
    return f"{value:.0f}" if value >= 99.95 or value < 0.05 else f"{value:.1f}"
