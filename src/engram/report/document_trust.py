"""Groups of runs that held images out -> the documents' tables of calibration and of privacy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engram.report.document_rows import NONE_YET, Cells, Place, mean_cell, method_cell, table, text
from engram.report.groups import TITLES, Group
from engram.report.held_out import Comparison, Estimate, Tested, others
from engram.report.privacy import OUTCOMES, tested
from engram.report.trust import judged, measured, over_seeds, tasks_of


def _or_none_yet(columns: Cells, rows: Sequence[Cells]) -> str:
    return table(columns, rows) if rows else NONE_YET


def trust(place: Place) -> str:
    """Whether confidence means what it says, and whether the unknown is noticed: a row a group."""
    rows = [
        [
            *(text(g.data.title), method_cell(g), place.link(g), _tasks(g), _told_by(g)),
            *(_kept(g), *_ends(g), *_noticed(g), g.seeds),
        ]
        for g in place.current
        if tasks_of(g)
    ]
    columns = ["data", "method", "label", "tasks", "unknown told by"]
    columns += ["known kept %, least to most", "ECE % at the end, before", "after"]
    return _or_none_yet([*columns, "AUROC at the middle task", "at the last but one", "seeds"], rows)


def _tasks(g: Group) -> str:
    """`10`, or how far it came."""
    done, of = len(tasks_of(g)), len(g.runs[0].head.tasks)
    return str(of) if done == of else f"{done} of {of}"


def _told_by(g: Group) -> str:
    """By what an image was called unknown: records that were made before typicality have no reach."""
    found = {one.by_typicality for run in g.runs for one in run.trust}
    names = {frozenset([True]): "confidence, typicality", frozenset([False]): "confidence alone"}
    return names.get(frozenset(found), "confidence, in some also typicality")


def unknown(place: Place) -> str:
    """Images of other data sets against a run: a row a run and a data set."""
    rows = [
        [
            *(text(g.data.title), method_cell(g), place.link(g), str(run.head.seed)),
            *(text(TITLES.get(found.data, found.data)), f"{found.images:,}"),
            *(_share(found.auroc), _share(found.auroc_typical), f"{100 * found.rejected:.1f}"),
        ]
        for g in place.current
        for run in g.runs
        for found in others(run.folder)
    ]
    columns = ["data", "method", "label", "seed", "other data", "images of it"]
    return _or_none_yet([*columns, "AUROC by confidence", "AUROC by typicality", "called unknown %"], rows)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _kept(g: Group) -> str:
    """Over the tasks and seeds."""
    found = [measured(run, task, "kept") for run in g.runs for task in judged(g)]
    known = [100 * share for share in found if share is not None]
    return f"{min(known):.1f} to {max(known):.1f}" if known else ""


def _ends(g: Group) -> list[str]:
    """The calibration error after the last task, without and with the temperature."""
    return [mean_cell(over_seeds(g, tasks_of(g)[-1], name), scale=100) for name in ("ece_before", "ece")]


def _noticed(g: Group) -> list[str]:
    """AUROC after the middle task and after the last but one; after the last, nothing is unknown."""
    count = len(g.runs[0].head.tasks)
    return [mean_cell(over_seeds(g, task, "auroc"), 3) for task in ((count - 1) // 2, count - 2)]


def privacy(place: Place) -> str:
    """The worst of every measure over classes, spaces and seeds: a row a group."""
    rows = []
    for g in place.current:
        classes = [one for run in g.runs for one in tested(run)]
        if classes:
            cells = [text(g.data.title), method_cell(g), place.link(g), str(len(classes))]
            rows.append([*cells, _worst_attack(classes), *_most_copies(classes), _outcomes(classes), g.seeds])
    columns = ["data", "method", "label", "classes tested", "highest membership AUC"]
    columns += ["near-copies %, where most above real images", "of real images there", "outcomes by class", "seeds"]
    return _or_none_yet(columns, rows)


def _spaces(classes: Sequence[Tested]) -> list[tuple[str, Comparison]]:
    """`bird, pixels` and what was found there."""
    return [(f"{one.name}, {space}", found) for one in classes for space, found in one.spaces.items()]


def _worst_attack(classes: Sequence[Tested]) -> str:
    """`0.53 (0.49 to 0.56; bird, pixels)`"""
    found = _spaces(classes)
    if not found:
        return ""
    where, worst = max(found, key=lambda pair: pair[1].attack.value)
    return f"{worst.attack.value:.2f} ({_ends_of(worst.attack, 2)}; {text(where)})"


def _most_copies(classes: Sequence[Tested]) -> list[str]:
    """Where drawings exceed real images most: their share of near-copies, and the real images'."""
    found = _spaces(classes)
    if not found:
        return ["", ""]
    where, worst = max(found, key=lambda p: (_excess(p[1]), p[1].near_copies.value))
    drawn, real = worst.near_copies, worst.near_copies_of_real
    return [f"{100 * drawn.value:.1f} ({_ends_of(drawn, 1, 100)}; {text(where)})", f"{100 * real.value:.1f}"]


def _excess(found: Comparison) -> float:
    return found.near_copies.value - found.near_copies_of_real.value


def _ends_of(found: Estimate, digits: int, scale: int = 1) -> str:
    return f"{scale * found.low:.{digits}f} to {scale * found.high:.{digits}f}"


def _outcomes(classes: Sequence[Tested]) -> str:
    """`9 no sign, 1 leans`: the worst first."""
    counts = Counter(one.outcome for one in classes)
    order = [*(name for name in OUTCOMES if name in counts), *sorted(set(counts) - set(OUTCOMES))]
    return ", ".join(f"{counts[name]} {text(name)}" for name in order)
