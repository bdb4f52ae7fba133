"""Runs of two memories in the report: one training, two rows, and a table of what each answers alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engram.report.document_memories import memories
from engram.report.document_rows import Place
from engram.report.frontier import candidates, kept
from engram.report.gather import gather
from engram.report.groups import by_folder, group
from synthetic import TEST_IMAGES, write_run

KEPT = {"statistics.kept": True, "statistics.filters": 64}


def way(name: str, accuracy: Sequence[float]) -> list[str]:
    lines = []
    for t, share in enumerate(accuracy):
        right = round(share * TEST_IMAGES)
        rows = [[0] * (t + 1) for _ in range(t + 1)]
        for c in range(t + 1):
            rows[c][c], rows[c][(c + 1) % (t + 1)] = right, rows[c][(c + 1) % (t + 1)] + TEST_IMAGES - right
        if t == 0:
            rows = [[TEST_IMAGES]]
        record = {"kind": "other_answer", "task": t, "way": name, "classes": list(range(t + 1)), "accuracy": share}
        lines.append(json.dumps({**record, "top5": None, "confusion": rows}) + "\n")
    return lines


def memory(**parts: int) -> str:
    """After the last of three tasks."""
    return json.dumps({"kind": "memory", "task": 2, "bytes": {"weights": 1_000_000, **parts}}) + "\n"


def runs(folder: Path) -> Path:
    for seed in (0, 1):
        first = (1.0, 0.8, 0.7 + 0.02 * seed)
        more = [*way("generative", first), *way("statistical", (1.0, 0.85, 0.8)), memory(statistics=3_000_000)]
        own = (1.0, 0.9, 0.85 + 0.01 * seed)
        write_run(folder / "both" / f"seed{seed}", seed=seed, accuracy=own, settings=KEPT, generative=False, more=more)
    plain: dict[str, Any] = {"generative": False, "more": [memory()]}
    none = {"statistics.kept": False}
    write_run(folder / "plain" / "seed2", seed=2, accuracy=(1.0, 0.8, 0.74), settings=none, **plain)
    write_run(folder / "old" / "seed3", seed=3, accuracy=(1.0, 0.8, 0.76), **plain)
    write_run(folder / "joint" / "seed0", method="joint", bound="upper", accuracy=(1.0, 1.0, 0.9), strict=False)
    return folder


def test_a_run_of_two_memories_is_two_rows(tmp_path: Path) -> None:
    """Its first memory counts among the runs that have no other; what is not there has no settings."""
    found = {g.method: g for g in group(gather([runs(tmp_path)]).runs)}
    assert set(found) == {"dgmw + statistics", "dgmw", "joint"}
    both, alone = found["dgmw + statistics"], found["dgmw"]
    assert [round(100 * run.evaluations[-1].accuracy, 2) for run in both.runs] == [85, 86]
    assert sorted(round(100 * run.evaluations[-1].accuracy, 2) for run in alone.runs) == [70, 72, 74, 76]
    first = next(run for run in alone.runs if run.head.seed == 0)
    # task 0 fell from 100 to 70, task 1 from 80 to 70
    assert round(first.evaluations[-1].forgetting, 6) == 0.2
    sizes = [kept(g) for g in (both, alone)]
    assert [size.value for size in sizes if size] == [4_000_000, 1_000_000]
    assert [g.method for g in candidates([both, alone])] == ["dgmw + statistics", "dgmw"]


def test_the_table_says_what_each_memory_answers_alone(tmp_path: Path) -> None:
    place = Place(tmp_path, tuple(by_folder(gather([runs(tmp_path)]).runs)))
    head, _, row = memories(place).splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    found = dict(zip([cell.strip() for cell in head.strip("|").split("|")], cells, strict=True))
    assert found["method"] == "`dgmw + statistics`"
    assert (found["filters"], found["seeds"]) == ("64", "0, 1")
    assert found["both, A_t %"] == "85.50 ± 0.71"
    assert found["generative alone"] == "71.00 ± 1.41"
    assert found["statistical alone"] == "80.00 ± 0.00"
    assert found["both against the better"] == "+5.50 ± 0.50"
    assert found["of joint training"] == "0.950"
    assert (found["kept, MB"], found["of that statistics, MB"]) == ("4.00 ± 0.00", "3.00 ± 0.00")


def test_without_such_runs_it_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "seed0")
    assert memories(Place(tmp_path, tuple(by_folder(gather([tmp_path]).runs)))) == "No run has such records yet.\n"
