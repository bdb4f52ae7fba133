"""What a configuration needs of memory at the least, against what there is: asked before anything is built.

    needed        setting -> bytes that are held because of it
    require       one line, where the machine (its container, the graphics card) has less than that

Counted are weights, matrices, and what a training step cannot do without: gradients, the optimiser's two moments, what
the layers send on for one batch, an epoch's drawings. A run takes more than that, so nothing is refused that would fit.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from math import prod
from pathlib import Path

import torch

from engram import distributed
from engram.config import Config, Group, groups_of
from engram.context import Shape
from engram.errors import ConfigError
from engram.kinds import is_vector
from engram.nets import architectures
from engram.nets.dense import CRITIC, HIDDEN
from engram.nets.graph import Graph
from engram.nets.random_features import PATCH, WINDOWS
from engram.nets.residual_critic import LAST_SIDE, PLAIN_BLOCKS
from engram.nets.resnet import BLOCKS_READ, RESNET_BLOCKS

FLOAT, DOUBLE = 4, 8
"""Bytes."""
TRAINED = 4
"""Of every weight: itself, its gradient, Adam's two moments."""
ON_THE_HOST = ("replay.images", "features.", "statistics.")
"""What does not lie on a graphics card."""
CGROUP = Path("/sys/fs/cgroup")
LIMITS = (("", "memory.max"), ("memory", "memory.limit_in_bytes"))
"""By version of the control groups: below which folder, in which file."""


@dataclass(frozen=True)
class Size:
    """Of a network: its weights, and the numbers that its layers send on for one example."""

    weights: int = 0
    sent: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.weights + other.weights, self.sent + other.sent)


def _conv(n_in: int, n_out: int, kernel: int, side: int) -> Size:
    """A convolution onto a map of so many pixels a side."""
    return Size(n_in * n_out * kernel**2, n_out * side**2)


def _total(parts: Iterator[Size]) -> Size:
    return reduce(Size.__add__, parts, Size())


# ---------------------------------------------------------------- networks


def _conv_trunk(shape: Shape, width: int, kernel: int) -> Iterator[Size]:
    n_in, n_out, side = shape[0], width, shape[1] // 2
    while side >= architectures.START:
        yield _conv(n_in, n_out, kernel, side)
        n_in, n_out, side = n_out, 2 * n_out, side // 2


def _resnet(shape: Shape, width: int) -> Iterator[Size]:
    side, n_in = BLOCKS_READ, width
    yield _conv(shape[0], width, 3, side)
    for number in range(RESNET_BLOCKS):
        stage, again = divmod(number, 2)
        n_out, halves = width * 2**stage, bool(stage and not again)
        side //= 2 if halves else 1
        yield _conv(n_in, n_out, 3, side) + _conv(n_out, n_out, 3, side)
        yield Size(n_in * n_out if halves else 0)
        n_in = n_out


def _residual_trunk(shape: Shape, width: int) -> Iterator[Size]:
    side, n_in, plain = shape[1], shape[0], 0
    while plain < PLAIN_BLOCKS:
        halves = side > LAST_SIDE
        plain += not halves
        yield _conv(n_in, width, 3, side)
        side //= 2 if halves else 1
        yield _conv(width, width, 3, side) + Size(n_in * width if halves or n_in != width else 0)
        n_in = width


def classifier_size(name: str, shape: Shape, width: int) -> Size:
    """Of its trunk; the head is as large as there are classes."""
    name = architectures.chosen("classifier", name, shape)
    if name == "linear":
        return Size(0, shape[0])
    if name == "mlp":
        return Size(shape[0] * HIDDEN * width, HIDDEN * width)
    return _total(_resnet(shape, width) if name == "resnet18" else _conv_trunk(shape, width, 5))


def critic_size(name: str, shape: Shape, width: int, kernel: int) -> Size:
    """Of its trunk."""
    name = architectures.chosen("critic", name, shape)
    if name == "mlp":
        sizes = [shape[0], *(multiple * width for multiple in CRITIC)]
        return _total(Size(a * b, b) for a, b in itertools.pairwise(sizes))
    if name == "residual":
        return _total(_residual_trunk(shape, width))
    return _total(_resnet(shape, width) if name == "resnet18" else _conv_trunk(shape, width, kernel))


def generator_size(graph: Graph, channels: int, width: int, latent_dim: int) -> Size:
    """As it is at the start."""
    units, sides = [latent_dim, *(multiple * width for multiple in graph.multiples)], [1] * (graph.nodes + 1)
    weights = units[-1] * channels * graph.head.kernel**2
    for edge in graph.edges:
        weights += units[edge.source] * units[edge.target] * edge.operation.kernel**2
        doubled = edge.doubles or edge.operation.stride == 2
        first = 1 if graph.draws_vectors else architectures.START
        sides[edge.target] = first if edge.source == 0 else sides[edge.source] * (2 if doubled else 1)
    return Size(weights, sum(n * side**2 for n, side in zip(units[1:], sides[1:], strict=True)))


# ---------------------------------------------------------------- a configuration


def needed(config: Config, shape: Shape, *, training: bool) -> dict[str, int]:
    """Setting -> bytes; of a learner that is only built, or of its training too."""
    groups, example = groups_of(config), prod(shape) * (FLOAT if is_vector(shape) else 1)
    found = {"the length of the vectors": 2 * DOUBLE * shape[0]} if is_vector(shape) else {}
    copies = TRAINED if training else 1
    if "features" in groups:
        return found | _matrices(groups, shape)
    by_critic = getattr(groups.get("replay"), "classifier", "") == "critic"
    own = config.classifier
    size = classifier_size(own.architecture, shape, own.width)
    if not by_critic:
        found["classifier.width"] = copies * FLOAT * size.weights
    if "gan" in groups:
        found |= _gan(config, groups, shape, copies, training=training)
        if training and not by_critic:
            images = _number(groups["replay"], "images")
            rows = min(config.classifier.batch_size, images) // distributed.launched().size
            found["replay.images"] = example * images
            found["classifier.batch_size"] = _sent_bytes(config) * rows * size.sent
    if "statistics" in groups and getattr(groups["statistics"], "kept", False):
        features = shape[0] if is_vector(shape) else _features(_number(groups["statistics"], "filters"))
        found["statistics.filters"] = DOUBLE * features**2
    return found


def _sent_bytes(config: Config) -> int:
    """Of a number that a layer sends on."""
    return FLOAT if config.runtime.precision == "float32" else FLOAT // 2


def _gan(config: Config, groups: Mapping[str, Group], shape: Shape, copies: int, *, training: bool) -> dict[str, int]:
    generator, critic = groups["generator"], groups["critic"]
    graph = architectures.graph_for(str(vars(generator)["architecture"]), shape)
    drawing = generator_size(graph, shape[0], _number(generator, "width"), _number(generator, "latent_dim"))
    name = str(vars(critic)["architecture"])
    name = {"auto": graph.name}.get(name, name)
    judging = critic_size(name, shape, _number(critic, "width"), _number(critic, "kernel"))
    found = {
        "generator.width": copies * FLOAT * drawing.weights,
        "critic.width": copies * FLOAT * judging.weights,
    }
    if training:
        rows = _number(groups["gan"], "batch_size") // distributed.launched().size
        found["gan.batch_size"] = _sent_bytes(config) * rows * (drawing.sent + judging.sent)
    return found


def _matrices(groups: Mapping[str, Group], shape: Shape) -> dict[str, int]:
    """Of a closed form: what its features are made by, and the Gram matrix of those that have one for all classes."""
    own = groups["features"]
    if is_vector(shape):
        name, inputs, drawn = "features.projections", shape[0], _number(own, "projections")
        features = drawn or inputs
    else:
        name, inputs, drawn = "features.filters", shape[0] * PATCH**2, _number(own, "filters")
        features = _features(drawn)
    gram = DOUBLE * features**2 if {"discriminant", "ridge"} & set(groups) else 0
    return {name: FLOAT * inputs * drawn + gram}


def _features(filters: int) -> int:
    return 2 * WINDOWS**2 * filters


def _number(group: Group, name: str) -> int:
    return int(vars(group)[name])


# ---------------------------------------------------------------- the machine


def require(config: Config, shape: Shape, device: torch.device, *, training: bool) -> None:
    """Refuse what can never fit, before a byte of it is asked for."""
    parts = needed(config, shape, training=training)
    here = {name: size for name, size in parts.items() if device.type == "cpu" or name.startswith(ON_THE_HOST)}
    for place, own in ((torch.device("cpu"), here), (device, {k: v for k, v in parts.items() if k not in here})):
        there = memory_of(place) if own else None
        if there is not None and sum(own.values()) > there:
            raise _too_much(config, own, there)


def _too_much(config: Config, parts: Mapping[str, int], there: int) -> ConfigError:
    total, most = sum(parts.values()), max(parts, key=lambda name: parts[name])
    group, _, field = most.partition(".")
    value = f"{most}={getattr(groups_of(config)[group], field)}" if field else most
    return ConfigError(
        f"this needs about {gigabytes(total)} GB of memory, there are {gigabytes(there)}: most of it by {value}; "
        "lower it, or take a machine with more"
    )


def gigabytes(size: int) -> str:
    """
    >>> gigabytes(42_400_000_000), gigabytes(1_300_000_000), gigabytes(10**16)
    ('42', '1.3', '10,000,000')
    """
    return f"{size / 1e9:,.1f}" if size < 1e10 else f"{size / 1e9:,.0f}"


def memory_of(device: torch.device) -> int | None:
    """Bytes that a process can have at all; None where nobody says."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    known = [size for size in (_installed(), _allowed()) if size]
    return min(known, default=None)


def _installed() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # a system that is no Unix
        return None


def _allowed(root: Path = CGROUP, own: Path = Path("/proc/self/cgroup")) -> int | None:
    """What the control group of this process, or one above it, may take."""
    try:
        lines = own.read_text().splitlines()
    except (OSError, ValueError):
        lines = []
    inner = {Path(line.split(":", 2)[2].lstrip("/")) for line in lines if line.count(":") >= 2}
    places = {place for path in inner for place in (path, *path.parents)} | {Path()}
    found = []
    for folder, name in LIMITS:
        for place in places:
            try:
                text = (root / folder / place / name).read_text().strip()
            except (OSError, ValueError):
                continue
            if text.isdecimal():  # else "max": no limit
                found.append(int(text))
    return min(found, default=None)
