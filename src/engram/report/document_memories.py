"""DGM with a second, statistical memory: what both answer, and each alone, from the same runs."""

from __future__ import annotations

from functools import partial

from engram.evaluation import metrics
from engram.report.document_rows import NONE_YET, Place, joint_of, mean_cell, method_cell, table, text
from engram.report.frontier import MB, kept
from engram.report.gather import BOTH, FIRST, Run
from engram.report.groups import Group, setting
from engram.report.worth import against, by_seed, finals

WAYS = (FIRST, "statistical")
COLUMNS = (
    *("data", "method", "label", "filters", "both, A_t %", "generative alone", "statistical alone"),
    *("both against the better", "of joint training", "kept, MB", "of that statistics, MB", "seeds"),
)


def memories(place: Place) -> str:
    """A row for every group of such runs."""
    rows = [_row(place, g) for g in place.current if setting(g, f"{BOTH}.kept") == "True" and g.finished]
    return table(COLUMNS, rows) if rows else NONE_YET


def _row(place: Place, g: Group) -> list[str]:
    alone = [by_seed(g, partial(_last, way=way)) for way in WAYS]
    better = max(alone, key=lambda found: metrics.mean(list(found.values())) if found else 0)
    joint = joint_of(g, place.current)
    share = g.final.value / joint.final.value if g.final and joint and joint.final else None
    return [
        *(text(g.data.title), method_cell(g), place.link(g), setting(g, f"{BOTH}.filters"), mean_cell(g.final)),
        *(mean_cell(g.mean(partial(_last, way=way))) for way in WAYS),
        *(against(finals(g), better), "" if share is None else f"{share:.3f}", mean_cell(kept(g), 2, MB)),
        *(mean_cell(g.mean(_bytes), 2, MB), g.seeds),
    ]


def _last(run: Run, way: str) -> float | None:
    """In per cent, after the last task."""
    return 100 * run.ways[way][-1].accuracy if run.ways.get(way) else None


def _bytes(run: Run) -> float | None:
    return run.memory[max(run.memory)].get(BOTH) if run.memory else None
