"""A model of images by way of a backbone: as if it had learned their vectors, and by no other network."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import backbones
from conftest import SMALL_GAN
from engram.cli import call
from engram.data.backbone import Backbone
from engram.data.datasets import load_dataset
from engram.errors import EngramError
from engram.experiment.checkpoint import fingerprint
from engram.model.card import card
from engram.model.card_page import as_html, as_markdown
from engram.model.embed import embed_data
from engram.model.model import Model

TOY = {**SMALL_GAN, "gan.epochs": 2, "gan.steps": 6, "classifier.epochs": 2, "replay.images": 64, "runtime.threads": 1}
SET = [word for key, value in TOY.items() for word in ("--set", f"{key}={value}")]
PLACES = {"mug": (4, 4), "lamp": (24, 30), "vase": (4, 30), "rug": (24, 4)}


def photographs(folder: Path, *names: str, count: int = 20) -> Path:
    """A bright patch whose place is the class's, in files of 40 x 48 pixels."""
    for name in names:
        draws = np.random.default_rng(sum(map(ord, name)))
        (folder / name).mkdir(parents=True)
        y, x = PLACES[name]
        for i in range(count):
            pixels = draws.integers(0, 60, (40, 48, 3), np.uint8)
            pixels[y : y + 12, x : x + 12] += 180
            Image.fromarray(pixels).save(folder / name / f"{i:02}.png")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """May and June, a network, and a model that learned May by it."""
    folder = tmp_path_factory.mktemp("shop")
    photographs(folder / "may", "mug", "lamp")
    photographs(folder / "june", "vase")
    backbones.backbone(folder / "eyes.onnx")
    backbones.backbone(folder / "others.onnx", seed=1)
    model = Model.create(settings=TOY)
    assert model.learn(folder / "may", backbone=folder / "eyes.onnx").new == ("lamp", "mug")
    model.save(folder / "shop.engram")
    return folder


def opened(made: Path) -> Model:
    return Model.open(made / "shop.engram")


def everything(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.png"))


# ---------------------------------------------------------------- the same as from vectors


def test_it_is_the_model_that_learned_the_vectors(made: Path, tmp_path: Path) -> None:
    """To the bit: embedding first and learning then, and both at once, are one."""
    backbone = Backbone(made / "eyes.onnx")
    through = opened(made)
    through.learn(made / "june", backbone=backbone)
    apart = Model.create(settings=TOY)
    for month in ("may", "june"):
        embed_data(str(made / month), backbone, tmp_path / f"{month}.npz", batch=7)
        apart.learn(tmp_path / f"{month}.npz")
    assert apart.classes == through.classes == ("lamp", "mug", "vase")
    assert through.learner is not None
    assert apart.learner is not None
    assert fingerprint(through.learner.state()) == fingerprint(apart.learner.state())
    assert [step.data["digest"] for step in through.lineage] == [step.data["digest"] for step in apart.lineage]
    paths = everything(made / "june") + everything(made / "may")
    answers = through.predict(paths, backbone=backbone)
    assert answers == apart.predict(paths, backbone=made / "eyes.onnx")
    with np.load(tmp_path / "june.npz") as june, np.load(tmp_path / "may.npz") as may:
        vectors = np.concatenate([june["features"], may["features"]])
    assert answers == apart.predict(vectors)


def test_vectors_and_photographs_may_take_turns(made: Path, tmp_path: Path) -> None:
    model, backbone = opened(made), Backbone(made / "eyes.onnx")
    embed_data(str(made / "june"), backbone, tmp_path / "june.npz")
    model.learn(tmp_path / "june.npz")
    rugs = photographs(tmp_path / "july", "rug")
    model.learn(rugs, backbone=backbone)
    assert model.classes == ("lamp", "mug", "vase", "rug")
    vectors = model.examples(everything(rugs), backbone)
    assert vectors.shape == (20, 24)
    model.learn(vectors[:12], ["carpet"] * 12)  # who brings mere numbers knows what they are
    assert model.backbone == backbone.recipe


def test_a_run_on_vectors_is_such_a_model_too(made: Path, tmp_path: Path) -> None:
    embed_data(str(made / "may"), Backbone(made / "eyes.onnx"), tmp_path / "may.npz")
    words = ["run", "--dataset", f"npz:{tmp_path / 'may.npz'}", "--out", str(tmp_path / "run"), *SET, "--quiet"]
    assert call(words) == 0
    model = Model.open(tmp_path / "run")
    assert model.backbone == Backbone(made / "eyes.onnx").recipe
    assert set(model.predict(everything(made / "may"), backbone=made / "eyes.onnx")) <= {"lamp", "mug", "unknown"}


# ---------------------------------------------------------------- what it remembers


def test_the_recipe_is_in_the_file_and_on_the_card_and_the_network_is_not(made: Path, tmp_path: Path) -> None:
    model, recipe = opened(made), Backbone(made / "eyes.onnx").recipe
    assert model.backbone == recipe
    held = (made / "shop.engram").read_bytes()
    assert recipe.sha256.encode() in held
    weights = np.random.default_rng(0).standard_normal((24, 1, 4, 4)).astype(np.float32) / 4
    assert weights.tobytes() in (made / "eyes.onnx").read_bytes()
    assert weights.tobytes() not in held
    for page in (as_markdown(card(model)), as_html(card(model))):
        assert recipe.digest in page
        assert recipe.sha256 in page
        assert "eyes.onnx" in page
    text = as_markdown(card(model))
    assert "16 x 16 pixels, RGB" in text
    assert "engram predict model.engram photos/ --backbone eyes.onnx" in text.replace("shop", "model")
    assert "backbone='eyes.onnx'" in text
    for changed in (opened(made), model.answering()):
        assert changed.backbone == recipe
    model.forget("mug")
    model.forget("lamp")
    model.save(tmp_path / "empty.engram")
    assert Model.open(tmp_path / "empty.engram").backbone == recipe
    model.learn(made / "june", backbone=made / "eyes.onnx")
    with pytest.raises(EngramError, match="is not the eyes"):
        model.learn(made / "may", backbone=made / "others.onnx")


def test_the_preparation_is_remembered(made: Path, tmp_path: Path) -> None:
    free = backbones.backbone(tmp_path / "free.onnx", size="side")
    model = Model.create("finetune", settings={"classifier.epochs": 2})
    model.learn(made / "may", backbone=Backbone(free, size=24, mean=0.5, std=0.25, output="maps"))
    model.learn(made / "june", backbone=free)
    assert model.backbone is not None
    assert (model.backbone.shape, model.backbone.mean, model.backbone.output) == ((3, 24, 24), (0.5,) * 3, "maps")
    assert len(model.predict(everything(made / "june"), backbone=free)) == 20
    for other in (Backbone(free, size=24), Backbone(free, size=16, mean=0.5, std=0.25, output="maps")):
        with pytest.raises(EngramError, match="give that file, and leave the preparation out"):
            model.predict(everything(made / "june"), backbone=other)


def test_an_exported_file_says_by_what_its_vectors_are_made(made: Path, tmp_path: Path) -> None:
    import onnx

    from engram.model.onnx import export_model

    model = opened(made)
    export_model(model, tmp_path / "answer.onnx")
    texts = {one.key: one.value for one in onnx.load(str(tmp_path / "answer.onnx")).metadata_props}
    assert model.backbone is not None
    assert texts["backbone"] == model.backbone.text


# ---------------------------------------------------------------- what is refused


def refused(act: Any) -> str:
    with pytest.raises(EngramError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_images_without_the_backbone_are_refused_with_the_remedy(made: Path) -> None:
    model, image = opened(made), everything(made / "may")[0]
    remedy = "the model learned from vectors by the backbone eyes.onnx"
    with Image.open(image) as file:
        picture = file.copy()
    for asked in (image, str(image), [image], picture, [picture], np.zeros((2, 20, 20, 3), np.uint8)):
        told = refused(lambda asked=asked: model.predict(asked))
        assert remedy in told
        assert told.endswith("give its file: --backbone FILE, or backbone= in Python")
    for data in (made / "june", "digits"):
        assert remedy in refused(lambda data=data: model.learn(data))
    assert remedy in refused(lambda: model.learn(np.zeros((8, 20, 20, 3), np.uint8), ["a"] * 8))
    assert remedy in refused(lambda: model.learn(load_dataset("digits")))


def test_vectors_of_another_backbone_are_refused(made: Path, tmp_path: Path) -> None:
    model, other = opened(made), Backbone(made / "others.onnx")
    before = model.parts().body()
    embed_data(str(made / "june"), other, tmp_path / "june.npz")
    said = (
        f"vectors by the backbone others.onnx ({other.recipe.digest[:12]}), the model learned from those of eyes.onnx"
    )
    assert said in refused(lambda: model.learn(tmp_path / "june.npz"))
    assert said in refused(lambda: model.learn(load_dataset(f"npz:{tmp_path / 'june.npz'}")))
    assert said in refused(lambda: model.predict(tmp_path / "june.npz"))
    with np.load(tmp_path / "june.npz") as held:
        np.savez(tmp_path / "bare.npz", features=held["features"], labels=held["labels"])
    assert "vectors that name no backbone" in refused(lambda: model.learn(tmp_path / "bare.npz"))
    prepared = Backbone(made / "eyes.onnx", mean=None)
    embed_data(str(made / "june"), prepared, tmp_path / "prepared.npz")
    assert "the same file, other preparation" in refused(lambda: model.learn(tmp_path / "prepared.npz"))
    assert "is not the eyes.onnx by which" in refused(lambda: model.learn(made / "june", backbone=made / "others.onnx"))
    assert model.parts().body() == before


def test_a_backbone_where_none_belongs_is_refused(made: Path, tmp_path: Path) -> None:
    eyes = made / "eyes.onnx"
    images = Model.create("finetune", settings={"classifier.epochs": 1})
    images.learn(made / "may")
    for act in (lambda: images.learn(made / "june", backbone=eyes), lambda: images.predict("x.png", backbone=eyes)):
        assert "the model takes images themselves; leave the backbone out" in refused(act)
    new = Model.create("finetune", settings={"classifier.epochs": 1})
    assert "name its folder or file beside the backbone" in refused(
        lambda: new.learn(load_dataset("digits"), backbone=eyes)
    )
    embed_data(str(made / "may"), Backbone(eyes), tmp_path / "may.npz")
    assert "holds vectors already; leave the backbone out" in refused(
        lambda: new.learn(tmp_path / "may.npz", backbone=eyes)
    )
    with np.load(tmp_path / "may.npz") as held:
        new.learn(held["features"], held["labels"])
    assert "make a new model" in refused(lambda: new.learn(made / "june", backbone=eyes))
    assert "make a new model" in refused(lambda: new.predict(everything(made / "june"), backbone=eyes))


# ---------------------------------------------------------------- the commands


def test_the_commands_learn_predict_and_refuse(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    free = backbones.backbone(tmp_path / "free.onnx", size="side")
    learn = ["learn", "shop.engram", str(made / "may"), "--backbone", str(free), "--size", "16", *SET]
    assert call([*learn, "--quiet"]) == 0
    assert call(learn) == 2, "the words that made it, once more"
    assert "is known already" in capsys.readouterr().err
    assert call(["learn", "shop.engram", str(made / "june"), "--backbone", str(free), "--quiet"]) == 0
    predict = ["predict", "shop.engram", str(made), "--format", "csv", "--batch", "7"]
    assert call([*predict, "--backbone", str(free)]) == 0
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()[1:]]
    paths = [Path(row[0]) for row in rows]
    assert sorted(paths) == everything(made)
    model = Model.open("shop.engram")
    words = [row[1] if row[3] == "true" else "unknown" for row in rows]
    assert words == model.predict(paths, backbone=free)
    for wrong, said in (
        (predict, "give its file: --backbone FILE"),
        ([*predict, "--backbone", str(made / "others.onnx")], "is not the free.onnx"),
        (["learn", "shop.engram", str(made / "june")], "give its file: --backbone FILE"),
        ([*learn[:-len(SET)], "--mean", "none"], "leave the preparation out"),
        (["learn", "new.engram", str(made / "june"), "--size", "16"], "--size goes with --backbone FILE"),
    ):  # fmt: skip
        assert call(wrong) == 2, wrong
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1


@pytest.mark.parametrize("gone", [False, True], ids=["all the images", "those learned are gone"])
def test_killed_while_it_learns_by_a_backbone_it_goes_on(
    gone: bool, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a task: of the images, those of the other class are enough."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    whole, photos, out = tmp_path / "whole.engram", tmp_path / "photos", tmp_path / "m.engram"
    eyes = str(made / "eyes.onnx")
    assert call(["learn", str(whole), str(made / "may"), "--backbone", eyes, *SET, "--quiet"]) == 0
    shutil.copytree(made / "may", photos)
    words = [sys.executable, "-c", KILLED, "learn", str(out), str(photos), "--backbone", eyes, *SET, "--quiet"]
    done = subprocess.run(words, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not out.exists()
    if gone:
        shutil.rmtree(photos / "lamp")
    assert call(["learn", str(out), str(photos), "--backbone", eyes, *SET, "--quiet"]) == 0
    once, again = Model.open(whole), Model.open(out)
    assert once.classes == again.classes == ("lamp", "mug")
    assert once.learner is not None
    assert again.learner is not None
    assert fingerprint(once.learner.state()) == fingerprint(again.learner.state())
    assert again.backbone == Backbone(eyes).recipe
    with torch.inference_mode():
        assert again.predict(everything(made / "may"), backbone=eyes) == once.predict(
            everything(made / "may"), backbone=eyes
        )


KILLED = """
import os, signal, sys
from engram.cli import call
from engram.experiment.loop import TaskLoop
save = TaskLoop._save
def killed(self, *words, **more):
    save(self, *words, **more)
    if self.task == 1:
        os.kill(os.getpid(), signal.SIGKILL)
TaskLoop._save = killed
call(sys.argv[1:])
"""
