"""Two sets of runs: what changed, and whether it is more than seeds do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from scipy.special import stdtrit

from engram.report.groups import Group, Mean, main
from engram.report.order import name_key
from engram.report.tables import Row, Table, mean, number, words

MEASURES: dict[str, tuple[Callable[[Group], Mean | None], float, int]] = {
    "accuracy at the end, %": (lambda g: g.final, 1.0, 2),
    "forgetting, %": (lambda g: g.score(g.data.classes, lambda e: e.forgetting), 1.0, 2),
    "kept, MB": (lambda g: g.bytes, 1e-6, 3),
    "time, min": (lambda g: g.seconds, 1 / 60, 1),
}
"""Name -> (measure, scale, digits)."""

NOTE = (
    "Whether a change is beyond the seeds' spread is decided by Welch's t-test at 95 %. It needs two seeds on either "
    "side. Runs with the same settings are compared where there are any. Otherwise the last column names what changed."
)


def compare(old: Sequence[Group], new: Sequence[Group]) -> Table:
    """A row per measure of every method that both have, and a row for what only one has."""
    rows: list[Row] = []
    pairs = sorted(_pairs(old, new), key=lambda pair: name_key(_either(pair).data.name))
    for before, after in pairs:
        either = _either((before, after))
        start = (words(either.data.title), words(either.method))
        if before is None or after is None:
            only = "only in the new runs" if before is None else "only in the old runs"
            what = words(only + (f" ({either.settings})" if either.settings else ""))
            rows.append(Row((*start, what, *[words("")] * 4, words("")), method=either.method))
            continue
        changed = _changed(before, after)
        for name, (measure, scale, digits) in MEASURES.items():
            a, b = measure(before), measure(after)
            if a is None and b is None:
                continue
            gap = None if a is None or b is None else scale * (b.value - a.value)
            cells = (
                mean(a, digits, scale=scale),
                mean(b, digits, scale=scale),
                number(gap, digits),
                words(verdict(a, b)),
            )
            rows.append(Row((*start, words(name), *cells, words(changed)), method=either.method))
    columns = ("data", "method", "measure", "old", "new", "change", "beyond the seeds' spread?", "settings changed")
    return Table("comparison", "Old runs against new runs", columns, tuple(rows), NOTE)


def _either(pair: tuple[Group | None, Group | None]) -> Group:
    found = pair[1] or pair[0]
    assert found is not None
    return found


def verdict(old: Mean | None, new: Mean | None) -> str:
    """Welch's t-test at 95 %, both sides.

    >>> verdict(Mean(90.0, 0.1, 3), Mean(95.0, 0.1, 3)), verdict(Mean(90.0, 1.0, 3), Mean(90.5, 1.0, 3))
    ('yes', 'no')
    >>> verdict(Mean(90.0, None, 1), Mean(95.0, 0.1, 3))
    'cannot tell: needs two seeds on either side'
    """
    if old is None or new is None:
        return "not on both sides"
    if old.std is None or new.std is None:
        if old.value == new.value:
            return "the same"
        return "cannot tell: needs two seeds on either side"
    a, b = old.std**2 / old.n, new.std**2 / new.n
    difference = abs(new.value - old.value)
    if a + b == 0:
        return "yes" if difference else "the same"
    # Welch and Satterthwaite's degrees of freedom
    freedom = (a + b) ** 2 / (a**2 / (old.n - 1) + b**2 / (new.n - 1))
    return "yes" if difference > float(stdtrit(freedom, 0.975)) * math.sqrt(a + b) else "no"


def _pairs(old: Sequence[Group], new: Sequence[Group]) -> list[tuple[Group | None, Group | None]]:
    """The same configuration on both sides; then, per method, the main one of what is left on each side."""
    pairs: list[tuple[Group | None, Group | None]] = []
    olds, news = list(old), list(new)
    for after in list(news):
        settings = after.runs[0].settings
        for before in olds:
            if _place(before) == _place(after) and settings is not None and before.runs[0].settings == settings:
                pairs.append((before, after))
                olds.remove(before)
                news.remove(after)
                break
    matched = {_place(after) for _, after in pairs if after}
    for place in dict.fromkeys(_place(g) for g in news):
        mine = [g for g in news if _place(g) == place]
        theirs = [g for g in olds if _place(g) == place]
        if theirs and place not in matched:
            before, after = main(theirs), main(mine)
            pairs.append((before, after))
            olds.remove(before)
            news.remove(after)
    return [*pairs, *((None, g) for g in news), *((g, None) for g in olds)]


def _place(g: Group) -> tuple[str, str, str]:
    return g.data.name, g.data.digest, g.method


def _changed(old: Group, new: Group) -> str:
    before, after = old.runs[0].settings or {}, new.runs[0].settings or {}
    keys = [key for key in dict.fromkeys([*before, *after]) if before.get(key) != after.get(key)]
    return ", ".join(f"{key} {before.get(key, '-')} → {after.get(key, '-')}" for key in keys)
