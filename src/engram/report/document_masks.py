"""Runs with learned masks beside controls whose masks are not, and beside runs that learn them for longer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from engram.evaluation import metrics
from engram.report.document_rows import NONE_YET, Place, mean_cell, method_cell, table, text
from engram.report.gather import Run
from engram.report.groups import Group, alike_but, setting
from engram.report.plasticity import reuse_of_masks, share_of_use
from engram.report.worth import against, finals

CHOICE, SHARE = "masks.choice", "masks.fraction"
ORDER = ("learned", "shuffled", "random")
COLUMNS = ("A_t % at the end", "plastic weights", "recall %", "precision %", "reused %, last task", "by chance")
"""Of every row, behind what it is and what it is worth."""


def masks(place: Place) -> str:
    """Each control and the runs that differ from it in nothing but the choice of masks."""
    rows = [_row(place, g, family[0]) for family in families(place.current) for g in family]
    return _table(rows, "against learned, points")


def mask_rounds(place: Place) -> str:
    """Masks learned in a part of the rounds beside masks learned in more of them, all else alike."""
    rows = [_row(place, g, family[0]) for family in rounds(place.current) for g in family]
    return _table(rows, "against the shortest, points")


def families(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups that agree in all but the choice of masks, the learned ones first; only where there is a control."""
    found = [family for family in alike_but(CHOICE, groups) if {setting(g, CHOICE) for g in family} > {ORDER[0]}]
    return [
        _one_of(ORDER[0], CHOICE, sorted(family, key=lambda g: ORDER.index(setting(g, CHOICE)))) for family in found
    ]


def rounds(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups of learned masks that agree in all but the share of the rounds, the least first; one a share."""
    learned = [g for g in groups if setting(g, CHOICE) == ORDER[0]]
    found = []
    for family in alike_but(SHARE, learned):
        shares = sorted({setting(g, SHARE) for g in family}, key=float)
        if len(shares) > 1:
            for share in shares:
                family = _one_of(share, SHARE, family)
            found.append(sorted(family, key=lambda g: float(setting(g, SHARE))))
    return found


def _one_of(value: str, key: str, family: list[Group]) -> list[Group]:
    """Of several groups with a value the one on the machine of the others: elsewhere the last bits differ."""
    alike = [g for g in family if setting(g, key) == value]
    others = [g for g in family if setting(g, key) != value]
    makers = {run.machine.maker for g in others for run in g.runs}
    near = [g for g in alike if {run.machine.maker for run in g.runs} & makers] or alike
    return [max(near, key=lambda g: len(g.runs)), *others]


def _row(place: Place, g: Group, first: Group) -> list[str]:
    last, bound = len(g.runs[0].head.tasks) - 1, setting(g, "masks.max_units_ratio")
    chance = partial(share_of_use, task=last, name="reused by chance")
    reuse = [g.mean(measure) for measure in (partial(reuse_of_masks, task=last), chance)]
    drawn = [g.mean(partial(drawing_quality, name=name)) for name in ("recall", "precision")]
    return [
        *(text(g.data.title), method_cell(g), place.link(g), text(setting(g, CHOICE))),
        *(setting(g, SHARE), setting(g, "gan.epochs"), "all" if bound in ("", "0") else f"{bound} x"),
        "" if g is first else against(finals(g), finals(first)),
        mean_cell(g.final),
        mean_cell(g.mean(lambda run: float(run.growth[-1].weights[1]) if run.growth else None), 0),
        *(mean_cell(one, 1, scale=100) for one in drawn),
        *(mean_cell(one, 1) for one in reuse),
        *(mean_cell(g.cpu_seconds, 0), g.seeds),
    ]


def _table(rows: list[list[str]], worth: str) -> str:
    what = ["data", "method", "label", "masks", "learned in, of the rounds", "rounds", "units at most", worth]
    return table([*what, *COLUMNS, "CPU seconds", "seeds"], rows) if rows else NONE_YET


def drawing_quality(run: Run, name: str) -> float | None:
    """Recall or precision over all tasks, of the classes whose real images were at hand."""
    found = [value for one in run.quality for value in one.measures.get(name, ()) if value is not None]
    return metrics.mean(found) if found else None
