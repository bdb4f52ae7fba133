"""Vectors: read and digested as images are, scaled by the first task alone, drawn by the same graph bit for bit."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from conftest import Interrupt
from engram import Model, Samples, build, configure, load_dataset
from engram.cli import call
from engram.data.datasets import Dataset, Split, check
from engram.data.stream import ClassStream, Task
from engram.errors import ConfigError, DataError, StrictnessError
from engram.experiment.checkpoint import fingerprint
from engram.experiment.maps import axes, picture, svg, vector_map
from engram.kinds import is_vector, levels_apart, to_network
from engram.masking.losses import gradient_penalty, input_gradient_of
from engram.methods.learner import Learner, Retains
from engram.methods.registry import METHODS
from engram.methods.scaling import ScaledLearner
from engram.model.search_images import found_in, prints
from engram.nets.architectures import chosen, critic_trunk, graph_for
from engram.nets.critic import Critic, CriticBatch
from engram.nets.critic_backward import WrittenOutCritic
from engram.nets.grain import grain
from engram.nets.masked_generator import decorrelation, principal
from engram.nets.scale import Scale
from engram.seeding import generator
from engram.testing import check_learner, toy_vectors

FEW = {
    "gan.epochs": 3, "gan.steps": 3, "gan.rare_power": 0.0, "generator.width": 3, "generator.latent_dim": 16,
    "generator.bn_batches": 3, "critic.width": 4, "replay.images": 256, "masks.lambda_ru": 0.05,
}  # fmt: skip
FOR_BASELINES = {
    **{name: value for name, value in FEW.items() if not name.startswith("masks")},
    "gan.epochs": 6, "gan.steps": 30, "gan.beta1": 0.5, "generator.width": 6,
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "dgmw": FEW,
    "dgma": FEW,
    "dgr": FOR_BASELINES,
    "mergan": FOR_BASELINES,
    "mergan-ra": FOR_BASELINES,
    "ewcm": {**FOR_BASELINES, "gan.steps": 60, "gan.learning_rate": 0.003},
    "icarl": {"exemplars.budget": 40},
    "ewc-s": {"regularisation.strength": 1.0},
}
PLAIN = {"classifier.augment": "none", "classifier.label_smoothing": 0.0, "classifier.learning_rate": 0.02}


def arrays(**more: Any) -> dict[str, Any]:
    data = toy_vectors()
    train = data.take_train()
    return {"features": train.images.numpy(), "labels": train.labels.numpy(), **more}


def saved(path: Path, **content: Any) -> Path:
    np.savez(path, **content)
    return path


def learner(method: str = "dgmw", settings: Mapping[str, Any] | None = None) -> Learner:
    config = configure(
        dataset="toy", method=method, preset="default", settings={**PLAIN, **SETTINGS[method], **(settings or {})}
    )
    return METHODS[method].learner(config, (12,), torch.device("cpu"))


# ---------------------------------------------------------------- data


def test_an_npz_of_features_is_a_data_set(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    path = saved(tmp_path / "v.npz", **arrays(class_names=np.array(names)))
    data = load_dataset(f"npz:{path}")
    assert data.shape == (12,)
    assert is_vector(data.shape)
    assert data.class_names == tuple(names)
    assert data.test.images.dtype == torch.float32
    lines = {line.what: line for line in check(f"npz:{path}")}
    assert all(line.ok for line in lines.values())
    assert lines["shapes"].detail == "12 numbers a vector, float32, finite"
    assert "vectors" in lines["counts"].detail
    with_test = saved(
        tmp_path / "t.npz", **arrays(test_features=np.zeros((4, 12), np.float32), test_labels=[0, 1, 2, 3])
    )
    assert len(load_dataset(f"npz:{with_test}").test.labels) == 4


def test_the_digest_is_that_of_the_float32_numbers(tmp_path: Path) -> None:
    content = arrays()
    half = content["features"].astype(np.float16)
    sets = [
        load_dataset(f"npz:{saved(tmp_path / f'{kind}.npz', features=half.astype(kind), labels=content['labels'])}")
        for kind in ("float16", "float32", "float64", ">f4")
    ]
    assert len({data.digest for data in sets}) == 1
    assert sets[0].notes == ("features are float16, taken as float32",)
    assert sets[1].notes == ()
    moved = half.astype(np.float32)
    moved[0, 0] = np.nextafter(moved[0, 0], np.float32(np.inf))
    other = load_dataset(f"npz:{saved(tmp_path / 'other.npz', features=moved, labels=content['labels'])}")
    assert other.digest != sets[0].digest


def _with(place: tuple[int, int], value: float) -> npt.NDArray[np.float64]:
    features: npt.NDArray[np.float64] = arrays()["features"].astype(np.float64)
    features[place] = value
    return features


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"features": np.zeros((128, 3, 4), np.float32)}, "features has the shape (128, 3, 4); it must be (N, D)"),
        ({"features": np.zeros((128, 0), np.float32)}, "features has the shape (128, 0)"),
        ({"features": np.zeros((128, 4), np.int64)}, "features is int64; features are float32, float16 or float64"),
        ({"features": np.zeros((128, 4), np.complex64)}, "features is complex64"),
        ({"features": _with((3, 5), np.nan)}, "features holds nan in row 3, column 5; every number must be finite"),
        ({"features": _with((2, 1), 1e300)}, "features holds 1e+300 in row 2, column 1"),
        ({"features": np.zeros((9, 4), np.float32)}, "holds 9 vectors, but labels holds 128 labels"),
        ({"images": np.zeros((128, 8, 8), np.uint8)}, "has images and features; keep one of the two"),
        (
            {"test_features": np.zeros((4, 7), np.float32), "test_labels": np.arange(4)},
            "12 numbers a vector for training",
        ),
        ({"test_features": np.zeros((4, 12), np.float32)}, "has no array test_labels"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    path = saved(tmp_path / "v.npz", **arrays(**content))
    with pytest.raises(DataError) as caught:
        load_dataset(f"npz:{path}")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_stream_closes_vectors_too() -> None:
    stream = ClassStream(toy_vectors(), 2, validation=0.2)
    task = next(stream)
    assert task.shape == (12,)
    assert task.validation is not None
    assert len(task.validation) == 12
    kept = task.images[:1]
    with pytest.raises(StrictnessError, match="still held"):
        next(stream)
    del kept


# ---------------------------------------------------------------- the scale


def test_the_first_task_alone_fixes_the_scale() -> None:
    data = toy_vectors()
    first = data.train.images[data.train.labels < 2]
    made = learner("dgmw")
    assert isinstance(made, ScaledLearner)
    for task in ClassStream(data, 2):
        made.learn(task)
        assert made.scale is not None
        torch.testing.assert_close(made.scale.mean, first.double().mean(0).float())
        torch.testing.assert_close(made.scale.deviation, first.double().std(0, correction=0).float())
    assert isinstance(made, Samples)
    drawn = made.sample([3], 400, generator=generator(1))
    real = data.test.images[data.test.labels == 3]
    assert (drawn.mean(0) - real.mean(0)).abs().max() < 1.0, "drawn in the unit of the data"


def test_numbers_that_do_not_vary_are_not_blown_up() -> None:
    vectors = torch.tensor([[5.0, 0.0, 1.0, 1000.0], [5.0, 0.0, 3.0, 1002.0]])
    scale = Scale.of(vectors)
    assert scale.deviation.tolist() == pytest.approx([0.05, 1.0, 1.0, 10.01])
    torch.testing.assert_close(scale.back(scale(vectors)), vectors)
    assert Scale.of(torch.zeros(3, 2)).deviation.tolist() == [1.0, 1.0]


def test_vectors_reach_a_network_as_they_are_and_images_as_before() -> None:
    vectors = torch.randn(3, 4, generator=generator(0))
    assert torch.equal(to_network(vectors), vectors)
    assert to_network(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)).tolist() == [[[[1.0, 1.0], [1.0, 1.0]]]]
    assert levels_apart(vectors, vectors) == 0
    assert levels_apart(torch.tensor([[1]], dtype=torch.uint8), torch.tensor([[255]], dtype=torch.uint8)) == 254


# ---------------------------------------------------------------- architectures


def test_auto_goes_by_the_shape_and_the_rest_is_refused() -> None:
    assert graph_for("auto", (384,)).name == "mlp"
    assert graph_for("auto", (3, 32, 32)).name == "dcgan"
    assert [chosen("classifier", "auto", shape) for shape in ((9,), (1, 32, 32))] == ["linear", "convnet"]
    for group, name, shape, words in (
        ("generator", "dcgan", (9,), "is for images, not for vectors of 9; set it to auto or mlp"),
        ("generator", "mlp", (1, 32, 32), "is for vectors, not for images of 1x32x32; set it to auto or dcgan"),
        ("classifier", "resnet18", (9,), "set it to auto or linear"),
        ("classifier", "linear", (3, 32, 32), "set it to auto or convnet"),
    ):
        with pytest.raises(ConfigError, match=words):
            chosen(group, name, shape)
    with pytest.raises(ConfigError, match=r"critic\.architecture=resnet18 is for images"):
        learner("dgmw", {"critic.architecture": "resnet18"})
    assert configure(method="dgmw", vectors=True).preset == "embeddings"
    assert configure(method="dgmw").preset == "auto"


def test_principal_directions_are_those_of_the_covariance() -> None:
    vectors = torch.randn(50, 6, generator=generator(0)).double() @ torch.diag(torch.arange(1.0, 7.0).double())
    values, known = torch.linalg.eigh(vectors.T @ vectors / 50)
    for some in (vectors, torch.cat([vectors] * 3)[:50]):
        directions, deviations = principal(some, 8)
        assert directions.shape == (6, 8)
        torch.testing.assert_close(deviations[:6].square(), values.flip(0))
        torch.testing.assert_close(
            (directions[:, :6].T @ known.flip(1)).abs(), torch.eye(6).double(), atol=1e-6, rtol=0
        )
        assert not deviations[6:].any()
    few, _ = principal(vectors[:3], 8)
    assert int((few.norm(dim=0) > 1e-6).sum()) == 3
    mixed = vectors @ decorrelation(vectors)
    torch.testing.assert_close(torch.cov(mixed.T, correction=0), torch.eye(6).double(), atol=1e-3, rtol=0)


def _score(critic: Critic, x: Tensor) -> Tensor:
    scores: Tensor = critic(x)[0]
    return scores


def test_every_number_has_a_noise_of_its_own() -> None:
    found = grain(torch.randn(20_000, 16, generator=generator(0)), 40)
    torch.testing.assert_close(torch.cov(found.T), torch.eye(40), atol=0.05, rtol=0)
    assert found.mean(0).abs().max() < 0.05


@pytest.mark.parametrize("name", ["dgmw", "dgma"])
def test_drawings_vary_in_every_number_though_there_are_fewer_units(name: str) -> None:
    """A classifier that never sees the directions that units leave out takes them for differences between classes."""
    draws = generator(1)
    deviations = torch.rand(60, generator=draws) + 0.5  # in 60 directions; 24 units
    x = torch.randn(400, 60, generator=draws) * deviations
    data = Dataset("own", ("one",), "", "own", train=Split(x, torch.zeros(400).long()), test=Split(x, torch.zeros(400)))
    learner = build(name, data, settings={**FEW, "gan.learning_rate": 1e-6})
    for task in ClassStream(data):
        learner.learn(task)
    assert isinstance(learner, Samples)
    drawn = learner.sample([0], 4000, generator=generator(2))
    torch.testing.assert_close(drawn.std(0), x.std(0), rtol=0.15, atol=0)


def test_the_dense_critics_gradients_are_those_of_autograd() -> None:
    """The penalty differentiated twice, and all terms written out."""
    found = []
    for kind in (Critic, WrittenOutCritic):
        critic = kind(critic_trunk("mlp", (7,), width=3, kernel=4, generator=generator(0)), 3, generator=generator(1))
        critic = critic.double()
        for number, parameter in enumerate(critic.parameters()):
            torch.nn.init.normal_(parameter, std=0.3, generator=generator(2, number))
        real, fake, at = (torch.randn(5, 7, generator=generator(3, n), dtype=torch.float64) for n in range(3))
        plain = input_gradient_of(partial(_score, critic))(at)
        torch.testing.assert_close(critic.input_gradient(at), plain)
        batch = CriticBatch(real, fake, at, 0.7, rows=5, targets=torch.tensor([0, 1, 2, 0, 1]))
        critic.backward(batch)
        found.append([p.grad.clone() for p in critic.parameters() if p.grad is not None])
        if kind is Critic:
            critic.zero_grad()
            torch.autograd.backward(gradient_penalty(plain))
            assert max(float(p.grad.abs().max()) for p in critic.parameters() if p.grad is not None) > 1e-3
        x = fake.clone().requires_grad_()
        torch.autograd.backward(critic.held(x)[0].sum())
        assert x.grad is not None
        found[-1].append(x.grad)
    for written, known in zip(*found, strict=True):
        torch.testing.assert_close(written, known)


# ---------------------------------------------------------------- methods


@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_vectors(name: str) -> None:
    own = SETTINGS.get(name, {})
    brief = {"gan.epochs": 2, "gan.steps": 4} if "gan.steps" in own else {}
    check_learner(METHODS[name], toy_vectors(), settings={**PLAIN, **own}, brief=brief)


@pytest.mark.parametrize("name", ["dgmw", "dgma"])
def test_old_vectors_are_drawn_to_the_bit_whatever_comes(name: str) -> None:
    made, drawn, sizes = learner(name), list[Tensor](), list[int]()
    for task in ClassStream(toy_vectors(classes=12, per_class=12), 2):
        made.learn(task)
        assert isinstance(made, Samples)
        assert isinstance(made, Retains)
        drawn.append(made.sample([0, 1], 5, generator=generator(7)))
        assert made.retention() == made.redrawn() == []
        sizes.append(sum(layer.weight.numel() for layer in made.within.net.plastic))  # type: ignore[attr-defined]
    assert all(torch.equal(drawn[0], later) for later in drawn)
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0], "the network grows"
    layer = made.within.net.plastic[0]  # type: ignore[attr-defined]
    with torch.no_grad():
        layer.weight[layer.reserved if name == "dgmw" else layer.reserved.nonzero()[0]] += 0.5
    assert isinstance(made, Retains)
    assert made.retention(), "the check can fail"


@pytest.mark.parametrize("after", [2, 5, 8, 11])
def test_killed_and_resumed_it_ends_with_the_same_bits(after: int) -> None:
    whole, stopped = learner(), learner()
    for task in ClassStream(toy_vectors(), 2):
        whole.learn(task)
    for task in ClassStream(toy_vectors(), 2):
        stopped = _stopped_once(stopped, task, after)
    assert fingerprint(whole.state()) == fingerprint(stopped.state())


def _stopped_once(made: Learner, task: Task, after: int) -> Learner:
    try:
        made.learn(task, observe=Interrupt(after))
    except InterruptedError:
        other = learner()
        other.load(made.state())
        other.learn(task)
        return other
    return made


# ---------------------------------------------------------------- models


@pytest.fixture(scope="module")
def model() -> Model:
    made = Model.create("dgmw", settings={**PLAIN, **FEW})
    content = arrays()
    for number in (0, 1, 2):
        some = content["features"][content["labels"] == number]
        made.learn(some, [f"class {number}"] * len(some))
    return made


def test_a_model_learns_vectors_month_by_month(model: Model, tmp_path: Path) -> None:
    content = arrays()
    assert model.config.preset == "embeddings"
    assert model.config.settings.gan.epochs == 3, "what was asked for stays"  # type: ignore[attr-defined]
    known = content["labels"] < 3
    wanted = [f"class {number}" for number in content["labels"][known]]
    answers = model.predict(content["features"][known], unknown=False)
    assert sum(a == b for a, b in zip(answers, wanted, strict=True)) > 0.7 * len(wanted)
    assert model.predict(content["features"][0].tolist(), unknown=False) == answers[:1] or not known[0]
    digest = model.save(tmp_path / "v.engram")
    again = Model.open(tmp_path / "v.engram")
    assert again.digest == digest
    assert again.shape == (12,)
    assert np.array_equal(again.predict_proba(content["features"]), model.predict_proba(content["features"]))
    assert np.array_equal(again.sample("class 1", 4, seed=3), model.sample("class 1", 4, seed=3))
    assert all(check.ok is not False for check in again.verify())
    head = (tmp_path / "v.engram").read_bytes()[:4000].decode("utf-8", "replace")
    assert "kind" in head
    page = (tmp_path / "v.card.md").read_text()
    assert "12 numbers each, scaled by what the first task was like" in page
    assert "float32 vectors in" in page
    again.save(tmp_path / "answers.engram", with_generator=False)
    small = Model.open(tmp_path / "answers.engram")
    np.testing.assert_allclose(
        small.predict_proba(content["features"]), model.predict_proba(content["features"]), atol=1e-6
    )
    before = again.sample("class 2", 5)
    again.forget("class 1")
    assert list(again.classes) == ["class 0", "class 2"]
    assert np.array_equal(again.sample("class 2", 5), before), "the others keep their bits"
    some = content["features"][content["labels"] == 3]
    again.learn(some, ["class 3"] * len(some))
    assert list(again.classes) == ["class 0", "class 2", "class 3"]
    assert np.array_equal(again.sample("class 2", 5), before)


def test_what_does_not_fit_a_model_is_one_line(model: Model) -> None:
    with pytest.raises(DataError, match="holds images of 1x32x32, the model takes vectors of 12"):
        model.learn(np.zeros((10, 32, 32), np.uint8), ["x"] * 10)
    with pytest.raises(DataError, match="holds vectors of 5, the model takes vectors of 12"):
        model.learn(np.zeros((10, 5)), ["x"] * 10)
    with pytest.raises(DataError, match="has 5 numbers a vector, the model takes 12"):
        model.predict(np.zeros((2, 5)))
    with pytest.raises(DataError, match="features holds nan in row 0, column 1"):
        model.predict([[0.0, float("nan"), *[0.0] * 10]])
    with pytest.raises(DataError, match="there are 10 vectors and 3 labels; give one label a vector"):
        model.learn(np.zeros((10, 12)), ["x"] * 3)
    fresh = Model.create("dgmw")
    with pytest.raises(DataError, match=r"class 'x' has 2 vector\(s\)"):
        fresh.learn(np.zeros((2, 12)), ["x"] * 2)
    assert fresh.config.preset == "auto", "whatever goes wrong, the model stays what it was"


def test_onnx_takes_float32_vectors(model: Model, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    from engram.model.onnx import export_model

    report = export_model(model, tmp_path / "v.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "v.onnx"), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    assert (given.name, given.type) == ("features", "tensor(float)")
    x = arrays()["features"]
    probabilities, known = session.run(None, {"features": x})
    np.testing.assert_allclose(probabilities, model.predict_proba(x), atol=1e-4)
    assert known.dtype == bool
    assert report.known
    texts = session.get_modelmeta().custom_metadata_map
    assert texts["kind"] == "vectors"


def test_a_hidden_vector_is_found_in_any_unit() -> None:
    vectors = arrays()["features"][:3]
    known = frozenset(prints(vectors))
    scale = {"mean": torch.arange(12.0), "deviation": torch.full((12,), 3.0)}
    seen = (torch.from_numpy(vectors) - scale["mean"]) / scale["deviation"]
    for state in (
        {"a": torch.from_numpy(vectors)},
        {"a": {"b": torch.from_numpy(vectors).flatten().double()}},
        {"a": torch.from_numpy(vectors) * 7},
        {"scale": scale, "learner": {"kept": seen}},
    ):
        assert len(found_in(state, (12,), known)) == 3
    assert not found_in({"a": torch.zeros(24), "b": torch.randn(12, 12, generator=generator(0))}, (12,), known)


# ---------------------------------------------------------------- maps, and the command line


def test_the_map_shows_the_directions_of_largest_variance() -> None:
    drawn = torch.randn(200, 5, generator=generator(0)) * torch.tensor([1.0, 9.0, 0.1, 4.0, 0.5])
    centre, directions = axes(drawn)
    _, _, rows = torch.linalg.svd((drawn - drawn.mean(0)).double(), full_matrices=False)
    torch.testing.assert_close((directions.T @ rows[:2].T).abs(), torch.eye(2).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(centre.float(), drawn.mean(0))
    assert (directions.gather(0, directions.abs().argmax(0, keepdim=True)) > 0).all()
    classes = torch.arange(200) % 3
    shown = vector_map(drawn, classes, ["a", "<b>", "c"], real=drawn[:9] + 0.1, real_classes=classes[:9])
    assert torch.equal(picture(shown), picture(shown))
    assert picture(shown).shape == (3, 480, 640)
    text = svg(shown)
    assert text.count("<circle") == 200
    assert text.count("<path") == 9
    assert "&lt;b&gt;" in text


def test_the_command_line_answers_and_draws_vectors(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "v.engram"
    model.save(file)
    asked = saved(tmp_path / "new.npz", features=arrays()["features"][:5].astype(np.float64))
    assert call(["predict", str(file), str(asked), "--format", "jsonl", "--no-unknown", "--batch", "2"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["row"] for row in rows] == [0, 1, 2, 3, 4]
    answers = model.predict(arrays()["features"][:5], unknown=False)
    assert [row["classes"][0]["class"] for row in rows] == answers
    out = tmp_path / "drawn.npz"
    assert call(["sample", str(file), "--per-class", "6", "--out", str(out), "--quiet"]) == 0
    drawn = load_dataset(f"npz:{out}")
    assert drawn.class_names == model.classes
    assert sum(drawn.train_counts) + len(drawn.test.labels) == 18
    for name in ("map.png", "map.svg"):
        assert call(["sample", str(file), "--out", str(tmp_path / name), "--quiet"]) == 0
        assert (tmp_path / name).stat().st_size > 1000
    assert call(["sample", str(file), "--out", str(tmp_path / "v.jpg")]) == 2
    assert "vectors are written as .npz, or as a map to a .png or .svg file" in capsys.readouterr().err


def test_a_run_on_vectors_shows_a_map_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "v.npz", **arrays())
    words = [f"{name}={value}" for name, value in {**PLAIN, **FEW, "stream.classes_per_task": 2}.items()]
    run = ["run", "--dataset", f"npz:{path}", "--method", "dgmw", "--out", str(tmp_path / "runs/run"), "--quiet"]
    assert call([*run, *(part for word in words for part in ("--set", word))]) == 0
    config = json.loads((tmp_path / "runs/run/config.json").read_text())
    assert "embeddings" in json.dumps(config)
    assert (tmp_path / "runs/run/samples.png").read_bytes()[:4] == b"\x89PNG"
    assert call(["verify", str(tmp_path / "runs/run")]) == 0
    assert "0 training vectors in the state" in capsys.readouterr().out
    assert Model.open(tmp_path / "runs/run").shape == (12,)
    with zipfile.ZipFile(path) as file:
        assert "features.npy" in file.namelist()
