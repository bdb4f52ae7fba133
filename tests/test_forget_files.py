"""After `engram forget` no file of the model keeps the class: not the file itself, nor what killed processes left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conftest import SMALL_GAN, write_npz
from engram.cli import call
from engram.experiment.checkpoint import lift
from engram.memory.engram import Engram, engram_state
from engram.methods.dgm.learner import DGM
from engram.model.file import work_folder
from engram.model.model import Model

NOBODY = 2**31 - 1
"""A process that cannot be."""
SMALL = {
    **SMALL_GAN,
    "gan.epochs": 2,
    "gan.steps": 4,
    "classifier.epochs": 1,
    "replay.images": 32,
    "runtime.threads": 1,
}


def pieces(engram: Engram) -> set[bytes]:
    """The bytes of its tensors, as any file has them."""
    tensors: dict[str, object] = {}
    lift(engram_state(engram), "", tensors)  # type: ignore[arg-type]
    found = (tensor.numpy().tobytes() for tensor in tensors.values())  # type: ignore[attr-defined]
    return {piece for piece in found if len(piece) >= 16 and len(set(piece)) > 2}


def holding(root: Path, some: set[bytes]) -> set[str]:
    """Files in which one of the pieces stands."""
    files = [path for path in root.rglob("*") if path.is_file()]
    return {path.name for path in files if any(piece in path.read_bytes() for piece in some)}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A model of three classes with its cards, in a folder of its own."""
    root = tmp_path / "place"
    root.mkdir()
    with np.load(write_npz(tmp_path / "a.npz", classes=3, per_class=12)) as held:
        images, labels = held["images"], held["labels"]
    model = Model.create("dgmw", settings=SMALL)
    for number, name in enumerate(("mug", "lamp", "ball")):
        model.learn(images[labels == number], [name] * 12)
    model.save(root / "m.engram")
    return root


def test_no_file_keeps_the_bits_of_a_class_that_was_forgotten(place: Path) -> None:
    path = place / "m.engram"
    learner = Model.open(path).learner
    assert isinstance(learner, DGM)
    mug, lamp, ball = (pieces(engram) for engram in learner.engrams)
    own = lamp - mug - ball
    assert len(own) > 5
    # what processes leave that are killed while they write: beside the file, and in its work folder
    whole, work = path.read_bytes(), work_folder(path)
    work.mkdir()
    left = [place / f".m.engram.{NOBODY}.tmp", work / "model.new", work / f".model.new.{NOBODY}.tmp"]
    left += [work / "checkpoint-3.safetensors", work / f".checkpoint-4.safetensors.{NOBODY}.tmp"]
    for file in left:
        file.write_bytes(whole[: len(whole) - 5])
    (place / f".m.card.html.{NOBODY}.tmp").write_bytes((place / "m.card.html").read_bytes())
    assert holding(place, own) == {"m.engram", *(file.name for file in left)}, "so they are found where they are"
    assert call(["forget", str(path), "lamp", "--quiet"]) == 0
    assert holding(place, own) == set()
    assert {file.name for file in place.rglob("*")} == {"m.engram", "m.card.html", "m.card.md"}
    assert Model.open(path).classes == ("mug", "ball")
    assert holding(place, mug | ball) == {"m.engram"}


def test_nor_does_a_command_that_finds_it_forgotten(place: Path) -> None:
    """A program was killed while it wrote the version of before; the class went meanwhile."""
    path = place / "m.engram"
    learner = Model.open(path).learner
    assert isinstance(learner, DGM)
    own, before = pieces(learner.engrams[1]), path.read_bytes()
    assert call(["forget", str(path), "lamp", "--quiet"]) == 0
    (place / f".m.engram.{NOBODY}.tmp").write_bytes(before)
    assert call(["forget", str(path), "lamp", "--quiet"]) == 0
    assert holding(place, own) == set()


def test_a_run_folder_forgets_nothing_and_says_so(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It stays as it is: a model made from it forgets."""
    (place / "run").mkdir()
    capsys.readouterr()
    assert call(["forget", str(place / "run"), "lamp"]) == 2
    assert "is a folder, which stays as it is; name a new file with --out" in capsys.readouterr().err
