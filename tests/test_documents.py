"""The documents say what is true: every figure in the results tables is in the records, and the README's code runs."""

from __future__ import annotations

import json
import re
import runpy
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ["README.md", "REPRODUCIBILITY.md"]


def accuracies(run: Path) -> dict[int, float]:
    """Classes seen -> A_t in per cent."""
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    return {len(line["classes"]): 100 * line["accuracy"] for line in lines if line["kind"] == "evaluation"}


def runs_of(name: str) -> list[str]:
    """`a-seed{0,1}` -> a-seed0, a-seed1"""
    stem, brace, rest = name.partition("{")
    return [stem + choice for choice in rest.removesuffix("}").split(",")] if brace else [name]


def rows(document: str) -> list[tuple[list[str], str]]:
    """(run folders, row) of every table row that names some."""
    text = (ROOT / document).read_text()
    found = re.findall(r"^(\|.*`(results/[\w/.-]+(?:\{[\d,]+\})?)`.*\|)$", text, re.MULTILINE)
    return [(runs_of(name), row) for row, name in found]


def test_every_figure_stands_on_a_record() -> None:
    """A_t of the run, or its mean over the runs and, behind a ±, their standard deviation."""
    checked = 0
    for document in DOCUMENTS:
        for runs, row in rows(document):
            each = [accuracies(ROOT / run) for run in runs]
            for classes, figure, spread in re.findall(r"A_(\d+) = (\d+\.\d+)(?: ± (\d+\.\d+))?", row):
                values = [accuracy[int(classes)] for accuracy in each]
                assert f"{statistics.fmean(values):.2f}" == figure, f"{document}: {row}"
                assert bool(spread) == (len(values) > 1), f"{document}: {row}"
                assert not spread or f"{statistics.stdev(values):.2f}" == spread, f"{document}: {row}"
                checked += 1
    assert checked >= 12


def test_every_committed_run_is_named_in_the_table() -> None:
    named = {run for runs, _ in rows("REPRODUCIBILITY.md") for run in runs}
    assert {str(p.parent.relative_to(ROOT)) for p in (ROOT / "results").rglob("records.jsonl")} == named


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_the_examples_run(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(script))
    out = capsys.readouterr().out
    assert out.count("A = ") == 5
    assert "changed: []" in out


def test_the_readmes_code_is_an_example_that_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code in (ROOT / "examples" / "dgm.py").read_text()


@pytest.mark.parametrize("document", [p.name for p in ROOT.glob("*.md")])
def test_links_between_documents_lead_somewhere(document: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / document).read_text()):
        assert (ROOT / target).exists(), target
