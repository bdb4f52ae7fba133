"""A table as a value, and as Markdown, CSV and LaTeX. Users' texts are escaped in each; the page does so itself."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain

from engram.report.groups import Mean

NOTHING = "–"


@dataclass(frozen=True)
class Cell:
    text: str
    number: float | None = None
    """What it is sorted by, and stands in the CSV file."""
    std: float | None = None
    strong: bool = False
    title: str = ""
    """More than there is space for; the page shows it under the pointer."""
    more: tuple[tuple[str, float], ...] = ()
    """Other numbers that the text tells, by name: columns of their own in the CSV file."""

    @property
    def beside(self) -> dict[str, float]:
        """All numbers but the first."""
        return ({} if self.std is None else {"std": self.std}) | dict(self.more)


@dataclass(frozen=True)
class Row:
    cells: tuple[Cell, ...]
    section: str = ""
    """Rows of one section stand together, under its name."""
    method: str = ""
    """By which the page hides rows."""


@dataclass(frozen=True)
class Table:
    name: str
    """Of its files."""
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    footnotes: tuple[str, ...] = ()
    """Below the note, a line each."""

    @property
    def sections(self) -> list[tuple[str, list[Row]]]:
        names = dict.fromkeys(row.section for row in self.rows)
        return [(name, [row for row in self.rows if row.section == name]) for name in names]

    def numeric(self, column: int) -> bool:
        """Whether all that stands in the column are numbers: set flush right."""
        cells = [row.cells[column] for row in self.rows]
        return any(c.number is not None for c in cells) and all(
            c.number is not None or c.text == NOTHING for c in cells
        )


def without_blank(table: Table, optional: Callable[[str], bool]) -> Table:
    """The table without those optional columns in which no row has anything."""
    kept = [
        i
        for i, column in enumerate(table.columns)
        if not optional(column) or any(row.cells[i].text != NOTHING for row in table.rows)
    ]
    rows = tuple(replace(row, cells=tuple(row.cells[i] for i in kept)) for row in table.rows)
    return replace(table, columns=tuple(table.columns[i] for i in kept), rows=rows)


def words(text: str, title: str = "") -> Cell:
    return Cell(text or NOTHING, title=title)


def number(value: float | None, digits: int = 2, *, strong: bool = False, unit: str = "") -> Cell:
    return Cell(NOTHING) if value is None else Cell(f"{value:,.{digits}f}{unit}", value, None, strong)


def mean(value: Mean | None, digits: int = 2, *, scale: float = 1.0, strong: bool = False) -> Cell:
    """`97.73 ± 0.12`; without a deviation for one seed."""
    if value is None:
        return Cell(NOTHING)
    spread = "" if value.std is None else f" ± {scale * value.std:.{digits}f}"
    std = None if value.std is None else scale * value.std
    return Cell(f"{scale * value.value:.{digits}f}{spread}", scale * value.value, std, strong)


def markdown(table: Table) -> str:
    """A GitHub table; sections become a column of their own, since Markdown has no rows across."""
    sectioned = any(row.section for row in table.rows)
    columns = ["", *table.columns] if sectioned else list(table.columns)
    right = [False, *map(table.numeric, range(len(table.columns)))][not sectioned :]
    lines = [f"**{_markdown(table.title)}**", "", _line([_markdown(column) for column in columns])]
    lines.append("|" + "|".join("---:" if flush else "---" for flush in right) + "|")
    for row in table.rows:
        cells = [f"**{_markdown(c.text)}**" if c.strong else _markdown(c.text) for c in row.cells]
        lines.append(_line([_markdown(row.section), *cells] if sectioned else cells))
    if table.note:
        lines += ["", _markdown(table.note)]
    if table.footnotes:
        lines += ["", *(f"- {_markdown(text)}" for text in table.footnotes)]
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown(text: str) -> str:
    """
    >>> _markdown("a|b <i> _x_")
    'a\\\\|b &lt;i&gt; \\\\_x\\\\_'
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]|~$#])", r"\\\1", text)


def comma_separated(table: Table) -> str:
    """Full numbers; deviations and the ends of intervals in columns of their own."""
    places = range(len(table.columns))
    more = [list(dict.fromkeys(name for row in table.rows for name in row.cells[i].beside)) for i in places]
    sectioned = any(row.section for row in table.rows)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")

    def write(section: str, parts: Iterable[Iterable[object]]) -> None:
        writer.writerow([*[section] * sectioned, *chain.from_iterable(parts)])

    heads = zip(table.columns, more, strict=True)
    write("group", ([column, *(f"{column} {name}" for name in names)] for column, names in heads))
    for row in table.rows:
        cells = zip(row.cells, more, strict=True)
        write(row.section, ([_value(cell), *(cell.beside.get(name, "") for name in names)] for cell, names in cells))
    return out.getvalue()


def _value(cell: Cell) -> object:
    if cell.number is not None:
        return cell.number
    return "" if cell.text == NOTHING else _harmless(cell.text)


def _harmless(text: str) -> str:
    """A spreadsheet takes a text that begins like this for a formula; a quotation mark keeps it a text."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def latex(table: Table) -> str:
    """A `table` with booktabs rules; needs \\usepackage{booktabs} and nothing else."""
    alignment = "".join("r" if table.numeric(i) else "l" for i in range(len(table.columns)))
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \begin{{tabular}}{{{alignment}}}",
        r"    \toprule",
        "    " + " & ".join(_symbol(column) for column in table.columns) + r" \\",
    ]
    for section, rows in table.sections:
        lines.append(r"    \midrule")
        if section:
            lines.append(rf"    \multicolumn{{{len(table.columns)}}}{{l}}{{\emph{{{_latex(section)}}}}} \\")
        for row in rows:
            cells = [rf"\textbf{{{_latex(c.text)}}}" if c.strong else _latex(c.text) for c in row.cells]
            lines.append("    " + " & ".join(cells) + r" \\")
    caption = f"{table.title}. {table.note}" if table.note else f"{table.title}."
    lines += [r"    \bottomrule", r"  \end{tabular}", rf"  \caption{{{_latex(caption)}}}"]
    lines += [rf"  \label{{tab:{table.name}}}"]
    lines += [rf"  \par{{\footnotesize {_latex(text)}\par}}" for text in table.footnotes]
    lines += [r"\end{table}"]
    return "\n".join(lines) + "\n"


SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "–": "--",
    "…": r"\dots{}",
    "−": "$-$",
    "\ufffd": "?",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def _latex(text: str) -> str:
    """
    >>> print(_latex(r"50 % \\input{x} ± a_b"))
    50 \\% \\textbackslash{}input\\{x\\} $\\pm$ a\\_b
    """
    return "".join(SPECIAL.get(character, character) for character in text)


def _symbol(column: str) -> str:
    """A_10 as the paper sets it."""
    return re.sub(r"A\\_(\d+)", r"$A_{\1}$", _latex(column))


FORMATS: dict[str, Callable[[Table], str]] = {"md": markdown, "csv": comma_separated, "tex": latex}
"""Suffix of the file -> how it is written."""
