"""An exported file answers as its learner does and says how to use it; one that would answer otherwise is refused."""

from __future__ import annotations

import functools
import json
import logging
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import SMALL, SMALL_CRITIC_ANSWERS, context
from engram.data.datasets import load_dataset
from engram.data.stream import ClassStream
from engram.errors import ConfigError, EngramError, RunError
from engram.evaluation.calibration import Calibration
from engram.evaluation.confidence import confidence
from engram.evaluation.trust import Trust
from engram.evaluation.typicality import Typicality, project, whitening
from engram.methods.classifier import normalise
from engram.methods.learner import Learner
from engram.methods.registry import METHODS
from engram.model.model import Model
from engram.model.onnx import Known, OnnxReport, export_model, export_onnx
from engram.testing import toy_dataset

onnx: Any = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

CLASSIFIER = {"classifier.epochs": 1, "classifier.batch_size": 8, "classifier.width": 4}
GAN = {"gan.epochs": 2, "gan.steps": 3, "replay.images": 32, "critic.width": 4}
CRITIC = {**SMALL_CRITIC_ANSWERS, **GAN}
RESNET = {"classifier.architecture": "resnet18", "classifier.width": 2}


def learned(name: str, settings: dict[str, Any], channels: int = 1, size: int = 32) -> Learner:
    """4 classes, two a task, with networks that are as small as they can be."""
    dataset = toy_dataset(channels=channels, per_class=10, size=size)
    own = {**CLASSIFIER, **SMALL.get(name, {}), **(GAN if METHODS[name].draws or name == "dgr" else {}), **settings}
    ctx = context(name, own, shape=dataset.shape)
    learner: Learner = METHODS[name].build(ctx)  # type: ignore[attr-defined]
    for task in ClassStream(dataset, 2, cumulative=METHODS[name].given_all_data):
        learner.learn(task)
    return learner


@functools.cache
def plain() -> Learner:
    """Learned once for all tests that only look."""
    return learned("finetune", {})


NAMES = ["nought", "Ÿ", 'two, or "2"', "3"]


def export(learner: Learner, path: Path, *, channels: int = 1, size: int = 32, **more: Any) -> OnnxReport:
    return export_onnx(learner.answer_net(), path, shape=(channels, size, size), class_names=NAMES, **more)


def asked(path: Path, images: Tensor) -> Tensor:
    """What ONNX Runtime makes of the file."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [one.name for one in session.get_inputs()] == ["images"]
    assert [one.name for one in session.get_outputs()] == ["probabilities"]
    return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


@pytest.mark.parametrize(
    ("name", "settings", "channels", "size"),
    [
        *((name, {}, 1, 32) for name in METHODS if name != "dgma"),
        ("dgma", {"gan.epochs": 4, "gan.steps": 8}, 1, 32),  # with fewer its masks may all be closed
        ("finetune", {}, 3, 32),
        ("icarl", {}, 3, 32),
        ("finetune", {}, 3, 64),
        ("finetune", RESNET, 1, 32),
        ("dgmw", CRITIC, 1, 32),
        ("dgmw", {**CRITIC, "critic.architecture": "residual"}, 3, 32),
        ("dgmw", {**CRITIC, "critic.architecture": "resnet18", "critic.width": 2}, 1, 64),
    ],
)
def test_a_file_answers_as_its_learner(
    name: str, settings: dict[str, Any], channels: int, size: int, tmp_path: Path
) -> None:
    learner, path = learned(name, settings, channels, size), tmp_path / "a.onnx"
    images = toy_dataset(channels=channels, size=size).test.images
    scores = learner.scores(images)
    temperature = scores.std().item()  # so that no class has a probability of 1 for whatever image
    report = export(learner, path, channels=channels, size=size, temperature=temperature, check=images)
    wanted = torch.softmax(scores / temperature, 1)
    assert wanted.std(0).max() > 1e-3  # the images are not all alike to it
    for count in (1, 7):
        torch.testing.assert_close(asked(path, images[:count]), wanted[:count], atol=1e-5, rtol=0)
    assert report.difference < 1e-5
    assert (report.batches, report.images) == ((1, 3, 32, 64), 1 + 3 + 64 + len(images))
    assert report.bytes == path.stat().st_size
    assert list(tmp_path.iterdir()) == [path]  # no weights beside it


def test_a_file_says_how_to_use_it(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    own = {"made_by": "a test", "about": "ÿ"}
    report = export(plain(), path, temperature=2.5, trust=trusted(2.5, 0.25), metadata=own)
    model = onnx.load(str(path))
    onnx.checker.check_model(model, full_check=True)
    assert [one.version for one in model.opset_import] == [report.opset]
    texts = {one.key: one.value for one in model.metadata_props}
    assert json.loads(texts["class_names"]) == NAMES
    assert float(texts["temperature"]) == 2.5
    assert texts["unknown"].endswith("its best probability is below 0.25")
    assert json.loads(texts["input_shape"]) == [1, 32, 32]
    assert texts["colour_order"] == "grey"
    assert texts["value_range"].startswith("0 to 255")
    assert "bilinear with antialiasing to 32 x 32" in texts["resizing"]
    assert own.items() <= texts.items()
    [images] = model.graph.input
    first, *rest = images.type.tensor_type.shape.dim
    assert (first.dim_param, [one.dim_value for one in rest]) == ("batch", [1, 32, 32])
    assert images.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert model.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert str(Path(__file__).parents[1]).encode() not in path.read_bytes()  # nothing of this machine


def trusted(temperature: float, threshold: float, near: Typicality | None = None) -> Trust:
    return Trust(Calibration(temperature, threshold, (None,) * 4, (0,) * 4, 0), near)


def unknown_to(path: Path, images: Tensor) -> list[bool]:
    """By the file's second output."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [(one.name, one.type) for one in session.get_outputs()][1] == ("known", "tensor(bool)")
    return [not known for known in session.run(["known"], {"images": images.numpy()})[0].tolist()]


@pytest.mark.parametrize("rule", ["confidence", "typicality", "both"])
def test_a_file_calls_unknown_what_the_model_does(rule: str, tmp_path: Path) -> None:
    """Limits at the medians: about half of the images are unknown by each rule."""
    learner, images = plain(), torch.cat([toy_dataset().test.images, torch.full((4, 1, 32, 32), 255).byte()])
    net: Any = learner.answer_net()
    scores, features = learner.scores(images), net.trunk(normalise(images))
    points = project(features, 5)
    plainly = Typicality(
        5, features.shape[1], tuple(points.mean(0).tolist()), tuple(map(tuple, whitening(points).tolist())),
        1.0, (1.0,) * 4, (30,) * 4,
    )  # fmt: skip
    near = replace(plainly, reach=float(plainly.distances(features).median()) + 1e-6)
    sure = float(confidence(scores, 2.0).median()) - 1e-6
    trust = trusted(2.0, 0.0 if rule == "typicality" else sure, None if rule == "confidence" else near)
    report = export(learner, tmp_path / "a.onnx", temperature=2.0, trust=trust, check=images)
    wanted = (~trust.known(scores, features)).tolist()
    assert 0 < sum(wanted) < len(wanted)
    assert unknown_to(tmp_path / "a.onnx", images) == wanted
    assert report.known


def test_a_file_that_would_call_other_images_unknown_is_not_written(tmp_path: Path) -> None:
    def lenient(self: Known, scores: Tensor, features: Tensor | None) -> Tensor:
        return scores.amax(1) > -100

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Known, "forward", lenient)
        with pytest.raises(EngramError, match=r"do not call the same images unknown \(\d+ differ\): .*not written"):
            export_onnx(
                AnotherInFiles(1.0), tmp_path / "a.onnx", shape=(1, 4, 4), class_names=NAMES, trust=trusted(1.0, 0.5)
            )
    assert not list(tmp_path.iterdir())


def test_a_models_file_tells_the_unknown(tmp_path: Path) -> None:
    digits = load_dataset("digits")
    train, model = digits.take_train(), Model.create("finetune", preset="fast", settings={"stream.classes_per_task": 2})
    rows = train.labels < 2
    model.learn(train.images[rows], [str(label) for label in train.labels[rows].tolist()])
    assert model.trust is not None
    assert export_model(model, tmp_path / "a.onnx").known
    images = digits.test.images[:100]
    answered = ["unknown" if strange else "" for strange in unknown_to(tmp_path / "a.onnx", images)]
    assert answered == ["unknown" if name == "unknown" else "" for name in model.predict(images)]


def test_colours_are_told(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2))
    export_onnx(net, tmp_path / "a.onnx", shape=(3, 8, 8), class_names=["a", "b"])
    texts = {one.key: one.value for one in onnx.load(str(tmp_path / "a.onnx")).metadata_props}
    assert texts["colour_order"] == "RGB"
    assert "unknown" not in texts


def test_a_single_class_is_certain(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
    export_onnx(net, tmp_path / "a.onnx", shape=(1, 8, 8), class_names=["only"])
    images = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    assert asked(tmp_path / "a.onnx", images).tolist() == [[1.0]] * 3


def test_the_same_network_gives_the_same_bytes_and_nothing_is_touched(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    net, random = plain().answer_net(), torch.get_rng_state()
    net.train()  # the file answers as in eval mode all the same
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with caplog.at_level(logging.INFO), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for name in ("a", "b"):
            export_onnx(net, tmp_path / name, shape=(1, 32, 32), class_names=NAMES, metadata={"z": "1", "a": "2"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    images = toy_dataset().test.images
    wanted = torch.softmax(plain().scores(images), 1)
    torch.testing.assert_close(asked(tmp_path / "a", images), wanted, atol=1e-5, rtol=0)
    assert torch.equal(torch.get_rng_state(), random)
    assert net.training
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    assert capfd.readouterr() == ("", "")
    assert not told
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


# ---------------------------------------------------------------- what is refused


class AnotherInFiles(nn.Module):
    """Answers otherwise once it is exported."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        scores = x.flatten(1)[:, :4]
        return scores * self.factor if torch.compiler.is_exporting() else scores


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_a_file_that_answers_otherwise_is_not_written(factor: float, tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    path.write_text("what was there")
    with pytest.raises(
        EngramError, match=r"up to \S+ away from torch's, 0\.0001 is allowed: .*a\.onnx was not"
    ) as said:
        export_onnx(AnotherInFiles(factor), path, shape=(1, 4, 4), class_names=NAMES)
    assert "\n" not in str(said.value)
    assert path.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [path]


def test_the_given_images_are_compared_too(tmp_path: Path) -> None:
    """Where the network answers otherwise for them alone."""

    class OtherForBlack(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            scores = x.flatten(1)[:, :4]
            black = (x.flatten(1).amax(1, keepdim=True) <= -1).float() if torch.compiler.is_exporting() else 0.0
            return scores + black * torch.arange(4.0)

    black = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    asked_for: dict[str, Any] = {"shape": (1, 4, 4), "class_names": NAMES}
    export_onnx(OtherForBlack(), tmp_path / "a.onnx", **asked_for)
    with pytest.raises(EngramError, match="away from torch's"):
        export_onnx(OtherForBlack(), tmp_path / "b.onnx", check=black, **asked_for)
    assert not (tmp_path / "b.onnx").exists()


class OfOneSize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1)[:, :4]


class WithoutCounterpart(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cdist(x.flatten(1), torch.zeros(4, 16))


@pytest.mark.parametrize(
    ("net", "said"),
    [(OfOneSize(), r"one size of batch only: .* x\.shape\[0\]"), (WithoutCounterpart(), "cannot be written as ONNX: ")],
)
def test_a_network_that_cannot_be_exported_is_told(net: nn.Module, said: str, tmp_path: Path) -> None:
    with pytest.raises(EngramError, match=said) as caught:
        export_onnx(net, tmp_path / "a.onnx", shape=(1, 4, 4), class_names=NAMES)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"class_names": []}, "has learned no class yet"),
        ({"class_names": NAMES[:3]}, "3 class names for a network with 4 scores"),
        ({"temperature": 0.0}, r"temperature 0\.0: must be above 0"),
        ({"temperature": float("inf")}, "temperature inf: must be above 0 and finite"),
        ({"metadata": {"class_names": "mine"}}, "metadata class_names: the export sets it itself"),
    ],
)
def test_what_makes_no_sense_is_refused(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        export_onnx(AnotherInFiles(1.0), tmp_path / "a.onnx", **{"shape": (1, 4, 4), "class_names": NAMES, **more})
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cannot write .*a\.onnx: No such file"):
        export_onnx(AnotherInFiles(1.0), tmp_path / "none" / "a.onnx", shape=(1, 4, 4), class_names=NAMES)


@pytest.mark.parametrize("name", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_package_is_named_with_what_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ConfigError, match=r"^engram export needs more packages: pip install 'engram-continual\[onnx\]'"
    ):
        export_onnx(AnotherInFiles(1.0), tmp_path / "a.onnx", shape=(1, 4, 4), class_names=NAMES)
    assert not list(tmp_path.iterdir())
