"""The bench on a console: what runs and is done, and what came out of it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from engram.experiment.bench import Cell, Row
from engram.experiment.progress import duration

COLOURS = {
    "waiting": "dim",
    "running": "cyan",
    "elsewhere": "cyan",
    "done": "green",
    "failed": "red",
    "stopped": "yellow",
}


def cell_table(cells: Sequence[Cell]) -> Table:
    """A line per run: state, tasks done, the newest A_t, seconds."""
    table = _table(None, ("run", "left"), ("state", "left"), ("tasks", "right"), ("A_t %", "right"), ("time", "right"))
    for cell in cells:
        summary = cell.summary
        table.add_row(
            Text(cell.name),
            Text.assemble((cell.status, COLOURS[cell.status]), f" {cell.error[:60]}" if cell.error else ""),
            f"{len(summary.accuracy)}/{summary.tasks}" if summary else "-",
            f"{100 * summary.last:.2f}" if summary and summary.last is not None else "-",
            duration(summary.seconds) if summary else "-",
        )
    return table


def result_table(rows: Sequence[Row]) -> Table:
    """Mean and deviation over seeds, the paper's figure and the gap, memory, seconds."""
    table = _table(
        "A_t at the end, in %",
        ("data", "left"),
        ("method", "left"),
        ("classes", "right"),
        ("seeds", "right"),
        ("ours", "right"),
        ("paper", "right"),
        ("gap", "right"),
        ("memory", "right"),
        ("time a run", "right"),
    )
    for row in rows:
        spread = "" if row.deviation is None else f" ± {row.deviation:.2f}"
        table.add_row(
            Text(row.dataset),
            row.method,
            str(row.classes or "-"),
            str(len(row.seeds)),
            "-" if row.mean is None else f"{row.mean:.2f}{spread}",
            "-" if row.paper is None else f"{row.paper:.2f}",
            "-" if row.gap is None else f"{row.gap:+.2f}",
            "-" if row.memory is None else f"{row.memory / 1e6:.2f} MB",
            "-" if row.seconds is None else duration(row.seconds),
        )
    return table


def _table(title: str | None, *columns: tuple[str, str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, justify in columns:
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    return table
