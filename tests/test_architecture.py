"""The house rules: imports point to the left, and the public names are pinned."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import engram

SOURCE = Path(engram.__file__).parent

# Data flows to the right; a room imports from rooms to its left only.
ROOMS = [
    "errors",
    "config",
    "presets",
    "seeding",
    "parallel",
    "plastic",
    "data",
    "nets",
    "memory",
    "methods",
    "evaluation",
    "experiment",
    "report",
    "cli",
]
WITHOUT_TORCH = [
    "errors.py", "config.py", "presets.py", "cli/__init__.py", "cli/bench.py", "cli/report.py", "__init__.py",
    "evaluation/metrics.py", "evaluation/paper.py",
    *(str(path.relative_to(SOURCE)) for path in (SOURCE / "report").glob("*.py")),
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


def room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "engram" and len(parts) > 1 and parts[1] in ROOMS else None


def test_imports_point_to_the_left() -> None:
    checked = 0
    for path in SOURCE.rglob("*.py"):
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if own not in ROOMS:
            assert own in ("__init__", "__main__"), (
                f"{own} has no place in the house: add it to ROOMS and ARCHITECTURE.md"
            )
            continue
        for name in imports(path):
            if other := room(name):
                assert ROOMS.index(other) <= ROOMS.index(own), f"{path.name} imports {name}, which lies to its right"
                checked += 1
    assert checked > 20


def test_what_needs_no_torch_does_not_import_it() -> None:
    for name in WITHOUT_TORCH:
        assert not any(n.split(".")[0] == "torch" for n in imports(SOURCE / name, at_top=True)), name


def test_importing_engram_is_light() -> None:
    code = "import engram, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names_are_pinned_and_there() -> None:
    assert sorted(engram.__all__) == [
        "ClassStream", "Config", "ConfigError", "DGM", "DataError", "Dataset", "DivergedError", "EngramError",
        "Evaluation", "Learner", "METHODS", "Method", "Request", "RunError", "Silent", "StrictnessError",
        "Surroundings", "Task", "build", "configure", "evaluate", "load", "run",
    ]  # fmt: skip
    for name in engram.__all__:
        assert getattr(engram, name) is not None
    assert set(engram.__all__) <= set(dir(engram))


def test_loading_never_runs_code() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        for word in ("import pickle", "torch.load(", "allow_pickle=True", "yaml.load("):
            assert word not in text, f"{path.name}: {word}"
