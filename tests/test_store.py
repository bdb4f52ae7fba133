"""Prepared copies: the same tasks to the bit, one task in memory, nobody's without asking, and whole or not there."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import tracemalloc
import warnings
import weakref
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from engram import run
from engram.cli import call
from engram.data import cache, limits, sources
from engram.data.cache import clear, copies
from engram.data.datasets import Dataset, check, load_dataset, read_raw
from engram.data.images import decode_image
from engram.data.npz import read_npz
from engram.data.prepare import Prepared, prepare
from engram.data.raw import ImageFiles, content_digest
from engram.data.store import FORMAT, MANIFEST, Facts, Store, Writer, _hash_of, whole_folder
from engram.data.stream import ClassStream
from engram.errors import ConfigError, DataError, EngramError, StrictnessError
from engram.experiment.records import read_records

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
POSIX = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("ENGRAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / cache.OUT


def write_folder(root: Path, *, classes: int = 4, per_class: int = 9, parts: tuple[str, ...] = ()) -> str:
    """Photographs of many sizes and formats, grey ones among them."""
    draws = np.random.default_rng(3)
    for part in parts or (".",):
        for number in range(classes):
            folder = root / part / f"class {number}"
            folder.mkdir(parents=True)
            for image in range(per_class):
                height, width = draws.integers(8, 40, 2)
                pixels = draws.integers(0, 256, (height, width, 3), dtype=np.uint8)
                kind = ("png", "jpg", "webp", "bmp")[image % 4]
                Image.fromarray(pixels[:, :, 0] if image == 5 else pixels).save(folder / f"{image}.{kind}")
    return f"folder:{root}"


def write_arrays(path: Path, *, classes: int = 4, per_class: int = 10, test: bool = False, **more: Any) -> str:
    """Colour images whose classes come mixed."""
    draws = np.random.default_rng(5)
    labels = draws.permutation(np.repeat(np.arange(classes), per_class))
    arrays = {"images": draws.integers(0, 256, (len(labels), 20, 20, 3), dtype=np.uint8), "labels": labels}
    if test:
        arrays |= {"test_images": arrays["images"][::3] // 2, "test_labels": np.arange(len(labels[::3])) % classes}
    np.savez(path, **{**arrays, **more})
    return f"npz:{path}"


def write_vectors(path: Path) -> str:
    draws = np.random.default_rng(7)
    labels = draws.permutation(np.repeat(np.arange(4), 10))
    np.savez(path, features=draws.standard_normal((40, 12)), labels=labels, class_names=list("abcd"))
    return f"npz:{path}"


def write_mnist(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A set of its name and layout, in which every digit has a few images."""
    draws = np.random.default_rng(9)
    folder = root / "mnist"
    folder.mkdir()
    for stem, count in (("train", 60), ("t10k", 30)):
        images = draws.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = draws.permutation(np.arange(count) % 10).astype(np.uint8)
        head = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in images.shape)
        (folder / f"{stem}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        (folder / f"{stem}-labels-idx1-ubyte").write_bytes(
            b"\0\0\x08\x01" + count.to_bytes(4, "big") + labels.tobytes()
        )
    monkeypatch.setenv("ENGRAM_DATA", str(root))
    return "mnist"


SETS: dict[str, Callable[[Path, pytest.MonkeyPatch], str]] = {
    "folder": lambda at, _: write_folder(at / "images"),
    "folder with a test part": lambda at, _: write_folder(at / "images", parts=("train", "test")),
    "npz": lambda at, _: write_arrays(at / "a.npz"),
    "npz with a test part": lambda at, _: write_arrays(at / "a.npz", test=True),
    "vectors": lambda at, _: write_vectors(at / "v.npz"),
    "named": write_mnist,
    "embedded": lambda *_: "digits",
}


def everything(dataset: Dataset, **options: Any) -> list[Any]:
    """All that a run sees of a set, in its order."""
    found: list[Any] = [
        repr(dataset), dataset.digest, dataset.variant, dataset.class_names, dataset.scaling, dataset.notes,
        dataset.train_counts, dataset.test.images, dataset.test.labels, dataset.backbone,
    ]  # fmt: skip
    skipped = options.pop("skipped", 0)
    stream = ClassStream(dataset, **options)
    stream.skip_to(skipped)
    for task in stream:
        found += [task.classes, task.seen, task.images.clone(), task.targets.clone(), stream.sizes]
        if task.validation is not None:
            found += [task.validation.images.clone(), task.validation.targets.clone()]
    return found


def same(one: list[Any], other: list[Any]) -> bool:
    def equal(a: Any, b: Any) -> bool:
        return torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, Tensor) else bool(a == b)

    return len(one) == len(other) and all(map(equal, one, other))


# ---------------------------------------------------------------- the same to the bit


@pytest.mark.parametrize("kind", SETS)
def test_a_prepared_set_gives_the_same_to_the_bit(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = SETS[kind](tmp_path, monkeypatch)
    ways: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"classes_per_task": 2}),
        ({"holdout": 0.4}, {"order_seed": 3, "validation": 0.3, "first_task": 3}),
        ({"development": True}, {"classes_per_task": 3, "cumulative": True, "order": [3, 1, 2]}),
        ({}, {"order": [2, 0, 1, 3], "skipped": 2}),
    ]
    plain = [everything(load_dataset(name, **own), **options) for own, options in ways]
    assert prepare(name).made
    monkeypatch.setattr("engram.data.datasets.read_raw", None)  # the files are not read again
    for before, (own, options) in zip(plain, ways, strict=True):
        assert same(before, everything(load_dataset(name, **own), **options))


def test_each_image_size_has_a_copy_of_its_own(tmp_path: Path, place: Path) -> None:
    name = write_folder(tmp_path / "images")
    plain = {size: everything(load_dataset(name, image_size=size)) for size in (32, 64)}
    prepare(name, image_size=64)
    for size in (32, 64):
        assert same(plain[size], everything(load_dataset(name, image_size=size)))
    assert [path.name.split("-")[1] for path in place.iterdir()] == ["64"]


def test_a_run_on_a_copy_has_the_records_of_one_without(tmp_path: Path) -> None:
    """And goes on without it when it is removed in the middle."""
    name = write_arrays(tmp_path / "a.npz", per_class=12)
    settings = {"features.filters": 8, "stream.classes_per_task": 2}

    def go(out: str, *, resume: bool = False) -> list[Any]:
        folder = run(name, "ncm", settings={} if resume else settings, out=tmp_path / out, resume=resume)
        return [line for line in read_records(folder) if line["kind"] != "timing"]

    plain = go("plain")
    prepare(name)
    assert go("copied") == plain
    read, calls = Store.read, Counter[str]()

    def until_cleared(store: Store, part: str, rows: Any) -> Any:
        calls[part] += 1
        if calls[part] == 4:
            clear()
        return read(store, part, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "read", until_cleared)
        with pytest.raises(DataError, match=r"gone; make it anew with `engram data prepare`"):
            go("broken off")
    assert go("broken off", resume=True) == plain


def test_a_stream_that_is_handed_over_is_read_whole(tmp_path: Path) -> None:
    """As a model takes it in; and its tasks are looked at before they begin, as for an audit file."""
    name = write_arrays(tmp_path / "a.npz")

    def found() -> list[Any]:
        stream = ClassStream(load_dataset(name), 2, order=[3, 1, 0])
        looked = [torch.from_numpy(stream.images_of(task)).clone() for task in range(2)]
        whole = stream.hand_over()
        return [*looked, whole.images, whole.labels]

    plain = found()
    prepare(name)
    assert same(plain, found())


def test_a_store_gives_rows_in_any_order(tmp_path: Path) -> None:
    draws = np.random.default_rng(1)
    labels = np.array([2, 0, 2, 2, 0, 2])  # class 1 has none
    images = draws.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    store = write_store(tmp_path / "s", images, labels)
    for rows in ([0, 1, 2, 3, 4, 5], [5, 0, 4], [3], []):
        assert np.array_equal(store.read("train", np.array(rows, int)), images[rows])
    assert (tmp_path / "s" / "train-00002.bin").read_bytes() == images[labels == 2].tobytes()
    assert not (tmp_path / "s" / "train-00001.bin").exists()


def write_store(folder: Path, images: Any, labels: Any, names: tuple[str, ...] = ("a", "b", "c")) -> Store:
    with whole_folder(folder) as building:
        writer = Writer(building, shape=images.shape[1:], labels={"train": labels})
        for at in range(0, len(images), 4):
            writer.add("train", images[at : at + 4])
        size = images.shape[-1]
        facts = Facts("made up", names, images.shape[1:], size, "0" * 64, Counter({(size, size): len(images)}))
        writer.finish(facts)
    return Store(folder)


def test_a_copy_in_a_folder_of_its_own_needs_no_other_file(tmp_path: Path, place: Path) -> None:
    name = write_arrays(tmp_path / "a.npz")
    plain = everything(load_dataset(name))
    prepare(name, out=tmp_path / "cut")
    assert not place.exists(), "it goes where it was told to, and nowhere else"
    assert str(tmp_path) not in (tmp_path / "cut" / MANIFEST).read_text(), "whoever gets it learns no path"
    os.remove(tmp_path / "a.npz")
    shutil.move(tmp_path / "cut", tmp_path / "moved")
    found = everything(load_dataset(f"prepared:{tmp_path / 'moved'}"))
    assert same(plain[1:], found[1:])
    with pytest.raises(ConfigError, match=r"have the size 32, not 64"):
        load_dataset(f"prepared:{tmp_path / 'moved'}", image_size=64)
    with pytest.raises(DataError, match=r"is there already"):
        prepare("digits", out=tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"prepared already"):
        prepare(f"prepared:{tmp_path / 'moved'}")
    with pytest.raises(DataError, match=r"is for `engram run`.*give the data it was made from"):
        read_raw(f"prepared:{tmp_path / 'moved'}")
    with pytest.raises(DataError, match=r"manifest.json: no such file"):
        load_dataset(f"prepared:{tmp_path}")


# ---------------------------------------------------------------- nobody's without asking


def test_nobody_has_a_copy_who_did_not_ask(tmp_path: Path, place: Path) -> None:
    name = write_arrays(tmp_path / "a.npz", per_class=12)
    run(name, "ncm", settings={"features.filters": 8}, out=tmp_path / "run")
    assert not place.parent.exists()


def holders(where: Path, wanted: list[bytes]) -> list[str]:
    """The files below a folder in which some of these bytes stand; those of .npz files unpacked."""
    found = []
    for path in (path for path in where.rglob("*") if path.is_file()):
        contents = [path.read_bytes()]
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as file:
                contents += [file.read(member) for member in file.namelist()]
        if any(some in content for content in contents for some in wanted):
            found.append(path.name)
    return found


def test_learn_leaves_no_image_on_disc(tmp_path: Path) -> None:
    """The data folder is deleted afterwards; cache, model, temporary files and home are searched for its images."""
    name = write_folder(tmp_path / "images", classes=2)
    dataset = load_dataset(name)
    images = torch.cat([dataset.train.images, dataset.test.images]).numpy()
    files = [path.read_bytes() for path in (tmp_path / "images").rglob("*.*")]
    wanted = [image[0, 10:14].tobytes() for image in images] + [content[-64:] for content in files]
    home = tmp_path / "home"
    places = {"HOME": home, "TMPDIR": home / "tmp", "ENGRAM_CACHE": home / "cache"}
    (home / "tmp").mkdir(parents=True)
    words = ["learn", str(home / "m.engram"), str(tmp_path / "images"), "--method", "ncm", "--preset", "default"]
    environment = {**os.environ, **{key: str(path) for key, path in places.items()}}
    subprocess.run([sys.executable, "-m", "engram", *words, "--quiet"], check=True, env=environment, cwd=home)
    assert (home / "m.engram").exists()
    assert holders(home, wanted) == []
    with pytest.MonkeyPatch.context() as patch:  # the search finds what is there: a copy that was asked for
        patch.setenv("ENGRAM_CACHE", str(home / "cache"))
        prepare(name)
        assert sorted(holders(home, wanted)) == ["train-00000.bin", "train-00001.bin"]
        shutil.rmtree(tmp_path / "images")
        assert [copy.about for copy in copies()] == ["18 at 32x32: its files are gone"]
        with pytest.raises(DataError, match="no such folder"):
            load_dataset(name)
        clear()
        assert holders(home, wanted) == []


def test_copies_are_listed_and_cleared(tmp_path: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = write_folder(tmp_path / "images"), write_vectors(tmp_path / "v.npz")
    assert call(["data", "cache"]) == 0
    assert capsys.readouterr().out == "no data set is prepared\n"
    assert call(["data", "prepare", one]) == call(["data", "prepare", other]) == 0
    out = capsys.readouterr().out
    for text in ("36 in 4 classes", "40 in 4 classes", f"runs on {one} read it from now on"):
        assert text in out
    assert call(["data", "prepare", one]) == 0
    assert "was there already" in capsys.readouterr().out
    assert call(["data", "cache"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert f"{one}, 0.1 MB, 36 at 32x32: fresh" in lines[0]
    assert f"{other}, 0.0 MB, 40 at vectors of 12: fresh" in lines[1]
    assert call(["data", "cache", other]) == 2, "without a word nothing is removed"
    assert call(["data", "cache", "--clear", "mnist"]) == 2
    assert "there is no prepared copy of mnist" in capsys.readouterr().err
    assert call(["data", "cache", "--clear", other]) == 0
    assert len(list(place.iterdir())) == 1
    assert call(["data", "cache", "--clear"]) == 0
    assert not place.exists()


# ---------------------------------------------------------------- strictness


def mapped() -> str:
    return Path("/proc/self/maps").read_text()


def is_open(path: Path) -> bool:
    return str(path) in {os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()}


@LINUX
def test_a_tasks_file_is_mapped_only_while_its_images_are_copied(tmp_path: Path, place: Path) -> None:
    name = write_arrays(tmp_path / "a.npz")
    prepare(name)
    files = [next(place.iterdir()) / f"train-{number:05d}.bin" for number in range(4)]
    dataset = load_dataset(name)
    store = next(iter(dataset.train.__dict__["_at"]))
    with store._mapped("train", 0) as images:
        assert str(files[0]) in mapped(), "this is how a mapping is seen"
        assert len(images)
    del images
    for task in ClassStream(dataset, 2, validation=0.2):
        assert len(task.images)
        assert task.validation is not None
        assert not any(str(file) in mapped() or is_open(file) for file in files)
        assert len(dataset.test.rows(torch.arange(3))) == 3
    assert not any(str(file) in mapped() or is_open(file) for file in files)


def test_the_memory_that_a_past_task_was_read_into_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write_arrays(tmp_path / "a.npz")
    prepare(name)
    read, owners = Store.read, list[weakref.ref[Any]]()

    def seen(store: Store, part: str, rows: Any) -> Any:
        found = read(store, part, rows)
        assert found.base is None, "it owns its memory"
        owners.append(weakref.ref(found))
        return found

    monkeypatch.setattr(Store, "read", seen)
    tasks = iter(ClassStream(load_dataset(name)))
    task = next(tasks)
    assert owners[0]() is not None
    next(tasks)
    gc.collect()
    assert owners[0]() is None
    with pytest.raises(StrictnessError, match=r"task 1 .* is over"):
        _ = task.images


@pytest.mark.parametrize("hide", [lambda t: t.images[:3], lambda t: t.images.numpy(), lambda t: t.targets])
def test_a_view_of_a_prepared_task_is_noticed(tmp_path: Path, hide: Any) -> None:
    name = write_arrays(tmp_path / "a.npz")
    prepare(name)
    tasks = iter(ClassStream(load_dataset(name)))
    hidden = hide(next(tasks))
    with pytest.raises(StrictnessError, match="still held"):
        next(tasks)
    assert len(hidden)


def test_a_prepared_task_leads_to_no_file(tmp_path: Path) -> None:
    name = write_arrays(tmp_path / "a.npz")
    prepare(name)
    task = next(ClassStream(load_dataset(name)))
    queue, found = [task], {}
    while queue:
        thing: Any = queue.pop()
        if id(thing) not in found and not isinstance(thing, type):
            found[id(thing)] = thing
            queue += [] if isinstance(thing, Tensor) else gc.get_referents(thing)
    assert not any(isinstance(thing, Store | Path | Dataset | ClassStream) for thing in found.values())


# ---------------------------------------------------------------- memory


def peak_of(act: Callable[[], object]) -> int:
    """Bytes that numpy and Python held at most. What torch allots is not seen: a stream gets its images by numpy."""
    gc.collect()
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_task_costs_its_own_images(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(20), 300)
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 3, 32, 32), dtype=np.uint8)
    write_store(tmp_path / "s", images, labels, tuple(map(str, range(20))))

    def walk() -> None:
        dataset = load_dataset(f"prepared:{tmp_path / 's'}")
        for task in ClassStream(dataset, 2, validation=0.1):
            for at in range(0, len(dataset.test.labels), 50):
                assert len(dataset.test.rows(torch.arange(at, at + 40))) == 40
            assert len(task)

    assert peak_of(walk) < images.nbytes / 5, "two of twenty classes, and a batch of the test part"


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_an_npz_file_is_prepared_in_pieces(tmp_path: Path, write: Any) -> None:
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, (20_000, 16, 16, 3), dtype=np.uint8)
    write(tmp_path / "a.npz", images=images, labels=np.arange(len(images)) % 7)
    digest, size = content_digest(read_npz(tmp_path / "a.npz")), images.nbytes
    assert content_digest(read_npz(tmp_path / "a.npz", in_pieces=True)) == digest
    raw = read_npz(tmp_path / "a.npz", in_pieces=True).train
    found = np.concatenate([block for block, _ in raw.blocks()])
    assert np.array_equal(found, images.transpose(0, 3, 1, 2))
    del images, found
    assert peak_of(lambda: content_digest(read_npz(tmp_path / "a.npz", in_pieces=True))) < size / 2


def test_an_npz_file_in_pieces_is_refused_for_what_it_is_refused_whole(tmp_path: Path) -> None:
    grey = np.zeros((300, 8, 8), np.uint8)
    labels = np.arange(300) % 3
    bad = np.zeros((300, 5000), np.float32)
    bad[250, 3] = np.inf
    faults: list[dict[str, Any]] = [
        {"images": grey.astype(np.float32), "labels": labels},
        {"images": grey.astype(np.uint16), "labels": labels},
        {"images": np.zeros((300, 8, 8, 2), np.uint8), "labels": labels},
        {"images": grey, "labels": labels[:-1]},
        {"images": grey, "features": bad, "labels": labels},
        {"features": bad, "labels": labels},
        {"features": labels[:, None], "labels": labels},
        {"images": np.array([[None]]), "labels": labels},
    ]
    for number, arrays in enumerate(faults):
        path = tmp_path / f"{number}.npz"
        np.savez(path, **arrays)
        said = []
        for in_pieces in (False, True):
            with pytest.raises(DataError) as error:
                content_digest(read_npz(path, in_pieces=in_pieces))
            said.append(str(error.value))
        assert said[0] == said[1]
    path = tmp_path / "flipped.npz"
    np.savez(path, images=np.arange(192_000, dtype=np.uint8).reshape(-1, 8, 8), labels=np.arange(3000) % 3)
    content = bytearray(path.read_bytes())
    content[100_000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"flipped.npz: no readable .npz file \(Bad CRC-32"):
        prepare(f"npz:{path}")
    assert copies() == []


def test_what_is_done_with_a_piece_may_warn(tmp_path: Path) -> None:
    """Decoders are quiet while they read, and nobody else is."""
    before = list(warnings.filters)
    for _ in read_npz(Path(write_arrays(tmp_path / "a.npz").removeprefix("npz:")), in_pieces=True).train.blocks():
        assert warnings.filters == before


# ---------------------------------------------------------------- decoding


def test_images_decoded_on_all_cores_come_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engram.data.raw.cores", lambda: 8)
    monkeypatch.setattr("engram.data.raw.LARGE", 0)
    write_folder(tmp_path / "images", per_class=30)
    paths = tuple(sorted((tmp_path / "images").rglob("*.*")))
    alone = [decode_image(path, 3) for path in paths]
    before = list(warnings.filters)
    found = list(ImageFiles(paths, 3, decode_image))
    assert warnings.filters == before, "what decoders warn about is let pass only while they are at work"
    assert all(np.array_equal(one, other) for one, other in zip(alone, found, strict=True))
    for number in (40, 70):
        paths[number].write_bytes(b"no image")
    with pytest.raises(DataError, match=paths[40].name) as error:
        list(ImageFiles(paths, 3, decode_image))
    assert str(paths[40]) in str(error.value), "the first one in the order, whichever was decoded first"


def test_few_images_are_decoded_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engram.data.raw.cores", lambda: 3)
    monkeypatch.setattr("engram.data.raw.LARGE", 0)
    decoded: list[Path] = []

    def decode(path: Path, channels: int) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        decoded.append(path)
        return np.zeros((channels, 2, 2), np.uint8)

    images = iter(ImageFiles(tuple(Path(str(n)) for n in range(100)), 1, decode))
    for taken in range(1, 20):
        next(images)
        assert len(decoded) <= taken + 6
    images.close()  # type: ignore[attr-defined]
    assert len(decoded) < 30, "whoever stops does not wait for the rest"


def test_large_images_are_refused_on_every_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many cores no more are used than there is memory for: each may hold the largest image."""
    monkeypatch.setattr("engram.data.raw.cores", lambda: 100)
    monkeypatch.setattr("engram.data.raw.LARGE", 0)
    monkeypatch.setattr(limits, "PIXELS", 300)
    paths = tuple(tmp_path / f"{number:02}.png" for number in range(40))
    for path in paths:
        Image.new("L", (20, 15)).save(path)
    Image.new("L", (20, 16)).save(paths[30])
    names = set[str]()

    def decode(path: Path, channels: int) -> Any:
        names.add(threading.current_thread().name)
        return decode_image(path, channels)

    with pytest.raises(DataError, match=r"30.png: pixels: 320, the limit is 300; scale the image down"):
        list(ImageFiles(paths, 1, decode))
    assert len(names) <= 8


def test_small_files_are_decoded_without_threads(tmp_path: Path) -> None:
    """Two threads that decode icons take four times as long as one: each waits for the interpreter."""
    where = []

    def decode(path: Path, channels: int) -> Any:
        where.append(threading.current_thread() is threading.main_thread())
        return np.zeros((channels, 2, 2), np.uint8)

    for size, alone in ((500, True), (50_000, False)):
        paths = tuple(tmp_path / f"{size}-{number}" for number in range(200))
        for path in paths:
            path.write_bytes(b"0" * size)
        where.clear()
        assert len(list(ImageFiles(paths, 1, decode))) == 200
        assert where == [alone] * 200


def test_who_waits_for_many_files_is_told_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write_folder(tmp_path / "images")
    assert load_dataset(name).notes == ()
    monkeypatch.setattr("engram.data.datasets.MANY", 36)
    assert load_dataset(name).notes == ("every start decodes 36 files; once is enough by `engram data prepare`",)
    prepare(name)
    assert load_dataset(name).notes == ()


# ---------------------------------------------------------------- stale


def test_changed_files_are_noticed_without_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write_folder(tmp_path / "images")
    at, fresh = tmp_path / "images" / "class 1", prepare(name)
    images = load_dataset(name).test.images

    def swapped() -> None:
        (at / "0.png").rename(at / "x.png")

    def undo() -> None:
        (at / "x.png").rename(at / "0.png")

    def noticed() -> bool:
        dataset = load_dataset(name)
        assert (dataset.notes != ()) == any("is not used: the files have changed since" in n for n in dataset.notes)
        return dataset.notes != ()

    assert not noticed()
    swapped()
    assert noticed()
    undo()
    assert not noticed(), "everything is as it was"
    (at / ".hidden").write_bytes(b"not read, so it does not count")
    assert not noticed()
    (at / "more.png").write_bytes((at / "0.png").read_bytes())
    assert noticed()
    (at / "more.png").unlink()
    assert not noticed()
    stat = (at / "0.png").stat()
    os.utime(at / "0.png", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert noticed()
    assert not torch.equal(images, torch.zeros_like(images))
    made = prepare(name)
    assert (made.made, made.path) == (True, fresh.path), "the old one is replaced"
    assert not noticed()
    with monkeypatch.context() as patch:
        patch.setattr("importlib.metadata.version", lambda package: "another")
        assert any("made with other programs (pillow" in note for note in load_dataset(name).notes)


def test_contents_that_only_decoding_tells_are_told_by_check(tmp_path: Path) -> None:
    """Changed in place, length and time put back: no start notices, `engram data check` does."""
    name = write_folder(tmp_path / "images")
    prepare(name)
    assert {line.what: line.ok for line in check(name)}["prepared"] is True
    path = tmp_path / "images" / "class 1" / "3.bmp"
    content, stat = bytearray(path.read_bytes()), path.stat()
    content[54] ^= 255  # of the first pixel: behind two headers of 14 and 40 bytes
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert load_dataset(name).notes == ()
    line = check(name)[-1]
    assert (line.what, line.ok) == ("prepared", False)
    assert "holds other contents, though no file looks changed" in line.detail


def test_files_that_change_while_they_are_read_make_no_copy(tmp_path: Path, place: Path) -> None:
    name = write_folder(tmp_path / "images")

    def change(done: int, total: int) -> None:
        (tmp_path / "images" / "class 0" / f"new {done}.png").write_bytes(b"")

    with pytest.raises(DataError, match="changed while they were read"):
        prepare(name, show=change)
    assert list(place.iterdir()) == []
    with pytest.raises(DataError, match="changed while they were read"):
        prepare("folder:" + str(write_away(tmp_path)), show=lambda *_: shutil.rmtree(tmp_path / "away", True))


def write_away(root: Path) -> Path:
    """A folder whose images are all decoded before the first one is written."""
    Image.new("L", (8, 8)).save(make(root / "away" / "a") / "0.png")
    return root / "away"


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


# ---------------------------------------------------------------- damaged, foreign, unfinished


def test_nothing_but_files_of_a_copy_is_opened(tmp_path: Path) -> None:
    """Whoever opens a pipe waits for its other end, for ever. An empty part has the length of one."""
    labels = {"train": np.arange(3), "test": np.zeros(0, np.int64)}
    with whole_folder(tmp_path / "s") as building:
        writer = Writer(building, shape=(4,), labels=labels)
        writer.add("train", np.zeros((3, 4), np.float32))
        writer.finish(Facts("made up", ("a", "b", "c"), (4,), None, "0" * 64))
    for name in ("test.labels", "train-00001.bin", MANIFEST):
        (tmp_path / "s" / name).unlink()
        os.mkfifo(tmp_path / "s" / name)
        with pytest.raises(DataError, match=f"{name}: is a pipe, a socket or a device, no file"):
            load_dataset(f"prepared:{tmp_path / 's'}")
        assert check(f"prepared:{tmp_path / 's'}")[-1].ok is False


def test_vectors_of_a_copy_are_finite(tmp_path: Path) -> None:
    """`engram data prepare` lets no other pass; a copy from elsewhere may hold anything."""
    vectors = np.ones((8, 4), np.float32)
    vectors[5, 2] = np.nan
    with whole_folder(tmp_path / "s") as building:
        writer = Writer(building, shape=(4,), labels={"train": np.arange(8) % 2})
        writer.add("train", vectors)
        writer.finish(Facts("made up", ("a", "b"), (4,), None, "0" * 64))
    store = Store(tmp_path / "s")
    assert len(store.read("train", np.array([0, 2, 4]))) == 3
    with pytest.raises(DataError, match=r"train-00001.bin: holds a number that is not finite"):
        store.read("train", np.arange(8))


@pytest.mark.parametrize(("limit", "said"), [("CLASSES", "classes: 4"), ("EXAMPLES", "examples: 40")])
def test_a_copy_has_limits(limit: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write_arrays(tmp_path / "a.npz")
    prepare(name, out=tmp_path / "cut")
    monkeypatch.setattr(limits, limit, 3)
    with pytest.raises(DataError, match=f"{said}, the limit is 3"):
        Store(tmp_path / "cut")
    with pytest.raises(DataError, match="the limit is 3"):
        prepare(name)


def test_a_large_manifest_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write_arrays(tmp_path / "a.npz")
    size = (prepare(name, out=tmp_path / "cut").path / MANIFEST).stat().st_size
    monkeypatch.setattr(limits, "MANIFEST", size - 1)
    with pytest.raises(DataError, match=f"manifest.json: bytes: {size:,}, the limit is {size - 1:,}"):
        Store(tmp_path / "cut")
    with pytest.raises(DataError, match=r"bytes of its manifest: .*give its classes shorter names"):
        prepare(name)
    assert copies() == [], "nor is one written that could not be read"


def test_a_copy_of_published_files_is_called_so_and_one_from_elsewhere_is_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, is_official = write_mnist(tmp_path, monkeypatch), sources.is_official
    monkeypatch.setattr(sources, "is_official", lambda name, files: True)
    prepare(name)
    prepare(name, out=tmp_path / "cut")
    monkeypatch.setattr(sources, "is_official", is_official)
    assert load_dataset(name).variant == load_dataset(f"prepared:{tmp_path / 'cut'}").variant == "standard"
    assert {line.what: line.ok for line in check(f"prepared:{tmp_path / 'cut'}")}["contents"] is None
    own = write_arrays(tmp_path / "a.npz")
    prepare(own, out=tmp_path / "own")
    assert {line.what: line.ok for line in check(f"prepared:{tmp_path / 'own'}")}["contents"] is True


def damaged(copy: Prepared, file: str, change: Callable[[bytearray], object]) -> None:
    content = bytearray((copy.path / file).read_bytes())
    change(content)
    (copy.path / file).write_bytes(content)


def flip(content: bytearray) -> None:
    content[len(content) // 2] ^= 1


FAULTS: dict[str, tuple[str, Callable[[bytearray], object], str]] = {
    "a flipped byte in the manifest": (MANIFEST, flip, "is damaged"),
    "an empty manifest": (MANIFEST, bytearray.clear, "is damaged: it is not JSON"),
    "another program's manifest": (MANIFEST, lambda c: c.__setitem__(slice(None), b'{"a": 1}'), "no manifest of a"),
    "a truncated class file": ("train-00001.bin", lambda c: c.pop(), "bytes, .* were written"),
    "a class file that grew": ("train-00001.bin", lambda c: c.append(0), "bytes, .* were written"),
    "a flipped byte in a class file": ("train-00001.bin", flip, "do not match their checksum"),
    "a flipped byte in the labels": ("train.labels", flip, "do not match their checksum"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_copy_is_one_line(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = write_arrays(tmp_path / "a.npz")
    file, change, message = FAULTS[fault]
    damaged(prepare(name), file, change)
    with pytest.raises(DataError, match=message) as error:
        everything(load_dataset(name))
    (line,) = str(error.value).splitlines()
    assert file in line
    assert "engram data cache --clear" in line
    assert check(name)[-1].ok is False
    assert call(["data", "cache"]) == 0, "a damaged one can be listed and removed"
    assert call(["data", "cache", "--clear"]) == 0
    assert load_dataset(name).notes == ()
    assert capsys.readouterr().err == ""


def test_a_damaged_copy_is_made_anew(tmp_path: Path) -> None:
    name = write_arrays(tmp_path / "a.npz")
    plain = everything(load_dataset(name))
    damaged(prepare(name), MANIFEST, flip)
    assert prepare(name).made
    assert same(plain, everything(load_dataset(name)))


def test_another_format_is_refused_by_its_number(tmp_path: Path) -> None:
    copy = prepare(write_arrays(tmp_path / "a.npz"))
    whole = json.loads((copy.path / MANIFEST).read_text())
    whole["body"]["format"] = FORMAT + 1
    whole["sha256"] = _hash_of(whole["body"])
    (copy.path / MANIFEST).write_text(json.dumps(whole))
    with pytest.raises(DataError, match=f"is of format {FORMAT + 1}, this version reads format {FORMAT}"):
        Store(copy.path)


def test_whatever_is_changed_in_a_copy_is_one_line_or_nothing(tmp_path: Path) -> None:
    """Random damage of every file: bytes, length, files gone. Nothing but the set itself ever comes out."""
    name = write_arrays(tmp_path / "a.npz", test=True)
    plain = everything(load_dataset(name))
    copy, kept = prepare(name), tmp_path / "kept"
    shutil.copytree(copy.path, kept)
    draws = random.Random(8)
    noticed = []
    for _ in range(150):
        file = draws.choice(sorted(kept.iterdir()))
        content = bytearray(file.read_bytes())
        way = draws.randrange(4)
        if way == 0:
            content[draws.randrange(len(content))] ^= 1 << draws.randrange(8)
        elif way == 1:
            del content[draws.randrange(len(content)) :]
        elif way == 2:
            at = draws.randrange(len(content))
            content[at:at] = draws.randbytes(draws.randrange(1, 9))
        (copy.path / file.name).write_bytes(content)
        if way == 3:
            (copy.path / file.name).unlink()
        try:
            assert same(plain, everything(load_dataset(name)))
        except EngramError as error:
            noticed.append(str(error))
        shutil.copyfile(file, copy.path / file.name)
    assert len(noticed) == 150, "not one byte of a copy is without a checksum"
    assert not any("\n" in line for line in noticed)


def values(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to every value in a tree."""
    yield path
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from values(value, (*path, key))


def test_a_manifest_that_somebody_made_is_one_line_or_a_set(tmp_path: Path) -> None:
    """With a checksum that fits, as only a person or another version writes it."""
    name = write_arrays(tmp_path / "a.npz")
    copy = prepare(name, out=tmp_path / "cut")
    kept = json.loads((copy.path / MANIFEST).read_text())
    draws = random.Random(4)
    ways = list(values(kept["body"]))[1:]
    said = []
    strange: list[Any] = [None, -1, 0, 7, 1 << 70, 0.5, True, "", "x", [], {}, [1], {"a": 1}]
    for _ in range(300):
        whole = json.loads(json.dumps(kept))
        *way, last = draws.choice(ways)
        node = whole["body"]
        for key in way:
            node = node[key]
        if draws.random() < 0.2:
            del node[last]
        else:
            node[last] = draws.choice(strange)
        whole["sha256"] = _hash_of(whole["body"])
        (copy.path / MANIFEST).write_text(json.dumps(whole))
        try:
            everything(load_dataset(f"prepared:{copy.path}"), order=[0, 1])
        except EngramError as error:
            said.append(str(error))
    assert len(said) > 200
    assert not any("\n" in line for line in said)


KILLED = """
import os, signal, sys
from engram.data.prepare import prepare

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever works in the background starts with it ignored

def show(done, total):
    if done >= total * float(sys.argv[2]):
        os.kill(os.getpid(), getattr(signal, sys.argv[3]))

prepare(sys.argv[1], show=show)
"""


@POSIX
@pytest.mark.parametrize("share", ["0.1", "1"])
def test_killed_while_preparing_nothing_is_taken_for_whole(tmp_path: Path, place: Path, share: str) -> None:
    name = write_folder(tmp_path / "images")
    plain = everything(load_dataset(name))
    assert subprocess.run([sys.executable, "-c", KILLED, name, share, "SIGKILL"]).returncode == -signal.SIGKILL
    (left,) = place.iterdir()
    assert left.name.endswith(".tmp")
    kept = shutil.copytree(left, tmp_path / "kept")
    assert [copy.about for copy in copies()] == ["not finished: whoever made it was killed"]
    assert same(plain, everything(load_dataset(name)))
    prepare(name)
    assert not left.exists(), "the next one clears it"
    assert same(plain, everything(load_dataset(name)))
    shutil.copytree(kept, left)
    own = place / f".other.{os.getpid()}.tmp"
    own.mkdir()
    assert call(["data", "cache", "--clear"]) == 0
    assert list(place.iterdir()) == [own], "somebody is at work there"


@POSIX
def test_only_its_own_left_overs_are_cleared_from_a_users_folder(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    other, own = (tmp_path / f".{name}.{gone.pid}.tmp" for name in ("letters", "cut"))
    other.mkdir()
    own.mkdir()
    prepare("digits", out=tmp_path / "cut")
    assert (other.exists(), own.exists()) == (True, False)


@POSIX
def test_interrupted_while_preparing_nothing_is_left(tmp_path: Path, place: Path) -> None:
    name = write_folder(tmp_path / "images", per_class=40)
    done = subprocess.run([sys.executable, "-c", KILLED, name, "0.2", "SIGINT"], capture_output=True, text=True)
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert list(place.iterdir()) == []


def test_a_full_disc_is_one_line_and_leaves_nothing(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Writer, "_flush", full)
    with pytest.raises(DataError, match=r"cannot write .*: No space left on device; nothing was left behind"):
        prepare(write_arrays(tmp_path / "a.npz"))
    assert list(place.iterdir()) == []


def test_a_link_in_a_circle_ends(tmp_path: Path) -> None:
    name = write_folder(tmp_path / "images")
    (tmp_path / "images" / "class 0" / "up").symlink_to(tmp_path / "images", target_is_directory=True)
    plain = everything(load_dataset(name))
    prepare(name)
    assert same(plain, everything(load_dataset(name)))
