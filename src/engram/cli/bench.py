"""The command that runs many."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engram.cli.shared import complain, console, parse_setting, say, signals_set
from engram.errors import ConfigError, unknown

if TYPE_CHECKING:
    from rich.console import Console

    from engram.experiment.bench import Cell, Plan
    from engram.experiment.jobs import Launcher


def do_bench(chosen: argparse.Namespace) -> int:
    from engram.experiment.bench import Plan, share_out
    from engram.experiment.jobs import Machines, Process
    from engram.experiment.machine import available_cores
    from engram.experiment.on_ray import connected

    datasets, names, numbers = words(chosen.dataset, "--dataset"), methods(chosen.methods), seeds(chosen.seeds)
    settings = ["=".join(parse_setting(text)) for text in chosen.set]
    check(datasets, names, settings, chosen.preset)
    cores = available_cores()
    here = nullcontext(Machines([cores], Process))
    with connected(chosen.ray, cores=cores) if chosen.ray else here as machines:
        jobs, threads = share_out(machines.cores, chosen.jobs)
        plan = Plan(datasets, names, numbers, chosen.out, jobs, threads, settings, chosen.preset)
        if chosen.verbose:
            tell_plan(plan)
        return carry_out(plan, machines.start, quiet=chosen.quiet)


def tell_plan(plan: Plan) -> None:
    """What is about to run, beside the output."""
    complain(f"{len(plan.cells())} runs, {plan.jobs} at a time, threads for each: {plan.threads}")
    for cell in plan.cells():
        complain(shlex.join(["engram", *plan.command(cell)[3:]]))


def carry_out(plan: Plan, start: Launcher, *, quiet: bool = False) -> int:
    """Run it, show it, stop it when asked to; the exit code."""
    from engram.experiment.bench import Stopped, bench, rows
    from engram.experiment.bench_tables import result_table
    from engram.experiment.loop import Stop

    out, stop = console(), Stop()
    with signals_set(stop):
        try:
            with shown_on(out, quiet=quiet) as show:
                cells = bench(plan, show=show, asked=lambda: stop.asked, start=start)
        except Stopped:
            if not quiet:
                say(f"stopped; every run under {plan.out} is saved: the same command goes on")
            return 130
    out.print(result_table(rows(cells)))
    failed = [cell for cell in cells if cell.status == "failed"]
    for cell in failed:
        say(f"failed: {cell.name}: {cell.error} (see {cell.log})")
    return int(bool(failed))


@contextmanager
def shown_on(out: Console, *, quiet: bool) -> Iterator[Callable[[Sequence[Cell]], None]]:
    """How the runs are shown: a live table on a terminal, else a line whenever one has changed."""
    if quiet:
        yield lambda cells: None
    elif out.is_terminal:
        from rich.live import Live

        from engram.experiment.bench_tables import cell_table

        with Live(console=out, refresh_per_second=2, transient=True) as live:
            yield lambda cells: live.update(cell_table(cells))
    else:
        yield Lines().show


@dataclass
class Lines:
    """A line for every run that has changed."""

    told: dict[str, str] = field(default_factory=dict)

    def show(self, cells: Sequence[Cell]) -> None:
        """Say what is new."""
        for cell in cells:
            done = len(cell.summary.accuracy) if cell.summary else 0
            now = f"{cell.status} {done}"
            if self.told.get(cell.name, "waiting 0") != now:
                self.told[cell.name] = now
                last = cell.summary.last if cell.summary else None
                answer = "" if last is None else f", task {done}, A = {100 * last:.2f} %"
                say(f"{cell.name}: {cell.status}{answer}{f' ({cell.error})' if cell.status == 'failed' else ''}")


def words(text: str, flag: str) -> list[str]:
    """`a, b` -> ["a", "b"], each once."""
    found = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not found:
        raise ConfigError(f"{flag} {text!r} names nothing")
    return found


def methods(text: str) -> list[str]:
    from engram.methods.registry import METHODS

    found = list(METHODS) if text.strip() == "all" else words(text, "--methods")
    for name in found:
        if name not in METHODS:
            raise unknown("method", name, [*METHODS, "all"])
    return found


def seeds(text: str) -> list[int]:
    try:
        found = [int(word) for word in words(text, "--seeds")]
    except ValueError:
        raise ConfigError(f"--seeds {text!r} is not a list of whole numbers such as 0,1,2") from None
    if min(found) < 0:
        raise ConfigError(f"--seeds {text!r}: a seed is 0 or more")
    return found


def check(datasets: Sequence[str], names: Sequence[str], settings: Sequence[str], preset: str) -> None:
    """Find mistakes before anything runs."""
    from engram.data.datasets import load_dataset
    from engram.methods.registry import configure

    own = dict(parse_setting(text) for text in settings)
    for dataset in datasets:
        streams = {configure(dataset=dataset, method=name, preset=preset, settings=own).stream for name in names}
        for holdout, image_size in {(stream.holdout, stream.image_size) for stream in streams}:
            load_dataset(dataset, holdout=holdout, image_size=image_size)
