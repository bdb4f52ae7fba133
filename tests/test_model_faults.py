"""Faults that were found in models once, each with the steps that showed it."""

from __future__ import annotations

import shutil
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engram.cli import call
from engram.errors import ConfigError, DataError, RunError
from engram.experiment.folder import locked
from engram.model.card import card_paths
from engram.model.file import work_folder
from engram.model.learn import learn
from engram.model.model import Model
from engram.sklearn import as_labels
from test_model import TOY, toy, write_folder

MAY = {"mug": 0, "ball": 5}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file of two classes."""
    folder = tmp_path_factory.mktemp("two")
    model = toy()
    model.learn(write_folder(folder / "may", MAY))
    model.save(folder / "two.engram")
    return folder / "two.engram"


@pytest.fixture
def path(two: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copy(two, tmp_path / "m.engram")
    return tmp_path / "m.engram"


@pytest.mark.parametrize("method", ["dgmw", "dgma"])
def test_several_classes_can_be_learned_when_all_were_forgotten(method: str, tmp_path: Path) -> None:
    path, model = tmp_path / "m.engram", Model.create(method, settings=TOY)
    learn(model, write_folder(tmp_path / "may", {"mug": 0}), path)
    assert call(["forget", str(path), "mug", "--quiet"]) == 0
    june = write_folder(tmp_path / "june", {"lamp": 9, "cup": 3, "pan": 4})
    assert call(["learn", str(path), str(june), "--quiet"]) == 0
    after = Model.open(path)
    assert set(after.classes) == {"lamp", "cup", "pan"}
    assert set(after.ids.values()) == {1, 2, 3}, "the number of the class that went is not given again"
    shares = [step.facts["evaluation"]["task_mean"] for step in after.lineage if "evaluation" in step.facts]
    assert None not in shares


# ---------------------------------------------------------------- two at work


def test_a_model_that_somebody_works_on_is_refused_like_any_mistake(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    june, before = write_folder(tmp_path / "june", {"lamp": 9}), path.read_bytes()
    with locked(work_folder(path)):
        for words in (["learn", str(path), str(june)], ["forget", str(path), "mug"]):
            assert call(words) == 2
            said = capsys.readouterr().err
            assert "in use by another process" in said
            assert said.count("\n") == 1
        model = Model.open(path)
        with pytest.raises(RunError, match=r"in use by another process; wait for it, or save to another file"):
            model.save(path)
        model.save(tmp_path / "copy.engram")
    assert path.read_bytes() == before


def test_what_another_program_saved_is_not_undone(path: Path, tmp_path: Path) -> None:
    mine, other = Model.open(path), Model.open(path)
    other.forget("mug")
    other.save(path)
    mine.learn(write_folder(tmp_path / "june", {"lamp": 9}))
    with pytest.raises(RunError, match="changed by another process since it was opened; open it again"):
        mine.save(path)
    assert Model.open(path).classes == ("ball",)
    mine.save(tmp_path / "mine.engram")
    other.save(path)  # its own file, as it left it


def test_a_class_forgotten_while_another_learns_does_not_come_back(path: Path, tmp_path: Path) -> None:
    june = write_folder(tmp_path / "june", {"lamp": 9})

    class Forgets:
        """Stands for a stop that nobody asks for; meanwhile a program forgets a class and writes past the lock."""

        done = False

        @property
        def asked(self) -> bool:
            if not self.done:
                self.done = True
                other = Model.open(path)
                other.forget("mug")
                other.save(tmp_path / "past.engram")
                shutil.copy(tmp_path / "past.engram", path)
            return False

    stop = Forgets()
    with pytest.raises(RunError, match="changed by another process"):
        learn(Model.open(path), june, path, stop=stop)  # type: ignore[arg-type]
    assert stop.done
    assert Model.open(path).classes == ("ball",)


def test_another_model_that_began_with_the_same_data_is_no_version(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Model.create("dgma", settings=TOY)
    learn(other, write_folder(tmp_path / "may", MAY), tmp_path / "other.engram")
    before = (tmp_path / "other.engram").read_bytes()
    june = write_folder(tmp_path / "june", {"lamp": 9})
    assert call(["learn", str(path), str(june), "--out", str(tmp_path / "other.engram")]) == 2
    assert "is no version of this model" in capsys.readouterr().err
    assert (tmp_path / "other.engram").read_bytes() == before
    assert call(["forget", str(path), "mug"]) == 0
    assert "other.engram" not in capsys.readouterr().out


# ---------------------------------------------------------------- forgetting


def test_the_version_that_forgot_names_where_it_came_from(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away = tmp_path / "away"
    away.mkdir()
    assert call(["forget", str(path), "mug", "--out", str(away / "new.engram")]) == 0
    assert f"{path} still holds it" in capsys.readouterr().out


def test_what_a_killed_save_left_goes_when_a_class_is_forgotten(path: Path) -> None:
    left = path.with_name(f".{path.name}.99999999.tmp")
    shutil.copy(path, left)
    assert call(["forget", str(path), "mug", "--quiet"]) == 0
    assert not left.exists()


def test_an_audit_file_is_remembered_when_a_class_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.engram"
    learn(toy(), write_folder(tmp_path / "may", MAY), path, audit=tmp_path / "audit.bin")
    capsys.readouterr()
    assert call(["forget", str(path), "mug"]) == 0
    assert "audit file" in capsys.readouterr().out


def test_retraining_can_be_asked_for_afterwards(path: Path) -> None:
    assert call(["forget", str(path), "mug", "--quiet"]) == 0
    assert not Model.open(path).trained_anew
    assert call(["forget", str(path), "mug", "--retrain", "--quiet"]) == 0
    after = Model.open(path)
    assert [step.kind for step in after.lineage[-2:]] == ["forgot", "relearned"]
    assert after.trained_anew
    assert call(["forget", str(path), "mug", "--retrain", "--quiet"]) == 0
    assert Model.open(path).digest == after.digest, "once is enough"


def test_a_forgetting_that_fails_leaves_the_card(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for card in card_paths(path):
        card.write_text("the card")
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise RunError("no space left on device")

    monkeypatch.setattr("engram.model.learn.put", full)
    assert call(["forget", str(path), "mug"]) == 2
    assert path.read_bytes() == before
    assert [card.read_text() for card in card_paths(path)] == ["the card"] * 2
    assert not work_folder(path).exists()


@pytest.mark.parametrize("name", [["mug"], None, 3])
def test_only_a_text_names_a_class(path: Path, name: object) -> None:
    with pytest.raises(ConfigError, match="unknown class"):
        Model.open(path).forget(name)  # type: ignore[arg-type]


# ---------------------------------------------------------------- images, labels, words


def test_the_very_same_images_again_are_said_to_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, may = tmp_path / "m.engram", write_folder(tmp_path / "may", MAY)
    learn(toy(), may, path)
    capsys.readouterr()
    before = path.read_bytes()
    assert call(["learn", str(path), str(may)]) == 2
    said = capsys.readouterr().err
    assert "is known already, from these very examples: nothing is left to do" in said
    assert said.count("\n") == 1
    assert path.read_bytes() == before


def test_labels_that_no_model_can_hold_are_refused(tmp_path: Path) -> None:
    images, labels = np.zeros((12, 32, 32), np.uint8), np.array([2**63, 1] * 6, np.uint64)
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    with pytest.raises(DataError, match="9223372036854775808"):
        toy().learn(tmp_path / "a.npz")
    with pytest.raises(DataError, match="9223372036854775808"):
        as_labels(labels)
    with pytest.raises(DataError, match="label True is no class"):
        toy().learn(images, [True, False] * 6)


def test_an_empty_image_is_none(path: Path) -> None:
    with pytest.raises(DataError, match="image 0 of the list is 0x5: there is nothing to see"):
        Model.open(path).predict(Image.new("L", (0, 5)))


def test_answers_before_a_broken_file_do_not_depend_on_the_batch(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        Image.new("L", (8, 8), 40 * number).save(tmp_path / f"{number}.png")
    (tmp_path / "broken.png").write_bytes(b"none")
    names = [str(tmp_path / name) for name in ("0.png", "1.png", "broken.png", "2.png")]
    told = []
    for batch in ("1", "2", "256"):
        assert call(["predict", str(path), *names, "--batch", batch, "--format", "csv"]) == 2
        told.append(capsys.readouterr().out)
    assert told[0].count("\n") == 3
    assert told == [told[0]] * 3
    monkeypatch.setattr(sys, "stdin", StringIO(f"{names[0]}\r\n{names[1]}\r\n"))
    assert call(["predict", str(path), "-"]) == 0


def test_a_file_that_only_answers_is_not_said_to_have_a_generator(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, again = str(tmp_path / "small.engram"), str(tmp_path / "again.engram")
    assert call(["export", str(path), "--engram", small, "--no-generator"]) == 0
    assert call(["export", small, "--engram", again]) == 0
    assert "with its generator" not in capsys.readouterr().out
