"""What can go wrong, as a tree.

EngramError              exit code 2: one line that names the value and the remedy
├── ConfigError          an unknown name, a bad value, a field that does not exist
├── DataError            files that are missing, broken or not what they claim to be
├── StrictnessError      somebody reached for data that the protocol has closed
├── RunError             a run folder or a model file that cannot be used, written or resumed
│   └── InUseError       exit code 3: another process is at work there, so that later it may be used
├── DivergedError        exit code 1: a loss is no longer finite
└── LostError            exit code 1: another process of the run is gone
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

DISTRIBUTION = "engram-continual"
"""What pip calls this project; `engram` on PyPI is another one."""


LONGEST = 60
"""Characters of a name in an error."""
LINE = 1000
"""Characters of an error."""


class EngramError(Exception):
    """Base of every error that is meant for a person to read: one line that names the value and the remedy.

    >>> from engram import EngramError, load_dataset
    >>> try:
    ...     load_dataset("digit")
    ... except EngramError as error:
    ...     print(str(error).partition("?")[0])
    unknown data set 'digit': did you mean 'digits'

    It quotes what a file says of itself, which may be anything of any length: it is one line all the same.

    >>> str(EngramError("m.engram is of format 1\\n2; update Engram")), len(str(EngramError("x" * 10**6)))
    ('m.engram is of format 1 2; update Engram', 1000)
    """

    exit_code = 2

    def __init__(self, what: object = "") -> None:
        line = " ".join(str(what).splitlines())
        # the remedy stands at the end
        super().__init__(line if len(line) <= LINE else f"{line[: LINE - 303]} … {line[-300:]}")


class ConfigError(EngramError):
    """A setting that cannot be used.

    >>> from engram import ConfigError, configure
    >>> try:
    ...     configure(settings={"gan.epochs": -1})
    ... except ConfigError as error:
    ...     print(error)
    gan.epochs=-1 is out of range: it must be 1 to 1,000,000
    """


class DataError(EngramError):
    """Data that is missing, broken or not what it claims to be.

    >>> from engram import DataError, Model
    >>> try:
    ...     Model.create().learn("folder:no/such/place")
    ... except DataError as error:
    ...     print(error)
    no/such/place: no such folder; check the path
    """


class StrictnessError(EngramError):
    """An access that the strict class-incremental protocol forbids.

    >>> from engram import ClassStream, StrictnessError, load_dataset
    >>> first, second = ClassStream(load_dataset("digits"), order=["3", "5"])
    >>> try:
    ...     first.images
    ... except StrictnessError as error:
    ...     print(str(error).partition(";")[0])
    task 1 (classes [3]) is over: its images may not be read again
    """


class RunError(EngramError):
    """A run folder or a model file that cannot be used, written or resumed.

    >>> from engram import Model, RunError
    >>> try:
    ...     Model.create().predict("photo.jpg")
    ... except RunError as error:
    ...     print(error)
    the model knows no class yet, so it cannot answer; let it learn first
    """


class InUseError(RunError):
    """Another process is at work in the run folder or on the model.

    >>> from engram import InUseError, RunError
    >>> issubclass(InUseError, RunError), InUseError.exit_code  # by which `engram bench` knows that it has to wait
    (True, 3)
    """

    exit_code = 3


class DivergedError(EngramError):
    """Training left the finite numbers; the last good checkpoint is kept.

    >>> import torch
    >>> from engram import DivergedError, evaluate, load_dataset
    >>> class Diverged:
    ...     def scores(self, images):
    ...         return torch.full((len(images), 1), float("nan"))
    >>> try:
    ...     evaluate(Diverged(), load_dataset("digits"), [3])
    ... except DivergedError as error:
    ...     print(error)
    the learner's scores are not finite; lower classifier.learning_rate
    """

    exit_code = 1


class LostError(EngramError):
    """Another process of the same run is gone, or silent for too long; the last good checkpoint is kept.

    >>> from engram import EngramError, LostError
    >>> issubclass(LostError, EngramError), LostError.exit_code  # of `engram run`, which may be started again
    (True, 1)
    """

    exit_code = 1


def unknown(what: str, value: str, known: Iterable[str]) -> ConfigError:
    """An error for a name that does not exist, with the nearest ones that do.

    >>> str(unknown("method", "jiont", ["joint", "finetune"]))
    "unknown method 'jiont': did you mean 'joint'? Known: joint, finetune"
    """
    known = list(known)
    value = value if len(value) <= LONGEST else f"{value[: LONGEST - 3]}..."
    near = difflib.get_close_matches(value, known, n=2, cutoff=0.6)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return ConfigError(f"unknown {what} {value!r}: {hint}Known: {', '.join(known)}")


def install_words(extra: str) -> str:
    """What installs an extra, from a checkout as from a wheel: pip adds to the distribution that is there.

    >>> install_words("ray")
    "pip install 'engram-continual[ray]'"
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def missing_extra(what: str, extra: str) -> ConfigError:
    """An error for something whose packages are not installed.

    >>> str(missing_extra("--ray", "ray"))
    "--ray needs more packages: pip install 'engram-continual[ray]'"
    """
    return ConfigError(f"{what} needs more packages: {install_words(extra)}")
