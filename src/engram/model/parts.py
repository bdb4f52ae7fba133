"""Everything that a model is made of, as plain values: read from a file or a run folder, and written to a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engram import __version__
from engram.config import Config, as_dict, compose, from_dict
from engram.context import Shape
from engram.data.recipe import Recipe
from engram.errors import ConfigError, EngramError, RunError
from engram.evaluation.trust import Trust
from engram.experiment import checkpoint
from engram.experiment.folder import environment_of, read_origin
from engram.experiment.loop import trust_of
from engram.experiment.records import read_records
from engram.kinds import is_vector
from engram.methods.learner import State
from engram.methods.registry import find_method
from engram.model import file
from engram.model.lineage import MACHINE, Step, first_backbone, learned_steps
from engram.opening import UNFIT, why
from engram.values import shown

VALIDATION = 0.1
"""Share of a task's images that a model keeps out of the training, to calibrate its answers; 0 in benchmarks."""
BY_ITSELF = {"stream.validation": VALIDATION}
"""Settings of a model that a benchmark has otherwise."""
MODEL = "model"
"""In the place of the data set's name, where a model was not made by a run on one."""
_SHARE = "stream.validation"


@dataclass(frozen=True)
class Parts:
    """What a model is made of; a new one has a configuration alone."""

    config: Config
    shape: Shape | None = None
    """Of an image or a vector; None before the first is seen."""
    state: State = field(default_factory=dict)
    """The learner's."""
    ids: Mapping[str, int] = field(default_factory=dict)
    """Class -> its number, in order of appearance; a number is never given again."""
    next_id: int = 0
    tasks: int = 0
    """How many were learned."""
    lineage: tuple[Step, ...] = ()
    trust: Trust | None = None
    answers_only: bool = False
    """Whether the generator was left out."""
    within_task: bool = False
    """Whether a run was stopped before the task in training was done."""
    digest: str | None = None
    """Of the file that it was read from; None for a new model and for a run folder."""
    path: Path | None = None

    def body(self) -> dict[str, Any]:
        """All that a file says beside the learner's state."""
        return {
            "engram": __version__,
            "config": as_dict(self.config),
            "shape": None if self.shape is None else list(self.shape),
            "classes": [[name, number] for name, number in self.ids.items()],
            "next_id": self.next_id,
            "tasks": self.tasks,
            "preprocessing": preprocessing(self.shape, first_backbone(self.lineage)),
            "trust": None if self.trust is None else self.trust.as_dict(),
            "answers_only": self.answers_only,
            "lineage": [step.as_dict() for step in self.lineage],
        }


def preprocessing(shape: Shape | None, backbone: Recipe | None = None) -> dict[str, Any]:
    """How an example becomes what the network sees, for whoever serves it elsewhere."""
    if shape is None:
        return {}
    if is_vector(shape):
        return {
            "kind": "vectors",
            "numbers": shape[0],
            "type": "float32",
            "normalise": "(x - mean) / deviation, by number, as the first task fixed them; the network does it",
            **({} if backbone is None else {"backbone": backbone.as_dict()}),
        }
    return {
        "channels": "grey" if shape[0] == 1 else "RGB",
        "size": [shape[1], shape[2]],
        "resize": "bilinear with antialiasing, both sides to the size, rounded to whole grey levels",
        "transparent": "on white",
        "normalise": "x / 127.5 - 1",
    }


def read_parts(path: Path, settings: Mapping[str, Any]) -> Parts:
    """Of a model file or a run folder. `settings`: of `runtime` alone, and of a run the share that it holds out."""
    if not os.path.exists(path):  # False too for a name that is too long for the system
        raise RunError(f"{path} does not exist; give a model file, or a folder that `engram run` printed")
    return _of_run(path, settings) if path.is_dir() else parts_of(file.read(path), path, settings)


def parts_of(contents: file.Contents, path: Path | None = None, settings: Mapping[str, Any] | None = None) -> Parts:
    """From what a file holds."""
    try:
        body = contents.body
        config = from_dict(body["config"], find_method(body["config"]["method"]).settings)
        next_id = whole(body["next_id"], "next_id")
        ids = {name: whole(number, f"the number of {name!r:.40}") for name, number in body["classes"]}
        if not all(isinstance(name, str) for name in ids) or not len(body["classes"]) == len(set(ids.values())):
            raise ValueError("its classes are not told apart by names and numbers")
        if any(number >= next_id for number in ids.values()):
            raise ValueError("a class has a number that is yet to be given")
        return Parts(
            _over(config, settings or {}),
            shape=shape_of(body["shape"]) if body["shape"] else None,
            state=contents.state,
            ids=ids,
            next_id=next_id,
            tasks=whole(body["tasks"], "tasks"),
            lineage=tuple(Step.of(step) for step in body["lineage"]),
            trust=None if body["trust"] is None else Trust.from_dict(body["trust"]),
            answers_only=bool(body["answers_only"]),
            digest=contents.digest,
            path=path,
        )
    except EngramError:
        raise
    except UNFIT as error:
        raise file.damaged(path or "the model", f"a part of it does not fit ({why(error)})") from error


def whole(value: Any, what: str, *, at_least: int = 0, at_most: int = 10**9) -> int:
    """A count out of a file; ValueError for what is none."""
    if type(value) is not int or not at_least <= value <= at_most:
        raise ValueError(f"{what} is {shown(value)}, and no whole number from {at_least} to {at_most}")
    return value


def shape_of(numbers: Sequence[int]) -> Shape:
    """Back from JSON; ValueError for what is no shape."""
    if len(numbers) not in (1, 3) or not all(isinstance(one, int) and one > 0 for one in numbers):
        raise ValueError(f"{numbers} is no shape of an image or a vector")
    return tuple(numbers)


def _of_run(folder: Path, settings: Mapping[str, Any]) -> Parts:
    """A run folder as its last checkpoint left it."""
    origin, records, saved = read_origin(folder), list(read_records(folder)), checkpoint.load(folder)
    if saved is None or not records or records[0]["kind"] != "run":
        raise RunError(f"{folder} has not learned anything yet; go on with: engram run --resume --out {folder}")
    try:
        head, meta, on = records[0], saved.meta, environment_of(folder)
        start = whole(head.get("start", 0), "start")
        learned = whole(meta["task"], "task", at_least=start, at_most=start + len(head["tasks"]))
        done = head["tasks"][: learned - start]
        seen = [*head.get("known", []), *(number for task in done for number in task)]
        ids = {head["class_names"][number]: number for number in seen}
        if len(ids) < len(set(seen)):
            raise RunError(f"{folder} has two classes of one name, which no model can tell apart; rename one of them")
        return Parts(
            _as_model(origin.config, settings),
            shape=shape_of(head["shape"]),
            state=saved.state,
            ids=ids,
            next_id=len(head["class_names"]),
            tasks=learned,
            lineage=tuple(learned_steps(records, ids=ids, on={key: on[key] for key in MACHINE if key in on})),
            trust=trust_of(saved),
            within_task=bool(meta.get("within_task", meta["epoch"])),
            path=folder,
        )
    except UNFIT as error:
        raise RunError(f"{folder} cannot be opened ({why(error)}); restore it from a copy") from error


def _as_model(config: Config, settings: Mapping[str, Any]) -> Config:
    """A run's settings for the tasks that it will learn as a model: a benchmark measures no trust, a model does."""
    share = settings.get(_SHARE, config.stream.validation)
    if config.dataset != MODEL and not config.stream.validation and _SHARE not in settings:
        share = VALIDATION
    rest = {name: value for name, value in settings.items() if name != _SHARE}
    return compose(_over(config, rest), {_SHARE: share})


def _over(config: Config, settings: Mapping[str, Any]) -> Config:
    """Where and how it computes may be set anew; what was learned was learned with the rest."""
    if other := [key for key in settings if not key.startswith("runtime.") or key == "runtime.precision"]:
        raise ConfigError(f"{other[0]} is fixed when a model is made; leave it out, or make a new model")
    return compose(config, settings)
