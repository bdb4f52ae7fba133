"""The rules of the source: imports point to the left, the public names are pinned, every package says what it is."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import engram

SOURCE = Path(engram.__file__).parent

# Data flows to the right; a package (or a file beside the packages) imports from those to its left only.
PACKAGES = [
    "errors",
    "opening",
    "values",
    "config",
    "presets",
    "seeding",
    "distributed",
    "kinds",
    "masking",
    "ops",
    "context",
    "data",
    "nets",
    "gan",
    "memory",
    "methods",
    "testing",
    "evaluation",
    "experiment",
    "model",
    "sklearn",
    "report",
    "cli",
]
FOLDERS = [
    "presets", "masking", "ops", "data", "nets", "gan", "memory", "methods", "evaluation", "experiment", "model",
    "report", "cli",
]  # fmt: skip
WITHOUT_TORCH = [
    "errors.py", "opening.py", "values.py", "config.py", "presets/__init__.py", "gan/settings.py",
    "methods/dgm/settings.py",
    "__init__.py", "evaluation/metrics.py", "evaluation/paper.py", "experiment/jobs.py", "experiment/summary.py",
    "experiment/records.py", "experiment/files.py",
    *(str(path.relative_to(SOURCE)) for folder in ("report", "cli") for path in (SOURCE / folder).glob("*.py")),
]  # fmt: skip


def imports(path: Path, *, at_top: bool = False) -> set[str]:
    """Modules that a file imports; `at_top`: only those that come with importing the file."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if at_top else list(ast.walk(tree))
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def package(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "engram" and len(parts) > 1 and parts[1] in PACKAGES else None


def test_imports_point_to_the_left() -> None:
    checked = 0
    for path in SOURCE.rglob("*.py"):
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if own not in PACKAGES:
            assert own in ("__init__", "__main__"), f"{own} has no place: add it to PACKAGES and to ARCHITECTURE.md"
            continue
        for name in imports(path):
            if other := package(name):
                assert PACKAGES.index(other) <= PACKAGES.index(own), (
                    f"{path.relative_to(SOURCE)} imports {name}, which lies to its right"
                )
                checked += 1
    assert checked > 20


def test_every_package_has_its_place() -> None:
    found = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert found - {"__init__", "__main__", "__pycache__"} == set(PACKAGES)
    assert {name for name in PACKAGES if (SOURCE / name).is_dir()} == set(FOLDERS)


def test_the_document_has_the_same_order() -> None:
    document = Path(__file__).parents[1] / "ARCHITECTURE.md"
    table = document.read_text(encoding="utf-8").split("|---|---|\n")[1].split("\n\n")[0]
    firsts = [line.split("|")[1] for line in table.splitlines()]
    assert [word.rstrip("/") for cell in firsts for word in cell.split("`")[1::2]] == PACKAGES
    assert {word.rstrip("/") for cell in firsts for word in cell.split("`")[1::2] if word.endswith("/")} == set(FOLDERS)


@pytest.mark.parametrize("name", FOLDERS)
def test_every_package_says_what_is_in_it(name: str) -> None:
    readme = SOURCE / name / "README.md"
    lines = readme.read_text(encoding="utf-8").splitlines()
    assert 5 <= len(lines) <= 20
    assert max(map(len, lines)) <= 120
    text = "\n".join(lines)
    assert name in lines[0]
    held = {path.name for path in (SOURCE / name).iterdir() if path.suffix == ".py"} - {"__init__.py"}
    assert not (missing := {file for file in held if f"`{file}`" not in text}), f"{readme} leaves out {missing}"
    named = {word for word in text.split("`") if word.endswith(".py") and "/" not in word and " " not in word}
    assert named - {"__init__.py"} <= held, "and it names no file that is not there"


def test_what_needs_no_torch_does_not_import_it() -> None:
    for name in WITHOUT_TORCH:
        assert not any(n.split(".")[0] == "torch" for n in imports(SOURCE / name, at_top=True)), name


def test_the_library_needs_no_test_packages() -> None:
    """`engram.testing` is for users: it must not ask for more than the library does."""
    for path in SOURCE.rglob("*.py"):
        assert not {"pytest", "hypothesis"} & {name.split(".")[0] for name in imports(path)}, path


def test_importing_engram_is_light() -> None:
    code = "import engram, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


PUBLIC = [
    "Backbone", "ClassStream", "Config", "ConfigError", "Context", "DGM", "DataError", "Dataset", "DivergedError",
    "EngramError", "Evaluation", "InUseError", "Learner", "LostError", "METHODS", "Method", "Model", "Observer",
    "Retains", "RunError", "Samples", "StrictnessError", "Task", "build", "configure", "evaluate",
    "load_dataset", "run",
]  # fmt: skip


def test_public_names_are_pinned_and_there() -> None:
    assert sorted(engram.__all__) == PUBLIC
    for name in engram.__all__:
        assert getattr(engram, name) is not None
    with pytest.raises(AttributeError, match="'engram' has no attribute 'import_module'"):
        engram.import_module  # noqa: B018


def test_a_person_who_looks_sees_the_public_names_and_nothing_else() -> None:
    assert dir(engram) == sorted([*PUBLIC, "__version__"])
    code = f"import engram; names = dir(engram); assert names == {sorted([*PUBLIC, '__version__'])!r}, names"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # before anything was used, too


def test_what_mypy_is_told_is_what_is_imported() -> None:
    """The lazy names and those for type checkers stand in two lists: they must say the same."""
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    told = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == engram._HOME_OF
    assert sorted(told) == sorted(engram.__all__)


def test_loading_never_runs_code() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        for word in ("import pickle", "torch.load(", "allow_pickle=True", "yaml.load("):
            assert word not in text, f"{path.name}: {word}"
