"""What to pick, for the documents: by data set, the strict methods that no other one beats by its bytes or seconds."""

from __future__ import annotations

from engram.report.document_rows import Place, mean_cell, method_cell, table, text
from engram.report.frontier import MB, by_bytes, by_seconds, candidates, core_seconds, kept, undominated

COLUMNS = ["data", "method", "label", "A_t % at the end", "kept, MB", "seconds of one core", "not beaten by", "seeds"]


def frontier(place: Place) -> str:
    """Data set by data set, the most accurate first; sets of which there is no choice are left out."""
    rows = []
    for data in dict.fromkeys(g.data for g in place.current):
        chosen = candidates([g for g in place.current if g.data == data])
        if len(chosen) < 2:
            continue
        sides = {"bytes": undominated(by_bytes(chosen)), "seconds": undominated(by_seconds(chosen))}
        for number, g in enumerate(chosen):
            ahead = " and ".join(side for side, best in sides.items() if best[number])
            if ahead:
                spent = mean_cell(core_seconds(g), 0)
                cells = [text(data.title), method_cell(g), place.link(g), mean_cell(g.final)]
                rows.append([*cells, mean_cell(kept(g), 2, MB), spent, ahead, g.seeds])
    return table(COLUMNS, rows)
