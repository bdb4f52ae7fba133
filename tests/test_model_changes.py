"""Models that forget, learn more of a class, answer only, or call an image unknown."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engram.cli import call
from engram.data.datasets import load_dataset
from engram.errors import ConfigError, RunError
from engram.evaluation.trust import Trust
from engram.model import file
from engram.model.model import Model
from engram.model.parts import VALIDATION
from test_model import state_hash, toy, write_folder


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file of three classes, each learned as a task of its own."""
    folder = tmp_path_factory.mktemp("three")
    model = toy()
    model.learn(write_folder(folder / "may", {"mug": 0, "ball": 5, "lamp": 9}))
    model.save(folder / "three.engram")
    return folder / "three.engram"


def own_bits(model: Model, name: str) -> list[bytes]:
    """What only this class has: its normalisation, its head, and its row of the answer."""
    index = model.classes.index(name)
    learner: Any = model.learner
    (engram,) = (one for one in learner.engrams if index in one.class_indices)
    row = learner.classifier_phase.classifier.net[1].weight[index].detach()
    tensors = [*engram.scales, *engram.shifts, engram.head, row]
    return [
        tensor.contiguous().numpy().tobytes() for tensor in tensors if tensor.numel() > 8 and tensor.abs().sum() > 0
    ]


def test_a_forgotten_class_is_gone_from_the_file_and_its_card(three: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.engram"
    shutil.copy(three, path)
    model = Model.open(path)
    gone, kept = own_bits(model, "ball"), own_bits(model, "mug")
    payload = path.read_bytes()
    assert all(bits in payload for bits in (*gone, *kept))
    numbers = dict(model.ids)
    assert call(["forget", str(path), "ball", "--quiet"]) == 0
    payload = path.read_bytes()
    assert not any(bits in payload for bits in gone)
    assert all(bits in payload for bits in kept if bits != kept[-1])
    after = Model.open(path)
    assert after.classes == ("lamp", "mug")
    assert after.ids == {name: numbers[name] for name in after.classes}
    assert {line.what: line.ok for line in after.verify()}["retention"] is True
    assert (after.lineage[-1].kind, after.lineage[-1].classes) == ("forgot", ("ball",))
    after.learn(write_folder(tmp_path / "june", {"ball": 5}))
    assert after.ids["ball"] == 3, "a number is never given again"


def test_versions_that_still_hold_the_class_are_named(
    three: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("v1", "v2"):
        shutil.copy(three, tmp_path / f"{name}.engram")
    (tmp_path / "other.engram").write_bytes(b"no model")
    assert call(["forget", str(tmp_path / "v2.engram"), "lamp"]) == 0
    out = capsys.readouterr().out
    assert "v1.engram still holds it" in out
    assert "other.engram" not in out
    assert "weights are free again" in out


def test_forgetting_can_retrain_the_classifier_and_forget_the_last_class(three: Path) -> None:
    model = Model.open(three)
    trunk = {name: value.clone() for name, value in network(model).items() if name.startswith("0.")}
    model.forget("ball")
    assert all(torch.equal(value, network(model)[name]) for name, value in trunk.items()), "the trunk stays"
    model.forget("lamp", retrain=True)
    assert [step.kind for step in model.lineage[-2:]] == ["forgot", "relearned"]
    assert not all(torch.equal(value, network(model)[name]) for name, value in trunk.items())
    assert model.predict(np.zeros((20, 20), np.uint8), unknown=False) == ["mug"]
    model.forget("mug")
    assert model.classes == ()
    with pytest.raises(RunError, match="knows no class"):
        model.predict(np.zeros((20, 20), np.uint8))
    with pytest.raises(RunError, match="knows no class"):
        model.forget("mug")


def network(model: Model) -> dict[str, torch.Tensor]:
    learner: Any = model.learner
    return dict(learner.classifier_phase.classifier.net.state_dict())


def test_more_images_of_a_known_class_are_a_second_engram(three: Path, tmp_path: Path) -> None:
    model = Model.open(three)
    before = dict(model.ids)
    data = write_folder(tmp_path / "more", {"mug": 2, "vase": 11})
    learned = model.learn(data, update=True)
    assert (learned.new, learned.updated) == (("vase",), ("mug",))
    assert model.classes == ("ball", "lamp", "mug", "vase")
    assert {name: model.ids[name] for name in before} == before
    learner: Any = model.learner
    assert [len(nets) for nets in learner.nets] == [1, 1, 2, 1]
    assert {line.what: line.ok for line in model.verify()}["retention"] is True
    model.save(tmp_path / "m.engram")
    assert state_hash(Model.open(tmp_path / "m.engram")) == state_hash(model)
    with pytest.raises(Exception, match="nothing to update"):
        model.learn(write_folder(tmp_path / "fresh", {"fan": 7}), update=True)


def test_a_file_without_the_generator_answers_the_same_and_nothing_else(three: Path, tmp_path: Path) -> None:
    small, images = tmp_path / "small.engram", sorted((three.parent / "may/mug").glob("*.png"))
    assert call(["export", str(three), "--engram", str(small), "--no-generator", "--quiet"]) == 0
    assert small.stat().st_size < three.stat().st_size
    whole, model = Model.open(three), Model.open(small)
    assert model.answers_only
    np.testing.assert_array_equal(model.predict_proba(images), whole.predict_proba(images))
    assert model.predict(images) == whole.predict(images)
    asks: dict[str, Any] = {
        "learn": lambda: model.learn(three.parent / "may"),
        "draw": lambda: model.sample("mug"),
        "forget": lambda: model.forget("mug"),
        "relearn": model.relearn,
    }
    for word, ask in asks.items():
        with pytest.raises(ConfigError, match=f"only answers: its generator was left out; {word} with the file that"):
            ask()
    retention = next(line for line in model.verify() if line.what == "retention")
    assert retention.ok is None
    assert retention.detail == "the engrams were left out of this file; check the file that has them"
    assert not any("/engrams/" in name or "/layers/" in name for name in tensor_names(small))
    again = tmp_path / "again.engram"
    model.save(again)
    np.testing.assert_array_equal(Model.open(again).predict_proba(images), whole.predict_proba(images))


def test_a_file_that_only_answers_holds_no_image_whatever_its_method_stores(tmp_path: Path) -> None:
    model = Model.create("icarl", settings={"exemplars.budget": 8, "classifier.epochs": 1, "runtime.threads": 1})
    model.learn(write_folder(tmp_path / "may", {"mug": 0, "ball": 5}), audit=tmp_path / "seen.audit")
    model.save(tmp_path / "small.engram", with_generator=False)
    small = Model.open(tmp_path / "small.engram", strict=True)
    assert (small.is_strict, model.is_strict) == (True, False)
    lines = {line.what: line for line in small.verify(tmp_path / "seen.audit")}
    assert lines["strictness"].ok is True
    assert lines["strictness"].detail.startswith("0 training images in the state, of ")
    assert lines["retention"].detail == "icarl keeps no engrams: nothing to compare"
    text = (tmp_path / "small.card.md").read_text()
    assert "no: icarl learns with stored real images; this file holds none of them" in text
    assert "nothing: it only answers" in text
    with pytest.raises(ConfigError, match="what it learned with was left out; learn with the file"):
        small.learn(tmp_path / "may")
    with pytest.raises(ConfigError, match="icarl cannot forget a single class"):
        small.forget("mug")


def tensor_names(path: Path) -> list[str]:
    import safetensors

    with safetensors.safe_open(path, "numpy") as opened:
        return list(opened.keys())


def test_what_is_not_sure_enough_is_unknown(three: Path) -> None:
    model = Model.open(three)
    images = sorted((three.parent / "may").rglob("*.png"))
    assert model.trust is not None
    assert model.trust.calibration.held_out == (0, 1, 1)  # with a single class there is nothing to measure
    calibration = replace(model.trust.calibration, threshold=1.0)
    model.trust = Trust(calibration, None)
    best = model.predict_proba(images).max(1)
    assert model.predict(images) == [
        name if sure >= 1 else "unknown" for name, sure in zip(model.predict(images, unknown=False), best, strict=True)
    ]
    model.trust = Trust(replace(calibration, threshold=0.0), None)
    assert "unknown" not in model.predict(images)
    model.trust = Trust(replace(calibration, temperature=1e6), None)
    np.testing.assert_allclose(model.predict_proba(images), 1 / 3, atol=1e-4)


def test_a_run_that_goes_on_as_a_model_is_calibrated_from_then_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from conftest import SMALL_GAN, write_npz
    from engram.experiment.run import run

    data = write_npz(tmp_path / "a.npz", classes=2)
    small = {**SMALL_GAN, "gan.epochs": 2, "gan.steps": 4, "classifier.epochs": 1, "runtime.threads": 1}
    folder = run(f"npz:{data}", "dgmw", settings=small, out=tmp_path / "run")
    june, out = write_folder(tmp_path / "june", {"lamp": 9}), tmp_path / "m.engram"
    assert call(["learn", str(folder), str(june), "--out", str(out)]) == 0
    assert "no images of the earlier classes were held out" in capsys.readouterr().out
    model = Model.open(out)
    assert model.config.stream.validation == VALIDATION
    assert model.trust is not None
    assert model.trust.calibration.held_out == (0, 0, 1)
    assert (
        "For 0, 1 drawings alone speak: none of their images were measured." in out.with_name("m.card.md").read_text()
    )
    bare = tmp_path / "bare.engram"
    assert call(["learn", str(folder), str(june), "--out", str(bare), "--set", "stream.validation=0", "--quiet"]) == 0
    assert Model.open(bare).trust is None
    with pytest.raises(ConfigError, match=r"stream.validation is fixed when a model is made"):
        Model.open(bare, settings={"stream.validation": 0.1})


def test_a_run_keeps_images_out_only_where_it_is_told_to(tmp_path: Path) -> None:
    from conftest import SMALL_GAN, write_npz
    from engram.experiment.records import read_records
    from engram.experiment.run import run

    data = write_npz(tmp_path / "a.npz", classes=2)
    small = {**SMALL_GAN, "gan.epochs": 2, "gan.steps": 4, "classifier.epochs": 1, "runtime.threads": 1}
    for share in (0.0, 0.25):
        folder = run(f"npz:{data}", "dgmw", settings={**small, "stream.validation": share}, out=tmp_path / str(share))
        records = list(read_records(folder))
        kinds = {record["kind"] for record in records}
        assert ({"calibration", "privacy"} <= kinds) == (share > 0)
        assert (Model.open(folder).trust is not None) == (share > 0)
        assert [record["task"] for record in records if record["kind"] == "privacy"] == ([0, 1] if share else [])
    assert len(load_dataset(f"npz:{data}").take_train().labels) == 64


def test_a_body_that_lacks_a_part_is_damaged(three: Path, tmp_path: Path) -> None:
    contents = file.read(three)
    for part in contents.body:
        if part in ("engram", "preprocessing"):
            continue
        body = {key: value for key, value in contents.body.items() if key != part}
        path = tmp_path / "m.engram"
        path.write_bytes(file.pack(body, contents.state))
        with pytest.raises(RunError, match="is damaged: a part of it does not fit"):
            Model.open(path)
    narrow = {**contents.body, "config": {**contents.body["config"]}}
    narrow["config"]["classifier"] = {**narrow["config"]["classifier"], "width": 3}
    (tmp_path / "m.engram").write_bytes(file.pack(narrow, contents.state))
    with pytest.raises(RunError, match="weights do not fit its settings") as caught:
        Model.open(tmp_path / "m.engram")
    assert "\n" not in str(caught.value)
