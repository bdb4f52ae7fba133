"""The documents say what is true: every figure in the results tables is in the records, and the README's code runs."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ["README.md", "REPRODUCIBILITY.md"]


def evaluations(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "evaluation"]


def rows(document: str) -> list[tuple[str, str]]:
    """(run folder, row) of every table row that names one."""
    text = (ROOT / document).read_text()
    return [(found[1], found[0]) for found in re.findall(r"^(\|.*`(results/[\w/.-]+)`.*\|)$", text, re.MULTILINE)]


def test_every_figure_stands_on_a_record() -> None:
    checked = 0
    for document in DOCUMENTS:
        for run, row in rows(document):
            accuracy = {len(r["classes"]): r["accuracy"] for r in evaluations(ROOT / run)}
            for classes, figure in re.findall(r"A_(\d+) = (\d+\.\d+)", row):
                assert f"{100 * accuracy[int(classes)]:.2f}" == figure, f"{document}: {row}"
                checked += 1
    assert checked >= 12


def test_every_committed_run_is_named_in_the_table() -> None:
    named = {run for run, _ in rows("REPRODUCIBILITY.md")}
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
