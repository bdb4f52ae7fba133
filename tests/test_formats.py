"""Every format read back exactly, and every bad file named in one line."""

from __future__ import annotations

import gzip
import io
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from engram.data import formats
from engram.data.images import decode_image
from engram.data.npz import read_npz
from engram.data.raw import ImageFiles, LeftOut, Raw, RawSet, check_labels, content_digest, describe
from engram.errors import DataError

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (12, 5, 6), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (12, 5, 6, 3), dtype=np.uint8)
LABELS = np.arange(12, dtype=np.uint8) % 3


def idx(array: npt.NDArray[Any]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def expect_failure(call: Callable[[], object], *parts: str) -> None:
    """The call raises a DataError of one line that holds every part."""
    with pytest.raises(DataError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    for part in parts:
        assert part in text


# ---------------------------------------------------------------- IDX


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_raw_and_gzip(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(pack(idx(GREY)))
    np.testing.assert_array_equal(formats.read_idx(path), GREY)
    assert formats.count_idx(path, path, path, path) == (12, 12)


BAD_IDX = {
    "truncated gzip": (gzip.compress(idx(GREY))[:-20], "damaged"),
    "gzip with a wrong byte": (
        gzip.compress(idx(GREY))[:30] + b"\0\0\0" + gzip.compress(idx(GREY))[33:],
        "damaged",
    ),
    "truncated": (idx(GREY)[:-1], "promises 360 bytes"),
    "too long": (idx(GREY) + b"\0", "holds 361"),
    "truncated header": (idx(GREY)[:9], "header"),
    "foreign": (b"<html>not found</html>", "no IDX file"),
    "float IDX": (b"\0\0\x0d\x03" + idx(GREY)[4:], "no IDX file"),
    "empty": (b"", "nothing"),
}


@pytest.mark.parametrize("case", BAD_IDX)
def test_bad_idx(tmp_path: Path, case: str) -> None:
    path = tmp_path / "images"
    data, reason = BAD_IDX[case]
    path.write_bytes(data)
    expect_failure(lambda: formats.read_idx(path), str(path), reason, "intact copy")


def test_idx_pairs_must_fit(tmp_path: Path) -> None:
    images, labels = tmp_path / "images", tmp_path / "labels"
    images.write_bytes(idx(GREY))
    labels.write_bytes(idx(LABELS[:-1]))
    expect_failure(lambda: formats.read_idx_set(images, labels, images, labels), "12 images", "11 labels", str(labels))
    expect_failure(lambda: formats.read_idx_set(labels, labels, images, labels), str(labels), "no images")
    expect_failure(lambda: formats.read_idx_set(images, images, images, labels), str(images), "no labels")
    expect_failure(lambda: formats.read_idx_set(tmp_path / "gone", labels, images, labels), "gone", "no such file")
    expect_failure(lambda: formats.read_idx(tmp_path), str(tmp_path))


# ---------------------------------------------------------------- SVHN


def svhn(path: Path, **content: Any) -> Path:
    savemat(path, content, do_compression=True)
    return path


def test_svhn_layout_and_digit_zero(tmp_path: Path) -> None:
    y = np.array([[1], [10], [9], [2]], np.uint8)
    path = svhn(tmp_path / "a.mat", X=COLOUR[:4].transpose(1, 2, 3, 0), y=y)
    raw = formats.read_svhn(path, path).train
    np.testing.assert_array_equal(raw.images, COLOUR[:4].transpose(0, 3, 1, 2))
    assert raw.labels.tolist() == [1, 0, 9, 2]
    assert formats.count_svhn(path, path) == (4, 4)


def test_bad_svhn(tmp_path: Path) -> None:
    x, y = COLOUR.transpose(1, 2, 3, 0), LABELS[:, None]
    good = svhn(tmp_path / "good.mat", X=x, y=y)

    def bad(path: Path, *parts: str) -> None:
        expect_failure(lambda: formats.read_svhn(path, good), str(path), *parts)

    for name, data in {
        "cut": good.read_bytes()[:-200],
        "head": good.read_bytes()[:140],
        "text": b"no matlab at all" * 50,
        "none": b"",
        "v7.3": b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + bytes(200),
    }.items():
        (tmp_path / f"{name}.mat").write_bytes(data)
        bad(tmp_path / f"{name}.mat")
    expect_failure(lambda: formats.count_svhn(tmp_path / "text.mat", good), "text.mat")
    bad(svhn(tmp_path / "no_x.mat", y=y), "no variable X", "32x32")
    bad(svhn(tmp_path / "no_y.mat", X=x), "no variable y")
    expect_failure(lambda: formats.count_svhn(tmp_path / "no_x.mat", good), "no_x.mat")
    bad(svhn(tmp_path / "float.mat", X=x.astype(float), y=y), "float64")
    bad(svhn(tmp_path / "grey.mat", X=GREY, y=y), "(12, 5, 6)")
    bad(svhn(tmp_path / "labels.mat", X=x, y=y + 20), "1..10")
    bad(svhn(tmp_path / "words.mat", X=x, y="words"), "y is no array of real numbers")
    bad(svhn(tmp_path / "short.mat", X=x, y=y[1:]), "11 labels")


# ---------------------------------------------------------------- CIFAR-10


def test_cifar(tmp_path: Path) -> None:
    rows = RNG.integers(0, 256, (7, formats.CIFAR_ROW), dtype=np.uint8)
    rows[:, 0] %= 10
    a, b, c = (tmp_path / name for name in "abc")
    for path, part in zip((a, b, c), np.split(rows, [2, 5]), strict=True):
        part.tofile(path)
    raw = formats.read_cifar(a, b, c)
    assert raw.test is not None
    np.testing.assert_array_equal(raw.train.labels, rows[:5, 0])
    np.testing.assert_array_equal(raw.train.images, rows[:5, 1:].reshape(5, 3, 32, 32))
    np.testing.assert_array_equal(raw.test.images, rows[5:, 1:].reshape(2, 3, 32, 32))
    assert formats.count_cifar(a, b, c) == (5, 2)

    b.write_bytes(rows.tobytes()[:-1])
    expect_failure(lambda: formats.read_cifar(a, b, c), str(b), "3073", "truncated")
    b.write_bytes(b"")
    expect_failure(lambda: formats.count_cifar(a, b, c), str(b), ": 0 bytes")
    rows[3, 0] = 10
    rows.tofile(b)
    expect_failure(lambda: formats.read_cifar(a, b, c), str(b), "label 10")
    expect_failure(lambda: formats.read_cifar(a, tmp_path / "d", c), "no such file")


# ---------------------------------------------------------------- images


def folder(root: Path, classes: dict[str, int], mode: str = "RGB", suffix: str = ".png") -> Path:
    for name, count in classes.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            pixels = GREY[i] if mode == "L" else COLOUR[i]
            Image.fromarray(pixels).save(root / name / f"{i}{suffix}", "png")
    return root


def test_folder_order_suffixes_and_strangers(tmp_path: Path) -> None:
    root = folder(tmp_path / "set", {"dog": 2, "cat": 3}, suffix=".PNG")
    Image.fromarray(COLOUR[9]).save(root / "cat" / "x.JPeG")
    (root / "cat" / ".hidden.png").write_bytes(b"not an image")
    (root / "cat" / "notes.txt").write_text("not an image")
    (root / ".git").mkdir()
    (root / "readme.png").write_bytes(b"no class folder")
    raw = formats.read_own_folder(root)
    assert [(one.path.name, one.what) for one in raw.left_out] == [("notes.txt", "file"), ("readme.png", "file")]
    assert raw.class_names == ("cat", "dog")
    assert raw.test is None
    assert raw.train.labels.tolist() == [0, 0, 0, 0, 1, 1]
    images = list(raw.train.images)
    assert all(image.shape == (3, 5, 6) and image.dtype == np.uint8 for image in images)
    for i, source in ((0, 0), (1, 1), (2, 2), (4, 0), (5, 1)):
        np.testing.assert_array_equal(images[i], COLOUR[source].transpose(2, 0, 1))


def test_every_format_that_is_promised(tmp_path: Path) -> None:
    """Suffixes say which files are images; what is in them says how to decode them."""
    root = tmp_path / "set"
    (root / "a").mkdir(parents=True)
    image = Image.fromarray(COLOUR[0])
    for i, (suffix, kind, options) in enumerate(
        [
            (".png", "png", {}),
            (".WebP", "webp", {"lossless": True}),
            (".bmp", "bmp", {}),
            (".jpg", "bmp", {}),
            (".bmp", "webp", {"lossless": True}),
        ]
    ):
        image.save(root / "a" / f"{i}{suffix}", kind, **options)
    for i, suffix in enumerate((".jpg", ".JPEG", ".png")):
        Image.new("RGB", (6, 5), (9, 9, 9)).save(root / "a" / f"grey{i}{suffix}", "jpeg")
    raw = formats.read_own_folder(root)
    images = list(raw.train.images)
    assert len(images) == 8
    assert raw.left_out == ()
    for found in images[:5]:
        np.testing.assert_array_equal(found, COLOUR[0].transpose(2, 0, 1))
    for found in images[5:]:
        np.testing.assert_array_equal(found, np.full((3, 5, 6), 9))
    Image.new("RGBA", (6, 5), (255, 0, 0, 0)).save(root / "clear.webp", lossless=True)
    assert decode_image(root / "clear.webp", 3).tolist() == np.full((3, 5, 6), 255).tolist()


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


def test_no_other_decoder_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of Pillow's decoders start other programs: a file must not choose one by what it holds."""
    Image.init()
    tried: list[str] = []
    for kind, (factory, accept) in list(Image.OPEN.items()):
        if kind not in ("PNG", "JPEG", "WEBP", "BMP"):

            def spy(*given: Any, kind: str = kind, factory: Any = factory) -> Any:
                tried.append(kind)
                return factory(*given)

            monkeypatch.setitem(Image.OPEN, kind, (spy, accept))
    others = {"eps": EPS}
    for kind in ("gif", "tiff", "ppm"):
        out = io.BytesIO()
        Image.fromarray(COLOUR[0]).save(out, kind)
        others[kind] = out.getvalue()
    root = folder(tmp_path / "set", {"a": 2, "b": 2})
    for kind, data in others.items():
        with Image.open(io.BytesIO(data)) as image:
            assert image.format == kind.upper(), "Pillow itself would take it"
        for name in ("0.png", "1.jpg"):
            (root / "b" / name).write_bytes(data)
            tried.clear()
            expect_failure(lambda: list(formats.read_own_folder(root).train.images), name, "no readable PNG, JPEG")
            assert tried == [], kind
            (root / "b" / name).unlink()
        expect_failure(lambda data=data: decode_image(data, 3, "x.png"), "x.png", "repair or remove")  # type: ignore[misc]
        assert tried == []


def test_folders_within_a_class_folder(tmp_path: Path) -> None:
    flat, deep = tmp_path / "flat", tmp_path / "deep"
    places = ["0.png", "1/a.png", "1/b/c/d.png", "2.png", "1-0.png"]
    for i, place in enumerate(places):
        for path in (flat / "a" / f"{i}.png", deep / "a" / place, deep / "b" / place):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(COLOUR[i]).save(path)
    (deep / "a" / ".thumbs").mkdir()
    (deep / "a" / ".thumbs" / "x.png").write_bytes(b"hidden")
    raw = formats.read_own_folder(deep)
    assert isinstance(raw.train.images, ImageFiles)
    paths = [path.relative_to(deep).as_posix() for path in raw.train.images.paths]
    assert paths == [f"{name}/{place}" for name in "ab" for place in sorted(places)]
    assert (raw.class_names, raw.train.labels.tolist(), raw.left_out) == (("a", "b"), [0] * 5 + [1] * 5, ())
    shutil.rmtree(deep / "b")
    assert content_digest(formats.read_own_folder(deep)) == content_digest(formats.read_own_folder(flat))
    assert formats.count_images(deep, deep) == (5, 5)


def test_links(tmp_path: Path) -> None:
    """Links to images and to whole classes are read; others would lead in circles or to other classes."""
    root = folder(tmp_path / "set", {"a": 2, "b": 3})
    folder(tmp_path / "elsewhere", {"c": 4})
    (root / "c").symlink_to(tmp_path / "elsewhere" / "c")
    (root / "a" / "link.png").symlink_to(tmp_path / "elsewhere" / "c" / "0.png")
    plain = formats.read_own_folder(root)
    assert np.bincount(plain.train.labels).tolist() == [3, 3, 4]
    assert plain.left_out == ()

    (root / "a" / "up").symlink_to(root)
    (root / "a" / "circle.png").symlink_to(root / "a" / "circle.png")
    (root / "a" / "gone.png").symlink_to(root / "no such")
    (root / "circle").symlink_to(root / "circle")
    raw = formats.read_own_folder(root)
    assert raw.train.labels.tolist() == plain.train.labels.tolist()
    why = {one.path.name: (one.what, one.why) for one in raw.left_out}
    assert why == {
        "up": ("link", "links to folders are not followed"),
        "circle.png": ("link", "there is nothing to read"),
        "gone.png": ("link", "there is nothing to read"),
        "circle": ("file", "outside every class folder"),
    }
    (root / "a" / "up").unlink()
    (root / "a" / "self").symlink_to(root / "a")  # apart from the other: two circles together have endless paths
    assert formats.read_own_folder(root).train.labels.tolist() == plain.train.labels.tolist()
    for target in (root, tmp_path):
        (root / "around").symlink_to(target)
        expect_failure(lambda: formats.read_own_folder(root), "around", "a link to a folder around it")
        (root / "around").unlink()


def test_left_out_in_words() -> None:
    root = Path("/r")
    some = [LeftOut(root / "a" / f"{i}.txt", "file", "no image") for i in range(1200)]
    link = LeftOut(root / "x", "link", "not followed")
    assert describe([*some[:1], link, *some[1:]], root) == (
        "1,200 files were left out: no image (first: a/0.txt)",
        "1 link was left out: not followed (first: x)",
    )
    assert describe([], root) == ()


def test_grey_folder_has_one_channel_until_one_image_is_coloured(tmp_path: Path) -> None:
    root = folder(tmp_path / "set", {"a": 2, "b": 2}, mode="L")
    raw = formats.read_image_folder(root, None).train
    assert raw.channels == 1
    np.testing.assert_array_equal(next(iter(raw.images)), GREY[:1])
    Image.fromarray(COLOUR[0]).save(root / "b" / "9.png")
    raw = formats.read_image_folder(root, None).train
    assert raw.channels == 3
    np.testing.assert_array_equal(next(iter(raw.images)), np.repeat(GREY[:1], 3, axis=0))


def png(image: Image.Image, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, "png", **options)
    return out.getvalue()


def test_modes_become_what_one_sees() -> None:
    red = Image.new("RGB", (2, 1), (255, 0, 0))
    clear = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    white, pure = [255] * 6, [255, 255, 0, 0, 0, 0]
    palette = red.quantize(4)

    def rgb(data: bytes) -> list[int]:
        return decode_image(data, 3).ravel().tolist()

    assert rgb(png(red)) == pure
    assert rgb(png(palette)) == pure
    assert rgb(png(palette, transparency=palette.getpixel((0, 0)))) == white
    assert rgb(png(palette, transparency=bytes(4))) == white
    assert rgb(png(clear)) == white
    assert rgb(png(Image.new("LA", (2, 1), (7, 0)))) == white
    assert rgb(png(Image.new("1", (2, 1), 1))) == white
    deep = Image.fromarray(np.array([[0, 65535, 258]], np.uint16))
    assert decode_image(png(deep), 1).tolist() == [[[0, 255, 1]]]
    turned = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    Image.new("RGB", (8, 4)).save(turned, "jpeg", exif=exif)
    assert decode_image(turned.getvalue(), 3).shape == (3, 8, 4)
    cmyk = io.BytesIO()
    Image.new("CMYK", (4, 4)).save(cmyk, "jpeg")
    assert decode_image(cmyk.getvalue(), 3).shape == (3, 4, 4)


def test_corrupt_images_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder(tmp_path / "set", {"a": 2, "b": 2})
    bad, data = root / "b" / "1.png", (root / "b" / "1.png").read_bytes()
    jpeg = io.BytesIO()
    Image.fromarray(COLOUR[0]).resize((64, 64)).save(jpeg, "jpeg")
    for broken in (b"", b"text", data[:-30], data[:60] + b"\0\0\0" + data[63:], jpeg.getvalue()[:-300]):
        bad.write_bytes(broken)
        expect_failure(lambda: list(formats.read_image_folder(root, None).train.images), str(bad), "repair or remove")
    bad.write_bytes(data)
    for limit, said in ((20, "pixels: 30, the limit is 20"), (5, "bomb")):  # Pillow raises above twice its limit
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        expect_failure(lambda: list(formats.read_image_folder(root, None).train.images), "0.png", said)


def test_bad_folders(tmp_path: Path) -> None:
    def bad(root: Path, *parts: str) -> None:
        expect_failure(lambda: formats.read_own_folder(root), *parts)

    bad(tmp_path / "gone", "gone", "no such folder")
    (tmp_path / "empty").mkdir()
    bad(tmp_path / "empty", "empty", "no class folders", "named after it")
    bad(folder(tmp_path / "hollow", {"cat": 2, "dog": 0}), "hollow/dog", "no PNG, JPEG, WebP or BMP image")
    (tmp_path / "hollow" / "dog" / "x.txt").write_text("x")
    bad(tmp_path / "hollow", "hollow/dog", "no PNG, JPEG, WebP or BMP image")
    folder(tmp_path / "more" / "train", {"a": 1, "b": 1})
    folder(tmp_path / "more" / "test", {"a": 1, "b": 1, "c": 1})
    bad(tmp_path / "more", "more/train", "no class 'c'")
    folder(tmp_path / "less" / "train", {"a": 1, "b": 1})
    folder(tmp_path / "less" / "val", {"a": 1})
    bad(tmp_path / "less", "less/val", "no class 'b'")
    expect_failure(lambda: formats.count_images(tmp_path / "less" / "train", tmp_path / "less" / "val"), "no class 'b'")
    (tmp_path / "file").write_text("x")
    bad(tmp_path / "file", "no such folder")
    expect_failure(lambda: formats.read_image_folder(tmp_path / "file", None), "cannot be listed")


# ---------------------------------------------------------------- npz


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("images", "channels"), [(GREY, 1), (COLOUR, 3), (COLOUR.transpose(0, 3, 1, 2), 3), (GREY[..., None], 1)]
)
def test_npz_shapes(tmp_path: Path, images: npt.NDArray[np.uint8], channels: int) -> None:
    raw = read_npz(npz(tmp_path / "a.npz", images=images, labels=LABELS))
    expected = GREY[:, None] if channels == 1 else COLOUR.transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(raw.train.images, expected)
    assert raw.test is None
    assert raw.class_names == ("0", "1", "2")


def test_npz_names(tmp_path: Path) -> None:
    one = read_npz(npz(tmp_path / "a.npz", images=GREY, labels=LABELS, test_images=GREY[:3], test_labels=LABELS[:3]))
    other = read_npz(
        npz(
            tmp_path / "b.npz",
            train_images=GREY,
            train_labels=LABELS,
            test_images=GREY[:3],
            test_labels=LABELS[:3],
        )
    )
    alone = read_npz(npz(tmp_path / "c.npz", train_images=GREY, train_labels=LABELS, other=LABELS))
    assert one.test is not None
    assert len(one.test.labels) == 3
    assert content_digest(one) == content_digest(other) != content_digest(alone)


HOLES = GREY.astype(np.float32)
HOLES[0, 0, 0] = np.nan
BAD_NPZ: dict[str, tuple[dict[str, Any], str]] = {
    "no keys": ({"x": GREY}, "no array images and labels"),
    "no labels": ({"images": GREY}, "no array labels"),
    "no train labels": ({"train_images": GREY, "labels": LABELS}, "no array train_labels"),
    "no test labels": ({"images": GREY, "labels": LABELS, "test_images": GREY}, "no array test_labels"),
    "NaN": ({"images": HOLES, "labels": LABELS}, "images contains NaN"),
    "float": ({"images": GREY / 255, "labels": LABELS}, "convert it to uint8, 0..255"),
    "int64": ({"images": GREY.astype(np.int64), "labels": LABELS}, "images is int64"),
    "flat": ({"images": GREY.reshape(12, -1), "labels": LABELS}, "shape (12, 30)"),
    "two channels": ({"images": COLOUR[..., :2], "labels": LABELS}, "C = 1 or 3"),
    "no images": ({"images": GREY[:0], "labels": LABELS[:0]}, "shape (0, 1, 5, 6)"),
    "unequal": ({"images": GREY, "labels": LABELS[1:]}, "11 labels"),
    "label gap": ({"images": GREY, "labels": LABELS * 2}, "labels must be 0..2"),
    "missing label": ({"images": GREY, "labels": LABELS + 1}, "label 3 is out of range"),
    "negative label": ({"images": GREY, "labels": LABELS.astype(int) - 1}, "label -1"),
    "huge label": ({"images": GREY, "labels": LABELS.astype(np.uint64) * 2**62}, "out of range"),
    "float labels": ({"images": GREY, "labels": LABELS / 1.0}, "integers"),
    "words": ({"images": GREY, "labels": LABELS.astype(str)}, "integers"),
    "one-hot": ({"images": GREY, "labels": np.eye(3, dtype=int)[LABELS]}, "one number an image"),
    "one class, and not 0": ({"images": GREY, "labels": LABELS * 0 + 1}, "labels must be 0..0"),
    "objects": ({"images": GREY, "labels": LABELS.astype(object)}, "Object arrays"),
    "test classes": (
        {"images": GREY, "labels": LABELS, "test_images": GREY, "test_labels": LABELS // 2},
        "no image has label 2",
    ),
    "test channels": (
        {"images": GREY, "labels": LABELS, "test_images": COLOUR, "test_labels": LABELS},
        "1 channels for training, 3 for test",
    ),
}


@pytest.mark.parametrize("case", BAD_NPZ)
def test_bad_npz(tmp_path: Path, case: str) -> None:
    arrays, reason = BAD_NPZ[case]
    expect_failure(lambda: read_npz(npz(tmp_path / "a.npz", **arrays)), str(tmp_path / "a.npz"), reason)


def test_one_class_is_enough(tmp_path: Path) -> None:
    raw = read_npz(npz(tmp_path / "a.npz", images=GREY, labels=LABELS * 0))
    assert (raw.class_names, set(raw.train.labels.tolist())) == (("0",), {0})
    assert formats.read_own_folder(folder(tmp_path / "one", {"cat": 1})).class_names == ("cat",)
    expect_failure(lambda: check_labels(np.array([], np.int64), "x"), "x: holds no class")


def test_no_npz_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    expect_failure(lambda: read_npz(path), "no such file")
    good = npz(tmp_path / "good.npz", images=GREY, labels=LABELS).read_bytes()
    array, pickled = io.BytesIO(), io.BytesIO()
    np.save(array, GREY)
    np.save(pickled, LABELS.astype(object), allow_pickle=True)
    flipped = good[:200] + bytes([good[200] ^ 255]) + good[201:]
    for data in (
        b"",
        b"PK\x03\x04",
        b"plain text",
        good[:-30],
        flipped,
        array.getvalue(),
        pickled.getvalue(),
    ):
        path.write_bytes(data)
        expect_failure(lambda: read_npz(path), str(path))
    expect_failure(lambda: read_npz(tmp_path), str(tmp_path))


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=300), at=st.integers(0, 3000), kind=st.sampled_from(["idx", "npz", "png", "gz"]))
def test_garbage_never_escapes(tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int, kind: str) -> None:
    """Good files overwritten somewhere either still read or raise DataError, nothing else."""
    path = tmp_path_factory.mktemp("g") / "file"
    whole = io.BytesIO()
    np.savez(whole, images=GREY, labels=LABELS)
    good = {
        "idx": idx(GREY),
        "gz": gzip.compress(idx(GREY)),
        "png": png(Image.fromarray(COLOUR[0])),
        "npz": whole.getvalue(),
    }[kind]
    at %= len(good)
    path.write_bytes(good[:at] + data + good[at + len(data) :])
    readers: dict[str, Callable[[Path], object]] = {"npz": read_npz, "png": lambda p: decode_image(p, 3)}
    read = readers.get(kind, formats.read_idx)
    try:
        read(path)
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017


# ---------------------------------------------------------------- contents


def raw_set(images: npt.NDArray[np.uint8], labels: npt.NDArray[Any]) -> RawSet:
    part = Raw(images, labels.astype(np.int64))
    return RawSet(part, part, ())


def test_digest_is_blind_to_order_and_sees_every_change() -> None:
    images = GREY[:, None]
    reference = content_digest(raw_set(images, LABELS))
    order = RNG.permutation(12)
    assert content_digest(raw_set(images[order], LABELS[order])) == reference
    assert content_digest(raw_set(np.asfortranarray(images), LABELS)) == reference
    pixel, label = images.copy(), LABELS.copy()
    pixel[7, 0, 2, 2] ^= 1
    label[7] = (label[7] + 1) % 3
    others = [
        raw_set(pixel, LABELS),
        raw_set(images, label),
        raw_set(images.reshape(12, 1, 6, 5), LABELS),
        raw_set(images[:-1], LABELS[:-1]),
        RawSet(raw_set(images, LABELS).train, None, ()),
    ]
    digests = {content_digest(other) for other in others}
    assert len(digests) == len(others)
    assert reference not in digests


def test_digest_does_not_depend_on_the_format(tmp_path: Path) -> None:
    root = folder(tmp_path / "set", {"a": 3, "b": 3}, mode="L")
    images, labels = np.concatenate([GREY[:3], GREY[:3]]), np.repeat([0, 1], 3)
    packed = read_npz(npz(tmp_path / "a.npz", images=images, labels=labels))
    assert content_digest(formats.read_image_folder(root, None)) == content_digest(packed)
