"""Groups -> the figures that every method has: accuracy, bytes, time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from engram.report import charts
from engram.report.charts import FAINT, HEIGHT, INK, MOST_SERIES, WIDTH, Figure, Rows, Spec
from engram.report.gather import Run
from engram.report.groups import Data, Group, Mean, longest_per_method, one_per_method, one_per_store
from engram.report.records import Evaluation, Timing
from engram.report.views import MB, image_sizes

MOST_PANELS = 4
MOST_COSTS = 6
HALF = 12
"""Ticks on an axis where two panels stand side by side."""
DECADES = [m * 10**e for e in range(-2, 7) for m in (1, 3)]
BOUNDS = {"upper": (INK, [1, 0], "stroke"), "lower": (INK, [2, 3], "stroke")}


def accuracy(data: Data, groups: Sequence[Group], *, top5: bool = False) -> list[Figure]:
    """Figure 2: A_t over classes seen, between the bounds; a figure for strict methods, one for the others."""
    bounds = sorted(one_per_method(g for g in groups if g.bound), key=lambda g: g.bound == "lower")
    figures = []
    for strict in (True, False):
        mine = one_per_store(g for g in groups if not g.bound and g.strict is strict)
        mine = sorted(mine, key=lambda g: -(g.final.value if g.final else 0))[: MOST_SERIES - len(bounds)]
        if not mine and (not strict or not bounds):
            continue
        kind = ("strict methods" if strict else "methods with stored samples") if mine else "bounds"
        name = f"figure2{'-top5' if top5 else ''}-{data.slug}{'' if strict else '-stored'}"
        made = _accuracy(data, [*mine, *bounds], name, kind, _top5 if top5 else _accuracy_of)
        figures += [made] if made else []
    return figures


def _accuracy_of(e: Evaluation) -> float | None:
    return e.accuracy


def _top5(e: Evaluation) -> float | None:
    return e.top5


def _accuracy(
    data: Data, groups: Sequence[Group], name: str, kind: str, of: Callable[[Evaluation], float | None]
) -> Figure | None:
    rows: Rows = []
    for g in groups:
        for seen in sorted({len(e.classes) for run in g.runs for e in run.evaluations}):
            rows += point(g, seen, g.score(seen, of), "%", "classes seen")
    if not rows:
        return None
    top = "top-5 " if of is _top5 else ""
    fixed = {legend(g): BOUNDS[g.bound] for g in groups if g.bound in BOUNDS}
    names = [legend(g) for g in groups]
    x = charts.counted("x", "classes seen", sorted({row["x"] for row in rows}))

    peak = max(max(row["value"], row.get("high", 0.0)) for row in rows)
    ceiling = min(100, 20 * (int(peak // 20) + 1))  # no space for what nobody reaches

    def panel(shown: Rows, floor: float, title: str, height: int) -> Spec:
        y = charts.quantity("value", title, scale={"domain": [floor, ceiling], "nice": False}, axis={"tickCount": 6})
        return sized(charts.lines(shown, names, x, y, fixed), height=height)

    spec = panel(rows, 0, f"{top}accuracy, %", HEIGHT)
    low = {legend(g) for g in groups if g.bound == "lower"}
    high = [row for row in rows if row["series"] not in low]
    floor = min((min(row["value"], row.get("low", 100.0)) for row in high), default=0.0) // 1
    if 60 < floor < 100:  # close to the top, lines lie on each other: once more, enlarged
        spec = {"vconcat": [spec, panel(high, max(floor - 1, 0), f"{top}accuracy, %, enlarged", HEIGHT - 60)]}
    ends = ", ".join(f"{legend(g)} {g.final.value:.2f} %" for g in groups if g.final)
    alt = (
        f"{top}accuracy over the classes seen so far, on {data.title}. At the end: {ends or 'nothing is finished yet'}."
    )
    title = f"Figure 2. {data.title}: {top}accuracy over classes seen, {kind}"
    return Figure(name, title, alt[0].upper() + alt[1:], spec, _bands(groups))


def legend(g: Group) -> str:
    bound = f" ({g.bound} bound)" if g.bound else ""
    return f"{g.label}{bound}{'' if g.finished else ', unfinished'}"


def point(g: Group, x: int, found: Mean | None, unit: str, what: str) -> Rows:
    """A row for a line: value, band, and what a reader is told of it."""
    if found is None:
        return []
    row = {"series": legend(g), "x": x, "value": found.value}
    spread = ""
    if found.std is not None:
        row |= {"low": found.value - found.std, "high": found.value + found.std}
        spread = f" ± {found.std:.2f}"
    return [{**row, "label": f"{legend(g)}, {what} {x}: {found.value:.2f}{spread} {unit}"}]


def sized(spec: Spec, width: int = WIDTH, height: int = HEIGHT) -> Spec:
    return {**spec, "width": width, "height": height}


def _bands(groups: Iterable[Group]) -> str:
    several = any(len(g.runs) > 1 for g in groups)
    return "Bands: one standard deviation over the seeds." if several else "No bands: one seed per method."


def timing(data: Data, groups: Sequence[Group]) -> Figure | None:
    """Time to learn each task."""
    chosen = [g for g in one_per_method(groups) if any(run.seconds for run in g.runs)][:MOST_SERIES]
    rows: Rows = []
    for g in chosen:
        for task in sorted({task for run in g.runs for task in run.seconds}):
            rows += point(g, task + 1, g.mean(partial(_seconds, task=task)), "s", "task")
    if not rows:
        return None
    fixed = {legend(g): BOUNDS[g.bound] for g in chosen if g.bound in BOUNDS}
    # a logarithmic axis has no place for zero: bands and times that reach it end at the axis
    tops = [float(row["high"]) if "high" in row else float(row["value"]) for row in rows]
    lowest, highest = max(0.01, min(row["value"] for row in rows)), max(0.1, *tops)
    ends = [max(v for v in DECADES if v <= lowest), min([v for v in DECADES if v >= highest] or [highest])]
    scale = {"type": "log", "domain": ends, "clamp": True, "nice": False}
    spec = charts.lines(
        rows,
        [legend(g) for g in chosen],
        charts.counted("x", "task", sorted({row["x"] for row in rows})),
        charts.quantity(
            "value",
            "time to learn the task, s",
            scale=scale,
            axis={"values": [v for v in DECADES if ends[0] <= v <= ends[1]]},
        ),
        fixed,
    )
    totals = ", ".join(f"{legend(g)} {g.seconds.value / 60:.1f} min" for g in chosen if g.seconds)
    alt = f"Seconds spent on each task, on {data.title}. In all: {totals}."
    note = f"{_bands(chosen)} The axis is logarithmic. Times depend on the machine and its load."
    return Figure(f"time-{data.slug}", f"{data.title}: time per task", alt, sized(spec, height=240), note)


def _seconds(run: Run, task: int) -> float | None:
    return run.seconds.get(task)


def cost(data: Data, groups: Sequence[Group]) -> Figure | None:
    """A training step's time and the process's memory, task by task: whether a long stream stays in hand."""
    longest = [g for g in longest_per_method(groups) if not g.bound and len(g.runs[0].timing) > 1]
    chosen = sorted(longest, key=lambda g: (not g.runs[0].growth, not g.strict))[:MOST_COSTS]
    measures = {STEP: _step, PEAK: _peak}
    rows: Rows = []
    for g in chosen:
        for panel, measure in measures.items():
            for task in range(len(g.runs[0].timing)):
                found = g.mean(partial(measure, task=task))
                rows += [{**row, "panel": panel} for row in point(g, task + 1, found, panel[-2:], "task")]
    if not rows:
        return None
    names = [panel for panel in measures if any(row["panel"] == panel for row in rows)]
    x = charts.counted("x", "task", sorted({row["x"] for row in rows}), HALF)
    drawn = charts.lines(rows, [legend(g) for g in chosen], x, charts.quantity("value", "", scale={"zero": True}))
    del drawn["data"]
    spec = faceted(rows, {**drawn, "width": 270, "height": 220}, names)
    spec |= {"resolve": {"scale": {"y": "independent"}}}
    last = {(row["series"], row["panel"]): row["label"] for row in rows}
    alt = f"A training step and the process's memory, task by task, on {data.title}. At the end: "
    note = "Each method is shown with its longest runs. Times depend on the load of the machine. Memory is the highest "
    note += "value so far."
    title = f"{data.title}: a step's time and the memory of the process"
    return Figure(f"cost-{data.slug}", title, f"{alt}{'; '.join(last.values())}.", spec, note)


STEP, PEAK = "a training step, ms", "memory at its highest, MB"


def _timing(run: Run, task: int) -> Timing | None:
    return next((timing for timing in run.timing if timing.task == task), None)


def _step(run: Run, task: int) -> float | None:
    found = _timing(run, task)
    return 1e3 * found.step if found and found.step is not None else None


def _peak(run: Run, task: int) -> float | None:
    found = _timing(run, task)
    return MB * found.peak if found and found.peak is not None else None


def _part(run: Run, part: str) -> float | None:
    """Bytes after the last task."""
    return float(run.memory[max(run.memory)].get(part, 0)) if run.memory else None


def memory(data: Data, groups: Sequence[Group]) -> Figure | None:
    """Bytes by part after the last task, and how many images would take as many."""
    chosen = [g for g in one_per_method(groups) if g.bytes is not None]
    if not chosen:
        return None
    last = [run.memory[max(run.memory)] for g in chosen for run in g.runs]
    parts = list(dict.fromkeys(part for sizes in last for part, size in sizes.items() if size))
    rows: Rows = []
    ends: Rows = []
    for g in chosen:
        for i, part in enumerate(parts):
            size = g.mean(partial(_part, part=part))
            if size and size.value:
                value = MB * size.value
                rows.append(
                    {
                        "method": legend(g),
                        "part": part,
                        "order": i,
                        "MB": value,
                        "label": f"{legend(g)}, {part}: {value:.3f} MB",
                    }
                )
        total = g.bytes
        if total is not None:
            bought = f" = {total.value / g.runs[0].head.image_bytes:,.0f} images"
            ends.append({"method": legend(g), "MB": MB * total.value, "text": f"{MB * total.value:.2f} MB{bought}"})
    order = [legend(g) for g in chosen]
    colour = charts.category("part", scale={"domain": parts, "range": _fills(len(parts))})
    where = charts.category("method", sort=order, axis={"labelLimit": 220, "grid": False})
    bars = {
        "data": {"values": rows},
        "mark": {"type": "bar", "stroke": INK, "strokeWidth": 0.6},
        "encoding": {
            "x": charts.quantity("MB", "kept after the last task, MB"),
            "color": colour,
            "order": {"field": "order"},
            "description": {"field": "label"},
        },
    }
    text = {
        "data": {"values": ends},
        "mark": {"type": "text", "align": "left", "dx": 6, "color": INK, "fontSize": 12, "aria": False},
        "encoding": {"x": {"field": "MB", "type": "quantitative"}, "text": {"field": "text", "type": "nominal"}},
    }
    widest = max(row["MB"] for row in ends)
    bars["encoding"]["x"]["scale"] = {"domain": [0, 1.45 * widest], "nice": False}  # type: ignore[index]
    spec = {"encoding": {"y": where}, "layer": [bars, text]}
    alt = (
        f"Bytes carried from task to task on {data.title}: "
        + "; ".join(f"{e['method']} {e['text']}" for e in ends)
        + "."
    )
    note = f"Images: how many take the same bytes, at {image_sizes(chosen)}."
    return Figure(
        f"memory-{data.slug}", f"{data.title}: the memory by part", alt, sized(spec, height=34 * len(order) + 20), note
    )


def _fills(count: int) -> list[str]:
    fills = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", FAINT, "#8c6d1f")
    return [fills[i % len(fills)] for i in range(count)]


def panels(groups: Sequence[Group]) -> list[Group]:
    """Contenders first, the best first; bounds where there is space."""
    ranked = sorted(
        one_per_method(groups), key=lambda g: (bool(g.bound), not g.strict, -(g.final.value if g.final else 0))
    )
    return ranked[:MOST_PANELS]


def faceted(rows: Rows, panel: Spec, names: Sequence[str], columns: int = 2) -> Spec:
    return {"data": {"values": rows}, "facet": charts.facet("panel", names), "columns": columns, "spec": panel}
