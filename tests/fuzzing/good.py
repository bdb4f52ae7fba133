"""Small good folders, all made by code: what the readers read without a word."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.io import savemat

from engram import Model, run
from engram.data.sources import CIFAR_FILES, CIFAR_FOLDER, LAYOUT
from fuzzing.edits import Files

TINY: dict[str, Any] = {
    "gan.epochs": 1, "gan.steps": 2, "gan.batch_size": 8, "generator.width": 2, "generator.latent_dim": 8,
    "generator.bn_batches": 1, "critic.width": 4, "critic.penalty_stride": 2, "masks.max_units_ratio": 0.0,
    "replay.images": 16, "classifier.width": 4, "classifier.epochs": 1, "runtime.threads": 1,
}  # fmt: skip
Grey = npt.NDArray[np.uint8]


def _bytes(*shape: int, seed: int = 0) -> Grey:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def all_files(at: Path, *names: str) -> Files:
    """All files below a folder, or some."""
    wanted = [at / name for name in names] or sorted(at.rglob("*"))
    return {str(path.relative_to(at)): path.read_bytes() for path in wanted if path.is_file() and path.name != ".lock"}


# ---------------------------------------------------------------- data


def _idx_file(array: Grey) -> bytes:
    sizes = b"".join(side.to_bytes(4, "big") for side in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def _idx_set() -> dict[str, bytes]:
    """Ten classes of two images for training, of one for test, 4 x 4 pixels."""
    labels = np.arange(20, dtype=np.uint8) % 10
    arrays = (_bytes(20, 4, 4), labels, _bytes(10, 4, 4, seed=1), labels[:10])
    return {name.removesuffix(".gz"): _idx_file(a) for name, a in zip(LAYOUT["mnist"], arrays, strict=True)}


def idx(at: Path) -> dict[str, Files]:
    raw = {f"mnist/{name}": content for name, content in _idx_set().items()}
    return {"raw": raw, "gzip": {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in raw.items()}}


def mat(at: Path) -> dict[str, Files]:
    def part(count: int, seed: int, packed: bool) -> bytes:
        file = io.BytesIO()
        y = (np.arange(count, dtype=np.uint8) % 10 + 1)[:, None]
        savemat(file, {"X": _bytes(4, 4, 3, count, seed=seed), "y": y}, do_compression=packed)
        return b"MATLAB 5.0 MAT-file".ljust(116) + file.getvalue()[116:]  # scipy writes the time there

    return {
        name: {"svhn/train_32x32.mat": part(20, 0, packed), "svhn/test_32x32.mat": part(10, 1, packed)}
        for name, packed in (("plain", False), ("packed", True))
    }


def _cifar_set() -> dict[str, bytes]:
    def batch(count: int, seed: int) -> bytes:
        rows = _bytes(count, 3073, seed=seed)
        rows[:, 0] = np.arange(count)
        return rows.tobytes()

    return {
        name: batch(10 if name in (CIFAR_FILES[0], CIFAR_FILES[-1]) else 1, n) for n, name in enumerate(CIFAR_FILES)
    }


def cifar(at: Path) -> dict[str, Files]:
    return {"batches": {f"cifar10/{CIFAR_FOLDER}/{name}": content for name, content in _cifar_set().items()}}


def _npz_file(**arrays: npt.NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def npz(at: Path) -> dict[str, Files]:
    labels = np.repeat(np.arange(3), 6)
    colour = _bytes(18, 5, 6, 3)
    vectors = np.random.default_rng(0).normal(size=(18, 3))
    packed = io.BytesIO()
    np.savez_compressed(packed, images=colour[..., 0], labels=labels)
    made = {
        "images": _npz_file(images=colour, labels=labels, class_names=np.array(["a", "b", "c"])),
        "parts": _npz_file(
            train_images=colour, train_labels=labels, test_images=colour[::2], test_labels=labels[::2].astype(np.uint8)
        ),
        "packed": packed.getvalue(),
        "vectors": _npz_file(features=vectors.astype(np.float32), labels=labels),
        "doubles": _npz_file(features=vectors, labels=labels, class_names=np.array([b"a", b"b", b"c"])),
    }
    return {name: {"data.npz": content} for name, content in made.items()}


def _image(suffix: str, mode: str = "RGB", seed: int = 0, **options: Any) -> bytes:
    file = io.BytesIO()
    small = Image.fromarray(_bytes(7, 9, 4, seed=seed), "RGBA")
    small.convert(mode).save(file, suffix, **options)
    return file.getvalue()


def images(at: Path) -> dict[str, Files]:
    tagged = Image.Exif()
    tagged[0x0112] = 6  # lies on its side
    deep = io.BytesIO()
    Image.fromarray(np.arange(63, dtype=np.uint16).reshape(7, 9) * 1000).save(deep, "PNG")
    made = {
        "png": _image("PNG"), "palette.png": _image("PNG", "P", transparency=3), "alpha.png": _image("PNG", "RGBA"),
        "bits.png": _image("PNG", "1"), "deep.png": deep.getvalue(), "jpg": _image("JPEG"),
        "side.jpg": _image("JPEG", exif=tagged), "steps.jpeg": _image("JPEG", progressive=True),
        "cmyk.jpg": _image("JPEG", "CMYK"), "grey.jpg": _image("JPEG", "L"), "webp": _image("WEBP"),
        "alpha.webp": _image("WEBP", "RGBA", lossless=True), "bmp": _image("BMP"), "grey.bmp": _image("BMP", "L"),
    }  # fmt: skip
    steady = {"set/b/1.png": _image("PNG", seed=2), "set/b/2.png": _image("PNG", seed=3)}
    return {name: {f"set/a/1.{name}": content, f"set/a/2.{name}": content, **steady} for name, content in made.items()}


def listing(at: Path) -> dict[str, Files]:
    base = {f"in/train/n{c}/{i}.png": _image("PNG", seed=10 * c + i) for c in range(2) for i in range(2)}
    base |= {f"in/val/v{i}.png": _image("PNG", seed=40 + i) for i in range(4)}
    plain = "".join(f"v{i}.JPEG n{i % 2}\n" for i in range(4))
    solution = "ImageId,PredictionString\n" + "".join(f"v{i},n{i % 2} 1 2 3 4\n" for i in range(4))
    return {name: {**base, "list.csv": text.encode()} for name, text in (("plain", plain), ("solution", solution))}


def _tar(files: Mapping[str, bytes], packing: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=f"w:{packing}") as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def _deb(files: Mapping[str, bytes]) -> bytes:
    made = b"!<arch>\n"
    for name, content in (("debian-binary", b"2.0\n"), ("data.tar.xz", _tar(files, "xz"))):
        made += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        made += b"\n" * (len(content) % 2)
    return made


def archives(at: Path) -> dict[str, Files]:
    sheet = io.BytesIO()
    Image.fromarray(_bytes(10, 1024, 3), "RGB").save(sheet, "PNG")
    sheets = {f"package/{name.replace('.bin', '.png')}": sheet.getvalue() for name in CIFAR_FILES}
    labels = {"train_lables.json": [*range(10)] * 5, "test_lables.json": [*range(10)]}
    sheets |= {f"package/{name}": json.dumps(numbers).encode() for name, numbers in labels.items()}
    packed = {f"./usr/share/{name}.gz": gzip.compress(content, mtime=0) for name, content in _idx_set().items()}
    return {
        "all": {
            "mnist.tgz": _tar({f"package/data/{name}": content for name, content in _idx_set().items()}, "gz"),
            "cifar.tgz": _tar(sheets, "gz"),
            "cifar.tar.gz": _tar({f"{CIFAR_FOLDER}/{name}": content for name, content in _cifar_set().items()}, "gz"),
            "set.deb": _deb(packed),
        }
    }


def backbone(at: Path) -> dict[str, Files]:
    from onnx import TensorProto, helper

    for name, last in (("first", False), ("last", True)):
        shape: list[str | int | None] = ["batch", 4, 4, 3] if last else ["batch", 3, 4, 4]
        taken = helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)
        given = helper.make_tensor_value_info("features", TensorProto.FLOAT, None)
        node = helper.make_node("Flatten", ["images"], ["features"])
        graph = helper.make_graph([node], "flat", [taken], [given])
        made = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
        (at / f"{name}.onnx").write_bytes(made.SerializeToString())
    return {name: {"net.onnx": (at / f"{name}.onnx").read_bytes()} for name in ("first", "last")}


# ---------------------------------------------------------------- settings


def preset(at: Path) -> dict[str, Files]:
    text = """description = "a file of my own"
[stream]
order = ["3", "5"]
[dgmw]
classifier = { epochs = 1, width = 4 }
gan = { epochs = 1, steps = 2, learning_rate = 0.003 }
masks = { fraction = 0.5, choice = "learned" }
[ncm]
features = { filters = 8 }
"""
    return {"own": {"own.toml": text.encode()}}


# ---------------------------------------------------------------- runs and models


def _data(at: Path) -> str:
    """Two classes that a network can tell apart; the set's name, seen from the folder."""
    labels = np.repeat(np.arange(2), 16)
    pixels = _bytes(32, 16, 16, 1) // 4
    pixels[labels == 1, :8] += 150
    (at / "data.npz").write_bytes(_npz_file(images=pixels, labels=labels))
    return "npz:data.npz"


@cache
def _runs(at: Path) -> dict[str, Files]:
    at.mkdir(parents=True)
    with contextlib.chdir(at):
        name = _data(at)
        settings = {**TINY, "stream.validation": 0.2}
        run(name, "dgmw", preset="default", settings=settings, out="run")
        made = {"dgmw": all_files(at, "data.npz", "run/samples.png") | _run_files(at)}
        (at / "run").rename(at / "first")
        run(name, "ncm", preset="default", settings={"features.filters": 8, "runtime.threads": 1}, out="run")
        made["ncm"] = all_files(at, "data.npz") | _run_files(at)
    return made


def _run_files(at: Path) -> Files:
    return {f"run/{name}": content for name, content in all_files(at / "run").items()}


def run_folder(at: Path) -> dict[str, Files]:
    return _runs(at.parent / "runs")


@cache
def _models(at: Path) -> dict[str, Files]:
    files = _runs(at.parent / "runs")["dgmw"]
    at.mkdir(parents=True)
    for name, content in files.items():
        (at / name).parent.mkdir(exist_ok=True)
        (at / name).write_bytes(content)
    with contextlib.chdir(at):
        Model.open("run").save("dgmw.engram", card=False)
        Model.open("run").save("answers.engram", card=False, with_generator=False)
        learned = Model.create("ncm", settings={"features.filters": 8, "runtime.threads": 1})
        learned.learn("data.npz", audit="m.audit")
        learned.save("ncm.engram", card=False)
        learned.save_pretrained("hub")
        (at / "first.txt").write_text(json.dumps(learned.lineage[0].data["digest"]))
        Model.create(preset="fast").save("new.engram", card=False)
    return {name: {"m.engram": (at / f"{name}.engram").read_bytes()} for name in ("dgmw", "answers", "ncm", "new")} | {
        "hub": all_files(at / "hub"),
        "audit": all_files(at, "m.audit", "first.txt") | {"m.engram": (at / "ncm.engram").read_bytes()},
    }


def model(at: Path) -> dict[str, Files]:
    return {name: files for name, files in _models(at.parent / "models").items() if name not in ("hub", "audit")}


def hub(at: Path) -> dict[str, Files]:
    return {"ncm": _models(at.parent / "models")["hub"]}


def audit(at: Path) -> dict[str, Files]:
    return {"ncm": _models(at.parent / "models")["audit"]}
