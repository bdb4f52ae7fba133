"""A card as plain blocks, and the two files that show it: Markdown, and one HTML page that asks nobody for anything.

Every text is taken for what it says: names of classes may hold marks of either language.
"""

from __future__ import annotations

import base64
import html
import re
from dataclasses import dataclass
from importlib.resources import files

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
ZOOM = 2
"""Size of a drawing's pixel on the page."""


# ---------------------------------------------------------------- blocks


class Mono(str):
    """A text such as a digest, of which every letter counts."""

    __slots__ = ()


@dataclass(frozen=True)
class Share:
    """A part of a whole, 0 to 1, and how it is written."""

    value: float
    text: str


Cell = str | Share


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first of a row is its heading."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: tuple[int, ...] = ()
    """Columns that are aligned to the right."""


@dataclass(frozen=True)
class Code:
    """Lines to copy."""

    language: str
    text: str


@dataclass(frozen=True)
class Picture:
    """Rows of drawings as one PNG image, and what each row shows."""

    png: bytes
    size: tuple[int, int]
    """Width and height in pixels."""
    rows: tuple[str, ...]
    caption: str


Block = str | Table | Code | Picture
"""A plain text is a paragraph."""


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    heading: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Tile:
    """A figure that is seen first."""

    label: str
    value: str
    detail: str


@dataclass(frozen=True)
class Card:
    """All that a model's card says."""

    title: str
    lead: str
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]
    foot: str


# ---------------------------------------------------------------- Markdown


def as_markdown(card: Card) -> str:
    """The card as GitHub's Markdown; drawings are told of, not shown."""
    tiles = "\n".join(f"- **{_md(t.label)}:** {_md(t.value)} ({_md(t.detail)})" for t in card.tiles)
    parts = [f"# {_md(card.title)}", _md(card.lead), tiles]
    for section in card.sections:
        parts += [f"## {_md(section.heading)}", *map(_md_block, section.blocks)]
    return "\n\n".join([*parts, "---", _md(card.foot)]) + "\n"


def _md_block(block: Block) -> str:
    if isinstance(block, Table):
        return _md_table(block)
    if isinstance(block, Code):
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
        return f"{fence}{block.language}\n{block.text}\n{fence}"
    if isinstance(block, Picture):
        return _md(f"{block.caption} They are shown in the HTML card: {', '.join(block.rows)}.")
    return _md(block)


def _md_table(table: Table) -> str:
    line = ["---:" if number in table.numbers else "---" for number in range(len(table.columns))]
    rows = [[_md(column) for column in table.columns], line, *([_md_cell(cell) for cell in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _md_cell(cell: Cell) -> str:
    if isinstance(cell, Mono) and cell.isalnum():
        return f"`{cell}`"
    return _md(cell.text if isinstance(cell, Share) else cell)


def _md(text: str) -> str:
    r"""A text that Markdown shows as it is.

    >>> print(_md("a|b <i> `c` *d* www.e.org"))
    a\|b &lt;i&gt; \`c\` \*d\* www\.e.org
    """
    text = html.escape(_line(text), quote=False)
    text = re.sub(r"([\\`*_\[\]|~$#])", r"\\\1", text)
    return re.sub(r"://", r"\\://", re.sub(r"(?i)\bwww\.", lambda m: m[0][:-1] + r"\.", text))


def _line(text: str) -> str:
    """One line of what can be seen."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


# ---------------------------------------------------------------- HTML


def as_html(card: Card) -> str:
    """The card as one page, light or dark as its reader's machine is."""
    style = files("engram.model").joinpath("card.css").read_text(encoding="utf-8")
    tiles = "".join(
        f"<div><dt>{_h(t.label)}</dt><dd><strong>{_h(t.value)}</strong>{_h(t.detail)}</dd></div>\n" for t in card.tiles
    )
    links = "".join(f'<li><a href="#{_anchor(s)}">{_h(s.heading)}</a></li>\n' for s in card.sections)
    sections = "".join(
        f'<section id="{_anchor(s)}">\n<h2>{_h(s.heading)}</h2>\n{"".join(map(_html_block, s.blocks))}</section>\n'
        for s in card.sections
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{_h(card.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<header>\n"
        f'<h1>{_h(card.title)}</h1>\n<p class="lead">{_h(card.lead)}</p>\n<dl class="tiles">\n{tiles}</dl>\n</header>\n'
        f'<nav aria-label="Contents"><ul>\n{links}</ul></nav>\n<main>\n{sections}</main>\n'
        f"<footer><p>{_h(card.foot)}</p></footer>\n</body>\n</html>\n"
    )


def _anchor(section: Section) -> str:
    return re.sub(r"[^a-z]+", "-", section.heading.lower()).strip("-")


def _html_block(block: Block) -> str:
    if isinstance(block, Table):
        return _html_table(block)
    if isinstance(block, Code):
        return f'<pre tabindex="0"><code>{html.escape(block.text)}</code></pre>\n'
    if isinstance(block, Picture):
        return _html_picture(block)
    return f"<p>{_h(block)}</p>\n"


def _html_table(table: Table) -> str:
    marks = [' class="number"' if number in table.numbers else "" for number in range(len(table.columns))]
    head = "".join(f'<th scope="col"{m}>{_h(c)}</th>' for c, m in zip(table.columns, marks, strict=True))
    rows = "".join(f"<tr>{_html_row(row, table)}</tr>\n" for row in table.rows)
    return f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n'


def _html_row(row: tuple[Cell, ...], table: Table) -> str:
    first, *others = row
    cells = [f'<th scope="row">{_html_cell(first)}</th>']
    for number, cell in enumerate(others, 1):
        long = isinstance(cell, str) and len(cell) > 40 and not isinstance(cell, Mono)
        mark = ' class="number"' if number in table.numbers else ' class="long"' if long else ""
        # one child, so that a narrow page can put the label beside it
        cells.append(f'<td{mark} data-label="{_h(table.columns[number])}"><span>{_html_cell(cell)}</span></td>')
    return "".join(cells)


def _html_cell(cell: Cell) -> str:
    if isinstance(cell, Share):
        width = 100 * min(max(cell.value, 0.0), 1.0)
        return f'{_h(cell.text)}<span class="bar"><i style="width:{width:.1f}%"></i></span>'
    return f"<code>{_h(cell)}</code>" if isinstance(cell, Mono) else _h(cell)


def _html_picture(picture: Picture) -> str:
    source = base64.b64encode(picture.png).decode()
    width, height = (ZOOM * side for side in picture.size)
    labels = "".join(f'<li><span title="{_h(name)}">{_h(name)}</span></li>' for name in picture.rows)
    return (
        f'<figure><figcaption>{_h(picture.caption)}</figcaption>\n<div class="drawings"><ol>{labels}</ol>\n'
        f'<img width="{width}" height="{height}" alt="Drawings, a class a row" src="data:image/png;base64,{source}">'
        "</div></figure>\n"
    )


def _h(text: str) -> str:
    return html.escape(_line(text))
