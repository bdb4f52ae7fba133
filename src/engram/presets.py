"""The presets: what suits a data set, by method. What led to the values stands in LOG.md. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engram.config import Config
from engram.errors import unknown

Settings = Mapping[str, Any]

# Preset -> method (or "*" for all) -> `group.field` -> value. `auto` takes the preset with the data set's name,
# or `default` where there is none.
_REPLAY: Settings = {"training.augment": "strong", "training.label_smoothing": 0.05, "training.epochs": 5}
"""For a solver that learns from generated images: a class must not be told by the tone of its generator."""

_SHAPES: Settings = {**_REPLAY, "method.rare": 4.0}
"""Grey images of single things: what is rare is another way to write or to cut, and has to be known."""

_SHAPES_FAST: Settings = {**_SHAPES, "method.beta1": 0.0, "method.penalty_every": 2, "method.most_units": 2.0}
"""No momentum: better drawings in as many steps. Half the lines of the penalty, and no more units a task than twice as
many as the first one found: no worse, and a step costs less, at every task."""

_SHAPES_TOLD: Settings = {**_SHAPES, "method.replay": 6400}
"""For one generator of all classes that is told which to draw: it needs the time more than the solver does."""

_RETRAINED: Settings = {"method.new_share": 0.5}
"""For a generator that is retrained on its own drawings: half of what its critic sees is new."""

_SVHN: Settings = {
    **_REPLAY,
    "training.augment": "colour",
    "training.epochs": 8,
    "method.width": 16,
    "method.epochs": 100,
}
"""Colour, clutter, few images: more steps, more units."""

_DIGITS: Settings = {
    **_REPLAY,
    "training.epochs": 3,
    "training.batch_size": 32,
    "method.width": 10,
    "method.noise": 32,
    "method.batch_size": 32,
    "method.critic_width": 16,
    "method.epochs": 8,
    "method.masking": 0.5,
    "method.penalty_every": 2,
    "method.steps": 25,
    "method.statistics": 10,
    "method.replay": 1280,
}
"""144 images a class: a demonstration of two minutes."""

_DIGITS_RIVAL: Settings = {
    **_REPLAY,
    "training.epochs": 3,
    "training.batch_size": 32,
    "method.width": 20,
    "method.noise": 32,
    "method.critic_width": 16,
    "method.epochs": 8,
    "method.steps": 25,
    "method.statistics": 10,
    "method.replay": 1280,
}
"""As long as DGM's demonstration."""

_SVHN_RIVAL: Settings = {**_REPLAY, "training.augment": "colour", "method.epochs": 15, "method.replay": 6400}
"""As many steps as on MNIST: half as long as DGM's own run, or less."""

_PHOTOS: Settings = {"stream.classes_per_task": 10, "training.augment": "photo", "training.epochs": 8}

_PHOTOS_DRAWN: Settings = {
    "training.epochs": 6,
    "method.batch_size": 32,
    "method.epochs": 30,
    "method.steps": 4,
    "method.replay": 7500,
    "method.real_now": 0.5,
    "method.distil": 2.0,
}
"""Ten classes a task in about two minutes: the digits' networks, a few hundred steps. Such drawings have the colours of
their class and little else, so the solver learns the new classes from real images and repeats itself on the old."""

_PHOTOS_DGM: Settings = {**_PHOTOS_DRAWN, "method.width": 16, "method.lambda_ru": 0.05}

_PHOTOS_RESIDUAL: Settings = {
    **_PHOTOS_DRAWN,
    "method.network": "residual",
    "method.batch_size": 16,
    "method.steps": 5,
}
"""The paper's kind of networks, narrow: 1,500 steps a task of ten classes."""

_PHOTOS_RESIDUAL_DGM: Settings = {**_PHOTOS_RESIDUAL, "method.width": 20, "method.lambda_ru": 0.05}

_CIFAR_SMALL: Settings = {
    "training.augment": "texture",
    "training.label_smoothing": 0.05,
    "training.epochs": 5,
    "method.replay": 9600,
    "method.beta1": 0.0,
}
"""The digits' networks. Generated photographs are told apart by texture first, real ones should not be. Without
momentum, drawings of 1,500 steps are nearer to the images than those of 4,000 with it (LOG.md)."""

_CIFAR_SMALL_DGM: Settings = {
    **_CIFAR_SMALL,
    "method.width": 16,
    "method.epochs": 80,
    "method.lambda_ru": 0.05,
    "method.critic_start": "warm",
    "method.average": 0.998,
}
"""4,000 steps a class, about three minutes on one core."""

_CIFAR_SMALL_RIVAL: Settings = {**_CIFAR_SMALL, "method.epochs": 30}
"""1,500 steps of twice the images through wider networks: as long as DGM's."""

_RESNET: Settings = {
    "training.network": "resnet18",
    "training.width": 64,
    "training.augment": "photo",
    "training.epochs": 10,
}
"""The paper's solver for photographs, the same for all methods. Meant for a GPU, like all that has it."""

_CIFAR: Settings = {
    "method.network": "residual",
    "method.width": 128,
    "method.noise": 128,
    "method.critic_width": 128,
    "method.batch_size": 64,
    "method.learning_rate": 2e-4,
    "method.epochs": 101,
    "method.steps": 78,
    "method.replay": 50_000,
}
"""The paper's sizes: generator and critic of WGAN-GP, 101 passes over 5,000 images a class; as many drawings for the
solver as the set has images. The authors published no settings for CIFAR-10: the rate is theirs for ImageNet-50."""

_IMAGENET: Settings = {
    **_CIFAR,
    "method.width": 64,
    "method.critic": "resnet18",
    "method.critic_width": 64,
    "method.critic_start": "warm",
    "method.batch_size": 70,
    "method.lambda_gp": 0.6,
    "method.steps": 19,
    "method.replay": 65_000,
}
"""The same with 1,300 images a class, and a ResNet-18 as critic that goes on from task to task."""

_CIFAR_DGM: Settings = {**_CIFAR, "method.lambda_ru": 1e-3}
_IMAGENET_DGM: Settings = {**_IMAGENET, "method.lambda_ru": 1e-3}
"""The authors' for ImageNet-50. Their s_max there, 1e4, is DGMw's own; for DGMa none is known."""

_ONCE: Settings = {"training.epochs": 1}

_STORED: Settings = {"training.augment": "affine", "training.epochs": 5}
"""For a solver that sees ten stored images of every old class again and again."""

_SVHN_STORED: Settings = {"training.augment": "colour", "training.epochs": 20}

_DGM = ("dgmw", "dgma")
_RIVALS = ("dgr", "mergan", "mergan-ra", "ewcm")
_WITH_IMAGES = ("ewc-s", "si-s", "rwalk-s")
_WITHOUT = ("ewc", "si", "rwalk")

PRESETS: dict[str, dict[str, Settings]] = {
    "default": dict.fromkeys((*_DGM, *_RIVALS), _REPLAY),
    "digits": {
        "*": {"training.epochs": 12, "training.batch_size": 32},
        **dict.fromkeys(_DGM, _DIGITS),
        **dict.fromkeys(_RIVALS, _DIGITS_RIVAL),
    },
    "mnist": {
        "joint": {"training.augment": "affine", "training.label_smoothing": 0.05},
        "finetune": _ONCE,
        "icarl": {**_STORED, "method.K": 100},
        **dict.fromkeys(_WITH_IMAGES, _STORED),
        **dict.fromkeys(_WITHOUT, _ONCE),
        **dict.fromkeys(_DGM, _SHAPES_FAST),
        "dgr": _SHAPES,
        "mergan": {**_SHAPES_TOLD, **_RETRAINED, "method.epochs": 22},
        **dict.fromkeys(("mergan-ra", "ewcm"), _SHAPES_TOLD),
    },
    "fashion-mnist": {
        "joint": {"training.augment": "photo"},
        "finetune": _ONCE,
        "icarl": {**_STORED, "method.K": 100},
        **dict.fromkeys(_WITH_IMAGES, _STORED),
        **dict.fromkeys(_WITHOUT, _ONCE),
        **dict.fromkeys((*_DGM, "dgr"), _SHAPES),
        "mergan": {**_SHAPES_TOLD, **_RETRAINED, "method.epochs": 22},
        **dict.fromkeys(("mergan-ra", "ewcm"), _SHAPES_TOLD),
    },
    "svhn": {
        "joint": {"training.augment": "affine", "training.epochs": 20},
        "dgmw": {**_SVHN, "method.lambda_ru": 0.05},
        "dgma": {**_SVHN, "method.lambda_ru": 0.1},
        "icarl": {**_SVHN_STORED, "method.K": 100},
        **dict.fromkeys(_WITH_IMAGES, _SVHN_STORED),
        **dict.fromkeys(_RIVALS, _SVHN_RIVAL),
        "mergan": {**_SVHN_RIVAL, **_RETRAINED},
    },
    "cifar10": {
        "*": _RESNET,
        **dict.fromkeys(("finetune", *_WITHOUT), _ONCE),
        **dict.fromkeys(_DGM, _CIFAR_DGM),
        **dict.fromkeys(_RIVALS, _CIFAR),
        "mergan": {**_CIFAR, **_RETRAINED},
    },
    "imagenet50": {
        "*": {**_RESNET, "stream.classes_per_task": 10},
        **dict.fromkeys(_DGM, _IMAGENET_DGM),
        **dict.fromkeys(_RIVALS, _IMAGENET),
        "mergan": {**_IMAGENET, **_RETRAINED},
    },
    "cifar10-small": {
        "joint": {"training.augment": "photo", "training.epochs": 5},
        "finetune": _ONCE,
        **dict.fromkeys(_DGM, _CIFAR_SMALL_DGM),
        **dict.fromkeys(_RIVALS, _CIFAR_SMALL_RIVAL),
        "mergan": {**_CIFAR_SMALL_RIVAL, **_RETRAINED, "method.lambda_aux": 0.3},
    },
    "imagenet50-quick": {
        "*": _PHOTOS,
        **dict.fromkeys(_DGM, _PHOTOS_DGM),
        **dict.fromkeys(("mergan", "mergan-ra", "ewcm"), _PHOTOS_DRAWN),
    },
    "imagenet50-small": {
        "*": _PHOTOS,
        **dict.fromkeys(_DGM, _PHOTOS_RESIDUAL_DGM),
        **dict.fromkeys(("mergan", "mergan-ra", "ewcm"), _PHOTOS_RESIDUAL),
    },
    "quick": {"*": {"training.epochs": 1}},
}


def preset_settings(preset: str, dataset: str, method: str) -> dict[str, Any]:
    """The `group.field` values that a preset gives a method on a data set."""
    by_method = PRESETS[_preset_name(preset, dataset)]
    return {**by_method.get("*", {}), **by_method.get(method, {})}


def _preset_name(preset: str, dataset: str) -> str:
    if preset == "auto":
        return dataset if dataset in PRESETS else "default"
    if preset not in PRESETS:
        raise unknown("preset", preset, ["auto", *PRESETS])
    return preset


def lighter_presets(config: Config) -> list[str]:
    """Smaller forms of a configuration's preset: its name and more.

    >>> lighter_presets(Config(dataset="cifar10")), lighter_presets(Config(dataset="mnist"))
    (['cifar10-small'], [])
    """
    chosen = _preset_name(config.preset, config.dataset)
    return [name for name in PRESETS if name.startswith(f"{chosen}-")]
