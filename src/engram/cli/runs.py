"""Commands about one run: run, sample, predict, verify."""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engram.cli.shared import complain, console, parse_setting, print_checks, say, signals_set, tell_settings
from engram.errors import ConfigError

if TYPE_CHECKING:
    from engram.experiment.predict import Prediction
    from engram.experiment.request import Request


def do_run(chosen: argparse.Namespace) -> int:
    request = asked_for(chosen)
    from engram import distributed
    from engram.experiment.progress import ConsoleDisplay, Display
    from engram.experiment.request import default_folder
    from engram.experiment.run import Interrupted, Stop, execute

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


def do_sample(chosen: argparse.Namespace) -> int:
    from engram.experiment.files import write_atomically
    from engram.experiment.pictures import png
    from engram.experiment.reopen import reopen, require_classes, sample_grid

    if chosen.per_class < 1:
        raise ConfigError(f"--per-class {chosen.per_class} must be 1 or more")
    if chosen.verbose:
        tell_settings(chosen.run)
    run = reopen(chosen.run)
    require_classes(run)
    words = chosen.classes.split(",") if chosen.classes else []
    indices = [run.class_index(word.strip()) for word in words] or list(range(len(run.names)))
    grid = sample_grid(run, indices, chosen.per_class, chosen.seed)
    try:
        write_atomically(chosen.out, png(grid))
    except OSError as error:
        raise ConfigError(f"--out {chosen.out} cannot be written ({error}); name a .png file") from error
    if not chosen.quiet:
        say(f"{chosen.out}: {', '.join(run.names[index] for index in indices)}")
    return 0


def do_predict(chosen: argparse.Namespace) -> int:
    from engram.experiment.predict import Unreadable, image_paths, predict
    from engram.experiment.reopen import reopen

    for flag, value in (("--top", chosen.top), ("--batch", chosen.batch)):
        if value < 1:
            raise ConfigError(f"{flag} {value} must be 1 or more")
    if chosen.verbose:
        tell_settings(chosen.run)
    run, paths = reopen(chosen.run), image_paths(chosen.images, sys.stdin)
    write, unread = PREDICTIONS[chosen.format], 0
    if chosen.format == "csv":
        write_csv(["path", *(f"{what}{n}" for n in range(1, min(chosen.top, len(run.names)) + 1) for what in CSV)])
    for answer in predict(run, paths, top=chosen.top, batch=chosen.batch, on_error=chosen.on_error):
        if isinstance(answer, Unreadable):
            unread += 1
            complain(f"engram: {answer.error}")
        else:
            write(answer)
    return int(unread > 0)


CSV = ("class", "probability")


def write_csv(row: Sequence[object]) -> None:
    """One line; names with commas, quotes or line breaks are quoted."""
    csv.writer(sys.stdout, lineterminator="\n").writerow(row)


def _tell_line(answer: Prediction) -> None:
    best = zip(answer.names, answer.probabilities, strict=True)
    say(f"{answer.path}: {', '.join(f'{name} ({100 * share:.1f} %)' for name, share in best)}")


def _tell_json(answer: Prediction) -> None:
    best = zip(answer.names, answer.probabilities, strict=True)
    classes = [{"class": name, "probability": round(share, 6)} for name, share in best]
    print(json.dumps({"path": str(answer.path), "classes": classes}))


def _tell_csv(answer: Prediction) -> None:
    best = zip(answer.names, answer.probabilities, strict=True)
    write_csv([answer.path, *(value for name, share in best for value in (name, f"{share:.6f}"))])


PREDICTIONS = {"table": _tell_line, "jsonl": _tell_json, "csv": _tell_csv}
"""How answers are written, by the name of the format."""


def do_verify(chosen: argparse.Namespace) -> int:
    from engram.experiment.reopen import verify

    if chosen.verbose:
        tell_settings(chosen.run)
    return print_checks(verify(chosen.run), quiet=chosen.quiet)
