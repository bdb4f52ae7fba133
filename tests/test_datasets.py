"""Names -> tensors: one size, one resize, one digest; the training part is handed over once."""

from __future__ import annotations

import gc
import gzip
import os
import struct
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from engram.data import datasets, raw, sources
from engram.errors import ConfigError, DataError, StrictnessError

REAL = os.environ.get("ENGRAM_DATA")  # before the fixture below hides it
LABELS = np.arange(40, dtype=np.uint8) % 10
GREY = np.random.default_rng(1).integers(0, 256, (40, 28, 28), dtype=np.uint8)
COLOUR = np.random.default_rng(2).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data and cache folders of the test's own, both empty."""
    monkeypatch.setenv("ENGRAM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("ENGRAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "data"


def idx(array: npt.NDArray[Any]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def mnist(
    root: Path,
    images: npt.NDArray[np.uint8] = GREY,
    labels: npt.NDArray[np.uint8] = LABELS,
    *,
    packed: bool = True,
) -> Path:
    """Every image twice: for training and for test."""
    folder = root / "mnist"
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "t10k"):
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            name = folder / f"{part}-{kind}-ubyte{'.gz' if packed else ''}"
            name.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    return folder


def image_folder(root: Path, classes: dict[str, int], size: Callable[[int], tuple[int, int]]) -> Path:
    for name, count in classes.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(COLOUR[i]).resize(size(i)).save(root / name / f"{i:03}.png")
    return root


# ---------------------------------------------------------------- the embedded set


def test_embedded_digits() -> None:
    digits = datasets.load("digits")
    train = digits.take_train()
    assert digits.digest == "1f88f4cd7f0ffddafb6ed7e9992ab0a02453c240be167f1672bf0c9f3db8f3c2"
    assert (digits.variant, digits.channels, digits.class_names) == ("standard", 1, tuple("0123456789"))
    assert digits.train_counts == (143, 146, 142, 147, 145, 146, 145, 144, 140, 144)
    assert train.images.shape == (1442, 1, 32, 32)
    assert digits.test.images.shape == (355, 1, 32, 32)
    assert train.images.dtype == digits.test.images.dtype == torch.uint8
    assert train.labels.dtype == digits.test.labels.dtype == torch.int64
    assert int(train.images.max()) > 250
    with np.load(sources.EMBEDDED) as file:
        assert file["images"].shape == (1797, 8, 8)
        assert int(file["images"].max()) == 16
        zeros = np.flatnonzero(file["labels"] == 0)
        fifth = (file["images"][zeros[4]].astype(int) * 255 + 8) // 16
    expected = datasets.resize(fifth.astype(np.uint8)[None, None])[0]
    torch.testing.assert_close(digits.test.images[digits.test.labels == 0][0], expected)


# ---------------------------------------------------------------- resize


def triangle(length: int, size: int = 32) -> npt.NDArray[np.float64]:
    """(size, length) weights of a bilinear filter that widens with the scale, from its definition."""
    scale = length / size
    centres = (np.arange(size)[:, None] + 0.5) * scale
    weights = np.maximum(0, 1 - np.abs(np.arange(length) + 0.5 - centres) / max(scale, 1.0))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("shape", [(28, 28), (8, 8), (64, 64), (45, 70), (100, 20), (1, 1)])
def test_resize_against_the_definition(shape: tuple[int, int]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 3, *shape), dtype=np.uint8)
    exact = triangle(shape[0]) @ images.astype(float) @ triangle(shape[1]).T
    ours = datasets.resize(images).numpy()
    assert ours.dtype == np.uint8
    assert np.abs(ours - exact).max() <= 0.5 + 1e-3


def test_right_size_is_left_alone_and_shared() -> None:
    images = np.ascontiguousarray(COLOUR.transpose(0, 3, 1, 2))
    same = datasets.resize(images)
    np.testing.assert_array_equal(same.numpy(), images)
    assert same.data_ptr() == images.ctypes.data


def test_blocks_do_not_change_the_outcome(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mnist(root)
    whole = datasets.load("mnist")
    monkeypatch.setattr(raw, "BLOCK", 28 * 28 * 7)
    pieces = datasets.load("mnist")
    assert torch.equal(whole.test.images, pieces.test.images)
    assert whole.digest == pieces.digest


# ---------------------------------------------------------------- the training part


def test_training_part_is_handed_over_once(root: Path) -> None:
    mnist(root)
    data = datasets.load("mnist")
    train = data.take_train()
    assert train.images.shape == (40, 1, 32, 32)
    assert data.train_counts == (4,) * 10
    with pytest.raises(StrictnessError, match="handed over before"):
        data.take_train()
    alive = weakref.ref(train.images)
    del train
    gc.collect()
    assert alive() is None, "the data set kept a reference to its training images"


@given(
    counts=st.lists(st.integers(2, 60), min_size=2, max_size=5),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 9),
)
def test_held_out_share(counts: list[int], share: float, seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    mask = datasets.held_out(labels, share, "x", tuple("abcde"))
    np.testing.assert_array_equal(mask, datasets.held_out(labels, share, "x", tuple("abcde")))
    for label, count in enumerate(counts):
        held = int(mask[labels == label].sum())
        assert 1 <= held <= count - 1
        assert abs(held - share * count) <= 1


# ---------------------------------------------------------------- named sets


def test_packed_and_raw_give_the_same(tmp_path: Path) -> None:
    mnist(tmp_path / "a")
    mnist(tmp_path / "b", packed=False)
    mnist(tmp_path / "c", GREY[::-1], LABELS[::-1])
    pixel, label = GREY.copy(), LABELS.copy()
    pixel[3, 3, 3] ^= 1
    label[:2] = 1, 0
    mnist(tmp_path / "d", pixel)
    mnist(tmp_path / "e", GREY, label)
    digests = [datasets.load("mnist", root=tmp_path / name).digest for name in "abcde"]
    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests)) == 3
    assert datasets.load("mnist", root=tmp_path / "a").variant == "own"


def test_data_folder_comes_before_the_cache(root: Path, tmp_path: Path) -> None:
    mnist(tmp_path / "cache", GREY[::2], LABELS[:20])
    assert len(datasets.load("mnist").test.labels) == 20
    mnist(root)
    assert len(datasets.load("mnist").test.labels) == 40
    (root / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()  # incomplete: passed over
    assert len(datasets.load("mnist").test.labels) == 20


def test_cifar_in_both_places(tmp_path: Path) -> None:
    rows = np.concatenate([LABELS[:, None], COLOUR.transpose(0, 3, 1, 2).reshape(40, -1)], axis=1)
    for folder in (tmp_path / "a" / "cifar10", tmp_path / "b" / "cifar10" / "cifar-10-batches-bin"):
        folder.mkdir(parents=True)
        for name in sources.LAYOUT["cifar10"]:
            rows.tofile(folder / name)
    a, b = (datasets.load("cifar10", root=tmp_path / name) for name in "ab")
    assert a.digest == b.digest
    assert a.train_counts == (20,) * 10
    np.testing.assert_array_equal(a.test.images.numpy(), COLOUR.transpose(0, 3, 1, 2))
    assert a.class_names[3] == "cat"


def test_svhn(root: Path) -> None:
    (root / "svhn").mkdir(parents=True)
    for name in sources.LAYOUT["svhn"]:
        savemat(root / "svhn" / name, {"X": COLOUR.transpose(1, 2, 3, 0), "y": (LABELS + 1)[:, None]})
    data = datasets.load("svhn")
    assert data.test.labels.tolist()[8:11] == [9, 0, 1]
    np.testing.assert_array_equal(data.test.images.numpy(), COLOUR.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("test", ["val", "test"])
def test_imagenet50(root: Path, test: str) -> None:
    classes = {f"n{i:03}": 1 for i in range(50)}
    folder = root / "imagenet50"
    image_folder(folder / "train", classes, lambda i: (40, 36))
    image_folder(folder / test, classes, lambda i: (32, 32))
    (folder / "classes.txt").write_text("n000\tgoldfish, Carassius auratus\nn001\n", encoding="utf-8")
    data = datasets.load("imagenet50")
    assert data.class_names[:3] == ("goldfish", "n001", "n002")
    assert data.take_train().images.shape == (50, 3, 32, 32)
    assert all(line.ok for line in datasets.check("imagenet50"))
    (folder / "train" / "n007" / "000.png").write_bytes(b"x")
    with pytest.raises(DataError, match="n007"):
        datasets.load("imagenet50")
    assert not datasets.check("imagenet50")[-1].ok


def test_standard_sets_need_their_classes_and_channels(root: Path) -> None:
    mnist(root, labels=LABELS % 9)
    with pytest.raises(DataError, match=r"mnist: no image has label 9; labels must be 0\.\.9"):
        datasets.load("mnist")
    for part in ("train", "val"):
        image_folder(root / "imagenet50" / part, {"a": 1, "b": 1}, lambda i: (32, 32))
    with pytest.raises(DataError, match="no image has label 2"):
        datasets.load("imagenet50")


def test_variants() -> None:
    (mnist_digest,) = sources.KNOWN["mnist"]
    assert sources.identify("mnist", mnist_digest, (60_000, 10_000)) == "standard"
    assert sources.identify("mnist", "other", (60_000, 10_000)) == "own"
    assert sources.identify("svhn", "other", (73_257, 26_032)) == "standard size, contents not verified"
    assert sources.identify("imagenet50", "other", (25_000, 2_500)) == "part of Tiny-ImageNet"
    assert sources.identify("folder:x", mnist_digest, (60_000, 10_000)) == "own"
    assert list(sources.KNOWN["cifar10"].values()) == ["standard", "JPEG copy"]
    assert all(datasets.DATASETS[name].known is known for name, known in sources.KNOWN.items())


# ---------------------------------------------------------------- the user's own


def test_own_folder_of_mixed_sizes(tmp_path: Path) -> None:
    path = image_folder(tmp_path / "own", {"cat": 10, "dog": 5}, lambda i: (30 + i, 50 - i))
    data = datasets.load(f"folder:{path}")
    train = data.take_train()
    assert (data.class_names, data.variant, data.channels) == (("cat", "dog"), "own", 3)
    assert data.train_counts == (8, 4)
    assert torch.bincount(data.test.labels).tolist() == [2, 1]
    with Image.open(path / "cat" / "000.png") as file:
        first = datasets.resize(np.asarray(file).transpose(2, 0, 1)[None])[0]
    everything = torch.cat([train.images, data.test.images])
    assert any(torch.equal(first, image) for image in everything)
    assert datasets.load(f"folder:{path}").digest == data.digest
    half = datasets.load(f"folder:{path}", holdout=0.5)
    assert half.train_counts == (5, 3)
    assert half.digest == data.digest, "the digest is that of the files, however they are split"


def test_own_npz(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, images=GREY, labels=LABELS)
    data = datasets.load(f"npz:{path}")
    assert data.train_counts == (3,) * 10
    assert data.class_names == tuple(map(str, range(10)))
    np.savez(path, images=GREY, labels=LABELS, test_images=GREY[:10], test_labels=LABELS[:10])
    data = datasets.load(f"npz:{path}")
    assert data.train_counts == (4,) * 10
    assert len(data.test.labels) == 10
    assert all(line.ok for line in datasets.check(f"npz:{path}"))
    np.savez(path, images=GREY[:11], labels=LABELS[:11])
    with pytest.raises(DataError, match=r"own\.npz: class '1' has one image; two are needed"):
        datasets.load(f"npz:{path}")


@pytest.mark.parametrize("holdout", [0.0, 1.0, -1.0, float("nan")])
def test_holdout_must_be_a_share(holdout: float) -> None:
    with pytest.raises(ConfigError, match="holdout"):
        datasets.load("digits", holdout=holdout)


@pytest.mark.parametrize("name", ["minst", "folder", "folder:", "npz:", "", "../mnist"])
def test_unknown_names(name: str) -> None:
    for call in (datasets.load, datasets.check):
        with pytest.raises(ConfigError, match="folder:PATH, npz:PATH"):
            call(name)


def test_missing_files_say_what_to_do(root: Path) -> None:
    for name in ("mnist", "fashion-mnist", "svhn", "cifar10"):
        with pytest.raises(DataError) as caught:
            datasets.load(name)
        assert f"engram data fetch {name}" in str(caught.value)
        assert f"{root}/{name}/" in str(caught.value)
        assert sources.LAYOUT[name][-1] in str(caught.value)
    with pytest.raises(DataError, match="train/<class>") as caught:
        datasets.load("imagenet50")
    assert "fetch" not in str(caught.value)
    for name in ("folder:/no/such", "npz:/no/such.npz", "folder:~nobody-here/x"):
        with pytest.raises(DataError, match="no such"):
            datasets.load(name)


# ---------------------------------------------------------------- check and survey


def test_check(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [line.ok for line in datasets.check("mnist")] == [False]
    folder = mnist(root)
    lines = datasets.check("mnist")
    assert [line.what for line in lines] == ["files", "readable", "shapes", "counts", "contents"]
    assert [line.ok for line in lines] == [True, True, True, True, False]
    assert "no known copy" in lines[-1].detail
    assert "40 / 40" in lines[3].detail
    monkeypatch.setitem(sources.KNOWN["mnist"], datasets.load("mnist").digest, "tiny")
    assert datasets.check("mnist")[-1] == datasets.Check("contents", True, f"{datasets.load('mnist').digest} (tiny)")
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"x")
    lines = datasets.check("mnist")
    assert [line.ok for line in lines] == [True, False]
    assert "train-images-idx3-ubyte.gz" in lines[1].detail
    assert all(line.ok for line in datasets.check("digits"))
    assert not datasets.check("folder:/no/such")[-1].ok


def test_survey(root: Path) -> None:
    rows = {row.name: row for row in datasets.survey()}
    assert list(rows) == list(datasets.DATASETS)
    assert (rows["digits"].found, rows["digits"].train, rows["digits"].note) == ("embedded", 1442, "")
    assert (rows["mnist"].found, rows["mnist"].train, rows["mnist"].note) == (None, 60_000, "expected")
    folder = mnist(root)
    (root / "svhn").mkdir()
    for name in sources.LAYOUT["svhn"]:
        (root / "svhn" / name).write_bytes(b"garbage" * 40)
    (root / "cifar10").mkdir()
    for name in sources.LAYOUT["cifar10"]:
        (root / "cifar10" / name).write_bytes(b"x")
    (root / "imagenet50" / "train").mkdir(parents=True)
    (root / "imagenet50" / "val").write_text("a file where a folder belongs")
    rows = {row.name: row for row in datasets.survey()}
    assert (rows["mnist"].found, rows["mnist"].train, rows["mnist"].test, rows["mnist"].note) == (
        str(folder),
        40,
        40,
        "",
    )
    for name in ("svhn", "cifar10", "imagenet50"):
        assert rows[name].note.startswith("broken: ")


# ---------------------------------------------------------------- real files


@pytest.mark.parametrize(
    ("name", "variants", "counts"),
    [
        ("mnist", ["standard"], [(60_000, 10_000)]),
        ("fashion-mnist", ["standard"], [(60_000, 10_000)]),
        (
            "svhn",
            ["10,000 digits", "standard size, contents not verified"],
            [(7_999, 2_001), (73_257, 26_032)],
        ),
        ("cifar10", ["standard", "JPEG copy"], [(50_000, 10_000)]),
    ],
)
def test_real_sets(name: str, variants: list[str], counts: list[tuple[int, int]]) -> None:
    if not REAL or sources.locate(name, Path(REAL)) is None:
        pytest.skip(f"needs the real {name} under $ENGRAM_DATA")
    data = datasets.load(name, root=Path(REAL))
    assert data.variant in variants
    assert (sum(data.train_counts), len(data.test.labels)) in counts
    assert data.channels == datasets.DATASETS[name].channels


def test_real_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    if not REAL or not Path(REAL).is_dir():
        pytest.skip("needs real data under $ENGRAM_DATA")
    monkeypatch.setenv("ENGRAM_DATA", REAL)
    assert not [row for row in datasets.survey() if row.note.startswith("broken")]
