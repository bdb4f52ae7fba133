"""Images as vectors by a network that others trained: the same vectors however they are read, and never by another."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

import backbones
from conftest import write_npz
from engram.data import backbone as backbone_file
from engram.data.backbone import IMAGENET, Backbone, embed
from engram.data.datasets import check, load_dataset
from engram.data.raw import Raw, RawSet, content_digest
from engram.data.recipe import Recipe, require_same
from engram.errors import ConfigError, DataError, EngramError
from engram.model.embed import embed_data


@pytest.fixture
def onnx(tmp_path: Path) -> Path:
    return backbones.backbone(tmp_path / "eyes.onnx")


def photographs(folder: Path, *, count: int = 6, seed: int = 0) -> Path:
    """Two classes of PNG files of other sizes than any network's, one of them grey; with a test part."""
    draws = np.random.default_rng(seed)
    for part, many in (("train", count), ("test", 2)):
        for name, light in (("dark", 60), ("light", 200)):
            (folder / part / name).mkdir(parents=True)
            for i in range(many):
                shape = (40 + i, 50) if i == 1 else (40 + i, 50, 3)
                pixels = draws.integers(0, 56, shape, np.uint8) + np.uint8(light - 30)
                Image.fromarray(pixels).save(folder / part / name / f"{i}.png")
    return folder


def by_hand(path: Path, images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(N, 3, H, W) uint8 -> what the network says of them as we would ask it without the library."""
    onnxruntime: Any = importlib.import_module("onnxruntime")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    scaled = functional.interpolate(torch.from_numpy(images).float(), (16, 16), mode="bilinear", antialias=True)
    pixels = scaled.round().clamp(0, 255) / 255
    mean, std = (torch.tensor(some).reshape(3, 1, 1) for some in IMAGENET)
    return np.asarray(session.run(["features"], {"images": ((pixels - mean) / std).numpy()})[0])


# ---------------------------------------------------------------- the numbers


def test_vectors_are_those_of_the_network_asked_by_hand(tmp_path: Path, onnx: Path) -> None:
    """Photographs go from their own size to the network's, not by way of 32 x 32."""
    photos = photographs(tmp_path / "photos")
    embed_data(str(photos), Backbone(onnx), tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as held:
        assert held["features"].dtype == np.float32
        assert held["class_names"].tolist() == ["dark", "light"]
        assert held["labels"].tolist() == [0] * 6 + [1] * 6
        assert held["test_labels"].tolist() == [0, 0, 1, 1]
        found = np.concatenate([held["features"], held["test_features"]])
    files = [
        photos / part / name / f"{i}.png"
        for part, many in (("train", 6), ("test", 2))
        for name in ("dark", "light")
        for i in range(many)
    ]
    for row, path in zip(found, files, strict=True):
        pixels = np.array(Image.open(path).convert("RGB")).transpose(2, 0, 1)[None]
        assert np.allclose(row, by_hand(onnx, pixels)[0], atol=1e-5), path


@pytest.mark.parametrize("other", [1, 5, 7, 1000])
def test_the_digest_is_the_same_whatever_the_batch(other: int, tmp_path: Path, onnx: Path) -> None:
    npz, files = write_npz(tmp_path / "images.npz", channels=3), []
    for batch in (64, other):
        files.append(tmp_path / f"{batch}.npz")
        embed_data(str(npz), Backbone(onnx), files[-1], batch=batch)
    assert files[0].read_bytes() == files[1].read_bytes()
    digests = {load_dataset(f"npz:{path}").digest for path in files}
    assert len(digests) == 1


def test_a_vector_does_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    """Not even by a network that subtracts the mean of its batch: it is shown images one by one."""
    together = Backbone(backbones.backbone(tmp_path / "together.onnx", together=True))
    images = np.random.default_rng(1).integers(0, 256, (11, 3, 16, 16), np.uint8)
    alone = torch.cat([together.features(images[i : i + 1]) for i in range(11)])
    assert torch.equal(together.features(images), alone)
    assert alone.shape == (11, 24)
    with pytest.raises(DataError, match=r"sees 4 images at a time.*depends on the others; export it for batches of 1"):
        Backbone(backbones.backbone(tmp_path / "four.onnx", together=True, batch=4))


@pytest.mark.parametrize(
    ("made", "asked"),
    [
        ({"last": True}, {}),
        ({"batch": 4}, {}),
        ({"batch": 1}, {}),
        ({"size": "side"}, {"size": 16}),
    ],
    ids=lambda some: ",".join(map(str, some)),
)
def test_layouts_and_batches_say_the_same(made: dict[str, Any], asked: dict[str, Any], tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(0, 256, (6, 3, 16, 16), np.uint8)
    plain = Backbone(backbones.backbone(tmp_path / "plain.onnx"))
    other = Backbone(backbones.backbone(tmp_path / "other.onnx", **made), **asked)
    assert torch.allclose(other.features(images), plain.features(images), atol=1e-6)
    assert other.recipe.digest != plain.recipe.digest, "another file is another backbone"


@pytest.mark.parametrize("last", [False, True])
def test_maps_are_averaged_over_their_places(last: bool, tmp_path: Path) -> None:
    path = backbones.backbone(tmp_path / "maps.onnx", last=last, maps=True)
    first, named = Backbone(path), Backbone(path, output="maps")
    assert first.recipe == named.recipe
    images = np.random.default_rng(1).integers(0, 256, (3, 3, 16, 16), np.uint8)
    x = (images.astype(np.float32) / 255 - np.reshape(IMAGENET[0], (3, 1, 1))) / np.reshape(IMAGENET[1], (3, 1, 1))
    x = x.astype(np.float32).transpose(0, 2, 3, 1) if last else x.astype(np.float32)
    onnxruntime: Any = importlib.import_module("onnxruntime")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    maps = session.run(["maps"], {"images": x})[0]
    expected = maps.mean((1, 2)) if last else maps.mean((2, 3))
    assert first.features(images).shape == (3, 24)
    assert np.allclose(first.features(images).numpy(), expected, atol=1e-5)
    assert not np.allclose(first.features(images), Backbone(path, output="features").features(images))


def test_bytes_go_in_as_they_are(tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(0, 256, (3, 3, 16, 16), np.uint8)
    of_bytes = Backbone(backbones.backbone(tmp_path / "bytes.onnx", bytes_=True))
    as_floats = Backbone(backbones.backbone(tmp_path / "floats.onnx"), mean=0, std=1 / 255)
    assert torch.allclose(of_bytes.features(images), as_floats.features(images), rtol=1e-4)
    assert (of_bytes.recipe.values, of_bytes.recipe.mean) == ("uint8", ())
    with pytest.raises(ConfigError, match=r"normalises them itself; leave --mean, --std out"):
        Backbone(tmp_path / "bytes.onnx", mean=0.5, std=0.5)


def test_grey_images_are_shown_as_coloured_ones_and_not_the_other_way_round(tmp_path: Path, onnx: Path) -> None:
    grey = np.random.default_rng(1).integers(0, 256, (3, 1, 20, 30), np.uint8)
    raw = RawSet(Raw(grey, np.zeros(3, np.int64)), None, ("a",))
    coloured = RawSet(Raw(np.repeat(grey, 3, 1), np.zeros(3, np.int64)), None, ("a",))
    both = [embed(one, Backbone(onnx), "here").train.images for one in (raw, coloured)]
    assert np.array_equal(np.asarray(both[0]), np.asarray(both[1]))
    small = Backbone(backbones.backbone(tmp_path / "grey.onnx", channels=1))
    assert small.recipe.mean == (0.0,)
    assert embed(raw, small, "here").train.images[:].shape == (3, 24)  # type: ignore[index]
    with pytest.raises(DataError, match=r"here: holds images in colour, grey\.onnx takes grey ones; convert them"):
        embed(coloured, small, "here")


def test_normalisation_is_what_was_asked_for(onnx: Path) -> None:
    assert Backbone(onnx).recipe == Backbone(onnx, mean=IMAGENET[0], std=IMAGENET[1]).recipe
    assert Backbone(onnx, mean=None).recipe == Backbone(onnx, mean=[0], std=1).recipe
    image = np.full((1, 3, 16, 16), 51, np.uint8)
    twice = Backbone(onnx, mean=0, std=0.5).features(image)
    assert torch.allclose(twice, 2 * Backbone(onnx, mean=None).features(image), rtol=1e-4)
    for wrong in ({"mean": 0.5}, {"mean": [1, 2], "std": 1}, {"mean": 0, "std": 0}, {"mean": 0, "std": float("nan")}):
        with pytest.raises(ConfigError, match=r"--mean|--std"):
            Backbone(onnx, **wrong)


# ---------------------------------------------------------------- whose vectors they are


def test_the_recipe_is_in_the_file_and_in_the_digest(tmp_path: Path, onnx: Path) -> None:
    npz, out = write_npz(tmp_path / "images.npz", channels=3), tmp_path / "out.npz"
    embed_data(str(npz), Backbone(onnx), out)
    data = load_dataset(f"npz:{out}")
    assert data.backbone == Backbone(onnx).recipe
    with np.load(out) as held:
        arrays = {name: held[name] for name in held.files}
    assert json.loads(str(arrays["backbone"]))["digest"] == data.backbone.digest
    bare = {name: value for name, value in arrays.items() if name != "backbone"}
    np.savez(tmp_path / "bare.npz", **bare)
    other = replace(data.backbone, mean=(0.0, 0.0, 0.0)).text
    np.savez(tmp_path / "other.npz", **bare, backbone=np.array(other))
    told = {line.what: line.detail for line in check(f"npz:{out}")}
    assert told["backbone"].startswith("eyes.onnx (")
    assert "backbone" not in {line.what for line in check(f"npz:{tmp_path / 'bare.npz'}")}
    digests = {load_dataset(f"npz:{tmp_path / name}.npz").digest for name in ("out", "bare", "other")}
    assert len(digests) == 3, "the same numbers of another backbone are other data"


@pytest.mark.parametrize("entry", ["{}", "no JSON", "[]", '{"digest": "0"}', 3, ["a", "b"]])
def test_a_broken_recipe_is_one_line(entry: object, tmp_path: Path, onnx: Path) -> None:
    text = Backbone(onnx).recipe.text
    altered = text.replace("16", "17") if entry == "{}" else entry
    features, labels = np.zeros((4, 3), np.float32), np.array([0, 0, 1, 1])
    np.savez(tmp_path / "data.npz", features=features, labels=labels, backbone=np.array(altered))
    with pytest.raises(DataError, match=r"backbone.*write it anew with `engram embed`") as caught:
        load_dataset(f"npz:{tmp_path / 'data.npz'}")
    assert "\n" not in str(caught.value)


def test_a_recipe_is_known_by_all_but_its_name(onnx: Path) -> None:
    recipe = Backbone(onnx).recipe
    assert Recipe.of(json.loads(recipe.text)) == recipe
    renamed = replace(recipe, name="other.onnx")
    require_same(recipe, renamed, "data")
    for field, value in (
        ("sha256", "0" * 64), ("shape", (3, 32, 32)), ("values", "uint8"), ("mean", (0.0,) * 3), ("std", (1.0,) * 3),
        ("output", "maps"), ("resize", "another"),
    ):  # fmt: skip
        other = replace(recipe, **{field: value})  # type: ignore[arg-type]
        assert other.digest != recipe.digest, field
        with pytest.raises(DataError, match=r"^data: vectors by the backbone .* the model learned from those of"):
            require_same(recipe, other, "data")
    with pytest.raises(DataError, match="vectors that name no backbone"):
        require_same(recipe, None, "data")
    with pytest.raises(DataError, match="learned from vectors that name none; make a new model"):
        require_same(None, recipe, "data")
    require_same(None, None, "data")


def test_the_same_file_with_the_preparation_of_a_recipe(tmp_path: Path, onnx: Path) -> None:
    recipe = Backbone(onnx, mean=0.5, std=0.25, output="maps").recipe
    moved = tmp_path / "elsewhere.onnx"
    moved.write_bytes(onnx.read_bytes())
    assert Backbone.like(moved, recipe).recipe.digest == recipe.digest
    other = backbones.backbone(tmp_path / "other.onnx", seed=1)
    with pytest.raises(DataError, match=r"other\.onnx: is not the eyes\.onnx by which.*give that one, or make a new"):
        Backbone.like(other, recipe)


# ---------------------------------------------------------------- what cannot be used


def refused(path: Path, **asked: Any) -> str:
    with pytest.raises(EngramError) as caught:
        Backbone(path, **asked)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_files_that_are_no_backbone_are_one_line(tmp_path: Path, onnx: Path) -> None:
    (tmp_path / "text.onnx").write_text("nothing")
    assert "no ONNX file that can be run" in refused(tmp_path / "text.onnx")
    assert "No such file" in refused(tmp_path / "missing.onnx")
    assert "Is a directory" in refused(tmp_path)
    (tmp_path / "cut.onnx").write_bytes(onnx.read_bytes()[:-100])
    assert "no ONNX file that can be run" in refused(tmp_path / "cut.onnx")
    channels = backbones.backbone(tmp_path / "channels.onnx", channels="c")
    assert "with neither 1 nor 3 channels; export it with its number of channels fixed" in refused(channels)
    assert "has no such output; it has features, maps" in refused(onnx, output="logits")
    assert "takes images of (16, 16); leave --size out" in refused(onnx, size=32)
    free = backbones.backbone(tmp_path / "free.onnx", size="side")
    assert "say which with --size" in refused(free)
    assert "--size 0 must be 1 or more" in refused(free, size=0)
    assert "cannot answer for images of 2x2" in refused(free, size=2)


def test_ranks_that_are_no_images_and_no_vectors_are_one_line(tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    for shape, said in (
        ([8, 16], "its input x is float (8, 16); a backbone takes float32 or uint8 images"),
        ([8, 3, 4, 4], None),
    ):
        one = [("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, shape)]
        path = backbones.save(tmp_path / "rank.onnx", nodes, inputs=one[0], outputs=one[1], weights={})
        if said is None:
            assert Backbone(path).width == 3
        else:
            assert said in refused(path)
    flat = [helper.make_node("ReduceMean", ["x"], ["y"], keepdims=0)]
    path = backbones.save(
        tmp_path / "scalar.onnx",
        flat,
        inputs=[("x", TensorProto.FLOAT, ["n", 3, 4, 4])],
        outputs=[("y", TensorProto.FLOAT, [])],
        weights={},
    )
    assert "its output y is float32 (), not float32 (N, D) or (N, D, h, w)" in refused(path)
    two = [helper.make_node("Add", ["x", "ids"], ["y"])]
    inputs: list[Any] = [("x", TensorProto.FLOAT, ["n", 3, 4, 4]), ("ids", TensorProto.FLOAT, ["n", 3, 4, 4])]
    path = backbones.save(tmp_path / "two.onnx", two, inputs=inputs, outputs=[("y", 1, ["n", 3, 4, 4])], weights={})
    assert "takes 2 inputs (x, ids); a backbone for images takes one" in refused(path)


def test_weights_in_another_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest would not cover them; from the current folder neither."""
    path = backbones.backbone(tmp_path / "b.onnx", save_as_external_data=True, size_threshold=0, location="b.bin")
    assert (tmp_path / "b.bin").exists()
    assert "its weights lie in another file" in refused(path)
    monkeypatch.chdir(tmp_path)
    assert "its weights lie in another file" in refused(path)


def test_a_network_that_draws_lots_is_refused(tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["noise"]),
        helper.make_node("Add", ["x", "noise"], ["z"]),
        helper.make_node("GlobalAveragePool", ["z"], ["y"]),
    ]
    one: list[Any] = [("x", TensorProto.FLOAT, ["n", 3, 4, 4])]
    path = backbones.save(tmp_path / "r.onnx", nodes, inputs=one, outputs=[("y", 1, ["n", 3, 1, 1])], weights={})
    assert "answers otherwise each time; export it in evaluation mode" in refused(path)


def test_without_the_extra_it_says_what_to_install(onnx: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert refused(onnx) == "a backbone needs more packages: pip install 'engram-continual[onnx]'"


def test_features_that_are_not_finite_name_their_image(tmp_path: Path) -> None:
    photos = photographs(tmp_path / "photos")
    Image.fromarray(np.full((9, 9, 3), 255, np.uint8)).save(photos / "train" / "light" / "3.png")
    plain = Backbone(backbones.backbone(tmp_path / "plain.onnx"), mean=None)
    white, light = (float(plain.features(np.full((1, 3, 16, 16), x, np.uint8)).abs().max()) for x in (255, 226))
    gain = float(np.finfo(np.float32).max) / (white * light) ** 0.5  # what is white overflows, and nothing else
    steep = Backbone(backbones.backbone(tmp_path / "steep.onnx", gain=gain), mean=None)
    with pytest.raises(DataError, match=r"finds NaN or infinite numbers in it; leave it out") as caught:
        embed_data(str(photos), steep, tmp_path / "out.npz")
    assert str(Path("train") / "light" / "3.png") in str(caught.value)
    assert not (tmp_path / "out.npz").exists()


def test_what_cannot_be_written_or_is_embedded_already(tmp_path: Path, onnx: Path) -> None:
    npz, backbone = write_npz(tmp_path / "images.npz", channels=3), Backbone(onnx)
    before = npz.read_bytes()
    for out, said in (
        (npz, "is the data itself"),
        (tmp_path / "out.txt", r"name an \.npz file"),
        (tmp_path / "no" / "out.npz", "cannot write"),
    ):
        with pytest.raises(EngramError, match=said):
            embed_data(str(npz), backbone, out)
    assert npz.read_bytes() == before
    with pytest.raises(ConfigError, match="--batch 0"):
        embed_data(str(npz), backbone, tmp_path / "out.npz", batch=0)
    embed_data(str(npz), backbone, tmp_path / "out.npz")
    with pytest.raises(DataError, match="holds vectors already; give images"):
        embed_data(str(tmp_path / "out.npz"), backbone, tmp_path / "again.npz")
    with pytest.raises(DataError, match="no such folder or file"):
        embed_data("./nowhere", backbone, tmp_path / "out.npz")


def test_the_digits_keep_their_test_part(tmp_path: Path, onnx: Path) -> None:
    embed_data("digits", Backbone(onnx), tmp_path / "digits.npz")
    found, digits = load_dataset(f"npz:{tmp_path / 'digits.npz'}"), load_dataset("digits")
    assert found.train_counts == digits.train_counts
    assert torch.equal(found.test.labels, digits.test.labels)


def test_both_digests_of_a_set_agree(tmp_path: Path, onnx: Path) -> None:
    npz = write_npz(tmp_path / "images.npz", channels=3)
    embed_data(str(npz), Backbone(onnx), tmp_path / "out.npz")
    from engram.data.npz import read_npz

    assert content_digest(read_npz(tmp_path / "out.npz")) == load_dataset(f"npz:{tmp_path / 'out.npz'}").digest


# ---------------------------------------------------------------- whole or not at all

SLOWLY = """
import sys, time
import numpy as np
from pathlib import Path
from engram.data.backbone import Backbone
from engram.model import embed
savez = np.savez
def slowly(file, **arrays):
    savez(file, **arrays)
    file.flush()
    print("written", flush=True)
    time.sleep(60)
np.savez = slowly
embed.embed_data(sys.argv[1], Backbone(sys.argv[2]), Path(sys.argv[3]))
"""


def test_killed_while_it_writes_it_leaves_nothing_under_its_name(tmp_path: Path, onnx: Path) -> None:
    npz, out = write_npz(tmp_path / "images.npz", channels=3), tmp_path / "out" / "features.npz"
    out.parent.mkdir()
    words = [sys.executable, "-c", SLOWLY, str(npz), str(onnx), str(out)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    time.sleep(0.1)
    process.kill()
    process.communicate()
    assert not out.exists()
    embed_data(str(npz), Backbone(onnx), out)
    assert [path.name for path in out.parent.iterdir()] == ["features.npz"], "what the killed one left is gone"


def test_stopped_while_it_computes_it_leaves_nothing(tmp_path: Path, onnx: Path) -> None:
    npz, out = write_npz(tmp_path / "images.npz", channels=3), tmp_path / "out" / "features.npz"
    out.parent.mkdir()

    def stop(done: int, total: int) -> None:
        assert total == 160
        if done >= 64:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_data(str(npz), Backbone(onnx), out, progress=stop)
    assert list(out.parent.iterdir()) == []


def test_the_command_says_what_it_wrote(tmp_path: Path, onnx: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from engram.cli import call

    npz, out = write_npz(tmp_path / "images.npz", channels=3), tmp_path / "out.npz"
    words = ["embed", str(npz), "--backbone", str(onnx), "--out", str(out)]
    assert call([*words, "--mean", "0.5", "--std", "0.5,0.5,0.25"]) == 0
    told = capsys.readouterr().out
    assert "160 training and 0 test vectors of 24, 4 classes" in told
    assert "16 x 16 pixels, RGB, (x / 255 - (0.5, 0.5, 0.5)) / (0.5, 0.5, 0.25)" in told
    assert call([*words, "--mean", "none", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    recipe = load_dataset(f"npz:{out}").backbone
    assert recipe is not None
    assert (recipe.mean, recipe.std) == ((0.0,) * 3, (1.0,) * 3)
    for wrong, said in (
        (["--mean", "a"], "--mean 'a'"),
        (["--output", "z"], "no such output"),
        (["--size", "9"], "16"),
    ):
        assert call([*words, *wrong]) == 2
        assert said in capsys.readouterr().err


def test_where_the_runtime_is_asked_to_look_for_weights_there_is_nothing() -> None:
    assert not Path(backbone_file.NOWHERE).exists()
