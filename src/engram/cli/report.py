"""The command that shows what came of the runs. It never needs torch."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engram.cli.shared import say
from engram.errors import ConfigError, missing_extra

if TYPE_CHECKING:
    from engram.report.build import Files
    from engram.report.gather import Gathered

POLL_SECONDS = 2.0


def do_report(chosen: argparse.Namespace) -> int:
    if chosen.update:
        return update(chosen)
    try:
        import jinja2  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError:
        raise missing_extra("engram report", "report") from None
    if chosen.serve and not chosen.watch:
        raise ConfigError("--serve goes with --watch: engram report --watch RUN --serve")
    if chosen.allow_host and not chosen.serve:
        raise ConfigError("--allow-host goes with --serve")
    if chosen.serve and chosen.out is not None:
        raise ConfigError("--serve writes nothing: leave --out away, or leave --serve away")
    make = maker(chosen.runs, chosen.against, patient=chosen.watch, archive=chosen.archive)
    if chosen.serve:
        return serve(chosen.runs, make, chosen.host, chosen.port, chosen.allow_host)
    out = chosen.out or Path("report")
    show = partial(write_and_tell, out=out, quiet=chosen.quiet, verbose=chosen.verbose)
    if chosen.watch:
        return watch(chosen.runs, make, show)
    show(*make(None))
    return 0


def update(chosen: argparse.Namespace) -> int:
    """Write the tables of documents anew, and nothing else."""
    from engram.report.documents import update as update_tables

    for flag in ("out", "against", "watch", "serve", "archive"):
        if getattr(chosen, flag):
            raise ConfigError(f"--update writes the tables of documents alone: leave --{flag} away")
    if len(chosen.runs) > 1:
        raise ConfigError(f"--update takes one folder of runs, not {len(chosen.runs)}: name the one that holds them")
    for path in chosen.update:
        changed = update_tables(path, chosen.runs[0])
        if not chosen.quiet:
            say(f"{path}: {', '.join(changed) or 'current'}")
    return 0


Make = Callable[[str | None], "tuple[Gathered, Files]"]
"""What builds a report, for a version of the records; None: into files, with pictures as PNG too."""


def maker(runs: Sequence[Path], against: Path | None, *, patient: bool, archive: bool) -> Make:
    """What builds a report: called once, or whenever the records have changed."""
    from engram.report.build import build
    from engram.report.gather import gather
    from engram.report.groups import group

    def make(version: str | None) -> tuple[Gathered, Files]:
        found = gather(runs, patient=patient, archive=archive)
        comparison = None
        if against is not None:
            from engram.report.compare import compare

            comparison = compare(group(gather([against], archive=archive).runs), group(found.runs))
        return found, build(found, comparison=comparison, version=version, pngs=version is None)

    return make


def write_and_tell(found: Gathered, files: Files, *, out: Path, quiet: bool, verbose: bool) -> None:
    """Write the files; say what there is and what was wrong."""
    from engram.report.build import PAGE, write
    from engram.report.summary import plural

    write(files, out)
    for problem in found.problems if quiet else (*found.problems, *found.blank):
        say(f"{problem.place}: {problem.text}")
    for name in files if verbose else ():
        say(str(out / name))
    if not quiet:
        figures = sum(name.endswith(".svg") for name in files)
        tables = sum(name.endswith(".csv") for name in files)
        say(f"{plural(len(found.runs), 'run')}, {tables} tables, {figures} figures: {out / PAGE}")


def watch(runs: Sequence[Path], make: Make, show: Callable[[Gathered, Files], None]) -> int:
    """Write anew whenever the records have changed, until Ctrl-C."""
    from engram.report.serve import version_of

    shown = ""
    while True:
        now = version_of(runs)
        if now != shown:
            show(*make(None))
            shown = now
        time.sleep(POLL_SECONDS)


def serve(runs: Sequence[Path], make: Make, host: str, port: int, names: Sequence[str] = ()) -> int:
    """Show it at a local address, until Ctrl-C."""
    from engram.report.serve import Live, Server

    make("")  # a mistake in the words is found now, not when somebody looks
    with Server(host, port, Live(runs, lambda version: make(version)[1]), names=names) as server:
        print(f"{server.address} (Ctrl-C ends it)", flush=True)
        server.serve_forever()
    return 0
