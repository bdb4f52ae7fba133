"""The command line: bad input ends with exit code 2 and one line, and nothing is written or lost."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import write_npz
from engram.cli import call
from engram.experiment.records import read_records

QUICK = ["--method", "finetune", "--set", "training.epochs=1", "--set", "runtime.threads=1"]


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
        (["run", "--set", "training.epoch=3"], "did you mean 'training.epochs'"),
        (["run", "--set", "epochs=3"], "did you mean 'training.epochs'"),
        (["run", "--set", "training.epochs=three"], "training.epochs='three' is not a whole number"),
        (["run", "--set", "training.epochs=-1"], "training.epochs=-1 is out of range"),
        (["run", "--set", "training.epochs"], "not GROUP.FIELD=VALUE"),
        (["run", "--set", "seed=3"], "use --seed 3"),
        (["run", "--seed", "x"], "invalid int value: 'x'"),
        (["run", "--seed", "-1"], "seed=-1 is out of range"),
        (["run", "--set", "stream.order=0,1,11"], "class 11"),
        (["run", "--set", "stream.classes_per_task=11"], "between 1 and the 10 classes"),
        (["run", "--set", "runtime.device=cuda:99"], "runtime.device"),
        (["run", "--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["train"], "invalid choice: 'train'"),
        (["run", "--dataset", "mnist"], "engram data fetch mnist"),
        (["run", "--dataset", "folder:nowhere"], "nowhere"),
        (["run", "--dataset", "npz:nowhere.npz"], "nowhere.npz"),
        (["run", "--resume", "--out", "nowhere"], "does not exist"),
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
    assert "one class" in refused(words, capsys) or "two" in capsys.readouterr().err
    for number in range(3):
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
    words = ["run", "--dataset", f"npz:{data}", *QUICK, "--set", "training.network=digits", "--set", "training.width=2"]
    for preset, said in (("cifar10", True), ("cifar10-small", False), ("default", False)):
        assert call([*words, "--set", "runtime.device=cpu", "--preset", preset, "--out", str(tmp_path / preset)]) == 0
        assert ("--preset cifar10-small" in capsys.readouterr().out) == said


def test_a_damaged_checkpoint_is_named_and_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_npz(tmp_path / "a.npz")
    assert call(["run", "--dataset", f"npz:{path}", "--out", "run", *QUICK]) == 0
    file = next(Path("run").glob("checkpoint-*"))
    broken = bytearray(file.read_bytes())
    broken[len(broken) // 2] ^= 1
    file.write_bytes(broken)
    before = {p: p.read_bytes() for p in Path("run").iterdir()}
    capsys.readouterr()
    assert call(["run", "--resume", "--out", "run"]) == 2
    err = capsys.readouterr().err
    assert file.name in err
    assert err.count("\n") == 1
    assert {p: p.read_bytes() for p in Path("run").iterdir()} == before


def test_listings_name_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["list"]) == 0
    out = capsys.readouterr().out
    for word in ("joint", "finetune", "digits", "folder:PATH", "training.epochs", "quick", "upper bound"):
        assert word in out
    assert call(["data", "list"]) == 0
    assert "embedded" in capsys.readouterr().out
    assert call(["data", "check", "digits"]) == 0
    assert call([]) == 0
    assert call(["data"]) == 0
    assert call(["--version"]) == 0


def test_help_comes_without_torch() -> None:
    code = "import sys, engram.cli; engram.cli.call([]); sys.exit('torch' in sys.modules or 'rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
