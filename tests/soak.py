"""A soak: runs and models that are killed, stopped, starved of disc and crowded, and go on, at random, for hours.

    PYTHONPATH=src python tests/soak.py --minutes 120 --jobs 2

Every trial does what an undisturbed twin did: after each disturbance the folder or the model opens, `verify` finds no
fault, the records can be read; at the end the bits are the twin's. Commands are called in forked processes, so that a
kill lands in the work and not in the import of torch. POSIX alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engram.cli import call
from engram.experiment import checkpoint
from engram.experiment.records import read_records
from engram.model.model import Model
from engram.model.verify import verify
from engram.report.gather import gather

TINY: dict[str, Any] = {
    "gan.epochs": 3, "gan.steps": 6, "gan.batch_size": 8, "generator.width": 2, "generator.latent_dim": 8,
    "generator.bn_batches": 1, "critic.width": 4, "critic.penalty_stride": 2, "masks.max_units_ratio": 0.0,
    "replay.images": 32, "masks.fraction": 0.5, "masks.lambda_ru": 0.0,
}  # fmt: skip
CLASSIFIER: dict[str, Any] = {"classifier.epochs": 3, "classifier.width": 4, "classifier.batch_size": 8}
COMMON: dict[str, Any] = {"runtime.threads": 1, "runtime.checkpoint_seconds": 0.02}
SETTINGS: dict[str, dict[str, Any]] = {
    "dgmw": {**TINY, **CLASSIFIER, **COMMON}, "dgma": {**TINY, **CLASSIFIER, **COMMON},
    "finetune": {**CLASSIFIER, **COMMON, "classifier.epochs": 8}, "ncm": {"features.filters": 8, **COMMON},
}  # fmt: skip
PATIENCE = 300.0
"""Seconds after which a command hangs."""
MOST = 5
"""Disturbances of one command; the next call is left alone."""
HARMS = ("SIGKILL", "SIGKILL", "SIGTERM", "SIGINT", "full disc", "two at once")


@dataclass
class Tally:
    """What was tried, and what was lost."""

    tried: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)


class Lost(Exception):
    """An invariant that did not hold."""


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, or minus the signal; what it said."""

    code: int
    said: str


@dataclass(frozen=True)
class Step:
    """A command that is called until it has come to its end, and what is there then."""

    words: list[str]
    place: str
    """What it writes: a run folder, or a model file."""
    seconds: float = 1.0
    outcome: Any = None


# ---------------------------------------------------------------- processes


def start(act: Callable[[], int], log: Path, space: int | None = None) -> int:
    """Fork; the child does it, says what it says to `log`, and may write files of so many bytes."""
    process = os.fork()
    if process:
        return process
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        if space is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (space, space))
        code = act()
        with contextlib.suppress(OSError):  # of a disc that is full
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    except BaseException:
        with contextlib.suppress(OSError):
            os.write(2, traceback.format_exc().encode())
        os._exit(99)


def end(process: int, log: Path, *, after: float | None = None, by: signal.Signals = signal.SIGKILL) -> Ended:
    """Wait for it; with `after`, send it a signal when so many seconds have passed."""
    began, sent = time.monotonic(), after is None
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return Ended(os.waitstatus_to_exitcode(status), log.read_text(errors="replace"))
        passed = time.monotonic() - began
        if not sent and after is not None and passed >= after:
            os.kill(process, by)
            sent = True
        if passed > PATIENCE:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            raise Lost(f"hangs: {log.read_text(errors='replace')[-300:]}")
        time.sleep(0.003)


def engram(words: Sequence[str], log: Path, **options: Any) -> Ended:
    """A command, from its start to its end."""
    return end(start(lambda: call(list(words)), log, options.pop("space", None)), log, **options)


# ---------------------------------------------------------------- what must hold


def sound(place: Path) -> int:
    """0 where a folder or a file opens, passes its checks, and its records can be read; says what is wrong."""
    wrong: list[str] = []
    if place.is_dir():
        list(read_records(place))
        wrong += [f"{one.place}: {one.text}" for one in gather([place], patient=True).problems]
        begun = checkpoint.load(place)
        if begun is None or not begun.meta["task"]:
            return _said(wrong)
    elif not place.exists():
        return 0
    wrong += [f"{check.what}: {check.detail}" for check in verify(place) if check.ok is False]
    return _said(wrong)


def _said(wrong: Sequence[str]) -> int:
    print("\n".join(wrong))
    return int(bool(wrong))


def outcome(place: Path) -> Any:
    """All bits that must be the same: of a run its records and state, of a model the file."""
    if not place.is_dir():
        return place.read_bytes()
    saved = checkpoint.load(place)
    assert saved is not None
    names = sorted({re.sub(r"\d+", "N", path.name) for path in place.iterdir()})
    return (
        json.dumps([r for r in read_records(place) if r["kind"] != "timing"]),
        checkpoint.fingerprint(saved.state),
        names,
    )


def require(true: bool, what: str) -> None:
    if not true:
        raise Lost(what)


# ---------------------------------------------------------------- a story and its twin


def data(at: Path, first: int, classes: int) -> str:
    """Classes of bright corners, called by numbers from `first` on."""
    draws = np.random.default_rng(first)
    labels = np.repeat(np.arange(classes), 14)
    images = draws.integers(0, 60, (len(labels), 16, 16, 1), dtype=np.uint8)
    for row, label in enumerate(labels + first):
        y, x = divmod(int(label), 4)
        images[row, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4] += 180
    np.savez(at, images=images, labels=labels + first)
    return str(at)


def story(method: str, seed: int) -> list[Step]:
    """A run; the run goes on as a model; the model learns, forgets where it can, and learns again."""
    settings = [word for key, value in SETTINGS[method].items() for word in ("--set", f"{key}={value}")]
    runtime = [word for key, value in COMMON.items() for word in ("--set", f"{key}={value}")]
    names = ["--dataset", "npz:a.npz", "--method", method, "--seed", str(seed), "--preset", "default"]
    steps = [
        Step(["run", *names, "--out", "run", "--resume", *settings], "run"),
        Step(["learn", "run", "b.npz", "--out", "m.engram", "--quiet", *runtime], "m.engram"),
    ]
    if method != "finetune":
        steps.append(Step(["forget", "m.engram", "2", "--quiet"], "m.engram"))
    steps.append(Step(["learn", "m.engram", "c.npz", "--quiet", *runtime], "m.engram"))
    return steps


def twin(method: str, seed: int, at: Path) -> list[Step]:
    """The story as it goes when nothing disturbs it."""
    place = at / f"{method}-{seed}"
    place.mkdir(parents=True)
    with contextlib.chdir(place):
        for name, first, classes in (("a", 0, 2), ("b", 2, 2), ("c", 4, 1)):
            data(Path(f"{name}.npz"), first, classes)
        told = []
        for step in story(method, seed):
            began = time.monotonic()
            ended = engram(step.words, Path("log"))
            require(ended.code == 0, f"the twin fails: {' '.join(step.words)}: {ended.said[-500:]}")
            told.append(Step(step.words, step.place, time.monotonic() - began, outcome(Path(step.place))))
    return told


def trial(steps: Sequence[Step], source: Path, at: Path, seed: int, tally: Tally, *, harm: bool = False) -> None:
    """The story disturbed; raises Lost. `harm`: flip a bit of what came out, to see that it is noticed."""
    shutil.rmtree(at, ignore_errors=True)
    at.mkdir(parents=True)
    for path in source.glob("?.npz"):
        shutil.copy(path, at)
    draws = random.Random(seed)
    with contextlib.chdir(at):
        for step in steps:
            _until_done(step, draws, tally)
            if harm:
                _harmed(Path(step.place))
            require(outcome(Path(step.place)) == step.outcome, f"other bits than its twin: {' '.join(step.words)}")
            require(not list(Path().rglob("*.tmp")), f"left over: {list(Path().rglob('*.tmp'))}")
            _aside(step, draws, tally)


def _until_done(step: Step, draws: random.Random, tally: Tally) -> None:
    log, disturbed = Path("log"), 0
    while True:
        harm = draws.choice(HARMS) if disturbed < draws.randint(1, MOST) else ""
        if not harm:
            ended = engram(step.words, log)
        elif harm == "full disc":
            ended = engram(step.words, log, space=draws.choice((1000, 3000, 8000, 20_000, 60_000)))
        elif harm == "two at once":
            ended = _crowded(step, draws)
        else:
            moment = draws.uniform(0, 1.1 * step.seconds)
            ended = engram(step.words, log, after=moment, by=signal.Signals[harm])
        tally.tried[harm or "to the end"] += 1
        disturbed += bool(harm)
        # whoever was killed after its last act finds that all is done
        done = ended.code == 0 or (disturbed and "is known already" in ended.said)
        allowed = (0, 130, 2, 3, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT) if harm else (0,)
        require(done or ended.code in allowed, f"exit code {ended.code} after {harm or 'nothing'}: {ended.said[-500:]}")
        require("Traceback" not in ended.said, f"a traceback after {harm}: {ended.said[-500:]}")
        checked = end(start(lambda: sound(Path(step.place)), log), log)
        require(checked.code == 0, f"not sound after {harm or 'its end'}: {checked.said[-500:]}")
        if done and not harm:
            return


def _crowded(step: Step, draws: random.Random) -> Ended:
    """The same command twice at a time: one of them does it, or each of them some."""
    logs = Path("log"), Path("log2")
    first = start(lambda: call(list(step.words)), logs[0])
    time.sleep(draws.uniform(0, step.seconds))
    second = start(lambda: call(list(step.words)), logs[1])
    both = end(first, logs[0]), end(second, logs[1])
    for one in both:
        known = "in use" in one.said or "is known already" in one.said or "changed by another" in one.said
        require(one.code == 0 or known, f"two at once: exit code {one.code}: {one.said[-500:]}")
        require("Traceback" not in one.said, f"two at once: {one.said[-500:]}")
    require(any(one.code == 0 for one in both), f"two at once, and neither did it: {both[0].said} {both[1].said}")
    return both[0]


def _aside(step: Step, draws: random.Random, tally: Tally) -> None:
    """What people do in between; none of it changes a bit."""
    place, log = step.place, Path("log")
    ways: dict[str, Callable[[], int]] = {
        "report": lambda: call(["report", "run", "--out", "report"]),
        "card": lambda: call(["card", place, "--out", "card.md"]),
        "save": lambda: bool(Model.open(place).save("copy.engram", card=False)) - 1,
        "sample": lambda: call(["sample", place, "--out", "grid.png"]),
    }
    what = draws.choice([name for name in ways if name != "sample" or "dgm" in "".join(step.words)] + [""] * 3)
    if not what:
        return
    ended = end(start(ways[what], log), log)
    tally.tried[what] += 1
    require(ended.code in (0, 2) and "Traceback" not in ended.said, f"{what}: {ended.said[-500:]}")
    require(outcome(Path(place)) == step.outcome, f"{what} changed {place}")


def _harmed(place: Path) -> None:
    path = place if place.is_file() else next(place.glob("checkpoint-*.safetensors"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


# ---------------------------------------------------------------- all of it


def soak(at: Path, out: Path, *, seed: int, until: float | None, trials: int | None, harm: bool = False) -> Tally:
    """Trial after trial; what was lost is kept in `out`."""
    tally, twins = Tally(), dict[str, list[Step]]()
    for number in _numbers(until, trials):
        draws = random.Random(f"soak {seed} {number}")
        method, own = draws.choice(list(SETTINGS)), draws.randrange(2)
        name = f"{method}-{own}"
        if name not in twins:
            twins[name] = twin(method, own, at)
        try:
            trial(twins[name], at / name, at / "trial", draws.randrange(1 << 30), tally, harm=harm)
        except Exception as error:
            tally.lost.append(f"{name}, seed {seed}, trial {number}: {type(error).__name__}: {error}")
            shutil.copytree(at / "trial", out / f"{seed}-{number}", dirs_exist_ok=True)
        tally.tried["trials"] += 1
    return tally


def _numbers(until: float | None, trials: int | None) -> Iterator[int]:
    number = 0
    while (trials is None or number < trials) and (until is None or time.monotonic() < until):
        yield number
        number += 1


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Runs and models that are disturbed at random, and lose nothing.")
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--trials", type=int, default=None, help="so many of each job, in the place of a time")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="for what was lost")
    parser.add_argument("--harm", action="store_true", help="flip a bit of every outcome, to see that it is noticed")
    chosen = parser.parse_args(words)
    torch.set_num_threads(1)
    os.environ |= {"SOURCE_DATE_EPOCH": "1700000000", "OMP_NUM_THREADS": "1"}
    until = None if chosen.minutes is None else time.monotonic() + 60 * chosen.minutes
    trials = chosen.trials or (None if until else 4)
    work, out = Path(tempfile.mkdtemp(prefix="engram-soak-")).resolve(), chosen.out.resolve()

    def job(number: int) -> int:
        own = work / str(number)
        own.mkdir()
        seed = chosen.seed + number
        tally = soak(own, out, seed=seed, until=until, trials=trials, harm=chosen.harm)
        (work / f"{number}.json").write_text(json.dumps([tally.tried, tally.lost]))
        return 0

    try:
        started = [(start(partial(job, number), work / f"{number}.log"), number) for number in range(chosen.jobs)]
        total = Tally()
        for process, number in started:
            os.waitpid(process, 0)
            if not (told := work / f"{number}.json").exists():
                total.lost.append(f"job {number}: {(work / f'{number}.log').read_text(errors='replace')[-1000:]}")
                continue
            tried, lost = json.loads(told.read_text())
            total.tried.update(tried)
            total.lost += lost
        for what, count in sorted(total.tried.items()):
            print(f"{what}: {count:,}")
        for line in total.lost:
            print(line)
        print(f"{total.tried.total() - total.tried['trials']:,} tried, {len(total.lost)} lost")
        return int(bool(total.lost))
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
