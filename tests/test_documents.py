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
from engram.report.build import build
from engram.report.document_rows import Place, as_in_the_paper, differences
from engram.report.documents import END, names, stale, update
from engram.report.gather import Run, gather
from engram.report.groups import by_folder, folder_of, group
from engram.report.ladder import figure
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
    folders = {run.folder.resolve() for run in committed}  # one with two memories stands for two rows
    assert len(folders) == len(list(RESULTS.rglob("records.jsonl"))), "a run cannot be read"


def test_a_folder_of_results_holds_seeds_of_one_configuration(committed: list[Run]) -> None:
    """`results/[archive/]<data>/<method>/<label>/seed<N>`, and all seeds of a label belong together."""
    for run in committed:
        parts = [part for part in Path(run.name).parts if part != "archive"]
        method, _, _ = run.head.method.partition(" + ")  # a second memory is a setting
        assert parts == [folder_of(run.head.dataset), method, run.label, f"seed{run.head.seed}"]
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


PAPER = {
    "replay.classifier": "critic", "replay.keep_fraction": 1.0, "masks.fraction": 1.0, "masks.alpha": "units",
    "masks.growth": "paper", "masks.max_units_ratio": 0.0, "gan.rare_power": 0.0, "gan.beta1": 0.5,
    "gan.batch_size": 64, "gan.steps": 0, "gan.epochs": 20, "generator.ema_decay": 0.0, "critic.penalty_stride": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"replay.classifier": "generated", "masks.fraction": 0.2}, "our default"),
        ({"replay.classifier": "generated", "masks.fraction": 1.0}, "our default"),
        ({**PAPER, "gan.epochs": 101}, "the paper's algorithm"),
        (PAPER, "the paper's algorithm, 20 of 101 epochs"),
        ({**PAPER, "gan.steps": 50}, "the paper's algorithm, 20 rounds of 50 steps"),
        ({**PAPER, "gan.batch_size": 16}, "between the paper's algorithm and ours"),
        ({**PAPER, "masks.growth": "refill"}, "between the paper's algorithm and ours"),
    ],
)
def test_a_row_says_whose_algorithm_it_is(settings: dict[str, object], said: str, tmp_path: Path) -> None:
    write_run(tmp_path / "a", settings={"gan.lambda_aux": 0.0, **settings})
    (g,) = by_folder(gather([tmp_path]).runs)
    assert differences(g)[0] == said
    assert ("no class term in the generator" in differences(g)) == said.startswith("the paper")
    assert as_in_the_paper(g) == (said.startswith("the paper") and "rounds" not in said)


def test_a_rung_of_the_ladder_never_stands_for_the_paper_in_the_readme(tmp_path: Path) -> None:
    """Its rounds are 50 steps, the paper's are passes over all images; and more seeds are no merit of another run."""
    write_run(tmp_path / "mnist" / "dgmw" / "paper-20-epochs" / "seed0", accuracy=(1.0, 0.95), settings=PAPER)
    for label, own in {"ladder-00-paper": {"gan.steps": 50}, "ladder-01-batch": {"gan.batch_size": 16}}.items():
        for seed in range(3):
            folder = tmp_path / "mnist" / "dgmw" / label / f"seed{seed}"
            write_run(folder, seed=seed, accuracy=(1.0, 0.9), settings={**PAPER, **own})
    path = page(tmp_path, "readme")
    update(path, tmp_path)
    rows = [line for line in path.read_text().splitlines() if line.startswith("| MNIST")]
    assert len(rows) == 1
    assert "95.00" in rows[0]


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


MASK_LABELS = {"ladder-10-bound": "learned", "masks-shuffled": "shuffled", "masks-random": "random"}


def mask_run(folder: Path, label: str, choice: str, seed: int, end: float, **own: object) -> None:
    """`own`: of the group `masks`, and the method."""
    settings = {"masks.choice": choice, "masks.fraction": 0.2, "masks.max_units_ratio": 2.0, "gan.epochs": 20}
    settings |= {f"masks.{name}": value for name, value in own.items() if name != "method"}
    settings["masks.counts_of"] = f"run-{seed}" if choice == "random" else "none"
    method = str(own.get("method", "dgmw"))
    place = folder / "mnist" / method / label / f"seed{seed}"
    write_run(place, method=method, seed=seed, accuracy=(1.0, end), settings=settings, cpu=10.0)


def test_controls_of_both_variants_with_and_without_the_bound_have_families_of_their_own(tmp_path: Path) -> None:
    families = {("dgmw", 2.0): "", ("dgmw", 0.0): "-all", ("dgma", 2.0): "", ("dgma", 0.0): "-all"}
    for (method, bound), mark in families.items():
        for label, choice in MASK_LABELS.items():
            for seed in range(3 if choice == "learned" else 2):
                end = 0.98 - 0.02 * (choice == "shuffled") - 0.01 * (bound == 0) - 0.1 * (seed == 2)
                mask_run(tmp_path, label + mark, choice, seed, end, method=method, max_units_ratio=bound)
    # the learned run once more, one seed on another machine, as `steps-20x3` is; and another length, without controls
    mask_run(tmp_path, "steps-20x3", "learned", 0, 0.5)
    mask_run(tmp_path, "masks-in-half", "learned", 0, 0.9, fraction=0.5)
    rows = rows_of(tmp_path, "masks")
    assert [row["masks"] for row in rows] == [*MASK_LABELS.values()] * 4
    assert [(row["method"], row["units at most"]) for row in rows[::3]] == [
        ("`dgma`", "2 x"), ("`dgma`", "all"), ("`dgmw`", "2 x"), ("`dgmw`", "all")
    ]  # fmt: skip
    # seed 2 of the learned runs is ten points worse, and has no control: it does not count
    worths = ["–", "-2.00 ± 0.00", "none (+0.00 ± 0.00)"] * 4
    assert [row["against learned, points"] for row in rows] == worths
    assert {row["seeds"] for row in rows[::3]} == {"0, 1, 2"}
    assert all("steps-20x3" not in row["label"] for row in rows)


def test_masks_learned_in_more_of_the_rounds_stand_in_one_table(tmp_path: Path) -> None:
    for share, ends in {0.2: (0.97, 0.98, 0.96), 0.5: (0.975, 0.985), 1.0: (0.95, 0.95)}.items():
        for seed, end in enumerate(ends):
            mask_run(tmp_path, f"masks-in-{share:g}", "learned", seed, end, fraction=share)
    mask_run(tmp_path, "steps-20x3", "learned", 0, 0.5)
    mask_run(tmp_path, "masks-random", "random", 0, 0.9, fraction=1.0)
    mask_run(tmp_path, "all-units", "learned", 0, 0.9, max_units_ratio=0.0)
    rows = rows_of(tmp_path, "mask-rounds")
    assert [row["learned in, of the rounds"] for row in rows] == ["0.2", "0.5", "1"]
    assert [row["against the shortest, points"] for row in rows] == ["–", "+0.50 ± 0.00", "-2.50 ± 0.50"]
    assert [row["seeds"] for row in rows] == ["0, 1, 2", "0, 1", "0, 1"]
    assert {row["CPU seconds"] for row in rows} == {"20 ± 0"}


def rows_of(folder: Path, name: str) -> list[dict[str, str]]:
    """A table of all runs below a folder, a row a dictionary by column."""
    (folder / "page.md").write_text(f"<!-- table: {name} -->\n{END}\n")
    update(folder / "page.md", folder)
    lines = [line for line in (folder / "page.md").read_text().splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line[2:-2].split(" | ")] for line in lines] or [[], []]
    return [dict(zip(head, row, strict=True)) for row in rows]


def ladder_run(folder: Path, label: str, seed: int, end: float, cpu: float | None = None, method: str = "dgmw") -> None:
    own = {"gan.batch_size": sum(map(ord, label))}
    place = folder / "mnist" / method / label / f"seed{seed}"
    write_run(place, method=method, seed=seed, accuracy=(1.0, end), settings=own, cpu=cpu)


def test_a_rung_is_compared_with_the_one_before_it(tmp_path: Path) -> None:
    ends = {
        "ladder-00-paper": (0.95, 0.951), "ladder-01-classifier": (0.97, 0.971), "ladder-10-bound": (0.98, 0.983),
        "without-classifier": (0.96, 0.96), "growth-off": (0.90, 0.90), "paper-no-class-term": (0.95, 0.951),
    }  # fmt: skip
    for label, accuracies in ends.items():
        for seed, end in enumerate(accuracies):
            ladder_run(tmp_path, label, seed, end, cpu=60.0 + 10 * ("01" in label))
    rows = rows_of(tmp_path, "ladder")
    assert [row["kind"] for row in rows] == [
        "first rung", *["one change more"] * 2, "our default without one change", *["control"] * 2
    ]  # fmt: skip
    assert [row["against"] for row in rows] == [
        "–", "ladder-00-paper", "rung 09, no run yet", "ladder-10-bound", "ladder-10-bound", "ladder-00-paper"
    ]  # fmt: skip
    # 100 * mean of (0.96 - 0.98, 0.96 - 0.983) and so on; the error is half of what two differences are apart
    worths = ["–", "+2.00 ± 0.00", "–", "-2.15 ± 0.15", "-8.15 ± 0.15", "none (+0.00 ± 0.00)"]
    assert [row["worth, points"] for row in rows] == worths
    # two tasks of ten seconds more
    assert [row["CPU seconds"] for row in rows] == ["120 ± 0", "140 ± 0", *["120 ± 0"] * 4]
    assert [row["worth, CPU seconds"] for row in rows][:3] == ["–", "+20 ± 0", "–"]


def test_rungs_are_compared_over_the_seeds_that_both_have(tmp_path: Path) -> None:
    """Seed 2 is far better in all rungs, and seed 0 alone is there twice: its difference is one point, not four."""
    ladder_run(tmp_path, "ladder-00-paper", 0, 0.90, cpu=100.0)
    for seed, end in {0: 0.91, 1: 0.93, 2: 0.98}.items():
        ladder_run(tmp_path, "ladder-01-batch", seed, end, cpu=(80.0, None, 20.0)[seed])
    for seed, end in {1: 0.95, 2: 0.99}.items():
        ladder_run(tmp_path, "ladder-02-networks", seed, end)
    ladder_run(tmp_path, "ladder-03-classifier", 0, 0.99)
    write_run(tmp_path / "mnist" / "dgmw" / "ladder-04-doubt" / "seed0", tasks=5, accuracy=(1.0, 0.99))
    ladder_run(tmp_path, "ladder-00-paper", 0, 0.5, method="dgma")
    other, *rows = rows_of(tmp_path, "ladder")
    assert (other["method"], other["worth, points"]) == ("`dgma`", "–"), "a ladder of its own"
    assert [row["worth, points"] for row in rows] == ["–", "+1.00 (one seed)", "+1.50 ± 0.50", "–"]
    assert [row["seeds"] for row in rows] == ["0", "0, 1, 2; 1 compared", "1, 2", "0; none in common"]
    assert [row["worth, CPU seconds"] for row in rows] == ["–", "-40 (one seed)", "–", "–"]


def test_the_figure_of_the_ladder_shows_what_its_table_says(tmp_path: Path) -> None:
    for seed in (0, 1):
        for number, (name, end) in enumerate({"paper": 0.95, "batch": 0.96, "networks": 0.955 + seed / 100}.items()):
            ladder_run(tmp_path, f"ladder-{number:02d}-{name}", seed, end, cpu=50.0 - 10 * number)
    ladder_run(tmp_path, "growth-off", 0, 0.5)
    gathered = gather([tmp_path])
    found = group(gathered.runs)
    made = figure(found[0].data, found)
    assert made is not None
    reached, points, seconds = (panel["data"]["values"] for panel in made.spec["hconcat"])
    assert [row["name"] for row in reached] == ["00 paper", "01 batch", "02 networks", "growth-off"]
    assert [row["value"] for row in points] == pytest.approx([1.0, 0.0])
    assert (points[1]["low"], points[1]["high"]) == pytest.approx((-1.0, 1.0))
    assert [row["value"] for row in seconds] == pytest.approx([-20.0, -20.0])
    assert "02 networks: none (+0.00 ± 0.50) points" in made.alt
    assert b"<svg" in build(gathered, pngs=False)["figures/ladder-mnist.svg"]
    assert figure(found[0].data, found[:1]) is None, "one rung is no ladder"


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
