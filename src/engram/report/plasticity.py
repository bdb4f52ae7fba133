"""Groups -> the figures that only a growing memory has: reuse, masks, growth, the quality of what it replays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from engram.report import charts
from engram.report.charts import DASHES, INK, MOST_SERIES, SERIES, WIDTH, Figure, Rows, Spec
from engram.report.figures import HALF, faceted, legend, panels, point
from engram.report.gather import Run
from engram.report.groups import Data, Group, one_per_method

SHARES = ("newly reserved", "reused", "reused by chance")


def reuse(data: Data, groups: Sequence[Group]) -> Figure | None:
    """Figure 3a: of all that a task uses, how much it reserved anew and how much it found reserved."""
    chosen = panels([g for g in groups if any(run.growth for run in g.runs)])
    rows: Rows = []
    for g in chosen:
        for task in sorted({growth.task for run in g.runs for growth in run.growth}):
            for name in SHARES:
                share = g.mean(partial(share_of_use, task=task, name=name))
                for row in point(g, task + 1, share, "%", "tasks"):
                    label = f"{legend(g)}, task {task + 1}: {name} {row['value']:.1f} %"
                    rows.append({**row, "panel": legend(g), "series": name, "label": label})
    if not rows:
        return None
    x = charts.counted("x", "task", sorted({row["x"] for row in rows}))
    y = charts.quantity("value", "share of what the task uses, %", scale={"domain": [0, 100]})
    panel = charts.lines(rows, list(SHARES), x, y)
    del panel["data"]
    last = [row["label"] for row in rows if row["x"] == max(r["x"] for r in rows)]
    alt = f"Share of newly reserved and of reused units or weights, on {data.title}. At the end: {'; '.join(last)}."
    size = {"width": 280, "height": 200} if len(chosen) > 1 else {"width": WIDTH, "height": 240}
    spec = faceted(rows, {**panel, **size}, [legend(g) for g in chosen])
    note = "DGMa counts units, DGMw weights, over all layers that grow. By chance: what a mask of random entries would "
    note += "reuse, which is the share that was reserved before the task."
    return Figure(f"figure3a-{data.slug}", f"Figure 3a. {data.title}: newly reserved and reused", alt, spec, note)


def share_of_use(run: Run, task: int, name: str) -> float | None:
    """In per cent of what a task uses, or, by chance, of all that it could."""
    found = next((growth for growth in run.growth if growth.task == task), None)
    if found is None or not found.new + found.reused:
        return None
    if name == "reused by chance":
        return 100 * sum(growth.new for growth in run.growth if growth.task < task) / found.entries
    return 100 * (found.new if name == "newly reserved" else found.reused) / (found.new + found.reused)


def reuse_of_masks(run: Run, task: int) -> float | None:
    """In per cent of what the masks opened; after units were left out where the record does not say it before."""
    found = next((growth for growth in run.growth if growth.task == task), None)
    if found is None or found.opened is None or not sum(found.opened):
        return share_of_use(run, task, "reused")
    return 100 * found.opened[1] / sum(found.opened)


def masks(data: Data, groups: Sequence[Group]) -> list[Figure]:
    """Figure 3b: mask values of some units over the epochs of one task, with each layer's occupancy."""
    shown = [(g, next((run for run in g.runs if run.masks), None)) for g in one_per_method(groups)]
    return [_masks(data, g, run) for g, run in shown if run]


def _masks(data: Data, g: Group, run: Run) -> Figure:
    """Of the last task whose masks were learned to the end: there the choice is hardest."""
    done = [step.task for step in run.masks if step.task < len(run.evaluations)]
    task = max(done, default=run.masks[0].task)
    steps = [step for step in run.masks if step.task == task]
    thin: Rows = []
    bold: Rows = []
    for step in steps:
        for layer, (values, locked) in enumerate(zip(step.sample, step.occupancy, strict=True), start=1):
            panel = f"layer {layer}"
            thin += [{"panel": panel, "x": step.epoch, "unit": i, "value": v} for i, v in enumerate(values)]
            label = f"layer {layer}, epoch {step.epoch}: {100 * locked:.1f} % locked"
            bold.append({"panel": panel, "x": step.epoch, "value": locked, "label": label})
    x = charts.counted("x", "epoch", sorted({row["x"] for row in bold}))
    y = charts.quantity("value", "mask value", scale={"domain": [0, 1]})
    line: Spec = {"mark": {"type": "line", "strokeWidth": 0.9, "opacity": 0.55, "color": SERIES[0], "aria": False}}
    line |= {"encoding": {"detail": {"field": "unit"}}, "transform": [{"filter": "isValid(datum.unit)"}]}
    mean: Spec = {"mark": {"type": "line", "strokeWidth": 3.5, "color": INK, "aria": False}}
    dots: Spec = {"mark": {"type": "point", "color": INK, "size": 30}, "encoding": {"description": {"field": "label"}}}
    only = {"transform": [{"filter": "!isValid(datum.unit)"}]}
    panel_spec = {
        "encoding": {"x": x, "y": y},
        "layer": [line, {**mean, **only}, {**dots, **only}],
        "width": 185,
        "height": 190,
    }
    names = list(dict.fromkeys(row["panel"] for row in bold))
    ends = "; ".join(row["label"] for row in bold if row["x"] == steps[-1].epoch)
    where = f"{data.title}, {legend(g)}, seed {run.head.seed}, task {task + 1}"
    note = f"{where}. Thin lines: a few units or weights of the layer. Bold line: the mean over the whole layer."
    alt = f"Mask values over the epochs of one task: {where}. At the end: {ends}."
    spec = faceted([*thin, *bold], panel_spec, names, columns=3)
    slug = "".join(c if c.isalnum() else "-" for c in g.method)
    return Figure(f"figure3b-{data.slug}-{slug}", f"Figure 3b. {data.title}: masks of {legend(g)}", alt, spec, note)


def growth(data: Data, groups: Sequence[Group]) -> Figure | None:
    """Figure 4: the generator's units and weights over tasks, against growth by its first size at every task."""
    chosen = [g for g in one_per_method(groups) if any(run.growth for run in g.runs)][: MOST_SERIES // 2]
    rows: Rows = []
    for g in chosen:
        deepest = max(len(run.growth) for run in g.runs)
        for what in ("units", "weights"):
            first = g.mean(partial(_size, what=what, tasks=0))
            for tasks in range(deepest + 1):
                found = g.mean(partial(_size, what=what, tasks=tasks))
                for row in point(g, tasks, found, what, "tasks"):
                    label = f"{legend(g)} after {tasks} tasks: {row['value']:,.0f} {what}"
                    rows.append({**row, "panel": what, "label": label})
                if first:
                    worst = first.value * (tasks + 1)
                    name = f"{legend(g)}, linear worst case"
                    label = f"{name} after {tasks} tasks: {worst:,.0f} {what}"
                    rows.append({"panel": what, "series": name, "x": tasks, "value": worst, "label": label})
    if not rows:
        return None
    names = [legend(g) for g in chosen]
    fixed = {
        f"{name}, linear worst case": (SERIES[i % len(SERIES)], DASHES[2], "stroke") for i, name in enumerate(names)
    }
    fixed |= {name: (SERIES[i % len(SERIES)], DASHES[0], charts.MARKERS[i]) for i, name in enumerate(names)}
    x = charts.counted("x", "tasks learned", sorted({row["x"] for row in rows}), HALF)
    panel = charts.lines(
        rows, [*names, *(n for n in fixed if n not in names)], x, charts.quantity("value", "number"), fixed
    )
    del panel["data"]
    spec = faceted(rows, {**panel, "width": 270, "height": 220}, ["units", "weights"])
    spec |= {"resolve": {"scale": {"y": "independent"}}}
    alt = f"Size of the generator over tasks, on {data.title}: " + "; ".join(
        row["label"] for row in rows if row["series"] in names and row["x"] == max(r["x"] for r in rows)
    )
    note = "Linear worst case: every task adds as much as the generator had at first."
    return Figure(f"figure4-{data.slug}", f"Figure 4. {data.title}: growth of the generator", f"{alt}.", spec, note)


def _size(run: Run, what: str, tasks: int) -> float | None:
    """After this many tasks; 0: before the first."""
    if tasks == 0:
        return float(getattr(run.growth[0], what)[0]) if run.growth else None
    found = [growth for growth in run.growth if growth.task == tasks - 1]
    return float(getattr(found[0], what)[1]) if found else None


def quality(data: Data, groups: Sequence[Group]) -> list[Figure]:
    """How well replayed images stand for their classes, class by class, over the tasks."""
    shown = [(g, next((run for run in g.runs if run.quality), None)) for g in one_per_method(groups)]
    return [_quality(data, g, run) for g, run in shown if run]


def _quality(data: Data, g: Group, run: Run) -> Figure:
    """Recognition over the tasks as a heat map; beside it precision and recall, known at a class's own task alone."""
    order = list(run.quality[-1].classes)
    own: dict[tuple[str, str], float] = {}
    cells: Rows = []
    for found in run.quality:
        for measure, values in found.measures.items():
            for name, value in zip(found.classes, values, strict=True):
                if value is None:
                    continue
                if measure != "recognised":
                    own[measure, name] = 100 * value
                    continue
                label = f"{name} after task {found.task + 1}: {100 * value:.1f} % recognised"
                cell = {"after": found.task + 1, "class": name, "value": 100 * value, "text": f"{100 * value:.0f}"}
                cells.append({**cell, "label": label})
    dots: Rows = [
        {"series": measure, "class": name, "value": value, "label": f"{measure} of {name}: {value:.1f} %"}
        for (measure, name), value in own.items()
    ]
    where = f"{data.title}, {legend(g)}, seed {run.head.seed}"
    last = [row["value"] for row in cells if row["after"] == run.quality[-1].task + 1]
    alt = f"Quality of replayed images by class: {where}."
    alt += f" After the last task {min(last):.1f} % of the worst class's are recognised." if last else ""
    note = (
        f"{where}. Recognised: share of replayed images that the classifier assigns to their class. Precision: share "
    )
    note += "of replayed images that lie among real ones. Recall: share of real images that lie among replayed ones. "
    note += "Precision and recall are measured at the class's own task, while its real images are available."
    panels_made = [_recognised(cells, order)] * bool(cells) + [_own_task(dots, order)] * bool(dots)
    spec = {"hconcat": panels_made, "resolve": {"scale": {"color": "independent", "shape": "independent"}}}
    slug = "".join(c if c.isalnum() else "-" for c in g.method)
    title = f"{data.title}: quality of what {legend(g)} replays"
    return Figure(f"quality-{data.slug}-{slug}", title, alt, spec, note)


def _recognised(cells: Rows, order: Sequence[str]) -> Spec:
    x = {"field": "after", "type": "ordinal", "title": "after task", "axis": {"labelAngle": 0}}
    y = charts.category("class", "class", sort=list(order), axis={"labelLimit": 90})
    panel = charts.heat(cells, x, y, legend="recognised %", numbers=len(order) <= 12, size=270)
    return {"data": {"values": cells}, **panel}


def _own_task(dots: Rows, order: Sequence[str]) -> Spec:
    look = charts.looks(["precision", "recall"])
    encoding = {
        "x": charts.quantity("value", "at its own task, %", scale={"domain": [0, 100]}),
        "y": charts.category("class", None, sort=list(order), axis={"labelLimit": 90, "grid": True}),
        "color": look["color"],
        "shape": look["shape"],
        "description": {"field": "label"},
    }
    return {"data": {"values": dots}, "mark": "point", "encoding": encoding, "width": 200, "height": 270}
