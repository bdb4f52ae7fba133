"""Copying is found where there is some, by every measure, and nowhere else."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from engram.data.examples import Examples
from engram.evaluation.privacy import (
    FEWEST,
    Comparison,
    compare,
    delong,
    membership_attack,
    near_copies,
    nearer_to_training,
    nearest,
    pixels,
    privacy,
    surplus_by_chance,
    wilson,
)

SIDE = 8


def photos(count: int, seed: int) -> Tensor:
    """Fresh images of one class: a blob of random place, size and brightness on noise. (N, 1, 8, 8) uint8"""
    draws = torch.Generator().manual_seed(seed)
    place = torch.rand(count, 2, 1, 1, generator=draws) * 4 + 2
    width = torch.rand(count, 1, 1, generator=draws) * 2 + 1
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    blob = torch.exp(-((y - place[:, 0]) ** 2 + (x - place[:, 1]) ** 2) / width**2)
    values = 180 * blob + 40 * torch.rand(count, SIDE, SIDE, generator=draws)
    return values.clamp(0, 255).to(torch.uint8)[:, None]


class Generator:
    """Draws fresh images, or with a chance of `copying` a training image under slight noise."""

    def __init__(self, training: Tensor, copying: float) -> None:
        self.training, self.copying = training, copying

    def sample(self, class_indices: Sequence[int], count: int, *, generator: torch.Generator) -> Tensor:
        fresh = photos(count, int(torch.randint(10**6, (), generator=generator)))
        rows = torch.randint(len(self.training), (count,), generator=generator)
        noise = torch.randint(-3, 4, fresh.shape, generator=generator)
        copies = (self.training[rows].int() + noise).clamp(0, 255).to(torch.uint8)
        return torch.where((torch.rand(count, 1, 1, 1, generator=generator) < self.copying), copies, fresh)


class WithFeatures(Generator):
    def features(self, images: Tensor) -> Tensor:
        weights = torch.randn(SIDE * SIDE, 24, generator=torch.Generator().manual_seed(9))
        return torch.relu(pixels(images) @ weights)


def comparison(copying: float, *, training: int = 600, held: int = 300, seed: int = 0) -> Comparison:
    members, others = photos(training, 1000 + seed), photos(held, 2000 + seed)
    drawn = Generator(members, copying).sample([0], 500, generator=torch.Generator().manual_seed(seed))
    return compare(pixels(drawn), pixels(members), pixels(others))


def test_a_memory_that_copies_is_found_out_by_every_measure() -> None:
    found = comparison(1.0)
    assert found.to_training < found.to_held_out
    assert found.nearer_to_training.low > 0.6
    assert found.near_copies.low > found.near_copies_of_real.high
    assert found.surplus_by_chance < 1e-6
    assert found.attack.low > 0.6
    assert found.outcome == "copies"


def test_an_honest_memory_is_not_accused() -> None:
    outcomes = []
    for seed in range(20):
        found = comparison(0.0, seed=seed, training=300, held=200)
        assert found.near_copies.value == pytest.approx(found.near_copies_of_real.value, abs=0.03)
        assert found.to_training == pytest.approx(found.to_held_out, rel=0.05)
        outcomes.append(found.outcome)
    assert "copies" not in outcomes
    assert outcomes.count("leans") <= 5


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """An honest memory's share and AUC are 0.5: about 95 of 100 intervals must hold it."""
    missed = [0, 0]
    for seed in range(100):
        drawn, training, held = (pixels(photos(150, 100 * seed + k)) for k in (10_001, 20_002, 30_003))
        for k, found in enumerate(
            (nearer_to_training(drawn, training, held), membership_attack(drawn, training, held))
        ):
            missed[k] += not found.low <= 0.5 <= found.high
    assert max(missed) <= 12


def test_a_few_copies_among_many_drawings_are_near_copies() -> None:
    found = comparison(0.1)
    assert found.near_copies.value == pytest.approx(0.1 + found.near_copies_of_real.value, abs=0.05)
    assert found.outcome == "copies"


def test_fisher_by_dealing_cards() -> None:
    """The chance that at least 3 of 4 hits fall on 5 of 9 places, by going through all ways to deal them."""
    deals = list(itertools.combinations(range(9), 4))
    expected = sum(sum(place < 5 for place in deal) >= 3 for deal in deals) / len(deals)
    assert surplus_by_chance(3, 5, 1, 4) == pytest.approx(expected)
    assert surplus_by_chance(0, 5, 0, 4) == 1


def test_an_exact_copy_of_an_image_that_is_there_twice_counts() -> None:
    training = torch.tensor([[1.0], [1.0], [5.0]])
    assert near_copies(torch.tensor([[1.0], [3.0]]), training).value == 0.5


def test_nearest_against_a_loop() -> None:
    draws = torch.Generator().manual_seed(0)
    points, others = torch.randn(300, 5, generator=draws) + 100, torch.randn(40, 5, generator=draws) + 100
    others[7] = points[299]  # a copy is at 0, however large the numbers
    distances, rows = nearest(points, others, 3)
    for i, point in enumerate(points):
        each = sorted((math.dist(point.tolist(), other.tolist()), j) for j, other in enumerate(others))[:3]
        assert distances[i].tolist() == pytest.approx([d for d, _ in each], abs=1e-4)
        assert rows[i].tolist() == [j for _, j in each]
    assert distances[299, 0] == 0


def test_the_attack_is_minus_the_distance_to_the_nearest_drawing() -> None:
    drawn, training, held = torch.tensor([[0.0], [10.0]]), torch.tensor([[1.0], [6.0]]), torch.tensor([[3.0], [9.5]])
    pairs = [(1, 3), (1, 0.5), (4, 3), (4, 0.5)]  # distances of a member and of a non-member
    expected = sum((m < n) + (m == n) / 2 for m, n in pairs) / 4
    assert membership_attack(drawn, training, held).value == expected


def test_delong_against_its_formula_by_pairs() -> None:
    draws = torch.Generator().manual_seed(1)
    positive, negative = torch.randn(30, generator=draws) + 0.8, torch.randn(20, generator=draws)
    wins = (positive[:, None] > negative).double()
    variance = wins.mean(1).var() / 30 + wins.mean(0).var() / 20
    found = delong(positive, negative)
    assert found.value == pytest.approx(float(wins.mean()))
    assert found.high - found.value == pytest.approx(1.96 * float(variance.sqrt()), rel=1e-3)


def test_wilson_against_its_equation() -> None:
    """The ends of the interval are the shares p at which |share - p| is 1.96 standard deviations of p."""
    for share, count in ((0.5, 40), (0.02, 100), (0.9, 10)):
        found = wilson(share, count)
        for p in (found.low, found.high):
            assert abs(share - p) == pytest.approx(1.96 * math.sqrt(p * (1 - p) / count), rel=1e-3)


def test_drawings_that_share_their_nearest_image_count_once() -> None:
    training, held = torch.zeros(1, 2), torch.full((1, 2), 9.0)
    one = nearer_to_training(torch.zeros(100, 2), training, held)
    assert one.value == 1.0
    assert one.low == pytest.approx(wilson(1.0, 1).low)


# ---------------------------------------------------------------- classes of a task


def results(copying: float, *, held: int = 200) -> tuple[str, str]:
    members = photos(300, 5)
    images, targets = torch.cat([members, photos(40, 6)]), torch.tensor([3] * 300 + [4] * 40)
    own = Examples(photos(held, 7), torch.full((held,), 3))
    found = privacy(WithFeatures(members, copying), images, targets, own, [3, 4], seed=0, task=1)
    assert [one.class_index for one in found] == [3, 4]
    assert found[1].outcome == "cannot tell"  # 40 images, and none held out
    record = json.loads(json.dumps(found[0].as_record()))
    assert record["verdict"] == found[0].verdict
    return found[0].outcome, found[0].verdict


def test_a_class_is_judged_in_a_sentence() -> None:
    outcome, sentence = results(1.0)
    assert outcome == "copies"
    assert sentence.startswith("copies training images: in pixels, ")
    assert sentence.endswith("tested with 1000 drawings, 300 training and 200 held-out images")
    outcome, sentence = results(0.0)
    assert outcome != "copies"
    assert "copies training images" not in sentence
    assert "private" not in sentence


def test_too_few_images_tell_nothing() -> None:
    outcome, sentence = results(1.0, held=FEWEST - 1)
    assert outcome == "cannot tell"
    assert sentence == "not enough held-out images to tell: 49 beside 300 training images, 50 of either are needed"
    members = photos(300, 5)
    nothing = privacy(Generator(members, 1.0), members, torch.zeros(300).long(), None, [0], seed=0, task=0)[0]
    assert nothing.outcome == "cannot tell"
    assert nothing.as_record()["pixels"] is None


def test_a_learner_without_features_is_judged_by_pixels() -> None:
    members, own = photos(200, 5), Examples(photos(60, 7), torch.zeros(60).long())
    arguments = (members, torch.zeros(200).long(), own, [0])
    found = privacy(Generator(members, 1.0), *arguments, seed=0, task=0)
    assert found[0].features is None
    assert found[0].outcome == "copies"
    assert found == privacy(Generator(members, 1.0), *arguments, seed=0, task=0)
