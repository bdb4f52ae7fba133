"""Opening a finished or stopped run again: its learner, to sample and to verify."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engram.config import Config
from engram.context import Shape
from engram.data.datasets import Check, load_dataset
from engram.errors import ConfigError, EngramError, RunError, unknown
from engram.experiment import checkpoint
from engram.experiment.folder import moved, read_origin
from engram.experiment.machine import prepare
from engram.experiment.pictures import sheet
from engram.experiment.records import Record, read_records
from engram.methods.learner import Learner, Retains, Samples
from engram.methods.registry import find_method
from engram.seeding import generator


@dataclass(frozen=True)
class OpenRun:
    """A run as its last checkpoint left it."""

    folder: Path
    config: Config
    records: list[Record]
    learner: Learner
    state: dict[str, Any]
    names: tuple[str, ...]
    """Names of the classes that the learner can answer, in order of appearance."""
    numbers: tuple[int, ...]
    """The data set's numbers of the same."""
    shape: Shape
    """Of an image, as the learner takes it."""

    def class_index(self, word: str) -> int:
        """Which class somebody means, by its name or else by its number."""
        if word in self.names:
            return self.names.index(word)
        if word.isdecimal() and int(word) in self.numbers:
            return self.numbers.index(int(word))
        raise unknown("class", word, self.names)


def reopen(folder: Path) -> OpenRun:
    """The run in this folder; every file is checked on the way."""
    origin = read_origin(folder)
    records = list(read_records(folder))
    saved = checkpoint.load(folder)
    if saved is None or not records or records[0]["kind"] != "run":
        raise RunError(f"{folder} has not learned anything yet; go on with: engram run --resume --out {folder}")
    head = records[0]
    device = prepare(origin.config.runtime)
    method = find_method(origin.config.method)
    channels, height, width = head["shape"]
    learner = method.learner(origin.config, (channels, height, width), device)
    learner.load(saved.state)
    seen = [c for task in head["tasks"][: saved.meta["task"]] for c in task]
    names = tuple(head["class_names"][c] for c in seen)
    return OpenRun(folder, origin.config, records, learner, saved.state, names, tuple(seen), (channels, height, width))


def require_classes(run: OpenRun) -> None:
    """A run that has learned a task can draw and answer."""
    if not run.names:
        raise RunError(f"{run.folder} has not finished a task; go on with: engram run --resume --out {run.folder}")


# ---------------------------------------------------------------- verify


def verify(folder: Path) -> list[Check]:
    """Integrity, retention and strictness of a run; a broken one stops the checks that need it whole."""
    try:
        run = reopen(folder)
    except EngramError as error:
        return [Check("integrity", False, str(error))]
    lines = [Check("integrity", True, f"{len(run.records)} records, checkpoint after task {_tasks_done(run)}")]
    if not isinstance(run.learner, Retains):
        lines.append(Check("retention", True, f"{run.config.method} keeps no engrams: nothing to compare"))
    else:
        lines.append(_retention(run, run.learner))
    lines.append(_strictness(run))
    return lines


def _retention(run: OpenRun, learner: Retains) -> Check:
    """The stored bits decide; images are drawn again as well, and must be the same where the machine is."""
    if changed := learner.retention():
        return Check("retention", False, f"stored bits of {', '.join(run.names[c] for c in changed)} have changed")
    detail = f"{len(run.names)} classes, all stored bits that they depend on are as they were"
    redrawn = learner.redrawn()
    if not redrawn:
        return Check("retention", True, f"{detail}, and so are their images for fixed noise, to the bit")
    names, since = ", ".join(run.names[c] for c in redrawn), moved(run.folder, prepare(run.config.runtime))
    if since:
        return Check(
            "retention", True, f"{detail}; images of {names} differ in last bits: since the run, {'; '.join(since)}"
        )
    return Check("retention", False, f"images of {names} are not what they were, on the machine that made them")


def _tasks_done(run: OpenRun) -> int:
    return sum(record["kind"] == "task" for record in run.records)


def _strictness(run: OpenRun) -> Check:
    """Look for training images, byte by byte, in everything that the run keeps."""
    try:
        stream = run.config.stream
        dataset = load_dataset(run.config.dataset, holdout=stream.holdout, image_size=stream.image_size)
    except EngramError as error:
        return Check("strictness", None, f"the data is not here ({error})")
    known = {_print(image) for image in dataset.take_train().images}
    stored = sum(
        _print(image) in known
        for tensor in _tensors(run.state)
        if tensor.dim() == 4 and tuple(tensor.shape[1:]) == dataset.shape
        for image in tensor
    )
    method = find_method(run.config.method)
    if method.is_strict(run.config.settings):
        return Check("strictness", stored == 0, f"{stored} training images in the state, of {len(known)} looked for")
    kept = "stores real images, as it was set to" if method.strict else f"stores {method.stores}"
    return Check("strictness", True, f"{run.config.method} is not strict: it {kept}; {stored} found")


def _print(image: Tensor) -> bytes:
    if image.is_floating_point():
        image = image.add(1).mul(127.5).round().clamp(0, 255)
    return hashlib.blake2b(image.to(torch.uint8).contiguous().numpy().tobytes(), digest_size=16).digest()


def _tensors(node: Any) -> Iterator[Tensor]:
    if isinstance(node, Tensor):
        yield node
    elif isinstance(node, dict):
        for value in node.values():
            yield from _tensors(value)


# ---------------------------------------------------------------- sample


def sample_grid(run: OpenRun, class_indices: Sequence[int], per_class: int, seed: int) -> Tensor:
    """One (C, H, W) uint8 image: a class a row."""
    if not isinstance(run.learner, Samples):
        raise ConfigError(
            f"{run.config.method} has no generator that is told which class to draw; `engram list methods` says which "
            "methods draw"
        )
    images = run.learner.sample(class_indices, per_class, generator=generator(seed, "sample"))
    return sheet(images, per_class)
