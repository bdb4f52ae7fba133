"""What grows with the number of tasks and of classes: step, replay, classifier, checkpoint, memory.

    python benchmarks/growth.py [--threads N] [--tasks 1 … 50] [--classes 1 … 20] [--seen 10 … 1000] [--runs RUN …]

Three tables a run: tasks of one class, up to the last of `--tasks`; first tasks that bring `--classes` classes at once;
and the classifier alone, when it has seen `--seen` classes. Times of a table are taken in turn. Peak memory is the
largest resident set of a process of its own that brings a learner to the task and computes one of everything.
"""

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import clock
import fast_forward
from engram.experiment import checkpoint
from engram.experiment.machine import peak_bytes
from engram.memory.ledger import ledger
from engram.methods.dgm.learner import DGM
from fast_forward import RecordedRun
from step import PART, classifier_part, our_step, replay_part, trainer_of, weighted


def saved(learner: DGM) -> int:
    """Bytes of a checkpoint after a task."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder), learner.state(), {})
        return sum(file.stat().st_size for file in Path(folder).iterdir())


def peak_of(recorded: RecordedRun, task: int, given: argparse.Namespace) -> int:
    """The largest resident set, in bytes, of a process of its own that goes through all that a task computes."""
    command = [sys.executable, __file__, "--peak", str(task), "--runs", str(recorded.folder)]
    command += ["--threads", str(given.threads), "--set", *map("=".join, given.settings)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def go_through(recorded: RecordedRun, task: int) -> int:
    """One step of each kind, a fourth of a replay, four steps of the classifier, retention, a checkpoint; the peak."""
    learner = fast_forward.learner_at(recorded, task)
    for fixed in (False, True):
        our_step(learner, trainer_of(learner, recorded, fixed=fixed))()
    fast_forward.advance(learner, recorded, 1, batch=256)
    replay_part(learner, filtered=True)()
    classifier_part(learner)()
    learner.retention()
    saved(learner)
    return peak_bytes() or 0


def by_tasks(recorded: RecordedRun, given: argparse.Namespace) -> None:
    """At the beginning of each task: its step; of what lies behind it: replay, checkpoint, bytes."""
    learner = fast_forward.new_learner(recorded)
    ways: dict[tuple[int, str], Callable[[], object]] = {}
    facts: dict[int, tuple[int, dict[str, int], int, int]] = {}
    trainers = {}
    for task in sorted(given.tasks):
        fast_forward.advance(learner, recorded, task - 1 - len(learner.engrams))
        now = copy.deepcopy(learner)
        trainers[task] = trainer_of(now, recorded, fixed=False)
        own = {"learned": our_step(now, trainers[task]), "fixed": our_step(now, trainer_of(now, recorded, fixed=True))}
        after = fast_forward.advance(now, recorded, 1)  # `own` has copies of the network
        own |= {"replay": replay_part(after, filtered=True), "retention": after.retention}
        ways |= {(task, name): way for name, way in own.items()}
        weights = sum(layer.weight.numel() for layer in after.net.plastic)
        facts[task] = weights, ledger(after.net, after.engrams), saved(after), peak_of(recorded, task, given)
    seconds = clock.best(ways, rounds=given.rounds)
    print(
        "task  step ms  over first  replay s/epoch  retention s  weights  memory MB  masks MB  checkpoint MB  peak MB"
    )
    first = None
    for task, (weights, book, size, peak) in facts.items():
        step = weighted(seconds[task, "learned"], seconds[task, "fixed"], trainers[task])
        first = first or step
        cells = [
            f"{task:4}  {1e3 * step:7.1f}  {step / first:10.2f}  {PART * seconds[task, 'replay']:14.2f}",
            f"{seconds[task, 'retention']:11.3f}  {weights:7}  {sum(book.values()) / 1e6:9.2f}",
            f"{book['masks'] / 1e6:8.2f}  {size / 1e6:13.2f}  {peak / 1e6:7.0f}",
        ]
        print("  ".join(cells))


def by_classes(recorded: RecordedRun, classes: Sequence[int], rounds: int) -> None:
    """A first task of several classes. A task has as many steps as classes times those of one."""
    ways: dict[tuple[int, str], Callable[[], object]] = {}
    trainers, books = {}, {}
    for count in classes:
        learner = fast_forward.new_learner(recorded)
        for name, fixed in (("learned", False), ("fixed", True)):
            trainers[count] = trainer_of(learner, recorded, fixed=fixed, classes=count)
            ways[count, name] = our_step(learner, trainers[count], classes=count)
        books[count] = ledger(learner.net, fast_forward.advance(learner, recorded, 1, classes=count).engrams)
    seconds = clock.best(ways, rounds=rounds)
    print("classes in one task  step ms  heads and norms, bytes a class")
    for count in classes:
        step = weighted(seconds[count, "learned"], seconds[count, "fixed"], trainers[count])
        own = books[count]["heads"] + books[count]["normalisation"]
        print(f"{count:19}  {1e3 * step:7.1f}  {own / count:30.0f}")


def by_seen(recorded: RecordedRun, seen: Sequence[int], rounds: int) -> None:
    """The classifier's step, and the bytes of its growing head."""
    ways: dict[int, Callable[[], object]] = {}
    heads = {}
    for count in seen:
        learner = fast_forward.new_learner(recorded)
        learner.classifier_phase.begin(count, task=0, begins=0.0)
        ways[count] = classifier_part(learner)
        heads[count] = sum(4 * p.numel() for p in learner.classifier_phase.classifier.net[1].parameters())
    seconds = clock.best(ways, rounds=rounds)
    print("classes of the classifier  step ms  head MB")
    for count in seen:
        print(f"{count:25}  {1e3 * seconds[count] / PART:7.1f}  {heads[count] / 1e6:7.2f}")


def main() -> None:
    asks = fast_forward.parser(__doc__)
    asks.add_argument("--tasks", type=int, nargs="+", default=[1, 2, 5, 10, 20, 50])
    asks.add_argument("--classes", type=int, nargs="+", default=[1, 2, 5, 10, 20])
    asks.add_argument("--seen", type=int, nargs="+", default=[10, 100, 1000])
    asks.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    given = asks.parse_args()
    settings = fast_forward.settings_of(given)
    if given.peak:
        print(go_through(fast_forward.read_run(given.runs[0], settings), given.peak))
        return
    print(clock.machine())
    for folder in given.runs:
        recorded = fast_forward.read_run(folder, settings)
        known, last = len(recorded.shares), fast_forward.LAST
        print(f"\n{recorded.name}: masks as dense as recorded up to task {known}, then as in its last {last}")
        by_tasks(recorded, given)
        by_classes(recorded, given.classes, given.rounds)
        by_seen(recorded, given.seen, given.rounds)


if __name__ == "__main__":
    main()
