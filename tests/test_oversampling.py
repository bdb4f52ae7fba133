"""Rare images are drawn more often: against brute force, and where there is hardly anything to compare."""

from __future__ import annotations

import pytest
import torch

from engram.gan import oversampling
from engram.gan.oversampling import distances, draw_rows, sampling_weights
from engram.seeding import generator


def images(count: int, channels: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (count, channels, 32, 32), generator=generator(seed), dtype=torch.uint8)


def test_distance_to_the_tenth_nearest_by_sorting() -> None:
    x = images(30)
    small = x.float().div(255).reshape(30, 16, 2, 16, 2).mean((2, 4)).flatten(1)
    apart = (small[:, None] - small[None]).square().sum(2).sqrt()
    torch.testing.assert_close(distances(x), apart.sort(1).values[:, 10], rtol=1e-3, atol=1e-3)


def test_the_odd_one_out_is_drawn_more_often_and_classes_keep_their_share() -> None:
    common = images(1).expand(60, 1, 32, 32).clone()
    common[:, :, :4] = images(60, seed=1)[:, :, :4]  # alike but for a margin
    other = images(20, seed=2)
    x, y = torch.cat([common, other, images(40, seed=3)]), torch.tensor([0] * 80 + [1] * 40)
    found = sampling_weights(x, y, 4.0)
    assert found.sum().item() == pytest.approx(1)
    assert found[:80].sum().item() == pytest.approx(80 / 120)
    assert found[60:80].mean() > 5 * found[:60].mean()
    assert torch.equal(sampling_weights(x, y, 0.0), torch.full((120,), 1 / 120, dtype=torch.float64))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_images_and_equal_ones(count: int) -> None:
    targets = torch.zeros(count, dtype=torch.int64)
    for x in (images(count, channels=3), images(1, channels=3).expand(count, 3, 32, 32)):
        found = sampling_weights(x, targets, 4.0)
        assert torch.isfinite(found).all()
        assert found.sum().item() == pytest.approx(1)


def test_neighbours_are_looked_for_among_a_part_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    x = images(60)
    whole = distances(x)
    monkeypatch.setattr(oversampling, "REFERENCE", 25)
    part = distances(x)
    assert part.shape == whole.shape
    assert (part >= whole - 1e-4).all()  # fewer to choose from: none is nearer


def test_rows_come_as_often_as_their_weights_say() -> None:
    wanted = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=torch.float64)
    rows = draw_rows(wanted, 20_000, generator=generator(0))
    shares = torch.bincount(rows, minlength=4) / 20_000
    torch.testing.assert_close(shares.double(), wanted, rtol=0, atol=0.015)
