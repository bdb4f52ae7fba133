"""The only loop over tasks, of a run as of a model that goes on learning.

    for each task: learn -> evaluate -> calibrate -> record -> save

It can be killed at any moment and resumed: the checkpoint holds the learner's whole state, the place in the stream
and the length of the records; every random draw is named by its place (seeding.py). So the resumed run ends with the
same bits, and the same records but for `timing`, as one that was never stopped.

Without a folder nothing is written and nothing can be resumed: for a model as a library.

Several processes (distributed.py) all do everything alike, evaluation too; only the first writes and shows anything.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from engram import distributed
from engram.config import Config
from engram.data.datasets import Dataset
from engram.data.stream import ClassStream, Task
from engram.errors import DivergedError, RunError
from engram.evaluation import metrics
from engram.evaluation.evaluate import OtherAnswer, evaluate
from engram.evaluation.privacy import privacy
from engram.evaluation.quality import DrawsAndAnswers, replay_quality
from engram.evaluation.trust import Trust, figures, measure
from engram.experiment import checkpoint, maps
from engram.experiment.board import NoBoard
from engram.experiment.files import os_errors, write_atomically
from engram.experiment.folder import describe_data
from engram.experiment.machine import peak_bytes
from engram.experiment.pictures import png, sheet
from engram.experiment.progress import Display
from engram.experiment.records import (
    FORMAT,
    NAME,
    Record,
    RecordWriter,
    Remembered,
    Unwritten,
    kept_records,
    read_records,
)
from engram.kinds import is_vector
from engram.methods.learner import AnswersApart, Learner, Progress, Samples
from engram.methods.registry import find_method
from engram.presets import tuned_on
from engram.seeding import generator


class Interrupted(Exception):
    """A person asked the run to stop; it is saved."""


@dataclass
class Stop:
    """Set `asked` (from a signal handler, say) and the run saves and stops after the batch at hand."""

    asked: bool = False


DRAWINGS = "samples.png"
"""In the run folder: what the learner draws, a class a row."""
PER_CLASS = 10


class TaskLoop:
    """Tasks under way; the learner's observer."""

    def __init__(
        self,
        folder: Path | None,
        config: Config,
        learner: Learner,
        *,
        display: Display | None = None,
        board: NoBoard | None = None,
        stop: Stop | None = None,
        start: int = 0,
        trust: Trust | None = None,
    ) -> None:
        self.folder, self.config, self.learner = folder, config, learner
        self.display, self.board, self.stop = display or Display(), board or NoBoard(), stop or Stop()
        self.method = find_method(config.method)
        self.writes = folder is not None and distributed.world().rank == 0
        self.records: RecordWriter | Unwritten = Remembered() if folder is None else Unwritten()
        self.task = start
        """Number of tasks that are done, those before the stream too."""
        self.trust = trust
        """How far answers can be trusted, as the last task left it; None where no images are kept out for that."""
        self.epoch_number = 0
        """Epochs done within the task."""
        self.seconds = self.cpu_seconds = 0.0
        """Spent on the task before this start."""
        self.stamps: list[float] = []
        """When each step of the epoch ended, but for the last."""
        self.step_seconds: list[float | None] = []
        """Mean of a step, epoch by epoch; None for those of an earlier start."""
        self.began = self.saved_at = time.monotonic()
        self.cpu_began = time.process_time()
        self.config_sha256: str | None = None
        """Of the configuration's file, as it was when this process began."""
        self.records_sha256: str | None = None
        """Of the records that the last checkpoint knows."""
        self.saved: checkpoint.Entry | None = None
        """The last checkpoint that is known to be whole."""
        self.notes: list[str] = []

    def go(self, dataset: Dataset, stream: ClassStream, offset: int = 0, notes: Sequence[str] = ()) -> None:
        """All tasks that are not done yet. `offset`: how long the records were at the last checkpoint."""
        stream.skip_to(self.task - stream.start)
        if distributed.world().many:  # and nobody writes before all have read the checkpoint
            self._require_same(
                checkpoint.fingerprint(self.learner.state()), "at the start: do all see the same folder?"
            )
        if self.writes:
            assert self.folder is not None
            self.records = RecordWriter(self.folder, offset, self.records_sha256)
            checkpoint.clear_left_overs(self.folder)
        with contextlib.closing(self.records), contextlib.closing(self.board), self.display:
            if offset == 0:
                self._record_run(dataset, stream)
                self._save(within_task=False)
            distributed.anybody(False)  # the records are cut back before others read them
            records = self.past_records()
            evaluations = [record for record in records if record["kind"] == "evaluation"]
            self.board.replay(records)
            self.display.begin(self.config, stream.sizes, self.task - stream.start, evaluations, [*notes, *self.notes])
            matrix = [
                _task_row(stream, r["task"], metrics.counts(r["confusion"])) for r in evaluations if not stream.known
            ]
            try:
                for task in stream:
                    self._learn(task, dataset, stream, matrix)
            except DivergedError as error:
                # the next resume cuts this line off again; until then the folder says why it stopped
                self._note("failure", task=self.task, error=str(error))
                raise

    def past_records(self) -> list[Record]:
        """All that was recorded so far, before this start too."""
        if isinstance(self.records, Remembered):
            return self.records.lines
        return [] if self.folder is None else list(read_records(self.folder))

    def _learn(self, task: Task, dataset: Dataset, stream: ClassStream, matrix: list[list[float]]) -> None:
        self.display.task(task.index - stream.start, task.class_names)
        self.step_seconds, self.stamps = [None] * self.epoch_number, []
        self.began, self.cpu_began = time.monotonic(), time.process_time()
        self.learner.learn(task, observe=self)
        learned, cpu_learned = time.monotonic(), time.process_time()
        record = self._evaluate(task, dataset, stream, matrix)
        if isinstance(self.learner, AnswersApart):
            for way, scores in self.learner.other_answers().items():
                other = evaluate(OtherAnswer(scores), dataset, task.seen, partly=bool(stream.known))
                self._note("other_answer", task=task.index, way=way, **other.as_record())
        if isinstance(self.learner, DrawsAndAnswers):
            draws = generator(self.config.seed, "quality", task.index)
            before = [place for place in task.class_indices if task.seen[place] in stream.known]
            quality = replay_quality(self.learner, task, generator=draws, known=before)
            names = [dataset.class_names[c] for c in task.seen]
            self._note("quality", task=task.index, classes=names, **quality.as_record())
            self._show_drawings(self.learner, dataset, task.seen)
        self._calibrate(task, dataset)
        state = checkpoint.fingerprint(self.learner.state())
        self._require_same(state, f"after task {task.index + 1}; the last good checkpoint is kept")
        self._note("task", task=task.index, state=state)
        seconds = self.seconds + learned - self.began
        self._note(
            "timing",
            task=task.index,
            seconds=seconds,
            cpu_seconds=self.cpu_seconds + cpu_learned - self.cpu_began,
            evaluation_seconds=time.monotonic() - learned,
            step_seconds=self.step_seconds,
            peak_bytes=peak_bytes(),
        )
        self.task, self.epoch_number, self.seconds, self.cpu_seconds = task.index + 1, 0, 0.0, 0.0
        self.began, self.cpu_began = time.monotonic(), time.process_time()
        self._save(within_task=False)
        self.display.done(record, seconds)
        if distributed.anybody(self.stop.asked) and self.task < stream.start + len(stream):
            raise Interrupted

    def _calibrate(self, task: Task, dataset: Dataset) -> None:
        """From the images that were kept out of the training, while they may be read: trust, and privacy."""
        held, learner, seed = task.validation, self.learner, self.config.seed
        if held is None:
            return
        self.trust = measure(
            learner,
            seen=len(task.seen),
            class_indices=task.class_indices,
            held=held,
            before=self.trust,
            seed=seed,
            task=task.index,
        )
        self._note(
            "calibration",
            task=task.index,
            **self.trust.calibration.as_dict(),
            reach=None if self.trust.typicality is None else self.trust.typicality.reach,
            **figures(learner, self.trust, dataset, task.seen),
        )
        if isinstance(learner, Samples):
            found = privacy(learner, task.images, task.targets, held, task.class_indices, seed=seed, task=task.index)
            names = [dataset.class_names[task.seen[one.class_index]] for one in found]
            self._note("privacy", task=task.index, classes=names, found=[one.as_record() for one in found])

    def _evaluate(self, task: Task, dataset: Dataset, stream: ClassStream, matrix: list[list[float]]) -> Record:
        """A_t; and where the images of all tasks so far can be tested, the authors' mean over tasks, and forgetting."""
        result = evaluate(self.learner, dataset, task.seen, partly=bool(stream.known))
        compared: dict[str, float | None] = {"task_mean": None, "forgetting": None, "backward_transfer": None}
        if not stream.known:
            matrix.append(_task_row(stream, task.index, result.confusion))
            compared = {
                "task_mean": metrics.mean(matrix[-1]),
                "forgetting": metrics.forgetting(matrix),
                "backward_transfer": metrics.backward_transfer(matrix),
            }
        return self._note("evaluation", task=task.index, **result.as_record(), **compared)

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

    def _show_drawings(self, learner: DrawsAndAnswers, dataset: Dataset, seen: Sequence[int]) -> None:
        """The same drawings after every task, as a picture: whoever never forgets adds rows and changes none.

        Of vectors, a map of drawings and test vectors.
        """
        if not self.writes or self.folder is None:
            return
        classes = len(seen)
        images = learner.sample(range(classes), PER_CLASS, generator=generator(self.config.seed, "drawings"))
        if is_vector(dataset.shape):
            place = torch.full((len(dataset.class_names),), -1)
            place[list(seen)] = torch.arange(classes)
            real = place[dataset.test.labels]
            shown = maps.vector_map(
                images,
                torch.arange(classes).repeat_interleave(PER_CLASS),
                [dataset.class_names[number] for number in seen],
                real=dataset.test.images[real >= 0],
                real_classes=real[real >= 0],
            )
            picture, zoom = maps.picture(shown), 1
        else:
            picture, zoom = sheet(images, PER_CLASS), 2
        with os_errors(self.folder / DRAWINGS):
            write_atomically(self.folder / DRAWINGS, png(picture, zoom=zoom))
        self.board.picture(picture, classes)

    def _record_run(self, dataset: Dataset, stream: ClassStream) -> None:
        self._note(
            "run",
            format=FORMAT,
            dataset=describe_data(dataset),
            method=self.config.method,
            bound=self.method.bound,
            strict=self.method.is_strict(self.config.settings),
            tuned_on=tuned_on(self.config),
            seed=self.config.seed,
            order_seed=self.config.order_seed,
            tasks=[list(task) for task in stream.tasks],
            class_names=list(dataset.class_names),
            shape=list(dataset.shape),
            images=stream.sizes,
            **({"known": list(stream.known), "start": stream.start} if stream.start else {}),
        )

    def _save(self, *, within_task: bool = True) -> None:
        state = self.learner.state()
        if not self.writes or self.folder is None:
            checkpoint.require_finite(state)  # so that all processes of a run end alike, and memory alike with disc
            return
        meta = {
            "task": self.task,
            "epoch": self.epoch_number,
            "within_task": within_task,
            "records": self.records.sync(),
            "records_sha256": self.records.sha256,
            "seconds": self.seconds + time.monotonic() - self.began,
            "cpu_seconds": self.cpu_seconds + time.process_time() - self.cpu_began,
            "trust": None if self.trust is None else self.trust.as_dict(),
        }
        self.saved = checkpoint.save(self.folder, state, meta, config_sha256=self.config_sha256, before=self.saved)
        self.saved_at = time.monotonic()
        if self.records.altered:
            raise RunError(
                f"{self.folder / NAME} was {self.records.altered} by another program while the run was at work. It was "
                "written anew and the state is saved: nothing is lost. Keep that program away and start the same "
                "command again (engram run with --resume)"
            )

    def restore(self) -> int:
        """Put learner and counters where the last checkpoint left them; the length of the records then."""
        assert self.folder is not None
        saved = checkpoint.load(self.folder, or_before=True)
        self.config_sha256 = checkpoint.config_digest(self.folder)
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
            self.trust = trust_of(saved)
            self.seconds, self.cpu_seconds = saved.meta["seconds"], saved.meta.get("cpu_seconds", 0.0)
            offset, self.records_sha256 = int(saved.meta["records"]), saved.meta.get("records_sha256")
        except (KeyError, RuntimeError, TypeError, AttributeError) as error:
            raise RunError(
                f"{self.folder / checkpoint.POINTER} does not fit this version of engram ({error}); "
                "start anew with another --out"
            ) from error
        self.saved = saved.entry
        if saved.damage is not None:
            self.notes.append(f"{saved.damage}; going on from the checkpoint before it")
        if self.writes:
            kept_records(self.folder, offset, self.records_sha256)  # before anything is written
        return offset


def _task_row(stream: ClassStream, task: int, confusion: Sequence[Sequence[int]]) -> list[float]:
    """Accuracy by task so far, of a stream before which nothing is known: all that was may have been forgotten."""
    sizes = [*map(len, stream.tasks[: task + 1 - stream.start])]
    if sum(sizes) != len(confusion):
        raise RunError(
            f"the records tell of task {task + 1} with {len(confusion)} classes, the stream has {sum(sizes)} by then; "
            "restore them from a copy, or start anew with another --out"
        )
    return metrics.task_row(confusion, sizes)


def trust_of(saved: checkpoint.Checkpoint) -> Trust | None:
    """What a checkpoint knows of how far answers can be trusted."""
    plain = saved.meta.get("trust")
    return None if plain is None else Trust.from_dict(plain)


def _require_finite(losses: Mapping[str, float], task: int, epoch: int) -> None:
    for name, value in losses.items():
        if not math.isfinite(value):
            raise DivergedError(
                f"the {name} loss is {value} in task {task + 1}, epoch {epoch + 1}; the last good checkpoint is kept. "
                "Lower classifier.learning_rate or gan.learning_rate"
            )
