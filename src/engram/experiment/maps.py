"""Vectors as a map: the two directions in which drawn vectors vary most; real ones beside them.

    drawn  ─ PCA ─> axes ─┬─> dots       both in the colour of their class
    real   ───────────────┴─> crosses

The axes are fitted on drawings alone, and the same vectors give the same map: nothing is drawn at random.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import torch
from PIL import Image, ImageDraw
from torch import Tensor

WIDTH, HEIGHT = 640, 480
MARGIN = 24
MOST_NAMES = 40
"""Of more classes the names would cover the map."""
DOT, CROSS = 2.0, 3.0
GOLDEN = 0.618034
"""Steps of the hue by which neighbours in the order of classes differ most."""


@dataclass(frozen=True)
class VectorMap:
    """Places in a picture of WIDTH x HEIGHT."""

    drawn: Tensor
    """(N, 2)"""
    drawn_classes: Tensor
    """(N,) places of classes in `names`"""
    real: Tensor
    """(M, 2); may be none"""
    real_classes: Tensor
    names: tuple[str, ...]


def axes(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The mean (D,) and the two directions (D, 2) in which vectors (N, D) vary most, each with a sign that is fixed.

    >>> _, directions = axes(torch.tensor([[-2.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    >>> directions.abs().argmax(0).tolist()
    [0, 2]
    """
    points = vectors.double()
    centre = points.mean(0)
    _, directions = torch.linalg.eigh(torch.cov(points.T, correction=0).reshape(points.shape[1], -1))
    directions = directions[:, -2:].flip(1)
    if directions.shape[1] < 2:  # vectors of a single number
        directions = torch.cat([directions, torch.zeros_like(directions)], 1)
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    return centre, directions * torch.where(largest < 0, -1.0, 1.0)


def vector_map(
    drawn: Tensor,
    drawn_classes: Tensor,
    names: Sequence[str],
    *,
    real: Tensor | None = None,
    real_classes: Tensor | None = None,
) -> VectorMap:
    """Vectors (N, D) and their classes (N,), drawn ones and perhaps real ones, as places in the picture."""
    centre, directions = axes(drawn)
    none = real is None or real_classes is None
    shown = [drawn, drawn[:0] if none or real is None else real]
    places = [(some.double() - centre) @ directions for some in shown]
    every = torch.cat(places)
    low, high = every.amin(0), every.amax(0)
    room = torch.tensor([WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN], dtype=torch.float64)
    unit = (room / (high - low).clamp(min=1e-9)).amin()  # the same in both directions
    middle = torch.tensor([WIDTH, HEIGHT], dtype=torch.float64) / 2
    at = [(some - (low + high) / 2) * unit * torch.tensor([1.0, -1.0]) + middle for some in places]
    classes = drawn_classes[:0] if none or real_classes is None else real_classes
    return VectorMap(at[0], drawn_classes, at[1], classes, tuple(names))


def colour(number: int, *, light: bool) -> str:
    """Of a class; `light` for what is drawn, dark for what is real.

    >>> colour(0, light=True), colour(1, light=False)
    ('#f0a3a3', '#23469a')
    """
    level, strength = (0.79, 0.72) if light else (0.37, 0.63)
    red, green, blue = colorsys.hls_to_rgb(number * GOLDEN % 1, level, strength)
    return "#" + "".join(f"{round(255 * one):02x}" for one in (red, green, blue))


def picture(shown: VectorMap) -> Tensor:
    """The map as an image, (3, HEIGHT, WIDTH) uint8."""
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    pen = ImageDraw.Draw(image)
    for (x, y), number in zip(shown.drawn.tolist(), shown.drawn_classes.tolist(), strict=True):
        pen.ellipse((x - DOT, y - DOT, x + DOT, y + DOT), fill=colour(number, light=True))
    for (x, y), number in zip(shown.real.tolist(), shown.real_classes.tolist(), strict=True):
        for side in (-CROSS, CROSS):
            pen.line((x - CROSS, y - side, x + CROSS, y + side), fill=colour(number, light=False))
    for number, (x, y) in _name_places(shown):
        pen.text((x, y), shown.names[number].encode("ascii", "replace").decode(), fill="black", anchor="mm")
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(HEIGHT, WIDTH, 3).permute(2, 0, 1)


def svg(shown: VectorMap) -> str:
    """The map as a text that scales."""
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">']
    lines.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
    for (x, y), number in zip(shown.drawn.tolist(), shown.drawn_classes.tolist(), strict=True):
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{DOT}" fill="{colour(number, light=True)}"/>')
    for (x, y), number in zip(shown.real.tolist(), shown.real_classes.tolist(), strict=True):
        stroke = f"M{x - CROSS:.1f} {y - CROSS:.1f}l{2 * CROSS} {2 * CROSS}m0 {-2 * CROSS}l{-2 * CROSS} {2 * CROSS}"
        lines.append(f'<path d="{stroke}" stroke="{colour(number, light=False)}"/>')
    for number, (x, y) in _name_places(shown):
        name = escape(shown.names[number])
        lines.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" text-anchor="middle">{name}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _name_places(shown: VectorMap) -> list[tuple[int, tuple[float, float]]]:
    """Where the names stand: in the middle of a class's drawings."""
    if len(shown.names) > MOST_NAMES:
        return []
    found = []
    for number in sorted(set(shown.drawn_classes.tolist())):
        x, y = shown.drawn[shown.drawn_classes == number].mean(0).tolist()
        found.append((number, (x, y)))
    return found
