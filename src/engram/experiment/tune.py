"""A search for settings: trials are run folders in development, and the worse ones are stopped early.

    space ──> trials ──> jobs `engram run --resume --set stream.development=true` ──> accuracy after each task
                                     ^                                                      │
                                     └──────────────── goes on, or is stopped <─────────────┘

What is compared is accuracy on training images that were held out; test images are not looked at. Trial 0 has the
settings as they are and is never stopped, so that a search never ends with less than it began with, but by chance.

The rule is that of asynchronous successive halving (ASHA; Li et al., MLSys 2020), in its stopping form: after 1, r,
r^2, … tasks a trial goes on while it is among the best 1/r of all that have come so far. Jobs are processes here, or
placed by Ray: the rule is the same, so that a search on a cluster is the search at a desk. With several jobs at a time
it depends on their speed which trial meets which.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from engram.config import Config, groups_of
from engram.errors import ConfigError, EngramError
from engram.experiment.files import os_errors, read_json, write_atomically, write_json
from engram.experiment.jobs import Job, Launcher, Process
from engram.experiment.summary import Summary, summarise
from engram.methods.registry import configure
from engram.seeding import generator

POLL_SECONDS = 0.5
NAME, BEST = "tune.json", "best.toml"
"""In the folder of a search: what it is and how far it has come; the settings that did best, for `--config`."""
FORMAT = 1
DECADES = 10.0
"""A range whose ends lie so many times apart is drawn evenly in the logarithm."""

Status = Literal["waiting", "running", "done", "stopped", "failed"]


@dataclass(frozen=True)
class Choice:
    """Some values, each as likely."""

    values: tuple[str, ...]

    def at(self, u: float) -> str:
        """u: 0 to 1, below 1."""
        return self.values[int(u * len(self.values))]


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, both included."""

    low: float
    high: float
    whole: bool

    def at(self, u: float) -> str:
        """u: 0 to 1, below 1.

        >>> Range(1e-4, 1e-2, False).at(0.5), Range(1, 9, True).at(0.5), Range(0.2, 0.4, False).at(0.5)
        ('0.001', '5', '0.3')
        """
        low, high = (self.low, self.high + 1) if self.whole else (self.low, self.high)
        if low > 0 and self.high / low >= DECADES:
            value = math.exp(math.log(low) + u * (math.log(high) - math.log(low)))
        else:
            value = low + u * (high - low)
        return str(min(int(value), int(self.high))) if self.whole else f"{value:.4g}"


Space = Mapping[str, Choice | Range]
"""`group.field` -> what it is to be drawn from."""


def parse_space(texts: Sequence[str]) -> Space:
    """`gan.learning_rate=1e-4..1e-2`, `classifier.augment=none,affine` -> a space.

    >>> parse_space(["gan.epochs=5..40", "gan.beta1=0,0.5"])
    {'gan.epochs': Range(low=5.0, high=40.0, whole=True), 'gan.beta1': Choice(values=('0', '0.5'))}
    """
    space: dict[str, Choice | Range] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not name or not values:
            raise ConfigError(f"--search {text!r} is not GROUP.FIELD=LOW..HIGH or GROUP.FIELD=A,B")
        if name in space:
            raise ConfigError(f"--search {name} stands twice; give all its values at once")
        space[name] = _range(text, values) if ".." in values else Choice(tuple(filter(None, values.split(","))))
    return space


def _range(text: str, values: str) -> Range:
    ends = values.split("..")
    try:
        low, high = map(float, ends)
    except ValueError:
        raise ConfigError(f"--search {text!r}: a range is two numbers, such as 1e-4..1e-2") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"--search {text!r}: a range goes from a number to a larger one")
    return Range(low, high, all(end.strip().lstrip("-").isdecimal() for end in ends))


def draw(space: Space, seed: int, number: int) -> dict[str, str]:
    """The settings of a trial: none for the first, which is what there was before."""
    if number == 0:
        return {}
    at = torch.rand(len(space), dtype=torch.float64, generator=generator(seed, "tune", number)).tolist()
    return {name: values.at(u) for (name, values), u in zip(space.items(), at, strict=True)}


def rungs(tasks: int, reduction: int) -> list[int]:
    """Numbers of tasks after which a trial is judged.

    >>> rungs(10, 3), rungs(2, 3), rungs(1, 3)
    ([1, 3, 9], [1], [])
    """
    found, at = [], 1
    while at < tasks:
        found.append(at)
        at *= reduction
    return found


def goes_on(value: float, others: Sequence[float], reduction: int) -> bool:
    """Whether a trial is among the best 1/reduction of all that have come to this rung; equals share a place.

    >>> goes_on(0.9, [], 3), goes_on(0.5, [0.9], 3), goes_on(0.9, [0.9], 3)
    (True, False, True)
    >>> goes_on(0.5, [0.1, 0.2, 0.3, 0.4, 0.9], 3)  # the second of six
    True
    """
    best = max(1, (len(others) + 1) // reduction)
    return sum(other > value for other in others) < best


@dataclass
class Trial:
    """One run of the search."""

    number: int
    settings: dict[str, str]
    folder: Path
    status: Status = "waiting"
    error: str = ""
    summary: Summary | None = None
    job: Job | None = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        """What its process printed."""
        return self.folder.parent / "logs" / f"{self.folder.name}.log"

    @property
    def accuracy(self) -> list[float]:
        """A_t on held-out training images, after each task that is done."""
        return [] if self.summary is None else [*self.summary.accuracy.values()]

    @property
    def score(self) -> float:
        """A_t after the last task; below every accuracy where it did not get there."""
        return self.accuracy[-1] if self.status == "done" else -1.0

    def look(self) -> None:
        """Read how far it has come."""
        try:
            self.summary = summarise(self.folder)
        except EngramError as error:
            self.error = str(error)


@dataclass(frozen=True)
class Search:
    """What is looked for, and how."""

    dataset: str
    method: str
    space: Space
    out: Path
    trials: int = 12
    seed: int = 0
    jobs: int = 1
    threads: int = 1
    reduction: int = 3
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of all trials."""
    preset: str = "auto"

    def __post_init__(self) -> None:
        for name, value, least in (("--trials", self.trials, 1), ("--reduction", self.reduction, 2)):
            if value < least:
                raise ConfigError(f"{name} {value} must be {least} or more")
        if not self.space:
            raise ConfigError("--search names nothing; give a setting, such as classifier.learning_rate=1e-4..1e-2")
        if both := sorted({*self.space} & {*self.settings}):
            raise ConfigError(f"{both[0]} stands under --set and --search: what it is, or what to look for?")
        if said := [name for name in (*self.space, *self.settings) if name == DEVELOPMENT]:
            raise ConfigError(f"{said[0]} is true in every trial; leave it out")

    @property
    def tuned_on(self) -> str:
        """What runs that use the outcome record."""
        return f"held-out training images of {self.dataset}, {self.trials} trials of engram tune"

    def config(self, settings: Mapping[str, str], *, development: bool = True) -> Config:
        """The configuration of a trial; of a run that uses its settings, without `development`."""
        own: dict[str, Any] = {**self.settings, **settings, **({DEVELOPMENT: True} if development else {})}
        return configure(dataset=self.dataset, method=self.method, preset=self.preset, seed=self.seed, settings=own)

    def command(self, trial: Trial) -> list[str]:
        """What its process runs."""
        words = [sys.executable, "-m", "engram", "run", "--quiet", "--resume", "--out", str(trial.folder)]
        words += ["--dataset", self.dataset, "--method", self.method, "--seed", str(self.seed)]
        words += ["--preset", self.preset]
        own = {"runtime.threads": str(self.threads), **self.settings, **trial.settings, DEVELOPMENT: "true"}
        return words + [word for name, value in own.items() for word in ("--set", f"{name}={value}")]

    def identity(self) -> str:
        """What makes it the same search when it is called again: all but its size and its place."""
        space = {name: repr(values) for name, values in self.space.items()}
        parts = [self.dataset, self.method, self.preset, self.seed, self.reduction, space, dict(self.settings)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


DEVELOPMENT = "stream.development"


class Stopped(Exception):
    """Somebody asked the search to stop; its trials have saved."""


def tune(
    search: Search,
    *,
    show: Callable[[Sequence[Trial]], None] = lambda trials: None,
    asked: Callable[[], bool] = lambda: False,
    start: Launcher = Process,
) -> list[Trial]:
    """All trials, done or stopped early. Called again it does what is missing. Writes the best settings."""
    trials = _begun(search)
    for trial in trials:
        search.config(trial.settings)  # mistakes in the space are found before anything runs
    with os_errors(search.out):
        (search.out / "logs").mkdir(parents=True, exist_ok=True)
    judged: dict[int, dict[int, float]] = {}
    for trial in trials:
        trial.look()
        _judge(trial, judged, search.reduction)
    try:
        while True:
            for trial in trials:
                if trial.status == "running":
                    _watch(trial, judged, search.reduction)
            free = search.jobs - sum(trial.status == "running" for trial in trials)
            for trial in [trial for trial in trials if trial.status == "waiting"][:free]:
                trial.job, trial.status = start(search.command(trial), trial.log, search.threads), "running"
            _note(search, trials)
            show(trials)
            if not any(trial.status in ("running", "waiting") for trial in trials):
                _write_best(search, trials)
                return trials
            if asked():
                raise Stopped
            time.sleep(POLL_SECONDS)
    finally:
        for trial in trials:
            if trial.job is not None:
                trial.job.interrupt()
        for trial in trials:
            if trial.job is not None:
                trial.job.wait()
                trial.job, trial.status = None, "waiting" if trial.status == "running" else trial.status
        _note(search, trials)


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The one with the highest accuracy after all tasks, the first of several; None where none got there."""
    done = [trial for trial in trials if trial.status == "done"]
    return max(done, key=lambda trial: (trial.score, -trial.number)) if done else None


def _begun(search: Search) -> list[Trial]:
    """The trials as an earlier call left them, or new ones."""
    trials = [
        Trial(number, draw(search.space, search.seed, number), search.out / f"trial-{number:03d}")
        for number in range(search.trials)
    ]
    path = search.out / NAME
    if not path.exists():
        if search.out.exists() and any(search.out.iterdir()):
            raise ConfigError(f"{search.out} holds other files and is no search; choose another --out")
        return trials
    plain = read_json(path)
    known = plain.get("trials") if isinstance(plain, dict) else None
    if not isinstance(known, list) or plain.get("format") != FORMAT:
        raise ConfigError(f"{path} is not a search of this version; choose another --out")
    if plain.get("identity") != search.identity():
        raise ConfigError(f"{search.out} holds a search with other words; choose another --out")
    for trial, status in zip(trials, known, strict=False):  # a later call may ask for more trials
        if status in ("done", "stopped", "failed"):
            trial.status = status
    return trials


def _note(search: Search, trials: Sequence[Trial]) -> None:
    """How far the search has come. It is on disc before a stopped trial's place is given away."""
    plain = {
        "format": FORMAT,
        "identity": search.identity(),
        "trials": ["waiting" if trial.status == "running" else trial.status for trial in trials],
    }
    path = search.out / NAME
    if not path.exists() or read_json(path) != plain:
        write_json(path, plain)


def _judge(trial: Trial, judged: dict[int, dict[int, float]], reduction: int) -> bool:
    """Enter the accuracies that are there; whether the trial goes on."""
    tasks = trial.summary.tasks if trial.summary else 0
    on = True
    for rung in rungs(tasks, reduction):
        at = judged.setdefault(rung, {})
        if rung <= len(trial.accuracy) and trial.number not in at:
            value = trial.accuracy[rung - 1]
            on = on and goes_on(value, [*at.values()], reduction)
            at[trial.number] = value
    return on or trial.number == 0


def _watch(trial: Trial, judged: dict[int, dict[int, float]], reduction: int) -> None:
    """A trial under way: is it done, has it failed, is it to be stopped?"""
    assert trial.job is not None
    code = trial.job.poll()
    trial.look()
    on = _judge(trial, judged, reduction)
    if code is None and not on:
        trial.job.interrupt()
        trial.job.wait()
        trial.look()
    if code is None and on:
        return
    trial.job = None
    if trial.summary is not None and trial.summary.done:
        trial.status = "done"
    elif not on:
        trial.status = "stopped"
    else:  # a run that diverges is an answer, too
        lines = trial.log.read_text(errors="replace").strip().splitlines() if trial.log.exists() else []
        trial.status, trial.error = "failed", lines[-1] if lines else f"ended with exit code {code}"


def _write_best(search: Search, trials: Sequence[Trial]) -> None:
    """A preset of the user's own, complete, that says what it was chosen by."""
    best = best_of(trials)
    if best is None:
        return
    with os_errors(search.out / BEST):
        write_atomically(search.out / BEST, as_toml(search, best).encode())


def as_toml(search: Search, best: Trial) -> str:
    """In the shape of `engram list presets`: what `engram run --config` takes."""
    groups = groups_of(search.config(best.settings, development=False))
    said = vars(groups.pop("stream")).items()
    stream = {name: value for name, value in said if value is not None and name not in ("development", "tuned_on")}
    del groups["runtime"]
    lines = [
        f"# Trial {best.number} of {search.trials}, the best: {100 * best.score:.2f} % of held-out training images.",
        f"description = {_value(f'{search.method} on {search.dataset}, found by engram tune')}",
        f"tuned_on = {_value(search.tuned_on)}",
        "",
        "[stream]",
        *(f"{name} = {_value(value)}" for name, value in stream.items()),
        "",
        f"[{search.method}]",
        *(
            f"{name} = {{ {', '.join(f'{key} = {_value(value)}' for key, value in vars(group).items())} }}"
            for name, group in groups.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """As TOML writes it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value) if not isinstance(value, float) else repr(value)
