"""Commands about data sets."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from engram.cli.shared import complain, console, preparation, print_checks, say
from engram.errors import ConfigError

if TYPE_CHECKING:
    from rich.progress import TaskID


def do_data_list(_: argparse.Namespace) -> int:
    from rich.markup import escape
    from rich.table import Table

    from engram.data.datasets import survey

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, justify in (("name", "left"), ("classes", "right"), ("train", "right"), ("test", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("where")
    table.add_column("what")
    for row in survey():
        where = row.found or f"not here: engram data fetch {row.name}"
        if row.note.startswith("broken"):
            where += f" ({row.note})"
        about = "about " if row.note == "expected" else ""
        table.add_row(
            row.name,
            str(row.classes),
            f"{about}{row.train:,}",
            f"{about}{row.test:,}",
            escape(where),
            escape(row.description),
        )
    out = console()
    out.print(table)
    out.print()
    say("Your own: folder:PATH (train/CLASS/*.png|jpg|webp|bmp, test/CLASS/… or a share held out), npz:PATH")
    return 0


def do_data_fetch(chosen: argparse.Namespace) -> int:
    from engram.data.fetch import Fetched, fetch

    fetched: dict[str, Fetched] = {}
    for name in chosen.name:
        with progress_of(quiet=chosen.quiet, lines=chosen.verbose) as show:
            fetched[name] = fetch(name, progress=show)
        if not chosen.quiet:
            say(f"{name}: {fetched[name].folder}")
    if unchecked := [name for name, one in fetched.items() if not one.verified]:
        tell = complain if chosen.quiet else say
        tell(f"not checked: {', '.join(unchecked)}: readable, but the contents match no known digest")
    return 0


@contextmanager
def progress_of(*, quiet: bool, lines: bool) -> Iterator[Callable[[str, int, int | None], None]]:
    """How a download is shown: a bar a file on a terminal, else, or with `lines`, a line a file."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    out = console()
    rows: dict[str, TaskID] = {}
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True, disable=quiet or not out.is_terminal) as bar:

        def show(label: str, done: int, total: int | None) -> None:
            if label not in rows:
                rows[label] = bar.add_task(label, total=total)
                if lines or not (quiet or out.is_terminal):
                    say(label)
            bar.update(rows[label], completed=done, total=total)

        yield show


def do_embed(chosen: argparse.Namespace) -> int:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from engram.data.backbone import Backbone
    from engram.model.embed import embed_data

    backbone = Backbone(chosen.backbone, **preparation(chosen))
    if chosen.verbose:
        complain(repr(backbone))
    out = console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True, disable=chosen.quiet or not out.is_terminal) as bar:
        row = bar.add_task("images", total=None)
        made = embed_data(
            chosen.data,
            backbone,
            chosen.out,
            batch=chosen.batch,
            progress=lambda done, total: bar.update(row, completed=done, total=total),
        )
    if not chosen.quiet:
        counts = f"{made.train:,} training and {made.test:,} test vectors of {made.width:,}, {made.classes} classes"
        say(f"{made.path}: {counts}, {made.bytes / 1e6:,.2f} MB")
        say(f"by {backbone.recipe}: {backbone.recipe.preparation}")
    return 0


def do_data_select(chosen: argparse.Namespace) -> int:
    from rich.progress import Progress

    from engram.data.select import select

    classes = [word.strip() for word in chosen.classes.split(",") if word.strip()]
    if chosen.classes.startswith("@"):
        path = Path(chosen.classes[1:])
        try:
            classes = path.read_text().split()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--classes {chosen.classes}: cannot read {path} ({error})") from None
    out = console()
    with Progress(console=out, transient=True, disable=not out.is_terminal) as bar:
        row = bar.add_task("scaling", total=None)
        train, test = select(
            chosen.source,
            chosen.out,
            classes=classes,
            per_class=chosen.per_class,
            val_classes=chosen.val_classes,
            size=chosen.image_size,
            progress=lambda done, total: bar.update(row, completed=done, total=total),
        )
    size = chosen.image_size
    say(f"{chosen.out}: {train:,} training and {test:,} test images at {size}x{size}")
    return 0


def do_data_check(chosen: argparse.Namespace) -> int:
    from engram.data.datasets import check

    return print_checks(
        replace(line, what=f"{name}: {line.what}")
        for name in chosen.name
        for line in check(name, image_size=chosen.image_size)
    )


def do_data_prepare(chosen: argparse.Namespace) -> int:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from engram.data.prepare import prepare

    out = console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True, disable=chosen.quiet or not out.is_terminal) as bar:
        row = bar.add_task("examples", total=None)
        made = prepare(
            chosen.data,
            image_size=chosen.image_size,
            out=chosen.out,
            show=lambda done, total: bar.update(row, completed=done, total=total),
        )
    store = made.store
    if chosen.verbose:
        complain(f"{store.facts.name}: contents {store.facts.digest}, at {' x '.join(map(str, store.facts.shape))}")
    if not chosen.quiet:
        many = " / ".join(f"{sum(counts):,}" for counts in store.counts.values())
        there = "" if made.made else "was there already: "
        say(f"{made.path}: {there}{many} in {len(store.facts.class_names)} classes, {store.bytes / 1e6:,.1f} MB")
        if chosen.out:
            say(f"it is a data set of its own: --dataset prepared:{chosen.out}")
        else:
            say(f"runs on {chosen.data} read it from now on; `engram data cache --clear` removes it")
    return 0


def do_data_cache(chosen: argparse.Namespace) -> int:
    from engram.data.cache import clear, copies

    if chosen.data and not chosen.clear:
        raise ConfigError(f"{chosen.data[0]}: what is to be done with it? To remove its copy: --clear")
    found = clear(chosen.data) if chosen.clear else copies()
    for copy in found:
        about = "removed" if chosen.clear else copy.about
        say(f"{copy.path}: {copy.name or 'unknown'}, {copy.bytes / 1e6:,.1f} MB, {about}")
    if not found:
        say("no data set is prepared")
    return 0
