"""Everything together: run folders -> the report's files, in memory, and onto the disc."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from engram import __version__
from engram.errors import RunError
from engram.experiment.files import os_errors, read_json, write_atomically, write_json
from engram.report import charts, figures, frontier, ladder, matrices, plasticity, privacy, samples, trust, views
from engram.report.charts import Figure
from engram.report.gather import Gathered
from engram.report.groups import Data, Group, group
from engram.report.order import by_data, data_sets
from engram.report.summary import card, lead, plural
from engram.report.tables import FORMATS, Table

ASSETS = Path(__file__).parent / "assets"
PAGE = "index.html"
LISTING = "files.json"
"""What the report wrote, so that the next one in the same folder can clear it away."""
Files = dict[str, bytes]
"""Path within the report -> contents."""


@dataclass(frozen=True)
class Picture:
    """A figure drawn, or a picture found."""

    name: str
    title: str
    alt: str
    note: str
    svg: Markup | None = None
    source: str = ""


@dataclass
class Part:
    title: str
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)

    @property
    def size(self) -> str:
        return size(len(self.tables), len(self.pictures))


@dataclass
class Chapter:
    """One data set, or the comparison."""

    title: str
    anchor: str
    parts: list[Part] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def size(self) -> str:
        return size(sum(len(part.tables) for part in self.parts), sum(len(part.pictures) for part in self.parts))


def size(tables: int, pictures: int) -> str:
    """What a reader finds behind a fold.

    >>> size(2, 1), size(0, 3)
    ('2 tables, 1 figure', '3 figures')
    """
    counts = {"table": tables, "figure": pictures}
    return ", ".join(plural(count, noun) for noun, count in counts.items() if count)


def build(
    gathered: Gathered,
    *,
    comparison: Table | None = None,
    version: str | None = None,
    pngs: bool = True,
    now: datetime | None = None,
) -> Files:
    """All files. `version`: the page is served, and looks for another version; its files are then not on disc.

    `now`: when the report was built; the clock's time where it is not given.
    """
    groups, made = by_data(group(gathered.runs)), (now or datetime.now(UTC)).astimezone(UTC)
    files: Files = {}
    chapters = []
    if comparison is not None:
        chapters.append(Chapter("What changed", "comparison", [Part("Old against new", [comparison])]))
    sets = data_sets(groups)
    for data in sets:
        own = [g for g in groups if g.data == data]
        chapters.append(_chapter(data, own, files, pngs))
    runs = views.all_runs(gathered)
    for table in [*(t for chapter in chapters for part in chapter.parts for t in part.tables), runs]:
        files |= {f"tables/{table.name}.{suffix}": write(table).encode() for suffix, write in FORMATS.items()}
    page = _page().render(
        title=f"Engram report, {made:%Y-%m-%d}",
        lead=lead(gathered, groups),
        cards=[card(data, [g for g in groups if g.data == data]) for data in sets],
        chapters=chapters,
        runs=runs,
        problems=gathered.problems,
        live=version is not None,
        version=version,
        files=version is None,
        made=f"{made:%Y-%m-%d %H:%M:%S} UTC",
        engram=__version__,
        style=Markup(_asset("page.css")),
        script=Markup(_asset("page.js")),
    )
    return {PAGE: page.encode(), **files}


@cache
def _page() -> Any:
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text()


def _chapter(data: Data, groups: Sequence[Group], files: Files, pngs: bool) -> Chapter:
    """A data set's tables and figures, and what could not be made and why."""
    chapter = Chapter(data.title, f"data-{data.slug}")

    def part(title: str, tables: Iterable[Table | None], drawn: Iterable[Figure | None]) -> None:
        made = Part(title, [t for t in tables if t], [_draw(f, files, pngs) for f in drawn if f])
        if made.tables or made.pictures:
            chapter.parts.append(made)

    second = views.table_2(data, groups)
    sizes, space = views.table_3(data, groups), views.table_4(data, groups)
    checks = views.retention(data, groups)
    top5 = figures.accuracy(data, groups, top5=True) if data.name == "imagenet50" else []
    part("How good", [views.table_1(data, groups), second], [*figures.accuracy(data, groups), *top5])
    part("What to pick", [frontier.table(data, groups)], [frontier.figure(data, groups)])
    part("Did it forget", [checks], [matrices.forgetting(data, groups), matrices.confusion(data, groups)])
    part(
        "How big",
        [space, sizes, views.ledger(data, groups)],
        [figures.memory(data, groups), plasticity.growth(data, groups)],
    )
    part("What the memory does", [], [plasticity.reuse(data, groups), *plasticity.masks(data, groups)])
    quality = plasticity.quality(data, groups)
    part("What it replays", [], quality)
    grids = [picture for g in groups if (picture := _samples(data, g, files))]
    if grids:
        if not quality:
            chapter.parts.append(Part("What it replays"))
        chapter.parts[-1].pictures.extend(grids)
    part("Answers one can trust", [trust.table(data, groups)], [trust.figure(data, groups)])
    part("Privacy", [privacy.table(data, groups)], [])
    part("From the paper's algorithm to ours", [], [ladder.figure(data, groups)])
    part("How fast", [], [figures.timing(data, groups), figures.cost(data, groups)])
    growing = any(run.growth for g in groups for run in g.runs)
    absent = {
        "table 2 (no run stores images)": not second,
        "table 3 (no run has a generator)": not sizes,
        "table 4 and the memory's size in images (no run has recorded its memory)": not space,
        "retention (no run has checked its old images)": not checks,
        "figures 3 and 4 (no run has masks)": not growing,
        "figure 5 (no run folder has a samples.png or grid.png; `engram sample` makes one)": growing and not grids,
        "replay quality by class (no run has recorded it)": growing and not quality,
    }
    chapter.missing = [text for text, missing in absent.items() if missing]
    return chapter


def _draw(figure: Figure, files: Files, pngs: bool) -> Picture:
    drawn = charts.svg(figure)
    files[f"figures/{figure.name}.svg"] = drawn.encode()
    if pngs:
        files[f"figures/{figure.name}.png"] = charts.png(drawn)
    return Picture(figure.name, figure.title, figure.alt, figure.note, Markup(charts.inline(drawn, figure)))


def _samples(data: Data, g: Group, files: Files) -> Picture | None:
    """Figure 5: the samples of the first run that has some."""
    found = [(run, path) for run in g.runs if (path := samples.find(run.folder))]
    if not found:
        return None
    run, path = found[0]
    contents = samples.read(path)
    source = None if contents is None else samples.source(contents)
    if contents is None or source is None:
        return None
    name = _unused("figure5-" + data.slug + "-" + re.sub(r"\W+", "-", g.label).strip("-"), files)
    files[f"figures/{name}.png"] = contents
    alt = f"Images generated by {g.label} after training on {data.title}, one row per class."
    note = f"{run.name}/{path.name}. One row per class."
    return Picture(name, f"Figure 5. {data.title}: images generated by {g.label}", alt, note, None, source)


def _unused(name: str, files: Files) -> str:
    """The name, with a number where two labels make the same one."""
    names = [name, *(f"{name}-{i}" for i in range(2, len(files) + 3))]
    return next(name for name in names if f"figures/{name}.png" not in files)


def write(files: Files, out: Path) -> None:
    """Onto the disc; the page last, so that it never shows what is not there yet.

    What an earlier report left and this one has not is removed: nobody should take it for a part of this one.
    """
    if out.exists() and not out.is_dir():
        raise RunError(f"--out {out} is a file; name a folder")
    earlier = _written(out)
    for name in sorted(files, key=lambda name: name == PAGE):
        path = out / name
        with os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, files[name])
    write_json(out / LISTING, list(files))
    for name in earlier - set(files):
        with os_errors(out / name):
            (out / name).unlink(missing_ok=True)


def _written(out: Path) -> set[str]:
    """The files of the report that lies there, by its own list; never a path that leads elsewhere."""
    if not (out / LISTING).exists():
        return set()
    try:
        names = read_json(out / LISTING)
    except RunError:
        return set()
    if not isinstance(names, list):
        return set()
    return {name for name in names if isinstance(name, str) and re.fullmatch(r"(tables|figures)/[^/\\]+", name)}
