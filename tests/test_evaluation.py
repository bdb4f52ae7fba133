"""Counts and figures against brute force."""

from __future__ import annotations

import random

import pytest
import torch

from engram.data.datasets import Dataset
from engram.errors import DataError, DivergedError, EngramError
from engram.evaluation import metrics
from engram.evaluation.evaluate import evaluate, require_test_images


class Fixed:
    """Gives every image scores that depend on its pixels alone."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.asked = 0

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        self.asked += len(images)
        flat = images.double().flatten(1)
        return torch.stack([(flat * (k + 2)).sin().sum(1) for k in range(self.classes)], 1)


@pytest.mark.parametrize("seen", [(2,), (3, 1), (1, 3, 0, 2)])
def test_counts_agree_with_a_loop_over_images(tiny: Dataset, seen: tuple[int, ...]) -> None:
    learner = Fixed(len(seen))
    result = evaluate(learner, tiny, seen)
    confusion = [[0] * len(seen) for _ in seen]
    right = total = 0
    for image, label in zip(tiny.test.images, tiny.test.labels.tolist(), strict=True):
        if label in seen:
            answer = learner.scores(image[None])[0].argmax().item()
            confusion[seen.index(label)][int(answer)] += 1
            right += seen[int(answer)] == label
            total += 1
    assert result.confusion == confusion
    assert result.accuracy == right / total
    assert result.top5 is None


def test_top5_agrees_with_sorting(tiny: Dataset) -> None:
    scores = torch.randn(200, 9, generator=torch.Generator().manual_seed(0))
    truth = torch.arange(200) % 9
    wide = Dataset("wide", tuple("abcdefghi"), "", "own", train=tiny.take_train(), test=type(tiny.test)(
        torch.arange(200, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 32, 32).contiguous(), truth
    ))  # fmt: skip

    class Table:
        def scores(self, images: torch.Tensor) -> torch.Tensor:
            return scores[images[:, 0, 0, 0].long()]

    result = evaluate(Table(), wide, range(9))
    expected = sum(truth[i].item() in sorted(range(9), key=lambda c: -scores[i, c].item())[:5] for i in range(200))
    assert result.top5 == expected / 200


def test_only_images_of_seen_classes_are_asked_for(tiny: Dataset) -> None:
    learner = Fixed(1)
    evaluate(learner, tiny, [2])
    assert learner.asked == 8


def test_answers_of_the_wrong_shape_or_not_finite_are_refused(tiny: Dataset) -> None:
    with pytest.raises(EngramError, match="shape"):
        evaluate(Fixed(3), tiny, [0, 1])

    class Lost:
        def scores(self, images: torch.Tensor) -> torch.Tensor:
            return torch.full((len(images), 2), float("nan"))

    with pytest.raises(DivergedError, match="not finite"):
        evaluate(Lost(), tiny, [0, 1])


def test_a_class_without_a_test_image_is_refused_with_one_line(tiny: Dataset) -> None:
    """An accuracy over none is no figure: neither an evaluation nor a whole run begins."""
    kept = tiny.test.labels != 2
    names = ("zero", "one", "two", "three")
    test = type(tiny.test)(tiny.test.images[kept], tiny.test.labels[kept])
    dataset = Dataset("lame", names, "", "own", train=tiny.take_train(), test=test)
    require_test_images(dataset, [3, 0, 1])
    evaluate(Fixed(2), dataset, [1, 3])
    for ask in (lambda: require_test_images(dataset, range(4)), lambda: evaluate(Fixed(2), dataset, [0, 2])):
        with pytest.raises(DataError) as caught:
            ask()
        said = str(caught.value)
        assert said == "lame: class 'two' has no test image; add images of it, or leave it out by stream.order"
        assert "\n" not in said


def test_figures_agree_with_their_definitions_on_random_matrices() -> None:
    draws = random.Random(3)
    for tasks in (1, 2, 5):
        matrix = [[draws.random() for _ in range(i + 1)] for i in range(tasks)]
        last = matrix[-1]
        falls = [max(matrix[i][j] for i in range(j, tasks - 1)) - last[j] for j in range(tasks - 1)]
        gains = [last[j] - matrix[j][j] for j in range(tasks - 1)]
        assert metrics.forgetting(matrix) == pytest.approx(sum(falls) / len(falls) if falls else 0)
        assert metrics.backward_transfer(matrix) == pytest.approx(sum(gains) / len(gains) if gains else 0)


def test_micro_and_macro_differ_where_classes_differ_in_size() -> None:
    confusion = [[90, 10], [1, 1]]
    assert metrics.micro(confusion) == pytest.approx(91 / 102)
    assert metrics.macro(confusion) == pytest.approx((0.9 + 0.5) / 2)
    values = [0.91, 0.93, 0.98]
    centre = sum(values) / 3
    assert metrics.std(values) == pytest.approx((sum((v - centre) ** 2 for v in values) / 2) ** 0.5)
