"""All methods by name. To add one: write its file, import it here, add its line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from engram.config import Config, compose
from engram.data.datasets import Dataset
from engram.errors import unknown
from engram.methods.bounds import FINETUNE, JOINT
from engram.methods.dgm import DGMA, DGMW
from engram.methods.dgr import DGR_METHOD
from engram.methods.ewc import EWC, EWC_S
from engram.methods.ewcm import EWC_M
from engram.methods.icarl import ICARL
from engram.methods.learner import Learner, Method, Surroundings
from engram.methods.mergan import MERGAN, MERGAN_RA
from engram.methods.rwalk import RWALK, RWALK_S
from engram.methods.si import SI, SI_S
from engram.presets import preset_settings

METHODS: dict[str, Method] = {
    "joint": JOINT,
    "finetune": FINETUNE,
    "dgmw": DGMW,
    "dgma": DGMA,
    "icarl": ICARL,
    "ewc-s": EWC_S,
    "si-s": SI_S,
    "rwalk-s": RWALK_S,
    "ewc": EWC,
    "si": SI,
    "rwalk": RWALK,
    "dgr": DGR_METHOD,
    "mergan": MERGAN,
    "mergan-ra": MERGAN_RA,
    "ewcm": EWC_M,
}


def find_method(name: str) -> Method:
    """The method, or an error that lists the known ones."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def build(
    name: str,
    dataset: Dataset,
    *,
    seed: int = 0,
    device: str = "cpu",
    settings: Mapping[str, Any] | None = None,
) -> Learner:
    """A learner for a data set, with the data set's preset and `group.field` settings: methods as a library."""
    config = configure(dataset=dataset.name, method=name, seed=seed, settings=settings)
    return find_method(name).build(surroundings(config, dataset.channels, torch.device(device)))


def surroundings(config: Config, channels: int, device: torch.device) -> Surroundings:
    """What a configuration tells a learner."""
    training, own, precision = config.training, config.method_settings, config.runtime.precision
    return Surroundings(channels, training, own, config.seed, device, precision)


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
