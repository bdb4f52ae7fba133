"""Answers for image files: which files are meant, in which form they are told, what is done about broken ones."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import write_npz
from engram.cli import call
from engram.data.datasets import resize
from engram.errors import DataError
from engram.evaluation.trust import Trust
from engram.model.model import Model
from engram.model.predict import Prediction, Unreadable, image_paths, predict, read_image


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("predict")
    data = write_npz(folder / "a.npz")
    words = ["run", "--dataset", f"npz:{data}", "--method", "joint", "--out", str(folder / "run"), "--quiet"]
    assert call([*words, "--set", "classifier.epochs=2", "--set", "runtime.threads=1"]) == 0
    return Model.open(folder / "run")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Files of several sizes, nested, and one that is no image."""
    draws = np.random.default_rng(0)
    (tmp_path / "more").mkdir()
    for number in range(5):
        pixels = draws.integers(0, 256, (32 + 7 * (number % 2), 32), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / ("more" if number > 2 else ".") / f"{number}.png")
    (tmp_path / "notes.txt").write_text("no image")
    return tmp_path


def engram(
    *words: str, stdin: bytes = b"", out: int = subprocess.PIPE, encoding: str = "utf-8"
) -> tuple[int, str, str]:
    """The command in a process of its own, with real streams: exit code, output, complaints."""
    command = [sys.executable, "-m", "engram", *words]
    done = subprocess.run(
        command,
        input=stdin,
        stdout=out,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        check=False,
    )
    return done.returncode, (done.stdout or b"").decode(), done.stderr.decode()


def test_names_that_a_stream_cannot_say_are_escaped(run: Model, images: Path, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9.png")
    shutil.copy(images / "0.png", odd)
    word = str(run.path)
    for encoding in ("utf-8:strict", "ascii:strict"):
        listed = os.fsencode(odd) + b"\n" + os.fsencode(images / "1.png")
        code, said, complaints = engram("predict", word, "-", "--format", "csv", stdin=listed, encoding=encoding)
        assert (code, complaints) == (0, "")
        assert "caf\\udce9.png," in said
        assert len(said.splitlines()) == 3
    shutil.copy(images / "0.png", tmp_path / "bäll.png")
    code, said, complaints = engram("predict", word, str(tmp_path / "bäll.png"), encoding="ascii:strict")
    assert (code, complaints) == (0, "")
    assert "b\\xe4ll.png: " in said
    code, said, complaints = engram("card", word, encoding="ascii:strict")
    assert (code, complaints) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
@pytest.mark.parametrize("words", [["predict", "RUN", "IMAGES"], ["card", "RUN"], ["verify", "RUN"], ["--version"]])
def test_output_that_cannot_be_written_is_one_line(run: Model, images: Path, words: list[str]) -> None:
    replaced = {"RUN": str(run.path), "IMAGES": str(images)}
    with open("/dev/full", "wb") as full:
        code, _, complaints = engram(*(replaced.get(word, word) for word in words), out=full.fileno())
    assert code == 2
    assert complaints.count("\n") == 1
    assert "cannot read or write standard input or output: No space left on device" in complaints


def test_batches_give_the_answers_of_single_images(run: Model, images: Path) -> None:
    paths = list(image_paths([str(images)]))
    assert [path.name for path in paths] == ["0.png", "1.png", "2.png", "3.png", "4.png"]
    one_by_one = [answer for path in paths for answer in predict(run, [path], top=3)]
    for batch in (1, 2, 256):
        together = list(predict(run, paths, top=3, batch=batch))
        for a, b in zip(together, one_by_one, strict=True):
            assert isinstance(a, Prediction)
            assert isinstance(b, Prediction)
            assert (a.path, a.names) == (b.path, b.names)
            torch.testing.assert_close(torch.tensor(a.probabilities), torch.tensor(b.probabilities))
            assert list(a.probabilities) == sorted(a.probabilities, reverse=True)


def test_files_folders_patterns_and_lines_are_understood(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(images)
    assert [str(path) for path in image_paths(["0.png", "more", "[12].png"])] == [
        "0.png", "more/3.png", "more/4.png", "1.png", "2.png",
    ]  # fmt: skip
    assert [path.name for path in image_paths(["-"], ["1.png\n", "\n", "more\n"])] == ["1.png", "3.png", "4.png"]
    (images / "a[1].png").write_bytes((images / "0.png").read_bytes())
    assert [str(path) for path in image_paths(["a[1].png"])] == ["a[1].png"], "a file of that very name"
    (images / "empty").mkdir()
    for word, said in (("x*.png", "no file has such a name"), ("empty", "holds no image")):
        with pytest.raises(DataError, match=said):
            list(image_paths([word]))


def test_a_broken_file_stops_or_is_skipped(run: Model, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [images / "0.png", images / "notes.txt", images / "nowhere.png", images / "1.png"]
    with pytest.raises(DataError, match="notes"):
        list(predict(run, paths))
    kinds = [type(answer) for answer in predict(run, paths, on_error="skip", batch=2)]
    assert kinds == [Prediction, Unreadable, Unreadable, Prediction]
    words = ["predict", str(run.path), *map(str, paths)]
    assert call(words) == 2
    capsys.readouterr()
    assert call([*words, "--on-error", "skip"]) == 1, "not all was answered"
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2
    assert len(said.err.splitlines()) == 2


def test_the_forms_agree(run: Model, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", str(run.path), str(images), "--top", "2"]
    told = {}
    for form in ("table", "jsonl", "csv"):
        assert call([*words, "--format", form]) == 0
        told[form] = capsys.readouterr().out
    facts = [json.loads(line) for line in told["jsonl"].splitlines()]
    rows = list(csv.DictReader(io.StringIO(told["csv"])))
    assert [fact["path"] for fact in facts] == [row["path"] for row in rows]
    for fact, row, line in zip(facts, rows, told["table"].splitlines(), strict=True):
        best, second = fact["classes"]
        assert (best["class"], second["class"]) == (row["class1"], row["class2"])
        assert float(row["probability1"]) == best["probability"] >= second["probability"]
        assert line.startswith(f"{fact['path']}: {best['class']} (")
        assert fact["known"] is True, "nothing was calibrated"
        assert row["known"] == "true"
    assert told["csv"].splitlines()[0] == "path,class1,probability1,class2,probability2,known"


@pytest.fixture
def two(images: Path, tmp_path: Path) -> tuple[Model, list[Path]]:
    """A model, an image that it knows and one that it does not: its threshold lies between their probabilities."""
    draws = np.random.default_rng(1)
    pixels = draws.integers(0, 60, (40, 32, 32), dtype=np.uint8)
    pixels[20:, :, 16:] += 180
    model = Model.create("finetune", settings={"classifier.epochs": 2, "runtime.threads": 1})
    model.learn(pixels, ["dark"] * 20 + ["bright"] * 20)
    paths = [images / "0.png", images / "1.png"]
    shares = model.predict_proba(paths).max(1)
    assert model.trust is not None
    model.trust = Trust(replace(model.trust.calibration, threshold=float(shares.mean())), None)
    model.save(tmp_path / "m.engram")
    return model, sorted(paths, key=lambda path: -shares[paths.index(path)])


def test_an_image_that_no_class_fits_is_unknown(
    two: tuple[Model, list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    model, paths = two
    sure, unsure = predict(model, paths)
    assert isinstance(sure, Prediction)
    assert isinstance(unsure, Prediction)
    assert (sure.known, unsure.known) == (True, False)
    assert model.predict(paths) == [sure.names[0], "unknown"], "as the library answers"
    words = ["predict", str(model.path), *map(str, paths)]
    assert call(words) == 0
    known = [f"{one.path}: {one.names[0]} ({100 * one.probabilities[0]:.1f} %)" for one in (sure, unsure)]
    nearest = f"{paths[1]}: unknown (nearest: {unsure.names[0]} {100 * unsure.probabilities[0]:.1f} %)"
    assert capsys.readouterr().out.splitlines() == [known[0], nearest]
    assert call([*words, "--no-unknown"]) == 0
    assert capsys.readouterr().out.splitlines() == known
    assert call([*words, "--format", "jsonl"]) == 0
    assert [json.loads(line)["known"] for line in capsys.readouterr().out.splitlines()] == [True, False]
    assert call([*words, "--format", "csv"]) == 0
    assert [row["known"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))] == ["true", "false"]


def test_a_photograph_is_scaled_by_the_function_that_scales_for_learning(tmp_path: Path) -> None:
    """Whatever the format: an answer is about the pixels that would have been learned from."""
    draws = np.random.default_rng(2)
    pixels = draws.integers(0, 256, (90, 120, 3), dtype=np.uint8)
    for name in ("a.png", "a.jpg", "a.webp", "a.bmp"):
        Image.fromarray(pixels).save(tmp_path / name)
        for channels, mode in ((1, "L"), (3, "RGB")):
            whole = np.array(Image.open(tmp_path / name).convert(mode)).reshape(90, 120, channels).transpose(2, 0, 1)
            learned = resize(np.ascontiguousarray(whole)[None], 32)[0].numpy()
            np.testing.assert_array_equal(read_image(tmp_path / name, channels, 32), learned)


def test_answering_does_not_wait_for_the_compiler_of_torch(two: tuple[Model, list[Path]]) -> None:
    model, (path, _) = two
    words = ["predict", str(model.path), str(path)]
    code = f"import sys; from engram.cli import call; call({words!r}); sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("words", [["--top", "0"], ["--batch", "-1"], ["--format", "xml"]])
def test_mistakes_are_one_line(words: list[str], run: Model, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["predict", str(run.path), str(images), *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_more_classes_than_there_are_is_all_of_them(run: Model, images: Path) -> None:
    (answer,) = predict(run, [images / "0.png"], top=99)
    assert isinstance(answer, Prediction)
    assert sorted(answer.names) == sorted(run.classes)
    assert sum(answer.probabilities) == pytest.approx(1)
