"""The tutorial: every block of docs/month-by-month.md runs as it stands, in an empty folder, one after the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from engram.model.model import Model

PAGE = Path(__file__).resolve().parent.parent / "docs" / "month-by-month.md"


def blocks() -> list[tuple[str, str]]:
    """(language, text) of every block, in order."""
    return re.findall(r"^```(sh|python)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(os.name != "posix", reason="its commands are for a POSIX shell")
def test_three_months_run_as_they_stand(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    found = blocks()
    assert [language for language, _ in found].count("sh") >= 5
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    for language, text in found:
        words = ["sh", "-e", "-c", text] if language == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    assert not (tmp_path / "photos").exists()
    assert [file.name for file in tmp_path.glob("*.engram")] == ["products-v3.engram"]
    model = Model.open(tmp_path / "products-v3.engram")
    assert model.classes == ("one", "zero", "four", "three", "five")
    assert not [file.name for file in tmp_path.iterdir() if file.name.endswith((".learning", ".tmp"))]
    assert "two" in (tmp_path / "card.html").read_text(encoding="utf-8")
