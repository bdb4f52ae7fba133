"""The model: a learner, the names of its classes, its settings and its lineage. What users hold in their hands.

    Model.create ──> learn(data) ──> save("v1.engram") ──> Model.open("v1.engram") ──> learn(more) ──> …

    >>> from engram import Model, load_dataset
    >>> model = Model.create(preset="fast", settings={"stream.order": "3,5", "stream.classes_per_task": 2})
    >>> model.classes
    ()

A run folder opens as a model too.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from engram.config import compose
from engram.context import Shape
from engram.data.backbone import Backbone, open_backbone
from engram.data.datasets import Check, Dataset
from engram.data.npz import npz_backbone
from engram.data.recipe import Recipe, require_kind, require_same
from engram.data.stream import ClassStream
from engram.errors import ConfigError, RunError, unknown
from engram.evaluation.trust import measure
from engram.experiment.loop import Stop
from engram.experiment.machine import prepare, threads_worth_having
from engram.experiment.progress import Display
from engram.kinds import is_vector, noun, to_network
from engram.methods import budget
from engram.methods.answering import AnswerNet, AnswerOnly, answer_only, rebuild_answer
from engram.methods.learner import AddsUp, Forgets, KeepsEngrams, Learner, Samples
from engram.methods.registry import configure, find_method
from engram.model import file, hub, learning
from engram.model.inputs import are_vectors, as_images, told
from engram.model.intake import UNKNOWN
from engram.model.learning import Learned
from engram.model.lineage import Step, first_backbone, now
from engram.model.parts import BY_ITSELF, MODEL, Parts, read_parts
from engram.opening import UNFIT, opening, why
from engram.seeding import generator

BATCH = 256
"""Images that are answered at a time."""
NO_ENGRAMS = "has no engrams to learn from; dgmw and dgma have"


@dataclass(frozen=True)
class Answers:
    """What a model says of images."""

    probabilities: Tensor
    """(B, classes)"""
    known: Tensor
    """(B,) bool: whether a class fits at all."""


class Model:
    """A classifier that goes on learning. Make one with `Model.create` or `Model.open`.

    >>> from engram import Model, load_dataset
    >>> digits = load_dataset("digits").take_train()
    >>> model = Model.create(preset="fast")
    >>> for number, name in ((3, "three"), (5, "five")):  # a month may lie between them
    ...     learned = model.learn(digits.images[digits.labels == number][:12], [name] * 12)
    >>> model
    Model(dgmw, 2 classes, 2 tasks)
    """

    def __init__(self, parts: Parts) -> None:
        self.config, self.shape = parts.config, parts.shape
        self.device = prepare(parts.config.runtime, most=threads_worth_having(parts.config))
        self.method = find_method(parts.config.method)
        self.ids = dict(parts.ids)
        """Class -> its number, in order of appearance; a number is never given again."""
        self.next_id, self.tasks, self.lineage = parts.next_id, parts.tasks, parts.lineage
        self.trust = parts.trust
        """How far answers can be trusted; None where no images were kept out for that."""
        self.within_task, self.digest, self.path = parts.within_task, parts.digest, parts.path
        self.own_digests = {parts.digest}
        """What may lie at its path: the version that was read, and what this object wrote."""
        self.unsaved = False
        """Whether it has changed since it was read or written."""
        self.learner: Learner | None = None
        self._net: nn.Module | None = None
        """What answers, once it was asked for."""
        self.asked: Mapping[str, Any] | None = None
        """Settings that it was made with; None where it was opened."""
        if parts.shape is not None:
            self.learner = self._restored(parts, parts.shape)
            self._require_answers(parts, parts.shape)

    def _restored(self, parts: Parts, shape: Shape) -> Learner:
        try:
            budget.require(parts.config, shape, self.device, training=False)
            if parts.answers_only:
                return rebuild_answer(parts.config, shape, parts.state, self.device)
            learner = self.new_learner(shape)
            if parts.state:
                learner.load(parts.state)
            return learner
        except UNFIT as error:
            what = f"its weights do not fit its settings ({why(error)})"
            raise file.damaged(parts.path or "the model", what) from error

    def _require_answers(self, parts: Parts, shape: Shape) -> None:
        """It answers for all its classes and draws the last one: what was read fits together."""
        if not self.ids:
            return
        try:
            if not isinstance(self.learner, AddsUp):  # their answer takes a second to be made of the sums
                self._answer(torch.zeros(1, *shape, dtype=torch.float32 if is_vector(shape) else torch.uint8))
            if isinstance(self.learner, Samples):
                self.learner.sample([len(self.ids) - 1], 1, generator=generator(0, "sample"))
        except UNFIT as error:
            what = f"its weights do not fit its {len(self.ids)} classes ({why(error)})"
            raise file.damaged(parts.path or "the model", what) from error
        self._net = None

    # ---------------------------------------------------------------- make, open, save

    @classmethod
    def create(
        cls,
        method: str = "dgmw",
        *,
        preset: str = "auto",
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> Model:
        """A model that knows nothing yet. `settings`: `group.field` -> value; `engram list settings` shows all.

        >>> from engram import Model
        >>> model = Model.create("dgma", preset="fast", seed=1, settings={"stream.image_size": 64})
        >>> model.classes, model.is_strict
        ((), True)
        """
        config = configure(dataset=MODEL, method=method, preset=preset, seed=seed, settings=BY_ITSELF)
        if find_method(method).given_all_data:
            raise ConfigError(f"{method} learns from the images of all classes at once: a model cannot keep them")
        model = cls(Parts(compose(config, settings or {})))
        model.asked = dict(settings or {})
        return model

    @classmethod
    def open(cls, path: str | Path, *, strict: bool = False, settings: Mapping[str, Any] | None = None) -> Model:
        """A model file, or a run folder. `strict`: refuse a model that stores real images.

        `settings`: `runtime` alone may be set anew, where and how it computes. A benchmark's run holds no images out;
        opened as a model, it does from its next task on, as every model. `stream.validation` may be set for it, too.

        >>> import tempfile
        >>> from engram import Model
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     digest = Model.create(preset="fast").save(f"{folder}/new.engram")
        ...     Model.open(f"{folder}/new.engram", strict=True, settings={"runtime.threads": 1})
        Model(dgmw, 0 classes, 0 tasks)
        """
        with opening(path):
            return cls._opened(read_parts(Path(path), settings or {}), strict)

    @classmethod
    def _opened(cls, parts: Parts, strict: bool) -> Model:
        model = cls(parts)
        if strict and not model.is_strict:
            raise RunError(f"{parts.path} is not strict: {model.config.method} stores {model.stores}; leave strict out")
        return model

    def save(self, path: str | Path, *, with_generator: bool = True, card: bool = True) -> str:
        """Write the model as one file, whole or not at all; its digest.

        Without the generator the file is smaller and only answers: it cannot learn, draw or forget.
        `card`: beside it, what a person should know of it, as Markdown and as a page.

        >>> import tempfile
        >>> from engram import Model
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     digest = Model.create(preset="fast").save(f"{folder}/new.engram")
        ...     Model.open(f"{folder}/new.engram").digest == digest
        True
        """
        path = Path(path)
        if os.path.isdir(path):
            raise RunError(f"{path} is a folder; name a file, such as {path / 'model'}{file.SUFFIX}")
        if not with_generator:
            digest = self.answering().save(path, card=card)
            self.own_digests.add(digest)
            return digest
        file.require_mine(path, self.path, self.own_digests)
        parts = self.parts()
        self.digest = file.write(path, parts.body(), parts.state)
        self.path, self.unsaved = path, False
        self.own_digests.add(self.digest)
        if card:
            from engram.model.card import write_card

            write_card(self, path)
        return self.digest

    @classmethod
    def from_pretrained(
        cls,
        where: str | Path,
        *,
        revision: str | None = None,
        strict: bool = False,
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Model:
        """A model from a folder that `save_pretrained` wrote, or from a repository of the Hugging Face Hub.

        A folder needs no package and no network. `options` go to `huggingface_hub.snapshot_download`, such as
        `token`, `cache_dir`, `local_files_only`; it honours HF_HUB_OFFLINE. `strict` and `settings`: as of `open`.

        >>> import tempfile
        >>> from engram import Model
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     digest = Model.create(preset="fast").save_pretrained(folder)
        ...     Model.from_pretrained(folder).digest == digest
        True
        """
        with opening(where):
            return cls._opened(hub.read(where, revision, settings or {}, options), strict)

    def save_pretrained(self, folder: str | Path, *, license: str | None = None, with_generator: bool = True) -> str:
        """Write config.json, model.safetensors and README.md, as the Hugging Face Hub lays models out; the digest.

        `license`: an identifier of the hub's, such as apache-2.0, for the card's head; README.md is written anew.

        >>> import tempfile
        >>> from pathlib import Path
        >>> from engram import Model
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     digest = Model.create(preset="fast").save_pretrained(folder, license="apache-2.0")
        ...     sorted(path.name for path in Path(folder).iterdir())
        ['README.md', 'config.json', 'model.safetensors']
        """
        if not with_generator:
            return self.answering().save_pretrained(folder, license=license)
        self.digest, self.path = hub.write(self, Path(folder), license), Path(folder) / hub.WEIGHTS
        self.unsaved = False
        return self.digest

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        license: str | None = None,
        with_generator: bool = True,
        **options: Any,
    ) -> str:
        """Upload what `save_pretrained` writes as one commit; its address. A repository is made where there is none.

        `options` go to `huggingface_hub.HfApi.upload_folder`, such as `revision`, `commit_message`, `create_pr`.
        It needs a network and an account, so this is not run by the tests::

            model = Model.open("products-v4.engram")
            model.push_to_hub("our-shop/products", private=True, license="apache-2.0")
        """
        model = self if with_generator else self.answering()
        return hub.push(model, repo_id, private=private, token=token, licence=license, **options)

    def parts(self) -> Parts:
        """All that it is made of, as it is now.

        >>> from engram import Model
        >>> parts = Model.create("dgma", preset="fast", seed=1).parts()
        >>> parts.config.method, parts.config.seed, parts.tasks, parts.lineage
        ('dgma', 1, 0, ())
        """
        self.require_between_tasks("be written")
        return Parts(
            self.config,
            self.shape,
            {} if self.learner is None else self.learner.state(),
            self.ids,
            self.next_id,
            self.tasks,
            self.lineage,
            self.trust,
            self.answers_only,
        )

    def answering(self) -> Model:
        """A model that answers as this one does, and can do nothing else.

        >>> from engram import Model, load_dataset
        >>> digits = load_dataset("digits").take_train()
        >>> threes = digits.images[digits.labels == 3][:12]
        >>> model = Model.create("finetune", preset="fast")
        >>> model.learn(threes, ["three"] * 12).new
        ('three',)
        >>> model.answering().predict(threes[:1], unknown=False)
        ['three']
        """
        learner, shape = self.ready("answer")
        made = copy.copy(self)
        made.changed()
        made.learner = answer_only(learner, self.config, shape, self.device)
        return made

    @property
    def answers_only(self) -> bool:
        """Whether its generator was left out.

        >>> from engram import Model
        >>> Model.create(preset="fast").answers_only
        False
        """
        return isinstance(self.learner, AnswerOnly)

    # ---------------------------------------------------------------- what it knows

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes that it knows, in order of appearance.

        >>> from engram import Model, load_dataset
        >>> digits = load_dataset("digits").take_train()
        >>> threes = digits.images[digits.labels == 3][:12]
        >>> model = Model.create("finetune", preset="fast")
        >>> model.learn(threes, ["three"] * 12).new
        ('three',)
        >>> model.classes
        ('three',)
        """
        return tuple(self.ids)

    @property
    def is_strict(self) -> bool:
        """Whether it keeps no real image of the past; a file that only answers keeps none, whatever it learned with.

        >>> from engram import Model
        >>> Model.create("dgmw", preset="fast").is_strict, Model.create("icarl", preset="fast").is_strict
        (True, False)
        """
        return self.answers_only or self.learns_strictly

    @property
    def learns_strictly(self) -> bool:
        """Whether learning needs no real image of the past.

        >>> from engram import Model
        >>> Model.create("icarl", preset="fast").learns_strictly
        False
        """
        return self.method.is_strict(self.config.settings)

    @property
    def stores(self) -> str:
        """What it keeps of past tasks, in words.

        >>> from engram import Model
        >>> Model.create("dgmw", preset="fast").stores
        'a generator and a mask per task'
        """
        if self.answers_only:
            return "nothing: it only answers"
        return "real images" if self.method.strict and not self.learns_strictly else self.method.stores

    @property
    def backbone(self) -> Recipe | None:
        """By what the vectors were made that it learned from; None where it learned from images, or nobody said.

        >>> from engram import Model
        >>> Model.create(preset="fast").backbone is None
        True
        """
        return first_backbone(self.lineage)

    def through(self, given: Backbone | str | Path | None, data: Any = None) -> Backbone | None:
        """What images go through on their way to this model: the file that was given, prepared as it was before.

        >>> from engram import Model
        >>> Model.create(preset="fast").through(None) is None
        True
        """
        if given is None:
            return None
        if self.shape is not None and not is_vector(self.shape):
            raise ConfigError("the model takes images themselves; leave the backbone out, or make a new model")
        if isinstance(data, Dataset | ClassStream):
            raise ConfigError("the images of a Dataset are scaled already; name its folder or file beside the backbone")
        backbone = open_backbone(given, self.backbone)
        assert backbone is not None
        if self.shape is not None:
            require_same(self.backbone, backbone.recipe, backbone.recipe.name)
        return backbone

    def class_index(self, name: str) -> int:
        """The place of a class in the answer. By its name alone: a number may be the name of another class.

        >>> from engram import Model, load_dataset
        >>> digits = load_dataset("digits").take_train()
        >>> threes = digits.images[digits.labels == 3][:12]
        >>> model = Model.create("finetune", preset="fast")
        >>> model.learn(threes, ["three"] * 12).new
        ('three',)
        >>> model.class_index("three")
        0
        """
        if not isinstance(name, str) or name not in self.ids:
            raise unknown("class", str(name), self.classes)
        return self.classes.index(name)

    def __repr__(self) -> str:
        return f"Model({self.config.method}, {len(self.ids)} classes, {self.tasks} tasks)"

    # ---------------------------------------------------------------- answers

    def predict(self, x: Any, *, unknown: bool = True, backbone: Backbone | str | Path | None = None) -> list[str]:
        """The class of each image, or "unknown". x: a path, a PIL image, an array, or several; or vectors, (N, D).

        An image is unknown where no class fits it: the answer is less sure, or the image less like what was learned,
        than 95 % of the images of known classes. `unknown=False`: always the likeliest class. `backbone`: the ONNX file
        by which the model learned from images, or a `Backbone`, which opens it once for many calls.

        >>> from engram import Model, load_dataset
        >>> digits = load_dataset("digits").take_train()
        >>> threes = digits.images[digits.labels == 3][:12]
        >>> model = Model.create(preset="fast")
        >>> model.learn(threes, ["three"] * 12).new
        ('three',)
        >>> model.predict(threes[:2], unknown=False)
        ['three', 'three']
        """
        answers = self.answer(self.examples(x, backbone))
        best = zip(answers.probabilities.argmax(1).tolist(), answers.known.tolist(), strict=True)
        return [self.classes[index] if fits or not unknown else UNKNOWN for index, fits in best]

    def predict_proba(self, x: Any, *, backbone: Backbone | str | Path | None = None) -> npt.NDArray[np.float32]:
        """(B, classes) probabilities, in the order of `classes`, at the calibrated temperature.

        >>> from engram import Model, load_dataset
        >>> digits = load_dataset("digits").take_train()
        >>> threes = digits.images[digits.labels == 3][:12]
        >>> model = Model.create(preset="fast")
        >>> model.learn(threes, ["three"] * 12).new
        ('three',)
        >>> model.predict_proba(threes[:2]).tolist()  # there is nothing else to answer yet
        [[1.0], [1.0]]
        """
        return self.answer(self.examples(x, backbone)).probabilities.numpy()

    def examples(self, x: Any, backbone: Backbone | str | Path | None = None) -> Tensor:
        """What a user asks about, as `answer` takes it: images of the model's size, or vectors, by its backbone.

        >>> from engram import Model, load_dataset
        >>> digits = load_dataset("digits").take_train()
        >>> threes = digits.images[digits.labels == 3][:12]
        >>> model = Model.create("finetune", preset="fast")
        >>> model.learn(threes, ["three"] * 12).new
        ('three',)
        >>> model.examples([image[0].numpy() for image in threes]).shape
        torch.Size([12, 1, 32, 32])
        """
        _, shape = self.ready("answer")
        through = self.through(backbone)
        if through is not None:
            return through.features(as_images(x, through.shape))
        require_kind(are_vectors(x, shape), self.backbone, told(x))
        found = as_images(x, shape)
        if is_vector(shape) and isinstance(x, str | os.PathLike):
            require_same(self.backbone, npz_backbone(Path(x)), told(x))
        return found

    def answer(self, images: Tensor) -> Answers:
        """(B, C, H, W) uint8, or (B, D) float32, of the model's shape -> probabilities, and whether a class fits.

        >>> from engram import Model, load_dataset
        >>> digits = load_dataset("digits").take_train()
        >>> threes = digits.images[digits.labels == 3][:12]
        >>> model = Model.create("finetune", preset="fast")
        >>> model.learn(threes, ["three"] * 12).new
        ('three',)
        >>> answers = model.answer(threes[:2])
        >>> answers.probabilities.shape, answers.known.shape
        (torch.Size([2, 1]), torch.Size([2]))
        """
        self.ready("answer")
        parts = [self._answer(some) for some in torch.split(images, BATCH)] if len(images) else []
        if not parts:
            return Answers(torch.empty(0, len(self.ids)), torch.empty(0, dtype=torch.bool))
        return Answers(*(torch.cat(some) for some in zip(*parts, strict=True)))

    @torch.inference_mode()
    def _answer(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """One pass through the trunk, for scores and features."""
        if self._net is None:
            self._net = self._answer_net()
        x, net, features = to_network(images.to(self.device)), self._net, None
        if isinstance(net, AnswerNet):
            features = net.trunk(x)
            scores = net.head(features)
        else:
            scores = net(x)
        if scores.shape[1] < len(self.ids):
            raise ValueError(f"it answers for {scores.shape[1]}")
        scores = scores[:, : len(self.ids)].float().cpu()
        known = torch.ones(len(images), dtype=torch.bool)
        if self.trust is not None:
            known = self.trust.known(scores, None if features is None else features.float().cpu())
        return torch.softmax(scores / self.temperature, 1), known

    def _answer_net(self) -> nn.Module:
        """What answers. Of sums it is made no sooner, so only here is it seen whether what was read fits together."""
        learner, shape = self.ready("answer")
        try:
            net = learner.answer_net()
            if isinstance(learner, AddsUp):
                blank = torch.zeros(1, *shape, dtype=torch.float32 if is_vector(shape) else torch.uint8)
                net(to_network(blank.to(self.device)))
        except UNFIT as error:
            what = f"its weights do not fit its {len(self.ids)} classes ({why(error)})"
            raise file.damaged(self.path or "the model", what) from error
        return net

    @property
    def temperature(self) -> float:
        """By which scores are divided before they become probabilities; 1 where nothing was calibrated.

        >>> from engram import Model
        >>> Model.create(preset="fast").temperature
        1.0
        """
        return 1.0 if self.trust is None else self.trust.temperature

    def sample(self, name: str, n: int = 1, *, seed: int = 0) -> npt.NDArray[Any]:
        """(n, C, H, W) uint8, or (n, D) float32: drawings of a class, none of which is a real image or vector.

        >>> from engram import Model, load_dataset
        >>> digits = load_dataset("digits").take_train()
        >>> threes = digits.images[digits.labels == 3][:12]
        >>> model = Model.create(preset="fast")
        >>> model.learn(threes, ["three"] * 12).new
        ('three',)
        >>> model.sample("three", 4, seed=1).shape
        (4, 1, 32, 32)
        """
        self.ready("draw")
        return self.draw([self.class_index(name)], n, seed=seed).numpy()

    def draw(self, class_indices: Sequence[int], count: int, *, seed: int = 0) -> Tensor:
        """(len(class_indices) * count, C, H, W) uint8, or (…, D) float32: drawings, class by class.

        >>> from engram import Model, load_dataset
        >>> digits = load_dataset("digits").take_train()
        >>> threes = digits.images[digits.labels == 3][:12]
        >>> model = Model.create("dgmw", preset="fast")
        >>> model.learn(threes, ["three"] * 12).new
        ('three',)
        >>> model.draw([0], 4, seed=1).shape
        torch.Size([4, 1, 32, 32])
        """
        learner, _ = self.ready("draw")
        self.require_whole("draw")
        if not isinstance(learner, Samples):
            raise ConfigError(
                f"{self.config.method} has no generator that is told which class to draw; `engram list methods` says "
                "which methods draw"
            )
        if not isinstance(count, int | np.integer) or count < 1:
            assert self.shape is not None
            raise ConfigError(f"{count!r} {noun(self.shape)} of a class: draw a whole number, 1 or more")
        return learner.sample(class_indices, count, generator=generator(seed, "sample"))

    def ready(self, what: str) -> tuple[Learner, Shape]:
        """Learner and shape of a model that knows a class; `what` it is wanted for."""
        if self.learner is None or self.shape is None or not self.ids:
            raise RunError(f"the model knows no class yet, so it cannot {what}; let it learn first")
        return self.learner, self.shape

    # ---------------------------------------------------------------- learn

    def learn(
        self,
        data: Any,
        labels: Any = None,
        *,
        update: bool = False,
        audit: str | Path | None = None,
        backbone: Backbone | str | Path | None = None,
        display: Display | None = None,
        stop: Stop | None = None,
    ) -> Learned:
        """Learn the classes of `data`, from its images alone; on any error the model stays what it was.

        data: a folder with one folder a class, an .npz file, the name of a data set, images with `labels`, or a
        `ClassStream`; vectors (N, D) are learned as images are, by a model of their own. `update`: some of the classes
        are known, and these are more images of them.

        audit: a file, apart from the model, to add a salted hash of every image to: by it `verify` can look for the
        images when they are gone. Whoever has the file can tell of an image whether it was learned from: delete it
        when it is no longer needed.

        backbone: an ONNX file, or a `Backbone`, through which the images go: the model learns vectors, and remembers by
        which file they were made. The file itself is not stored: it is needed again to learn more, and to predict.

        >>> from engram import Model, load_dataset
        >>> digits = load_dataset("digits").take_train()
        >>> threes = digits.images[digits.labels == 3][:12]
        >>> model = Model.create(preset="fast")
        >>> learned = model.learn(threes, ["three"] * 12)
        >>> learned.new, learned.accuracy_new, learned.tested_new
        (('three',), 1.0, 2)
        """
        through = self.through(backbone, data)
        intake = learning.take_in(self, data if labels is None else (data, labels), update=update, backbone=through)
        audited = learning.note_in(self, audit, intake, intake.dataset.digest)
        with self._or_as_before():
            self.config = learning.suited(self, vectors=is_vector(intake.dataset.shape))
            before = learning.old_accuracy(self, intake)
            loop = learning.loop_for(self, intake, None, display=display, stop=stop)
            loop.go(intake.dataset, intake.stream, notes=intake.notes)
            return learning.take_over(self, loop, intake, before, audited)

    def changed(self) -> None:
        """What answered before is not what answers now, and not what lies on disc."""
        self._net, self.unsaved = None, True

    def require_between_tasks(self, what: str) -> None:
        """A run that was stopped within a task knows half a class."""
        if self.within_task:
            raise RunError(f"{self.path} was stopped within a task and cannot {what}; go on with the run to its end")

    def require_whole(self, what: str) -> None:
        """Some files were written to answer and to do nothing else."""
        if self.answers_only:
            gone = "its generator" if self.method.draws else "what it learned with"
            raise ConfigError(f"this model only answers: {gone} was left out; {what} with the file that has it")

    def whole_learner(self) -> Learner | None:
        """The learner; of a file that only answers, one of the same kind that has learned nothing."""
        return self.new_learner(self.shape) if self.answers_only and self.shape is not None else self.learner

    def new_learner(self, shape: Shape) -> Learner:
        """One that has learned nothing, for images of this shape."""
        return self.method.learner(self.config, shape, self.device)

    @contextlib.contextmanager
    def _or_as_before(self) -> Iterator[None]:
        """Whatever goes wrong, the model is put back to what it was."""
        state = None if self.learner is None else _copied(self.learner.state())
        ids, config = dict(self.ids), self.config
        known = (self.next_id, self.tasks, self.lineage, self.trust, self.unsaved)
        self._net = None
        try:
            yield
        except BaseException:
            self.ids, self.config = ids, config
            self.next_id, self.tasks, self.lineage, self.trust, self.unsaved = known
            if state is not None and self.shape is not None and not self.answers_only:
                self.learner = self.new_learner(self.shape)
                self.learner.load(state)
            raise

    # ---------------------------------------------------------------- forget

    def forget(self, name: str, *, retrain: bool = False) -> Step:
        """Drop a class: its engrams, its answers, and every weight that no other class needs. Returns what was freed.

        Of a closed form: its sums, where they are kept class by class.

        `retrain`: train the classifier anew from drawings of the other classes; its trunk saw this class too.

        >>> from engram import Model, load_dataset
        >>> digits = load_dataset("digits").take_train()
        >>> threes = digits.images[digits.labels == 3][:12]
        >>> model = Model.create(preset="fast")
        >>> model.learn(threes, ["three"] * 12).new
        ('three',)
        >>> model.forget("three").kind, model.classes
        ('forgot', ())
        """
        self.ready("forget")
        self.require_between_tasks("forget")
        if retrain:
            self._with_engrams("relearn", NO_ENGRAMS)
        learner = self._that_forgets()
        index = self.class_index(name)
        name = self.classes[index]
        with self._or_as_before():
            freed = learner.forget(index)
            self.changed()
            number = self.ids.pop(name)
            self.trust = self.trust and self.trust.without(index)
            self._trust_again()
            step = Step(
                "forgot", (name,), (number,), when=now(), parent=self.digest, known=self.classes, facts=vars(freed)
            )
            self.lineage += (step,)
            if retrain and self.ids:
                self.relearn()
        return step

    @property
    def trained_anew(self) -> bool:
        """Whether the classifier has learned nothing from a class that was forgotten: it was trained anew since.

        >>> from engram import Model
        >>> Model.create(preset="fast").trained_anew
        True
        """
        kinds = [step.kind for step in self.lineage]
        return "forgot" not in kinds or "relearned" in kinds[len(kinds) - kinds[::-1].index("forgot") :]

    def _that_forgets(self) -> Forgets:
        if not isinstance(self.whole_learner(), Forgets):
            raise ConfigError(
                f"{self.config.method} cannot forget a single class, as it keeps {self.method.stores}; "
                "dgmw, dgma, ncm and fecam can"
            )
        self.require_whole("forget")
        assert isinstance(self.learner, Forgets)
        return self.learner

    def _with_engrams(self, what: str, why_not: str) -> KeepsEngrams:
        if not isinstance(self.whole_learner(), KeepsEngrams):
            raise ConfigError(f"{self.config.method} {why_not}")
        self.require_whole(what)
        assert isinstance(self.learner, KeepsEngrams)
        return self.learner

    def _trust_again(self) -> None:
        """From drawings of the classes that are left, and what was measured while their real images were there."""
        if self.trust is not None and self.learner is not None and self.ids:
            places, seed = len(self.ids), self.config.seed
            self.trust = measure(
                self.learner, seen=places, class_indices=(), held=None, before=self.trust, seed=seed, task=self.tasks
            )
        elif not self.ids:
            self.trust = None

    def relearn(self) -> None:
        """Train the classifier anew, from scratch, from drawings of the classes that the model knows.

        >>> from engram import Model, load_dataset
        >>> digits = load_dataset("digits").take_train()
        >>> threes = digits.images[digits.labels == 3][:12]
        >>> model = Model.create("dgmw", preset="fast")
        >>> model.learn(threes, ["three"] * 12).new
        ('three',)
        >>> model.relearn()
        >>> [step.kind for step in model.lineage]
        ['learned', 'relearned']
        """
        self.ready("relearn")
        learner = self._with_engrams("relearn", NO_ENGRAMS)
        learner.relearn(task_index=self.tasks)
        self.changed()
        self._trust_again()
        self.tasks += 1
        ids = tuple(self.ids.values())
        self.lineage += (Step("relearned", self.classes, ids, when=now(), parent=self.digest, known=self.classes),)

    # ---------------------------------------------------------------- verify

    def verify(self, audit: str | Path | None = None) -> list[Check]:
        """Integrity, retention, strictness, size and figures, a line each; `ok` is None for what could not be checked.

        audit: the file that `learn` wrote, to look for the images that are gone.

        >>> from engram import Model, load_dataset
        >>> digits = load_dataset("digits").take_train()
        >>> threes = digits.images[digits.labels == 3][:12]
        >>> model = Model.create(preset="fast")
        >>> model.learn(threes, ["three"] * 12).new
        ('three',)
        >>> [(check.what, check.ok) for check in model.verify()]  # not read from a file, the images are gone
        [('integrity', None), ('retention', True), ('strictness', None), ('size', None), ('figures', True)]
        """
        from engram.model.verify import verify_model

        return verify_model(self, None if audit is None else Path(audit))


def _copied(state: Any) -> Any:
    """A state that no later step can reach."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    return {key: _copied(value) for key, value in state.items()} if isinstance(state, dict) else state
