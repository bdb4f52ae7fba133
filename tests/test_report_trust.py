"""What a report says of runs that held images out: calibration, unknown answers, privacy; and where it keeps quiet."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from engram.errors import RunError
from engram.report import charts, privacy, trust, views
from engram.report.build import Files, build
from engram.report.compare import compare
from engram.report.document_rows import NONE_YET
from engram.report.documents import END, stale, update
from engram.report.figures import accuracy
from engram.report.gather import gather
from engram.report.groups import Group, group, one_per_method
from engram.report.summary import card, headline
from engram.report.tables import NOTHING, Table
from synthetic import write_run

FOUR = [1.0, 0.9, 0.8, 0.7]


def groups_of(*places: Path) -> list[Group]:
    return group(gather(places).runs)


def column(table: Table, name: str) -> list[str]:
    at = table.columns.index(name)
    return [row.cells[at].text for row in table.rows]


def made(files: Files) -> set[str]:
    return {name for name in files if "trust" in name or "privacy" in name}


# ---------------------------------------------------------------- the page


def test_a_row_a_task(tmp_path: Path) -> None:
    write_run(tmp_path, accuracy=FOUR, validation=0.1, kept=0.93)
    (g,) = groups_of(tmp_path)
    table = trust.table(g.data, [g])
    assert table is not None
    assert {row.section for row in table.rows} == {"dgmw, held out 0.1; seed 0"}
    assert column(table, "after task") == column(table, "classes known") == ["1", "2", "3", "4"]
    assert column(table, "ECE % before") == ["2.00", "4.00", "6.00", "8.00"]
    assert column(table, "ECE % after") == ["1.00", "2.00", "3.00", "4.00"]
    assert column(table, "known kept %") == ["100.00", "94.00", "95.00", "96.00"]
    assert column(table, "AUROC") == [NOTHING, "0.800", "0.700", NOTHING]
    assert column(table, "unknown rejected %") == [NOTHING, "10.00", "20.00", NOTHING]


def test_seeds_are_averaged(tmp_path: Path) -> None:
    for seed, kept in enumerate([0.93, 0.95]):
        write_run(tmp_path / str(seed), seed=seed, accuracy=FOUR, validation=0.1, kept=kept)
    (g,) = groups_of(tmp_path)
    table = trust.table(g.data, [g])
    assert table is not None
    assert column(table, "known kept %")[1] == "95.00 ± 1.41"  # 94 and 96
    assert len(table.rows) == 4


def test_a_row_a_class_and_seed(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / str(seed), seed=seed, accuracy=FOUR, validation=0.1, attack=0.52 + 0.1 * seed)
    (g,) = groups_of(tmp_path)
    table = privacy.table(g.data, [g])
    assert table is not None
    assert column(table, "class") == ["0", "1", "2", "3"] * 2
    assert [row.section[-6:] for row in table.rows] == ["seed 0"] * 4 + ["seed 1"] * 4
    assert column(table, "outcome")[:4] == ["no sign of copying"] * 2 + ["leans, perhaps by chance"] * 2
    assert set(column(table, "outcome")[4:]) == {"copies training images"}
    counts = [column(table, name)[0] for name in ("drawings", "training", "held out")]
    assert counts == ["1,000", "4,000", "500"]
    assert column(table, "nearer to training %, pixels")[0] == "50 (40–60)"
    assert column(table, "nearer to training %, features")[0] == "45 (35–55)"
    assert column(table, "near-copies %, pixels")[:4] == ["0.0 / 0.0", "1.0 / 0.0", "2.0 / 4.0", "3.0 / 0.0"]
    assert column(table, "attack AUC, pixels")[3] == "0.58 (0.53–0.63)"
    assert column(table, "attack AUC, features")[3] == "0.40 (0.30–0.50)"
    assert "no proof" in table.note


def test_the_csv_file_has_the_ends_of_every_interval(tmp_path: Path) -> None:
    write_run(tmp_path, accuracy=FOUR, validation=0.1)
    files = build(gather([tmp_path]), pngs=False)
    rows = list(csv.DictReader(files["tables/privacy-mnist.csv"].decode().splitlines()))
    last = rows[-1]
    assert [float(last[f"attack AUC, pixels{end}"]) for end in ("", " low", " high")] == [0.56, 0.51, 0.61]
    assert [float(rows[2][f"near-copies %, pixels{end}"]) for end in ("", " high", " real")] == [2.0, 10.0, 4.0]


def test_a_class_without_enough_images_and_an_outcome_of_a_later_version(tmp_path: Path) -> None:
    few = {"class_index": 0, "drawings": 0, "training": 90, "held_out": 10, "pixels": None, "features": None}
    found = [{**few, "outcome": "cannot tell"}, {**few, "outcome": "<i>unheard of"}]
    line = json.dumps({"kind": "privacy", "task": 0, "classes": ["a", "<b>"], "found": found}) + "\n"
    write_run(tmp_path, accuracy=FOUR, more=[line])
    (g,) = groups_of(tmp_path)
    table = privacy.table(g.data, [g])
    assert table is not None
    assert column(table, "outcome") == ["too few images to tell", "<i>unheard of"]
    assert column(table, "attack AUC, pixels") == [NOTHING, NOTHING]
    files = build(gather([tmp_path]), pngs=False)
    assert "<i>" not in files["index.html"].decode() + files["tables/privacy-mnist.md"].decode()


def test_the_figure_shows_what_can_be_judged(tmp_path: Path) -> None:
    """After the first task every image is known; after the last there is no class to come."""
    write_run(tmp_path, accuracy=FOUR, validation=0.1, kept=0.93)
    (g,) = groups_of(tmp_path)
    figure = trust.figure(g.data, [g])
    assert figure is not None
    kept, auroc = figure.spec["hconcat"]
    assert [(row["x"], round(row["value"], 6)) for row in kept["data"]["values"]] == [(2, 94.0), (3, 95.0), (4, 96.0)]
    assert [(row["x"], round(row["value"], 6)) for row in auroc["data"]["values"]] == [(2, 0.8), (3, 0.7)]
    band = kept["layer"][0]["encoding"]
    assert (band["y"]["datum"], band["y2"]["datum"]) == (93, 97)
    assert kept["layer"][0]["encoding"]["y"]["scale"]["domain"] == [90, 100]
    ElementTree.fromstring(charts.svg(figure))


def test_pages_have_the_sections_of_runs_that_held_images_out_and_no_others(tmp_path: Path) -> None:
    write_run(tmp_path / "without", dataset="svhn", accuracy=FOUR)
    files = build(gather([tmp_path]), pngs=False)
    assert made(files) == set()
    assert "trust" not in files["index.html"].decode()
    assert "Privacy" not in files["index.html"].decode()
    write_run(tmp_path / "with", accuracy=FOUR, validation=0.1)
    files = build(gather([tmp_path]), pngs=False)
    page = files["index.html"].decode()
    for title in ("Answers one can trust", "Privacy"):
        assert page.count(f"<h3>{title}</h3>") == 1, title
    tables = {f"tables/{kind}-mnist.{suffix}" for kind in ("trust", "privacy") for suffix in ("md", "csv", "tex")}
    assert made(files) == tables | {"figures/trust-mnist-tasks.svg"}


# ---------------------------------------------------------------- records that do not fit


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("calibration", {"tested": None}, "None is not a whole number"),
    ("calibration", {"kept": 1.5}, "1.5 is not between 0 and 1"),
    ("calibration", {"auroc": "0.7"}, "'0.7' is not a number"),
    ("calibration", {"ece": True}, "True is not a number"),
    ("calibration", {"task": 9}, "task 9 is not one of the run's 4"),
    ("privacy", {"found": []}, "values that do not match the classes"),
    ("privacy", {"found": {}}, "{} is not a list"),
    ("privacy", {"found": [3]}, "not iterable"),
    ("privacy", {"found": [{}]}, "it lacks 'drawings'"),
    ("privacy", {"classes": None}, "None is not a list"),
]


@pytest.mark.parametrize(("kind", "changes", "said"), BAD)
def test_a_record_that_does_not_fit_is_named_and_left_out(
    kind: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path, accuracy=FOUR, validation=0.1)
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    at = next(i for i, line in enumerate(lines) if line["kind"] == kind and line["task"] == 1)
    lines[at] |= changes
    (run / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    gathered = gather([run])
    (problem,) = gathered.problems
    assert problem.place.endswith(f"records.jsonl:{at + 1}")
    assert said in problem.text
    left = gathered.runs[0].trust if kind == "calibration" else gathered.runs[0].privacy
    assert [found.task for found in left] == [0, 2, 3]


def test_an_interval_that_does_not_hold_its_value_is_none(tmp_path: Path) -> None:
    run = write_run(tmp_path, accuracy=FOUR, validation=0.1)
    text = (run / "records.jsonl").read_text()
    for bad in ("[0.5, 0.6, 0.4]", "[0.5, 0.4]", "[0.5, NaN, 0.6]", "0.5"):
        (run / "records.jsonl").write_text(text.replace("[0.5, 0.4, 0.6]", bad, 1))
        gathered = gather([run])
        assert len(gathered.problems) == 1, bad
        assert [found.task for found in gathered.runs[0].privacy] == [1, 2, 3], bad


def test_no_value_can_stop_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values replaced by others at random, at any depth of the two kinds."""
    monkeypatch.setattr(charts, "svg", lambda figure: f'<svg viewBox="0 0 9 99">{json.dumps(figure.spec)[:9]}</svg>')
    others: list[object] = [None, 0, -1, 1, 1.5, 10**400, "x", [], [[]], {}, True, [None], {"a": 1}]
    for number in range(60):
        draws = random.Random(number)
        run = write_run(tmp_path, accuracy=FOUR, validation=0.1)
        lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
        for line in draws.choices([line for line in lines if line["kind"] in ("calibration", "privacy")], k=3):
            place = line
            while draws.random() < 0.7 and isinstance(inner := draws.choice(list(place.values())), (dict, list)):
                place = inner[0] if isinstance(inner, list) and inner and isinstance(inner[0], dict) else place
                place = inner if isinstance(inner, dict) and inner else place
            place[draws.choice(list(place))] = draws.choice(others)
        (run / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert b"70.00" in build(gather([run]), pngs=False)["index.html"], number
        update(document(tmp_path, "trust", "privacy"), tmp_path)


# ---------------------------------------------------------------- another configuration


def test_a_run_that_held_images_out_is_never_averaged_with_others_and_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "a", accuracy=FOUR)
    write_run(tmp_path / "b", accuracy=FOUR, seed=1, settings={"stream.validation": 0.0})
    for seed in range(3):
        write_run(tmp_path / f"c{seed}", accuracy=FOUR, seed=seed, validation=0.1)
    groups = groups_of(tmp_path)
    assert [(g.label, g.seeds) for g in groups] == [("dgmw", "0, 1"), ("dgmw, held out 0.1", "0, 1, 2")]
    assert [g.label for g in one_per_method(groups)] == ["dgmw"], "more seeds do not make it the main one"
    assert headline(groups).whole
    assert [row.cells[0].text for row in views.table_1(groups[0].data, groups).rows] == [g.label for g in groups]
    (figure,) = accuracy(groups[0].data, groups)
    assert {row["series"] for row in figure.spec["vconcat"][0]["data"]["values"]} == {"dgmw"}


def test_alone_it_says_so_too(tmp_path: Path) -> None:
    write_run(tmp_path, accuracy=FOUR, validation=0.1)
    (g,) = groups_of(tmp_path)
    assert g.label == "dgmw, held out 0.1"
    assert card(g.data, [g]).what.startswith("dgmw, held out 0.1, ")


def test_configurations_before_and_after_the_setting_came_are_one(tmp_path: Path) -> None:
    write_run(tmp_path / "old", accuracy=FOUR)
    write_run(tmp_path / "new", accuracy=FOUR, settings={"stream.validation": 0.0})
    table = compare(groups_of(tmp_path / "old"), groups_of(tmp_path / "new"))
    assert {row.cells[-1].text for row in table.rows} == {NOTHING}
    (g,) = groups_of(tmp_path)
    assert len(g.runs) == 1, "the same seed counts once"


# ---------------------------------------------------------------- tables of documents


def document(folder: Path, *tables: str) -> Path:
    path = folder / "page.md"
    path.write_text("".join(f"<!-- table: {name} -->\n{END}\n" for name in tables))
    return path


def rows_of(path: Path) -> list[list[str]]:
    lines = [line for line in path.read_text().splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines if not line.startswith("| ---")]


def test_documents_without_such_runs_say_so(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "mnist" / "dgmw" / "default" / "seed0", accuracy=FOUR)
    path = document(tmp_path, "trust", "privacy")
    update(path, tmp_path / "runs")
    assert path.read_text().count(NONE_YET) == 2
    assert rows_of(path) == []
    write_run(tmp_path / "runs" / "mnist" / "dgmw" / "trust" / "seed0", accuracy=FOUR, validation=0.1)
    assert stale(path, tmp_path / "runs") == ["trust", "privacy"]


def test_the_documents_table_of_trust(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_run(runs / "mnist" / "dgmw" / "default" / "seed0", accuracy=FOUR)
    for seed, kept in enumerate([0.93, 0.95]):
        folder = runs / "mnist" / "dgmw" / "trust" / f"seed{seed}"
        write_run(folder, seed=seed, accuracy=FOUR, validation=0.1, kept=kept, reach=8.0)
    part = runs / "svhn" / "dgmw" / "10000-digits-trust" / "seed0"
    write_run(part, dataset="svhn", variant="10,000 digits", accuracy=FOUR[:2], tasks=4, validation=0.1)
    path = document(tmp_path, "trust")
    update(path, runs)
    _, whole, begun = rows_of(path)
    link = "[trust](runs/mnist/dgmw/trust)"
    ends = ["8.00 ± 0.00", "4.00 ± 0.00", "0.800 ± 0.000", "0.700 ± 0.000"]
    assert whole == ["MNIST", "`dgmw`", link, "4", "confidence, typicality", "94.0 to 98.0", *ends, "0, 1"]
    link = "[10000-digits-trust](runs/svhn/dgmw/10000-digits-trust)"
    ends = ["4.00", "2.00", "0.800", "–"]
    assert begun == ["SVHN, 10,000 digits", "`dgmw`", link, "2 of 4", "confidence alone", "96.0 to 96.0", *ends, "0"]


def test_the_documents_table_of_other_data_sets(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    folder = write_run(runs / "mnist" / "dgmw" / "trust" / "seed3", seed=3, accuracy=FOUR, validation=0.1)
    path = document(tmp_path, "unknown")
    update(path, runs)
    assert NONE_YET in path.read_text()
    both = {"data": "mnist", "classes": 4, "unknown": 2000, "rejected": 0.7905}
    lines = [
        {**both, "others": "svhn", "auroc": 0.943511, "auroc_typical": 0.904706},
        {**both, "others": "my|own"},
    ]
    (folder / "unknown.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert stale(path, runs) == ["unknown"]
    update(path, runs)
    start = ["MNIST", "`dgmw`", "[trust](runs/mnist/dgmw/trust)", "3"]
    _, first, second = rows_of(path)
    assert first == [*start, "SVHN", "2,000", "0.944", "0.905", "79.0"]
    assert second == [*start, "my\\|own", "2,000", "–", "–", "79.0"]
    (folder / "unknown.jsonl").write_text('{"others": "svhn"}\n')
    with pytest.raises(RunError, match=r"unknown.jsonl cannot be read \(it lacks 'unknown'\); make it anew"):
        update(path, runs)


def test_the_documents_table_of_privacy(tmp_path: Path) -> None:
    write_run(tmp_path / "mnist" / "dgmw" / "trust" / "seed0", accuracy=FOUR, validation=0.1, attack=0.5)
    path = document(tmp_path, "privacy")
    update(path, tmp_path)
    _, row = rows_of(path)
    link = "[trust](mnist/dgmw/trust)"
    worst = ["0.56 (0.51 to 0.61; 3, pixels)", "3.0 (0.0 to 10.0; 3, pixels)", "0.0", "1 leans, 3 no sign"]
    assert row == ["MNIST", "`dgmw`", link, "4", *worst, "0"]


def test_the_readmes_table_never_shows_a_run_that_held_images_out(tmp_path: Path) -> None:
    """Not even where it is the only one on the standard images, or has the most seeds."""
    write_run(tmp_path / "cifar10" / "dgmw" / "jpeg" / "seed0", dataset="cifar10", variant="JPEG copy", accuracy=FOUR)
    other = [1.0, 0.9, 0.8, 0.99]
    for seed in (0, 1):
        folder = tmp_path / "cifar10" / "dgmw" / "trust" / f"seed{seed}"
        write_run(folder, seed=seed, dataset="cifar10", accuracy=other, validation=0.1)
        write_run(tmp_path / "mnist" / "dgr" / "trust" / f"seed{seed}", seed=seed, method="dgr", validation=0.1)
    path = document(tmp_path, "readme")
    update(path, tmp_path)
    (_, row) = rows_of(path)
    assert row[0] == "CIFAR-10, JPEG copy"
    assert row[2].endswith("A_4 = 70.00")


def test_an_accuracy_table_says_what_was_held_out_and_sizes_leave_it_out(tmp_path: Path) -> None:
    for label, validation in (("default", 0.0), ("trust", 0.1)):
        write_run(tmp_path / "mnist" / "dgmw" / label / "seed0", accuracy=FOUR, validation=validation)
    write_run(tmp_path / "mnist" / "dgma" / "trust" / "seed0", method="dgma", accuracy=FOUR, validation=0.1)
    path = document(tmp_path, "accuracy-mnist")
    update(path, tmp_path)
    assert {row[3] for row in rows_of(path)[1:] if row[2].startswith("[trust]")} == {"strict, 0.1 held out"}
    assert [row[3] for row in rows_of(path) if row[2].startswith("[default]")] == ["strict"]
    path = document(tmp_path, "sizes")
    update(path, tmp_path)
    assert [row[2] for row in rows_of(path)[1:]] == ["[default](mnist/dgmw/default)"]
