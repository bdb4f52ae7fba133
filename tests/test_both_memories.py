"""DGM with a second, statistical memory: what each is trusted, and that the pair is a learner like any other."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import SMALL, SMALL_CRITIC_ANSWERS, Interrupt, context
from engram.config import ClassifierSettings
from engram.data.stream import ClassStream, Task
from engram.experiment.checkpoint import fingerprint
from engram.methods.classifier import normalise
from engram.methods.closed_form.statistics import discriminant_weights, left_out_scores, means, shared_covariance
from engram.methods.dgm.feature_statistics import FeatureStatistics
from engram.methods.dgm.learner import DGM
from engram.methods.product import FIRST, SECOND, best_weights, losses, product
from engram.methods.registry import METHODS
from engram.model.model import Model
from engram.testing import check_learner, images_in, toy_dataset, toy_vectors

BOTH = {"statistics.kept": True, "statistics.filters": 4}
BRIEF = {"gan.epochs": 3, "gan.steps": 6, "gan.batch_size": 8, "critic.width": 4, "replay.images": 64}
TRAINING = ClassifierSettings(epochs=2, batch_size=16, width=4)


def dgm(settings: Mapping[str, Any] | None = None, name: str = "dgmw", **more: Any) -> DGM:
    own = {**SMALL[name], **BRIEF, **BOTH, **(settings or {})}
    learner: DGM = METHODS[name].build(context(name, own, classifier=TRAINING, **more))  # type: ignore[attr-defined]
    return learner


@functools.cache
def _learned(**settings: Any) -> DGM:
    learner = dgm({key.replace("__", "."): value for key, value in settings.items()})
    for task in ClassStream(toy_dataset(), 1, order=range(3)):
        learner.learn(task)
    return learner


def learned(**settings: Any) -> DGM:
    """Three classes, trained once for all tests."""
    return copy.deepcopy(_learned(**settings))


def memory(learner: DGM) -> FeatureStatistics:
    assert learner.statistics is not None
    return learner.statistics


# ---------------------------------------------------------------- the mathematics


def test_a_product_multiplies_what_both_say() -> None:
    first, second = torch.tensor([[2.0, -1.0, 0.5]]), torch.tensor([[-3.0, 0.0, 1.0]])
    p = np.exp([2.0, -1.0, 0.5]) / np.exp([2.0, -1.0, 0.5]).sum()
    q = np.exp(0.25 * np.array([-3.0, 0.0, 1.0]))
    wanted = p**0.5 * q / (p**0.5 * q).sum()
    found = torch.softmax(product(first, second, torch.tensor([0.5, 0.25])), 1)
    np.testing.assert_allclose(found.numpy()[0], wanted, rtol=1e-6)


def test_every_pair_of_weights_is_tried_and_the_least_loss_wins() -> None:
    draws = np.random.default_rng(0)
    first, second, targets = draws.normal(size=(5, 4)), draws.normal(size=(5, 4)), np.array([0, 3, 1, 1, 2])
    found = losses(torch.tensor(first), torch.tensor(second), torch.tensor(targets))
    assert found.shape == (5, len(FIRST), len(SECOND))
    for row, i, j in ((0, 0, 0), (2, 5, 11), (4, 15, 22)):
        p = np.exp(first[row]) / np.exp(first[row]).sum()
        weighted = p ** FIRST[i] * np.exp(SECOND[j] * second[row])
        assert found[row, i, j].item() == pytest.approx(-math.log(weighted[targets[row]] / weighted.sum()))
    table = found.mean(0)
    a, b = best_weights(table).tolist()
    assert table.min() == table[FIRST.index(pytest.approx(a)), SECOND.index(pytest.approx(b))]


def test_an_image_left_out_is_as_if_it_had_never_been_seen() -> None:
    """Compared with sums that are made anew without it, one image at a time."""
    draws = torch.Generator().manual_seed(1)
    features = torch.randn(40, 6, generator=draws, dtype=torch.float64) * torch.arange(1, 7)
    targets = torch.arange(40) % 3
    features += 2 * targets[:, None]

    def sums(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, y = features[rows], targets[rows]
        return x.T @ x, torch.bincount(y, minlength=3), torch.stack([x[y == c].sum(0) for c in range(3)])

    gram, counts, own = sums(torch.arange(40))
    covariance = shared_covariance(gram, counts, own)
    shrinkage, scale = 0.1, covariance.diagonal().mean()
    found = left_out_scores(
        features, targets, covariance=covariance, counts=counts, centres=means(counts, own), shrinkage=shrinkage
    )
    for row in range(40):
        without_gram, without_counts, without = sums(torch.tensor([n for n in range(40) if n != row]))
        centres = means(without_counts, without)
        scatter = without_gram - sum(n * torch.outer(c, c) for n, c in zip(without_counts, centres, strict=True))
        # divided, and shrunk towards the variance, as with it
        inverse = torch.linalg.inv((1 - shrinkage) * scatter / 40 + shrinkage * scale * torch.eye(6))
        away = features[row] - centres
        torch.testing.assert_close(found[row], -((away @ inverse) * away).sum(1) / 2)


def test_seen_images_look_better_than_they_are() -> None:
    """More features than images: by its own images the discriminant is right without exception."""
    draws = torch.Generator().manual_seed(2)
    features = torch.randn(30, 40, generator=draws, dtype=torch.float64)
    targets = torch.arange(30) % 2  # nothing tells them apart
    counts = torch.bincount(targets)
    own = torch.stack([features[targets == c].sum(0) for c in range(2)])
    covariance, centres = shared_covariance(features.T @ features, counts, own), means(counts, own)
    weights, bias = discriminant_weights(covariance, centres, 0.003)
    assert ((features @ weights.T + bias).argmax(1) == targets).double().mean() == 1
    left = left_out_scores(features, targets, covariance=covariance, counts=counts, centres=centres, shrinkage=0.003)
    assert (left.argmax(1) == targets).double().mean() < 0.75


# ---------------------------------------------------------------- the learner


@pytest.mark.parametrize("name", ["dgmw", "dgma"])
def test_with_two_memories_it_does_what_every_learner_must(name: str) -> None:
    plain = {"classifier.augment": "none", "classifier.label_smoothing": 0.0}
    check_learner(METHODS[name], settings={**plain, **SMALL[name], **BOTH}, brief={"gan.epochs": 4, "gan.steps": 8})


def test_on_vectors_too() -> None:
    settings = {"gan.epochs": 3, "gan.steps": 6, "replay.images": 64, **BOTH}
    check_learner(METHODS["dgmw"], toy_vectors(), settings=settings, brief={"gan.epochs": 2, "gan.steps": 4})


def test_the_generator_and_the_classifier_are_those_of_one_memory() -> None:
    one, two = dgm({"statistics.kept": False}), learned()
    for task in ClassStream(toy_dataset(), 1, order=range(3)):
        one.learn(task)
    state = two.state()
    del state["statistics"]
    assert fingerprint(one.state()) == fingerprint(state)
    images = toy_dataset().test.images
    assert torch.equal(two.other_answers()["generative"](images), one.scores(images))
    assert not torch.equal(two.scores(images), one.scores(images))
    assert one.other_answers() == {}


def test_what_it_answers_is_the_product_of_both() -> None:
    learner, images = learned(), toy_dataset().test.images
    ways = learner.other_answers()
    first, second = ways["generative"](images), ways["statistical"](images)
    wanted = product(first, second, memory(learner).weights)
    torch.testing.assert_close(learner.scores(images), wanted)
    with torch.no_grad():
        torch.testing.assert_close(learner.answer_net()(normalise(images)), wanted, atol=1e-4, rtol=1e-4)


def test_each_class_says_once_what_both_lose_on_its_own_images() -> None:
    learner = dgm()
    tables = []
    for task in ClassStream(toy_dataset(), 1, order=range(3)):
        learner.learn(task)
        tables.append(memory(learner).losses.clone())
    assert memory(learner).measured.tolist() == [0, 32, 32]  # of one class every answer is right
    assert torch.equal(tables[2][:2], tables[1])
    assert torch.equal(memory(learner).weights, best_weights(tables[2][1:].mean(0)))


def test_a_single_class_is_answered() -> None:
    learner = dgm()
    learner.learn(next(iter(ClassStream(toy_dataset(), 1))))
    assert learner.scores(toy_dataset().test.images).shape[1] == 1
    assert memory(learner).weights.tolist() == [1.0, SECOND[0]]


def test_a_class_of_one_image_has_no_say() -> None:
    """Leaving it out would leave nothing."""
    learner, stream = dgm(), iter(ClassStream(toy_dataset(), 1, order=range(2)))
    learner.learn(next(stream))
    own = next(stream)
    one = Task(1, (1,), (0, 1), own.images[:1].clone(), own.targets[:1].clone(), ("1",))
    learner.learn(one)
    assert memory(learner).measured.tolist() == [0, 0]
    assert memory(learner).lda.counts.tolist() == [32, 1]
    assert memory(learner).weights.tolist() == [1.0, SECOND[0]]


@pytest.mark.parametrize("after", [1, 7, 20, 26])
def test_stopped_anywhere_it_ends_with_the_same_bits(after: int) -> None:
    """The statistics are summed up once, wherever it was stopped."""
    learner, stopped = dgm(), False
    for task in ClassStream(toy_dataset(), 1, order=range(3)):
        try:
            learner.learn(task, observe=Interrupt(after if task.index == 1 else 0))
        except InterruptedError:
            stopped, state = True, learner.state()
            learner = dgm()
            learner.load(copy.deepcopy(state))
            learner.learn(task)
    assert stopped
    assert fingerprint(learner.state()) == fingerprint(learned().state())


def test_a_critic_that_answers_has_a_second_memory_too() -> None:
    learner = dgm({**SMALL_CRITIC_ANSWERS, **BRIEF})
    for task in ClassStream(toy_dataset(), 2):
        learner.learn(task)
    images = toy_dataset().test.images
    with torch.no_grad():
        torch.testing.assert_close(
            learner.answer_net()(normalise(images)), learner.scores(images), atol=1e-4, rtol=1e-4
        )


# ---------------------------------------------------------------- forgetting


def test_of_a_forgotten_class_no_sum_is_left() -> None:
    """Counts and means of the others stay; the shared matrix is made anew of drawings, and has no part of the class."""
    learner = learned()
    before = memory(learner)
    counts, sums, gram = before.lda.counts.clone(), before.lda.sums.clone(), before.lda.gram.clone()
    tables = before.losses.clone()
    learner.forget(1)
    after = memory(learner)
    assert torch.equal(after.lda.counts, counts[[0, 2]])
    assert torch.equal(after.lda.sums, sums[[0, 2]])
    assert torch.equal(after.losses, tables[[0, 2]])
    assert not torch.equal(after.lda.gram, gram)
    # of every class: drawings' scatter around its own mean, which is that of the real images
    centres = means(after.lda.counts, after.lda.sums)
    between = sum(n * torch.outer(c, c) for n, c in zip(after.lda.counts, centres, strict=True))
    assert torch.linalg.eigvalsh(after.lda.gram - between).min() > -1
    assert learner.scores(toy_dataset().test.images).shape[1] == 2
    again = learned()
    again.forget(1)
    assert fingerprint(again.state()) == fingerprint(learner.state())


def test_it_learns_on_after_a_class_is_forgotten() -> None:
    learner = learned()
    learner.forget(1)
    own = next(iter(ClassStream(toy_dataset(), 1, order=[3])))
    task = Task(3, (3,), (0, 2, 3), own.images.clone(), torch.full_like(own.targets, 2), ("3",))
    learner.learn(task)
    assert memory(learner).measured.tolist() == [0, 32, 32]
    assert images_in(learner.state(), task.images) == 0


# ---------------------------------------------------------------- as a model


def test_a_model_of_both_is_saved_opened_and_answers(tmp_path: Any) -> None:
    brief = {"classifier.epochs": 2, "classifier.width": 4, "runtime.threads": 1, "stream.validation": 0.2}
    model = Model.create("dgmw", settings={**SMALL["dgmw"], **BRIEF, **BOTH, **brief})
    own = toy_dataset().take_train()
    model.learn(own.images[own.labels < 2], own.labels[own.labels < 2])
    model.learn(own.images[own.labels == 3], own.labels[own.labels == 3])
    images = toy_dataset().test.images
    for with_generator in (True, False):
        model.save(tmp_path / "m.engram", with_generator=with_generator)
        opened = Model.open(tmp_path / "m.engram", strict=True)
        np.testing.assert_allclose(opened.predict_proba(images), model.predict_proba(images), atol=1e-6)
    model.save(tmp_path / "m.engram")
    assert "sums of fixed features of real images" in (tmp_path / "m.card.md").read_text()
    model.forget("1")
    model.save(tmp_path / "m.engram")
    text = (tmp_path / "m.card.md").read_text()
    assert "made anew from drawings of the other classes" in text
    assert Model.open(tmp_path / "m.engram").predict(images[:2], unknown=False)
