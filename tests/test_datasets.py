"""Names -> tensors: one size for all images, one resize, one digest; the training part is handed over once."""

from __future__ import annotations

import gc
import gzip
import hashlib
import os
import struct
import weakref
from collections import Counter
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
    digits = datasets.load_dataset("digits")
    train = digits.take_train()
    assert digits.digest == "1f88f4cd7f0ffddafb6ed7e9992ab0a02453c240be167f1672bf0c9f3db8f3c2"
    assert (digits.variant, digits.shape, digits.class_names) == ("standard", (1, 32, 32), tuple("0123456789"))
    assert (digits.scaling, digits.notes) == ("8x8, scaled to 32x32", ())
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
    expected = datasets.resize(fifth.astype(np.uint8)[None, None], 32)[0]
    torch.testing.assert_close(digits.test.images[digits.test.labels == 0][0], expected)


# ---------------------------------------------------------------- resize


def triangle(length: int, size: int) -> npt.NDArray[np.float64]:
    """(size, length) weights of a bilinear filter that widens with the scale, from its definition."""
    scale = length / size
    centres = (np.arange(size)[:, None] + 0.5) * scale
    weights = np.maximum(0, 1 - np.abs(np.arange(length) + 0.5 - centres) / max(scale, 1.0))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("size", datasets.SIZES)
@pytest.mark.parametrize("shape", [(28, 28), (8, 8), (64, 64), (32, 32), (45, 70), (100, 20), (1, 1)])
def test_resize_against_the_definition(shape: tuple[int, int], size: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 3, *shape), dtype=np.uint8)
    exact = triangle(shape[0], size) @ images.astype(float) @ triangle(shape[1], size).T
    ours = datasets.resize(images, size).numpy()
    assert ours.dtype == np.uint8
    assert ours.shape == (3, 3, size, size)
    assert np.abs(ours - exact).max() <= 0.5 + 1e-3


@pytest.mark.parametrize("size", datasets.SIZES)
def test_right_size_is_left_alone_and_shared(size: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 3, size, size), dtype=np.uint8)
    same = datasets.resize(images, size)
    np.testing.assert_array_equal(same.numpy(), images)
    assert same.data_ptr() == images.ctypes.data


def test_scaled_pixels_are_those_of_always() -> None:
    """A change of a single bit would part new runs from old ones."""
    digits = datasets.load_dataset("digits")
    train = digits.take_train()
    sums = [hashlib.sha256(part.images.numpy().tobytes()).hexdigest()[:16] for part in (train, digits.test)]
    assert sums == ["a900f379daba8d46", "5ab0e9f0854c2fa4"]


def test_any_size_shows_the_same_set(root: Path) -> None:
    mnist(root)
    small, large = (datasets.load_dataset("mnist", image_size=size) for size in (32, 64))
    assert (small.shape, large.shape) == ((1, 32, 32), (1, 64, 64))
    assert large.take_train().images.shape == (40, 1, 64, 64)
    assert torch.equal(large.test.images, datasets.resize(GREY[:, None], 64))
    assert torch.equal(small.test.labels, large.test.labels)
    assert small.digest == large.digest, "the digest is that of the files, whatever they are scaled to"
    assert (small.scaling, large.scaling) == ("28x28, scaled to 32x32", "28x28, scaled to 64x64")
    assert "1x64x64" in repr(large)


@pytest.mark.parametrize("size", [0, 28, 33, 128, -32])
def test_other_sizes_are_refused(size: int) -> None:
    for call in (datasets.load_dataset, datasets.check):
        with pytest.raises(ConfigError, match=f"image size {size}: must be 32 or 64"):
            call("digits", image_size=size)


def test_scaling_in_words() -> None:
    say = datasets.describe_scaling
    assert say(Counter({(64, 64): 3}), 64) == "64x64, as they are"
    assert say(Counter({(64, 64): 3}), 32) == "64x64, scaled to 32x32"
    assert say(Counter({(32, 32): 3, (40, 40): 1}), 32) == "from 32x32 to 40x40, scaled to 32x32"
    squeezed = "; 1,500 of 1,500 are not square and are squeezed"
    assert say(Counter({(64, 32): 1500}), 32) == f"64x32, scaled to 32x32{squeezed}"
    # smallest and largest by area: neither is the narrowest nor the tallest
    mixed: Counter[tuple[int, int]] = Counter({(5, 90): 1, (10, 10): 1, (50, 50): 1, (99, 1): 1})
    assert say(mixed, 32) == "from 99x1 to 50x50, scaled to 32x32; 2 of 4 are not square and are squeezed"


def test_blocks_do_not_change_the_outcome(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mnist(root)
    whole = datasets.load_dataset("mnist")
    monkeypatch.setattr(raw, "BLOCK", 28 * 28 * 7)
    pieces = datasets.load_dataset("mnist")
    assert torch.equal(whole.test.images, pieces.test.images)
    assert whole.digest == pieces.digest


# ---------------------------------------------------------------- the training part


def test_training_part_is_handed_over_once(root: Path) -> None:
    mnist(root)
    data = datasets.load_dataset("mnist")
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
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 9),
)
def test_held_out_share(counts: list[int], share: float, seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    mask = datasets.held_out(labels, share)
    np.testing.assert_array_equal(mask, datasets.held_out(labels, share))
    for label, count in enumerate(counts):
        held = int(mask[labels == label].sum())
        assert min(1, count - 1) <= held <= count - 1
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
    digests = [datasets.load_dataset("mnist", root=tmp_path / name).digest for name in "abcde"]
    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests)) == 3
    assert datasets.load_dataset("mnist", root=tmp_path / "a").variant == "own"


def test_data_folder_comes_before_the_cache(root: Path, tmp_path: Path) -> None:
    mnist(tmp_path / "cache", GREY[::2], LABELS[:20])
    assert len(datasets.load_dataset("mnist").test.labels) == 20
    mnist(root)
    assert len(datasets.load_dataset("mnist").test.labels) == 40
    (root / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()  # incomplete: passed over
    assert len(datasets.load_dataset("mnist").test.labels) == 20


def test_cifar_in_both_places(tmp_path: Path) -> None:
    rows = np.concatenate([LABELS[:, None], COLOUR.transpose(0, 3, 1, 2).reshape(40, -1)], axis=1)
    for folder in (tmp_path / "a" / "cifar10", tmp_path / "b" / "cifar10" / "cifar-10-batches-bin"):
        folder.mkdir(parents=True)
        for name in sources.LAYOUT["cifar10"]:
            rows.tofile(folder / name)
    a, b = (datasets.load_dataset("cifar10", root=tmp_path / name) for name in "ab")
    assert a.digest == b.digest
    assert a.train_counts == (20,) * 10
    np.testing.assert_array_equal(a.test.images.numpy(), COLOUR.transpose(0, 3, 1, 2))
    assert a.class_names[3] == "cat"


def test_svhn(root: Path) -> None:
    (root / "svhn").mkdir(parents=True)
    for name in sources.LAYOUT["svhn"]:
        savemat(root / "svhn" / name, {"X": COLOUR.transpose(1, 2, 3, 0), "y": (LABELS + 1)[:, None]})
    data = datasets.load_dataset("svhn")
    assert data.test.labels.tolist()[8:11] == [9, 0, 1]
    np.testing.assert_array_equal(data.test.images.numpy(), COLOUR.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("test", ["val", "test"])
def test_imagenet50(root: Path, test: str) -> None:
    classes = {f"n{i:03}": 1 for i in range(50)}
    folder = root / "imagenet50"
    image_folder(folder / "train", classes, lambda i: (40, 36))
    image_folder(folder / test, classes, lambda i: (32, 32))
    (folder / "classes.txt").write_text("n000\tgoldfish, Carassius auratus\nn001\n", encoding="utf-8")
    data = datasets.load_dataset("imagenet50")
    assert data.class_names[:3] == ("goldfish", "n001", "n002")
    assert data.take_train().images.shape == (50, 3, 32, 32)
    assert data.notes == ()
    marks = {line.what: line.ok for line in datasets.check("imagenet50")}
    assert marks == {"files": True, "readable": True, "shapes": True, "counts": True, "copies": True, "contents": None}
    (folder / "train" / "n007" / "000.png").write_bytes(b"x")
    with pytest.raises(DataError, match="n007"):
        datasets.load_dataset("imagenet50")
    assert not datasets.check("imagenet50")[-1].ok


def test_standard_sets_need_their_classes_and_channels(root: Path) -> None:
    mnist(root, labels=LABELS % 9)
    with pytest.raises(DataError, match=r"mnist: no image has label 9; labels must be 0\.\.9"):
        datasets.load_dataset("mnist")
    for part in ("train", "val"):
        image_folder(root / "imagenet50" / part, {"a": 1, "b": 1}, lambda i: (32, 32))
    with pytest.raises(DataError, match="no image has label 2"):
        datasets.load_dataset("imagenet50")


def test_variants() -> None:
    (mnist_digest,) = sources.KNOWN["mnist"]
    assert sources.identify("mnist", mnist_digest, (60_000, 10_000)) == "standard"
    assert sources.identify("mnist", "other", (60_000, 10_000)) == "own"
    assert sources.identify("svhn", "other", (73_257, 26_032)) == "standard size, contents not verified"
    assert sources.identify("imagenet50", "other", (25_000, 2_500)) == (
        "size of the part of Tiny-ImageNet, contents not verified"
    )
    assert sources.identify("folder:x", mnist_digest, (60_000, 10_000)) == "own"
    assert list(sources.KNOWN["cifar10"].values()) == ["standard", "JPEG copy"]
    assert list(sources.KNOWN["svhn"].values()) == ["10,000 digits", "full, cut again"]
    assert all(datasets.DATASETS[name].known is known for name, known in sources.KNOWN.items())


# ---------------------------------------------------------------- the user's own


def test_own_folder_of_mixed_sizes(tmp_path: Path) -> None:
    path = image_folder(tmp_path / "own", {"cat": 10, "dog": 5}, lambda i: (30 + i, 50 - i))
    data = datasets.load_dataset(f"folder:{path}")
    train = data.take_train()
    assert (data.class_names, data.variant, data.shape) == (("cat", "dog"), "own", (3, 32, 32))
    assert data.train_counts == (8, 4)
    assert torch.bincount(data.test.labels).tolist() == [2, 1]
    with Image.open(path / "cat" / "000.png") as file:
        first = datasets.resize(np.asarray(file).transpose(2, 0, 1)[None], 32)[0]
    everything = torch.cat([train.images, data.test.images])
    assert any(torch.equal(first, image) for image in everything)
    assert datasets.load_dataset(f"folder:{path}").digest == data.digest
    half = datasets.load_dataset(f"folder:{path}", holdout=0.5)
    assert half.train_counts == (5, 3)
    assert half.digest == data.digest, "the digest is that of the files, however they are split"
    scaling = "from 30x50 to 39x41, scaled to 32x32; 15 of 15 are not square and are squeezed"
    assert (data.scaling, data.notes) == (scaling, ())


def test_what_was_left_out_is_said(tmp_path: Path) -> None:
    path = image_folder(tmp_path / "own", {"mug": 5, "pen": 5}, lambda i: (32, 32))
    before = datasets.load_dataset(f"folder:{path}")
    for name in ("b.txt", "a.gif", "c\nd.tiff"):
        (path / "mug" / name).write_text("no image")
    (path / "pen" / "deep").mkdir()
    (path / "pen" / "deep" / "e.txt").write_text("no image")
    (path / "pen" / ".hidden").write_text("no image")
    (path / "list.csv").write_text("no image")
    data = datasets.load_dataset(f"folder:{path}")
    assert data.notes == (
        "1 file was left out: outside every class folder (first: list.csv)",
        "4 files were left out: not PNG, JPEG, WebP or BMP (first: mug/a.gif)",
    )
    assert data.digest == before.digest
    assert torch.equal(data.test.images, before.test.images)
    lines = datasets.check(f"folder:{path}")
    assert [line.detail for line in lines if line.what == "note"] == list(data.notes)
    assert all(line.ok for line in lines)


def test_notes_are_of_one_line_whatever_the_names(tmp_path: Path) -> None:
    path = image_folder(tmp_path / "own", {"a\nb": 1, "c": 2}, lambda i: (32, 32))
    (path / "c" / "x\ny.txt").write_text("no image")
    (path / os.fsdecode(b"z\xff")).write_text("no image")
    notes = datasets.load_dataset(f"folder:{path}").notes
    assert len(notes) == 3
    for note in notes:
        assert "\n" not in note
        assert note.isprintable()
        note.encode()  # can be written anywhere


def test_folders_beside_train_are_said(tmp_path: Path) -> None:
    """A set with a class that is called "train" loses the others: at least it says so."""
    path = image_folder(tmp_path / "own", {"bus": 1, "car": 1, "train/a": 3, "train/b": 3}, lambda i: (32, 32))
    (path / "train" / "a" / "x.txt").write_text("no image")
    (path / "y.txt").write_text("no image")
    data = datasets.load_dataset(f"folder:{path}")
    assert data.class_names == ("a", "b")
    assert set(data.notes) == {
        "2 folders were left out: beside train/ (first: bus)",
        "1 file was left out: outside every class folder (first: y.txt)",
        "1 file was left out: not PNG, JPEG, WebP or BMP (first: train/a/x.txt)",
    }
    image_folder(path, {"val/a": 1, "val/b": 1, "test/a": 2, "test/b": 2}, lambda i: (32, 32))
    data = datasets.load_dataset(f"folder:{path}")
    assert len(data.test.labels) == 4
    assert "3 folders were left out: beside train/ (first: bus)" in data.notes


def test_a_class_with_one_image_is_learned_and_not_tested(tmp_path: Path) -> None:
    path = image_folder(tmp_path / "own", {"a": 1, "b": 10, "c": 1}, lambda i: (32, 32))
    data = datasets.load_dataset(f"folder:{path}")
    assert data.train_counts == (1, 8, 1)
    assert data.test.labels.tolist() == [1, 1]
    (note,) = data.notes
    assert note == "2 classes have one image each: it is for training, and they are not tested (first: 'a')"
    (path / "c" / "1.png").write_bytes((path / "b" / "001.png").read_bytes())
    (note,) = datasets.load_dataset(f"folder:{path}").notes
    assert note == "class 'a' has one image: it is for training, and the class is not tested"
    assert any(line.detail == note for line in datasets.check(f"folder:{path}"))


@pytest.mark.parametrize("classes", [{"a": 1}, {"a": 1, "b": 1}])
def test_a_set_needs_something_to_test(tmp_path: Path, classes: dict[str, int]) -> None:
    path = image_folder(tmp_path / "own", classes, lambda i: (32, 32))
    with pytest.raises(DataError, match=r"no class has two images.*add images, or a test part"):
        datasets.load_dataset(f"folder:{path}")
    image_folder(tmp_path / "parts" / "train", classes, lambda i: (32, 32))
    image_folder(tmp_path / "parts" / "test", classes, lambda i: (32, 32))
    data = datasets.load_dataset(f"folder:{tmp_path / 'parts'}")
    assert (len(data.test.labels), data.notes) == (len(classes), ())


def test_one_class_is_enough(tmp_path: Path) -> None:
    path = image_folder(tmp_path / "own", {"mug": 10}, lambda i: (32, 32))
    np.savez(tmp_path / "own.npz", images=GREY, labels=LABELS * 0)
    for name, counts in ((f"folder:{path}", (8,)), (f"npz:{tmp_path / 'own.npz'}", (32,))):
        data = datasets.load_dataset(name)
        assert data.train_counts == counts
        assert set(data.test.labels.tolist()) == {0}
        (counted,) = (line.detail for line in datasets.check(name) if line.what == "counts")
        assert "1 class " in counted


def test_own_npz(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, images=GREY, labels=LABELS)
    data = datasets.load_dataset(f"npz:{path}")
    assert data.train_counts == (3,) * 10
    assert data.class_names == tuple(map(str, range(10)))
    np.savez(path, images=GREY, labels=LABELS, test_images=GREY[:10], test_labels=LABELS[:10])
    data = datasets.load_dataset(f"npz:{path}")
    assert data.train_counts == (4,) * 10
    assert len(data.test.labels) == 10
    assert all(line.ok for line in datasets.check(f"npz:{path}"))
    np.savez(path, images=GREY[:11], labels=LABELS[:11])
    data = datasets.load_dataset(f"npz:{path}")
    assert data.train_counts == (1,) * 10
    assert data.test.labels.tolist() == [0]
    assert data.notes[0].startswith("9 classes have one image each")
    np.savez(path, images=GREY[:10], labels=LABELS[:10])
    with pytest.raises(DataError, match=r"own\.npz: no class has two images"):
        datasets.load_dataset(f"npz:{path}")


@pytest.mark.parametrize("holdout", [0.0, 1.0, -1.0, float("nan")])
def test_holdout_must_be_a_share(holdout: float) -> None:
    with pytest.raises(ConfigError, match="holdout"):
        datasets.load_dataset("digits", holdout=holdout)


@pytest.mark.parametrize("name", ["minst", "folder", "folder:", "npz:", "", "../mnist"])
def test_unknown_names(name: str) -> None:
    for call in (datasets.load_dataset, datasets.check):
        with pytest.raises(ConfigError, match="folder:PATH, npz:PATH"):
            call(name)


def test_missing_files_say_what_to_do(root: Path) -> None:
    for name in ("mnist", "fashion-mnist", "svhn", "cifar10"):
        with pytest.raises(DataError) as caught:
            datasets.load_dataset(name)
        assert f"engram data fetch {name}" in str(caught.value)
        assert f"{root}/{name}/" in str(caught.value)
        assert sources.LAYOUT[name][-1] in str(caught.value)
    with pytest.raises(DataError, match="train/<class>") as caught:
        datasets.load_dataset("imagenet50")
    assert "fetch" not in str(caught.value)
    for name in ("folder:/no/such", "npz:/no/such.npz", "folder:~nobody-here/x"):
        with pytest.raises(DataError, match="no such"):
            datasets.load_dataset(name)


# ---------------------------------------------------------------- check and survey


def test_check(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [line.ok for line in datasets.check("mnist")] == [False]
    folder = mnist(root)
    lines = datasets.check("mnist")
    assert [line.what for line in lines] == ["files", "readable", "shapes", "counts", "copies", "contents"]
    assert [line.ok for line in lines] == [True, True, True, True, True, False]
    assert "no known digest" in lines[-1].detail
    assert "40 / 40" in lines[3].detail
    assert lines[2].detail == "1 channel(s), uint8, 28x28, scaled to 32x32"
    assert datasets.check("mnist", image_size=64)[2].detail == "1 channel(s), uint8, 28x28, scaled to 64x64"
    monkeypatch.setitem(sources.KNOWN["mnist"], datasets.load_dataset("mnist").digest, "tiny")
    assert datasets.check("mnist")[-1] == datasets.Check(
        "contents", True, f"{datasets.load_dataset('mnist').digest} (tiny)"
    )
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"x")
    lines = datasets.check("mnist")
    assert [line.ok for line in lines] == [True, False]
    assert "train-images-idx3-ubyte.gz" in lines[1].detail
    assert all(line.ok for line in datasets.check("digits"))
    assert not datasets.check("folder:/no/such")[-1].ok


def copies(name: str) -> str:
    (line,) = (line for line in datasets.check(name) if line.what == "copies")
    assert line.ok is True, "no fault of the files"
    return line.detail


def test_copies_are_counted_and_said(tmp_path: Path) -> None:
    """Of training images in the test part, and of images under two labels; nothing else about them is wrong."""
    path = tmp_path / "own.npz"
    images, labels = GREY[:20].copy(), LABELS[:20] % 4

    def save(test: npt.NDArray[np.uint8], test_labels: npt.NDArray[np.uint8]) -> str:
        np.savez(path, images=images, labels=labels, test_images=test, test_labels=test_labels)
        return f"npz:{path}"

    four = np.arange(4, dtype=np.uint8)
    none = "no test image is a training one, none has two labels, at 32x32"
    assert copies(save(GREY[20:24], four)) == none
    images[4] = images[8] = images[0]  # one label: no matter
    assert copies(save(GREY[20:24], four)) == none
    assert copies(save(np.concatenate([images[:3], GREY[20:22]]), np.array([0, 1, 2, 3, 3], np.uint8))) == (
        "3 of 5 test images are training images too, at 32x32"
    )
    images[5] = images[0]
    text = copies(save(GREY[20:24], four))
    assert text == "1 image under two labels or more (first: '0' and '1'), at 32x32"
    images[6], images[7] = images[0], images[11]
    assert copies(save(np.concatenate([images[2:3], GREY[20:23]]), four[[3, 0, 1, 2]])) == (
        "1 of 4 test images are training images too and "
        "3 images under two labels or more (first: '0' and '1'), at 32x32"
    )
    features = np.eye(8, dtype=np.float32)
    np.savez(path, features=features, labels=LABELS[:8] % 2, test_features=features[:2], test_labels=LABELS[:2] % 2)
    assert copies(f"npz:{path}") == "2 of 2 test vectors are training vectors too"


def test_what_is_known_by_its_size_alone_was_not_checked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mnist(root)
    monkeypatch.setitem(sources.BY_SIZE, "mnist", {(40, 40): "standard size"})
    line = datasets.check("mnist")[-1]
    assert (line.what, line.ok) == ("contents", None)
    assert "standard size" in line.detail


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
            ["10,000 digits", "full, cut again", "standard size, contents not verified"],
            [(7_999, 2_001), (73_257, 26_032)],
        ),
        ("cifar10", ["standard", "JPEG copy"], [(50_000, 10_000)]),
    ],
)
def test_real_sets(name: str, variants: list[str], counts: list[tuple[int, int]]) -> None:
    if not REAL or sources.locate(name, Path(REAL)) is None:
        pytest.skip(f"needs the real {name} under $ENGRAM_DATA")
    data = datasets.load_dataset(name, root=Path(REAL))
    assert data.variant in variants
    assert (sum(data.train_counts), len(data.test.labels)) in counts
    assert data.shape == (datasets.DATASETS[name].channels, 32, 32)


def test_real_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    if not REAL or not Path(REAL).is_dir():
        pytest.skip("needs real data under $ENGRAM_DATA")
    monkeypatch.setenv("ENGRAM_DATA", REAL)
    assert not [row for row in datasets.survey() if row.note.startswith("broken")]
