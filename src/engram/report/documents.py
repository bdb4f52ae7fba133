"""Tables in Markdown files, written from the records: no figure in a document is typed by hand.

A table stands between two lines, and everything between them is written anew:

    <!-- table: accuracy-mnist -->
    | … |
    <!-- end of table -->

`update` writes the tables of a file, `stale` names those that are not current. No torch.
"""

from __future__ import annotations

import re
from pathlib import Path

from engram.errors import ConfigError, unknown
from engram.experiment.files import os_errors
from engram.report.document_rows import Place
from engram.report.document_tables import TABLES
from engram.report.gather import gather
from engram.report.groups import by_folder

BEGIN = re.compile(r"^<!-- table: (?P<name>[^\n]*?) -->$", re.MULTILINE)
END = "<!-- end of table -->"
BLOCK = re.compile(rf"(?P<head>{BEGIN.pattern}\n)(?P<body>.*?)^{re.escape(END)}$", re.MULTILINE | re.DOTALL)


def update(path: Path, runs: Path) -> list[str]:
    """Write the tables of a Markdown file from the runs below a folder; the names of those that have changed."""
    text, changed = _current(path, runs)
    if changed:
        with os_errors(path):
            path.write_text(text, encoding="utf-8")
    return changed


def stale(path: Path, runs: Path) -> list[str]:
    """The names of the tables in a Markdown file that are not what the records say."""
    return _current(path, runs)[1]


def names(path: Path) -> list[str]:
    """The tables that a Markdown file asks for, in their order."""
    return [match["name"] for match in BEGIN.finditer(_read(path))]


def _current(path: Path, runs: Path) -> tuple[str, list[str]]:
    """The file as it should be, and the names of the tables in which it is not."""
    text = _read(path)
    _check(path, text)
    place = Place(path.resolve().parent, tuple(by_folder(gather([runs], archive=True, copies=True).runs)))
    changed: list[str] = []

    def fresh(match: re.Match[str]) -> str:
        body = TABLES[match["name"]](place)
        if body != match["body"]:
            changed.append(match["name"])
        return f"{match['head']}{body}{END}"

    return BLOCK.sub(fresh, text), changed


def _read(path: Path) -> str:
    with os_errors(path):
        return path.read_text(encoding="utf-8")


def _check(path: Path, text: str) -> None:
    """Every table is known, and ends before the next one begins."""
    begun = [match["name"] for match in BEGIN.finditer(text)]
    if not begun:
        raise ConfigError(f"{path} has no table to update: put <!-- table: NAME --> and {END} around one")
    for name in begun:
        if name not in TABLES:
            raise unknown(f"table in {path}", name, TABLES)
    whole = [match for match in BLOCK.finditer(text) if not BEGIN.search(match["body"])]
    if len(whole) != len(begun) or text.count(END) != len(begun):
        raise ConfigError(f"{path}: a table begins or ends without its other line, {END}")
