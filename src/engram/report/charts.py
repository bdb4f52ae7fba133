"""What all figures share: Vega-Lite specifications drawn by vl-convert, without a browser or a network.

A figure is a plain Vega-Lite specification. Colours are those of Okabe and Ito, which the colour-blind can tell apart;
series differ in dash and marker too, so that greyscale is enough. Vega writes the values of every mark into the SVG as
an `aria-label`: the page shows them under the pointer, and screen readers can read them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import vl_convert
from markupsafe import escape

Spec = dict[str, Any]
Rows = list[dict[str, Any]]

INK = "#1d2329"
FAINT = "#d5dbe1"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d1f")
MARKERS = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [5, 1], [3, 5], [12, 4])
SHADES = ("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
"""From nothing to all; evenly darker in grey too."""
MOST_SERIES = 20
"""More than there are methods; a figure with more lines could not be read anyway."""
WIDTH, HEIGHT = 600, 300
TITLE = 30
"""Height of a figure's title, in pixels."""
SCALE = 2
"""Pixels of the PNG file per pixel of the page."""

CONFIG: Spec = {
    "background": "transparent",
    "font": "Arial, Helvetica, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK, "titleColor": INK, "domainColor": INK, "tickColor": INK, "gridColor": FAINT,
        "labelFontSize": 12, "titleFontSize": 13, "titleFontWeight": "normal", "titlePadding": 8,
    },
    "legend": {
        "labelColor": INK, "titleColor": INK, "labelFontSize": 13, "orient": "top", "title": None, "labelLimit": 320,
        "symbolOpacity": 1, "symbolSize": 90, "symbolStrokeWidth": 2, "columnPadding": 18, "columns": 4,
    },
    "header": {"labelColor": INK, "titleColor": INK, "labelFontSize": 13, "labelFontWeight": "bold", "labelLimit": 300},
    "title": {"color": INK, "fontSize": 15, "anchor": "start", "offset": 12},
    "line": {"strokeWidth": 2.2},
    "point": {"size": 55, "filled": True, "opacity": 1},
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A figure, ready to be drawn."""

    name: str
    """Of its files."""
    title: str
    alt: str
    """What it shows, for whoever cannot see it."""
    spec: Spec
    note: str = ""


def svg(figure: Figure) -> str:
    """The figure on a white ground, as a file of its own needs it."""
    spec = {**figure.spec, "title": figure.title, "config": CONFIG, "padding": 8, "background": "white"}
    return str(vl_convert.vegalite_to_svg(spec))


def png(drawn: str) -> bytes:
    return bytes(vl_convert.svg_to_png(drawn, scale=SCALE))


THEMED = {
    INK: "currentColor",
    FAINT: "var(--faint)",
    **{colour: f"var(--series-{i})" for i, colour in enumerate(SERIES)},
}


def inline(drawn: str, figure: Figure) -> str:
    """The same SVG for the page: no ground, colours by the page's theme, one picture to a screen reader."""
    head, _, rest = drawn.partition(">")
    head = head.replace("<svg ", f'<svg role="img" aria-label="{escape(figure.alt)}" ', 1)
    # the caption stands above it already: the picture's own title is cut off
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', head)
    if box is not None:
        width, height = float(box[1]), float(box[2])
        head = re.sub(r' (width|height)="[\d.]+"', "", head)
        # never wider than drawn: type is of one size in all figures
        shown = f'viewBox="0 {TITLE} {width:g} {height - TITLE:g}" style="--drawn: {width:g}px"'
        head = head.replace(box[0], shown)
    rest = rest.replace('fill="white"', 'fill="none"', 1)
    # many pictures share one page, and with it one set of names
    rest = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{figure.name}-", rest)
    for colour, variable in THEMED.items():
        rest = rest.replace(f'="{colour}"', f'="{variable}"')
    return f"{head}>{rest}"


def quantity(field: str, title: str, **more: Any) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, **more}


def category(field: str, title: str | None = None, **more: Any) -> Spec:
    return {"field": field, "type": "nominal", "title": title, **more}


def counted(field: str, title: str, values: Sequence[int], most: int = 20) -> Spec:
    """An axis of whole numbers with no more than `most` ticks: all of them, or the round ones.

    >>> [len(counted("x", "", range(1, n + 1))["axis"]["values"]) for n in (20, 50, 200, 5000)]
    [20, 10, 20, 10]
    """
    steps = (m * 10**e for e in range(15) for m in (1, 5))
    shown = next(some for step in steps if len(some := [v for v in values if v % step == 0]) <= most)
    axis = {"values": shown, "format": "d", "grid": False}
    return quantity(field, title, axis=axis, scale={"nice": False, "zero": False, "padding": 8})


def facet(field: str, order: Sequence[str], columns: int = 2) -> Spec:
    return {"field": field, "type": "nominal", "title": None, "sort": list(order), "columns": columns}


def looks(names: Sequence[str], fixed: Mapping[str, tuple[str, list[int], str]] | None = None) -> dict[str, Spec]:
    """Colour, dash and marker by name; the eighth and later repeat the colours with other dashes and markers."""
    chosen: dict[str, tuple[str, list[int], str]] = dict(fixed or {})
    for i, name in enumerate(n for n in names if n not in chosen):
        turn = i + i // len(SERIES)
        chosen[name] = (SERIES[i % len(SERIES)], DASHES[turn % len(DASHES)], MARKERS[turn % len(MARKERS)])
    values = [chosen[name] for name in names]
    channels = zip(("color", "strokeDash", "shape"), zip(*values, strict=True), strict=True) if values else ()
    return {
        channel: category("series", scale={"domain": list(names), "range": list(found)}) for channel, found in channels
    }


def lines(rows: Rows, names: Sequence[str], x: Spec, y: Spec, fixed: Mapping[str, Any] | None = None) -> Spec:
    """A line per series with a marker per value, and a band where rows have `low` and `high`."""
    look = looks(names, fixed)
    layers: list[Spec] = []
    if any("low" in row for row in rows):
        band = {"y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": look["color"]}
        keep = [{"filter": "isValid(datum.low)"}]
        layers.append({"mark": {"type": "area", "opacity": 0.18, "aria": False}, "transform": keep, "encoding": band})
    layers.append(
        {"mark": {"type": "line", "aria": False}, "encoding": {"y": y, **{k: look[k] for k in ("color", "strokeDash")}}}
    )
    label = {"description": {"field": "label"}}
    layers.append(
        {"mark": {"type": "point"}, "encoding": {"y": y, "color": look["color"], "shape": look["shape"], **label}}
    )
    return {"data": {"values": rows}, "encoding": {"x": x}, "layer": layers}


def heat(rows: Rows, x: Spec, y: Spec, *, legend: str, numbers: bool, size: int) -> Spec:
    """A matrix of per cents: light is little, dark is much; `numbers`: the number in each cell."""
    colour = quantity("value", legend, scale={"range": list(SHADES), "domain": [0, 100]})
    colour["legend"] = {"title": legend, "orient": "right", "gradientLength": 160}
    cell = {"type": "rect", "stroke": FAINT, "strokeWidth": 0.5, "aria": len(rows) <= 1200}
    layers: list[Spec] = [{"mark": cell, "encoding": {"color": colour, "description": {"field": "label"}}}]
    if numbers:
        dark = {"condition": {"test": "datum.value > 66", "value": "#fff"}, "value": "#000"}
        text = {"text": {"field": "text", "type": "nominal"}, "color": dark}
        layers.append({"mark": {"type": "text", "fontSize": 10, "aria": False}, "encoding": text})
    return {"encoding": {"x": x, "y": y}, "layer": layers, "width": size, "height": size}
