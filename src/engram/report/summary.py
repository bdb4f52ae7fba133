"""The first screen: what was run, how good, how big, how fast, did it forget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from engram.report.gather import Gathered
from engram.report.groups import Data, Group, best
from engram.report.order import data_sets
from engram.report.views import paper_figure, seeds


@dataclass(frozen=True)
class Answer:
    question: str
    value: str
    detail: str


@dataclass(frozen=True)
class Card:
    """A data set in one line: its best strict method."""

    data: str
    anchor: str
    what: str
    answers: tuple[Answer, ...]


def lead(gathered: Gathered, groups: Sequence[Group]) -> str:
    """`12 runs of 4 methods on 3 data sets: 11 done, 1 running. …`"""
    runs = gathered.runs
    if not runs:
        return "No records yet."
    states = Counter(run.state for run in runs)
    several = ", ".join(f"{count} {state}" for state, count in states.most_common())
    methods = plural(len({run.head.method for run in runs}), "method")
    sets = plural(len(data_sets(groups)), "data set")
    blank = f" {plural(len(gathered.blank), 'folder')} without records." if gathered.blank else ""
    return (
        f"{plural(len(runs), 'run')} of {methods} on {sets}: {several}.{blank} "
        "Classes are learned task by task and tested all together, without task labels."
    )


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "run"), plural(2, "run")
    ('1 run', '2 runs')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def headline(groups: Sequence[Group]) -> Group:
    """The best strict method; where there is none, what comes nearest to one."""
    contenders = [g for g in groups if g.contender]
    others = [g for g in groups if not g.bound]
    found = best(contenders) or next(iter(contenders), None) or best(others) or next(iter(others), None)
    return found or best(groups) or groups[0]


def card(data: Data, groups: Sequence[Group]) -> Card:
    g = headline(groups)
    kind = "best strict method" if g.contender and g.finished else f"{g.bound} bound" if g.bound else g.section.lower()
    what = f"{g.label}, {kind}; seeds {seeds(g)}" if len(g.runs) > 1 else f"{g.label}, {kind}; seed {seeds(g)}"
    return Card(data.title, f"data-{data.slug}", what, (_good(data, g, groups), _big(g), _fast(g), _forgot(g)))


def _good(data: Data, g: Group, groups: Sequence[Group]) -> Answer:
    reached = min((len(run.evaluations[-1].classes) for run in g.runs if run.evaluations), default=0)
    found = g.score(reached) if all(run.evaluations for run in g.runs) else None
    if found is None:
        return Answer("How good", "–", "no task is done yet")
    paper = paper_figure(g, reached)
    notes = [f"A_{reached}" if g.finished else f"A_{reached}, so far"]
    if paper is not None:
        notes[0] += f"; the paper {paper:.2f}" + ("" if data.comparable else " on the full set")
    ends = [(other.bound, other.score(reached)) for other in groups if other.bound and other.label != g.label]
    notes += [f"{bound} bound {score.value:.2f}" for bound, score in sorted(ends, key=lambda e: str(e[0])) if score]
    spread = "" if found.std is None else f" ± {found.std:.2f}"
    return Answer("How good", f"{found.value:.2f}{spread} %", "; ".join(notes))


def _big(g: Group) -> Answer:
    kept = g.bytes
    if kept is None:
        return Answer("How big", "–", "no memory on record")
    images = kept.value / g.runs[0].head.image_bytes
    return Answer("How big", f"{kept.value / 1e6:.2f} MB", f"memory; the bytes of {images:,.0f} images")


def _fast(g: Group) -> Answer:
    spent = g.seconds
    if spent is None or not spent.value:
        return Answer("How fast", "–", "no task is done yet")
    tasks = max(len(run.seconds) for run in g.runs)
    return Answer("How fast", duration(spent.value), f"to learn {plural(tasks, 'task')}")


def duration(seconds: float) -> str:
    """
    >>> duration(41.2), duration(2053), duration(9000)
    ('41 s', '34 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _forgot(g: Group) -> Answer:
    found = g.mean(lambda run: 100 * run.evaluations[-1].forgetting if run.evaluations else None)
    bits = ""
    if g.checked is not None:
        checked, changed = g.checked
        what = "unchanged" if not changed else f"CHANGED in {changed}"
        bits = f"; old images {what} ({plural(checked, 'check')})"
    if found is None:
        return Answer("Did it forget", "–", f"no task is done yet{bits}")
    return Answer("Did it forget", f"{found.value:.2f} %", f"average loss per task{bits}")
