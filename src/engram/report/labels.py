"""Configurations of one method -> short labels that say in words how each differs from the main one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Settings = Mapping[str, str]
"""`group.field` -> value."""

VALIDATION = "stream.validation"
"""Share of the training images that a run held out, to calibrate by. A label says it wherever it is not 0."""
WORDS = {"gan.beta1": "momentum", "runtime.precision": "precision", VALIDATION: "held out"}
"""Settings with a better name than their field's."""
GROUPS = {"gan": "GAN"}
STORED = {"exemplars.budget": "K={}", "exemplars.per_class": "{} per class", "exemplars.ratio": "r={}"}
"""Settings that say how many real images are stored, in the paper's letters."""
SYMBOLS = ("lambda_", "s_")
"""Fields that are the paper's symbols begin with these."""
LONGEST = 40
"""Characters of a list of settings that is shown in full."""
SHOWN = 2
"""Settings that are shown of a longer list."""


@dataclass(frozen=True)
class Label:
    short: str
    """Fits into a legend; empty where nothing differs."""
    full: str


def labels(configurations: Sequence[Settings | None], main: int) -> list[Label]:
    """One label per configuration, no two alike. `main` is the place of the one that the others are compared with.

    >>> first = {"gan.beta1": "0", "masks.s_max": "200"}
    >>> [label.short for label in labels([first, {**first, "gan.beta1": "0.5"}], 0)]
    ['', 'momentum 0.5']
    """
    known = [settings for settings in configurations if settings is not None]
    base = {**(configurations[main] or next(iter(known), {})), VALIDATION: "0"}
    keys = list(dict.fromkeys(key for settings in known for key in settings))
    several = len(set(map(stored, known))) > 1
    lists = [_differences(settings, base, keys, several) for settings in configurations]
    short = _numbered(_shortened(lists))
    return [Label(text, ", ".join(parts)) for text, parts in zip(short, lists, strict=True)]


def stored(settings: Settings) -> str:
    """
    >>> stored({"exemplars.ratio": "0", "exemplars.budget": "1000"}), stored({"exemplars.ratio": "0"})
    ('K=1000', '')
    """
    return ", ".join(text.format(settings[key]) for key, text in STORED.items() if settings.get(key, "0") != "0")


def _differences(settings: Settings | None, base: Settings, keys: Sequence[str], several: bool) -> list[str]:
    """What is stored comes first, then the stream and the architectures.

    `several`: the configurations differ in what they store, so each one says it.
    """
    if settings is None:
        return ["settings not known"]
    found = []
    if several and (stored(settings) or stored(base)):
        found.append(stored(settings) or "no stored images")
    rest = [key for key in keys if key not in STORED and settings.get(key) != base.get(key)]
    rest.sort(key=lambda key: (not key.startswith("stream."), not key.endswith(".architecture")))
    return found + [_words(key, settings.get(key), keys) for key in rest]


def _words(key: str, value: str | None, keys: Sequence[str]) -> str:
    """
    >>> keys = ["gan.epochs", "masks.s_max", "gan.learning_rate", "classifier.learning_rate", "stream.first_task"]
    >>> _words(keys[0], "40", keys), _words(keys[1], "200", keys), _words(keys[2], "0.1", keys)
    ('GAN epochs 40', 's_max 200', 'GAN learning rate 0.1')
    >>> _words(keys[4], "none", keys), _words("generator.architecture", "residual", keys)
    ('no first task', 'residual generator')
    """
    group, _, field = key.partition(".")
    if field == "architecture" and value is not None:
        return f"{value} {group}"
    name = WORDS.get(key) or _name(key, keys)
    return f"no {name}" if value in (None, "none") else f"{name} {value}"


def _name(key: str, keys: Sequence[str]) -> str:
    """The field; its group too where the field says little by itself: one word, or a field of several groups."""
    group, _, field = key.partition(".")
    alone = sum(other.partition(".")[2] == field for other in keys) <= 1
    name = field if field.startswith(SYMBOLS) else field.replace("_", " ")
    return name if alone and "_" in field else f"{GROUPS.get(group, group)} {name}"


def _shortened(lists: Sequence[list[str]]) -> list[str]:
    """The first settings of long lists; as many more as two that begin alike need to be told apart."""
    counts = [len(parts) if len(", ".join(parts)) <= LONGEST else SHOWN for parts in lists]
    while True:
        texts = [_first(parts, count) for parts, count in zip(lists, counts, strict=True)]
        longer = [
            count + (texts.count(text) > 1 and count < len(parts))
            for parts, count, text in zip(lists, counts, texts, strict=True)
        ]
        if longer == counts:
            return texts
        counts = longer


def _first(parts: Sequence[str], count: int) -> str:
    return ", ".join([*parts[:count], *["…"] * (count < len(parts))])


def _numbered(texts: Sequence[str]) -> list[str]:
    """
    >>> _numbered(["", "a", "a"])
    ['', 'a', 'a (2)']
    """
    before = [texts[:i].count(text) + 1 for i, text in enumerate(texts)]
    return [f"{text} ({n})".strip() if n > 1 else text for text, n in zip(texts, before, strict=True)]
