"""A model and what lies around it: what may be written where, what another process did, what a kill left behind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from engram.cli import call
from engram.errors import ConfigError, RunError
from engram.experiment import checkpoint
from engram.experiment.files import write_atomically
from engram.model.card import card_paths
from engram.model.file import work_folder
from engram.model.learn import learn
from engram.model.model import Model
from test_model import learn_in_bits, state_hash, toy, write_folder


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file whose classes are called 0, 1 and 7: its numbers are 0, 1 and 2."""
    folder = tmp_path_factory.mktemp("numbers")
    model = toy()
    model.learn(write_folder(folder / "may", {"0": 0, "1": 5, "7": 9}))
    model.save(folder / "m.engram")
    return folder / "m.engram"


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["2", "3", "", "ball"])
def test_a_number_is_never_taken_for_a_class_of_another_name(numbers: Path, name: str) -> None:
    model = Model.open(numbers)
    for what in (model.forget, model.sample):
        with pytest.raises(ConfigError, match="unknown class"):
            what(name)
    assert model.classes == ("0", "1", "7")


def test_forgetting_twice_forgets_one_class(numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.engram"
    shutil.copy(numbers, path)
    assert call(["forget", str(path), "1"]) == 0
    once = path.read_bytes()
    assert call(["forget", str(path), "1"]) == 0
    assert "1 was forgotten before" in capsys.readouterr().out
    assert path.read_bytes() == once
    assert Model.open(path).classes == ("0", "7")


def test_a_class_with_a_comma_can_be_drawn(tmp_path: Path) -> None:
    model = toy()
    model.learn(write_folder(tmp_path / "may", {"a, b": 0, "c": 5}))
    model.save(tmp_path / "m.engram")
    for words in ("a, b", "c", "c, c"):
        assert call(["sample", str(tmp_path / "m.engram"), "--classes", words, "--out", str(tmp_path / "g.png")]) == 0
    assert call(["sample", str(tmp_path / "m.engram"), "--classes", "a", "--out", str(tmp_path / "g.png")]) == 2


# ---------------------------------------------------------------- resume with the images of the task at hand alone


def clear_when_done(path: Path, folder: Path) -> Any:
    """Delete a class's folder once its task is over."""

    def clear() -> None:
        saved = checkpoint.load(work_folder(path))
        if saved is not None and saved.meta["task"] >= 1:
            shutil.rmtree(folder, ignore_errors=True)

    return clear


def test_it_goes_on_where_a_learned_class_is_gone_from_the_training_part(tmp_path: Path) -> None:
    data, path = tmp_path / "data", tmp_path / "m.engram"
    for part in ("train", "test"):
        write_folder(data / part, {"ball": 5, "mug": 0})
    whole = toy()
    whole.learn(data)
    learn_in_bits(path, data, 2, between=clear_when_done(path, data / "train/ball"))
    assert not (data / "train/ball").exists()
    assert state_hash(Model.open(path)) == state_hash(whole)


def test_it_goes_on_in_colour_where_the_coloured_class_is_gone(tmp_path: Path) -> None:
    data, path = tmp_path / "data", tmp_path / "m.engram"
    write_folder(data, {"acolour": 5}, colour=True)
    write_folder(data, {"bgrey": 0})
    whole = toy()
    whole.learn(data)
    assert whole.shape == (3, 32, 32)
    learn_in_bits(path, data, 2, between=clear_when_done(path, data / "acolour"))
    assert not (data / "acolour").exists()
    assert state_hash(Model.open(path)) == state_hash(whole)


def test_an_update_goes_on_where_the_updated_class_is_gone(numbers: Path, tmp_path: Path) -> None:
    from engram.experiment.loop import Interrupted, Stop
    from test_model import StopAfter

    data, path = write_folder(tmp_path / "data", {"1": 6, "vase": 10}), tmp_path / "m.engram"
    whole = Model.open(numbers)
    whole.learn(data, update=True)
    shutil.copy(numbers, path)
    tasks = Model.open(path).tasks
    while True:
        stop = Stop()
        try:
            learn(Model.open(path), data, path, update=True, display=StopAfter(stop, 2), stop=stop)
            break
        except Interrupted:
            saved = checkpoint.load(work_folder(path))
            if saved is not None and saved.meta["task"] > tasks:
                shutil.rmtree(data / "1", ignore_errors=True)
    assert not (data / "1").exists()
    assert state_hash(Model.open(path)) == state_hash(whole)


# ---------------------------------------------------------------- a model that is not what lies on disc


def test_a_changed_model_is_not_vouched_for_by_the_file_it_came_from(numbers: Path, tmp_path: Path) -> None:
    model = Model.open(numbers)
    assert model.verify()[0].ok is True
    model.forget("7")
    integrity = model.verify()[0]
    assert integrity.ok is None
    assert "changed since it was read or written" in integrity.detail
    model.save(tmp_path / "m.engram")
    assert model.verify()[0].ok is True
    assert Model.open(numbers).answering().verify()[0].ok is None


def test_images_that_a_model_in_memory_keeps_are_found(tmp_path: Path) -> None:
    """The file that it was read from has none of them."""
    model, audit = Model.create("icarl", preset="fast"), tmp_path / "audit"
    model.learn(write_folder(tmp_path / "may", {"mug": 0}), audit=audit)
    model.save(tmp_path / "m.engram")
    kept = model.verify(audit)[2].detail
    model.learn(write_folder(tmp_path / "june", {"ball": 5}), audit=audit)
    assert model.verify(audit)[2].detail != kept


# ---------------------------------------------------------------- what may be written where


@pytest.mark.parametrize(
    "words",
    [
        ["sample", "MODEL", "--out", "MODEL"],
        ["export", "MODEL", "--onnx", "MODEL"],
        ["export", "MODEL", "--engram", "MODEL", "--no-generator"],
        ["export", "MODEL", "--onnx", "photo.png"],
        ["export", "MODEL", "--engram", "photo.png"],
        ["learn", "MODEL", "june", "--out", "photo.png"],
        ["learn", "MODEL", "june", "--out", "other.engram"],
        ["forget", "MODEL", "1", "--out", "other.engram"],
    ],
)
def test_nothing_takes_the_place_of_the_model_or_of_a_strangers_file(
    words: list[str], numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(numbers, "MODEL")
    Image.new("L", (4, 4)).save("photo.png")
    other = toy()
    other.learn(write_folder(tmp_path / "may", {"mug": 3}))
    other.save("other.engram")
    write_folder(tmp_path / "june", {"lamp": 9})
    before = {name: Path(name).read_bytes() for name in ("MODEL", "photo.png", "other.engram")}
    assert call(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "is the model itself" in said or "is there already" in said
    assert {name: Path(name).read_bytes() for name in before} == before


def test_an_earlier_version_may_be_replaced(numbers: Path, tmp_path: Path) -> None:
    for name in ("v1", "v2"):
        shutil.copy(numbers, tmp_path / f"{name}.engram")
    june = write_folder(tmp_path / "june", {"lamp": 9})
    assert call(["learn", str(tmp_path / "v1.engram"), str(june), "--out", str(tmp_path / "v2.engram"), "--quiet"]) == 0
    assert Model.open(tmp_path / "v2.engram").classes == ("0", "1", "7", "lamp")


# ---------------------------------------------------------------- other processes


def test_what_another_process_learned_meanwhile_is_not_lost(numbers: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.engram"
    shutil.copy(numbers, path)
    mine = Model.open(path)
    learn(Model.open(path), write_folder(tmp_path / "june", {"lamp": 9}), path)
    with pytest.raises(RunError, match="changed by another process since it was opened; call the same command again"):
        learn(mine, write_folder(tmp_path / "july", {"cup": 3}), path)
    assert Model.open(path).classes == ("0", "1", "7", "lamp")


def test_a_model_that_another_process_made_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path, mine = tmp_path / "m.engram", toy()
    learn(toy(), write_folder(tmp_path / "may", {"mug": 0}), path)
    with pytest.raises(RunError, match="is there already and is no version of this model"):
        learn(mine, write_folder(tmp_path / "june", {"ball": 5}), path)
    assert Model.open(path).classes == ("mug",)


# ---------------------------------------------------------------- what a kill leaves


class Killed(BaseException):
    pass


def test_killed_before_its_card_forget_comes_to_its_end(
    numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.engram"
    shutil.copy(numbers, path)
    for card in card_paths(path):
        card.write_text("drawings of 7")

    def killed(*_: Any) -> None:
        raise Killed

    monkeypatch.setattr("engram.model.card.write_card", killed)
    with pytest.raises(Killed):
        call(["forget", str(path), "7"])
    monkeypatch.undo()
    assert not any(card.exists() for card in card_paths(path)), "no card shows a class that is gone"
    assert Model.open(path).classes == ("0", "1")
    assert call(["forget", str(path), "7"]) == 0
    assert all(card.exists() for card in card_paths(path))


def test_a_half_written_file_of_a_dead_process_goes_with_the_next_writing(tmp_path: Path) -> None:
    path = tmp_path / "[a] card.html"
    dead, alive = tmp_path / f".{path.name}.99999999.tmp", tmp_path / f".{path.name}.{os.getppid()}.tmp"
    for left in (dead, alive):
        left.write_bytes(b"drawings")
    write_atomically(path, b"new")
    assert not dead.exists()
    assert alive.exists(), "it may still be at work"
    assert path.read_bytes() == b"new"


def test_forgetting_says_nothing_that_did_not_happen(
    numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.engram"
    shutil.copy(numbers, path)
    assert call(["forget", str(path), "1", "nosuch"]) == 2
    assert "forgot" not in capsys.readouterr().out
    assert path.read_bytes() == numbers.read_bytes()
