"""Calibrated answers against computations by hand, and the threshold where the truth is known."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from engram.data.examples import Examples
from engram.errors import ConfigError, DivergedError, EngramError, RunError, StrictnessError
from engram.evaluation.calibration import (
    LEAST,
    Calibration,
    calibrate,
    find_stretch,
    find_threshold,
    level,
    stretched,
    trusted_levels,
    trusted_stretch,
)
from engram.evaluation.confidence import (
    auroc,
    confidence,
    expected_calibration_error,
    fit_temperature,
    probabilities,
)

numbers = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)


@given(numbers, numbers)
def test_auroc_counts_pairs(positive: list[float], negative: list[float]) -> None:
    pairs = [(p > n) + (p == n) / 2 for p in positive for n in negative]
    assert auroc(torch.tensor(positive), torch.tensor(negative)) == pytest.approx(sum(pairs) / len(pairs))


@given(st.integers(1, 40), st.integers(2, 5), st.integers(0, 99))
def test_calibration_error_against_loops(count: int, classes: int, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    each = torch.softmax(torch.randn(count, classes, generator=draws) * 3, 1).double()
    targets = torch.randint(classes, (count,), generator=draws)
    expected = 0.0
    for b in range(15):
        inside = [i for i in range(count) if b / 15 < max(each[i].tolist()) <= (b + 1) / 15]
        if inside:
            right = sum(int(each[i].argmax()) == int(targets[i]) for i in inside) / len(inside)
            sure = sum(max(each[i].tolist()) for i in inside) / len(inside)
            expected += len(inside) / count * abs(right - sure)
    assert expected_calibration_error(each, targets) == pytest.approx(expected)


def test_temperature_is_the_best_of_a_grid() -> None:
    draws = torch.Generator().manual_seed(0)
    scores = torch.randn(400, 4, generator=draws) * 5
    targets = torch.multinomial(torch.softmax(scores / 2.5, 1), 1, generator=draws).squeeze(1)
    weights = torch.rand(400, generator=draws).double()
    grid = [math.exp(k / 100) for k in range(-100, 200)]
    losses = [float(weights @ F.cross_entropy(scores.double() / t, targets, reduction="none")) for t in grid]
    found = fit_temperature(scores, targets, weights)
    assert found == pytest.approx(grid[losses.index(min(losses))], rel=0.011)
    assert found == pytest.approx(2.5, rel=0.2)
    assert fit_temperature(scores, targets, weights) == found


def test_temperature_stays_within_its_bounds() -> None:
    scores = torch.tensor([[5.0, 0.0], [0.0, 5.0]])
    assert fit_temperature(scores, torch.tensor([0, 1])) == pytest.approx(0.25)
    assert fit_temperature(scores, torch.tensor([1, 0])) == pytest.approx(10.0)


def test_confidence_is_the_probability_of_the_answer() -> None:
    scores = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    odds = torch.exp(scores.double() / 0.7)
    assert torch.allclose(confidence(scores, 0.7), (odds / odds.sum(1, keepdim=True)).max(1).values)
    assert confidence(torch.randn(4, 1)).tolist() == [1.0] * 4


def test_a_level_finds_the_reals_quantile_among_the_drawings() -> None:
    drawn, real = torch.linspace(0, 1, 1001), torch.linspace(0.2, 1, 801)
    assert level(drawn, real, keep=0.95) == pytest.approx(0.24, abs=0.002)
    assert level(drawn + 9, real) == LEAST  # all drawings surer than all real images: no level of 0
    assert 0.999 < level(drawn - 9, real) < 1


def test_few_images_borrow_from_the_other_classes() -> None:
    many, few, none = trusted_levels([0.01, 0.4, None], [30_000, 3, 0])
    assert many == pytest.approx(0.01, rel=0.1)
    assert 0.01 < few < 0.05
    assert none < 0.05
    assert trusted_levels([None, None], [0, 0]) == pytest.approx([0.035, 0.035])
    assert trusted_levels([0.3, None], [600, 0])[1] < 0.05  # never more than the share to lose


@given(st.integers(0, 99), st.floats(0.6, 0.99))
def test_a_threshold_loses_as_many_as_it_may(seed: int, keep: float) -> None:
    """With real images for the parts, whose level is the share to lose, that share is lost."""
    draws = torch.Generator().manual_seed(seed)
    parts = [torch.rand(200, generator=draws) ** (c + 1) for c in range(3)]
    found = find_threshold(parts, [1 - keep] * 3, keep)
    lost = sum(float((part < found).double().mean()) for part in parts) / 3
    assert 1 - keep - 1 / 100 <= lost <= 1 - keep + 1e-6


# ---------------------------------------------------------------- a learner whose real images are known


class Painter:
    """Classes are directions; an image is a number per direction. Its drawings are surer than its real images."""

    def __init__(self, seen: int, *, spread: float = 1.0) -> None:
        self.seen, self.spread = seen, spread

    def sample(self, class_indices: Sequence[int], count: int, *, generator: torch.Generator) -> Tensor:
        return torch.cat([self.paint(c, count, 1.0, generator) for c in class_indices])

    def real(self, class_index: int, count: int, seed: int) -> Tensor:
        return self.paint(class_index, count, 1.3, torch.Generator().manual_seed(seed))

    def paint(self, class_index: int, count: int, noise: float, draws: torch.Generator) -> Tensor:
        values = 128 + 10 * noise * torch.randn(count, 8, generator=draws)
        values[:, class_index] += 35
        return values.clamp(0, 255).to(torch.uint8).view(count, 8, 1, 1)

    def scores(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, : self.seen].float() / 10 * self.spread


class Answerer:
    """The same without a generator."""

    def __init__(self, painter: Painter) -> None:
        self.painter = painter

    def scores(self, images: Tensor) -> Tensor:
        return self.painter.scores(images)


def held(painter: Painter, classes: Sequence[int], count: int) -> Examples:
    images = [painter.real(c, count, 50 + c) for c in classes]
    return Examples(torch.cat(images), torch.tensor(classes).repeat_interleave(count))


def after(tasks: int, *, count: int = 400, **options: Any) -> list[Calibration]:
    found: list[Calibration] = []
    for t in range(tasks):
        painter = Painter(t + 1, **options)
        own = held(painter, [t], count) if count else None
        before = found[-1] if found else None
        found.append(calibrate(painter, seen=t + 1, class_indices=[t], held=own, before=before, seed=0, task=t))
    return found


def kept(calibration: Calibration, painter: Painter) -> float:
    parts = [calibration.known(painter.scores(painter.real(c, 2000, 900 + c))) for c in range(painter.seen)]
    return float(torch.cat(parts).double().mean())


def test_the_real_images_of_past_classes_are_kept_though_they_are_gone() -> None:
    found = after(5)
    for t in range(1, 5):
        assert 0.93 <= kept(found[t], Painter(t + 1)) <= 0.97, t
    drawings_alone = after(5, count=0)[-1]
    assert kept(drawings_alone, Painter(5)) < 0.93  # what the levels are there for


def test_an_unknown_image_is_found() -> None:
    calibration, painter = after(4)[-1], Painter(4)
    strangers = painter.scores(painter.paint(6, 500, 0.2, torch.Generator().manual_seed(1)))  # of a class not learned
    assert calibration.known(strangers).double().mean() < 0.3


def test_probabilities_are_better_afterwards() -> None:
    for spread in (0.3, 10.0):
        painter = Painter(4, spread=spread)
        examples = held(painter, range(4), 1000)
        scores = painter.scores(examples.images)
        calibration = after(4, spread=spread)[-1]
        before, now = (
            expected_calibration_error(probabilities(scores, t), examples.targets)
            for t in (1.0, calibration.temperature)
        )
        assert now <= before / 1.5


def test_real_images_of_all_classes_need_no_past() -> None:
    """Where every class is at hand, the temperature is the one that fits, and nothing of the past is left in it."""
    painter = Painter(3, spread=0.1)
    examples = held(painter, range(3), 3000)
    found = calibrate(painter, seen=3, class_indices=range(3), held=examples, before=None, seed=0, task=0)
    assert found.temperature == pytest.approx(
        fit_temperature(painter.scores(examples.images), examples.targets), rel=0.1
    )


def test_one_class_alone_is_always_known() -> None:
    first = after(1)[0]
    assert (first.temperature, first.levels, first.held_out) == (1.0, (None,), (0,))
    assert first.known(torch.randn(5, 1)).all()


@pytest.mark.parametrize("count", [0, 1, 5])
def test_few_held_out_images_do_no_harm(count: int) -> None:
    found = after(4, count=count)[-1]
    assert found.held_out == (0, count, count, count)
    assert 0.25 <= found.temperature <= 10
    assert kept(found, Painter(4)) > 0.8


def test_an_update_of_a_known_class_measures_it_again() -> None:
    third = after(3)[-1]
    painter = Painter(3)
    own = held(painter, [1], 200)
    again = calibrate(painter, seen=3, class_indices=[1], held=own, before=third, seed=0, task=3)
    assert again.held_out == (0, 200, 400)
    assert again.levels[1] != third.levels[1]
    assert again.levels[2] == third.levels[2]
    without_images = calibrate(painter, seen=3, class_indices=[1], held=None, before=third, seed=0, task=3)
    assert (without_images.levels, without_images.held_out) == (third.levels, third.held_out)


def test_a_learner_that_cannot_draw_says_so() -> None:
    painter = Painter(3)
    own = held(painter, [2], 400)
    found = calibrate(Answerer(painter), seen=3, class_indices=[2], held=own, before=None, seed=0, task=2)
    assert found.drawings == 0
    assert found.levels == (None, None, None)
    assert found.known(painter.scores(own.images)).double().mean() == pytest.approx(0.95, abs=0.01)
    nothing = calibrate(Answerer(painter), seen=3, class_indices=[2], held=None, before=found, seed=0, task=3)
    assert nothing == found


class VectorPainter:
    """Classes are points; a linear classifier knows them. Drawings lie half as far from their point as real vectors."""

    def __init__(self, seen: int) -> None:
        self.seen = seen
        self.points = 6 * F.normalize(torch.randn(100, 24, generator=torch.Generator().manual_seed(7)), dim=1)

    def sample(self, class_indices: Sequence[int], count: int, *, generator: torch.Generator) -> Tensor:
        return torch.cat([self.paint(c, count, 0.5, generator) for c in class_indices])

    def paint(self, class_index: int, count: int, noise: float, draws: torch.Generator) -> Tensor:
        return self.points[class_index] + noise * torch.randn(count, 24, generator=draws)

    def scores(self, images: Tensor) -> Tensor:
        return images @ self.points[: self.seen].T

    def real(self, count: int, seed: int) -> Examples:
        draws = torch.Generator().manual_seed(seed)
        vectors = [self.paint(c, count, 1.0, draws) for c in range(self.seen)]
        return Examples(torch.cat(vectors), torch.arange(self.seen).repeat_interleave(count))


def test_known_vectors_are_kept_though_ten_a_class_are_held_out_and_drawings_are_tighter() -> None:
    """Where a twentieth of the real ones is lost there is no drawing: a threshold by levels called a third unknown."""
    found, shares = None, []
    for task in range(10):
        painter, own = VectorPainter(10 * (task + 1)), list(range(10 * task, 10 * (task + 1)))
        held_out = painter.real(10, seed=task).rows(torch.arange(100 * task, 100 * (task + 1)))
        found = calibrate(painter, seen=painter.seen, class_indices=own, held=held_out, before=found, seed=0, task=task)
        tested = painter.scores(painter.real(100, seed=99).images)
        shares.append(float(found.known(tested).double().mean()))
    assert all(0.93 <= share <= 0.98 for share in shares[1:]), shares  # ten points lie too far apart to be mistaken
    assert found is not None
    assert trusted_stretch(found.stretches or (), found.held_out) == pytest.approx(2.0, rel=0.15)


def test_a_stretch_is_found_again() -> None:
    draws = torch.Generator().manual_seed(3)
    parts = [torch.tensor([4.0, 0.0, 0.0]).roll(c) + torch.randn(4000, 3, generator=draws) for c in range(3)]
    real = torch.cat([confidence(stretched(one, 1.7)) for one in parts])
    assert find_stretch(parts, real, 1.0) == pytest.approx(1.7, rel=0.02)


def test_a_handful_of_vectors_tells_no_stretch() -> None:
    """The median of five is far from where a twentieth lies, and hardly moves when drawings are stretched."""
    painter = VectorPainter(3)
    held_out = painter.real(5, seed=0).rows(torch.arange(10, 15))
    found = calibrate(painter, seen=3, class_indices=[2], held=held_out, before=None, seed=0, task=0)
    assert (found.stretches, found.held_out) == ((None, None, None), (0, 0, 5))


def test_many_vectors_count_more_than_few() -> None:
    assert trusted_stretch([4.0, 1.0], [1, 10**6]) == pytest.approx(1.0, rel=0.01)
    assert trusted_stretch([None], [0]) == 1.0


def test_the_same_seed_gives_the_same_numbers() -> None:
    state = torch.random.get_rng_state()
    assert after(3) == after(3)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_what_cannot_be_is_refused() -> None:
    painter = Painter(3)
    arguments: dict[str, Any] = {"seen": 3, "class_indices": [2], "before": None, "seed": 0, "task": 2}
    with pytest.raises(StrictnessError, match="class 1 are not of this task"):
        calibrate(painter, held=held(painter, [1, 2], 5), **arguments)
    with pytest.raises(EngramError, match="gave 3 scores an image; 4 classes"):
        calibrate(painter, held=None, **{**arguments, "seen": 4})
    with pytest.raises(DivergedError, match="not finite"):
        calibrate(Painter(3, spread=math.nan), held=None, **arguments)
    with pytest.raises(EngramError, match="forget the others first"):
        calibrate(painter, held=None, **{**arguments, "before": after(4)[-1]})


# ---------------------------------------------------------------- what is kept


def test_a_calibration_survives_json() -> None:
    for one in [*after(3), Calibration(1.2, 0.5, (None, None), (9, 0), 60, (1.5, None))]:
        assert Calibration.from_dict(json.loads(json.dumps(one.as_dict()))) == one


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.0}, {"temperature": math.nan}, {"temperature": True}, {"temperature": "1"},
        {"threshold": 1.5}, {"threshold": None}, {"levels": [0.1]}, {"levels": [0.0, 0.1]}, {"levels": 3},
        {"held_out": [-1, 3]}, {"held_out": [0, 3]}, {"held_out": [1.5, 2]}, {"drawings": -1}, {"more": 1},
        {"stretches": [1.0]}, {"stretches": [0.0, 1.0]}, {"stretches": 2.0},
    ],
)  # fmt: skip
def test_nonsense_is_refused(change: dict[str, Any]) -> None:
    good = Calibration(1.2, 0.5, (0.02, 0.1), (10, 20), 1000).as_dict()
    assert Calibration.from_dict(dict(good)).temperature == 1.2
    with pytest.raises(RunError, match="calibrate it again"):
        Calibration.from_dict({**good, **change})
    with pytest.raises(RunError, match="calibrate it again"):
        Calibration.from_dict([good])


def test_a_forgotten_class_leaves_no_number() -> None:
    whole = Calibration(1.2, 0.5, (None, 0.1, 0.3), (0, 20, 30), 1000)
    assert whole.without(1) == replace(whole, levels=(None, 0.3), held_out=(0, 30))
    assert whole.without(2).without(0).levels == (0.1,)
    assert replace(whole, stretches=(None, 2.0, 3.0)).without(1).stretches == (None, 3.0)
    with pytest.raises(ConfigError, match="has no class 3; it has 3"):
        whole.without(3)
