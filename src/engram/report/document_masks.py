"""Runs with learned masks beside controls whose masks are not -> the documents' table of what learning is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from engram.evaluation import metrics
from engram.report.document_rows import Place, mean_cell, method_cell, table, text
from engram.report.gather import Run
from engram.report.groups import Group
from engram.report.plasticity import share_of_use

CHOICE = "masks.choice"
ORDER = ("learned", "shuffled", "random")
NONE_YET = "No run has such records yet.\n"


def masks(place: Place) -> str:
    """Each control and the runs that differ from it in nothing but the choice of masks."""
    rows = [_row(place, g, family[0]) for family in _families(place.current) for g in family]
    columns = ["data", "method", "masks", "units at most", "rounds", "A_t % at the end", "against learned, points"]
    columns += ["plastic weights", "recall %", "precision %", "reused %, last task", "by chance", "seeds", "label"]
    return table(columns, rows) if rows else NONE_YET


def _families(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups that agree in all but the choice of masks, the learned ones first; only where there is a control."""
    found: dict[tuple[object, ...], list[Group]] = {}
    for g in groups:
        settings = g.runs[0].settings or {}
        if CHOICE in settings and g.finished:
            rest = frozenset((key, value) for key, value in settings.items() if key != CHOICE)
            found.setdefault((g.data.digest, g.method, rest), []).append(g)
    both = [family for family in found.values() if {_choice(g) for g in family} > {ORDER[0]}]
    return [_one_learned(sorted(family, key=lambda g: ORDER.index(_choice(g)))) for family in both]


def _one_learned(family: list[Group]) -> list[Group]:
    """Of several groups of learned masks the one on the controls' machine: elsewhere the last bits differ."""
    learned = [g for g in family if _choice(g) == ORDER[0]]
    controls = family[len(learned) :]
    makers = {run.machine.maker for g in controls for run in g.runs}
    near = [g for g in learned if {run.machine.maker for run in g.runs} & makers] or learned
    return [max(near, key=lambda g: len(g.runs)), *controls]


def _choice(g: Group) -> str:
    return (g.runs[0].settings or {})[CHOICE]


def _row(place: Place, g: Group, learned: Group) -> list[str]:
    settings, last = g.runs[0].settings or {}, len(g.runs[0].head.tasks) - 1
    bound = settings.get("masks.max_units_ratio", "0")
    reuse = [g.mean(partial(share_of_use, task=last, name=name)) for name in ("reused", "reused by chance")]
    drawn = [g.mean(partial(_quality, name=name)) for name in ("recall", "precision")]
    return [
        text(g.data.title),
        method_cell(g),
        text(_choice(g)),
        "all" if bound == "0" else f"{bound} x",
        settings.get("gan.epochs", ""),
        mean_cell(g.final),
        "" if g is learned else against(finals(g), finals(learned)),
        mean_cell(g.mean(lambda run: float(run.growth[-1].weights[1]) if run.growth else None), 0),
        *(mean_cell(one, 1, scale=100) for one in drawn),
        *(mean_cell(one, 1) for one in reuse),
        g.seeds,
        place.link(g),
    ]


def finals(g: Group) -> dict[int, float]:
    """By seed, A_t after the last task in per cent."""
    return {run.head.seed: 100 * run.evaluations[-1].accuracy for run in g.runs if run.evaluations}


def against(ours: dict[int, float], theirs: dict[int, float]) -> str:
    """The mean difference over the seeds of both, in words where it is within two standard errors.

    >>> against({0: 98.0, 1: 98.3, 2: 98.1}, {0: 98.1, 1: 98.2, 2: 98.2}), against({0: 97.0}, {0: 98.0})
    ('none (-0.03 ± 0.07)', '-1.00 (one seed)')
    """
    found = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    if len(found) < 2:
        return f"{found[0]:+.2f} (one seed)" if found else ""
    mean, error = metrics.mean(found), metrics.std(found) / math.sqrt(len(found))
    told = f"{mean:+.2f} ± {error:.2f}"
    return told if abs(mean) > 2 * error else f"none ({told})"


def _quality(run: Run, name: str) -> float | None:
    """Over all tasks, of the classes whose real images were at hand."""
    found = [value for one in run.quality for value in one.measures.get(name, ()) if value is not None]
    return metrics.mean(found) if found else None
