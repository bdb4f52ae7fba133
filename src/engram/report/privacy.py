"""Groups -> whether the memory repeats its training images, class by class: a table."""

from __future__ import annotations

from collections.abc import Sequence

from engram.report.gather import Run
from engram.report.groups import Data, Group
from engram.report.held_out import Comparison, Estimate, Tested
from engram.report.tables import NOTHING, Cell, Row, Table, number, words
from engram.report.views import in_full, in_sections

OUTCOMES = {
    "copies": "copies training images",
    "leans": "leans, perhaps by chance",
    "no sign": "no sign of copying",
    "cannot tell": "too few images to tell",
}
"""As a record says it -> in words. The worst first."""
SPACES = ("pixels", "features")

NOTE = (
    "Drawings are compared with the class's training images and with real images that were held out, at the class's "
    "own task. In brackets: 95 % intervals. Nearer to training: drawings whose nearest real image is a training image; "
    "50 % for no copying. Near-copies: drawings much nearer to one training image than to any other; behind the stroke "
    "the same share of held-out images, which copy nothing. Attack AUC: how well a membership attack tells training "
    "images from held-out ones, by the nearest drawing; 0.5 is guessing. Leans: more than guessing, by little. No sign "
    "of copying is no proof that nothing leaks: a stronger attack may find more."
)


def tested(run: Run) -> list[Tested]:
    """All classes, in the order in which they were learned."""
    return [one for found in run.privacy for one in found.classes]


def table(data: Data, groups: Sequence[Group]) -> Table | None:
    """A row a class. None where no run was tested."""
    shown = in_sections(g for g in groups if any(map(tested, g.runs)))
    rows = [_row(g, run, one) for g in shown for run in g.runs for one in tested(run)]
    if not rows:
        return None
    measures = ("nearer to training %", "near-copies %", "attack AUC")
    columns = ["class", "outcome", "drawings", "training", "held out"]
    columns += [f"{measure}, {space}" for measure in measures for space in SPACES]
    title = f"{data.title}: drawings against training images"
    return Table(f"privacy-{data.slug}", title, tuple(columns), tuple(rows), NOTE, in_full(shown))


def _row(g: Group, run: Run, one: Tested) -> Row:
    both = [one.spaces.get(space) for space in SPACES]
    cells = [words(one.name), words(OUTCOMES.get(one.outcome, one.outcome))]
    cells += [number(count, 0) for count in (one.drawings, one.training, one.held_out)]
    cells += [interval(c.nearer_to_training if c else None, 0, 100) for c in both]
    cells += [_copies(c) for c in both]
    cells += [interval(c.attack if c else None) for c in both]
    return Row(tuple(cells), f"{g.label}, seed {run.head.seed}", g.method)


def interval(found: Estimate | None, digits: int = 2, scale: int = 1) -> Cell:
    """`0.51 (0.48–0.55)`"""
    if found is None:
        return Cell(NOTHING)
    value, low, high = (round(scale * one, 6) for one in (found.value, found.low, found.high))
    text = f"{value:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"
    return Cell(text, value, more=(("low", low), ("high", high)))


def _copies(found: Comparison | None) -> Cell:
    """`0.4 / 0.2`"""
    if found is None:
        return Cell(NOTHING)
    drawn, real = found.near_copies, found.near_copies_of_real
    more = {"low": drawn.low, "high": drawn.high, "real": real.value, "real low": real.low, "real high": real.high}
    text = f"{100 * drawn.value:.1f} / {100 * real.value:.1f}"
    return Cell(text, 100 * drawn.value, more=tuple((name, round(100 * value, 6)) for name, value in more.items()))
