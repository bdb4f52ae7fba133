"""The run: the only loop over tasks.

    for each task: learn -> evaluate -> record -> save

A run can be killed at any moment and resumed: the checkpoint holds the learner's whole state, the place in the stream
and the length of the records; every random draw is named by its place (seeding.py). So the resumed run ends with the
same bits, and the same records but for `timing`, as one that was never stopped.

Several processes (distributed.py) all do everything alike, evaluation too; only the first writes and shows anything.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from engram import distributed
from engram.config import Config, require
from engram.data.datasets import Dataset, load_dataset
from engram.data.stream import ClassStream, Task
from engram.errors import DivergedError, RunError
from engram.evaluation import metrics
from engram.evaluation.evaluate import SecondAnswer, evaluate, require_test_images
from engram.evaluation.quality import DrawsAndAnswers, replay_quality
from engram.experiment import checkpoint
from engram.experiment.board import Board, NoBoard
from engram.experiment.files import os_errors, write_atomically
from engram.experiment.folder import (
    Origin,
    describe_data,
    is_blank,
    locked,
    note_environment,
    read_origin,
    require_blank,
    write_origin,
)
from engram.experiment.machine import peak_bytes, prepare
from engram.experiment.pictures import png, sheet
from engram.experiment.progress import Display
from engram.experiment.records import FORMAT, RecordWriter, Unwritten, read_records
from engram.experiment.request import Request, default_folder
from engram.methods.learner import AnswersTwice, Learner, Progress
from engram.methods.registry import find_method
from engram.presets import lighter_presets
from engram.seeding import generator


class Interrupted(Exception):
    """A person asked the run to stop; it is saved."""


@dataclass
class Stop:
    """Set `asked` (from a signal handler, say) and the run saves and stops after the batch at hand."""

    asked: bool = False


def run(
    dataset: str | None = None,
    method: str | None = None,
    *,
    preset: str | None = None,
    seed: int | None = None,
    order_seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    tensorboard: bool = False,
) -> Path:
    """Train one method on one stream of tasks, or go on with a run; returns its folder.

    `settings`: `group.field` -> value. `engram run` on the command line does the same, and shows how it is getting on.
    """
    request = Request(dataset, method, preset, seed, order_seed, settings or {})
    return execute(request, None if out is None else Path(out), resume=resume, tensorboard=tensorboard)


def execute(
    request: Request,
    folder: Path | None = None,
    *,
    resume: bool = False,
    tensorboard: bool = False,
    display: Display | None = None,
    stop: Stop | None = None,
) -> Path:
    """Carry a request out; returns the run's folder.

    Nothing is written before the request is known to be good. `resume` in a folder that holds nothing yet starts the
    run, where the request says which: a run killed in its very first moments is resumed like any other.
    """
    if folder is None:
        folder = default_folder(request.config())
    if resume and not (is_blank(folder) and request.dataset and request.method):
        known = read_origin(folder)
        config = request.over(known.config, folder)
    else:
        require_blank(folder)
        known, config = None, request.config()
    _require_rows(config, distributed.launched().size)
    device = prepare(config.runtime)
    dataset = load_dataset(config.dataset, holdout=config.stream.holdout, image_size=config.stream.image_size)
    origin = Origin(config, describe_data(dataset))
    if known is not None and known.data != origin.data:
        raise RunError(
            f"{folder} was started on other images ({known.data}, not {origin.data}); "
            "bring the old data back, or start anew with another --out"
        )
    chosen = find_method(config.method)
    learner = chosen.learner(config, dataset.shape, device)
    stream = ClassStream(
        dataset,
        config.stream.classes_per_task,
        first_task=config.stream.first_task,
        order=config.stream.order,
        order_seed=config.order_seed if config.stream.order is None else None,
        cumulative=chosen.given_all_data,
    )
    require_test_images(dataset, stream.order)
    with distributed.joined(device, config.runtime.wait_seconds) as world:
        if world.rank:
            experiment = _Experiment(folder, config, learner, Display(), NoBoard(), stop or Stop())
            experiment.go(dataset, stream, experiment.restore(), [])
            return folder
        board: Board | NoBoard = Board(folder) if tensorboard else NoBoard()
        with locked(folder):
            if known is None:
                require_blank(folder)
                write_origin(folder, origin)
            experiment = _Experiment(folder, config, learner, display or Display(), board, stop or Stop())
            offset = experiment.restore()  # refuses a damaged checkpoint before anything is written
            notes = list(dataset.notes) if known is None else []
            notes += [f"since the start, {line}; the last bits may differ" for line in note_environment(folder, device)]
            lighter = lighter_presets(config) if known is None and device.type == "cpu" else []
            notes += [f"these sizes are meant for a GPU; for a CPU there is --preset {name}" for name in lighter]
            experiment.go(dataset, stream, offset, notes)
    return folder


DRAWINGS = "samples.png"
"""In the run folder: what the learner draws, a class a row."""
PER_CLASS = 10


class _Experiment:
    """A run under way; the learner's observer."""

    def __init__(
        self,
        folder: Path,
        config: Config,
        learner: Learner,
        display: Display,
        board: Board | NoBoard,
        stop: Stop,
    ) -> None:
        self.folder, self.config, self.learner = folder, config, learner
        self.display, self.board, self.stop = display, board, stop
        self.method = find_method(config.method)
        self.writes = distributed.world().rank == 0
        self.records: RecordWriter | Unwritten
        self.task = 0
        """Number of tasks that are done."""
        self.epoch_number = 0
        """Epochs done within the task."""
        self.seconds = 0.0
        """Spent on the task before this start."""
        self.stamps: list[float] = []
        """When each step of the epoch ended, but for the last."""
        self.step_seconds: list[float | None] = []
        """Mean of a step, epoch by epoch; None for those of an earlier start."""
        self.began = self.saved_at = time.monotonic()

    def go(self, dataset: Dataset, stream: ClassStream, offset: int, notes: list[str]) -> None:
        """All tasks that are not done yet. `offset`: how long the records were at the last checkpoint."""
        stream.skip_to(self.task)
        if distributed.world().many:  # and nobody writes before all have read the checkpoint
            self._require_same(
                checkpoint.fingerprint(self.learner.state()), "at the start: do all see the same folder?"
            )
        self.records = RecordWriter(self.folder, offset) if self.writes else Unwritten()
        with contextlib.closing(self.records), contextlib.closing(self.board), self.display:
            if offset == 0:
                self._record_run(dataset, stream)
                self._save()
            distributed.anybody(False)  # the records are cut back before others read them
            evaluations = [r for r in read_records(self.folder) if r["kind"] == "evaluation"]
            self.board.replay(read_records(self.folder))
            self.display.begin(self.config, stream.sizes, self.task, evaluations, notes)
            matrix = [metrics.task_row(r["confusion"], [*map(len, stream.tasks)][: r["task"] + 1]) for r in evaluations]
            try:
                for task in stream:
                    self._learn(task, dataset, [len(c) for c in stream.tasks], matrix)
            except DivergedError as error:
                # the next resume cuts this line off again; until then the folder says why it stopped
                self._note("failure", task=self.task, error=str(error))
                raise

    def _learn(self, task: Task, dataset: Dataset, sizes: list[int], matrix: list[list[float]]) -> None:
        self.display.task(task.index, task.class_names)
        self.step_seconds, self.stamps = [None] * self.epoch_number, []
        self.began = time.monotonic()
        self.learner.learn(task, observe=self)
        learned = time.monotonic()
        result = evaluate(self.learner, dataset, task.seen)
        matrix.append(metrics.task_row(result.confusion, sizes[: task.index + 1]))
        record = self._note(
            "evaluation",
            task=task.index,
            **result.as_record(),
            forgetting=metrics.forgetting(matrix),
            backward_transfer=metrics.backward_transfer(matrix),
        )
        if isinstance(self.learner, AnswersTwice):
            second = evaluate(SecondAnswer(self.learner), dataset, task.seen)
            self._note("second_answer", task=task.index, **second.as_record())
        if isinstance(self.learner, DrawsAndAnswers):
            draws = generator(self.config.seed, "quality", task.index)
            quality = replay_quality(self.learner, task, generator=draws)
            names = [dataset.class_names[c] for c in task.seen]
            self._note("quality", task=task.index, classes=names, **quality.as_record())
            self._show_drawings(self.learner, len(task.seen))
        state = checkpoint.fingerprint(self.learner.state())
        self._require_same(state, f"after task {task.index + 1}; the last good checkpoint is kept")
        self._note("task", task=task.index, state=state)
        seconds = self.seconds + learned - self.began
        self._note(
            "timing",
            task=task.index,
            seconds=seconds,
            evaluation_seconds=time.monotonic() - learned,
            step_seconds=self.step_seconds,
            peak_bytes=peak_bytes(),
        )
        self.task, self.epoch_number, self.seconds = task.index + 1, 0, 0.0
        self.began = time.monotonic()
        self._save()
        self.display.done(record, seconds)
        if distributed.anybody(self.stop.asked) and self.task < len(sizes):
            raise Interrupted

    # the learner's observer

    def batch(self, progress: Progress) -> None:
        """A batch is done: a moment at which the run can be saved and stopped."""
        self.stamps.append(time.monotonic())
        self.display.batch(progress)
        if distributed.anybody(self.stop.asked):
            _require_finite(progress.means(), self.task, progress.epoch)
            self._leave()

    def epoch(self, losses: Mapping[str, float]) -> None:
        """An epoch is done: record it, and save now and then."""
        _require_finite(losses, self.task, self.epoch_number)
        record = self._note("epoch", task=self.task, epoch=self.epoch_number, losses=dict(losses))
        self.epoch_number += 1
        steps = len(self.stamps) - 1
        self.step_seconds.append(round((self.stamps[-1] - self.stamps[0]) / steps, 6) if steps > 0 else None)
        self.stamps = []
        self.display.epoch(record)
        if distributed.anybody(self.stop.asked):
            self._leave()
        if time.monotonic() - self.saved_at >= self.config.runtime.checkpoint_seconds:
            self._save()

    def note(self, kind: str, **facts: Any) -> None:
        """A fact of the learner's own."""
        self._note(kind, task=self.task, **facts)

    def _leave(self) -> NoReturn:
        self._save()
        distributed.anybody(False)  # torchrun ends all others when one has gone: not before the run is saved
        raise Interrupted

    def _require_same(self, digest: str, when: str) -> None:
        if not distributed.same_everywhere(digest):
            raise RunError(f"the processes of this run do not hold the same state {when}")

    # what is written

    def _note(self, kind: str, **fields: Any) -> dict[str, Any]:
        record = self.records.append(kind, **fields)
        self.board.add(record)
        return record

    def _show_drawings(self, learner: DrawsAndAnswers, classes: int) -> None:
        """The same drawings after every task, as a picture: whoever never forgets adds rows and changes none."""
        if not self.writes:
            return
        images = learner.sample(range(classes), PER_CLASS, generator=generator(self.config.seed, "drawings"))
        picture = sheet(images, PER_CLASS)
        with os_errors(self.folder / DRAWINGS):
            write_atomically(self.folder / DRAWINGS, png(picture))
        self.board.picture(picture, classes)

    def _record_run(self, dataset: Dataset, stream: ClassStream) -> None:
        self._note(
            "run",
            format=FORMAT,
            dataset=describe_data(dataset),
            method=self.config.method,
            bound=self.method.bound,
            strict=self.method.is_strict(self.config.settings),
            seed=self.config.seed,
            order_seed=self.config.order_seed,
            tasks=[list(task) for task in stream.tasks],
            class_names=list(dataset.class_names),
            shape=list(dataset.shape),
            images=stream.sizes,
        )

    def _save(self) -> None:
        if not self.writes:
            return
        now = time.monotonic()
        meta = {
            "task": self.task,
            "epoch": self.epoch_number,
            "records": self.records.sync(),
            "seconds": self.seconds + now - self.began,
        }
        checkpoint.save(self.folder, self.learner.state(), meta)
        self.saved_at = time.monotonic()

    def restore(self) -> int:
        """Put learner and counters where the last checkpoint left them; the length of the records then."""
        saved = checkpoint.load(self.folder)
        next(read_records(self.folder), None)  # refuses records of another format before anything is written
        if saved is None:
            if sum(1 for _ in read_records(self.folder)) > 1:
                raise RunError(
                    f"{self.folder} has records but {checkpoint.POINTER} is missing; restore it, or start anew "
                    "with another --out"
                )
            return 0
        try:
            self.learner.load(saved.state)
            self.task, self.epoch_number = saved.meta["task"], saved.meta["epoch"]
            self.seconds = saved.meta["seconds"]
            return int(saved.meta["records"])
        except (KeyError, RuntimeError, TypeError, AttributeError) as error:
            raise RunError(
                f"{self.folder / checkpoint.POINTER} does not fit this version of engram ({error}); "
                "start anew with another --out"
            ) from error


def _require_finite(losses: Mapping[str, float], task: int, epoch: int) -> None:
    for name, value in losses.items():
        if not math.isfinite(value):
            raise DivergedError(
                f"the {name} loss is {value} in task {task + 1}, epoch {epoch + 1}; the last good checkpoint is kept. "
                "Lower classifier.learning_rate or gan.learning_rate"
            )


def _require_rows(config: Config, processes: int) -> None:
    """A row of every batch for each process."""
    sizes = {"classifier.batch_size": config.classifier.batch_size, **config.settings.batch_sizes}
    for name, size in sizes.items():
        require(size >= processes, name, size, f"{processes} or more, one for each process")
