"""The presets: one TOML file a data set, one section a method, complete and without inheritance. No torch.

    [dgmw]
    classifier = { architecture = "convnet", width = 32, … }
    gan        = { epochs = 40, steps = 50, … }

`auto` takes the file with the data set's name, and `embeddings` for vectors; where there is none, a method's own
defaults, which are the best known settings for data that nobody has tuned for. `[stream]`, if any, holds for all
methods of the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from engram.config import Config
from engram.errors import ConfigError, unknown
from engram.opening import read_regular, why

PRESETS = (
    "digits",
    "mnist",
    "fashion-mnist",
    "svhn",
    "cifar10",
    "cifar10-small",
    "imagenet50",
    "imagenet50-quick",
    "imagenet50-small",
    "embeddings",
    "fast",
    "paper-mnist",
    "paper-svhn",
)
"""The files beside this one."""
LARGEST = 1_000_000
"""Bytes of such a file."""
PAPER = "paper"
"""The paper's algorithm with the authors' settings: the file of the data set at hand."""
VECTORS = "embeddings"
"""What `auto` stands for where the data are vectors."""
DEFAULT = "default"
"""The methods' own defaults, under which name they can be asked for."""


@dataclass(frozen=True)
class Preset:
    """A file of settings."""

    name: str
    description: str
    tuned_on: str
    """By which images its values were chosen; empty: by none."""
    stream: Mapping[str, Any]
    methods: Mapping[str, Mapping[str, Mapping[str, Any]]]
    """Method -> group -> field -> value."""

    def settings(self, method: str) -> dict[str, Any]:
        """`group.field` -> value, for a method."""
        if method not in self.methods:
            raise ConfigError(f"{self.name} has no section [{method}]; it has {', '.join(self.methods)}")
        groups = {"stream": self.stream, **self.methods[method]}
        return {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}


@cache
def load_preset(name: str) -> Preset:
    """A preset of ours by name."""
    if name not in PRESETS:
        raise unknown("preset", name, ["auto", DEFAULT, PAPER, *PRESETS])
    return read_preset(Path(__file__).with_name(f"{name}.toml"), name)


def read_preset(path: Path, name: str) -> Preset:
    """A file of this form; whether its settings exist is found when they are used."""
    try:
        tables = tomllib.loads(read_regular(path, LARGEST).decode())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}; check the path") from None
    except (ValueError, RecursionError) as error:  # of a number with thousands of digits too
        raise ConfigError(f"{path} is not TOML: {why(error)}") from None
    description, stream = tables.pop("description", ""), tables.pop("stream", {})
    chosen_on = str(tables.pop("tuned_on", ""))
    for method, groups in {"stream": {"stream": stream}, **tables}.items():
        if not isinstance(groups, dict) or not all(isinstance(values, dict) for values in groups.values()):
            raise ConfigError(f"{path}: [{method}] must hold groups such as classifier = {{ epochs = 3 }}")
    return Preset(name, str(description), chosen_on, stream, tables)


def preset_name(preset: str, dataset: str) -> str:
    """What `auto` and `paper` stand for.

    >>> preset_name("auto", "mnist"), preset_name("auto", "folder:photos"), preset_name("paper", "svhn")
    ('mnist', 'default', 'paper-svhn')
    """
    if preset == PAPER:
        if f"{PAPER}-{dataset}" not in PRESETS:
            known = " and ".join(name.removeprefix(f"{PAPER}-") for name in PRESETS if name.startswith(PAPER))
            raise ConfigError(f"preset {PAPER!r}: the paper's own settings are there for {known}, not for {dataset}")
        return f"{PAPER}-{dataset}"
    if preset != "auto":
        return preset
    return dataset if dataset in PRESETS else DEFAULT


def preset_for_vectors(method: str) -> str:
    """What `auto` stands for where the data are vectors; itself for a method that nobody has tuned for them.

    >>> preset_for_vectors("dgmw"), preset_for_vectors("of my own")
    ('embeddings', 'auto')
    """
    return VECTORS if method in load_preset(VECTORS).methods else "auto"


def tuned_on(config: Config) -> str:
    """By which images a configuration's values were chosen, its own word before its preset's; empty: nobody said."""
    if config.stream.tuned_on:
        return config.stream.tuned_on
    chosen = preset_name(config.preset, config.dataset)
    return "" if chosen not in PRESETS else load_preset(chosen).tuned_on


def preset_settings(preset: str, dataset: str, method: str) -> dict[str, Any]:
    """The `group.field` values that a preset gives a method on a data set."""
    chosen = preset_name(preset, dataset)
    if chosen == DEFAULT:
        return {}
    found = load_preset(chosen)
    if preset == "auto" and method not in found.methods:  # a method that nobody has tuned for this data set
        return {f"stream.{name}": value for name, value in found.stream.items()}
    return found.settings(method)


def lighter_presets(config: Config) -> list[str]:
    """Smaller forms of a configuration's preset: its name and more.

    >>> lighter_presets(Config(dataset="cifar10")), lighter_presets(Config(dataset="mnist"))
    (['cifar10-small'], [])
    """
    chosen = preset_name(config.preset, config.dataset)
    return [name for name in PRESETS if name.startswith(f"{chosen}-")]
