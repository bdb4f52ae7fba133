"""The figures, as pure functions of counts. No torch.

After task t the evaluation counts, over all classes seen, how often an image of class i was taken for class j:
the confusion matrix, rows true, columns answered, classes in order of appearance. Everything else follows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

Counts = Sequence[Sequence[int]]
MOST = 5000
"""Classes of a matrix in short form: a line of some kilobytes must not ask for more memory than there is."""


def as_plain(confusion: Counts) -> list[list[int]] | dict[str, Any]:
    """For a record, whole, or in short form where that is less than half as long: most classes are never taken for most
    others.

    The short form has the images that were answered rightly, a number a class; and of the others, class by class, for
    what they were taken and how many, in turn.

    >>> as_plain([[8, 2], [0, 30]])
    [[8, 2], [0, 30]]
    >>> short = as_plain([[9 * (i == j) for j in range(29)] for i in range(28)] + [[1] + [0] * 26 + [3, 5]])
    >>> short["right"][-3:], short["wrong"][-3:]
    ([9, 9, 5], [[], [], [0, 1, 27, 3]])
    """
    whole = [list(row) for row in confusion]
    wrong = [[x for j, n in enumerate(row) if n and i != j for x in (j, n)] for i, row in enumerate(whole)]
    short = {"right": [row[i] for i, row in enumerate(whole)], "wrong": wrong}
    return whole if len(json.dumps(whole)) <= 2 * len(json.dumps(short)) else short


def counts(plain: Any) -> list[list[int]]:
    """The matrix, from either form; ValueError for what is neither. The one reader of what `as_plain` writes.

    >>> counts({"right": [8, 30, 5], "wrong": [[2, 2], [], [1, 7]]})
    [[8, 0, 2], [0, 30, 0], [0, 7, 5]]
    >>> counts([[8, 2], [0, 30]])
    [[8, 2], [0, 30]]
    """
    if isinstance(plain, list):
        return plain
    if not isinstance(plain, dict) or plain.keys() != {"right", "wrong"} or len(plain["right"]) > MOST:
        raise ValueError(f"{plain!r:.40} is not a confusion matrix")
    size = len(plain["right"])
    found = [[0] * size for _ in range(size)]
    for true, (right, wrong) in enumerate(zip(plain["right"], plain["wrong"], strict=True)):
        found[true][true] = right
        for answered, count in zip(wrong[::2], wrong[1::2], strict=True):
            if not 0 <= answered < size or answered == true:
                raise ValueError(f"of {size} classes {true} cannot be taken for {answered}")
            found[true][answered] = count
    return found


def classes_right(evaluation: Mapping[str, Any]) -> list[float | None] | None:
    """Of an `evaluation` record, the accuracy of every class; None where it does not say.

    Beside a matrix in short form they are not written: they follow from it.

    >>> classes_right({"confusion": {"right": [8, 30], "wrong": [[1, 2], []]}})
    [0.8, 1.0]
    """
    if "per_class" not in evaluation and "confusion" in evaluation:
        return per_class(counts(evaluation["confusion"]))
    return evaluation.get("per_class")


def by_place(values: Sequence[float | None]) -> list[float | None] | dict[str, float]:
    """For a record: a value a class, or only the known ones by their places where that is less than half as long.

    >>> by_place([None, None, None, 0.5]), by_place([None, 0.25])
    ({'3': 0.5}, [None, 0.25])
    """
    known = {str(place): value for place, value in enumerate(values) if value is not None}
    whole = list(values)
    return whole if len(json.dumps(whole)) <= 2 * len(json.dumps(known)) else known


def values(plain: Any, size: int) -> list[Any]:
    """A value a class, None for the unknown, from either form that `by_place` writes.

    >>> values({"3": 0.5}, 4), values([0.5, 0.25], 2)
    ([None, None, None, 0.5], [0.5, 0.25])
    """
    if isinstance(plain, dict):
        if not all(place.isdecimal() and int(place) < size for place in plain):
            raise ValueError(f"{plain!r:.40} has places that are not among {size}")
        return [plain.get(str(place)) for place in range(size)]
    return plain if isinstance(plain, list) else [None] * size


def micro(confusion: Counts) -> float:
    """A_t over the images: the share of all images answered rightly.

    >>> micro([[8, 2], [0, 30]])
    0.95
    """
    total = sum(map(sum, confusion))
    return sum(row[i] for i, row in enumerate(confusion)) / total


def per_class(confusion: Counts) -> list[float | None]:
    """The accuracy of every class; None for one without images.

    >>> per_class([[8, 2, 0], [0, 30, 0], [0, 0, 0]])
    [0.8, 1.0, None]
    """
    return [row[i] / sum(row) if any(row) else None for i, row in enumerate(confusion)]


def macro(confusion: Counts) -> float:
    """A_t as the mean of the per-class accuracies: every class counts alike, however many images it has.

    >>> macro([[8, 2], [0, 30]])
    0.9
    """
    return mean([share for share in per_class(confusion) if share is not None])


def top_k(hits: Sequence[int], counts: Sequence[int]) -> float:
    """Share of the images whose class is among the k best answers, from hits and images per class.

    >>> top_k([9, 30], [10, 30])
    0.975
    """
    return sum(hits) / sum(counts)


def task_row(confusion: Counts, sizes: Sequence[int]) -> list[float]:
    """Accuracy on the images of each task so far; `sizes` are the numbers of classes per task.

    >>> task_row([[8, 2, 0], [0, 30, 0], [5, 0, 5]], [2, 1])
    [0.95, 0.5]
    """
    row, start = [], 0
    for size in sizes:
        classes = range(start, start + size)
        row.append(sum(confusion[c][c] for c in classes) / sum(sum(confusion[c]) for c in classes))
        start += size
    return row


def forgetting(matrix: Sequence[Sequence[float]]) -> float:
    """Mean over the earlier tasks of how far each fell below the best it ever was (Chaudhry et al. 2018).

    `matrix[i][j]` is the accuracy on task j after task i, j <= i. 0 for a single task.

    >>> forgetting([[1.0], [0.5, 1.0], [0.25, 0.5, 1.0]])
    0.625
    """
    last = len(matrix) - 1
    if last < 1:
        return 0.0
    best = [max(matrix[i][j] for i in range(j, last)) for j in range(last)]
    return mean([best[j] - matrix[last][j] for j in range(last)])


def backward_transfer(matrix: Sequence[Sequence[float]]) -> float:
    """Mean change of the earlier tasks' accuracy since each was learned (Lopez-Paz & Ranzato 2017).

    >>> backward_transfer([[1.0], [0.5, 1.0], [0.25, 0.5, 1.0]])
    -0.625
    """
    last = len(matrix) - 1
    if last < 1:
        return 0.0
    return mean([matrix[last][j] - matrix[j][j] for j in range(last)])


def mean(values: Sequence[float]) -> float:
    """
    >>> mean([1.0, 2.0, 6.0])
    3.0
    """
    return math.fsum(values) / len(values)


def std(values: Sequence[float]) -> float:
    """Sample standard deviation (over seeds); 0 for a single value.

    >>> std([1.0, 3.0])
    1.4142135623730951
    >>> std([5.0])
    0.0
    """
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))
