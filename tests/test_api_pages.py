"""Every public name says what it is and shows how it is used, and pages can be made of that."""

from __future__ import annotations

import ast
import doctest
import html
import importlib
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import engram

ROOT = Path(__file__).resolve().parent.parent
FOR_THE_PACKAGE = {"changed", "new_learner", "ready", "require_between_tasks", "require_whole", "whole_learner"}
"""Of `Model`: what other modules of Engram ask it, and nobody else."""
NOT_RUN = ["engram.Model.push_to_hub"]
"""Needs a network and an account: shown, not run."""
METHODS_OF_MODEL = [name for name in vars(engram.Model) if not name.startswith("_") and name not in FOR_THE_PACKAGE]
NAMES = [
    *(f"engram.{name}" for name in engram.__all__),
    *(f"engram.Model.{name}" for name in METHODS_OF_MODEL),
    "engram.sklearn.EngramClassifier",
    "engram.testing.check_learner",
]


def variable_docstring(module: str, name: str) -> str:
    """The text below an assignment, which no object carries."""
    body = ast.parse(Path(str(importlib.import_module(module).__file__)).read_text()).body
    for node, after in itertools.pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            assert isinstance(after, ast.Expr)
            assert isinstance(after.value, ast.Constant)
            return str(after.value.value)
    raise AssertionError(f"{module} assigns no {name}")


def docstring(name: str) -> str:
    if name == "engram.METHODS":
        return variable_docstring("engram.methods.registry", "METHODS")
    place, _, rest = name.partition(".")
    if rest.split(".")[0] in ("sklearn", "testing"):
        place, rest = f"{place}.{rest.split('.')[0]}", rest.partition(".")[2]
        if place == "engram.sklearn":
            pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    found = importlib.import_module(place)
    for word in rest.split("."):
        found = getattr(found, word)
    return found.__doc__ or ""


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_RUN])
def test_every_public_name_has_a_docstring_with_an_example(name: str) -> None:
    """That the examples run is seen by pytest's --doctest-modules; here, that they stand alone."""
    text = docstring(name)
    examples = doctest.DocTestParser().get_examples(text)
    assert examples, f"{name} shows no example"
    assert not text.lstrip().startswith(">>>"), f"{name} does not say what it is"
    shown = "".join(example.source for example in examples)
    assert "import" in shown, f"the example of {name} cannot be run as it stands"
    assert name.split(".")[-1].lower() in shown.lower(), f"the example of {name} does not use it"


@pytest.mark.parametrize("name", NOT_RUN)
def test_what_cannot_be_run_is_shown(name: str) -> None:
    text = docstring(name)
    assert "::\n\n" in text
    assert f".{name.split('.')[-1]}(" in text.partition("::")[2]


def test_what_is_for_the_package_is_there() -> None:
    assert vars(engram.Model).keys() >= FOR_THE_PACKAGE
    assert {"create", "learn", "relearn", "classes", "push_to_hub"} <= set(METHODS_OF_MODEL)


def test_the_example_of_a_variable_runs() -> None:
    """doctest does not see the text below an assignment."""
    test = doctest.DocTestParser().get_doctest(docstring("engram.METHODS"), {}, "METHODS", None, None)
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0


def test_the_pages_are_made_without_a_warning_and_hold_every_name(tmp_path: Path) -> None:
    pytest.importorskip("pdoc", reason="pdoc is not installed")
    command = [sys.executable, "-W", "error", str(ROOT / "docs" / "api.py"), str(tmp_path)]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **paths})
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    written = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*.*")}
    assert set(written) == {"index.html", "search.js", "engram.html", "engram/sklearn.html", "engram/testing.html"}
    for name in NAMES:
        page = f"engram/{name.split('.')[1]}.html" if name.split(".")[1] in ("sklearn", "testing") else "engram.html"
        anchor = re.escape(name.partition(".")[2].removeprefix("sklearn.").removeprefix("testing."))
        own = re.split(f'id="{anchor}"', written[page])
        assert len(own) == 2, f"{page} lacks {name}"
        shown = doctest.DocTestParser().get_examples(docstring(name))
        first = shown[0].source.splitlines()[0] if name not in NOT_RUN else f".{name.split('.')[-1]}("
        assert first in html.unescape(re.sub(r"<[^>]+>", "", own[1])), f"{page} lacks the example of {name}"
    assert not [name for name, text in written.items() if str(ROOT) in text or "object at 0x" in text]
