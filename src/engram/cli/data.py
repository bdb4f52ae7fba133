"""Commands about data sets."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from engram.cli.shared import console, print_checks
from engram.errors import ConfigError


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
            row.name, str(row.classes), f"{about}{row.train:,}", f"{about}{row.test:,}", escape(where), row.description
        )
    out = console()
    out.print(table)
    out.print("\nYour own: folder:PATH (train/CLASS/*.png|jpg, test/CLASS/… or a share held out), npz:PATH")
    return 0


def do_data_fetch(chosen: argparse.Namespace) -> int:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from engram.data.fetch import fetch

    out = console()
    for name in chosen.name:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
            rows: dict[str, Any] = {}

            def show(
                label: str, done: int, total: int | None, bar: Progress = bar, rows: dict[str, Any] = rows
            ) -> None:
                if label not in rows:
                    rows[label] = bar.add_task(label, total=total)
                    if not out.is_terminal:
                        print(label)
                bar.update(rows[label], completed=done, total=total)

            folder = fetch(name, progress=show)
        print(f"{name}: {folder}")
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
            progress=lambda done, total: bar.update(row, completed=done, total=total),
        )
    print(f"{chosen.out}: {train:,} training and {test:,} test images at 32x32")
    return 0


def do_data_check(chosen: argparse.Namespace) -> int:
    from engram.data.datasets import check

    return max(print_checks(check(name), f"{name}: ") for name in chosen.name)
