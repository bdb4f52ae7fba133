"""MATLAB's format 5, against the reader of scipy: the same arrays out of good files, one line out of all others."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.io import loadmat, savemat

from engram.data import formats, limits
from engram.data.mat import mat_shapes, read_mat
from engram.errors import DataError

RNG = np.random.default_rng(0)
X = RNG.integers(1, 256, (4, 3, 3, 5), dtype=np.uint8)
Y = np.array([[1], [10], [9], [2], [5]], np.uint8)
Save = Callable[[Path], Path]


def saved(path: Path, content: dict[str, Any], *, packed: bool) -> Path:
    savemat(path, content, do_compression=packed)
    return path


def element(kind: int, data: bytes, order: str, *, small: bool = False) -> bytes:
    """By the definition of the format, without scipy."""
    if small:
        return struct.pack(f"{order}I", len(data) << 16 | kind) + data.ljust(4, b"\0")
    return struct.pack(f"{order}II", kind, len(data)) + data + bytes(-len(data) % 8)


def array(
    name: str,
    values: npt.NDArray[Any],
    *,
    order: str = "<",
    class_: int = 9,
    type_: int = 2,
    shape: tuple[int, ...] | None = None,
    flags: int = 0,
    small: bool = False,
) -> bytes:
    data = values.astype(np.dtype(f"{order}{values.dtype.str[1:]}")).tobytes(order="F")
    sizes = struct.pack(f"{order}{len(shape or values.shape)}i", *(shape or values.shape))
    fields = [
        element(6, struct.pack(f"{order}II", class_ | flags, 0), order),
        element(5, sizes, order),
        element(1, name.encode(), order, small=len(name) <= 4),
        element(type_, data, order, small=small),
    ]
    return element(14, b"".join(fields), order)


def whole(*elements: bytes, order: str = "<") -> bytes:
    return b"MATLAB 5.0 MAT-file".ljust(124) + (b"\0\1IM" if order == "<" else b"\1\0MI") + b"".join(elements)


def packed(data: bytes, order: str = "<") -> bytes:
    inner = zlib.compress(data)
    return struct.pack(f"{order}II", 15, len(inner)) + inner


# ---------------------------------------------------------------- good files


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"])
def test_arrays_are_those_of_scipy(tmp_path: Path, kind: str, pack: bool) -> None:
    content = {
        "X": X.astype(kind),
        "y": Y.astype(kind),
        "other": np.arange(1000.0),
        "words": "some text",
        "cell": np.array([1, "a"], object),
        "none": np.zeros((0, 3), kind),
        "a_rather_long_name": Y[:2].astype(kind),
    }
    path = saved(tmp_path / "a.mat", content, packed=pack)
    wanted = ["a_rather_long_name", "X", "y", "none", "absent"]
    ours, theirs = read_mat(path, wanted), loadmat(path)
    assert set(ours) == set(wanted) - {"absent"}
    for name, found in ours.items():
        assert found.dtype == theirs[name].dtype == np.dtype(kind)
        np.testing.assert_array_equal(found, theirs[name])
    assert mat_shapes(path, wanted) == {name: theirs[name].shape for name in ours}


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("pack", [False, True])
def test_both_byte_orders_and_values_within_the_tag(tmp_path: Path, order: str, pack: bool) -> None:
    large = np.arange(-3, 3, dtype="i2").reshape(2, 3)
    parts = [
        array("large", large, order=order, class_=10, type_=3),
        array("small", large[:1, :2], order=order, class_=6, type_=3, small=True),  # whole doubles, stored as int16
        array("wide", large * 1.5, order=order, class_=6, type_=9),
    ]
    (tmp_path / "a.mat").write_bytes(whole(*([packed(p, order) for p in parts] if pack else parts), order=order))
    found = read_mat(tmp_path / "a.mat", ["wide", "small", "large"])
    for name, values in {"large": large, "small": large[:1, :2], "wide": large * 1.5}.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values)
        np.testing.assert_array_equal(found[name], loadmat(tmp_path / "a.mat")[name])


def test_images_of_any_shape_stand_upright(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are turned block by block, in their own memory."""
    monkeypatch.setattr(formats, "BLOCK", 2 * X[..., 0].size)
    for x in (X, X.transpose(1, 0, 2, 3)):
        path = saved(tmp_path / "a.mat", {"X": x, "y": Y}, packed=True)
        raw = formats.read_svhn(path, path).train
        np.testing.assert_array_equal(raw.images, x.transpose(3, 2, 0, 1))
        assert raw.labels.tolist() == [1, 0, 9, 2, 5]
        assert formats.count_svhn(path, path) == (5, 5)


# ---------------------------------------------------------------- others


def outcome(path: Path, data: bytes) -> bool:
    """Whether a file is read, and right; anything but that and a line is a failure."""
    path.write_bytes(data)
    try:
        raw = formats._svhn_part(path)
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert str(path) in str(error)  # noqa: PT017
        return False
    np.testing.assert_array_equal(raw.images, X.transpose(3, 2, 0, 1))
    assert raw.labels.tolist() == [1, 0, 9, 2, 5]
    return True


def flips(data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        for bit in range(8):
            yield data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


@pytest.mark.parametrize("label", ["u1", "f8"])
def test_one_flipped_bit_in_headers_and_tags(tmp_path: Path, label: str) -> None:
    """A flip may meet what means nothing, such as the text in front; what is read is then right to the pixel."""
    good = saved(tmp_path / "good.mat", {"X": X, "y": Y.astype(label)}, packed=False).read_bytes()
    assert outcome(tmp_path / "a.mat", good)
    pixels, labels = good.index(X.tobytes(order="F")), good.rindex(Y.astype(label).tobytes())
    tried = []
    for place in (slice(116, pixels), slice(pixels + X.size, labels)):
        tried += [
            outcome(tmp_path / "a.mat", good[: place.start] + cut + good[place.stop :]) for cut in flips(good[place])
        ]
    assert 0.5 * len(tried) < len(tried) - sum(tried) < len(tried)


def test_one_flipped_bit_anywhere_in_a_packed_file(tmp_path: Path) -> None:
    good = saved(tmp_path / "good.mat", {"X": X, "y": Y}, packed=True).read_bytes()
    tried = [outcome(tmp_path / "a.mat", good[:128] + data) for data in list(flips(good[128:]))[::5]]
    assert not all(tried)
    assert sum(tried) < 0.05 * len(tried), "a checksum stands over all of it"


@pytest.mark.parametrize("pack", [False, True])
def test_truncated_at_every_byte(tmp_path: Path, pack: bool) -> None:
    good = saved(tmp_path / "good.mat", {"X": X, "y": Y}, packed=pack).read_bytes()
    assert not any(outcome(tmp_path / "a.mat", good[:length]) for length in range(len(good)))


BAD = {
    "a size below 0": array("X", X, shape=(-4, 3, 3, -5)),
    "more than it holds": array("X", X, shape=(4, 3, 3, 2**31 - 1)),
    "less than it holds": array("X", X, shape=(4, 3, 3, 4)),
    "complex": array("X", X, flags=0x800),
    "a cell": array("X", X, class_=1),
    "sparse": array("X", X, class_=5),
    "an unknown class": array("X", X, class_=200),
    "floats that claim to be bytes": array("X", X.astype("f4"), type_=7),
    "a type of 8 bytes": array("X", X, type_=12),
    "too many dimensions": array("X", X, shape=(4, 3, 3, 5) + (1,) * 29),
    "no dimension": element(14, element(6, bytes([9] + [0] * 7), "<") + element(5, b"", "<") + bytes(8), "<"),
    "a long name": array("X" * 2000, X),
    "an array within a tag": struct.pack("<I", 4 << 16 | 14) + b"XXXX",
    "a packed file within a packed file": packed(packed(array("X", X))),
    "packed text": packed(b"no array at all"),
    "an end before its count": struct.pack("<II", 14, 2**32 - 1) + array("X", X)[8:],
}


@pytest.mark.parametrize("case", BAD)
def test_what_no_array_can_be(tmp_path: Path, case: str) -> None:
    assert outcome(tmp_path / "a.mat", whole(array("X", X), array("y", Y)))
    assert not outcome(tmp_path / "a.mat", whole(BAD[case], array("y", Y)))
    assert not outcome(tmp_path / "a.mat", whole(array("y", Y), BAD[case]))


def test_a_packed_array_is_refused_by_its_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """3 GB of zeros in 3 MB, and the same promised by a few bytes."""
    monkeypatch.setattr(limits, "UNPACKED", X.size - 1)
    path = saved(tmp_path / "a.mat", {"X": X, "y": Y}, packed=True)
    with pytest.raises(DataError, match=rf"X has bytes: {X.size}, the limit is {X.size - 1}; take fewer images"):
        read_mat(path, ["X"])
    monkeypatch.undo()
    head = array("X", X[:0], shape=(32, 32, 3, 2**20))
    huge = head[:-8] + struct.pack("<II", 2, 3 * 2**30)
    huge = struct.pack("<II", 14, 3 * 2**30 + len(huge) - 8) + huge[8:]
    assert not outcome(tmp_path / "a.mat", whole(packed(huge)))
    assert "the limit is 2,147,483,648" in refusal(path)


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_mat(path, ["X"])
    return str(caught.value)


def test_other_versions_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + bytes(200))
    assert "version 7.3" in refusal(path)
    assert "save it with -v7" in refusal(path)
    path.write_bytes(b"")
    assert "starts with nothing" in refusal(path)
