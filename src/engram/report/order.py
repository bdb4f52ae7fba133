"""The order of data sets, the same on the page, in tables and in files."""

from __future__ import annotations

from collections.abc import Iterable

from engram.report.groups import Data, Group

FIRST = ("mnist", "svhn", "cifar10", "imagenet50")
"""The paper's data sets, as it lists them; all others follow by name."""


def name_key(name: str) -> tuple[int, str]:
    """
    >>> sorted(["folder:a", "cifar10", "digits", "mnist"], key=name_key)
    ['mnist', 'cifar10', 'digits', 'folder:a']
    """
    return (FIRST.index(name) if name in FIRST else len(FIRST)), name


def data_key(data: Data) -> tuple[object, ...]:
    """Of one name, the standard variant comes first, and the stream with the most classes."""
    return *name_key(data.name), not data.comparable, -data.classes, data.title, data.digest


def data_sets(groups: Iterable[Group]) -> list[Data]:
    """Every data set once. Of one name, a set with no more than bounds comes last."""
    groups = list(groups)
    contested = {g.data for g in groups if not g.bound}
    sets = dict.fromkeys(g.data for g in groups)
    return sorted(sets, key=lambda data: (*name_key(data.name), data not in contested, *data_key(data)))


def by_data(groups: Iterable[Group]) -> list[Group]:
    """The same groups, data set by data set."""
    groups = list(groups)
    place = {data: i for i, data in enumerate(data_sets(groups))}
    return sorted(groups, key=lambda g: place[g.data])
