"""Facts about methods, data sets, presets and settings, as plain values: what `engram list` shows and `--json` prints.

Everything is read off the registries, so it cannot differ from what runs. Imported where it is used: it needs torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from engram.config import Config, Group, groups_of, help_of
from engram.data.datasets import DATASETS
from engram.errors import ConfigError, unknown
from engram.methods.learner import MethodEntry
from engram.methods.registry import METHODS, configure, find_method
from engram.presets import DEFAULT, PRESETS, load_preset

Facts = dict[str, Any]

OWN_DATA = {
    "folder:PATH": "your own images: train/CLASS/*.png|jpg|webp|bmp, and test/CLASS/… or a share held out",
    "npz:PATH": "your own arrays: images (N, H, W[, C]) uint8 or features (N, D), labels (N,), and test_... of both",
}
DEFAULT_WORDS = "each method's own defaults: for data that nobody has tuned for"
SHARED = ("stream", "runtime")
"""Groups that are no part of a preset's section for a method."""


def defaults(method: str) -> Config:
    """A method's configuration without any preset."""
    return configure(method=method, preset=DEFAULT)


# ---------------------------------------------------------------- methods


def methods(names: Sequence[str]) -> list[Facts]:
    """All about these methods, or about every one."""
    return [_method(name, find_method(name)) for name in names or METHODS]


def _method(name: str, entry: MethodEntry) -> Facts:
    return {
        "name": name,
        "summary": entry.summary,
        "source": entry.source,
        "strict": entry.strict,
        "bound": entry.bound,
        "stores": entry.stores,
        "draws": entry.draws,
        "groups": {group: _group(settings) for group, settings in groups_of(defaults(name)).items()},
    }


def _group(group: Group) -> Facts:
    return {
        "about": type(group).__doc__ or "",
        "settings": [dataclasses.asdict(line) for line in help_of(group)],
    }


# ---------------------------------------------------------------- data sets


def datasets(names: Sequence[str]) -> list[Facts]:
    """What is known of these data sets, or of every one, before their files are read."""
    return [_dataset(name) for name in names or DATASETS]


def _dataset(name: str) -> Facts:
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    spec = DATASETS[name]
    return {
        "name": name,
        "description": spec.description,
        "classes": spec.classes,
        "class_names": list(spec.class_names),
        "channels": spec.channels,
        "training_images": spec.counts[0],
        "test_images": spec.counts[1],
        "presets": [preset for preset in PRESETS if preset == name or preset.startswith(f"{name}-")],
    }


# ---------------------------------------------------------------- presets


def presets() -> list[Facts]:
    """What every preset comes to."""
    return [preset(name) for name in preset_names()]


def preset_names() -> list[str]:
    return [DEFAULT, *PRESETS]


def preset(name: str, only: Sequence[str] = ()) -> Facts:
    """What a preset comes to, for all of its methods or for some."""
    if name == "auto":
        raise ConfigError(f"auto is the preset with the data set's name; name one: {', '.join(preset_names())}")
    for method in only:
        find_method(method)
    own = None if name == DEFAULT else load_preset(name)
    has = METHODS if own is None else own.methods
    if missing := [method for method in only if method not in has]:
        raise ConfigError(f"preset {name} has no section [{missing[0]}]; it has {', '.join(has)}")
    return {
        "name": name,
        "description": DEFAULT_WORDS if own is None else own.description,
        "stream": {} if own is None else dict(own.stream),
        "methods": {method: sections(configure(method=method, preset=name)) for method in only or has},
    }


def sections(config: Config) -> dict[str, Facts]:
    """Group -> field -> value, of all that a preset sets for a method."""
    return {name: dict(vars(group)) for name, group in groups_of(config).items() if name not in SHARED}


def changes(method: str, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`group.field` -> value, where it is not the method's own default, nor what its default "auto" stands for."""
    from engram.nets.architectures import DEFAULTS

    usual = sections(defaults(method))

    def same(group: str, value: Any, default: Any) -> bool:
        return value == default or (default == "auto" and value in DEFAULTS.get(group, ()))

    return {
        f"{group}.{name}": value
        for group, values in found.items()
        for name, value in values.items()
        if not same(group, value, usual[group][name])
    }


# ---------------------------------------------------------------- settings


def settings(names: Sequence[str] = ()) -> list[Facts]:
    """Settings by name, group or last word; all without names.

    One that means or allows other things for other methods comes twice.
    """
    known = _settings()
    return [fact for name in names for fact in _called(name, known)] if names else known


def _called(name: str, known: Sequence[Facts]) -> list[Facts]:
    """The settings that somebody means."""
    last_word = f".{name}"
    found = [fact for fact in known if name in (fact["name"], fact["group"])]
    found = found or [fact for fact in known if fact["name"].endswith(last_word)]
    if not found:
        own = [fact["name"] for fact in known if fact["group"] == name.partition(".")[0]]
        raise unknown("group or setting", name, dict.fromkeys(own or [fact["group"] for fact in known]))
    return found


def _settings() -> list[Facts]:
    by_group: dict[str, dict[tuple[str, str, str], Facts]] = {}
    for method in METHODS:
        for name, group in groups_of(defaults(method)).items():
            for line in help_of(group):
                about = by_group.setdefault(name, {}).setdefault(
                    (line.name, line.range, line.help),
                    {"name": line.name, "group": name, "range": line.range, "help": line.help, "defaults": {}},
                )
                about["defaults"][method] = line.default
    by_group["runtime"] = by_group.pop("runtime")  # told last
    return [fact for facts in by_group.values() for fact in sorted(facts.values(), key=_place(facts))]


def _place(facts: Mapping[tuple[str, str, str], Facts]) -> Any:
    """Lines about one setting stand together, where the first of them stood."""
    order = list(dict.fromkeys(name for name, _, _ in facts))
    return lambda fact: order.index(fact["name"])


# ---------------------------------------------------------------- names


def names() -> dict[str, list[str]]:
    """Topic -> what it has, groups for settings."""
    return {
        "methods": list(METHODS),
        "datasets": list(DATASETS),
        "presets": preset_names(),
        "settings": list(dict.fromkeys(fact["group"] for fact in _settings())),
    }
