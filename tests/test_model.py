"""A model that goes on learning: what it remembers, what it refuses, and that stops cost nothing."""

from __future__ import annotations

import json
import os
import shutil
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import SMALL_GAN, write_npz
from engram.cli import call
from engram.data.datasets import load_dataset
from engram.data.stream import ClassStream
from engram.errors import DataError, EngramError, RunError
from engram.experiment import checkpoint
from engram.experiment.loop import Interrupted, Stop
from engram.experiment.progress import Display
from engram.experiment.run import run as run_benchmark
from engram.methods.learner import Progress
from engram.model import file
from engram.model.file import work_folder
from engram.model.intake import read
from engram.model.learn import learn
from engram.model.model import Model

TOY = {**SMALL_GAN, "gan.epochs": 2, "gan.steps": 4, "classifier.epochs": 1, "replay.images": 64, "runtime.threads": 1}


def toy(**more: Any) -> Model:
    return Model.create(settings={**TOY, **more})


def write_folder(
    at: Path, classes: dict[str, int], *, per_class: int = 12, side: int = 20, colour: bool = False
) -> Path:
    """One folder a class; a class is a bright square in its own place."""
    draws = np.random.default_rng(7)
    for name, place in classes.items():
        (at / name).mkdir(parents=True)
        y, x = divmod(place, 4)
        for number in range(per_class):
            pixels = draws.integers(0, 60, (side, side, 3) if colour else (side, side), dtype=np.uint8)
            pixels[5 * y : 5 * y + 5, 5 * x : 5 * x + 5] += 180
            Image.fromarray(pixels).save(at / name / f"{number}.png")
    return at


def state_hash(model: Model) -> str:
    assert model.learner is not None
    return checkpoint.fingerprint(model.learner.state())


def test_month_by_month_is_the_same_as_all_at_once(tmp_path: Path) -> None:
    """Learned task by task through files, the model has the bits of the benchmark's run over the whole stream."""
    data = write_npz(tmp_path / "a.npz")
    settings = {**TOY, "stream.validation": 0.0}
    folder = run_benchmark(f"npz:{data}", "dgmw", settings=settings, out=tmp_path / "run")
    whole = Model.open(folder)
    model = Model.create(settings=settings)
    dataset = load_dataset(f"npz:{data}")
    train = dataset.take_train()
    for number in range(4):
        rows = train.labels == number
        np.savez(
            tmp_path / "month.npz",
            train_images=train.images[rows, 0].numpy(),
            train_labels=train.labels[rows].numpy(),
            test_images=dataset.test.images[dataset.test.labels == number, 0].numpy(),
            test_labels=dataset.test.labels[dataset.test.labels == number].numpy(),
        )
        model.learn(tmp_path / "month.npz")
        model.save(tmp_path / "m.engram")
        model = Model.open(tmp_path / "m.engram")
    assert model.classes == whole.classes == ("0", "1", "2", "3")
    assert state_hash(model) == state_hash(whole)
    at_once = Model.create(settings=settings)
    at_once.learn(ClassStream(load_dataset(f"npz:{data}")))
    assert state_hash(at_once) == state_hash(whole)


def test_one_class_is_enough_names_and_numbers_stay(tmp_path: Path) -> None:
    model = toy()
    may = model.learn(write_folder(tmp_path / "may", {"mug": 0}))
    assert (may.new, model.classes) == (("mug",), ("mug",))
    june = model.learn(write_folder(tmp_path / "june", {"ball": 5, "apple": 10}))
    assert june.new == ("apple", "ball")
    assert model.classes == ("mug", "apple", "ball")
    assert model.ids == {"mug": 0, "apple": 1, "ball": 2}
    assert june.accuracy_old is None
    assert june.tested_new == 4
    digest = model.save(tmp_path / "m.engram")
    again = Model.open(tmp_path / "m.engram")
    assert (again.classes, again.ids, again.digest, again.tasks) == (model.classes, model.ids, digest, 3)
    assert [step.classes for step in again.lineage] == [("mug",), ("apple",), ("ball",)]
    assert again.lineage[1].data["name"] == "folder:june"
    assert str(tmp_path) not in (tmp_path / "m.engram").read_bytes().decode("latin1")


def test_test_images_of_known_classes_give_the_old_accuracy(tmp_path: Path) -> None:
    model = toy()
    model.learn(write_folder(tmp_path / "may", {"mug": 0}))
    write_folder(tmp_path / "june/train", {"ball": 5})
    write_folder(tmp_path / "june/test", {"ball": 5, "mug": 0}, per_class=6)
    learned = model.learn(tmp_path / "june")
    assert (learned.tested_new, learned.tested_old) == (6, 6)
    assert learned.accuracy_old is not None
    assert learned.accuracy_old_before == 1.0  # one class: it can answer nothing else
    write_folder(tmp_path / "july/train", {"lamp": 9})
    write_folder(tmp_path / "july/test", {"lamp": 9, "vase": 2}, per_class=6)
    with pytest.raises(DataError, match="has no class 'vase'"):
        model.learn(tmp_path / "july")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file of two classes in grey."""
    folder = tmp_path_factory.mktemp("pair")
    model = toy()
    model.learn(write_folder(folder / "may", {"mug": 0, "ball": 5}))
    model.save(folder / "pair.engram")
    return folder / "pair.engram"


def test_every_kind_of_input_gives_the_same_answer(pair: Path) -> None:
    model = Model.open(pair)
    paths = sorted((pair.parent / "may/mug").glob("*.png"))[:3]
    expected = model.predict_proba(paths)
    assert expected.shape == (3, 2)
    np.testing.assert_allclose(expected.sum(1), 1, rtol=1e-6)
    images = [Image.open(path) for path in paths]
    grey = np.stack([np.array(image) for image in images])
    same = [
        [str(path) for path in paths], images, grey, grey[..., None], grey[:, None], torch.from_numpy(grey),
        grey.astype(np.int64), grey / 255, (grey / 255).astype(np.float32), list(grey),
        [torch.from_numpy(one) for one in grey],
    ]  # fmt: skip
    numbers = [image.convert("I") for image in images], [Image.fromarray(np.float32(one / 255)) for one in grey]
    assert [some[0].mode for some in numbers] == ["I", "F"]
    for x in (*same, *numbers):
        np.testing.assert_array_equal(model.predict_proba(x), expected)
    for single in (paths[0], str(paths[0]), images[0], grey[0], grey[0] / 255, torch.from_numpy(grey[0])):
        np.testing.assert_allclose(model.predict_proba(single), expected[:1], rtol=1e-5)
        assert len(model.predict(single)) == 1
    assert model.predict_proba([]).shape == (0, 2)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.full((2, 20, 20), np.nan), "NaN"),
        (np.linspace(-1, 1, 800).reshape(2, 20, 20), "between -1 and 1"),
        (np.full((2, 20, 20), 200.0), "between 200 and 200"),
        (np.full((2, 20, 20), 300), "between 300 and 300"),
        (np.full((2, 20, 20), True), "bool"),
        (np.full((2, 20, 20), 1j), "complex"),
        (np.zeros((2, 20, 20, 3), np.uint8), "3 channels, the model takes 1"),
        (np.zeros((2, 5, 20, 20), np.uint8), r"shape \(2, 5, 20, 20\)"),
        (np.zeros((0, 20), np.uint8), "nothing to see"),
        (np.zeros(7, np.uint8), r"shape \(7,\)"),
        (np.array(5), r"shape \(\)"),
        (torch.zeros(2, 20, 20, dtype=torch.bfloat16), r"cannot be read \(torch.bfloat16"),
        (torch.zeros(2, 20, 20).to_sparse(), "torch.sparse_coo"),
        (torch.zeros(2, 20, 20, device="meta"), "on meta"),
        ([torch.zeros(20, 20, dtype=torch.bfloat16)], "torch.bfloat16"),
        (Image.new("F", (20, 20), 200.0), "between 200 and 200"),
        (Image.new("I", (20, 20), 60_000), "between 60000 and 60000"),
        (5, "cannot be a int"),
        (b"png", "cannot be a bytes"),
        ([object()], "image 0 of the list is a object"),
        ("nowhere.png", "nowhere.png: no such file"),
    ],
)
def test_bad_images_are_refused_with_one_line(pair: Path, x: Any, message: str) -> None:
    with pytest.raises(EngramError, match=message) as caught:
        Model.open(pair).predict(x)
    assert "\n" not in str(caught.value)


MISTAKES: list[tuple[Any, str]] = [
    (lambda model: model.sample("mug", "a"), "'a' images of a class: draw a whole number, 1 or more"),
    (lambda model: model.sample("mug", 1.5), "1.5 images of a class"),
    (lambda model: model.sample("mug", 0), "0 images of a class"),
    (lambda model: Model.create(seed="a"), "seed='a' is not a whole number"),  # type: ignore[arg-type]
    (lambda model: Model.create(seed=1.5), "seed=1.5 is not a whole number"),  # type: ignore[arg-type]
    (lambda model: Model.create(settings=["gan.epochs"]), "settings cannot be .*; give a dictionary"),  # type: ignore[arg-type]
    (lambda model: Model.create(settings={1: 2}), "settings cannot be .*; give a dictionary"),  # type: ignore[dict-item]
    (lambda model: model.save("a\0b"), "a name cannot hold a zero byte"),
    (lambda model: model.save_pretrained("a\0b"), "a name cannot hold a zero byte"),
    (lambda model: model.save("x" * 300), "File name too long"),
    (lambda model: Model.open("x" * 300), "does not exist"),
]


@pytest.mark.parametrize(("act", "message"), MISTAKES)
def test_mistakes_in_a_program_are_told_with_one_line(
    pair: Path, tmp_path: Path, act: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EngramError, match=message) as caught:
        act(Model.open(pair))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [247, 256, 300])
@pytest.mark.parametrize(
    "words",
    ["verify NAME", "learn NAME DATA", "learn OLD DATA --out NAME", "forget NAME mug", "forget OLD mug --out NAME"],
)
def test_a_name_that_is_too_long_is_told_with_one_line(
    pair: Path,
    tmp_path: Path,
    size: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = write_folder(tmp_path / "data", {"lamp": 9})
    monkeypatch.chdir(tmp_path)
    replaced = {"NAME": "x" * size, "OLD": str(pair), "DATA": str(data)}
    code = call([replaced.get(word, word) for word in words.split()])
    said = capsys.readouterr()
    if words.startswith("verify"):
        assert (code, said.err) == (1, "")
        assert "FAILED integrity: xxx" in said.out
    else:
        assert (code, said.out) == (2, "")
        assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [data]


def test_a_model_in_a_file_whose_name_is_no_text_has_a_card(pair: Path, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.engram")
    Model.open(pair).save(path)
    assert r"Model card: caf\\udce9" in (tmp_path / os.fsdecode(b"caf\xe9.card.md")).read_text()


def test_a_colour_model_takes_grey_images_and_a_grey_one_no_colours(tmp_path: Path, pair: Path) -> None:
    colour = write_folder(tmp_path / "colour", {"cup": 1}, colour=True)
    with pytest.raises(DataError, match="in colour, the model takes grey ones"):
        Model.open(pair).learn(colour)
    model = toy()
    model.learn(colour)
    learned = model.learn(write_folder(tmp_path / "grey", {"mug": 0}))
    assert model.shape == (3, 32, 32)
    assert any("grey" in note for note in learned.notes)


def write_named(at: Path, names: list[Any]) -> Path:
    """An .npz file of one class, called so."""
    at = at.with_suffix(".npz")
    np.savez(at, images=np.zeros((8, 8, 8), np.uint8), labels=np.zeros(8, int), class_names=np.array(names))
    return at


BAD: list[tuple[Any, str]] = [
    (lambda at: write_folder(at, {"mug": 0}), "class 'mug' is known already.*--update"),
    (lambda at: write_folder(at, {"lamp": 3}, per_class=1), "no class has two images"),
    (lambda at: (at / "lamp").mkdir(parents=True) or at, "holds no PNG"),
    (lambda at: at, "no such folder"),
    (lambda at: write_folder(at, {"unknown": 3}), "cannot be called 'unknown'"),
    (lambda at: write_folder(at, {os.fsdecode(b"caf\xe9"): 3}), r"class name 'caf\\udce9' is no text in UTF-8"),
    (lambda at: write_named(at, [b"\xff"]), r"class_names are no texts in UTF-8"),
    (lambda at: write_named(at, ["\ud800"]), r"class name '\\ud800' is no text in UTF-8"),
    (lambda at: (np.zeros((8, 8, 8), np.uint8), ["\udcff"] * 8), "is no text in UTF-8"),
    (lambda at: (np.zeros((0, 8, 8), np.uint8), []), "no images"),
    (lambda at: (np.zeros((8, 8, 8), np.uint8), ["a"] * 7), "8 images and 7 labels"),
    (lambda at: (np.full((8, 8, 8), np.nan), ["a"] * 8), "NaN"),
    (lambda at: (np.zeros((8, 8, 8), np.uint8), [1.5] * 8), "label 1.5"),
    (lambda at: (np.zeros((8, 8, 8), np.uint8), [0.0] * 4 + [1.0] * 4), "label 0.0 is no class"),
    (lambda at: (np.zeros((8, 8, 8), np.uint8), np.zeros(8)), "label 0.0 is no class"),
    (lambda at: (np.zeros((8, 8, 8), np.uint8), [None] * 8), "label None is no class"),
    (lambda at: (np.zeros((8, 8, 8), np.uint8), [()] * 8), r"label \(\) is no class"),
    (lambda at: (np.zeros((8, 8, 8), np.uint8), [float("nan")] * 8), "label nan is no class"),
    (lambda at: (np.zeros((8, 8, 8), np.uint8), 5), "labels cannot be 5"),
    (lambda at: (np.zeros((8, 8, 8), np.uint8), "mug"), "labels cannot be 'mug'"),
    (lambda at: (np.zeros((8, 8, 8), np.uint8), torch.zeros(8, device="meta")), "on meta"),
    (lambda at: (np.array(5), [1]), r"shape \(\)"),
    (lambda at: (torch.zeros(8, 8, 8, dtype=torch.bfloat16), ["a"] * 8), "torch.bfloat16"),
    (lambda at: (np.full((8, 8, 8), -3), ["a"] * 8), "between -3 and -3"),
    (lambda at: 7, "data cannot be a int"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_bad_data_is_refused_with_one_line_and_the_model_stays(
    tmp_path: Path, pair: Path, make: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make(tmp_path / "data")
    model = Model.open(pair)
    before = state_hash(model), model.classes, model.lineage
    with pytest.raises(EngramError, match=message) as caught:
        model.learn(data)
    assert "\n" not in str(caught.value)
    assert (state_hash(model), model.classes, model.lineage) == before
    if isinstance(data, Path):
        copy = tmp_path / "m.engram"
        shutil.copy(pair, copy)
        assert call(["learn", str(copy), str(data)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert copy.read_bytes() == pair.read_bytes()
        assert not work_folder(copy).exists()


def test_images_of_another_size_are_scaled_and_said(
    tmp_path: Path, pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Model.open(pair)
    as_they_are = model.learn(np.zeros((12, 32, 32), np.uint8), ["lamp"] * 12)
    assert as_they_are.notes == ()
    wide = model.learn(np.zeros((12, 20, 48), np.uint8), ["sofa"] * 12)
    assert wide.notes == ("image sizes: 48x20, scaled to 32x32; 12 of 12 are not square and are squeezed",)
    shutil.copy(pair, tmp_path / "m.engram")
    small = write_folder(tmp_path / "small", {"vase": 3}, side=16)
    assert call(["learn", str(tmp_path / "m.engram"), str(small)]) == 0
    said = capsys.readouterr().out
    assert "image sizes: 16x16, scaled to 32x32" in said
    (kept,) = [line for line in said.splitlines() if line.startswith("kept of the past: ")]
    assert kept.endswith("), beside the classifier")
    assert "classifier 0" not in kept


def test_a_path_may_hold_a_colon_and_capitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "d" / "june:1", {"mug": 0})
    write_npz(tmp_path / "folder:q2.npz", classes=1)
    shutil.copy(tmp_path / "folder:q2.npz", tmp_path / "q3.NPZ")
    monkeypatch.chdir(tmp_path)
    stream = toy().config.stream
    for data, name in (
        ("d/june:1", "folder:june:1"),
        ("folder:d/june:1", "folder:june:1"),
        ("folder:q2.npz", "npz:folder:q2.npz"),
        ("q3.NPZ", "npz:q3.NPZ"),
        ("npz:q3.NPZ", "npz:q3.NPZ"),
    ):
        assert read(data, stream, shape=None, known=()).name == name


def test_a_file_that_is_no_npz_is_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_folder(tmp_path / "may", {"mug": 0}) / "mug" / "0.png"
    assert call(["learn", str(tmp_path / "m.engram"), str(file)]) == 2
    said = capsys.readouterr().err
    assert f"{file} is a file, and no .npz file; give an .npz file, or a folder with one folder a class" in said
    assert said.count("\n") == 1


def test_a_name_that_stands_twice_in_an_npz_is_named(tmp_path: Path) -> None:
    images, labels = np.zeros((24, 8, 8), np.uint8), np.repeat([0, 1], 12)
    np.savez(tmp_path / "a.npz", images=images, labels=labels, class_names=["mug", "mug"])
    with pytest.raises(DataError, match="'mug' stands twice in class_names; give each class a name of its own"):
        toy().learn(tmp_path / "a.npz")


class StopAfter(Display):
    """Asks to stop after so many steps."""

    def __init__(self, stop: Stop, steps: int) -> None:
        self.stop, self.left = stop, steps

    def batch(self, progress: Progress) -> None:
        self.left -= 1
        if self.left <= 0:
            self.stop.asked = True


def learn_in_bits(path: Path, data: Path, steps: int, *, between: Any = lambda: None) -> int:
    """From file to file, stopped after every so many steps; how often that was."""
    stops = 0
    while True:
        stop = Stop()
        try:
            model = Model.open(path) if path.exists() else toy()
            learn(model, data, path, display=StopAfter(stop, steps), stop=stop)
            return stops
        except Interrupted:
            stops += 1
            between()


def test_stopped_and_resumed_it_ends_with_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    may = write_folder(tmp_path / "may", {"mug": 0, "ball": 5})
    june = write_folder(tmp_path / "june", {"lamp": 9})
    for name, steps in (("whole", 10**6), ("bits", 2)):
        path = tmp_path / f"{name}.engram"
        stops = learn_in_bits(path, may, steps) + learn_in_bits(path, june, steps)
        assert (stops > 4) == (name == "bits")
        assert not work_folder(path).exists()
    assert (tmp_path / "whole.engram").read_bytes() == (tmp_path / "bits.engram").read_bytes()


def test_killed_after_the_model_was_written_the_same_call_finds_all_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever between the model's file and the end; other data is then learned as if nothing had been left over."""
    may, june = write_folder(tmp_path / "may", {"mug": 0}), write_folder(tmp_path / "june", {"ball": 5})
    path, settings = tmp_path / "m.engram", [word for key, value in TOY.items() for word in ("--set", f"{key}={value}")]

    class Killed(BaseException):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    for kept in ("all", "the configuration", "nothing"):
        path.unlink(missing_ok=True)
        monkeypatch.setattr("engram.model.learn._clear", killed)
        with pytest.raises(Killed):
            call(["learn", str(path), str(may), *settings])
        monkeypatch.undo()
        for entry in work_folder(path).iterdir():
            if kept == "nothing" or (kept == "the configuration" and entry.name != "config.json"):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        before = path.read_bytes()
        capsys.readouterr()
        assert call(["learn", str(path), str(may), *settings]) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"{path} has learned this data already: nothing was changed")
        assert "what was left of learning it is removed" in said
        assert path.read_bytes() == before
        assert not work_folder(path).exists()
    monkeypatch.setattr("engram.model.learn._clear", killed)
    with pytest.raises(Killed):
        call(["learn", str(path), str(june)])
    monkeypatch.undo()
    assert call(["learn", str(path), str(write_folder(tmp_path / "july", {"lamp": 9}))]) == 0
    assert Model.open(path).classes == ("mug", "ball", "lamp")
    assert call(["forget", str(path), "lamp"]) == 0
    assert call(["learn", str(path), str(tmp_path / "july")]) == 0, "forgotten, so it is learned again"
    assert Model.open(path).ids == {"mug": 0, "ball": 1, "lamp": 3}


def test_the_same_images_under_another_name_are_another_class(tmp_path: Path) -> None:
    path = tmp_path / "m.engram"
    learn(toy(), write_folder(tmp_path / "may", {"mug": 0}), path)
    (tmp_path / "may/mug").rename(tmp_path / "may/cup")
    assert learn(Model.open(path), tmp_path / "may", path) is not None
    assert Model.open(path).classes == ("mug", "cup")
    update = learn(Model.open(path), tmp_path / "may", path, update=True)
    assert update is not None
    assert update.updated == ("cup",)
    assert learn(Model.open(path), tmp_path / "may", path, update=True) is None


def test_new_settings_for_a_model_that_is_there_are_refused(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(write_folder(tmp_path / "data", {"lamp": 9}))
    for words, message in ((["--seed", "1"], "--seed"), (["--set", "gan.epochs=9"], "gan.epochs is fixed")):
        assert call(["learn", str(pair), data, *words]) == 2
        assert message in capsys.readouterr().err


def test_the_images_of_the_task_in_training_are_enough_to_go_on(tmp_path: Path) -> None:
    """Folders of classes that were learned before the stop may be deleted; others may not."""
    data = write_folder(tmp_path / "data", {"ball": 5, "mug": 0})
    path = tmp_path / "m.engram"

    def clear() -> None:
        saved = checkpoint.load(work_folder(path))
        if saved is not None and saved.meta["task"] >= 1:
            shutil.rmtree(data / "ball", ignore_errors=True)

    assert learn_in_bits(path, data, 2, between=clear) > 2
    assert not (data / "ball").exists()
    whole = toy()
    whole.learn(write_folder(tmp_path / "again", {"ball": 5, "mug": 0}))
    model = Model.open(path)
    assert model.classes == ("ball", "mug")
    assert state_hash(model) == state_hash(whole)


def test_going_on_with_other_images_settings_or_another_model_is_refused(tmp_path: Path, pair: Path) -> None:
    data, path = write_folder(tmp_path / "data", {"lamp": 9}), tmp_path / "m.engram"
    shutil.copy(pair, path)
    stop = Stop()
    with pytest.raises(Interrupted):
        learn(Model.open(path), data, path, display=StopAfter(stop, 3), stop=stop)
    Image.fromarray(np.zeros((20, 20), np.uint8)).save(data / "lamp/99.png")
    with pytest.raises(RunError, match="begun with other images of 'lamp'"):
        learn(Model.open(path), data, path)
    with pytest.raises(RunError, match="no version of this model"):
        learn(toy(), data, path)
    assert call(["forget", str(path), "mug"]) == 2
    (data / "lamp/99.png").unlink()
    learn(Model.open(path), data, path)
    assert Model.open(path).classes == ("ball", "mug", "lamp")


def test_two_processes_cannot_change_one_model(tmp_path: Path, pair: Path) -> None:
    from engram.model.learn import held

    path = tmp_path / "m.engram"
    shutil.copy(pair, path)
    with held(path):
        assert call(["forget", str(path), "mug"]) == 2
        assert call(["learn", str(path), str(write_folder(tmp_path / "data", {"lamp": 9}))]) == 2
        assert call(["predict", str(path), str(tmp_path / "data"), "--quiet"]) == 0  # whoever only reads may
    assert path.read_bytes() == pair.read_bytes()


def test_every_flipped_byte_is_noticed(pair: Path) -> None:
    payload, digest, unnoticed = pair.read_bytes(), file.read(pair).digest, 0
    draws = np.random.default_rng(3)
    for place in [0, 3, 9, 40, len(payload) - 1, *draws.integers(0, len(payload), 60).tolist()]:
        changed = bytearray(payload)
        changed[place] ^= 1 << int(draws.integers(8))
        with suppress(RunError):  # or a bit without meaning, such as one of a blank: the contents are the same
            assert file.unpack(bytes(changed), "m.engram").digest == digest
            unnoticed += 1
    assert unnoticed < 6


def test_every_flipped_bit_of_a_tensor_is_noticed(pair: Path) -> None:
    """Truth values too, of which a byte has one bit that counts."""
    payload, draws = pair.read_bytes(), np.random.default_rng(4)
    (size,) = struct.unpack_from("<Q", payload)
    header = json.loads(payload[8 : 8 + size])
    kinds: dict[str, list[tuple[int, int]]] = {}
    for name, entry in header.items():
        if name != "__metadata__" and (span := entry["data_offsets"])[0] < span[1]:
            kinds.setdefault(entry["dtype"], []).append((span[0] + 8 + size, span[1] + 8 + size))
    assert {"BOOL", "F32", "U8"} <= set(kinds)
    for spans in kinds.values():
        for start, end in (spans[number] for number in draws.integers(0, len(spans), 2)):
            place = int(draws.integers(start, end))
            for bit in range(8):
                changed = bytearray(payload)
                changed[place] ^= 1 << bit
                with pytest.raises(RunError, match="is damaged"):
                    file.unpack(bytes(changed), "m.engram")


@pytest.mark.parametrize("size", [0, 5, 100, -1])
def test_a_cut_file_is_refused(pair: Path, tmp_path: Path, size: int) -> None:
    (tmp_path / "m.engram").write_bytes(pair.read_bytes()[:size])
    with pytest.raises(RunError, match="damaged"):
        Model.open(tmp_path / "m.engram")


def test_a_newer_format_is_refused(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "FORMAT", 2)
    with pytest.raises(RunError, match="restore it"):
        Model.open(pair)
    monkeypatch.undo()
    contents = file.read(pair)
    monkeypatch.setattr(file, "FORMAT", 9)
    payload = file.pack(contents.body, contents.state)
    monkeypatch.undo()
    (tmp_path / "m.engram").write_bytes(payload)
    with pytest.raises(RunError, match=r"model format 9, this version reads format 1; update Engram"):
        Model.open(tmp_path / "m.engram")


def test_a_full_disc_leaves_the_old_version(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.engram"
    shutil.copy(pair, path)
    model = Model.open(path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left on device; the version before"):
        model.save(path)
    monkeypatch.undo()
    assert path.read_bytes() == pair.read_bytes()
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.engram"]


def test_a_model_that_stores_images_is_not_opened_as_strict(tmp_path: Path) -> None:
    model = Model.create("icarl", settings={"exemplars.budget": 8, "classifier.epochs": 1, "runtime.threads": 1})
    model.learn(write_folder(tmp_path / "may", {"mug": 0, "ball": 5}))
    model.save(tmp_path / "m.engram")
    with pytest.raises(RunError, match="is not strict: icarl stores K real images"):
        Model.open(tmp_path / "m.engram", strict=True)
    assert call(["learn", str(tmp_path / "m.engram"), str(tmp_path / "may"), "--strict"]) == 2
    with pytest.raises(EngramError, match="learns from the images of all classes at once"):
        Model.create("joint")
    with pytest.raises(EngramError, match="cannot learn more of a known class"):
        model.learn(tmp_path / "may", update=True)
    with pytest.raises(EngramError, match="cannot forget a single class"):
        model.forget("mug")


def test_a_model_that_knows_nothing_says_so(tmp_path: Path) -> None:
    model = toy()
    model.save(tmp_path / "m.engram")
    model = Model.open(tmp_path / "m.engram")
    for ask in (
        lambda: model.predict(np.zeros((8, 8), np.uint8)),
        lambda: model.sample("mug"),
        lambda: model.forget("a"),
    ):
        with pytest.raises(RunError, match="knows no class yet"):
            ask()


def test_a_wrong_size_is_scaled_as_in_training(pair: Path) -> None:
    from engram.data.datasets import resize

    draws = np.random.default_rng(5)
    large = draws.integers(0, 256, (3, 50, 40), dtype=np.uint8)
    scaled = resize(large[:, None], 32).numpy()
    model = Model.open(pair)
    np.testing.assert_array_equal(model.predict_proba(large), model.predict_proba(scaled))
