"""All methods by name. To add one: write its file, import it here, add its line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from engram.config import Config, compose
from engram.data.datasets import Dataset, holds_vectors
from engram.errors import unknown
from engram.kinds import is_vector
from engram.methods.bounds import FINETUNE, JOINT
from engram.methods.closed_form.fecam import FECAM
from engram.methods.closed_form.ncm import NCM
from engram.methods.closed_form.ridge import RIDGE
from engram.methods.closed_form.slda import SLDA
from engram.methods.dgm.learner import DGMA, DGMW
from engram.methods.icarl import ICARL
from engram.methods.learner import Learner, MethodEntry
from engram.methods.lwf import LWF
from engram.methods.regularised.ewc import EWC, EWC_S
from engram.methods.regularised.rwalk import RWALK, RWALK_S
from engram.methods.regularised.si import SI, SI_S
from engram.methods.replay.dgr import DGR_METHOD
from engram.methods.replay.ewcm import EWC_M
from engram.methods.replay.mergan import MERGAN, MERGAN_RA
from engram.presets import preset_for_vectors, preset_settings

METHODS: dict[str, MethodEntry] = {
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
    "ncm": NCM,
    "slda": SLDA,
    "ridge": RIDGE,
    "fecam": FECAM,
    "lwf": LWF,
}
"""All methods by name, with what each stores of past tasks.

>>> from engram import METHODS
>>> METHODS["dgmw"].strict, METHODS["icarl"].strict
(True, False)
"""


def find_method(name: str) -> MethodEntry:
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
    """A learner for a data set, with the data set's preset and `group.field` settings: methods as a library.

    >>> from engram import build, load_dataset
    >>> learner = build("finetune", load_dataset("digits"), settings={"classifier.width": 8})
    >>> "net" in learner.state()
    True
    """
    vectors = is_vector(dataset.shape)
    config = configure(dataset=dataset.name, method=name, seed=seed, settings=settings, vectors=vectors)
    return find_method(name).learner(config, dataset.shape, torch.device(device))


def configure(
    *,
    dataset: str = "digits",
    method: str = "dgmw",
    preset: str = "auto",
    seed: int = 0,
    order_seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    vectors: bool | None = None,
) -> Config:
    """A complete configuration: the method's defaults, then the preset, then the user's settings.

    `vectors`: whether the data are vectors, for which `auto` is another preset; None: by the data set's name.

    >>> from engram import configure
    >>> configure(method="dgmw", preset="fast", settings={"gan.epochs": 5}).settings.gan.epochs
    5
    """
    chosen = find_method(method)
    if preset == "auto" and (holds_vectors(dataset) if vectors is None else vectors):
        preset = preset_for_vectors(method)
    base = Config(
        dataset=dataset,
        method=method,
        preset=preset,
        classifier=chosen.classifier,
        settings=chosen.settings,
    )
    base = compose(base, {"seed": seed, "order_seed": order_seed})  # checked as all settings are
    return compose(compose(base, preset_settings(preset, dataset, method)), settings or {})
