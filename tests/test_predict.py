"""Answers for image files: which files are meant, in which form they are told, what is done about broken ones."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import write_npz
from engram.cli import call
from engram.errors import DataError
from engram.experiment.predict import Prediction, Unreadable, image_paths, predict
from engram.experiment.reopen import OpenRun, reopen


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> OpenRun:
    folder = tmp_path_factory.mktemp("predict")
    data = write_npz(folder / "a.npz")
    words = ["run", "--dataset", f"npz:{data}", "--method", "joint", "--out", str(folder / "run"), "--quiet"]
    assert call([*words, "--set", "classifier.epochs=2", "--set", "runtime.threads=1"]) == 0
    return reopen(folder / "run")


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


def test_batches_give_the_answers_of_single_images(run: OpenRun, images: Path) -> None:
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


def test_a_broken_file_stops_or_is_skipped(run: OpenRun, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [images / "0.png", images / "notes.txt", images / "nowhere.png", images / "1.png"]
    with pytest.raises(DataError, match="notes"):
        list(predict(run, paths))
    kinds = [type(answer) for answer in predict(run, paths, on_error="skip", batch=2)]
    assert kinds == [Prediction, Unreadable, Unreadable, Prediction]
    words = ["predict", str(run.folder), *map(str, paths)]
    assert call(words) == 2
    capsys.readouterr()
    assert call([*words, "--on-error", "skip"]) == 1, "not all was answered"
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2
    assert len(said.err.splitlines()) == 2


def test_the_forms_agree(run: OpenRun, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", str(run.folder), str(images), "--top", "2"]
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


@pytest.mark.parametrize("words", [["--top", "0"], ["--batch", "-1"], ["--format", "xml"]])
def test_mistakes_are_one_line(
    words: list[str], run: OpenRun, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["predict", str(run.folder), str(images), *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_more_classes_than_there_are_is_all_of_them(run: OpenRun, images: Path) -> None:
    (answer,) = predict(run, [images / "0.png"], top=99)
    assert isinstance(answer, Prediction)
    assert sorted(answer.names) == sorted(run.names)
    assert sum(answer.probabilities) == pytest.approx(1)
