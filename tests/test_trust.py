"""Trust as a whole: what is kept, and its figures on test images, against counts by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engram.data.datasets import Dataset, Split
from engram.errors import RunError
from engram.evaluation.calibration import Calibration
from engram.evaluation.trust import Trust, against, figures, measure
from engram.evaluation.typicality import Typicality

CALIBRATION = Calibration(1.0, 0.7, (None, 0.05), (0, 40), 100)
FLAT = Typicality(
    0, 4, (0.0,) * 32, tuple(tuple(float(i == j) for j in range(32)) for i in range(32)), 5.0, (1.0,), (9,)
)


class Told:
    """Answers by the first pixel: 0 to 2 in units of 100; surely where the second pixel is bright."""

    def scores(self, images: Tensor) -> Tensor:
        first, sure = images[:, 0, 0, 0] // 100, images[:, 0, 0, 1] > 127
        scores = torch.nn.functional.one_hot(first.long().clamp(max=1), 2).float()
        return scores * torch.where(sure, 4.0, 0.1)[:, None]


def image(first: int, second: int) -> Tensor:
    made = torch.zeros(1, 2, 2, dtype=torch.uint8)
    made[0, 0, 0], made[0, 0, 1] = first, second
    return made


def dataset(rows: list[tuple[int, int, int]]) -> Dataset:
    """(class, first pixel, second pixel) a row."""
    images = torch.stack([image(first, second) for _, first, second in rows])
    split = Split(images, torch.tensor([label for label, _, _ in rows]))
    return Dataset("told", ("a", "b", "c"), "", "own", train=split, test=split)


def test_the_figures_are_counts_by_hand() -> None:
    rows = [(0, 0, 255), (0, 0, 255), (0, 0, 0), (1, 100, 255), (1, 0, 255), (2, 100, 0), (2, 100, 255)]
    found = figures(Told(), Trust(CALIBRATION, None), dataset(rows), [0, 1])
    assert found["tested"] == 5
    assert found["kept"] == pytest.approx(4 / 5)  # one of five is not sure enough
    assert found["unknown"] == 2
    assert found["rejected"] == pytest.approx(1 / 2)
    # known: four sure, one unsure; unknown: one unsure, one sure; pairs: sure over unsure wins, alike counts half
    assert found["auroc"] == pytest.approx((4 * (1 + 0.5) + 1 * (0.5 + 0)) / 10)
    assert found["ece"] == found["ece_before"]  # a temperature of 1 changes nothing
    assert "auroc_typical" not in found
    alone = figures(Told(), Trust(CALIBRATION, None), dataset([row for row in rows if row[0] == 2]), [0, 1])
    assert alone == {"tested": 0}


def test_an_image_must_be_sure_and_typical() -> None:
    scores = torch.tensor([[4.0, 0.0], [4.0, 0.0], [0.1, 0.0]])
    near, far = torch.zeros(4), torch.full((4,), 1e3)
    features = torch.stack([near, far, near])
    assert Trust(CALIBRATION, FLAT).known(scores, features).tolist() == [True, False, False]
    assert Trust(CALIBRATION, None).known(scores, features).tolist() == [True, True, False]
    assert Trust(CALIBRATION, FLAT).known(scores, None).tolist() == [True, True, False]


def test_it_survives_json_and_refuses_what_it_did_not_write() -> None:
    for trust in (Trust(CALIBRATION, None), Trust(CALIBRATION, FLAT)):
        assert Trust.from_dict(json.loads(json.dumps(trust.as_dict()))) == trust
    good: dict[str, Any] = Trust(CALIBRATION, FLAT).as_dict()
    bad: list[Any] = [
        None, [], {}, {**good, "more": 1}, {"calibration": good["calibration"]},
        {**good, "calibration": {}}, {**good, "typicality": {"seed": 1}},
        {**good, "calibration": {**good["calibration"], "temperature": -1}},
        {**good, "typicality": {**good["typicality"], "reach": float("nan")}},
    ]  # fmt: skip
    for values in bad:
        with pytest.raises(RunError) as caught:
            Trust.from_dict(values)
        assert "\n" not in str(caught.value)


def test_a_forgotten_class_leaves_its_place() -> None:
    trust = Trust(replace(CALIBRATION, levels=(None, 0.05, 0.1), held_out=(0, 40, 50)), None).without(1)
    assert (trust.calibration.levels, trust.calibration.held_out) == ((None, 0.1), (0, 50))


def test_a_learner_that_cannot_draw_is_calibrated_without_typicality() -> None:
    trust = measure(Told(), seen=2, class_indices=[0, 1], held=None, before=None, seed=0, task=0)
    assert trust.typicality is None
    assert trust.calibration.drawings == 0


def test_images_of_any_kind_can_be_the_unknown() -> None:
    known = torch.stack([image(0, 255)] * 3)
    strange = torch.stack([image(100, 0), image(100, 0), image(100, 255)])
    found = against(Told(), Trust(CALIBRATION, None), known, strange)
    assert found["rejected"] == pytest.approx(2 / 3, abs=1e-6)
    assert found["auroc"] == pytest.approx((2 * 1 + 0.5) / 3, abs=1e-6)
