"""The documents are true: their tables are what the records say, their links lead somewhere, their code runs."""

from __future__ import annotations

import json
import re
import runpy
from functools import partial
from pathlib import Path

import pytest

from engram.config import groups_of
from engram.errors import ConfigError
from engram.methods.registry import configure
from engram.report.document_rows import Place, differences
from engram.report.documents import END, names, stale, update
from engram.report.gather import Run, gather
from engram.report.groups import by_folder
from synthetic import write_run

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
INDEX, ARCHIVE = RESULTS / "README.md", RESULTS / "archive" / "README.md"
WRITTEN = [ROOT / "REPRODUCIBILITY.md", INDEX, ARCHIVE]
"""Documents with tables; the README's may be in the making."""
DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part in ("build", "runs") for part in path.relative_to(ROOT).parts)
)
LONGEST = 220
"""Characters of a line of prose that still read well beside a change."""


@pytest.fixture(scope="module")
def committed() -> list[Run]:
    return list(gather([RESULTS], archive=True, copies=True).runs)


def linked(document: Path) -> set[Path]:
    """What a document's links lead to, but for other sites."""
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", document.read_text())
    return {(document.parent / target).resolve() for target in targets}


@pytest.mark.parametrize("document", WRITTEN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_tables_are_what_the_records_say(document: Path) -> None:
    assert stale(document, RESULTS) == [], "run: engram report results --update " + str(document.relative_to(ROOT))


def test_the_readmes_tables_are_what_the_records_say() -> None:
    readme = ROOT / "README.md"
    assert names(readme) == ["readme"]
    assert stale(readme, RESULTS) == []


def test_reproducibility_has_every_kind_of_table() -> None:
    asked = set(names(ROOT / "REPRODUCIBILITY.md"))
    sets = {path.name for path in RESULTS.iterdir() if path.is_dir()} - {"archive"}
    assert {f"accuracy-{name}" for name in sets} | {"sizes", "retention", "machines"} <= asked


def test_every_committed_run_stands_in_a_document(committed: list[Run]) -> None:
    shown = {False: linked(ROOT / "REPRODUCIBILITY.md") & linked(INDEX), True: linked(ARCHIVE)}
    for run in committed:
        assert run.folder.parent.resolve() in shown[run.archived], run.name
    assert len(committed) == len(list(RESULTS.rglob("records.jsonl"))), "a run cannot be read"


def test_a_folder_of_results_holds_seeds_of_one_configuration(committed: list[Run]) -> None:
    """`results/[archive/]<data>/<method>/<label>/seed<N>`, and all seeds of a label belong together."""
    for run in committed:
        parts = [part for part in Path(run.name).parts if part != "archive"]
        assert parts == [run.head.dataset, run.head.method, run.label, f"seed{run.head.seed}"]
    for g in by_folder(committed):
        assert len({(run.head.digest, json.dumps(run.settings)) for run in g.runs}) == 1, g.runs[0].name


def test_a_label_tells_images_that_are_not_the_standard_ones(committed: list[Run]) -> None:
    """CIFAR-10's JPEG copy was once taken for the standard files, and the other way round."""
    marks = {"JPEG copy": "jpeg", "10,000 digits": "10000-digits"}
    for run in committed:
        for variant, mark in marks.items():
            assert (run.head.variant == variant) == run.label.startswith(mark), run.name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    assert [str(target) for target in linked(document) if not target.exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_prose_has_short_lines(document: Path) -> None:
    if RESULTS in document.parents or "archive" in document.stem:
        return
    lines = enumerate(document.read_text().splitlines(), start=1)
    assert [number for number, line in lines if len(line) > LONGEST and not line.startswith("|")] == []


def page(folder: Path, *tables: str) -> Path:
    path = folder / "page.md"
    path.write_text("# Title\n\n" + "".join(f"<!-- table: {name} -->\nold\n{END}\nprose\n" for name in tables))
    return path


def test_the_page_of_the_paper_names_code_and_settings_that_are_there() -> None:
    """`file.py: function, function`; `group.field=value` or `group.field` of DGM; presets by their flag."""
    text = (ROOT / "docs" / "paper.md").read_text()
    places = re.findall(r"`([a-z_/]+\.py)(?:: ([a-z_]+))?`", text)
    assert len(places) > 15
    for file, name in places:
        code = (ROOT / "src" / "engram" / file).read_text()
        assert not name or re.search(rf"def {name}\b", code), (file, name)
    settings = re.findall(r"`((?:masks|gan|generator|critic|replay|exemplars)\.[a-z_0-9]+)(?:=([^`]+))?`", text)
    assert len(settings) > 15
    for key, value in settings:
        if key != "masks.counts_of" and value != "random":
            config = configure(dataset="digits", settings={key: value} if value else {})
            group, _, field = key.partition(".")
            assert hasattr(groups_of(config)[group], field), key


def test_only_what_stands_between_the_lines_is_written(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for seed, end in enumerate([0.9, 0.8]):
        write_run(runs / "mnist" / "dgmw" / "default" / f"seed{seed}", seed=seed, accuracy=[1.0, end])
    write_run(runs / "archive" / "mnist" / "dgmw" / "first" / "seed0", accuracy=[1.0, 0.5])
    path = page(tmp_path, "index", "archive")
    before = path.read_text()
    assert stale(path, runs) == ["index", "archive"]
    assert path.read_text() == before, "looking changes nothing"
    assert update(path, runs) == ["index", "archive"]
    first, second = path.read_text().split(END)[:2]
    row = "| MNIST | `dgmw` | [default](runs/mnist/dgmw/default) | 0, 1 | A_2 = 85.00 ± 7.07 | yes | 120 |"
    assert row in first
    assert "first" not in first
    assert "A_2 = 50.00 |" in second
    outside = re.sub(rf"(-->\n).*?({END})", r"\1\2", path.read_text(), flags=re.DOTALL)
    assert outside == before.replace("old\n", "")
    assert stale(path, runs) == update(path, runs) == []
    write_run(runs / "mnist" / "dgmw" / "default" / "seed2", seed=2, accuracy=[1.0, 0.7])
    assert stale(path, runs) == ["index"]


def test_shares_are_of_joint_training_on_the_same_images(tmp_path: Path) -> None:
    for variant, end in [("standard", 0.8), ("JPEG copy", 0.5)]:
        made = partial(write_run, dataset="cifar10", variant=variant)
        label = {"JPEG copy": "jpeg"}.get(variant, "default")
        joint, ours = (tmp_path / "cifar10" / method / label / "seed0" for method in ("joint", "dgmw"))
        made(joint, method="joint", bound="upper", strict=False, accuracy=[1.0, end])
        made(ours, accuracy=[1.0, 0.4])
    path = page(tmp_path, "accuracy-cifar10")
    update(path, tmp_path)
    rows = {tuple(line.split(" | ")[:2]): line for line in path.read_text().splitlines() if line.startswith("| ")}
    assert "/ 0.500 |" in rows["| standard", "`dgmw`"]
    assert "/ 0.800 |" in rows["| JPEG copy", "`dgmw`"]


def test_what_differs_is_told_by_the_settings(tmp_path: Path) -> None:
    settings = {"generator.architecture": "dcgan", "masks.max_units_ratio": 2.5, "gan.rare_power": 0.0}
    write_run(tmp_path / "a", dataset="cifar10", variant="JPEG copy", settings=settings)
    (g,) = by_folder(gather([tmp_path]).runs)
    said = differences(g)
    assert "other images" in said
    assert "small networks" in said
    assert "bounded units" in said
    assert "oversampling" not in said
    assert Place(tmp_path, (g,)).link(g) == "[a](a)"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"replay.classifier": "generated", "masks.fraction": 0.2}, "our default"),
        ({"replay.classifier": "generated", "masks.fraction": 1.0}, "our default"),
        ({"replay.classifier": "critic", "masks.fraction": 1.0, "gan.epochs": 101}, "the paper's algorithm"),
        (
            {"replay.classifier": "critic", "masks.fraction": 1.0, "gan.epochs": 20},
            "the paper's algorithm, 20 of 101 epochs",
        ),
    ],
)
def test_a_row_says_whose_algorithm_it_is(settings: dict[str, object], said: str, tmp_path: Path) -> None:
    write_run(tmp_path / "a", settings={"gan.lambda_aux": 0.0, **settings})
    (g,) = by_folder(gather([tmp_path]).runs)
    assert differences(g)[0] == said
    assert ("no class term in the generator" in differences(g)) == said.startswith("the paper")


def test_controls_stand_beside_the_runs_that_they_control(tmp_path: Path) -> None:
    ends = {"learned": (0.97, 0.98), "shuffled": (0.96, 0.97), "random": (0.97, 0.98)}
    for choice, accuracies in ends.items():
        for seed, end in enumerate(accuracies):
            own = {"masks.choice": choice, "masks.fraction": 0.2, "masks.max_units_ratio": 2.0}
            own["masks.counts_of"] = f"run-{seed}" if choice == "random" else "none"
            write_run(
                tmp_path / "mnist" / "dgmw" / choice / f"seed{seed}",
                seed=seed,
                accuracy=(1.0, 0.99, end),
                settings=own,
                quality=True,
            )
    write_run(
        tmp_path / "mnist" / "dgmw" / "other" / "seed0",
        settings={"masks.choice": "learned", "masks.max_units_ratio": 0.0},
    )
    (tmp_path / "page.md").write_text(f"<!-- table: masks -->\n{END}\n")
    update(tmp_path / "page.md", tmp_path)
    head, _, *rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in (tmp_path / "page.md").read_text().splitlines()
        if line.startswith("|")
    ]
    told = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["masks"] for row in told] == ["learned", "shuffled", "random"], "the run without a control is left out"
    assert [row["against learned, points"] for row in told] == ["–", "-1.00 ± 0.00", "none (+0.00 ± 0.00)"]
    assert {row["units at most"] for row in told} == {"2 x"}
    assert {row["recall %"] for row in told} == {"60.0 ± 0.0"}
    # at the third task 8 new and 2 reused of 15 entries; 10 and 9 were reserved before
    assert {row["reused %, last task"] for row in told} == {"20.0 ± 0.0"}
    assert {row["by chance"] for row in told} == {f"{100 * 19 / 15:.1f} ± 0.0"}


def test_a_rung_is_compared_with_the_one_before_it(tmp_path: Path) -> None:
    ends = {"ladder-00-paper": (0.95, 0.951), "ladder-01-classifier": (0.97, 0.971), "without-classifier": (0.96, 0.96)}
    for label, accuracies in ends.items():
        for seed, end in enumerate(accuracies):
            own = {"masks.fraction": 1.0 if "paper" in label else 0.2, "gan.rare_power": float(label[0] == "w")}
            folder = tmp_path / "mnist" / "dgmw" / label / f"seed{seed}"
            write_run(folder, seed=seed, accuracy=(1.0, end), settings=own, seconds=60.0 + 10 * ("01" in label))
    (tmp_path / "page.md").write_text(f"<!-- table: ladder -->\n{END}\n")
    update(tmp_path / "page.md", tmp_path)
    rows = [
        [cell.strip() for cell in line.split("|")[3:-1]]
        for line in (tmp_path / "page.md").read_text().splitlines()
        if line.startswith("| MNIST")
    ]
    assert [row[1] for row in rows] == ["–", "+2.00 ± 0.00", "-1.05 ± 0.05"]
    assert [row[3] for row in rows] == ["–", "+20", "-20"], "two tasks of ten seconds more"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# nothing\n", "has no table"),
        ("<!-- table: indx -->\n<!-- end of table -->\n", "did you mean 'index'"),
        ("<!-- table: index -->\n", "without its other line"),
        ("<!-- table: index -->\n<!-- table: archive -->\n<!-- end of table -->\n", "without its other line"),
    ],
)
def test_a_mistake_in_a_document_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a")
    (tmp_path / "page.md").write_text(text)
    with pytest.raises(ConfigError, match=said):
        update(tmp_path / "page.md", tmp_path / "runs")
    assert (tmp_path / "page.md").read_text() == text


def test_the_example_of_the_method_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "dgm.py"))
    out = capsys.readouterr().out
    assert out.count("A = ") == 5
    assert "changed: []" in out


def test_every_example_is_run_by_a_test() -> None:
    tests = "".join((ROOT / "tests" / name).read_text() for name in ("test_documents.py", "test_examples.py"))
    assert [path.name for path in (ROOT / "examples").glob("*.py") if f'"{path.name}"' not in tests] == []


def test_the_readmes_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "readme.py").write_text(code)
    runpy.run_path("readme.py")
    assert capsys.readouterr().out.startswith("['")
    assert sorted(path.name for path in tmp_path.glob("digits*")) == [
        "digits.card.html", "digits.card.md", "digits.engram"
    ]  # fmt: skip
