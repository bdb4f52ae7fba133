"""Images unlike all that was learned are told from others by their features."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from engram.data.examples import Examples
from engram.errors import ConfigError, EngramError, RunError, StrictnessError
from engram.evaluation.typicality import Typicality, measure_typicality, project, trusted_stretches, whitening


class Painter:
    """Real images spread 1.4 times as far around their class's centre as drawings do; features are the pixels."""

    def sample(self, class_indices: Sequence[int], count: int, *, generator: torch.Generator) -> Tensor:
        return torch.cat([self.paint(c, count, 10.0, generator) for c in class_indices])

    def real(self, class_index: int, count: int, seed: int) -> Tensor:
        return self.paint(class_index, count, 14.0, torch.Generator().manual_seed(seed))

    def paint(self, class_index: int, count: int, noise: float, draws: torch.Generator) -> Tensor:
        centres = torch.Generator().manual_seed(class_index)
        values = 128 + 10 * torch.randn(64, generator=centres) + noise * torch.randn(count, 64, generator=draws)
        return values.clamp(0, 255).to(torch.uint8).view(count, 1, 8, 8)

    def features(self, images: Tensor) -> Tensor:
        return images.flatten(1).float()


def after(tasks: int, *, count: int = 300) -> list[Typicality]:
    found: list[Typicality] = []
    for t in range(tasks):
        own = Examples(Painter().real(t, count, 50 + t), torch.full((count,), t))
        before = found[-1] if found else None
        now = measure_typicality(Painter(), seen=t + 1, class_indices=[t], held=own, before=before, seed=0, task=t)
        assert now is not None
        found.append(now)
    return found


def test_real_images_are_within_reach_and_strangers_are_not_from_the_first_class_on() -> None:
    painter, draws = Painter(), torch.Generator().manual_seed(7)
    strangers = torch.randint(0, 256, (300, 1, 8, 8), generator=draws).to(torch.uint8)
    for t, one in enumerate(after(4)):
        real = torch.cat([painter.real(c, 500, 900 + c) for c in range(t + 1)])
        low, high = (0.97, 1) if t else (0.92, 0.98)  # a single class has no other guard
        assert low <= one.typical(painter.features(real)).double().mean() <= high
        assert one.typical(painter.features(strangers)).double().mean() < 0.1
        assert one.stretches[-1] is not None
        assert one.stretches[-1] > 1.2


def test_whitening_gives_the_identity() -> None:
    mixed = torch.eye(5) + 0.5 * torch.tril(torch.ones(5, 5), -1)
    points = torch.randn(4000, 5, generator=torch.Generator().manual_seed(0)).double() @ mixed.double()
    white = (points - points.mean(0)) @ whitening(points)
    assert torch.allclose(torch.cov(white.T), torch.eye(5).double(), atol=0.01)
    assert torch.isfinite(whitening(torch.ones(10, 3).double())).all()  # features that never vary


def test_a_distance_is_that_of_mahalanobis() -> None:
    one = after(2)[-1]
    features = Painter().features(Painter().real(0, 5, 1))
    shape = torch.tensor(one.shape, dtype=torch.float64)
    offset = project(features, 0) - torch.tensor(one.centre, dtype=torch.float64)
    expected = torch.stack([(o @ (shape @ shape.T) @ o).sqrt() for o in offset])
    assert torch.allclose(one.distances(features), expected)
    with pytest.raises(EngramError, match="63 features an image; the typicality was measured on 64"):
        one.typical(features[:, 1:])


def test_few_images_borrow_from_the_others() -> None:
    many, few, none = trusted_stretches([1.2, 3.0, None], [3000, 2, 0])
    assert many == pytest.approx(1.2, abs=0.05)
    assert 1.2 < few < 1.8
    assert 1.2 < none < 1.5


def test_without_held_out_images_nothing_is_claimed() -> None:
    arguments: dict[str, Any] = {"seen": 1, "class_indices": [0], "before": None, "seed": 0, "task": 0}
    assert measure_typicality(Painter(), held=None, **arguments) is None
    last = after(2)[-1]
    later = measure_typicality(Painter(), held=None, **{**arguments, "seen": 3, "before": last, "task": 2})
    assert later is not None
    assert later.stretches == (*last.stretches, None)
    own = Examples(Painter().real(1, 5, 0), torch.full((5,), 1))
    with pytest.raises(StrictnessError, match="class 1 are not of this task"):
        measure_typicality(Painter(), held=own, **{**arguments, "seen": 2})
    with pytest.raises(EngramError, match="forget the others first"):
        measure_typicality(Painter(), held=None, **{**arguments, "before": last})


def test_it_survives_json_and_repeats_under_a_seed() -> None:
    first, last = after(2)
    assert Typicality.from_dict(json.loads(json.dumps(last.as_dict()))) == last
    assert after(2) == [first, last]
    assert last.without(0).stretches == last.stretches[1:]
    with pytest.raises(ConfigError, match="has no class 2; it has 2"):
        last.without(2)


@pytest.mark.parametrize(
    "change",
    [{"reach": math.nan}, {"centre": [0.0]}, {"shape": 3}, {"stretches": [0.0, 1.0]}, {"stretches": [1.0]}, {"more": 1},
     {"held_out": [0, 0]}, {"seed": "x"}],
)  # fmt: skip
def test_nonsense_is_refused(change: dict[str, Any]) -> None:
    good = after(2)[-1].as_dict()
    with pytest.raises(RunError, match="calibrate it again"):
        Typicality.from_dict({**good, **change})
