"""Records -> figures: worked out here by hand, for runs whose records were written by hand."""

from __future__ import annotations

import csv
import json
import random
import re
import statistics
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from engram.cli import call
from engram.errors import RunError
from engram.evaluation.paper import TABLE_1, TABLE_3, TABLE_4
from engram.experiment.folder import locked
from engram.report import charts, views
from engram.report.build import build, write
from engram.report.compare import compare, verdict
from engram.report.figures import PEAK, STEP, accuracy, cost
from engram.report.gather import gather
from engram.report.groups import Group, Mean, group, one_per_method, one_per_store, stored
from engram.report.matrices import mean_matrix, summed_confusion
from engram.report.plasticity import growth, quality, reuse
from engram.report.tables import Row, Table, comma_separated, latex, markdown, mean, words
from synthetic import write_run

EVIL = '<script>alert("1")</script>'
TEN = [1.0, 0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.93, 0.92, 0.91]


def groups_of(*places: Path) -> list[Group]:
    return group(gather(places).runs)


def cell(table: Table, row: str, column: str) -> str:
    (found,) = [r for r in table.rows if r.cells[0].text == row]
    return found.cells[table.columns.index(column)].text


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    ends = [0.91, 0.93, 0.98]
    for seed, end in enumerate(ends):
        write_run(tmp_path / f"s{seed}", seed=seed, accuracy=[*TEN[:9], end])
    (g,) = groups_of(tmp_path)
    table = views.table_1(g.data, [g])
    spread = statistics.stdev(100 * end for end in ends)
    assert cell(table, "dgmw", "A_10 %") == f"94.00 ± {spread:.2f}"
    assert f"{spread:.2f}" == "3.61"
    assert cell(table, "dgmw", "A_5 %") == "96.00 ± 0.00"
    assert cell(table, "dgmw", "paper's A_10 %") == "96.46"
    assert cell(table, "dgmw", "seeds") == "0, 1, 2"
    assert cell(table, "dgmw", "minutes") == "10.0 ± 0.0"
    assert cell(table, "dgmw", "kept MB") == "10.02 ± 0.00"
    assert cell(table, "dgmw", "forgetting %") == f"6.00 ± {spread:.2f}"
    (row,) = csv.DictReader(comma_separated(table).splitlines())
    assert float(row["A_10 % std"]) == pytest.approx(spread)


def test_configurations_are_never_averaged_together(tmp_path: Path) -> None:
    write_run(tmp_path / "a", accuracy=[1.0, 0.9])
    write_run(tmp_path / "b", accuracy=[1.0, 0.7], seed=1, settings={"exemplars.ratio": 0.5}, strict=False)
    first, second = groups_of(tmp_path)
    assert (first.label, second.label) == ("dgmw", "dgmw, r=0.5")
    assert (first.section, second.section) == ("Strict", "With stored samples")
    assert [g.final and round(g.final.value, 6) for g in (first, second)] == [90.0, 70.0]


def test_a_name_says_once_what_is_stored(tmp_path: Path) -> None:
    for number, (r, k) in enumerate([("0", 0), ("0.5", 0), ("0", 1000)]):
        write_run(tmp_path / str(number), strict=False, settings={"exemplars.ratio": r, "exemplars.budget": k})
    assert [g.label for g in groups_of(tmp_path)] == ["dgmw", "dgmw, r=0.5", "dgmw, K=1000"]


def test_runs_in_another_precision_are_another_configuration(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", seed=1, settings={"runtime.precision": "float32"})
    write_run(tmp_path / "c", seed=2, settings={"runtime.precision": "bfloat16"})
    assert [g.seeds for g in groups_of(tmp_path)] == ["0, 1", "2"]


def test_an_archive_counts_only_where_it_is_asked_for(tmp_path: Path) -> None:
    write_run(tmp_path / "mnist" / "dgmw" / "default" / "seed0")
    old = write_run(tmp_path / "archive" / "mnist" / "dgmw" / "first" / "seed0", settings={"generator.width": 6})
    assert [run.label for run in gather([tmp_path]).runs] == ["default"]
    assert [(run.label, run.archived) for run in gather([tmp_path], archive=True).runs] == [
        ("first", True),
        ("default", False),
    ]
    for named in (tmp_path / "archive", tmp_path / "archive" / "mnist", old):
        assert [run.label for run in gather([named]).runs] == ["first"]
    (tmp_path / "only").mkdir()
    (tmp_path / "archive").rename(tmp_path / "only" / "archive")
    with pytest.raises(RunError, match="holds no run"):
        gather([tmp_path / "only"])


@pytest.mark.parametrize(("number", "shown"), [(None, "1"), (1, "1"), (3, "3"), ("2", "'2'")])
def test_another_format_is_refused_in_one_sentence(number: object, shown: str, tmp_path: Path) -> None:
    write_run(tmp_path / "good")
    lines = (write_run(tmp_path / "other", seed=1) / "records.jsonl").read_text().splitlines(keepends=True)
    head = json.loads(lines[0]) | {"format": number}
    if number is None:
        del head["format"]
    (tmp_path / "other" / "records.jsonl").write_text("".join([json.dumps(head) + "\n", *lines[1:]]))
    found = gather([tmp_path])
    assert [run.name for run in found.runs] == ["good"]
    (refused,) = found.blank
    assert refused.place == "other"
    assert f"of record format {shown}, this version reads format 2; use the version" in refused.text
    assert not found.problems


def test_the_default_stands_for_its_method(tmp_path: Path) -> None:
    for label, ratio in [("budget", 0.1), ("default", 0.0), ("exemplars", 0.5)]:
        write_run(tmp_path / "dgmw" / label / "seed0", strict=False, settings={"exemplars.ratio": ratio})
    (g,) = one_per_method(groups_of(tmp_path))
    assert g.runs[0].label == "default"


def test_what_is_stored_makes_lines_of_their_own(tmp_path: Path) -> None:
    """Of configurations that store alike one is drawn; those that store more or less are compared."""
    for number, (r, steps) in enumerate([("0.1", 5), ("0.5", 5), ("0.5", 9)]):
        settings = {"exemplars.ratio": r, "exemplars.budget": 0, "gan.steps": steps}
        write_run(tmp_path / str(number), strict=False, settings=settings)
    found = groups_of(tmp_path)
    assert len(found) == 3
    assert [stored(g) for g in one_per_store(found)] == ["r=0.1", "r=0.5"]
    assert len(one_per_method(found)) == 1


def test_threads_and_class_order_do_not_make_a_configuration(tmp_path: Path) -> None:
    write_run(tmp_path / "a", seed=0)
    write_run(tmp_path / "b", seed=1, order_seed=7)
    (g,) = groups_of(tmp_path)
    assert g.seeds == "0, 1 / order 7"


def test_a_run_without_configuration_stands_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    (write_run(tmp_path / "b", seed=1) / "config.json").unlink()
    found = gather([tmp_path])
    assert len(group(found.runs)) == 2
    assert any("not averaged" in problem.text for problem in found.problems)


def test_a_copy_counts_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a", accuracy=[1.0], tasks=2)
    write_run(tmp_path / "b", accuracy=[1.0, 0.9])
    found = gather([tmp_path])
    assert [run.name for run in found.runs] == ["b"]  # the one that has come further
    assert "no seed counts twice" in found.problems[0].text


def test_the_best_strict_method_is_bold(tmp_path: Path) -> None:
    write_run(tmp_path / "w", accuracy=[1.0, 0.9])
    write_run(tmp_path / "a", method="dgma", accuracy=[1.0, 0.95])
    write_run(tmp_path / "i", method="icarl", strict=False, accuracy=[1.0, 0.99])
    write_run(tmp_path / "j", method="joint", strict=False, bound="upper", accuracy=[1.0, 0.999], generative=False)
    groups = groups_of(tmp_path)
    table = views.table_1(groups[0].data, groups)
    bold = [r.cells[0].text for r in table.rows if r.cells[table.columns.index("A_2 %")].strong]
    assert bold == ["dgma"]
    assert [r.section for r in table.rows] == ["Strict", "Strict", "With stored samples", "Bounds"]


def test_svhn_is_never_shown_without_its_variant(tmp_path: Path) -> None:
    write_run(tmp_path / "run", dataset="svhn", variant="10,000 digits", accuracy=TEN, quality=True)
    files = build(gather([tmp_path]))
    for name, contents in files.items():
        if name.endswith((".svg", ".md", ".tex")):
            text = re.sub(r"<[^>]+>", "", contents.decode())
            assert "SVHN, 10,000 digits" in text, name
    assert "not comparable" in files["index.html"].decode()


def test_matrices_and_growth(tmp_path: Path) -> None:
    write_run(tmp_path / "a", accuracy=[1.0, 0.8], seed=0)
    write_run(tmp_path / "b", accuracy=[1.0, 0.6], seed=1)
    (g,) = groups_of(tmp_path)
    assert mean_matrix(g) == [[100.0], [pytest.approx(70.0), pytest.approx(70.0)]]
    assert summed_confusion(g) == (["0", "1"], [[1400, 600], [600, 1400]])
    shares = reuse(g.data, [g])
    sizes = growth(g.data, [g])
    assert shares is not None
    assert sizes is not None
    rows = shares.spec["data"]["values"]
    assert [r["value"] for r in rows if r["series"] == "reused"] == [0.0, 10.0]  # 0 and 1 of 10 units
    # before the second task 10 were reserved, of its 15
    assert [r["value"] for r in rows if r["series"] == "reused by chance"] == [0.0, pytest.approx(100 * 10 / 15)]
    units = [r["value"] for r in sizes.spec["data"]["values"] if r["panel"] == "units"]
    assert units == [20, 20, 30, 40, 39, 60]  # ours and the worst case: before, after 1, after 2 tasks


def test_cost_over_tasks_is_shown_of_the_longest_run(tmp_path: Path) -> None:
    write_run(tmp_path / "short", accuracy=[1.0, 0.8])
    write_run(tmp_path / "long", accuracy=[1.0, 0.8, 0.7], settings={"generator.width": 4})
    groups = groups_of(tmp_path)
    made = cost(groups[0].data, groups)
    assert made is not None
    values = {panel: [r["value"] for r in made.spec["data"]["values"] if r["panel"] == panel] for panel in (STEP, PEAK)}
    # the median of an epoch's mean steps; the one before a resume is not known
    assert values == {STEP: pytest.approx([10.0, 20.0, 30.0]), PEAK: pytest.approx([100.0, 101.0, 102.0])}
    write_run(tmp_path / "one" / "a", accuracy=[1.0])
    (single,) = groups_of(tmp_path / "one")
    assert cost(single.data, [single]) is None, "one task is no course"


def test_replay_quality_by_class(tmp_path: Path) -> None:
    write_run(tmp_path / "a", accuracy=[1.0, 0.8], quality=True, names=["cat", "dog"])
    (g,) = groups_of(tmp_path)
    (figure,) = quality(g.data, [g])
    recognised, own = (panel["data"]["values"] for panel in figure.spec["hconcat"])
    assert [(row["after"], row["class"], row["value"]) for row in recognised] == [
        (1, "cat", 90.0),
        (2, "cat", 90.0),
        (2, "dog", 90.0),
    ]
    found = {(row["series"], row["class"]): row["value"] for row in own}
    assert found["precision", "cat"] == found["precision", "dog"] == 70.0  # an old class keeps its own task's
    assert found["recall", "dog"] == 60.0


def test_bands_are_a_standard_deviation(tmp_path: Path) -> None:
    write_run(tmp_path / "a", accuracy=[1.0, 0.8], seed=0)
    write_run(tmp_path / "b", accuracy=[1.0, 0.6], seed=1)
    (g,) = groups_of(tmp_path)
    (figure,) = accuracy(g.data, [g])
    (row,) = [r for r in figure.spec["data"]["values"] if r["x"] == 2]
    assert row["value"] == pytest.approx(70.0)
    assert row["high"] - row["value"] == pytest.approx(statistics.stdev([80, 60]))


def test_tables_2_to_4(tmp_path: Path) -> None:
    write_run(tmp_path / "w", accuracy=TEN)
    write_run(tmp_path / "k", accuracy=TEN, strict=False, settings={"exemplars.budget": 1000})
    groups = groups_of(tmp_path)
    second = views.table_2(groups[0].data, groups)
    assert second is not None
    assert [r.cells[1].text for r in second.rows] == ["r=0", "K=1000"]
    third = views.table_3(groups[0].data, groups)
    assert third is not None
    assert [c.text for c in third.rows[0].cells[2:6]] == ["2,000", "5.58e+04", "7,500", "3.83e+05"]  # 20 to 75 units
    fourth = views.table_4(groups[0].data, groups)
    assert fourth is not None
    weights, masks, total = fourth.rows[:3]
    assert [c.text for c in weights.cells[1:]] == ["weights", "5.000", "1.1", "10.000", "2.0"]
    assert [c.text for c in masks.cells[1:]] == ["masks", "0.024", "3.8", "0.024", "9.9"]
    assert [c.text for c in total.cells[1:]] == ["total", "5.024", "4.9", "10.024", "11.9"]
    bought = views.ledger(groups[0].data, groups)
    assert bought is not None
    assert bought.rows[0].cells[2].text == f"{10_024_000 / 1024:,.0f}"


def test_the_papers_tables_agree_with_each_other() -> None:
    for dataset in ("mnist", "svhn"):
        assert TABLE_3[dataset]["dgmw"][2] == TABLE_1[dataset]["dgmw"][10]
    for parts in TABLE_4.values():
        for t in (5, 10):
            assert parts["weights"][t] + parts["masks"][t] == pytest.approx(parts["total"][t])


def test_torn_and_foreign_lines_are_named_and_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = [
        "not json\n", "[1, 2]\n", '{"kind": "evaluation", "task": 1}\n',
        '{"kind": "timing", "task": 0, "seconds": NaN}\n',
        '{"kind": "memory", "task": 99, "bytes": {}}\n', '{"kind": "mask", "task": "0"}\n', '{"kind": "unheard of"}\n',
        '{"kind": "eval',
    ]  # fmt: skip
    run = write_run(tmp_path / "runs" / "a", more=bad)
    start = len((run / "records.jsonl").read_text().splitlines()) - len(bad) + 1
    assert call(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    for offset in (0, 1, 2, 3, 4, 5, 7):
        assert f"records.jsonl:{start + offset}: " in said
    assert f":{start + 6}: " not in said  # a kind of a later version is no fault
    assert "torn" in said
    page = (tmp_path / "out" / "index.html").read_text()
    assert f"records.jsonl:{start}" in page
    assert "96.00" in page  # the good lines count


def test_no_line_can_stop_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of records replaced by others, at random: what does not fit is skipped, and the rest is shown."""
    monkeypatch.setattr(charts, "svg", lambda figure: f'<svg viewBox="0 0 9 99">{json.dumps(figure.spec)[:9]}</svg>')
    others: list[object] = [None, 0, -1, 99, 1.5, 10**400, 1e300, "x", [], [[]], {}, True, [None], {"a": 1}]
    for number in range(150):
        draws = random.Random(number)
        write_run(tmp_path / "a", accuracy=[1.0, 0.9, 0.8], quality=True)
        other = write_run(tmp_path / "b", accuracy=[1.0, 0.9, 0.8][: number % 4], tasks=3, seed=1, quality=True)
        lines = [json.loads(line) for line in (other / "records.jsonl").read_text().splitlines()]
        for line in draws.choices(lines, k=3):
            line[draws.choice(list(line))] = draws.choice(others)
        if number % 5 == 0:
            draws.shuffle(lines)
        (other / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert b"80.00" in build(gather([tmp_path]), pngs=False)["index.html"], number


def test_every_folder_is_shown_as_what_it_is(tmp_path: Path) -> None:
    write_run(tmp_path / "done")
    write_run(tmp_path / "halted", seed=1, accuracy=[1.0], tasks=3)
    error = json.dumps({"kind": "failure", "task": 1, "error": "the class loss is nan"}) + "\n"
    write_run(tmp_path / "broken", seed=2, accuracy=[1.0], tasks=3, more=[error])
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.json").write_text("{}")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "records.jsonl").write_text("{}\n")
    with locked(write_run(tmp_path / "going", seed=3, accuracy=[1.0], tasks=3)):
        table = views.all_runs(gather([tmp_path]))
    states = {row.cells[0].text: row.cells[5].text for row in table.rows}
    assert states == {
        "done": "done",
        "going": "running; last: task 1, epoch 1",
        "halted": "stopped; last: task 1, epoch 1",
        "broken": "failed: the class loss is nan",
        "empty": "an empty folder",
        "begun": "no records yet",
        "odd": "records.jsonl holds no run that can be read",
    }
    (g,) = groups_of(tmp_path)
    assert (g.seeds, g.waiting) == ("0", 3)  # what is not finished does not count


@pytest.mark.parametrize(
    "words", [["nowhere"], ["empty"], ["empty", "--watch", "--serve", "--out", "x"], ["empty", "--serve"]]
)
def test_a_users_mistake_is_one_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert call(["report", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("engram: ")
    assert not (tmp_path / "report").exists()


def test_names_are_escaped_everywhere(tmp_path: Path) -> None:
    names = [EVIL, r"50% \input{x} _&#", "a|b `c` *d*\x00\ud800"]
    write_run(tmp_path / "a|b<i>", method="<b>_x", dataset="npz:<u>&_", variant="own", names=names, quality=True)
    files = build(gather([tmp_path]), pngs=False)
    for name, contents in files.items():
        text = contents.decode()
        if not name.endswith(".csv"):
            assert "<script>alert" not in text, name
            assert "<b>_x" not in text, name
        if name.endswith(".svg"):
            ElementTree.fromstring(text)
            assert "confusion" not in name or "&lt;script&gt;" in text
    table = next(contents.decode() for name, contents in files.items() if name.endswith(".tex") and "table1" in name)
    assert r"\textless{}b\textgreater{}\_x" in table
    assert not re.search(r"(?<!\\)[_#]", table.replace("A_{", "").replace(r"\label", ""))


def test_a_table_in_three_formats() -> None:
    table = Table(
        "t",
        "50 % of A_5 & more",
        ("method", "A_5 %"),
        (Row((words("a_b|<c>"), mean(Mean(1.5, 0.25, 2), strong=True)), "Strict"),),
    )
    assert "| Strict | a\\_b\\|&lt;c&gt; | **1.50 ± 0.25** |" in markdown(table)
    assert r"a\_b\textbar{}\textless{}c\textgreater{} & \textbf{1.50 $\pm$ 0.25} \\" in latex(table)
    assert r"method & $A_{5}$ \% \\" in latex(table)
    assert comma_separated(table) == "group,method,A_5 %,A_5 % std\nStrict,a_b|<c>,1.5,0.25\n"


def test_comparison_knows_what_seeds_do(tmp_path: Path) -> None:
    for seed, (old, new) in enumerate([(0.90, 0.95), (0.91, 0.951), (0.905, 0.949)]):
        write_run(tmp_path / "old" / f"w{seed}", seed=seed, accuracy=[1.0, old])
        write_run(tmp_path / "new" / f"w{seed}", seed=seed, accuracy=[1.0, new], settings={"classifier.epochs": 5})
    write_run(tmp_path / "new" / "a", method="dgma")
    table = compare(groups_of(tmp_path / "old"), groups_of(tmp_path / "new"))
    first = dict(zip(table.columns, (c.text for c in table.rows[0].cells), strict=True))
    assert first["old"] == "90.50 ± 0.50"
    assert first["change"] == "4.50"
    assert first["beyond the seeds' spread?"] == "yes"
    assert first["settings changed"] == "classifier.epochs 3 → 5"
    assert table.rows[-1].cells[2].text == "only in the new runs"
    # t of 2.776 at 4 degrees of freedom: standard error 0.5 * sqrt(2 / 3) = 0.408, so 1.133 is the border
    assert verdict(Mean(90.0, 0.5, 3), Mean(91.13, 0.5, 3)) == "no"
    assert verdict(Mean(90.0, 0.5, 3), Mean(91.14, 0.5, 3)) == "yes"
    words = ["report", "--against", str(tmp_path / "old"), str(tmp_path / "new"), "--out", str(tmp_path / "out")]
    assert call(words) == 0
    assert "Old runs against new runs" in (tmp_path / "out" / "index.html").read_text()
    assert (tmp_path / "out" / "tables" / "comparison.csv").exists()


def test_a_report_needs_no_torch(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", accuracy=[1.0, 0.9])
    words = ["report", "--against", str(tmp_path / "runs"), str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    code = f"import sys; sys.modules['torch'] = None; from engram.cli import main; main({words!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.suffix for path in (tmp_path / "out").rglob("*.*")} == {
        ".html",
        ".json",
        ".md",
        ".csv",
        ".tex",
        ".svg",
        ".png",
    }


def test_what_an_earlier_report_left_is_cleared_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "report"
    write({"index.html": b"1", "tables/a.md": b"", "figures/b.svg": b""}, out)
    (out / "tables" / "mine.md").write_text("not the report's")
    (tmp_path / "outside.md").write_text("")
    listing = json.loads((out / "files.json").read_text())
    (out / "files.json").write_text(json.dumps([*listing, "tables/../../outside.md", "../outside.md", 7]))
    write({"index.html": b"2", "tables/a.md": b"new"}, out)
    assert (tmp_path / "outside.md").exists()
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert files == {"index.html", "files.json", "tables/a.md", "tables/mine.md"}
    for damaged in ("{", "{}", "3"):
        (out / "files.json").write_text(damaged)
        write({"index.html": b"3"}, out)
        assert (out / "index.html").read_bytes() == b"3"
