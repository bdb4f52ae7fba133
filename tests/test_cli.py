"""The command line: bad input ends with exit code 2 and one line, and nothing is written or lost."""

from __future__ import annotations

import argparse
import gzip
import io
import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

from conftest import write_npz
from engram.cli import call, listing
from engram.cli.completion import SHELLS, actions
from engram.cli.parser import EPILOG, build_parser
from engram.cli.runs import asked_for
from engram.cli.terminal import PlainConsole
from engram.config import as_dict, groups_of, help_of
from engram.data.datasets import DATASETS, SIZES
from engram.experiment.folder import read_origin
from engram.experiment.records import read_records
from engram.experiment.request import Request
from engram.methods.learner import Samples
from engram.methods.registry import METHODS, configure
from engram.model.model import Model
from engram.presets import PRESETS
from engram.report.document_tables import TABLES
from synthetic import write_run

QUICK = ["--method", "finetune", "--set", "classifier.epochs=1", "--set", "runtime.threads=1"]


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder, and no data but the test's own."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("ENGRAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ENGRAM_DATA", str(tmp_path / "data"))


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a user's mistake."""
    assert call(words) == 2
    out, err = capsys.readouterr()
    assert err.startswith("engram: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err + out
    assert not list(Path.cwd().rglob("*")), "nothing is written"
    return err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--dataset", "mnits"], "did you mean 'mnist'"),
        (["run", "--dataset", "digits", "--method", "jiont"], "did you mean 'joint'"),
        (["run", "--preset", "digit"], "did you mean 'digits'"),
        (["run", "--set", "classifier.epoch=3"], "did you mean 'classifier.epochs'"),
        (["run", "--set", "epochs=3"], "did you mean 'classifier.epochs'"),
        (["run", "--set", "training.epochs=3"], "did you mean 'classifier.epochs'"),
        (["run", "--set", "method.width=3"], "did you mean 'classifier.width'"),
        (["run", "--set", "classifier.epochs=three"], "classifier.epochs='three' is not a whole number"),
        (["run", "--set", "classifier.epochs=-1"], "classifier.epochs=-1 is out of range"),
        (["run", "--set", "classifier.epochs"], "not GROUP.FIELD=VALUE, such as classifier.epochs=3"),
        (["run", "--set", "seed=3"], "use --seed 3"),
        (["run", "--seed", "x"], "invalid int value: 'x'"),
        (["run", "--seed", "-1"], "seed=-1 is out of range"),
        (["run", "--set", "stream.order=0,1,11"], "unknown class '11'"),
        (["run", "--set", "stream.classes_per_task=11"], "between 1 and the 10 classes"),
        (["run", "--set", "runtime.device=cuda:99"], "runtime.device"),
        (["run", "--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["train"], "invalid choice: 'train'"),
        (["run", "--dataset", "mnist"], "engram data fetch mnist"),
        (["run", "--dataset", "folder:nowhere"], "nowhere"),
        (["run", "--dataset", "npz:nowhere.npz"], "nowhere.npz"),
        (["run", "--resume", "--out", "nowhere"], "does not exist"),
        (["run", "--config", "nowhere.toml"], "cannot read nowhere.toml"),
        (["run", "--config", "nowhere.json"], "nowhere.json"),
        (["run", "--config", "own.toml", "--resume"], "leave --config out"),
        (["run", "--quiet", "--verbose"], "not allowed with"),
        (["bench", "-q", "-v"], "not allowed with"),
        (["bench", "--set", "classifier.epochs=x"], "not a whole number"),
        (["list", "mnist"], "`engram list datasets mnist` and `engram list presets mnist`"),
        (["list", "masks"], "`engram list settings masks`"),
        (["list", "method"], "did you mean 'methods'"),
        (["list", "dgmv"], "did you mean 'dgmw'"),
        (["list", "methods", "dgmv"], "did you mean 'dgmw'"),
        (["list", "datasets", "mnits"], "did you mean 'mnist'"),
        (["list", "presets", "mnits"], "did you mean 'mnist'"),
        (["list", "presets", "auto"], "name one: default, digits"),
        (["list", "presets", "mnist", "dgmv"], "did you mean 'dgmw'"),
        (["list", "settings", "mask"], "did you mean 'masks'"),
        (["list", "settings", "gan.epoch"], "did you mean 'gan.epochs'"),
        (["completion", "fish"], "invalid choice: 'fish'"),
        (["data", "check", "digits", "--image-size", "48"], "invalid choice: 48"),
        (["report", "x", "y", "--update", "z.md"], "one folder of runs, not 2"),
        (["report", "x", "--watch", "--update", "z.md"], "leave --watch away"),
        (["data", "fetch", "imagenet50"], "imagenet50"),
        (["data", "fetch", "nope"], "unknown data set 'nope'"),
        (["data", "check", "nope"], "unknown data set 'nope'"),
    ],
)
def test_mistakes_end_in_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(words, capsys)


def picture(path: Path, size: int = 20, mode: str = "L", value: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (size, size), value if mode == "L" else (value, 0, 0)).save(path)


def test_bad_folders_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "images"
    root.mkdir()
    words = ["run", "--dataset", f"folder:{root}", *QUICK]
    assert str(root) in refused(words, capsys)
    for number in range(3):
        picture(root / "train" / "cat" / f"{number}.png")
        picture(root / "train" / "dog" / f"{number}.png")
    (root / "train" / "dog" / "9.png").write_bytes(b"not a picture")
    assert "9.png" in refused(words, capsys)


def test_mixed_sizes_and_kinds_are_brought_to_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "images"
    for number in range(6):
        picture(root / "train" / "cat [b]" / f"{number}.png", size=10 + 7 * number)
        picture(root / "train" / "dog" / f"{number}.jpg", size=64, mode="RGB", value=250)
    assert call(["run", "--dataset", f"folder:{root}", "--out", "run", *QUICK]) == 0
    assert "cat [b]" in capsys.readouterr().out, "names from users' data are shown as they are"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("labels"), "labels"),
        (lambda a: a.update(images=a["images"].astype(np.float32)), "uint8"),
        (lambda a: a.update(images=np.full(a["images"].shape, np.nan)), ""),
        (lambda a: a.update(labels=a["labels"] * 2), "label"),
        (lambda a: a.update(labels=a["labels"][:-1]), "label"),
    ],
)
def test_bad_arrays_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], change: object, message: str) -> None:
    path = write_npz(tmp_path / "a.npz")
    arrays = dict(np.load(path))
    change(arrays)  # type: ignore[operator]
    np.savez(path, **arrays)
    line = refused(["run", "--dataset", f"npz:{path}", *QUICK], capsys)
    assert "a.npz" in line
    assert message in line


def test_truncated_standard_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        header = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (2, 28, 28))
        images = gzip.compress(header + bytes(2 * 28 * 28))
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(images[: len(images) // 2])
        labels = bytes([0, 0, 8, 1]) + (2).to_bytes(4, "big") + bytes([0, 1])
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    assert "train-images-idx3-ubyte.gz" in refused(["run", "--dataset", "mnist"], capsys)
    assert call(["data", "check", "mnist"]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert call(["data", "list"]) == 0
    assert "broken" in capsys.readouterr().out


def test_run_prints_the_table_and_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_npz(tmp_path / "a.npz")
    words = ["run", "--dataset", f"npz:{path}", *QUICK]
    assert call(words) == 0
    out = capsys.readouterr().out
    rows = re.findall(r"^ +(\d) +(\d) +\d +(\d+\.\d\d) ", out, re.MULTILINE)
    recorded = [r for r in read_records(Path("runs/a.npz-finetune-seed0")) if r["kind"] == "evaluation"]
    assert [row[2] for row in rows] == [f"{100 * r['accuracy']:.2f}" for r in recorded]
    assert "finetune (lower bound)" in out
    assert out.rstrip().endswith("run folder: runs/a.npz-finetune-seed0")
    assert call(words) == 2, "the folder is taken"
    assert "--resume" in capsys.readouterr().err
    assert call(["run", "--resume", "--out", "runs/a.npz-finetune-seed0"]) == 0
    assert call([*words, "--resume"]) == 0


def test_sizes_meant_for_a_gpu_are_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_npz(tmp_path / "a.npz", per_class=10)
    words = ["run", "--dataset", f"npz:{data}", *QUICK, "--set", "classifier.architecture=convnet"]
    words += ["--set", "classifier.width=2"]
    for preset, said in (("cifar10", True), ("cifar10-small", False), ("default", False)):
        assert call([*words, "--set", "runtime.device=cpu", "--preset", preset, "--out", str(tmp_path / preset)]) == 0
        assert ("--preset cifar10-small" in capsys.readouterr().out) == said


def test_a_damaged_checkpoint_is_named_and_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_npz(tmp_path / "a.npz")
    assert call(["run", "--dataset", f"npz:{path}", "--out", "run", *QUICK]) == 0
    for file in Path("run").glob("checkpoint-*"):  # the last one and the one before it
        broken = bytearray(file.read_bytes())
        broken[len(broken) // 2] ^= 1
        file.write_bytes(broken)
    before = {p: p.read_bytes() for p in Path("run").iterdir()}
    capsys.readouterr()
    assert call(["run", "--resume", "--out", "run"]) == 2
    err = capsys.readouterr().err
    last = json.loads(Path("run/checkpoint.json").read_text())["body"]["file"]
    assert f"run/{last} is damaged" in err
    assert err.count("\n") == 1
    assert {p: p.read_bytes() for p in Path("run").iterdir()} == before


# ---------------------------------------------------------------- a file of settings


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that works prints."""
    capsys.readouterr()
    assert call(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("preset", ["default", "mnist", "imagenet50-quick"])
@pytest.mark.parametrize("method", METHODS)
def test_a_printed_preset_can_be_used_as_a_file(
    preset: str, method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(told(["list", "presets", preset, method], capsys))
    wanted = configure(dataset="npz:x.npz", method=method, preset=preset)
    found = Request("npz:x.npz", method, file=path).config()
    assert as_dict(found) == {**as_dict(wanted), "preset": "auto"}


def test_a_file_of_settings_is_what_runs(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "a.npz")
    own = tmp_path / "own.toml"
    own.write_text("[stream]\nclasses_per_task = 2\n[finetune]\nclassifier = { epochs = 1, width = 3 }\n")
    words = ["run", "--quiet", "--set", "runtime.threads=1"]
    assert call([*words, "--dataset", f"npz:{data}", "--method", "finetune", "--config", str(own), "--out", "a"]) == 0
    first = read_origin(Path("a")).config
    assert (first.stream.classes_per_task, first.classifier.width) == (2, 3)
    assert call([*words, "--config", "a/config.json", "--seed", "5", "--out", "b"]) == 0
    assert read_origin(Path("b")).config == replace(first, seed=5)


def test_classes_come_in_the_order_of_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "things"
    for place, name in enumerate(("ball", "cup", "mug")):
        for number in range(4):
            picture(root / "train" / name / f"{number}.png", value=80 * place)
    words = ["run", "--dataset", f"folder:{root}", "--out", "run", *QUICK]
    assert "did you mean 'mug'" in refused([*words, "--set", "stream.order=mugg,ball"], capsys)
    assert call([*words, "--set", "stream.order=mug,ball"]) == 0
    (head,) = [r for r in read_records(Path("run")) if r["kind"] == "run"]
    assert [[head["class_names"][c] for c in task] for task in head["tasks"]] == [["mug"], ["ball"]]
    assert call(["run", "--resume", "--out", "run", "-q"]) == 0, "a stored order is read back"


# ---------------------------------------------------------------- less and more


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that is done, of a method that draws."""
    data = write_npz(tmp_path / "a.npz", classes=2, per_class=12)
    words = ["run", "--dataset", f"npz:{data}", "--method", "mergan", "--preset", "fast", "--quiet"]
    assert call([*words, "--set", "runtime.threads=1", "--out", str(tmp_path / "run")]) == 0
    return tmp_path / "run"


def test_quiet_says_nothing_but_what_was_asked_for(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert capsys.readouterr() == ("", ""), "the run itself"
    image = tmp_path / "a.png"
    picture(image)
    assert told(["sample", str(run), "-q"], capsys) == ""
    assert Path("grid.png").exists()
    quiet = told(["verify", str(run), "-q"], capsys)
    assert quiet == "" or re.fullmatch(r"verified: \d checks ok; \d not checked: [a-z, ]+\n", quiet)
    assert told(["predict", str(run), str(image), "-q"], capsys) == told(["predict", str(run), str(image)], capsys)
    assert told(["report", str(run), "-q"], capsys) == ""
    assert Path("report/index.html").exists()
    (run / "records.jsonl").write_text("damaged\n")
    assert call(["verify", str(run), "--quiet"]) == 1
    assert capsys.readouterr().out.startswith("FAILED integrity")


def test_a_quiet_bench_prints_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_npz(tmp_path / "a.npz", classes=2, per_class=10)
    words = ["bench", "--dataset", f"npz:{data}", "--methods", "finetune", "--jobs", "1"]
    lines = told([*words, "--set", "classifier.epochs=1", "-q"], capsys).splitlines()
    assert lines[0].startswith("A_t at the end")
    assert len(lines) == 3
    assert call([*words, "--set", "classifier.epochs=1", "-v"]) == 0
    assert "engram run --resume --out runs/bench/a.npz-finetune-seed0" in capsys.readouterr().err


def test_verbose_tells_the_settings_and_every_epoch(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_npz(tmp_path / "a.npz", classes=2, per_class=12)
    words = ["run", "--dataset", f"npz:{data}", "--method", "finetune", "--set", "classifier.epochs=3"]
    usual = told([*words, "--out", "usual"], capsys)
    out = told([*words, "--out", "verbose", "--verbose"], capsys)
    assert re.search(r"^classifier: .*epochs=3", out, re.MULTILINE)
    assert len(re.findall(r"^task \d/2  epoch \d  class", out, re.MULTILINE)) == 6
    assert "classifier: " not in usual
    for command in (["sample"], ["verify"]):
        assert call([*command, str(run), "-v"]) == 0
        assert "generator: architecture=dcgan" in capsys.readouterr().err
    assert call(["verify", str(tmp_path / "nowhere"), "-v"]) == 1
    files = told(["report", str(run), "-v"], capsys).splitlines()
    assert all(Path(line).is_file() for line in files[:-1])
    assert "report/index.html" in files


# ---------------------------------------------------------------- names from outside

EVIL = (":car: [red]x[/red]", "a\x1b[31mb", "c\rd")


def test_names_are_shown_and_never_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "data\x1b[2J"
    for place, name in enumerate(EVIL):
        for number in range(4):
            picture(root / "train" / name.replace("/", "\u2215") / f"{number}.png", value=80 * place)
    run = tmp_path / "run\x1b[1m"
    words = ["run", "--dataset", f"folder:{root}", "--preset", "fast", "--method", "dgmw", "--out", str(run), "-v"]
    said = told(words, capsys)
    image = tmp_path / "i\x1b.png"
    picture(image)
    said += told(["predict", str(run), str(image)], capsys)
    said += told(["sample", str(run)], capsys) + told(["verify", str(run)], capsys)
    said += told(["data", "check", f"folder:{root}"], capsys)
    assert call(["sample", str(run), "--classes", "x\x1b"]) == 2
    said += capsys.readouterr().err
    assert ":car: [red]x[\u2215red]" in said
    assert "a\ufffd[31mb" in said
    assert "\x1b" not in said
    assert "\r" not in said


def test_a_terminal_obeys_no_name_either() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = PlainConsole()
    out.file = Terminal()
    table = Table()
    table.add_column("x")
    table.add_row(escape(EVIL[0]))
    table.add_row(EVIL[1])
    out.print(table)
    out.print("[bold]loud[/]")
    text = out.file.getvalue()
    assert "[bold]" not in text
    assert EVIL[0] in text
    assert "a\ufffd[31mb" in text
    widths = {cell_len(line) for line in re.sub("\x1b\\[[0-9;]*m", "", text).splitlines() if line[:1] in "│┃"}
    assert len(widths) == 1, "the table is straight"


# ---------------------------------------------------------------- lists


def test_a_list_is_one_screen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "width", lambda: 80)
    out = told(["list"], capsys)
    assert len(out.splitlines()) <= 24
    assert max(map(len, out.splitlines())) <= 80
    found = re.findall(r"[\w:-]+", out)
    groups = {name for method in METHODS for name in groups_of(configure(method=method))}
    for name in (*METHODS, *DATASETS, *PRESETS, *groups, "default", "folder:PATH", "npz:PATH"):
        assert name in found
    for topic in ("methods", "datasets", "presets", "settings"):
        assert f"engram list {topic} [NAME" in out


WORDS = [
    [],
    ["methods"],
    *([name] for name in METHODS),
    ["methods", "dgmw", "joint"],
    ["datasets"],
    ["datasets", *DATASETS],
    ["presets"],
    *(["presets", name] for name in ("default", *PRESETS)),
    ["settings"],
    ["settings", "masks"],
    ["settings", "masks.s_max", "epochs"],
]


@pytest.mark.parametrize("words", WORDS, ids="-".join)
def test_every_list_is_text_for_people_and_json_for_programs(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = told(["list", *words], capsys).splitlines()
    assert max(map(len, lines)) <= 100
    assert all(line == line.rstrip() for line in lines)
    assert json.loads(told(["list", *words, "--json"], capsys))


def test_a_methods_list_holds_every_setting_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(["list", "dgmw"], capsys) == told(["list", "methods", "dgmw"], capsys)
    for name, method in METHODS.items():
        out = re.sub(r"\s+", " ", told(["list", name], capsys))
        for text in (method.summary, method.source, method.stores):
            assert text in out
        for group in groups_of(configure(method=name, preset="default")).values():
            for line in help_of(group):
                default = "none" if line.default is None else line.default
                assert f"{line.name} {default} {line.range} · {line.help}" in out


def test_who_draws_is_who_can_be_sampled(capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(told(["list", "methods", "--json"], capsys))
    assert [fact["name"] for fact in facts] == list(METHODS)
    for fact in facts:
        config = configure(method=fact["name"], preset="fast")
        learner = METHODS[fact["name"]].learner(config, (1, 32, 32), torch.device("cpu"))
        assert fact["draws"] == isinstance(learner, Samples), fact["name"]
        assert fact["strict"] == METHODS[fact["name"]].strict


def test_settings_are_listed_with_the_defaults_of_the_methods_that_have_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    facts = json.loads(told(["list", "settings", "--json"], capsys))
    found = {(fact["name"], method): value for fact in facts for method, value in fact["defaults"].items()}
    assert found == {
        (line.name, method): line.default
        for method in METHODS
        for group in groups_of(configure(method=method, preset="default")).values()
        for line in help_of(group)
    }
    out = told(["list", "settings", "generator.width"], capsys)
    assert re.search(r"^  12 +dgmw$", out, re.MULTILINE)
    assert re.search(r"^  10 +dgma$", out, re.MULTILINE)
    assert "all methods" in told(["list", "settings", "stream.holdout"], capsys)
    both = re.findall(r"^\S+", told(["list", "settings", "epochs"], capsys), re.MULTILINE)
    assert set(both) == {"classifier.epochs", "gan.epochs"}


def test_a_preset_is_listed_by_what_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(["list", "presets", "mnist"], capsys).splitlines()
    assert "finetune   classifier.epochs=1" in lines
    assert "dgmw       nothing" in lines, "the defaults of DGMw are those of MNIST"
    assert all(line.endswith("nothing") for line in told(["list", "presets", "default"], capsys).splitlines()[3:])
    facts = json.loads(told(["list", "presets", "--json"], capsys))
    assert [fact["name"] for fact in facts] == ["default", *PRESETS]
    of_the_paper = [fact for fact in facts if fact["name"].startswith("paper-")]
    assert all(set(fact["methods"]) == {"dgmw", "dgma"} for fact in of_the_paper)
    assert all(set(fact["methods"]) == set(METHODS) for fact in facts if fact not in of_the_paper)


def test_data_is_listed_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert "embedded" in told(["data", "list"], capsys)
    assert "scaled to 32x32" in told(["data", "check", "digits"], capsys)
    assert "scaled to 64x64" in told(["data", "check", "digits", "--image-size", "64"], capsys)
    (action,) = {a.dest: tuple(a.choices or ()) for a in actions(build_parser()) if a.dest == "image_size"}.values()
    assert action == SIZES


# ---------------------------------------------------------------- report


def test_superseded_runs_count_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "archive" / "b", seed=1)
    assert told(["report", str(tmp_path / "runs")], capsys).startswith("1 run,")
    assert told(["report", str(tmp_path / "runs"), "--archive"], capsys).startswith("2 runs,")


def test_tables_of_documents_are_written_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "runs" / "mnist" / "dgmw" / "default" / "seed0", tasks=3)
    name = next(iter(TABLES))
    files = [tmp_path / "a.md", tmp_path / "b.md"]
    for file in files:
        file.write_text(f"before\n<!-- table: {name} -->\n<!-- end of table -->\nafter\n")
    monkeypatch.setitem(sys.modules, "jinja2", None)  # the tables need no page
    words = ["report", str(tmp_path / "runs"), "--update", *map(str, files)]
    assert told(words, capsys) == "".join(f"{file}: {name}\n" for file in files)
    assert files[0].read_text().startswith("before\n<!-- table")
    assert told(words, capsys) == "".join(f"{file}: current\n" for file in files)
    assert told([*words, "-q"], capsys) == ""
    assert not Path("report").exists()
    assert call(["report", str(tmp_path / "runs")]) == 2
    assert "engram report needs more packages" in capsys.readouterr().err


# ---------------------------------------------------------------- the words themselves


def test_every_word_has_a_meaning_and_a_default() -> None:
    for action in actions(build_parser()):
        if isinstance(action, argparse._SubParsersAction):
            assert {pseudo.dest for pseudo in action._choices_actions} == set(action.choices)
            assert all(pseudo.help for pseudo in action._choices_actions)
            continue
        assert action.help, action
        takes_value = bool(action.option_strings) and action.nargs != 0
        assert not takes_value or action.required or "default:" in action.help, action
        if takes_value and action.default and not isinstance(action.default, list):
            assert str(action.default) in action.help, action


def test_the_examples_are_true() -> None:
    lines = [line.split("  ")[0] for line in EPILOG.replace("\n  engram", "\nengram").splitlines()[1:]]
    commands = [shlex.split(line)[1:] for line in lines]
    assert {command[0] for command in commands} >= {"run", "bench", "report", "sample", "verify", "data", "list"}
    for command in commands:
        chosen = build_parser().parse_args(command)
        if command[0] == "run" and chosen.config is None and not chosen.resume:
            asked_for(chosen).config()


def test_calls_without_a_command_say_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert "examples:" in told([], capsys)
    assert "select" in told(["data"], capsys)
    assert told(["--version"], capsys).startswith("engram ")


def test_help_comes_without_torch() -> None:
    code = "import sys, engram.cli; engram.cli.call([]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "rich", "numpy", "shtab", "PIL"} & set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_can_complete_the_words(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    script = told(["completion", shell], capsys)
    for text in ("order-seed", "image-size", "mergan-ra", "fashion-mnist", "cifar10-small"):
        assert text in script, text


def test_bash_takes_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    path = tmp_path / "engram.bash"
    path.write_text(told(["completion", "bash"], capsys))
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    ask = f"source {path}; COMP_WORDS=(engram %s); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _shtab_engram; "
    ask += "echo ${COMPREPLY[@]}"
    for words, answers in (("ver", {"verify"}), ("run --method mer", {"mergan", "mergan-ra"})):
        done = subprocess.run(["bash", "-c", ask % words], capture_output=True, text=True, check=False)
        assert set(done.stdout.split()) == answers, done.stderr


def test_completion_says_what_it_needs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert "pip install 'engram-continual[completion]'" in refused(["completion", "bash"], capsys)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("forget", "Earlier versions of the model in the same folder are named where they end in .engram."),
        ("predict", "best probability is below a threshold, or the image is unlike all that was learned."),
    ],
)
def test_help_says_what_is_true(command: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call([command, "--help"])
    assert sentence in " ".join(capsys.readouterr().out.split())


def test_any_folder_is_refused_as_a_model_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m.engram"
    Model.create(preset="fast").save(model, card=False)
    assert call(["learn", str(model), "digits", "--out", str(tmp_path)]) == 2
    assert f"{tmp_path} is a folder, which stays as it is; name a new file with --out" in capsys.readouterr().err
