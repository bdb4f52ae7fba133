"""Commands about one run: run, sample, predict, verify."""

from __future__ import annotations

import argparse
import shlex

from engram.cli.shared import console, parse_setting, print_checks, signals_set
from engram.errors import ConfigError


def do_run(chosen: argparse.Namespace) -> int:
    settings = dict(parse_setting(text) for text in chosen.set)
    from engram import parallel
    from engram.experiment.progress import Watch, accuracy_table
    from engram.experiment.records import read_records
    from engram.experiment.run import Interrupted, Request, Stop, default_folder, run

    request = Request(
        dataset=chosen.dataset,
        method=chosen.method,
        preset=chosen.preset,
        seed=chosen.seed,
        order_seed=chosen.order_seed,
        settings=settings,
    )
    folder = chosen.out or default_folder(request.config())
    out = console()
    stop, here = Stop(), parallel.launched()
    with signals_set(stop, patient=here.many):
        try:
            run(
                request,
                folder,
                resume=chosen.resume,
                tensorboard=chosen.tensorboard,
                display=Watch(out),
                stop=stop,
            )
        except Interrupted:
            if here.rank:
                return 130
            tensorboard = " --tensorboard" if chosen.tensorboard else ""
            print(f"saved; go on with: engram run --resume --out {shlex.quote(str(folder))}{tensorboard}")
            return 130
    if here.rank:
        return 0
    out.print()
    out.print(accuracy_table(list(read_records(folder))))
    print(f"\nrun folder: {folder}")
    return 0


def do_sample(chosen: argparse.Namespace) -> int:
    from engram.experiment.files import write_atomically
    from engram.experiment.pictures import png
    from engram.experiment.reopen import demand_classes, reopen, sample_grid

    if chosen.per_class < 1:
        raise ConfigError(f"--per-class {chosen.per_class} must be 1 or more")
    run = reopen(chosen.run)
    demand_classes(run)
    words = chosen.classes.split(",") if chosen.classes else []
    columns = [run.column(word.strip()) for word in words] or list(range(len(run.names)))
    grid = sample_grid(run, columns, chosen.per_class, chosen.seed)
    try:
        write_atomically(chosen.out, png(grid))
    except OSError as error:
        raise ConfigError(f"--out {chosen.out} cannot be written ({error}); name a .png file") from error
    print(f"{chosen.out}: {', '.join(run.names[column] for column in columns)}")
    return 0


def do_predict(chosen: argparse.Namespace) -> int:
    from engram.experiment.reopen import predict, reopen

    for answer in predict(reopen(chosen.run), chosen.images):
        print(f"{answer.path}: {answer.name} ({100 * answer.probability:.1f} %)")
    return 0


def do_verify(chosen: argparse.Namespace) -> int:
    from engram.experiment.reopen import verify

    return print_checks(verify(chosen.run))
