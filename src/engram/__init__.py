"""Engram: class-incremental learning under the strict protocol, with exact retention.

    from engram import Model

The names below are the public ones. They are imported when first used, so that `import engram` does not wait for torch.
"""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from engram.config import Config
    from engram.context import Context
    from engram.data.backbone import Backbone
    from engram.data.datasets import Dataset, load_dataset
    from engram.data.stream import ClassStream, Task
    from engram.errors import (
        ConfigError,
        DataError,
        DivergedError,
        EngramError,
        InUseError,
        LostError,
        RunError,
        StrictnessError,
    )
    from engram.evaluation.evaluate import Evaluation, evaluate
    from engram.experiment.run import run
    from engram.methods.dgm.learner import DGM
    from engram.methods.learner import Learner, Method, Observer, Retains, Samples
    from engram.methods.registry import METHODS, build, configure
    from engram.model.model import Model

_HOMES = {
    "engram.config": ["Config"],
    "engram.context": ["Context"],
    "engram.data.backbone": ["Backbone"],
    "engram.data.datasets": ["Dataset", "load_dataset"],
    "engram.data.stream": ["ClassStream", "Task"],
    "engram.errors": [
        "ConfigError",
        "DataError",
        "DivergedError",
        "EngramError",
        "InUseError",
        "LostError",
        "RunError",
        "StrictnessError",
    ],
    "engram.evaluation.evaluate": ["Evaluation", "evaluate"],
    "engram.experiment.run": ["run"],
    "engram.methods.dgm.learner": ["DGM"],
    "engram.methods.learner": ["Learner", "Method", "Observer", "Retains", "Samples"],
    "engram.methods.registry": ["METHODS", "build", "configure"],
    "engram.model.model": ["Model"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__version__ = "0.3.0"
__all__ = [
    "DGM",
    "METHODS",
    "Backbone",
    "ClassStream",
    "Config",
    "ConfigError",
    "Context",
    "DataError",
    "Dataset",
    "DivergedError",
    "EngramError",
    "Evaluation",
    "InUseError",
    "Learner",
    "LostError",
    "Method",
    "Model",
    "Observer",
    "Retains",
    "RunError",
    "Samples",
    "StrictnessError",
    "Task",
    "build",
    "configure",
    "evaluate",
    "load_dataset",
    "run",
]


def __getattr__(name: str) -> object:
    if name in _HOME_OF:
        return getattr(_importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'engram' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
