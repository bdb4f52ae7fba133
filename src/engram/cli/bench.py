"""The command that runs many."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from engram.cli.shared import console, parse_setting, signals_set
from engram.errors import ConfigError, unknown

if TYPE_CHECKING:
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
        return carry_out(plan, machines.start)


def carry_out(plan: Plan, start: Launcher) -> int:
    """Run it, show it, stop it when asked to; the exit code."""
    from rich.live import Live

    from engram.experiment.bench import Stopped, bench, rows
    from engram.experiment.bench_tables import cell_table, result_table
    from engram.experiment.run import Stop

    out, stop, told = console(), Stop(), dict[str, str]()
    live = Live(console=out, refresh_per_second=2, transient=True) if out.is_terminal else None

    def show(cells: Sequence[Cell]) -> None:
        if live is not None:
            live.update(cell_table(cells))
            return
        for cell in cells:  # no terminal: a line whenever something has changed
            done = len(cell.summary.accuracy) if cell.summary else 0
            now = f"{cell.status} {done}"
            if told.get(cell.name, "waiting 0") != now:
                told[cell.name] = now
                last = cell.summary.last if cell.summary else None
                answer = "" if last is None else f", task {done}, A = {100 * last:.2f} %"
                print(f"{cell.name}: {cell.status}{answer}{f' ({cell.error})' if cell.status == 'failed' else ''}")

    with signals_set(stop):
        try:
            if live is not None:
                live.start()
            cells = bench(plan, show=show, asked=lambda: stop.asked, start=start)
        except Stopped:
            print(f"stopped; every run under {plan.out} is saved: the same command goes on")
            return 130
        finally:
            if live is not None:
                live.stop()
    out.print(result_table(rows(cells)))
    failed = [cell for cell in cells if cell.status == "failed"]
    for cell in failed:
        print(f"failed: {cell.name}: {cell.error} (see {cell.log})")
    return int(bool(failed))


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
    from engram.data.datasets import load
    from engram.methods.registry import configure

    for dataset in datasets:
        load(dataset)
        for name in names:
            own = dict(parse_setting(text) for text in settings)
            configure(dataset=dataset, method=name, preset=preset, settings=own)
