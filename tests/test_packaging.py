"""What pip, make and the source archive are told is true. Reads files only: no network, no build."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "engram"
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = PYPROJECT["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
MAKEFILE = (ROOT / "Makefile").read_text()


def normal(name: str) -> str:
    """As pip compares names.

    >>> normal("MarkupSafe"), normal("mypy_extensions")
    ('markupsafe', 'mypy-extensions')
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    """
    >>> name_of("numpy>=1.26"), name_of("engram-continual[ray]")
    ('numpy', 'engram-continual')
    """
    return normal(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])


def release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def requirements() -> list[str]:
    """All of them, of every extra; those on the project itself left out."""
    every = [*PROJECT["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]
    return [one for one in every if name_of(one) != PROJECT["name"]]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {normal(name): version for name, version in pairs}


def texts() -> Iterator[tuple[str, str]]:
    """(path, text) of all that may tell somebody what to install."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.md")]:
        yield str(path.relative_to(ROOT)), path.read_text()


def test_the_name_is_ours_and_the_version_is_one() -> None:
    from engram import __version__

    assert PROJECT["name"] == "engram-continual"  # `engram` on PyPI is somebody else's
    assert PROJECT["scripts"] == {"engram": "engram.cli:main"}
    assert PROJECT["version"] == __version__


def test_the_licence_is_an_expression_and_its_text_is_there() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert not [one for one in PROJECT["classifiers"] if one.startswith("License ::")]  # setuptools refuses both
    assert all((ROOT / name).is_file() for name in [*PROJECT["license-files"], PROJECT["readme"]])


def test_what_a_message_tells_to_install_exists() -> None:
    """`pip install 'engram[ray]'` would fetch a stranger's package."""
    wrong = [
        f"{path}: {name}[{extras}]"
        for path, text in texts()
        for name, extras in re.findall(r"(?<![\w.-])(engram[\w-]*|\.)\[([a-z]+(?:,[a-z]+)*)\]", text)
        if name not in (PROJECT["name"], ".") or not set(extras.split(",")) <= EXTRAS.keys()
    ]
    assert not wrong


def test_the_helper_names_this_distribution_and_its_extras() -> None:
    from engram import errors

    assert PROJECT["name"] == getattr(errors, "DISTRIBUTION", None)
    called = {
        extra
        for path in PACKAGE.rglob("*.py")
        if path.name != "errors.py"
        for extra in re.findall(r"\b(?:missing_extra|install_words)\((?:[^()]*, )?[\"'](\w+)[\"']\)", path.read_text())
    }
    assert called
    assert called <= EXTRAS.keys()


def test_dev_holds_every_other_extra() -> None:
    """So that no test is skipped for want of a package."""
    own = next(one for one in EXTRAS["dev"] if name_of(one) == PROJECT["name"])
    assert set(own[own.index("[") + 1 : -1].split(",")) == EXTRAS.keys() - {"dev"}


def test_every_requirement_is_pinned_within_its_range() -> None:
    pinned = pins()
    for requirement in requirements():
        lowest = re.fullmatch(r"[\w.-]+>=([\d.]+)", requirement)
        assert lowest, f"{requirement}: a name and its lowest version"
        assert name_of(requirement) in pinned, requirement
        assert release(pinned[name_of(requirement)]) >= release(lowest[1]), requirement


def test_every_file_in_a_package_is_shipped() -> None:
    """And every pattern matches some, but for those of files that may come."""
    patterns: dict[str, list[str]] = PYPROJECT["tool"]["setuptools"]["package-data"]
    shipped = {path for pattern in patterns["engram"] for path in PACKAGE.glob(pattern)}
    shipped |= {path for pattern in patterns["*"] for path in PACKAGE.rglob(pattern)}
    there = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert sorted(path for path in there - shipped if path.suffix != ".py") == []
    for pattern in ("py.typed", "data/*.npz", "report/assets/*"):
        assert pattern in patterns["engram"]
        assert list(PACKAGE.glob(pattern)), pattern


def test_every_folder_with_code_is_a_package() -> None:
    """A type checker does not find a folder without `__init__.py` in the wheel."""
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert sorted(folder for folder in folders if not (folder / "__init__.py").exists()) == []


def test_the_source_archive_holds_what_the_tests_need() -> None:
    lines = [line.split() for line in (ROOT / "MANIFEST.in").read_text().splitlines() if not line.startswith("#")]
    files = {name for word, *names in lines if word == "include" for name in names}
    folders = {name for word, *names in lines if word == "graft" for name in names}
    assert {"Makefile", "constraints.txt"} <= files
    assert {"benchmarks", "docs", "examples", "results", "tests"} <= folders
    assert {path.name for path in ROOT.glob("*.md")} - {"README.md"} <= files
    assert all((ROOT / name).is_file() for name in files)
    assert all((ROOT / name).is_dir() for name in folders)


def test_make_knows_its_targets() -> None:
    phony = set(re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)[1].split())  # type: ignore[index]
    rules = set(re.findall(r"^([a-z][\w-]*):(?!=)", MAKEFILE, re.MULTILINE))
    assert phony == rules
    assert set(re.findall(r"^# make ([a-z][\w-]*)", MAKEFILE, re.MULTILINE)) <= rules


def test_make_test_runs_all_checks() -> None:
    for words in ("ruff check", "ruff format --check", "mypy", "pytest --numprocesses auto"):
        assert f"$(BIN)/{words}" in MAKEFILE


def test_no_machine_is_named() -> None:
    """PyTorch's own host is public; any other registry is somebody's."""
    for name in ("Makefile", "constraints.txt", "pyproject.toml", "MANIFEST.in", ".ci/run"):
        hosts = set(re.findall(r"https?://([^/\s]+)", (ROOT / name).read_text()))
        assert hosts <= {"download.pytorch.org"}, name
