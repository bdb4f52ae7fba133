"""The command that runs a benchmark."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from engram.cli.shared import console, parse_setting, say, signals_set
from engram.errors import ConfigError

if TYPE_CHECKING:
    from engram.experiment.request import Request


def do_run(chosen: argparse.Namespace) -> int:
    request = asked_for(chosen)
    from engram import distributed
    from engram.experiment.loop import Interrupted, Stop
    from engram.experiment.progress import ConsoleDisplay, Display
    from engram.experiment.request import default_folder
    from engram.experiment.run import execute

    folder = chosen.out or default_folder(request.config())
    out, stop, here = console(), Stop(), distributed.launched()
    display = Display() if chosen.quiet else ConsoleDisplay(out, verbose=chosen.verbose)
    silent = chosen.quiet or here.rank > 0
    with signals_set(stop, patient=here.many):
        try:
            execute(request, folder, resume=chosen.resume, tensorboard=chosen.tensorboard, display=display, stop=stop)
        except Interrupted:
            if not silent:
                tensorboard = " --tensorboard" if chosen.tensorboard else ""
                say(f"saved; go on with: engram run --resume --out {shlex.quote(str(folder))}{tensorboard}")
            return 130
    if not silent:
        show_result(folder)
    return 0


def asked_for(chosen: argparse.Namespace) -> Request:
    """What the words ask for; mistakes in them are found before torch is loaded."""
    settings = dict(parse_setting(text) for text in chosen.set)
    if chosen.resume and chosen.config is not None:
        raise ConfigError(f"--config {chosen.config}: a run that is resumed keeps its settings; leave --config out")
    from engram.experiment.request import Request

    return Request(
        dataset=chosen.dataset,
        method=chosen.method,
        preset=chosen.preset,
        seed=chosen.seed,
        order_seed=chosen.order_seed,
        settings=settings,
        file=chosen.config,
    )


def show_result(folder: Path) -> None:
    from engram.experiment.progress import accuracy_table
    from engram.experiment.records import read_records

    out = console()
    out.print()
    out.print(accuracy_table(list(read_records(folder))))
    out.print()
    say(f"run folder: {folder}")
