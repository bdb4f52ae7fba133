"""What to pick: figures worked out by hand, and the frontier against one found by trying all pairs."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from engram.report.build import build
from engram.report.document_frontier import frontier
from engram.report.document_rows import Place
from engram.report.frontier import (
    Point,
    by_bytes,
    by_seconds,
    candidates,
    core_seconds,
    figure,
    kept,
    table,
    undominated,
)
from engram.report.gather import gather
from engram.report.groups import by_folder, group
from synthetic import write_run


def test_the_frontier_is_what_a_sweep_from_the_cheapest_finds() -> None:
    draws = random.Random(0)
    for _ in range(200):
        points = [Point(str(i), float(draws.randint(0, 9)), float(draws.randint(0, 9))) for i in range(12)]
        swept, highest = set(), -1.0
        for point in sorted(points, key=lambda point: (point.cost, -point.accuracy)):
            if point.accuracy > highest:
                highest = point.accuracy
                swept.add((point.accuracy, point.cost))
        found = {(p.accuracy, p.cost) for p, best in zip(points, undominated(points), strict=True) if best}
        assert found == swept


def test_what_costs_an_unknown_amount_beats_nothing() -> None:
    assert undominated([Point("a", 99.0, None), Point("b", 90.0, 1.0)]) == [False, True]


def runs(tmp_path: Path) -> Path:
    """Three strict methods, one that stores images, one that is not finished."""
    write_run(tmp_path / "dgmw" / "seed0", accuracy=(1.0, 0.9, 0.9), seconds=100.0)
    write_run(tmp_path / "dgr" / "seed0", method="dgr", accuracy=(1.0, 0.8, 0.8), seconds=10.0)
    write_run(tmp_path / "ewc" / "seed0", method="ewc", accuracy=(1.0, 0.7, 0.7), seconds=50.0)
    write_run(tmp_path / "icarl" / "seed0", method="icarl", accuracy=(1.0, 0.99, 0.99), strict=False)
    write_run(tmp_path / "mergan" / "seed0", method="mergan", accuracy=(1.0, 0.99), tasks=3)
    for folder in tmp_path.iterdir():
        place = {"processor": "AMD EPYC", "threads": 1}
        (folder / "seed0" / "environment.json").write_text(json.dumps([place]))
    return tmp_path


def test_only_finished_strict_methods_are_to_be_picked(tmp_path: Path) -> None:
    chosen = candidates(group(gather([runs(tmp_path)]).runs))
    assert [g.method for g in chosen] == ["dgmw", "dgr", "ewc"]
    assert [p.cost for p in by_bytes(chosen)] == pytest.approx([3.024] * 3)  # of write_run: 3 MB and the masks
    assert undominated(by_bytes(chosen)) == [True, False, False]


def test_seconds_of_a_core_are_counted_ones_or_those_of_one_thread(tmp_path: Path) -> None:
    (g, *_) = candidates(group(gather([runs(tmp_path)]).runs))
    (run,) = g.runs
    found = core_seconds(g)
    assert found is not None
    assert found.value == 300.0
    (run.folder / "environment.json").write_text(json.dumps([{"threads": 2}]))
    (g, *_) = candidates(group(gather([tmp_path]).runs))
    assert core_seconds(g) is None
    records = run.folder / "records.jsonl"
    records.write_text(records.read_text().replace('"seconds": 100.0', '"seconds": 100.0, "cpu_seconds": 7.0'))
    (counted, *_) = candidates(group(gather([tmp_path]).runs))
    found = core_seconds(counted)
    assert found is not None
    assert found.value == pytest.approx(21.0)


def test_what_answers_counts_where_it_is_on_record(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    (g,) = group(gather([tmp_path]).runs)
    before = kept(g)
    records = folder / "records.jsonl"
    records.write_text(records.read_text().replace('"exemplars": 0', '"exemplars": 0, "classifier": 500'))
    (g,) = group(gather([tmp_path]).runs)
    after = kept(g)
    assert before is not None
    assert after is not None
    assert after.value - before.value == 500


def test_table_and_figure_name_what_is_not_beaten(tmp_path: Path) -> None:
    groups = group(gather([runs(tmp_path)]).runs)
    made, drawn = table(groups[0].data, groups), figure(groups[0].data, groups)
    assert made is not None
    assert drawn is not None
    assert [row.cells[0].text for row in made.rows if row.cells[4].text == "yes"] == ["dgmw"]
    assert "by kept, MB: dgmw" in drawn.alt
    files = build(gather([tmp_path]), pngs=False)
    assert {"tables/frontier-mnist.md", "figures/tradeoff-mnist.svg"} <= set(files)


def test_the_documents_table_lists_the_frontier_alone(tmp_path: Path) -> None:
    place = Place(tmp_path, tuple(by_folder(gather([runs(tmp_path)]).runs)))
    lines = frontier(place).splitlines()[2:]
    assert undominated(by_seconds(candidates(place.current))) == [True, True, False]
    assert [line.split("`")[1] for line in lines] == ["dgmw", "dgr"]
    assert [line.split(" | ")[-2] for line in lines] == ["bytes and seconds", "seconds"]
