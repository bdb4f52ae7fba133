"""The closed forms: each formula beside an independent computation, and sums that know no order."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from conftest import Interrupt, context
from engram.cli import call
from engram.data.datasets import Dataset
from engram.data.stream import ClassStream
from engram.errors import ConfigError
from engram.experiment import checkpoint
from engram.experiment.checkpoint import fingerprint
from engram.methods.classifier import normalise
from engram.methods.closed_form.features import VectorFeatures, features_of
from engram.methods.closed_form.fecam import FeCAM
from engram.methods.closed_form.heads import CorrelationHead, unit_tukey
from engram.methods.closed_form.learner import BATCH, ClosedForm
from engram.methods.closed_form.ridge import STRENGTHS, Ridge
from engram.methods.closed_form.settings import FeatureSettings
from engram.methods.closed_form.statistics import (
    best_strength,
    discriminant_weights,
    means,
    nearest_mean_weights,
    packed,
    ridge_weights,
    shared_covariance,
    shrunk_correlation,
    symmetric,
    triangle,
)
from engram.methods.learner import AddsUp, Forgets
from engram.methods.registry import METHODS, configure
from engram.model.intake import read
from engram.model.model import Model
from engram.nets import random_features
from engram.nets.random_features import RandomFeatures, expected_covariance
from engram.presets import PAPER, PRESETS, VECTORS
from engram.testing import toy_dataset
from test_model import write_folder

CLOSED = ("ncm", "slda", "ridge", "fecam")
FILTERS = {"features.filters": 4}
BUDGET = 25e6
"""Bytes that ridge may keep."""
every_closed_form = pytest.mark.parametrize("name", CLOSED)


def build(name: str, settings: dict[str, Any] | None = None, **more: Any) -> ClosedForm:
    learner = METHODS[name].build(context(name, {**FILTERS, **(settings or {})}, **more))  # type: ignore[attr-defined]
    assert isinstance(learner, ClosedForm)
    return learner


def learned(
    name: str,
    order: tuple[str, ...] = ("0", "1", "2", "3"),
    cut: int = 1,
    settings: dict[str, Any] | None = None,
    dataset: Dataset | None = None,
) -> ClosedForm:
    learner = build(name, settings)
    for task in ClassStream(dataset or toy_dataset(), cut, order=order):
        learner.learn(task)
    return learner


def points(rows: int = 60, side: int = 5, classes: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, targets, and their counts and sums; as many rows a class."""
    draws = torch.Generator().manual_seed(0)
    targets = torch.arange(rows) % classes
    features = torch.randn(rows, side, generator=draws, dtype=torch.float64) + targets[:, None] * torch.arange(side)
    sums = torch.stack([features[targets == c].sum(0) for c in range(classes)])
    return features, targets, torch.bincount(targets), sums


# ---------------------------------------------------------------- formulas


def test_a_triangle_is_a_symmetric_matrix() -> None:
    matrix = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    matrix = matrix + matrix.mT
    assert triangle(matrix).shape == (2, 10)
    assert torch.equal(symmetric(triangle(matrix), 4), matrix)


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        ([0.0, -3.0, 2.0**31 - 1], torch.int32),
        ([2.0**31], torch.float64),
        ([-(2.0**31) - 1], torch.float64),
        ([0.5, 1.0], torch.float64),
        ([], torch.int32),
    ],
)
def test_sums_are_packed_without_a_loss(numbers: list[float], kind: torch.dtype) -> None:
    sums = torch.tensor(numbers, dtype=torch.float64)
    assert packed(sums).dtype == kind
    assert torch.equal(packed(sums).double(), sums)


def test_the_nearest_mean_is_the_nearest() -> None:
    features, _, counts, sums = points()
    weights, bias = nearest_mean_weights(means(counts, sums))
    scores = features @ weights.T + bias
    distances = torch.cdist(features, means(counts, sums)).square() / 2
    torch.testing.assert_close(scores - scores[:, :1], distances[:, :1] - distances)


def test_the_discriminant_is_scikit_learns() -> None:
    lda = pytest.importorskip("sklearn.discriminant_analysis", reason="scikit-learn is not installed")
    features, targets, counts, sums = points()
    theirs = lda.LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.2, priors=np.full(3, 1 / 3))
    theirs.fit(features.numpy(), targets.numpy())
    covariance = shared_covariance(features.T @ features, counts, sums)
    weights, bias = discriminant_weights(covariance, means(counts, sums), 0.2)
    ours, wanted = features @ weights.T + bias, torch.from_numpy(theirs.decision_function(features.numpy()))
    torch.testing.assert_close(ours - ours[:, :1], wanted - wanted[:, :1])


def test_ridge_regression_is_least_squares_with_more_rows() -> None:
    """To add rows root(strength) I with targets 0 is the same as to add the penalty."""
    features, targets, _, sums = points()
    gram = features.T @ features
    wanted = np.eye(3)[targets.numpy()]
    scale = 0.3 * float(gram.diagonal().mean())
    rows = np.concatenate([features.numpy(), np.sqrt(scale) * np.eye(5)])
    theirs = np.linalg.lstsq(rows, np.concatenate([wanted, np.zeros((5, 3))]), rcond=None)[0]
    np.testing.assert_allclose(ridge_weights(gram, sums, 0.3).numpy(), theirs.T, rtol=1e-9)


def test_the_best_strength_has_the_least_error_aside() -> None:
    features, targets, _, _ = points()
    wanted = torch.nn.functional.one_hot(targets).double()
    chosen = best_strength(features[:30], wanted[:30], features[30:], wanted[30:], (1e-4, 1e-2, 1.0, 100.0))

    def error(strength: float) -> float:
        scale = strength * np.trace((features[:30].T @ features[:30]).numpy()) / 5
        f, y = features[:30].numpy(), wanted[:30].numpy()
        weights = np.linalg.inv(f.T @ f + scale * np.eye(5)) @ f.T @ y
        return float(((features[30:].numpy() @ weights - wanted[30:].numpy()) ** 2).mean())

    assert chosen == min((1e-4, 1e-2, 1.0, 100.0), key=error)


def test_fecams_distance_is_mahalanobis_under_correlations() -> None:
    features, targets, counts, sums = points()
    found = []
    for c in range(3):
        own = features[targets == c].numpy()
        covariance = np.cov(own.T, bias=True)
        off = covariance[~np.eye(5, dtype=bool)].mean()
        shrunk = covariance + 0.7 * np.where(np.eye(5, dtype=bool), np.diag(covariance).mean(), off)
        spread = np.sqrt(np.diag(shrunk))
        away = features.numpy() - own.mean(0)
        found.append(np.einsum("bi,ij,bj->b", away, np.linalg.inv(shrunk / np.outer(spread, spread)), away))
    grams = [features[targets == c].T @ features[targets == c] for c in range(3)]
    ours = torch.stack([shrunk_correlation(grams[c], counts[c], sums[c], 0.7) for c in range(3)])
    away = features[:, None] - means(counts, sums)
    distances = torch.einsum("bci,cij,bcj->bc", away, torch.linalg.inv(ours), away)
    np.testing.assert_allclose(distances.numpy(), np.stack(found, 1), rtol=1e-8)


def test_a_correlation_head_answers_with_distances() -> None:
    draws = torch.Generator().manual_seed(0)
    centres, whitening = torch.randn(2, 3, generator=draws), torch.randn(2, 3, 3, generator=draws)
    features = torch.rand(4, 3, generator=draws)
    head = CorrelationHead(centres, whitening, 0.5)
    changed = features.sqrt() / features.sum(1, keepdim=True).sqrt()
    torch.testing.assert_close(unit_tukey(features, 0.5), changed)
    for image, c in itertools.product(range(4), range(2)):
        away = whitening[c] @ (changed[image] - centres[c])
        torch.testing.assert_close(head(features)[image, c], -away @ away / 2)


def test_a_single_example_leaves_the_nearest_mean() -> None:
    features = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    count, gram = torch.tensor([1]), features.T @ features
    assert torch.equal(shrunk_correlation(gram, count[0], features[0], 1.0), torch.eye(2).double())
    covariance = shared_covariance(gram, count, features)
    weights, bias = discriminant_weights(covariance, features, 0.1)
    assert torch.equal(weights, features)
    assert bias.item() == -2.5


# ---------------------------------------------------------------- features


def explicit(image: npt.NDArray[np.float64], filters: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(C, 32, 32), (K, C, P, P) -> features, patch by patch."""
    side, windows = random_features.PATCH, random_features.WINDOWS
    places = random_features.SIDE - side + 1
    responses = np.empty((len(filters), places, places))
    for y, x in itertools.product(range(places), repeat=2):
        patch = image[:, y : y + side, x : x + side]
        spread = np.sqrt(patch.var() + random_features.FLOOR**2)
        responses[:, y, x] = ((patch - patch.mean()) * filters).sum((1, 2, 3)) / spread
    found = []
    for sign in (1, -1):
        beyond = np.maximum(sign * responses - random_features.THRESHOLD, 0)
        first = random_features.STEP * np.arange(windows)
        assert first[-1] + random_features.WINDOW == places
        cut = [np.arange(one, one + random_features.WINDOW) for one in first]
        found += [beyond[:, rows][:, :, columns].mean((1, 2)) for rows, columns in itertools.product(cut, cut)]
    both = np.stack(found).reshape(2, windows**2, len(filters)).transpose(0, 2, 1)
    features: npt.NDArray[np.float64] = random_features.UNIT * np.sqrt(both.reshape(-1))
    return features.clip(max=random_features.MOST)


@pytest.mark.parametrize("channels", [1, 3])
def test_features_are_what_the_picture_says(channels: int) -> None:
    draws = torch.Generator().manual_seed(0)
    trunk = RandomFeatures((channels, 32, 32), 3, generator=draws)
    images = torch.randint(0, 256, (2, channels, 32, 32), generator=draws, dtype=torch.uint8)
    x = normalise(images)
    x[:, :, :12] = x[:, :1, :1, :1]  # a flat part, without contrast
    found = trunk(x).numpy()
    assert found.shape == (2, trunk.features)
    for one, image in zip(found, x.double().numpy(), strict=True):
        np.testing.assert_allclose(one, explicit(image, trunk.filters.double().numpy()), atol=0.05)


def test_filters_are_blind_to_brightness_and_respond_alike() -> None:
    filters = RandomFeatures((3, 32, 32), 50, generator=torch.Generator().manual_seed(0)).filters.flatten(1)
    torch.testing.assert_close(filters.sum(1), torch.zeros(50), atol=1e-5, rtol=0)
    variance = torch.einsum("ki,ij,kj->k", filters, expected_covariance(3), filters)
    torch.testing.assert_close(variance, torch.ones(50), atol=1e-4, rtol=0)


def test_features_do_not_depend_on_contrast_nor_on_size() -> None:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 32, 32, generator=draws)
    small = RandomFeatures((3, 32, 32), 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(small(x), small(0.5 * x + 0.25), atol=1.0, rtol=0)
    large = RandomFeatures((3, 64, 64), 4, generator=torch.Generator().manual_seed(1))
    doubled = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(small(x), large(doubled), atol=1e-3, rtol=0)


def test_one_function_decides_which_features() -> None:
    draws = torch.Generator().manual_seed(0)
    assert isinstance(features_of((3, 32, 32), FeatureSettings(filters=2), generator=draws), RandomFeatures)
    plain = features_of((7,), FeatureSettings(), generator=draws)
    projected = features_of((7,), FeatureSettings(projections=9), generator=draws)
    assert isinstance(plain, VectorFeatures)
    x = torch.randn(4, 7, generator=draws)
    assert torch.equal(plain(x), x)
    assert plain.for_sums(x).dtype == torch.float64
    assert (plain.features, projected.features) == (7, 9)
    torch.testing.assert_close(projected(x), (x @ projected.filters.T).clamp_min(0))


def test_fecam_keeps_no_larger_matrices() -> None:
    with pytest.raises(ConfigError, match=r"features\.filters=65 is out of range"):
        build("fecam", {"features.filters": 65})
    with pytest.raises(ConfigError, match=r"matrix of 1153 x 1153 numbers for every class; set features\.projections"):
        FeCAM(context("fecam", shape=(1153,)))


# ---------------------------------------------------------------- exact sums


@every_closed_form
def test_neither_the_order_of_classes_nor_their_tasks_matter(name: str) -> None:
    images = toy_dataset(per_class=90).test.images
    data = [toy_dataset(per_class=90) for _ in range(4)]
    here = learned(name, ("0", "1", "2", "3"), 1, dataset=data[0])
    there = learned(name, ("2", "0", "3", "1"), 1, dataset=data[1])
    pairs = learned(name, ("2", "0", "3", "1"), 2, dataset=data[2])
    at_once = learned(name, ("2", "0", "3", "1"), 4, dataset=data[3])
    back = [1, 3, 0, 2]
    wanted = here.scores(images)
    scale = wanted.abs().max()
    for other in (there, pairs, at_once):
        assert torch.equal(other.counts[back], here.counts)
        assert torch.equal(other.sums[back], here.sums)
        torch.testing.assert_close(other.scores(images)[:, back] / scale, wanted / scale, atol=1e-6, rtol=0)


@every_closed_form
def test_sums_of_images_are_whole_numbers(name: str) -> None:
    for tensor in learned(name).statistics().values():
        assert not tensor.is_floating_point()
        assert tensor.dtype == (torch.int64 if tensor.dim() == 1 and len(tensor) == 4 else torch.int32)


@pytest.mark.parametrize("name", ["ridge", "slda"])
def test_the_gram_matrix_is_that_of_all_features(name: str) -> None:
    learner, images = learned(name), toy_dataset().take_train().images
    features = learner.features(images).round().double()
    assert torch.equal(symmetric(learner.statistics()["gram"].double(), features.shape[1]), features.T @ features)
    assert features.max() <= random_features.MOST
    assert BATCH * random_features.MOST**2 < 2**24  # what float32 adds up exactly


def test_ridge_is_ridge_of_all_images_at_once() -> None:
    learner, data = learned("ridge"), toy_dataset().take_train()
    f, y = learner.features(data.images).round().double().numpy(), np.eye(4)[data.labels.numpy()]
    scale = configure(method="ridge").settings.ridge.strength * np.trace(f.T @ f) / f.shape[1]  # type: ignore[attr-defined]
    weights = np.linalg.solve(f.T @ f + scale * np.eye(f.shape[1]), f.T @ y)
    images = toy_dataset().test.images
    wanted = learner.features(images).double().numpy() @ weights
    np.testing.assert_allclose(learner.scores(images).numpy(), wanted, atol=1e-5)


@every_closed_form
def test_a_task_is_taken_up_where_it_was_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engram.methods.closed_form.learner.BATCH", 8)
    whole, learner = learned(name), build(name)
    for task in ClassStream(toy_dataset(), 1):
        for stop in (1, 2):  # of four batches
            with pytest.raises(InterruptedError):
                learner.learn(task, observe=Interrupt(stop))
            saved = learner.state()
            learner = build(name, seed=5)
            learner.load(saved)
        learner.learn(task)
    assert fingerprint(learner.state()) == fingerprint(whole.state())


# ---------------------------------------------------------------- bytes


@every_closed_form
def test_the_ledger_is_the_size_of_what_is_stored(name: str, tmp_path: Path) -> None:
    learner = learned(name)
    state = learner.state()
    tensors = {**state["statistics"], "filters": state["filters"]}
    assert {part: one.numel() * one.element_size() for part, one in tensors.items()} == learner.bytes
    checkpoint.save(tmp_path, state, {"task": 4, "epoch": 0})
    stored = max(path.stat().st_size for path in tmp_path.iterdir())
    assert sum(learner.bytes.values()) <= stored < sum(learner.bytes.values()) + 4096


@every_closed_form
def test_matrices_are_stored_as_triangles(name: str) -> None:
    learner = learned(name)
    side = learner.trunk.features
    matrices = {"ridge": 1, "slda": 1, "fecam": 4, "ncm": 0}[name]
    assert sum(learner.bytes[part] for part in learner.bytes if part.startswith("gram")) == (
        matrices * side * (side + 1) // 2 * 4
    )


@pytest.mark.parametrize("preset", [name for name in PRESETS if not name.startswith(PAPER) and name != VECTORS])
def test_every_preset_keeps_within_the_budget(preset: str) -> None:
    for name in ("ridge", "slda"):
        settings = configure(method=name, preset=preset).settings
        filters = settings.features.filters  # type: ignore[attr-defined]
        side = RandomFeatures((3, 32, 32), filters, generator=torch.Generator()).features
        classes = 50
        assert side * (side + 1) // 2 * 4 + classes * (side * 4 + 8) + filters * 3 * 36 * 4 <= BUDGET


# ---------------------------------------------------------------- forgetting, and more of the same


@pytest.mark.parametrize("name", ["ncm", "fecam"])
def test_a_forgotten_class_was_never_there(name: str) -> None:
    learner = learned(name)
    assert isinstance(learner, Forgets)
    before = sum(learner.bytes.values())
    freed = learner.forget(1)
    assert (freed.weights, freed.engrams) == (0, 0)
    assert freed.bytes == before - sum(learner.bytes.values()) > 0
    never = learned(name, ("0", "2", "3"))
    images = toy_dataset().test.images
    assert torch.equal(learner.scores(images), never.scores(images))
    for part, tensor in learner.statistics().items():
        assert torch.equal(tensor, never.statistics()[part])


@pytest.mark.parametrize("name", ["slda", "ridge"])
def test_one_matrix_over_all_classes_forgets_none(name: str) -> None:
    assert not isinstance(build(name), Forgets)


@every_closed_form
def test_examples_may_come_in_parts(name: str) -> None:
    whole, parts = build(name), build(name)
    assert isinstance(whole, AddsUp)
    draws = torch.Generator().manual_seed(0)
    features = torch.randint(0, 128, (40, whole.trunk.features), generator=draws).float()
    targets = torch.arange(40) % 2
    for learner in (whole, parts):
        learner.grow(2)
    whole.add(features, targets)
    for rows in torch.split(torch.randperm(40, generator=draws), 7):
        parts.add(features[rows], targets[rows])
    for part, tensor in whole.statistics().items():
        assert torch.equal(tensor, parts.statistics()[part])


# ---------------------------------------------------------------- RanPAC's rule


def test_ranpacs_rule_needs_two_classes_a_task() -> None:
    asked = {"ridge.choose": "task", "ridge.strength": 0.02}  # which is none to choose from
    one, two = learned("ridge", cut=1, settings=asked), learned("ridge", cut=2, settings=asked)
    assert isinstance(one, Ridge)
    assert isinstance(two, Ridge)
    assert one.strength == 0.02
    assert two.strength in STRENGTHS
    other = build("ridge", asked)
    other.load(two.state())
    images = toy_dataset().test.images
    assert torch.equal(other.scores(images), two.scores(images))
    fixed = learned("ridge", settings={"ridge.strength": 0.02})
    assert torch.equal(fixed.scores(images), one.scores(images))


# ---------------------------------------------------------------- as a model


def model_of(name: str, folder: Path, classes: dict[str, int], **settings: Any) -> Model:
    small = {**FILTERS, "runtime.threads": 1, "stream.validation": 0.0, **settings}
    model = Model.create(name, settings=small)
    model.learn(write_folder(folder, classes))
    return model


@every_closed_form
def test_a_model_learns_saves_opens_and_answers(name: str, tmp_path: Path) -> None:
    model = model_of(name, tmp_path / "may", {"mug": 0, "ball": 5}, **{"stream.validation": 0.2})
    model.learn(write_folder(tmp_path / "june", {"cap": 10}))
    images = sorted((tmp_path / "may").rglob("*.png")) + sorted((tmp_path / "june").rglob("*.png"))
    answers = model.predict(images, unknown=False)
    assert np.mean([answer == path.parent.name for answer, path in zip(answers, images, strict=True)]) > 0.9
    for with_generator in (True, False):
        model.save(tmp_path / "m.engram", with_generator=with_generator)
        opened = Model.open(tmp_path / "m.engram", strict=True)
        np.testing.assert_array_equal(opened.predict_proba(images), model.predict_proba(images))
        assert opened.temperature == model.temperature
    assert model.trust is not None
    model.save(tmp_path / "m.engram")
    text = (tmp_path / "m.card.md").read_text()
    assert "Later tasks add to them and take nothing away" in text
    assert ("engram forget m.engram" in text) == isinstance(model.learner, Forgets)
    assert "random filters, drawn once" in text


@pytest.mark.parametrize("name", ["ncm", "fecam"])
def test_a_model_forgets_as_if_it_had_never_known(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of(name, tmp_path / "all", {"ball": 5, "mug": 0, "cap": 10})
    never = model_of(name, tmp_path / "two", {"ball": 5, "mug": 0})
    with pytest.raises(ConfigError, match=f"{name} has no engrams to learn from; dgmw and dgma have"):
        model.forget("cap", retrain=True)
    step = model.forget("cap")
    assert step.facts["bytes"] > 0
    assert model.classes == ("ball", "mug")
    images = sorted((tmp_path / "two").rglob("*.png"))
    np.testing.assert_array_equal(model.predict_proba(images), never.predict_proba(images))
    model.save(tmp_path / "m.engram")
    assert "as a model that never learned these classes" in (tmp_path / "m.card.md").read_text()
    assert Model.open(tmp_path / "m.engram").classes == ("ball", "mug")
    assert call(["forget", str(tmp_path / "m.engram"), "mug", "--retrain"]) == 2
    assert call(["forget", str(tmp_path / "m.engram"), "mug"]) == 0
    assert re.search(r"forgot mug: its sums are gone, [\d,]+ bytes", capsys.readouterr().out)
    assert Model.open(tmp_path / "m.engram").classes == ("ball",)


@pytest.mark.parametrize("name", ["slda", "ridge"])
def test_a_model_with_one_matrix_says_why_it_cannot_forget(name: str, tmp_path: Path) -> None:
    model = model_of(name, tmp_path / "all", {"ball": 5, "mug": 0})
    said = (
        f"{name} cannot forget a single class, as it keeps feature sums of each class, and one Gram matrix over all; "
    )
    with pytest.raises(ConfigError, match=f"^{said}dgmw, dgma, ncm and fecam can$"):
        model.forget("mug")
    assert model.classes == ("ball", "mug")


@pytest.mark.parametrize("name", ["ncm", "slda", "ridge"])
def test_more_images_of_a_known_class_are_added_exactly(name: str, tmp_path: Path) -> None:
    model = model_of(name, tmp_path / "may", {"ball": 5, "mug": 0})
    assert isinstance(model.learner, ClosedForm)
    before = model.learner.sums.clone()
    more = write_folder(tmp_path / "june", {"mug": 0}, per_class=20)
    assert model.learn(more, update=True).updated == ("mug",)
    images = read(more, model.config.stream, shape=model.shape, known=model.classes).take_train().images
    added = model.learner.features(images).round().double().sum(0)
    assert torch.equal(model.learner.sums - before, torch.stack([torch.zeros_like(added), added]))
