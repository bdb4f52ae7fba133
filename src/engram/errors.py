"""What can go wrong, as a tree.

EngramError              exit code 2: one line that names the value and the remedy
├── ConfigError          an unknown name, a bad value, a field that does not exist
├── DataError            files that are missing, broken or not what they claim to be
├── StrictnessError      somebody reached for data that the protocol has closed
├── RunError             a run folder that cannot be used, written or resumed
├── DivergedError        exit code 1: a loss is no longer finite
└── LostError            exit code 1: another process of the run is gone
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

DISTRIBUTION = "engram-continual"
"""What pip calls this project; `engram` on PyPI is another one."""


class EngramError(Exception):
    """Base of every error that is meant for a person to read."""

    exit_code = 2


class ConfigError(EngramError):
    """A setting that cannot be used."""


class DataError(EngramError):
    """Data that is missing, broken or not what it claims to be."""


class StrictnessError(EngramError):
    """An access that the strict class-incremental protocol forbids."""


class RunError(EngramError):
    """A run folder that cannot be used, written or resumed."""


class DivergedError(EngramError):
    """Training left the finite numbers; the last good checkpoint is kept."""

    exit_code = 1


class LostError(EngramError):
    """Another process of the same run is gone, or silent for too long; the last good checkpoint is kept."""

    exit_code = 1


def unknown(what: str, value: str, known: Iterable[str]) -> ConfigError:
    """An error for a name that does not exist, with the nearest ones that do.

    >>> str(unknown("method", "jiont", ["joint", "finetune"]))
    "unknown method 'jiont': did you mean 'joint'? Known: joint, finetune"
    """
    known = list(known)
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
