"""The longer examples and the page on embeddings run as they stand, with tiny networks in the place of real ones."""

from __future__ import annotations

import csv
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import backbones
from engram.data.backbone import Backbone
from engram.model.model import Model

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "embeddings.md"
QUICK = ["gan.epochs=1", "gan.steps=4", "classifier.epochs=2", "replay.images=64", "generator.width=4"]
SET = [word for value in QUICK for word in ("--set", value)]
ASKED = {"balance": "how much money is on my account", "card": "i lost my card", "rate": "what is the rate today"}


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / name))


def main_of(name: str) -> Callable[[list[str]], None]:
    made: Callable[[list[str]], None] = example(name)["main"]
    return made


def photographs(folder: Path, *names: str, count: int = 16) -> Path:
    draws = np.random.default_rng(len(names))
    for place, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = draws.integers(0, 60, (40, 48, 3), np.uint8)
            pixels[10 * place : 10 * place + 10] += 180
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


# ---------------------------------------------------------------- photographs


def test_products_month_by_month(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    photographs(tmp_path / "photos" / "2026-05", "mug", "lamp")
    photographs(tmp_path / "photos" / "2026-06", "vase")
    photographs(tmp_path / "new", "some", count=3)
    backbones.backbone(tmp_path / "net.onnx", size="side")
    words = ["photos", "--backbone", "net.onnx", "--size", "24", "--ask", "new", "--forget", "mug", *SET]
    main_of("products.py")(words)
    told = capsys.readouterr().out
    assert re.search(r"^2026-05: lamp, mug; [\d.]+ % of them right$", told, re.MULTILINE)
    assert re.search(r"^2026-06: vase; ", told, re.MULTILINE)
    assert len(re.findall(r"^\d\.png: (?:mug|lamp|vase|unknown)$", told, re.MULTILINE)) == 3
    assert re.search(r"^forgot mug: [\d,]+ of [\d,]+ weights are free again$", told, re.MULTILINE)
    assert Model.open("products.engram").classes == ("lamp", "vase")
    assert "net.onnx" in Path("products.card.md").read_text()


def test_the_exported_mobilenet_is_the_one_in_torch(tmp_path: Path) -> None:
    """With the shapes and names of torchvision's file, of which the layer that names classes is left out."""
    made = example("export_mobilenet.py")
    torch.manual_seed(0)
    network = made["MobileNetV2"]().eval()
    weights = {**network.state_dict(), "classifier.1.weight": torch.zeros(2, 1280), "classifier.1.bias": torch.zeros(2)}
    assert {
        "features.0.0.weight",
        "features.1.conv.1.weight",
        "features.17.conv.3.weight",
        "features.18.1.bias",
    } <= set(weights)
    assert (
        sum(value.numel() for name, value in weights.items() if "features" in name and "num_b" not in name) == 2257984
    )
    torch.save(weights, tmp_path / "weights.pth")
    with pytest.warns(FutureWarning):  # torch speaks of its own deprecated classes
        made["export"](str(tmp_path / "weights.pth"), str(tmp_path / "net.onnx"))
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 40, 40), np.uint8)
    backbone = Backbone(tmp_path / "net.onnx", size=40)
    mean, std = (torch.tensor(some).reshape(3, 1, 1) for some in (backbone.recipe.mean, backbone.recipe.std))
    with torch.inference_mode():
        expected = network((torch.from_numpy(images) / 255 - mean) / std)
    assert expected.shape == (3, 1280)
    assert torch.allclose(backbone.features(images), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


# ---------------------------------------------------------------- sentences


def sentences(count: int) -> list[list[str]]:
    return [[f"{text} please {'now ' * (i % 3)}{i}", intent] for intent, text in ASKED.items() for i in range(count)]


def clinc(path: Path) -> Path:
    parts = {"train": sentences(12), "test": sentences(3), "oos_test": [["who won the race", "oos"]] * 4}
    path.write_text(json.dumps(parts))
    return path


def encoder(folder: Path) -> tuple[Path, Path]:
    """A vector a word, out of a table; and the words."""
    from onnx import TensorProto, helper

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "how", "much", "mon", "##ey", "is", "card", "rate", "lost", "the"]
    (folder / "vocab.txt").write_text("\n".join(words))
    table = np.random.default_rng(0).standard_normal((len(words), 8)).astype(np.float32)
    sides: list[int | str] = ["batch", "places"]
    net = backbones.save(
        folder / "encoder.onnx",
        [helper.make_node("Gather", ["table", "input_ids"], ["states"])],
        inputs=[("input_ids", TensorProto.INT64, sides)],
        outputs=[("states", TensorProto.FLOAT, [*sides, 8])],
        weights={"table": table},
    )
    return net, folder / "vocab.txt"


def test_a_word_is_cut_into_its_longest_pieces(tmp_path: Path) -> None:
    encode = example("intents.py")["Encoder"](*encoder(tmp_path))
    assert encode.pieces("How much MÓNEY?") == [2, 4, 5, 6, 7, 1, 3]
    table = np.random.default_rng(0).standard_normal((13, 8)).astype(np.float32)
    mean = table[[2, 4, 5, 6, 7, 1, 3]].mean(0)
    assert np.allclose(encode("How much money?"), mean / np.linalg.norm(mean), atol=1e-6)


def test_intents_month_by_month(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CLINC150's form by counted words and by an encoder; what was kept of it; BANKING77's tables."""
    monkeypatch.chdir(tmp_path)
    main, (net, words) = main_of("intents.py"), encoder(tmp_path)
    data, more = str(clinc(tmp_path / "clinc.json")), ["--month", "2", *SET]
    main([data, "--save", "counts.npz", *more])
    told = capsys.readouterr().out
    assert re.findall(r"^(\d) intents: [\d.]+ % right, [\d.]+ % called unknown$", told, re.MULTILINE) == ["2", "3"]
    assert re.search(r"^out of scope: [\d.]+ % called unknown$", told, re.MULTILINE)
    assert Model.open("intents.engram").classes == tuple(sorted(ASKED))
    main(["--features", "counts.npz", *more])
    assert capsys.readouterr().out == told, "the same vectors, the same model"
    main([data, "--encoder", str(net), "--vocabulary", str(words), *more])
    assert Model.open("intents.engram").shape == (8,)
    for name, count in (("train.csv", 12), ("test.csv", 3)):
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows([["text", "category"], *sentences(count)])
    capsys.readouterr()
    main(["train.csv", "--test", "test.csv", *more])
    assert "out of scope" not in capsys.readouterr().out
    for wrong in ([], [data, "--encoder", str(net)], ["train.csv"]):
        with pytest.raises(SystemExit):
            main([*wrong, *more])


# ---------------------------------------------------------------- the page


@pytest.mark.skipif(os.name != "posix", reason="its commands are for a POSIX shell")
def test_the_page_on_embeddings_runs_as_it_stands(tmp_path: Path) -> None:
    found = re.findall(r"^```(sh|python)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert [language for language, _ in found] == ["sh", "sh", "python", "python"]
    photographs(tmp_path / "photos" / "may", "mug", "lamp")
    photographs(tmp_path / "photos" / "june", "vase")
    photographs(tmp_path / "new", "some", count=3)
    backbones.backbone(tmp_path / "mobilenet.onnx", size="side")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    for language, text in found:
        words = ["sh", "-e", "-c", text] if language == "sh" else [sys.executable, "-W", "ignore", "-c", text]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    assert Model.open(tmp_path / "shop.engram").classes == ("lamp", "mug", "vase")
    assert not (tmp_path / "photos").exists()
    assert Backbone(tmp_path / "own.onnx").width == 8
