"""The figures, as pure functions of counts. No torch.

After task t the evaluation counts, over all classes seen, how often an image of class i was taken for class j:
the confusion matrix, rows true, columns answered, classes in order of appearance. Everything else follows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Counts = Sequence[Sequence[int]]


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
