"""Texts and JSON values -> values of a setting's type, and the types in words. No torch."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Any, Literal

from engram.errors import ConfigError

WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def read_value(key: str, value: Any, hint: Any) -> Any:
    """Turn a text, or a value out of JSON or TOML, into the type of its setting, or say what it should have been."""
    try:
        return _convert(value, hint)
    except (ValueError, TypeError, OverflowError):
        raise ConfigError(f"{key}={value!r} is not {describe(hint)}") from None


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
    number = kind(value)
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError(value)
    return number


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
