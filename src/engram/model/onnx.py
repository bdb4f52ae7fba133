"""What answers, as one ONNX file for programs that know nothing of Engram or torch.

    images (batch, C, H, W) uint8 ─ x / 127.5 - 1 ─ network ─ / temperature ─ softmax ─> probabilities (batch, classes)

Beside the graph the file holds texts (`metadata_props`): names of the classes, how to prepare an image, and whatever
the caller adds. It is written only where ONNX Runtime and torch give the same probabilities, and the same network gives
the same bytes under the same versions of torch and onnxscript.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engram import __version__
from engram.context import Shape
from engram.errors import ConfigError, EngramError, missing_extra
from engram.experiment.files import os_errors, write_atomically
from engram.methods.classifier import normalise
from engram.methods.learner import Samples
from engram.model.model import Model
from engram.seeding import generator

OPSET = 20
"""Of the operators that the file uses; ONNX Runtime has it since 1.18."""
BATCHES = (1, 3, 64)
"""Sizes at which random images are compared."""
LIMIT = 1e-4
"""How far a probability may be from torch's."""
CHECKED = 8
"""Drawings of every class that are compared too, where a model draws."""
PACKAGES = ("onnx", "onnxruntime", "onnxscript")
COLOURS = {1: "grey", 3: "RGB"}

Run = Callable[[Tensor], Tensor]
"""(B, C, H, W) uint8 -> (B, classes) probabilities"""


@dataclass(frozen=True)
class OnnxReport:
    """What was written, and how it compares with torch."""

    path: Path
    difference: float
    """The largest between a probability of ONNX Runtime's and torch's."""
    opset: int
    bytes: int
    batches: tuple[int, ...]
    """Sizes of batches that were compared."""
    images: int
    """How many images were compared, in all."""


class Probabilities(nn.Module):
    """From bytes to probabilities: all that the file computes. The network is a copy, on the CPU."""

    def __init__(self, net: nn.Module, temperature: float) -> None:
        super().__init__()
        self.net, self.temperature = copy.deepcopy(net).cpu(), temperature
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, classes)."""
        return torch.softmax(self.net(images.float() / 127.5 - 1) / self.temperature, 1)


def export_onnx(
    net: nn.Module,
    path: Path,
    *,
    shape: Shape,
    class_names: Sequence[str],
    temperature: float = 1.0,
    thresholds: Mapping[str, float] | None = None,
    metadata: Mapping[str, str] | None = None,
    check: Tensor | None = None,
) -> OnnxReport:
    """Write a network that answers (`Learner.answer_net`); nothing is written where ONNX Runtime answers otherwise.

    Args:
        net: (B, C, H, W) floats in [-1, 1] -> (B, classes) scores.
        path: the file, which is replaced as a whole.
        shape: of an image.
        class_names: one for each score.
        temperature: by which scores are divided before they become probabilities.
        thresholds: by name; told in the file's texts and not used in the graph.
        metadata: more texts of the caller's own.
        check: (N, C, H, W) uint8 images to compare as well, beside random ones.
    """
    for name in PACKAGES:
        _require(name)
    _check(net, shape, class_names, temperature)
    texts = _texts(shape, class_names, temperature, thresholds, metadata or {})
    model = _model(Probabilities(net, temperature), shape)
    for key, text in texts.items():
        model.metadata_props.add(key=key, value=text)
    content: bytes = model.SerializeToString(deterministic=True)

    batches = _batches(shape, check)
    difference = _difference(_in_onnx(content), _in_torch(net, temperature), batches)
    if not difference <= LIMIT:  # nor where it is not a number
        raise EngramError(
            f"ONNX Runtime's probabilities are up to {difference:.2g} away from torch's, {LIMIT:g} is allowed: "
            f"{path} was not written; try other versions of {', '.join(PACKAGES)}"
        )
    with os_errors(path):
        write_atomically(path, content)
    sizes = {len(images) for images in batches}
    return OnnxReport(path, difference, OPSET, len(content), tuple(sorted(sizes)), sum(map(len, batches)))


def export_model(model: Model, path: Path) -> OnnxReport:
    """Write a model's answer, with what its calibration knows."""
    learner, shape = model.ready("be exported")
    return export_onnx(
        learner.answer_net(),
        path,
        shape=shape,
        class_names=model.classes,
        temperature=model.temperature,
        thresholds=None if model.trust is None else {"known": model.trust.calibration.threshold},
        metadata={"method": model.config.method, "digest": model.digest or "not saved", "engram": __version__},
        check=model.draw(range(len(model.classes)), CHECKED) if isinstance(learner, Samples) else None,
    )


# ---------------------------------------------------------------- what is asked for


def _require(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise missing_extra("engram export", "onnx") from None


@torch.no_grad()
def _check(net: nn.Module, shape: Shape, class_names: Sequence[str], temperature: float) -> None:
    if not class_names:
        raise ConfigError("the model has learned no class yet: there is nothing to export; let it finish a task")
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ConfigError(f"temperature {temperature}: must be above 0 and finite")
    classes = copy.deepcopy(net).cpu().eval()(torch.zeros(1, *shape)).shape[1]
    if classes != len(class_names):
        raise ConfigError(f"{len(class_names)} class names for a network with {classes} scores; give one for each")


def _texts(
    shape: Shape,
    class_names: Sequence[str],
    temperature: float,
    thresholds: Mapping[str, float] | None,
    metadata: Mapping[str, str],
) -> dict[str, str]:
    """What a person or a program needs to know to use the file; the caller's own last, in the order of their names."""
    channels, height, width = shape
    texts = {
        "class_names": json.dumps(list(class_names), ensure_ascii=False),
        "temperature": repr(float(temperature)),
        "input_shape": json.dumps(list(shape)),
        "value_range": "0 to 255 (uint8); the graph itself scales to -1 ... 1",
        "colour_order": COLOURS.get(channels, f"{channels} channels"),
        "resizing": f"by the caller: bilinear with antialiasing to {height} x {width} (height x width) pixels, "
        "without keeping the ratio of the sides, then rounded to 0 ... 255",
    }
    if thresholds is not None:
        if wrong := [name for name, value in thresholds.items() if not math.isfinite(value)]:
            raise ConfigError(f"threshold {wrong[0]} = {thresholds[wrong[0]]}: must be finite")
        texts["thresholds"] = json.dumps(dict(sorted(thresholds.items())), ensure_ascii=False)
    if taken := sorted(texts.keys() & metadata.keys()):
        raise ConfigError(f"metadata {', '.join(taken)}: the export sets it itself; choose another name")
    return {**texts, **dict(sorted(metadata.items()))}


# ---------------------------------------------------------------- the graph


def _model(net: Probabilities, shape: Shape) -> Any:
    """The network as an `onnx.ModelProto` for batches of any size."""
    images = torch.zeros(2, *shape, dtype=torch.uint8)  # of one image torch would take the size for fixed
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                net,
                (images,),
                dynamo=True,
                opset_version=OPSET,
                input_names=["images"],
                output_names=["probabilities"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                external_data=False,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        cause = str(error.__cause__ or error).strip().splitlines()[0]
        raise EngramError(f"the network cannot be written as ONNX: {cause}; answer with other operations") from error
    assert program is not None
    model = program.model_proto
    if not model.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
        raise EngramError(
            "the network can be written as ONNX for one size of batch only: "
            "in its forward take the size from x.shape[0], not from len(x)"
        )
    _strip(model)
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says of itself at every export: of its own deprecated classes, and of torchvision."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            yield
    finally:
        log.setLevel(level)


def _strip(model: Any) -> None:
    """Leave out the notes on each node: they name the files and lines of this machine."""
    graph = model.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


# ---------------------------------------------------------------- the comparison


def _batches(shape: Shape, check: Tensor | None) -> list[Tensor]:
    """Random images, and the given ones."""
    draws = generator(0, "onnx")
    drawn = [torch.randint(0, 256, (size, *shape), dtype=torch.uint8, generator=draws) for size in BATCHES]
    return drawn + (list(torch.split(check, max(BATCHES))) if check is not None and len(check) else [])


def _difference(one: Run, other: Run, batches: Sequence[Tensor]) -> float:
    """The largest; not a number where one of them is not."""
    return torch.stack([(one(images) - other(images)).abs().max() for images in batches]).max().item()


def _in_torch(net: nn.Module, temperature: float) -> Run:
    net = copy.deepcopy(net).cpu().eval()

    @torch.no_grad()
    def run(images: Tensor) -> Tensor:
        return torch.softmax(net(normalise(images.cpu())) / temperature, 1)

    return run


def _in_onnx(content: bytes) -> Run:
    runtime = _require("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["probabilities"], {"images": images.cpu().numpy()})[0])
