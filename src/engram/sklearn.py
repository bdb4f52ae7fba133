"""A model as a scikit-learn classifier of images or tables: `fit`, `predict`; `partial_fit` brings new classes.

    EngramClassifier ──fit──> model_ (engram.Model) ──partial_fit──> the same model, with more classes

Only this file knows scikit-learn: pip install 'engram-continual[sklearn]'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.errors import ConfigError, DataError, missing_extra
from engram.model import file
from engram.model.intake import UNKNOWN
from engram.model.model import Model
from engram.model.parts import parts_of

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise missing_extra("engram.sklearn", "sklearn") from None

__all__ = ["EngramClassifier"]

Labels = npt.NDArray[Any]
"""(N,) names or whole numbers"""


class EngramClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns new classes later, and keeps no example of those before (with strict methods).

    X: a table, (N, D), of finite numbers, such as embeddings; or images, (N, H, W), (N, H, W, C) or (N, C, H, W): uint8
    0…255 or floating-point numbers 0…1, C = 1 or 3, of any size: they are scaled to `stream.image_size`. y: names or
    whole numbers. Of each class at least 5 examples are needed; a fifth (`stream.holdout`) and then a tenth
    (`stream.validation`) are kept out of the training, to measure and to calibrate the answers. Tables have
    `n_features_in_`; the size of an image may change from call to call.

    Args:
        method: of `engram.METHODS`, but for those that need the images of all classes at once.
        preset: "auto", or a name that `engram list presets` shows; "fast" takes seconds and learns little.
        settings: `group.field` -> value; `engram list settings` shows all.
        random_state: seed of weights, batches and drawings, a whole number: the same images give the same model.
        unknown: whether `predict` may answer "unknown" where no class fits; for labels that are names.

    Attributes:
        model_: the `engram.Model`; save it with `model_.save("v1.engram")`.

    >>> from engram import load_dataset
    >>> from engram.sklearn import EngramClassifier
    >>> digits = load_dataset("digits").take_train()
    >>> x, y = digits.images.numpy(), digits.labels.numpy()
    >>> first, later = y == 3, y == 5
    >>> classifier = EngramClassifier(preset="fast")
    >>> classifier.fit(x[first][:12], y[first][:12]).classes_.tolist()
    [3]
    >>> classifier.partial_fit(x[later][:12], y[later][:12]).classes_.tolist()
    [3, 5]
    >>> classifier.predict_proba(x[:4]).shape
    (4, 2)

    In a pipeline, where rows of numbers are images:

    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import FunctionTransformer
    >>> as_images = FunctionTransformer(lambda rows: rows.reshape(-1, 32, 32))
    >>> pipeline = make_pipeline(as_images, EngramClassifier("finetune", preset="fast"))
    >>> pipeline.fit(x[:50].reshape(50, -1), y[:50] % 2).classes_.tolist()
    [0, 1]
    """

    def __init__(
        self,
        method: str = "dgmw",
        *,
        preset: str = "auto",
        settings: Mapping[str, Any] | None = None,
        random_state: int = 0,
        unknown: bool = False,
    ) -> None:
        self.method, self.preset, self.settings = method, preset, settings
        self.random_state, self.unknown = random_state, unknown

    # ---------------------------------------------------------------- learn

    def fit(self, X: Any, y: Any) -> EngramClassifier:
        """Learn the classes of y with a new model, one after the other as they appear in y; what was known is gone.

        `stream.classes_per_task` and `stream.order` among the settings say how many at a time, and in which order.
        """
        images, labels = self._batch(X, y, reset=True), as_labels(y)
        self._check_unknown(named(labels))
        model = Model.create(self.method, preset=self.preset, seed=self._seed(), settings=self.settings)
        model.learn(images, labels)
        self.model_, self.named_labels_ = model, named(labels)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Iterable[Any] | None = None) -> EngramClassifier:
        """Go on learning with these images alone; where nothing was learned yet, as `fit`.

        This is not scikit-learn's convention: new classes may come with any call, and nobody needs to say beforehand
        which. More images of a known class are learned where the method can (dgmw, dgma), and refused where it cannot.
        On any error the model stays what it was.

        classes: not needed; where it is given, y may hold no other labels. `classes_` has those learned so far.
        """
        images, labels = self._batch(X, y, reset=not hasattr(self, "model_")), as_labels(y)
        _check_among(labels, classes)
        if not hasattr(self, "model_"):
            return self.fit(images, labels)
        if named(labels) != self.named_labels_:
            kinds = ("whole numbers", "names") if self.named_labels_ else ("names", "whole numbers")
            raise DataError(f"labels were {kinds[1]} before and are {kinds[0]} now; give {kinds[1]}")
        self._check_unknown(self.named_labels_)
        again = bool(set(map(str, labels.tolist())) & set(self.model_.classes))
        self.model_.learn(images, labels, update=again)
        return self

    def _seed(self) -> int:
        if isinstance(self.random_state, bool) or not isinstance(self.random_state, int | np.integer):
            raise ConfigError(f"random_state={self.random_state!r}: a model's seed is a whole number; give 0 or more")
        return int(self.random_state)

    def _check_unknown(self, names: bool) -> None:
        if self.unknown and not names:
            raise ConfigError(f'unknown=True answers "{UNKNOWN}", which is no whole number; give names as labels')

    def _batch(self, X: Any, y: Any = "no_validation", *, reset: bool = False) -> npt.NDArray[Any]:
        """Images as they are; a table checked as scikit-learn checks tables. `y`: of examples to learn from."""
        if not is_table(X):
            return as_batch(X)
        table: npt.NDArray[Any]
        if isinstance(y, str):
            table = validate_data(self, X, reset=reset, dtype=np.float32)
        else:
            kind: dict[str, Any] = {"dtype": np.float32, "ensure_min_samples": 2, "multi_output": True}
            table, targets = validate_data(self, X, y, reset=reset, **kind)
            check_classification_targets(targets)
        return table

    # ---------------------------------------------------------------- answers

    @property
    def classes_(self) -> Labels:
        """Labels that are known by now, sorted: the columns of `predict_proba`."""
        return np.unique(self._labels(self.model_.classes))

    def predict(self, X: Any) -> Labels:
        """(N,) labels of the likeliest classes; with `unknown=True`, "unknown" where none fits."""
        check_is_fitted(self)
        self._check_unknown(self.named_labels_)
        return self._labels(self.model_.predict(self._batch(X), unknown=self.unknown))

    def predict_proba(self, X: Any) -> npt.NDArray[np.float32]:
        """(N, classes) probabilities, in the order of `classes_`."""
        check_is_fitted(self)
        places = [self.model_.classes.index(str(label)) for label in self.classes_.tolist()]
        return self.model_.predict_proba(self._batch(X))[:, places]

    def _labels(self, names: Iterable[str]) -> Labels:
        """Names of classes -> labels as they were given."""
        return np.array(list(names), str) if self.named_labels_ else np.array([int(name) for name in names], np.int64)

    # ---------------------------------------------------------------- what scikit-learn asks for

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """For copies and other processes: the model as the bytes of its file."""
        state = dict(super().__getstate__())
        if "model_" in state:
            parts = self.model_.parts()
            state["model_"] = file.pack(parts.body(), parts.state)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "model_" in state:
            state = {**state, "model_": Model(parts_of(file.unpack(state["model_"], "the copy of a classifier")))}
        super().__setstate__(state)


# ---------------------------------------------------------------- images and labels, checked


def as_batch(x: Any) -> npt.NDArray[Any]:
    """(N, H, W, C) or (N, C, H, W): what a model takes for many images and never for one.

    >>> as_batch(np.zeros((5, 8, 8))).shape
    (5, 1, 8, 8)
    """
    try:
        array = np.asarray(x)
    except ValueError:
        raise DataError(
            "X holds images of several shapes; scale them to one, or let Model.learn read a folder"
        ) from None
    if array.ndim not in (3, 4):
        raise DataError(f"X has the shape {array.shape}; give a table, (N, D), or images, (N, H, W) or (N, H, W, C)")
    return array[:, None] if array.ndim == 3 else array


def is_table(x: Any) -> bool:
    """Whether X is for scikit-learn to check: all but images.

    >>> is_table(np.zeros((5, 8))), is_table(np.zeros((5, 8, 8)))
    (True, False)
    """
    try:
        return (x if hasattr(x, "ndim") else np.asarray(x)).ndim < 3
    except ValueError:
        return False  # images of several shapes


def as_labels(y: Any) -> Labels:
    """(N,) names or whole numbers.

    >>> as_labels(["mug", "ball"]).tolist(), as_labels([3, 5]).tolist()
    (['mug', 'ball'], [3, 5])
    >>> as_labels(np.array([3, 5], object)).dtype
    dtype('int64')
    """
    array = np.asarray(y)
    if array.ndim != 1:
        raise DataError(f"y has the shape {array.shape}; give one label an image, (N,)")
    words = array.tolist()
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise DataError(f"y holds the label {int(array.max())}; whole numbers below 2**63 can be labels")
    if array.dtype.kind in "iuU" or all(isinstance(label, str) for label in words):
        return array
    if all(isinstance(label, int | np.integer) and not isinstance(label, bool) for label in words):
        array = np.array(words)  # a column of a pandas table holds them as objects
        if array.dtype.kind in "iu":
            return array
    raise DataError(f"y holds labels of {array.dtype}; give names or whole numbers")


def named(labels: Labels) -> bool:
    """Whether labels are names.

    >>> named(np.array(["mug"])), named(np.array([3]))
    (True, False)
    """
    return labels.dtype.kind not in "iu"


def _check_among(labels: Labels, classes: Iterable[Any] | None) -> None:
    if classes is not None and (stray := set(labels.tolist()) - set(as_labels(list(classes)).tolist())):
        raise DataError(f"label {min(stray)!r} of y is not among classes; add it, or leave classes out")
