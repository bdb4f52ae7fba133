"""ImageNet-50 out of a folder of the shape of ILSVRC-2012."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engram.cli import call
from engram.data.datasets import load_dataset
from engram.data.images import decode_image
from engram.data.select import select

NAMES = ["n01", "n02", "n03"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three classes of photographs of several sizes, one of them grey."""
    draws = np.random.default_rng(0)
    for part, count in (("train", 4), ("val", 2)):
        for name in NAMES:
            folder = tmp_path / "ILSVRC" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                shape = (40 + 7 * number, 50) if number == 1 else (40 + 7 * number, 50, 3)
                Image.fromarray(draws.integers(0, 256, shape, dtype=np.uint8)).save(folder / f"{name}_{number}.JPEG")
    return tmp_path / "ILSVRC"


def test_the_chosen_classes_are_there_and_learned_from_the_same_pixels(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "imagenet50"
    words = ["data", "select", str(source), "--out", str(out), "--classes", "n03,n01", "--per-class", "3"]
    assert call(words) == 0
    assert sorted(path.name for path in (out / "train").iterdir()) == ["n01", "n03"]
    assert len(list(out.rglob("*.png"))) == 2 * 3 + 2 * 2
    small, large = load_dataset(f"folder:{out}"), load_dataset(f"folder:{source}")
    rows = [int(np.flatnonzero(large.test.labels.numpy() == label)[0]) for label in (0, 2)]
    mine = [int(np.flatnonzero(small.test.labels.numpy() == label)[0]) for label in (0, 1)]
    assert small.test.images[mine].equal(large.test.images[rows])
    assert decode_image(out / "train" / "n01" / "n01_0.png", 3).shape == (3, 32, 32)


@pytest.mark.parametrize("size", [32, 64])
def test_images_are_of_the_size_that_was_asked_for(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], size: int
) -> None:
    out = tmp_path / "out"
    assert call(["data", "select", str(source), "--out", str(out), "--image-size", str(size)]) == 0
    assert f"12 training and 6 test images at {size}x{size}" in capsys.readouterr().out
    small, large = (load_dataset(f"folder:{place}", image_size=size) for place in (out, source))
    assert small.test.images.equal(large.test.images)
    assert small.take_train().images.equal(large.take_train().images)
    assert (small.shape, small.scaling) == ((3, size, size), f"{size}x{size}, as they are")


def test_one_class_and_images_that_share_a_name(source: Path, tmp_path: Path) -> None:
    folder = source / "train" / "n01"
    (folder / "more").mkdir()
    for place, suffix in ((folder, "webp"), (folder, "png"), (folder / "more", "bmp")):
        Image.new("RGB", (40, 40)).save(place / f"n01_0.{suffix}")
    out = tmp_path / "out"
    assert select(source, out, classes=["n01"]) == (7, 2)
    assert len(list((out / "train" / "n01").rglob("*.png"))) == 7
    assert (out / "train" / "n01" / "more" / "n01_0.png").exists()
    assert load_dataset(f"folder:{out}").train_counts == (7,)


def test_a_flat_validation_folder_goes_by_its_list(source: Path, tmp_path: Path) -> None:
    lines = []
    for name in NAMES:
        for path in sorted((source / "val" / name).iterdir()):
            path.rename(source / "val" / path.name)
            lines.append(f"{path.name} {name}")
        (source / "val" / name).rmdir()
    out, listing = tmp_path / "out", tmp_path / "val.txt"
    words = ["data", "select", str(source), "--out", str(out), "--classes", "@" + str(tmp_path / "names")]
    (tmp_path / "names").write_text("n01\nn02\n")
    assert call(words) == 2
    listing.write_text("\n".join(lines))
    assert call([*words, "--val-classes", str(listing)]) == 0
    kaggle = "ImageId,PredictionString\n" + "\n".join(f"{Path(a).stem},{b} 1 2 3 4" for a, b in map(str.split, lines))
    listing.write_text(kaggle)
    second = tmp_path / "second"
    assert call([*words[:4], str(second), *words[5:], "--val-classes", str(listing)]) == 0
    assert {p.relative_to(out) for p in out.rglob("*.png")} == {p.relative_to(second) for p in second.rglob("*.png")}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--classes", "n01,n09"], "n09"),
        (["--image-size", "48"], "--image-size"),
        (["--per-class", "0"], "--per-class"),
        (["--classes", "@nowhere"], "nowhere"),
        (["--val-classes", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_leave_nothing_behind(
    words: list[str], says: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["data", "select", str(source), "--out", str(tmp_path / "out"), *words]) == 2
    assert says in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ILSVRC"]


def test_a_torn_photograph_leaves_nothing_behind(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / "val" / "n02" / "n02_1.JPEG").write_bytes(b"not a picture")
    assert call(["data", "select", str(source), "--out", str(tmp_path / "out")]) == 2
    assert "n02_1.JPEG" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ILSVRC"]
    (tmp_path / "out").mkdir()
    assert call(["data", "select", str(source), "--out", str(tmp_path / "out")]) == 2
