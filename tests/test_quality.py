"""Precision and recall of drawings against brute force, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conftest import SMALL, write_npz
from engram.data.datasets import load
from engram.data.stream import ClassStream
from engram.evaluation.quality import NEIGHBOURS, coverage, replay_quality
from engram.experiment.records import read_records
from engram.experiment.run import Request, run


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

    def sample(self, columns: Sequence[int], count: int, *, generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(self.images[columns[0]]), (count,), generator=generator)
        return self.images[columns[0]][rows]

    def features(self, images: Tensor) -> Tensor:
        return images.float().flatten(1)

    def scores(self, images: Tensor) -> Tensor:
        means = torch.stack([one.float().mean(0).flatten() for one in self.images])
        return -torch.cdist(self.features(images), means)


def test_a_copy_is_perfect_and_another_class_is_not(tmp_path: Path) -> None:
    dataset = load(f"npz:{write_npz(tmp_path / 'a.npz')}")
    images: list[Tensor] = []
    for task in ClassStream(dataset, 1):
        images.append(task.images.clone())
        copier = Copier(list(images))
        quality = replay_quality(copier, task, generator=torch.Generator().manual_seed(0))
        assert quality.precision[-1] == quality.recall[-1] == 1.0
        assert quality.precision[:-1] == quality.recall[:-1] == [None] * task.index  # their images are gone
        assert min(quality.recognised) > 0.9
        if task.index:
            copier.images[-1] = images[0]  # draws the first class instead of the newest
            quality = replay_quality(copier, task, generator=torch.Generator().manual_seed(0))
            assert quality.precision[-1] is not None
            assert quality.precision[-1] < 0.5


def test_a_run_records_the_quality_of_its_replay(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "a.npz", classes=2, per_class=20)
    settings = {f"method.{name}": value for name, value in SMALL["dgmw"].items()} | {"training.epochs": 1}
    run(Request(dataset=f"npz:{data}", method="dgmw", settings=settings), tmp_path / "run")
    found = [record for record in read_records(tmp_path / "run") if record["kind"] == "quality"]
    assert [record["task"] for record in found] == [0, 1]
    assert [len(record["recognised"]) for record in found] == [1, 2]
    assert found[1]["classes"] == ["0", "1"]
    assert found[1]["precision"][0] is None
    assert 0 <= found[1]["precision"][1] <= 1
