"""What a field of a record may be. Whatever is not is a `ValueError` that shows the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
LARGEST = 10**15
"""More than any count of ours; sums and squares of smaller ones stay finite."""


def demand(ok: bool, text: str) -> None:
    if not ok:
        raise ValueError(text)


def list_of(value: Any, of: Callable[[Any], T]) -> tuple[T, ...]:
    demand(isinstance(value, list), f"{value!r:.40} is not a list")
    return tuple(of(item) for item in value)


def maybe(value: Any, of: Callable[[Any], T]) -> T | None:
    return None if value is None else of(value)


def text(value: Any) -> str:
    demand(isinstance(value, str), f"{value!r:.40} is not a text")
    return plain(value)


def plain(text: str) -> str:
    """Without characters that no file of ours could hold: control characters, halves of surrogate pairs.

    >>> plain("zer\\0")
    'zer�'
    """
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def truth(value: Any) -> bool:
    demand(isinstance(value, bool), f"{value!r:.40} is neither true nor false")
    return bool(value)


def whole(value: Any) -> int:
    demand(type(value) is int and 0 <= value < LARGEST, f"{value!r:.40} is not a whole number of ours")
    return int(value)


def finite(value: Any) -> float:
    demand(type(value) in (int, float), f"{value!r:.40} is not a number")
    number = float(value)
    demand(abs(number) < LARGEST, f"{value!r:.40} is too large")
    return number


def share(value: Any) -> float:
    number = finite(value)
    demand(0 <= number <= 1, f"{value!r:.40} is not between 0 and 1")
    return number
