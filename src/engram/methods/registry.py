"""All methods by name. To add one: write its file, import it here, add its line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engram.config import Config, compose, preset_settings
from engram.errors import unknown
from engram.methods.bounds import FINETUNE, JOINT
from engram.methods.dgm import DGMA, DGMW
from engram.methods.learner import Method

METHODS: dict[str, Method] = {
    "joint": JOINT,
    "finetune": FINETUNE,
    "dgmw": DGMW,
    "dgma": DGMA,
}


def find_method(name: str) -> Method:
    """The method, or an error that lists the known ones."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def configure(
    *,
    dataset: str = "digits",
    method: str = "dgmw",
    preset: str = "auto",
    seed: int = 0,
    order_seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Config:
    """A complete configuration: the method's defaults, then the preset, then the user's settings."""
    base = Config(
        dataset=dataset,
        method=method,
        preset=preset,
        seed=seed,
        order_seed=order_seed,
        method_settings=find_method(method).settings(),
    )
    return compose(compose(base, preset_settings(preset, dataset, method)), settings or {})
