"""What a report calls things, in what order it shows them, and what it leaves out."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from PIL import Image

from engram.report import views
from engram.report.build import Files, build, write
from engram.report.compare import compare
from engram.report.gather import gather
from engram.report.groups import group
from engram.report.labels import LONGEST, labels
from engram.report.tables import NOTHING, latex, markdown
from synthetic import write_run

SETS = ["folder:a", "imagenet50", "digits", "svhn", "fashion-mnist", "cifar10", "mnist"]
TITLES = ["MNIST", "SVHN", "CIFAR-10", "ImageNet-50", "Digits", "Fashion-MNIST", "folder:a"]
SLUGS = ["mnist", "svhn", "cifar-10", "imagenet-50", "digits", "fashion-mnist", "folder-a"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for number, name in enumerate(SETS):
        write_run(folder / str(number), dataset=name, accuracy=[1.0, 0.9])
    return folder


@pytest.fixture(scope="module")
def files(runs: Path) -> Files:
    table = compare(group(gather([runs]).runs), group(gather([runs]).runs))
    return build(gather([runs]), comparison=table, pngs=False, now=datetime(2026, 11, 18, 1, tzinfo=UTC))


def test_data_sets_stand_in_one_order_everywhere(files: Files) -> None:
    page = files["index.html"].decode()
    cards = re.findall(r'<h2 id="card-\d+"><a href="#data-[^"]+">([^<]+)</a>', page)
    chapters = re.findall(r'<details class="chapter" id="data-([^"]+)"', page)
    contents = re.findall(r'<li><a href="#data-[^"]+">([^<]+)</a>', page)
    assert cards == contents == TITLES
    assert chapters == SLUGS
    for stem in ("tables/table1-", "figures/figure2-"):
        found = [name.removeprefix(stem).rpartition(".")[0] for name in files if name.startswith(stem)]
        assert list(dict.fromkeys(found)) == SLUGS
    for name in ("runs", "comparison"):
        rows = files[f"tables/{name}.csv"].decode()
        assert list(dict.fromkeys(re.findall("|".join(TITLES), rows))) == TITLES, name


def test_the_list_of_files_keeps_the_order(files: Files, tmp_path: Path) -> None:
    write(files, tmp_path)
    assert json.loads((tmp_path / "files.json").read_text()) == list(files)


def test_of_one_name_the_whole_set_comes_first_and_bounds_alone_last(tmp_path: Path) -> None:
    write_run(tmp_path / "a", dataset="mnist", accuracy=[1.0], names=["0", "1"], settings={"stream.order": [0]})
    write_run(tmp_path / "b", dataset="cifar10", bound="upper", accuracy=[1.0, 0.9])
    write_run(tmp_path / "c", dataset="cifar10", variant="small", accuracy=[1.0, 0.9])
    write_run(tmp_path / "d", dataset="mnist", accuracy=[1.0, 0.9])
    page = build(gather([tmp_path]), pngs=False)["index.html"].decode()
    titles = re.findall(r'<li><a href="#data-[^"]+">([^<]+)</a>', page)
    assert titles == ["MNIST", "MNIST, 1 of 2 classes", "CIFAR-10, small", "CIFAR-10"]


def test_title_and_heading_name_the_project_and_the_day_of_the_build(runs: Path, files: Files) -> None:
    page = files["index.html"].decode()
    assert "<title>Engram report, 2026-11-18</title>" in page
    assert "<h1>Engram report, 2026-11-18</h1>" in page
    assert "Made 2026-11-18 01:00:00 UTC" in page
    far_east = datetime(2026, 11, 18, 1, tzinfo=timezone(timedelta(hours=9)))
    page = build(gather([runs]), pngs=False, now=far_east)["index.html"].decode()
    assert "<title>Engram report, 2026-11-17</title>" in page


# ---------------------------------------------------------------- columns


def test_columns_without_a_figure_of_the_papers_are_left_out(tmp_path: Path) -> None:
    for name in ("mnist", "digits"):
        write_run(tmp_path / name / "w", dataset=name, accuracy=[0.9] * 10)
        stores = {"exemplars.budget": 1000}
        write_run(tmp_path / name / "k", dataset=name, accuracy=[0.9] * 10, strict=False, settings=stores)
        groups = group(gather([tmp_path / name]).runs)
        made = (views.table_1, views.table_2, views.table_3, views.table_4)
        tables = [table for view in made if (table := view(groups[0].data, groups))]
        assert len(tables) == 4
        for table in tables:
            blank = [
                column
                for i, column in enumerate(table.columns)
                if "paper" in column and all(row.cells[i].text == NOTHING for row in table.rows)
            ]
            assert blank == [], table.name
            assert all(len(row.cells) == len(table.columns) for row in table.rows)
        quoted = ["paper's" in " ".join(table.columns) for table in tables]
        assert quoted == ([True, False, True, True] if name == "mnist" else [False] * 4)


def test_half_a_stream_is_not_set_against_the_papers_whole(tmp_path: Path) -> None:
    write_run(tmp_path, accuracy=[1.0, 0.9], names=[str(c) for c in range(10)])
    groups = group(gather([tmp_path]).runs)
    table = views.table_3(groups[0].data, groups)
    assert table is not None
    assert table.columns == ("method", "seeds", "at first", "at last", "A_2 %")


def test_a_run_is_set_against_the_papers_run_that_stores_as_much(tmp_path: Path) -> None:
    for number, budget in enumerate((1000, 2000, 3000)):
        settings = {"exemplars.budget": budget}
        write_run(tmp_path / str(number), dataset="imagenet50", strict=False, accuracy=[0.2] * 50, settings=settings)
    assert [views.paper_figure(g, 50) for g in group(gather([tmp_path]).runs)] == [18.84, 22.56, None]


# ---------------------------------------------------------------- labels


MAIN = {
    "stream.classes_per_task": "1", "classifier.epochs": "5", "gan.epochs": "40", "gan.beta1": "0",
    "generator.architecture": "dcgan", "masks.lambda_ru": "0.5", "exemplars.ratio": "0", "exemplars.budget": "0",
}  # fmt: skip


def test_a_label_says_what_differs_from_the_main_configuration() -> None:
    others = [
        {"gan.beta1": "0.5"},
        {"gan.epochs": "10", "classifier.epochs": "2"},
        {"exemplars.ratio": "0.5"},
        {"exemplars.budget": "1000", "masks.lambda_ru": "1"},
    ]
    found = labels([MAIN, *({**MAIN, **other} for other in others)], 0)
    assert [label.short for label in found] == [
        "",
        "momentum 0.5",
        "classifier epochs 2, GAN epochs 10",
        "r=0.5",
        "K=1000, lambda_ru 1",
    ]
    assert [label.full for label in found] == [label.short for label in found]


def test_where_all_store_images_each_label_says_how_many() -> None:
    found = labels([{"exemplars.budget": "1000"}, {"exemplars.budget": "2000"}, {"exemplars.budget": "0"}], 0)
    assert [label.short for label in found] == ["K=1000", "K=2000", "no stored images"]


def test_a_long_label_is_cut_and_no_two_are_alike() -> None:
    many = {**MAIN, "stream.classes_per_task": "2", "generator.architecture": "residual", "classifier.epochs": "2"}
    found = labels([{**many, "gan.epochs": "10"}, MAIN, {**many, "gan.epochs": "20"}, {**many, "gan.beta1": "1"}], 1)
    shared = "classes per task 2, residual generator, classifier epochs 2"
    assert [label.full for label in found] == [
        f"{shared}, GAN epochs 10",
        "",
        f"{shared}, GAN epochs 20",
        f"{shared}, momentum 1",
    ]
    assert len({label.short for label in found}) == 4
    (alone, _) = labels([{**many, "gan.epochs": "10"}, MAIN], 1)
    assert alone.short == "classes per task 2, residual generator, …"
    assert len(alone.full) > LONGEST


def test_runs_without_settings_are_told_apart() -> None:
    assert [label.short for label in labels([None, MAIN, None], 1)] == [
        "settings not known",
        "",
        "settings not known (2)",
    ]


def test_a_cut_label_stands_in_full_below_the_table_and_under_the_pointer(tmp_path: Path) -> None:
    write_run(tmp_path, accuracy=[1.0, 0.9])
    (g,) = group(gather([tmp_path]).runs)
    cut = replace(g, tag="width 8, epochs 2, …", settings="width 8, epochs 2, momentum 0.5")
    table = views.table_1(g.data, [g, cut])
    assert [row.cells[0].title for row in table.rows] == ["", "dgmw: width 8, epochs 2, momentum 0.5"]
    assert len(table.footnotes) == 1
    for text in (markdown(table), latex(table)):
        assert text.count("momentum 0.5") == 1
    assert "…" not in latex(table)
    assert not views.table_1(g.data, [replace(g, tag="width 8", settings="width 8")]).footnotes


# ---------------------------------------------------------------- images of any size


@pytest.mark.parametrize(("side", "kind"), [(32, "png"), (64, "jpeg")])
def test_samples_are_shown_at_any_size(side: int, kind: str, tmp_path: Path) -> None:
    """Ten of each of ten classes; noise is the heaviest picture there is."""
    run = write_run(tmp_path, accuracy=[1.0, 0.9])
    Image.merge("RGB", [Image.effect_noise((10 * side, 10 * side), 90)] * 3).save(run / "samples.png")
    files = build(gather([run]), pngs=False)
    assert f'src="data:image/{kind};base64,' in files["index.html"].decode()
    assert files["figures/figure5-mnist-dgmw.png"] == (run / "samples.png").read_bytes()


def test_a_broken_picture_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path, accuracy=[1.0, 0.9])
    for contents in (b"GIF89a", b"\x89PNG" + bytes(10**6)):
        (run / "samples.png").write_bytes(contents)
        assert 'src="data:' not in build(gather([run]), pngs=False)["index.html"].decode()


def test_bytes_are_counted_in_images_of_the_runs_own_size(tmp_path: Path) -> None:
    for name, shape in (("small", [1, 32, 32]), ("large", [3, 64, 64])):
        run = write_run(tmp_path / name, accuracy=[1.0, 0.9])
        first, *rest = (run / "records.jsonl").read_text().splitlines(keepends=True)
        (run / "records.jsonl").write_text(json.dumps({**json.loads(first), "shape": shape}) + "\n" + "".join(rest))
        groups = group(gather([run]).runs)
        table = views.ledger(groups[0].data, groups)
        assert table is not None
        channels, height, width = shape
        assert table.rows[0].cells[2].number == pytest.approx(2_024_000 / (channels * height * width))
        assert f"{height} × {width}" in table.note
