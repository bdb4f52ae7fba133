"""What to pick: accuracy against what a method keeps and against the time it takes; which methods no other one beats.

A method is dominated where another one is at least as accurate at no higher cost, and better in one of the two. Both
costs stand side by side: a method may be on the frontier of bytes and not on that of seconds. Accuracy is that of the
main configuration over all classes, on test images: a reader may choose by it, nothing here was chosen by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engram.report import charts
from engram.report.charts import FAINT, INK, Figure, Rows, Spec
from engram.report.gather import Run
from engram.report.groups import Data, Group, Mean, one_per_method
from engram.report.tables import Row, Table, mean, number, words

MB = 1e-6
LEAST_MB, LEAST_SECONDS, LEAST_WRONG = 1e-3, 0.1, 0.01
"""A logarithmic axis has no place for nothing: what is less stands at this end of it."""
TICKS = [m * 10**e for e in range(-3, 7) for m in (1, 2, 5)]
PANEL = (270, 300)
"""Width and height, in pixels."""


@dataclass(frozen=True)
class Point:
    """A method's accuracy, and what it costs."""

    name: str
    accuracy: float
    """In per cent."""
    cost: float | None
    """None: not on record, so it is compared with nothing."""


def undominated(points: Sequence[Point]) -> list[bool]:
    """Which of them no other one beats: as accurate or more, at the same cost or less, and not equal in both.

    >>> small, large, poor = Point("small", 95.0, 1.0), Point("large", 98.0, 20.0), Point("poor", 94.0, 5.0)
    >>> undominated([small, large, poor, Point("unknown", 99.0, None)])
    [True, True, False, False]
    """
    return [one.cost is not None and not any(_beats(other, one) for other in points) for one in points]


def _beats(other: Point, one: Point) -> bool:
    if other.cost is None or one.cost is None:
        return False
    no_worse = other.accuracy >= one.accuracy and other.cost <= one.cost
    return no_worse and (other.accuracy, other.cost) != (one.accuracy, one.cost)


# ---------------------------------------------------------------- from records


def candidates(groups: Sequence[Group]) -> list[Group]:
    """The strict methods that can be chosen, each by its main configuration, the most accurate first."""
    found = [g for g in one_per_method(g for g in groups if g.contender and g.whole) if g.finished and g.final]
    return sorted(found, key=lambda g: -(g.final.value if g.final else 0))


def kept(g: Group) -> Mean | None:
    """Bytes that go from task to task: the memory, and what answers where the records list it."""
    return g.mean(_kept)


def _kept(run: Run) -> float | None:
    return sum(run.memory[max(run.memory)].values()) + (run.classifier or 0) if run.memory else run.classifier


def core_seconds(g: Group) -> Mean | None:
    """Of one core: as counted by the system; by the clock where a run had one thread and nothing was counted."""
    return g.mean(_core_seconds)


def _core_seconds(run: Run) -> float | None:
    if run.cpu_seconds is not None:
        return run.cpu_seconds
    by_clock = run.machine.threads == 1 and len(run.timing) == len(run.evaluations)
    return sum(run.seconds.values()) if by_clock else None


def by_bytes(groups: Sequence[Group]) -> list[Point]:
    return [_point(g, kept(g), MB) for g in groups]


def by_seconds(groups: Sequence[Group]) -> list[Point]:
    return [_point(g, core_seconds(g), 1.0) for g in groups]


def _point(g: Group, cost: Mean | None, scale: float) -> Point:
    assert g.final is not None, "candidates are finished"
    return Point(g.method, g.final.value, None if cost is None else scale * cost.value)


# ---------------------------------------------------------------- table and figure


def table(data: Data, groups: Sequence[Group]) -> Table | None:
    """Every candidate, with a word where no other one beats it. None where there is no choice."""
    chosen = candidates(groups)
    if len(chosen) < 2:
        return None
    best = [undominated(points) for points in (by_bytes(chosen), by_seconds(chosen))]
    rows = []
    for g, small, quick in zip(chosen, *best, strict=True):
        cells = [words(g.label), words(g.seeds), mean(g.final), mean(kept(g), 3, scale=MB)]
        cells += [words("yes" if small else "no" if kept(g) else "")]
        cells += [number(None if (spent := core_seconds(g)) is None else spent.value, 0)]
        rows.append(Row((*cells, words("yes" if quick else "no" if spent else "")), method=g.method))
    columns = ("method", "seeds", f"A_{data.classes} %", "kept MB", "best for its bytes", "seconds of one core")
    note = "Best: no other strict method is as accurate at the same cost or less. Kept: memory and what answers; "
    note += "older records list the memory alone. Seconds depend on the processor."
    title = f"{data.title}: what each strict method gives for its bytes and its seconds"
    return Table(f"frontier-{data.slug}", title, (*columns, "best for its seconds"), tuple(rows), note)


def figure(data: Data, groups: Sequence[Group]) -> Figure | None:
    """Two panels: accuracy against bytes kept, and against seconds of one core; a line through the best."""
    chosen = candidates(groups)
    sides = (
        ("kept, MB", by_bytes(chosen), LEAST_MB),
        ("learning, seconds of one core", by_seconds(chosen), LEAST_SECONDS),
    )
    panels = [_panel(title, points, least) for title, points, least in sides if len(_known(points)) > 1]
    if not panels:
        return None
    told = [
        f"by {title}: {', '.join(p.name for p, best in zip(points, undominated(points), strict=True) if best)}"
        for title, points, _ in sides
        if len(_known(points)) > 1
    ]
    alt = f"Accuracy over all classes of {data.title} against cost, strict methods. Not dominated, {'; '.join(told)}."
    note = "Ringed: no other strict method is as accurate at the same cost or less. Higher is better, further left is "
    note += "cheaper; all axes are logarithmic."
    spec: Spec = {"hconcat": panels, "spacing": 40}
    return Figure(f"tradeoff-{data.slug}", f"{data.title}: accuracy against what it costs", alt, spec, note)


def _known(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if point.cost is not None]


def _panel(title: str, points: Sequence[Point], least: float) -> Spec:
    """Wrong answers instead of right ones: on a logarithmic axis 98 and 99 % lie as far apart as 80 and 90 %."""
    rows: Rows = []
    for point, best in zip(points, undominated(points), strict=True):
        if point.cost is not None:
            label = f"{point.name}: {point.accuracy:.2f} % for {point.cost:,.3g}"
            place = {"x": max(point.cost, least), "y": max(100 - point.accuracy, LEAST_WRONG)}
            rows.append({"series": point.name, **place, "best": best, "label": label})
    x = charts.quantity(
        "x",
        title,
        scale={"type": "log", "nice": False, "padding": 44},
        axis={"values": TICKS, "labelOverlap": "greedy", "labelSeparation": 6},
    )
    wrong = {"type": "log", "nice": False, "padding": 24, "reverse": True}
    y = charts.quantity("y", "wrong answers over all classes, %", scale=wrong, axis={"values": TICKS})
    look = charts.looks([point.name for point in points])
    ahead = [{"filter": "datum.best"}]
    line = {
        "mark": {"type": "line", "interpolate": "step-after", "color": FAINT, "aria": False},
        "transform": ahead,
        "encoding": {"order": {"field": "x", "type": "quantitative"}},
    }
    ring = {
        "mark": {"type": "point", "filled": False, "shape": "circle", "size": 260, "stroke": INK, "aria": False},
        "transform": ahead,
    }
    named = {
        "mark": {"type": "text", "align": "right", "dx": -13, "dy": -9, "fontSize": 12, "color": INK, "aria": False},
        "transform": ahead,
        "encoding": {"text": {"field": "series", "type": "nominal"}},
    }
    dots = {
        "mark": {"type": "point"},
        "encoding": {"color": look["color"], "shape": look["shape"], "description": {"field": "label"}},
    }
    width, height = PANEL
    return {
        "data": {"values": rows},
        "encoding": {"x": x, "y": y},
        "layer": [line, ring, dots, named],
        "width": width,
        "height": height,
    }
