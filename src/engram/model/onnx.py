"""What answers, as one ONNX file for programs that know nothing of Engram or torch.

    images (batch, C, H, W) uint8 ─ x / 127.5 - 1 ─ network ─ / temperature ─ softmax ─> probabilities (batch, classes)
                                                    └ sure enough, and like what was learned ─> known (batch,)

Of a model of vectors the input is `features` (batch, D) float32, and the network begins with their scale.

The second output is there for a model that was calibrated: false is what `Model.predict` calls unknown.

Beside the graph the file holds texts (`metadata_props`): names of the classes, how to prepare an image, and whatever
the caller adds. It is written only where ONNX Runtime and torch give the same answers, and the same network gives the
same bytes under the same versions of torch and onnxscript.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engram import __version__
from engram.context import Shape
from engram.errors import ConfigError, EngramError, missing_extra
from engram.evaluation.trust import Trust
from engram.evaluation.typicality import project
from engram.experiment.files import os_errors, write_atomically
from engram.kinds import blank, is_vector, noun, to_network
from engram.methods.answering import AnswerNet
from engram.methods.learner import Samples
from engram.model.model import Model
from engram.seeding import generator

OPSET = 20
"""Of the operators that the file uses; ONNX Runtime has it since 1.18."""
BATCHES = (1, 3, 64)
"""Sizes at which random images are compared."""
LIMIT = 1e-4
"""How far a probability may be from torch's. So near its limit an image may be known to one and not to the other."""
CHECKED = 8
"""Drawings of every class that are compared too, where a model draws."""
PACKAGES = ("onnx", "onnxruntime", "onnxscript")
COLOURS = {1: "grey", 3: "RGB"}

Run = Callable[[Tensor], tuple[Tensor, ...]]
"""(B, C, H, W) uint8, or (B, D) float32 -> (B, classes) probabilities, and with a trust (B,) bool, known"""


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
    known: bool
    """Whether the file tells the unknown."""


class Answer(nn.Module):
    """From bytes to probabilities: all that the file computes. The network is a copy, on the CPU."""

    def __init__(self, net: nn.Module, temperature: float, trust: Trust | None) -> None:
        super().__init__()
        self.net, self.temperature = copy.deepcopy(net).cpu(), temperature
        self.known = None if trust is None else Known(trust, embeds=isinstance(net, AnswerNet))
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """(B, C, H, W) uint8, or (B, D) -> (B, classes), and (B,) bool where the model was calibrated."""
        x, features = images if images.dim() == 2 else images.float() / 127.5 - 1, None
        if isinstance(self.net, AnswerNet):
            features = self.net.trunk(x)
            scores = self.net.head(features)
        else:
            scores = self.net(x)
        answer = torch.softmax(scores / self.temperature, 1)
        return (answer,) if self.known is None else (answer, self.known(scores, features))


class Known(nn.Module):
    """`Trust.known` as operations that a graph has; in float64 as there, because limits may be very near 1."""

    weight: Tensor
    bias: Tensor

    def __init__(self, trust: Trust, *, embeds: bool) -> None:
        super().__init__()
        near = trust.typicality if embeds else None
        self.temperature, self.threshold = trust.temperature, trust.calibration.threshold
        self.reach = None if near is None else near.reach
        if near is not None:  # projection and shape are one matrix
            shape = torch.tensor(near.shape, dtype=torch.float64)
            self.register_buffer("weight", project(torch.eye(near.inputs), near.seed) @ shape)
            self.register_buffer("bias", torch.tensor(near.centre, dtype=torch.float64) @ shape)

    def forward(self, scores: Tensor, features: Tensor | None) -> Tensor:
        """(B, classes), (B, features) -> (B,) bool."""
        known = torch.softmax(scores.double() / self.temperature, 1).amax(1) >= self.threshold
        if self.reach is None or features is None:
            return known
        return known & ((features.double() @ self.weight - self.bias).square().sum(1).sqrt() <= self.reach)


def export_onnx(
    net: nn.Module,
    path: Path,
    *,
    shape: Shape,
    class_names: Sequence[str],
    temperature: float = 1.0,
    trust: Trust | None = None,
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
        trust: what tells the unknown; with it the file has a second output, `known`.
        metadata: more texts of the caller's own.
        check: (N, C, H, W) uint8 images, or vectors (N, D), to compare as well, beside random ones.
    """
    for name in PACKAGES:
        _require(name)
    _check(net, shape, class_names, temperature)
    texts = _texts(shape, class_names, temperature, trust, metadata or {})
    model = _model(Answer(net, temperature, trust), shape)
    for key, text in texts.items():
        model.metadata_props.add(key=key, value=text)
    content: bytes = model.SerializeToString(deterministic=True)

    batches = _batches(shape, check)
    answers, remedy = (
        _in_onnx(content, input_name(shape)),
        f"{path} was not written; try other versions of {', '.join(PACKAGES)}",
    )
    found = [answers(images) for images in batches]
    difference = _difference([one[0] for one in found], net, temperature, batches)
    if not difference <= LIMIT:  # nor where it is not a number
        what = f"ONNX Runtime's probabilities are up to {difference:.2g} away from torch's, {LIMIT:g} is allowed"
        raise EngramError(f"{what}: {remedy}")
    if trust is not None and (wrong := _misjudged([one[1] for one in found], net, trust, batches)):
        raise EngramError(f"ONNX Runtime and torch do not call the same images unknown ({wrong} differ): {remedy}")
    with os_errors(path):
        write_atomically(path, content)
    sizes = {len(images) for images in batches}
    images = sum(map(len, batches))
    return OnnxReport(path, difference, OPSET, len(content), tuple(sorted(sizes)), images, trust is not None)


def export_model(model: Model, path: Path) -> OnnxReport:
    """Write a model's answer, with what its calibration knows."""
    learner, shape = model.ready("be exported")
    return export_onnx(
        learner.answer_net(),
        path,
        shape=shape,
        class_names=model.classes,
        temperature=model.temperature,
        trust=model.trust,
        metadata={
            "method": model.config.method,
            "digest": model.digest or "not saved",
            "engram": __version__,
            **({} if model.backbone is None else {"backbone": model.backbone.text}),
        },
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
    trust: Trust | None,
    metadata: Mapping[str, str],
) -> dict[str, str]:
    """What a person or a program needs to know to use the file; the caller's own last, in the order of their names."""
    texts = {
        "class_names": json.dumps(list(class_names), ensure_ascii=False),
        "temperature": repr(float(temperature)),
        "input_shape": json.dumps(list(shape)),
        **_preparation(shape),
    }
    if trust is not None:
        near = "" if trust.typicality is None else ", or because its features are unlike what was learned"
        texts["unknown"] = (
            f"where the output known is false, no class fits the {noun(shape, many=False)}: its best probability is "
            f"below {trust.calibration.threshold!r}{near}"
        )
    if taken := sorted(texts.keys() & metadata.keys()):
        raise ConfigError(f"metadata {', '.join(taken)}: the export sets it itself; choose another name")
    return {**texts, **dict(sorted(metadata.items()))}


def _preparation(shape: Shape) -> dict[str, str]:
    """What the caller does, and what the graph does by itself."""
    if is_vector(shape):
        return {"kind": "vectors", "value_range": "float32, as the model learned them; the graph itself scales them"}
    channels, height, width = shape
    return {
        "value_range": "0 to 255 (uint8); the graph itself scales to -1 ... 1",
        "colour_order": COLOURS.get(channels, f"{channels} channels"),
        "resizing": f"by the caller: bilinear with antialiasing to {height} x {width} (height x width) pixels, "
        "without keeping the ratio of the sides, then rounded to 0 ... 255",
    }


def input_name(shape: Shape) -> str:
    """What the file's input is called.

    >>> input_name((384,)), input_name((3, 32, 32))
    ('features', 'images')
    """
    return "features" if is_vector(shape) else "images"


# ---------------------------------------------------------------- the graph


def _model(net: Answer, shape: Shape) -> Any:
    """The network as an `onnx.ModelProto` for batches of any size."""
    images = blank(2, shape).zero_()  # of one image torch would take the size for fixed
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                net,
                (images,),
                dynamo=True,
                opset_version=OPSET,
                input_names=[input_name(shape)],
                output_names=["probabilities"] if net.known is None else ["probabilities", "known"],
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
    if is_vector(shape):
        drawn = [torch.randn(size, *shape, generator=draws) for size in BATCHES]
    else:
        drawn = [torch.randint(0, 256, (size, *shape), dtype=torch.uint8, generator=draws) for size in BATCHES]
    return drawn + (list(torch.split(check, max(BATCHES))) if check is not None and len(check) else [])


@torch.no_grad()
def _difference(found: Sequence[Tensor], net: nn.Module, temperature: float, batches: Sequence[Tensor]) -> float:
    """The largest; not a number where one of them is not."""
    net = copy.deepcopy(net).cpu().eval()
    wanted = [torch.softmax(net(to_network(images.cpu())) / temperature, 1) for images in batches]
    return torch.stack([(a - b).abs().max() for a, b in zip(found, wanted, strict=True)]).max().item()


@torch.no_grad()
def _misjudged(found: Sequence[Tensor], net: nn.Module, trust: Trust, batches: Sequence[Tensor]) -> int:
    """How many are known to one alone; an image within `LIMIT` of a limit may fall on either side."""
    net, wrong = copy.deepcopy(net).cpu().eval(), 0
    for known, images in zip(found, batches, strict=True):
        x = to_network(images.cpu())
        scores, features = net(x), net.trunk(x) if isinstance(net, AnswerNet) else None
        surely, perhaps = (_moved(trust, by).known(scores, features) for by in (-LIMIT, LIMIT))
        wrong += int((surely & ~known | known & ~perhaps).sum())
    return wrong


def _moved(trust: Trust, by: float) -> Trust:
    """With wider limits, or narrower ones."""
    near = trust.typicality and replace(trust.typicality, reach=trust.typicality.reach * (1 + by))
    return Trust(replace(trust.calibration, threshold=trust.calibration.threshold - by), near)


def _in_onnx(content: bytes, name: str) -> Run:
    runtime = _require("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda images: tuple(map(torch.from_numpy, session.run(None, {name: images.cpu().numpy()})))
