"""Precision and recall of drawings against brute force, and where they come from."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from conftest import SMALL, write_npz
from engram.data.datasets import load_dataset
from engram.data.stream import ClassStream
from engram.evaluation.quality import NEIGHBOURS, coverage, direct_accuracy, replay_quality
from engram.experiment.pictures import png, sheet
from engram.experiment.records import read_records
from engram.experiment.request import Request
from engram.experiment.run import execute


def test_coverage_against_a_loop() -> None:
    region, points = torch.randn(30, 4), torch.randn(40, 4) * 1.5
    inside = 0
    for point in points:
        for one in region:
            reach = sorted(float((one - other).norm()) for other in region)[NEIGHBOURS]
            if float((point - one).norm()) <= reach:
                inside += 1
                break
    assert 0 < inside < 40
    found = coverage(region, points)
    assert found == pytest.approx(inside / 40)
    assert coverage(region[:NEIGHBOURS], points) is None


class Copier:
    """Draws images that it is given, and knows a class by the mean of its pixels."""

    def __init__(self, images: list[Tensor]) -> None:
        self.images = images

    def sample(self, class_indices: Sequence[int], count: int, *, generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(self.images[class_indices[0]]), (count,), generator=generator)
        return self.images[class_indices[0]][rows]

    def features(self, images: Tensor) -> Tensor:
        return images.float().flatten(1)

    def scores(self, images: Tensor) -> Tensor:
        means = torch.stack([one.float().mean(0).flatten() for one in self.images])
        return -torch.cdist(self.features(images), means)


def test_a_copy_is_perfect_and_another_class_is_not(tmp_path: Path) -> None:
    dataset = load_dataset(f"npz:{write_npz(tmp_path / 'a.npz')}")
    images: list[Tensor] = []
    for task in ClassStream(dataset, 1):
        images.append(task.images.clone())
        copier = Copier(list(images))
        quality = replay_quality(copier, task, generator=torch.Generator().manual_seed(0))
        assert quality.precision[-1] == quality.recall[-1] == 1.0
        assert quality.precision[:-1] == quality.recall[:-1] == [None] * task.index  # their images are gone
        assert min(quality.recognised) > 0.9
        more = replay_quality(copier, task, generator=torch.Generator().manual_seed(0), known={task.index})
        assert more.precision[-1] is None, "of a class known before, earlier images are gone too"
        assert more.recall[-1] == 1.0
        if task.index:
            copier.images[-1] = images[0]  # draws the first class instead of the newest
            quality = replay_quality(copier, task, generator=torch.Generator().manual_seed(0))
            assert quality.precision[-1] is not None
            assert quality.precision[-1] < 0.5


def test_direct_accuracy_is_the_judges_word(tmp_path: Path) -> None:
    """Drawings of real images are known to a judge that has seen the like; swapped classes are not."""
    train = load_dataset(f"npz:{write_npz(tmp_path / 'a.npz')}").train
    images = [train.images[train.labels == number] for number in range(4)]
    judge, draws = Copier(images), torch.Generator().manual_seed(0)
    assert direct_accuracy(judge, Copier(images), 4, 20, generator=draws) == [1.0] * 4
    swapped = Copier([images[1], images[0], *images[2:]])
    assert direct_accuracy(judge, swapped, 4, 20, generator=draws) == [0.0, 0.0, 1.0, 1.0]


def test_a_run_records_the_quality_of_its_replay_and_shows_it(tmp_path: Path) -> None:
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    data = write_npz(tmp_path / "a.npz", classes=2, per_class=20)
    asked = Request(dataset=f"npz:{data}", method="dgmw", settings={**SMALL["dgmw"], "classifier.epochs": 1})
    folder = execute(asked, tmp_path / "run", tensorboard=True)
    found = [record for record in read_records(folder) if record["kind"] == "quality"]
    assert [record["task"] for record in found] == [0, 1]
    assert [len(record["recognised"]) for record in found] == [1, 2]
    assert found[1]["classes"] == ["0", "1"]
    assert found[1]["precision"][0] is None
    assert 0 <= found[1]["precision"][1] <= 1
    with Image.open(folder / "samples.png") as picture:
        assert picture.size == (2 * (10 * 34 + 2), 2 * (2 * 34 + 2))
    events = accumulators.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    assert tags["images"] == ["drawings"]
    assert [event.step for event in events.Images("drawings")] == [1, 2]
    assert len(tags["histograms"]) == 3
    assert "replay/recognised" in tags["scalars"]


def test_a_sheet_holds_the_images_row_by_row() -> None:
    images = torch.randint(0, 256, (5, 3, 4, 6), dtype=torch.uint8)
    whole = sheet(images, 3)
    assert whole.shape == (3, 2 * 6 + 2, 3 * 8 + 2)
    assert torch.equal(whole[:, 8:12, 10:16], images[4])
    assert int(whole[:, 8:12, 18:24].sum()) == 0
    with Image.open(io.BytesIO(png(whole, zoom=1))) as picture:
        assert np.array_equal(np.asarray(picture), whole.permute(1, 2, 0).numpy())
