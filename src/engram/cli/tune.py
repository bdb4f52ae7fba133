"""The command that searches for settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engram.cli.shared import console, parse_setting, say, signals_set
from engram.errors import ConfigError

if TYPE_CHECKING:
    from engram.experiment.tune import Search, Trial


def do_tune(chosen: argparse.Namespace) -> int:
    from engram.data.datasets import load_dataset
    from engram.experiment.bench import share_out
    from engram.experiment.jobs import Machines, Process
    from engram.experiment.loop import Stop
    from engram.experiment.machine import available_cores
    from engram.experiment.on_ray import connected
    from engram.experiment.tune import Search, Stopped, parse_space, tune

    space, settings = parse_space(chosen.search), dict(parse_setting(text) for text in chosen.set)
    if chosen.seed < 0:
        raise ConfigError(f"--seed {chosen.seed} must be 0 or more")
    cores = available_cores()
    here = nullcontext(Machines([cores], Process))
    with connected(chosen.ray, cores=cores) if chosen.ray else here as machines:
        jobs, threads = share_out(machines.cores, chosen.jobs)
        search = Search(
            dataset=chosen.dataset,
            method=chosen.method,
            space=space,
            out=chosen.out,
            trials=chosen.trials,
            seed=chosen.seed,
            jobs=jobs,
            threads=threads,
            reduction=chosen.reduction,
            settings=settings,
            preset=chosen.preset,
        )
        stream = search.config({}).stream
        load_dataset(
            chosen.dataset, holdout=stream.holdout, image_size=stream.image_size, development=stream.development
        )
        stop, lines = Stop(), Lines(quiet=chosen.quiet)
        with signals_set(stop):
            try:
                trials = tune(search, show=lines.show, asked=lambda: stop.asked, start=machines.start)
            except Stopped:
                if not chosen.quiet:
                    say(f"stopped; every trial under {search.out} is saved: the same command goes on")
                return 130
    return tell(search, trials)


def tell(search: Search, trials: Sequence[Trial]) -> int:
    """The table, and what to do with the best."""
    from rich.markup import escape
    from rich.table import Table

    from engram.experiment.tune import BEST, best_of

    out, table = console(), Table("trial", "held-out %", "tasks", "", *map(escape, search.space), box=None)
    for trial in sorted(trials, key=lambda trial: (-trial.score, trial.number)):
        last = f"{100 * trial.accuracy[-1]:.2f}" if trial.accuracy else "–"
        values = [trial.settings.get(name, "as it was") for name in search.space]
        table.add_row(str(trial.number), last, str(len(trial.accuracy)), trial.status, *map(escape, values))
    out.print(table)
    best = best_of(trials)
    if best is None:
        say(f"no trial got to its end; see {search.out / 'logs'}")
        return 1
    was = trials[0]
    before = f", as it was {100 * was.score:.2f} %" if was.status == "done" and was is not best else ""
    say(f"best: trial {best.number}, {100 * best.score:.2f} % of held-out training images{before}")
    say(f"engram run --dataset {search.dataset} --method {search.method} --config {search.out / BEST}")
    return 0


@dataclass
class Lines:
    """A line for every trial that has changed."""

    quiet: bool = False
    told: dict[int, str] = field(default_factory=dict)

    def show(self, trials: Sequence[Trial]) -> None:
        """Say what is new."""
        for trial in trials if not self.quiet else ():
            now = f"{trial.status} {len(trial.accuracy)}"
            if self.told.get(trial.number, "waiting 0") != now:
                self.told[trial.number] = now
                answer = f", task {len(trial.accuracy)}, A = {100 * trial.accuracy[-1]:.2f} %" if trial.accuracy else ""
                say(f"trial {trial.number}: {trial.status}{answer}{f' ({trial.error})' if trial.error else ''}")
