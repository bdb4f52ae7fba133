"""Texts and JSON values -> values of a setting's type, and the types in words. No torch."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Any, Literal

from engram.errors import ConfigError

WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
LONGEST = 60
"""Characters of a value in an error."""


def read_value(key: str, value: Any, hint: Any) -> Any:
    """Turn a text, or a value out of JSON or TOML, into the type of its setting, or say what it should have been."""
    try:
        return _convert(value, hint)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise ConfigError(f"{key}={shown(value)} is not {describe(hint)}") from None


def shown(value: Any) -> str:
    """A value as an error tells it: whatever it is, a short text.

    >>> shown("many"), shown("9" * 5000), shown(16**5000)
    ("'many'", "'99999999999999999999999999999999999999999999999999999999...", 'a value of type int that is too large')
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python writes no number of thousands of digits, and no tree without end
        return f"a value of type {type(value).__name__} that is too large"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _convert(value: Any, hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None or value in ("none", "None", ""):
            return None
        return _convert(value, next(a for a in args if a is not type(None)))
    if origin is Literal:
        return _choice(value, args)
    if origin is tuple:
        items = [v.strip() for v in value.split(",") if v.strip()] if isinstance(value, str) else list(value)
        return tuple(_convert(str(item) if args[0] is str else item, args[0]) for item in items)
    if hint is bool:
        return value if isinstance(value, bool) else _word(value)
    if hint in (int, float):
        return _number(value, hint)
    if hint is str and isinstance(value, str):
        return value
    raise TypeError(value)


def _choice(value: Any, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if not isinstance(value, bool) and (value == choice or value == str(choice)):
            return choice
    raise ValueError(value)


def _word(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in WORDS:
        raise ValueError(value)
    return WORDS[text]


def _number(value: Any, kind: Callable[[Any], Any]) -> Any:
    if isinstance(value, bool) or (kind is int and isinstance(value, float) and not value.is_integer()):
        raise ValueError(value)
    if isinstance(value, str) and not value.isascii():  # digits of other scripts, which Python would take
        raise ValueError(value)
    number = kind(value)
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError(value)
    return number + 0  # no negative zero


def describe(hint: Any) -> str:
    """What a value of this type is, in words.

    >>> describe(int | None), describe(Literal["a", "b"])
    ('a whole number, or none', 'one of a, b')
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return describe(next(a for a in args if a is not type(None))) + ", or none"
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin is tuple:
        return "a list such as 3,1,2"
    names = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}
    return names[hint]
