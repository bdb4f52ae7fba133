"""The command that shows what came of the runs. It never needs torch."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engram.errors import ConfigError

if TYPE_CHECKING:
    from engram.report.build import Files
    from engram.report.gather import Gathered

POLL_SECONDS = 2.0


def do_report(chosen: argparse.Namespace) -> int:
    try:
        import jinja2  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError:
        raise ConfigError("engram report needs two packages: pip install 'engram[report]'") from None
    if chosen.serve and not chosen.watch:
        raise ConfigError("--serve goes with --watch: engram report --watch RUN --serve")
    if chosen.serve and chosen.out is not None:
        raise ConfigError("--serve writes nothing: leave --out away, or leave --serve away")
    make = maker(chosen.runs, chosen.against, patient=chosen.watch)
    if chosen.serve:
        return serve(chosen.runs, make, chosen.host, chosen.port)
    out = chosen.out or Path("report")
    if chosen.watch:
        return watch(chosen.runs, make, out)
    show(*make(None), out)
    return 0


def maker(
    runs: Sequence[Path], against: Path | None, *, patient: bool
) -> Callable[[str | None], tuple[Gathered, Files]]:
    """What builds a report: called once, or whenever the records have changed."""
    from engram.report.build import build
    from engram.report.gather import gather
    from engram.report.groups import group

    def make(version: str | None) -> tuple[Gathered, Files]:
        found = gather(runs, patient=patient)
        comparison = None
        if against is not None:
            from engram.report.compare import compare

            comparison = compare(group(gather([against]).runs), group(found.runs))
        return found, build(found, comparison=comparison, version=version, pngs=version is None)

    return make


def show(found: Gathered, files: Files, out: Path) -> None:
    """Write the files; say what there is and what was wrong."""
    from engram.report.build import PAGE, write
    from engram.report.summary import plural

    write(files, out)
    for problem in (*found.problems, *found.blank):
        print(f"{problem.place}: {problem.text}")
    figures = sum(name.endswith(".svg") for name in files)
    tables = sum(name.endswith(".csv") for name in files)
    print(f"{plural(len(found.runs), 'run')}, {tables} tables, {figures} figures: {out / PAGE}")


def watch(runs: Sequence[Path], make: Callable[[str | None], tuple[Gathered, Files]], out: Path) -> int:
    """Write anew whenever the records have changed, until Ctrl-C."""
    from engram.report.serve import version_of

    shown = ""
    while True:
        now = version_of(runs)
        if now != shown:
            show(*make(None), out)
            shown = now
        time.sleep(POLL_SECONDS)


def serve(runs: Sequence[Path], make: Callable[[str | None], tuple[Gathered, Files]], host: str, port: int) -> int:
    from engram.report.serve import Live, Server

    make("")  # a mistake in the words is found now, not when somebody looks
    with Server(host, port, Live(runs, lambda version: make(version)[1])) as server:
        print(f"{server.address} (Ctrl-C ends it)", flush=True)
        server.serve_forever()
    return 0
