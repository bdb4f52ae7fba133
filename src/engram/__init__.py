"""Engram: class-incremental learning under the strict protocol, with exact retention.

    from engram import ClassStream, build, evaluate, load

The names below are the public ones. They are imported when first used, so that `import engram` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engram.config import Config
    from engram.data.datasets import Dataset, load
    from engram.data.stream import ClassStream, Task
    from engram.errors import (
        ConfigError,
        DataError,
        DivergedError,
        EngramError,
        RunError,
        StrictnessError,
    )
    from engram.evaluation.evaluate import Evaluation, evaluate
    from engram.experiment.run import Request, run
    from engram.methods.dgm import DGM
    from engram.methods.learner import Learner, Method, Silent, Surroundings
    from engram.methods.registry import METHODS, build, configure

_HOMES = {
    "engram.config": ["Config"],
    "engram.data.datasets": ["Dataset", "load"],
    "engram.data.stream": ["ClassStream", "Task"],
    "engram.errors": [
        "ConfigError",
        "DataError",
        "DivergedError",
        "EngramError",
        "RunError",
        "StrictnessError",
    ],
    "engram.evaluation.evaluate": ["Evaluation", "evaluate"],
    "engram.experiment.run": ["Request", "run"],
    "engram.methods.learner": ["Learner", "Method", "Silent", "Surroundings"],
    "engram.methods.dgm": ["DGM"],
    "engram.methods.registry": ["METHODS", "build", "configure"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "DGM",
    "METHODS",
    "ClassStream",
    "Config",
    "ConfigError",
    "DataError",
    "Dataset",
    "DivergedError",
    "EngramError",
    "Evaluation",
    "Learner",
    "Method",
    "Request",
    "RunError",
    "Silent",
    "StrictnessError",
    "Surroundings",
    "Task",
    "build",
    "configure",
    "evaluate",
    "load",
    "run",
]


def __getattr__(name: str) -> object:
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'engram' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
