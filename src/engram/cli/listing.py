"""The command that lists what there is: names on one screen, and the rest where it is asked for."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from engram.errors import ConfigError, unknown

if TYPE_CHECKING:
    from engram.cli.catalogue import Facts

WIDEST = 100
"""Columns, also where there is no terminal."""

MORE = [
    ("engram list methods [NAME …]", "what each learns, stores and can draw; with a name, all its settings"),
    ("engram list datasets [NAME …]", "classes and sizes; `engram data list` says which are here"),
    ("engram list presets [NAME [METHOD …]]", "what a preset changes; with a method, the whole section as TOML"),
    ("engram list settings [NAME …]", "meaning, range and default; of all, of a group, of one"),
]


def do_list(chosen: argparse.Namespace) -> int:
    words: list[str] = chosen.what
    if words and words[0] not in TOPICS:
        words = ["methods", *_method_names(words)]
    facts, lines = TOPICS[words[0]](words[1:]) if words else _overview()
    if chosen.json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
        return 0
    for line in lines(facts):
        print(line.rstrip())
    return 0


Lines = Callable[[Any], Iterator[str]]
"""Facts -> lines of text."""


def _method_names(words: Sequence[str]) -> Sequence[str]:
    """The words, where the first one is a method's name; else where else there is something of that name."""
    from engram.cli import catalogue

    word, names = words[0], catalogue.names()
    if word in names["methods"]:
        return words
    names["settings"] += [fact["name"] for fact in catalogue.settings()]
    if found := [f"`engram list {topic} {word}`" for topic in names if word in names[topic]]:
        raise ConfigError(f"{word!r} is not a method; see {' and '.join(found)}")
    raise unknown("topic or method", word, [*TOPICS, *names["methods"]])


# ---------------------------------------------------------------- text


def width() -> int:
    """Columns to fill."""
    return min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns) if sys.stdout.isatty() else WIDEST


def wrapped(head: str, text: str, room: int) -> Iterator[str]:
    """The text behind its head, and below itself where it is long."""
    lines = textwrap.wrap(text, max(room - len(head), 24), break_on_hyphens=False, break_long_words=False)
    yield head + (lines[0] if lines else "")
    for line in lines[1:]:
        yield " " * len(head) + line


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Aligned; the last column is wrapped.

    >>> list(columns([("name", "what"), ("dgmw", "masks over weights"), ("si", "path")]))
    ['name  what', 'dgmw  masks over weights', 'si    path']
    """
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    for row in rows:
        head = "".join(f"{cell:<{size}}  " for cell, size in zip(row, widths, strict=False))
        yield from wrapped(head, row[-1], width())


def typed(value: Any) -> str:
    """A value as one would type it.

    >>> typed(None), typed(("a", "b")), typed(1e4), typed("auto")
    ('none', 'a,b', '10000.0', 'auto')
    """
    if value is None:
        return "none"
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def word(truth: bool) -> str:
    return "yes" if truth else "no"


# ---------------------------------------------------------------- overview


def _overview() -> tuple[Facts, Lines]:
    from engram.cli import catalogue

    return catalogue.names(), _overview_lines


def _overview_lines(facts: Facts) -> Iterator[str]:
    from engram.cli.catalogue import OWN_DATA

    called = {"methods": "methods", "datasets": "data sets", "presets": "presets", "settings": "groups of settings"}
    rows = []
    for topic, what in called.items():
        own = [f"and your own: {', '.join(OWN_DATA)}"] if topic == "datasets" else []
        rows.append((f"{len(facts[topic])} {what}", ", ".join([*facts[topic], *own])))
    yield from columns(rows)
    yield ""
    yield from columns(MORE)


# ---------------------------------------------------------------- methods


def _methods(names: list[str]) -> tuple[list[Facts], Lines]:
    from engram.cli import catalogue

    return catalogue.methods(names), _method_details if names else _method_table


def _method_table(facts: list[Facts]) -> Iterator[str]:
    rows = [("name", "strict", "draws", "what it is · what it stores · source")]
    for fact in facts:
        about = f"{fact['summary']} · stores {fact['stores']} · {fact['source']}"
        rows.append((fact["name"], word(fact["strict"]), word(fact["draws"]), about))
    yield from columns(rows)
    yield ""
    yield "strict: keeps no real image of a past task. draws: `engram sample` shows what it remembers."


def _method_details(facts: list[Facts]) -> Iterator[str]:
    for fact in facts:
        rows = [(key, fact[key]) for key in ("name", "summary", "source", "stores")]
        rows += [("strict", word(fact["strict"])), ("draws", word(fact["draws"]))]
        yield from columns(rows)
        names = [line["name"] for group in fact["groups"].values() for line in group["settings"]]
        size = max(map(len, names))
        for name, group in fact["groups"].items():
            yield ""
            yield from wrapped(f"{name}: ", group["about"], width())
            yield from _setting_rows([(s["name"], typed(s["default"]), s) for s in group["settings"]], size)
        yield ""


def _setting_rows(rows: Sequence[tuple[str, str, Facts]], size: int) -> Iterator[str]:
    """Name, default, range and meaning."""
    yield from columns(
        [(f"{name:<{size}}", default, f"{fact['range']} · {fact['help']}") for name, default, fact in rows]
    )


# ---------------------------------------------------------------- data sets


def _datasets(names: list[str]) -> tuple[list[Facts], Lines]:
    from engram.cli import catalogue

    return catalogue.datasets(names), _dataset_details if names else _dataset_table


def _dataset_table(facts: list[Facts]) -> Iterator[str]:
    from engram.cli.catalogue import OWN_DATA

    rows = [("name", "classes", "what")]
    rows += [(fact["name"], str(fact["classes"]), fact["description"]) for fact in facts]
    rows += [(name, "", about) for name, about in OWN_DATA.items()]
    yield from columns(rows)


def _dataset_details(facts: list[Facts]) -> Iterator[str]:
    for fact in facts:
        names = ", ".join(fact["class_names"]) or "as its files name them"
        yield from columns(
            [
                ("name", fact["name"]),
                ("what", fact["description"]),
                ("classes", f"{fact['classes']}: {names}"),
                ("images", f"{fact['training_images']:,} for training, {fact['test_images']:,} for test"),
                ("channels", str(fact["channels"])),
                ("presets", ", ".join(fact["presets"]) or "none of its own"),
            ]
        )
        yield ""


# ---------------------------------------------------------------- presets


def _presets(names: list[str]) -> tuple[list[Facts] | Facts, Lines]:
    from engram.cli import catalogue

    if not names:
        return catalogue.presets(), _preset_table
    return catalogue.preset(names[0], names[1:]), toml if names[1:] else _preset_details


def _preset_table(facts: list[Facts]) -> Iterator[str]:
    yield from columns([("auto", "the one with the data set's name, else default"), *map(_described, facts)])


def _described(fact: Facts) -> tuple[str, str]:
    return fact["name"], fact["description"]


def _preset_details(fact: Facts) -> Iterator[str]:
    from engram.cli.catalogue import changes

    yield from wrapped(f"{fact['name']}: ", fact["description"], width())
    yield ""
    rows = [("method", "what differs from its defaults")]
    if fact["stream"]:
        rows.append(("all", ", ".join(f"stream.{name}={typed(value)}" for name, value in fact["stream"].items())))
    for method, found in fact["methods"].items():
        changed = changes(method, found).items()
        rows.append((method, ", ".join(f"{key}={typed(value)}" for key, value in changed) or "nothing"))
    yield from columns(rows)


def toml(fact: Facts) -> Iterator[str]:
    """A preset in the shape of its file."""
    yield f"description = {_toml(fact['description'])}"
    if fact["stream"]:
        yield "\n[stream]"
        yield from (f"{name} = {_toml(value)}" for name, value in fact["stream"].items())
    for method, groups in fact["methods"].items():
        yield f"\n[{method}]"
        size = max(map(len, groups))
        for group, values in groups.items():
            yield f"{group:<{size}} = {{ {', '.join(f'{name} = {_toml(value)}' for name, value in values.items())} }}"


def _toml(value: Any) -> str:
    """
    >>> _toml("a"), _toml(True), _toml(0.1), _toml((1, 2))
    ('"a"', 'true', '0.1', '[1, 2]')
    """
    return json.dumps(value, ensure_ascii=False)


# ---------------------------------------------------------------- settings


def _settings(names: list[str]) -> tuple[list[Facts], Lines]:
    from engram.cli import catalogue

    return catalogue.settings(names), _setting_details if names else _setting_table


def _setting_table(facts: list[Facts]) -> Iterator[str]:
    merged: dict[str, tuple[list[str], Facts]] = {}
    for fact in facts:
        merged.setdefault(fact["name"], ([], fact))[0].extend(typed(value) for value in fact["defaults"].values())
    yield "--set NAME=VALUE. Several defaults: methods differ; `engram list settings NAME` says which."
    size = max(map(len, merged))
    rows = [(name, " / ".join(dict.fromkeys(values)), fact) for name, (values, fact) in merged.items()]
    for group in dict.fromkeys(fact["group"] for fact in facts):
        yield ""
        yield from _setting_rows([row for row in rows if row[2]["group"] == group], size)


def _setting_details(facts: list[Facts]) -> Iterator[str]:
    from engram.cli.catalogue import names

    every = len(names()["methods"])
    for fact in facts:
        yield from wrapped(f"{fact['name']}  ", f"{fact['range']} · {fact['help']}", width())
        users: dict[str, list[str]] = {}
        for method, value in fact["defaults"].items():
            users.setdefault(typed(value), []).append(method)
        rows = [(f"  {value}", "all methods" if len(who) == every else ", ".join(who)) for value, who in users.items()]
        yield from columns(rows)
        yield ""


TOPICS: dict[str, Callable[[list[str]], tuple[Any, Lines]]] = {
    "methods": _methods,
    "datasets": _datasets,
    "presets": _presets,
    "settings": _settings,
}
