"""The scikit-learn classifier: answers are the model's, labels are the user's, and scikit-learn's own tools work."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from conftest import SMALL_GAN
from engram.errors import ConfigError, DataError, EngramError
from engram.model.model import Model

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import check_estimator

from engram.sklearn import EngramClassifier

PLAIN = {"classifier.epochs": 2, "classifier.batch_size": 8, "classifier.width": 4, "runtime.threads": 1}
GAN = {**PLAIN, **SMALL_GAN, "gan.epochs": 2, "gan.steps": 4, "replay.images": 64}


def images(labels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """(N, 16, 16): a class is a bright square in its own place."""
    draws = np.random.default_rng(7)
    pixels = draws.integers(0, 60, (len(labels), 16, 16), dtype=np.uint8)
    for row, label in enumerate(labels):
        y, x = divmod(int(label), 4)
        pixels[row, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4] += 180
    return pixels


NUMBERS = np.repeat([9, 2, 11], 12)  # not in sorted order: the model meets 9 first
X = images(NUMBERS)
NAMES = np.array(["nine", "two", "eleven"]).repeat(12)


def plain(**more: Any) -> EngramClassifier:
    """The quickest: two epochs, all classes at once."""
    settings = {**PLAIN, "stream.classes_per_task": 3, "classifier.epochs": 6, "stream.validation": 0.2}
    return EngramClassifier("finetune", settings=settings, **more)


def generative(**more: Any) -> EngramClassifier:
    return EngramClassifier(settings=GAN, **more)


@pytest.fixture(scope="module")
def fitted() -> EngramClassifier:
    return plain().fit(X, NUMBERS)


def test_it_tells_the_classes_apart_and_gives_back_the_labels(fitted: EngramClassifier) -> None:
    assert fitted.classes_.tolist() == [2, 9, 11]
    assert fitted.model_.classes == ("9", "2", "11")
    answers = fitted.predict(X)
    assert answers.dtype.kind == "i"
    assert (answers == NUMBERS).mean() > 0.9
    assert fitted.score(X, NUMBERS) == (answers == NUMBERS).mean()


def test_columns_are_in_the_order_of_classes(fitted: EngramClassifier) -> None:
    own = fitted.model_.predict_proba(X)
    for column, label in enumerate(fitted.classes_.tolist()):
        np.testing.assert_array_equal(
            fitted.predict_proba(X)[:, column], own[:, fitted.model_.classes.index(str(label))]
        )
    np.testing.assert_array_equal(fitted.classes_[fitted.predict_proba(X).argmax(1)], fitted.predict(X))


def test_every_layout_gives_the_same_answers(fitted: EngramClassifier) -> None:
    expected = fitted.predict_proba(X[:3])
    for same in (X[:3, None], X[:3, :, :, None], X[:3] / 255, (X[:3, None] / 255).astype(np.float32), list(X[:3])):
        np.testing.assert_array_equal(fitted.predict_proba(same), expected)
    assert fitted.predict_proba(X[:1]).shape == (1, 3)
    assert fitted.predict(X[:0]).shape == (0,)


def test_three_grey_images_are_never_one_in_colour() -> None:
    """A model takes (3, H, W) for one image in colour; here the first axis always counts images."""
    colour = np.repeat(X[:, None], 3, axis=1)
    classifier = plain().fit(colour, NUMBERS)
    assert classifier.model_.shape == (3, 32, 32)
    np.testing.assert_array_equal(classifier.predict_proba(X[:3]), classifier.predict_proba(colour[:3]))
    np.testing.assert_array_equal(
        classifier.predict_proba(colour[:3]), classifier.predict_proba(colour[:3].transpose(0, 2, 3, 1))
    )


@pytest.mark.parametrize("labels", [NAMES, NAMES.astype(object), NAMES.tolist()], ids=["U", "object", "list"])
def test_names_stay_names(labels: Any) -> None:
    classifier = plain().fit(X, labels)
    assert classifier.classes_.tolist() == ["eleven", "nine", "two"]
    assert set(classifier.predict(X).tolist()) <= set(NAMES.tolist())
    assert classifier.score(X, labels) > 0.9


def test_the_same_seed_gives_the_same_answers_and_another_others(fitted: EngramClassifier) -> None:
    np.testing.assert_array_equal(plain().fit(X, NUMBERS).predict_proba(X), fitted.predict_proba(X))
    assert not np.array_equal(plain(random_state=1).fit(X, NUMBERS).predict_proba(X), fitted.predict_proba(X))


# ---------------------------------------------------------------- going on


def test_new_classes_come_with_any_call_and_fit_starts_anew() -> None:
    classifier = generative()
    for label in (9, 2):
        own = label == NUMBERS
        assert classifier.partial_fit(X[own], NUMBERS[own]) is classifier
    assert classifier.classes_.tolist() == [2, 9]
    assert (classifier.model_.classes, classifier.model_.tasks) == (("9", "2"), 2)
    last = NUMBERS == 11
    classifier.fit(X[last], NUMBERS[last])
    assert (classifier.classes_.tolist(), classifier.model_.tasks) == ([11], 1)


def test_it_learns_what_the_model_would() -> None:
    """Call by call, the bits of `Model.learn` with the same arrays."""
    classifier, model = generative(random_state=3), Model.create(seed=3, settings=GAN)
    for label in (9, 2):
        own = label == NUMBERS
        classifier.partial_fit(X[own], NUMBERS[own])
        model.learn(X[own], NUMBERS[own])
    np.testing.assert_array_equal(classifier.predict_proba(X), model.predict_proba(X)[:, [1, 0]])


def test_known_classes_are_updated_only_where_the_method_can() -> None:
    first = NUMBERS != 11
    classifier = generative().fit(X[:12], NUMBERS[:12])
    classifier.partial_fit(X[first], NUMBERS[first])  # 9 is known, 2 is new
    assert classifier.model_.classes == ("9", "2")
    assert [step.updated for step in classifier.model_.lineage] == [(), ("9",), ()]
    other = plain().fit(X, NUMBERS)
    before = other.predict_proba(X)
    with pytest.raises(ConfigError, match="finetune cannot learn more of a known class"):
        other.partial_fit(X, NUMBERS)
    np.testing.assert_array_equal(other.predict_proba(X), before)


def test_a_first_call_that_fails_leaves_nothing_behind() -> None:
    classifier = plain()
    with pytest.raises(EngramError):
        classifier.partial_fit(X[:2], NUMBERS[:2])
    with pytest.raises(NotFittedError):
        classifier.predict(X)


def test_classes_follow_what_the_model_forgets() -> None:
    classifier = generative().fit(X[:24], NUMBERS[:24])
    classifier.model_.forget("9")
    assert classifier.classes_.tolist() == [2]
    assert classifier.predict_proba(X).shape == (36, 1)


# ---------------------------------------------------------------- unknown


def test_unknown_is_an_answer_where_labels_are_names() -> None:
    classifier = plain(unknown=True).fit(X, NAMES)
    grey = np.full((4, 16, 16), 128, np.uint8)
    assert (classifier.predict(grey) == "unknown").all()
    assert classifier.score(X, NAMES) > 0.8
    assert classifier.predict(X).tolist() == classifier.model_.predict(X[:, None])
    classifier.set_params(unknown=False)
    assert "unknown" not in classifier.predict(grey)


def test_unknown_is_refused_for_numbers(fitted: EngramClassifier) -> None:
    with pytest.raises(ConfigError, match="no whole number; give names"):
        plain(unknown=True).fit(X, NUMBERS)
    later = copy.deepcopy(fitted).set_params(unknown=True)
    with pytest.raises(ConfigError, match="no whole number; give names"):
        later.predict(X)


# ---------------------------------------------------------------- mistakes


BAD: list[tuple[Any, Any, str]] = [
    (X[None, None], NUMBERS, "give a table, .N, D., or images"),
    (X.reshape(36, -1)[:, :3], NUMBERS[:, None], r"y has the shape \(36, 1\)"),
    ([X[0], X[0, :8]], NUMBERS[:2], "several shapes"),
    (X * 1.0, NUMBERS, "give 0…1"),
    (X, NUMBERS[:-1], "36 images and 35 labels"),
    (X, NUMBERS * 1.0, "labels of float64; give names or whole numbers"),
    (X, NUMBERS == 9, "labels of bool"),
    (X, NUMBERS[:, None], r"y has the shape \(36, 1\)"),
    (X, np.array([*NAMES[:-1], None], object), "labels of object"),
    (X, np.array([2**70] * 36, object), "labels of object"),
    (X, np.where(NAMES == "two", "unknown", NAMES), "cannot be called 'unknown'"),
]


@pytest.mark.parametrize(("x", "y", "message"), BAD)
def test_a_mistake_is_one_line(x: Any, y: Any, message: str) -> None:
    for call in (plain().fit, plain().partial_fit):
        with pytest.raises(EngramError, match=message) as caught:
            call(x, y)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", [None, 1.5, True, np.random.RandomState(0)])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(ConfigError, match=r"random_state=.*whole number"):
        plain(random_state=seed).fit(X, NUMBERS)


def test_labels_keep_their_kind_and_their_list(fitted: EngramClassifier) -> None:
    with pytest.raises(DataError, match="whole numbers before and are names now"):
        fitted.partial_fit(X, NAMES)
    with pytest.raises(DataError, match="label 11 of y is not among classes"):
        plain().partial_fit(X, NUMBERS, classes=[2, 9])
    assert plain().partial_fit(X, NUMBERS, classes=[2, 9, 11, 12]).classes_.tolist() == [2, 9, 11]


def test_whole_numbers_may_come_as_objects(fitted: EngramClassifier) -> None:
    """As a column of a table does that once held something else."""
    other = plain().fit(X, NUMBERS.astype(object))
    assert other.classes_.tolist() == fitted.classes_.tolist()
    assert other.classes_.dtype.kind == "i"


# ---------------------------------------------------------------- scikit-learn's tools


def test_clone_and_parameters(fitted: EngramClassifier) -> None:
    twin = clone(fitted)
    assert twin.get_params() == fitted.get_params()
    assert not hasattr(twin, "model_")
    assert twin.settings is not fitted.settings
    assert twin.set_params(method="icarl", preset="fast").get_params()["method"] == "icarl"
    assert is_classifier(fitted)
    assert get_tags(fitted).input_tags.three_d_array


def test_in_a_pipeline_and_cross_validated() -> None:
    shaped = FunctionTransformer(lambda rows: rows.reshape(-1, 16, 16))
    pipeline = make_pipeline(shaped, plain())
    assert pipeline.fit(X.reshape(36, -1), NUMBERS).score(X.reshape(36, -1), NUMBERS) > 0.9
    assert pipeline.classes_.tolist() == [2, 9, 11]
    assert cross_val_score(plain(), X, NUMBERS, cv=2).shape == (2,)


def test_a_copy_answers_the_same_and_goes_on_alone() -> None:
    classifier = generative().fit(X[:12], NUMBERS[:12])
    before = classifier.predict_proba(X)
    twin = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(twin.predict_proba(X), before)
    twin.partial_fit(X[12:24], NUMBERS[12:24])
    assert (twin.classes_.tolist(), classifier.classes_.tolist()) == ([2, 9], [9])
    assert pickle.loads(pickle.dumps(plain())).get_params() == plain().get_params()


def test_without_scikit_learn_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "engram.sklearn")
    with pytest.raises(ConfigError, match=r"engram\.sklearn needs more packages: pip install .*\[sklearn\]"):
        importlib.import_module("engram.sklearn")


# ---------------------------------------------------------------- tables

FAILS = {
    "check_estimators_nan_inf": "labels are names or whole numbers; the check has floating-point ones",
    "check_classifiers_one_label": "labels are names or whole numbers; the check has floating-point ones",
    "check_supervised_y_2d": "labels are (N,); a column is refused with a sentence, not flattened with a warning",
    "check_fit2d_1feature": "a class needs 5 examples, of which some calibrate the answers; the check has 3 of one",
}
"""What scikit-learn checks and this classifier does not do, and why."""
QUICK = {
    "stream.classes_per_task": 100, "gan.epochs": 2, "gan.steps": 2, "generator.width": 3, "generator.latent_dim": 16,
    "generator.bn_batches": 2, "critic.width": 4, "replay.images": 512, "classifier.epochs": 5,
    "classifier.batch_size": 32, "classifier.learning_rate": 0.05, "runtime.threads": 1,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks_on_tables() -> None:
    """Those that are expected to fail do fail: who mends one takes it off the list."""
    results = check_estimator(EngramClassifier(settings=QUICK), expected_failed_checks=FAILS, on_skip=None)
    failed = {one["check_name"] for one in results if one["status"] == "xfail"}
    assert failed == set(FAILS)
    assert sum(one["status"] == "passed" for one in results) > 45


def test_a_table_is_learned_class_by_class() -> None:
    draws = np.random.default_rng(0)
    labels = np.repeat([4, 7, 5], 30)
    table = (labels[:, None] * np.array([3.0, -2.0, 100.0, 0.0]) + draws.normal(size=(90, 4))).tolist()
    classifier = EngramClassifier(settings={**QUICK, "stream.classes_per_task": 1}).fit(table[:60], labels[:60])
    assert classifier.n_features_in_ == 4
    classifier.partial_fit(table[60:], labels[60:])
    assert classifier.classes_.tolist() == [4, 5, 7]
    assert classifier.score(table, labels) > 0.8
    with pytest.raises(ValueError, match="X has 3 features, but EngramClassifier is expecting 4"):
        classifier.predict([[1.0, 2.0, 3.0]])
    with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
        classifier.fit(table[0], labels[:1])
