"""Architectures by name: a generator's graph, the trunks of critic and classifier, for images of any size and vectors.

To add a generator: write its graph here and add its line to GRAPHS or VECTOR_GRAPHS. Masks, growth, engrams, retention
and sampling follow from the graph alone. "auto" takes what goes with the shape of an example.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from engram.context import Shape
from engram.errors import ConfigError
from engram.kinds import described, is_vector
from engram.nets.classifier import ConvTrunk
from engram.nets.critic import CriticTrunk
from engram.nets.dense import DenseTrunk, HiddenLayer, Plain
from engram.nets.graph import Edge, Graph, Operation
from engram.nets.residual_critic import ResidualTrunk
from engram.nets.resnet import ResNet18

START = 4
"""Side of a generator's first node."""


def _doublings(image_size: int) -> int:
    """From the first node to the image.

    >>> _doublings(32), _doublings(64)
    (3, 4)
    """
    count = (image_size // START).bit_length() - 1
    assert START << count == image_size, image_size
    return count


def _dcgan(image_size: int) -> Graph:
    """noise ─ 4x4 ─> 4n x 4 x 4 ─ 4x4/2 ─> 2n x 8 x 8 ─ 4x4/2 ─> n x 16 x 16 ─ head 4x4/2 ─> image of 32 x 32

    An image of 64 x 64 begins with 8n units and has one doubling more.
    """
    first, later = Operation("conv_transpose", 4), Operation("conv_transpose", 4, stride=2, padding=1)
    nodes = _doublings(image_size)
    edges = (Edge(0, 1, first), *(Edge(node, node + 1, later) for node in range(1, nodes)))
    return Graph("dcgan", image_size, edges, later, tuple(2**n for n in reversed(range(nodes))))


def _residual(image_size: int) -> Graph:
    """noise ─ 4x4 ─> n x 4 x 4, then a block for every doubling of the side, head 3x3 (Gulrajani et al. 2017)

    A block:  x ─ norm, ReLU, double, 3x3 ─ norm, ReLU, 3x3 ─(+)─>
              └────────── double, 1x1 ───────────────────────┘
    """
    side, point = Operation("conv", 3, padding=1), Operation("conv")
    edges = [Edge(0, 1, Operation("conv_transpose", 4))]
    blocks = _doublings(image_size)
    for start in range(1, 2 * blocks, 2):
        edges += [
            Edge(start, start + 1, side, doubles=True),
            Edge(start + 1, start + 2, side),
            Edge(start, start + 2, point, raw=True, doubles=True),
        ]
    return Graph("residual", image_size, tuple(edges), side, (1,) * (1 + 2 * blocks))


def _mlp(image_size: int) -> Graph:
    """noise ─ linear ─> 8n, ReLU ─ linear ─> 8n ─ head, linear ─> vector

    The paper writes its equation 1 for such layers. Scaled vectors have no bounds, so there is no tanh.
    """
    assert image_size == 0, image_size
    linear = Operation("linear")
    return Graph("mlp", 0, (Edge(0, 1, linear), Edge(1, 2, linear)), linear, (8, 8))


GRAPHS: dict[str, Callable[[int], Graph]] = {"dcgan": _dcgan, "residual": _residual}
VECTOR_GRAPHS: dict[str, Callable[[int], Graph]] = {"mlp": _mlp}
FOR_VECTORS = ("linear", "mlp")


@cache
def graph_of(name: str, image_size: int) -> Graph:
    """A generator's graph by the name of its architecture; `image_size` 0 stands for vectors."""
    return {**GRAPHS, **VECTOR_GRAPHS}[name](image_size)


def graph_for(name: str, shape: Shape) -> Graph:
    """A generator's graph for examples of this shape.

    >>> graph_for("auto", (384,)).name, graph_for("auto", (1, 32, 32)).name
    ('mlp', 'dcgan')
    """
    return graph_of(chosen("generator", name, shape), 0 if is_vector(shape) else shape[1])


DEFAULTS = {"generator": ("dcgan", "mlp"), "critic": ("dcgan", "mlp"), "classifier": ("convnet", "linear")}
"""What "auto" stands for: for images, for vectors."""


def chosen(group: str, name: str, shape: Shape) -> str:
    """The architecture that a name stands for; one that does not go with the shape is refused.

    >>> chosen("classifier", "auto", (384,))
    'linear'
    """
    if name == "auto":
        return DEFAULTS[group][is_vector(shape)]
    if (name in FOR_VECTORS) != is_vector(shape):
        fits = " or ".join(dict.fromkeys(("auto", DEFAULTS[group][is_vector(shape)])))
        takes = "vectors" if name in FOR_VECTORS else "images"
        raise ConfigError(f"{group}.architecture={name} is for {takes}, not for {described(shape)}; set it to {fits}")
    return name


def critic_trunk(name: str, shape: Shape, *, width: int, kernel: int, generator: torch.Generator) -> CriticTrunk:
    """A critic's trunk by name; none has normalisation, which would mix the images of a batch."""
    name = chosen("critic", name, shape)
    if name == "mlp":
        return DenseTrunk(shape, width, generator=generator)
    if name == "residual":
        return ResidualTrunk(shape, width, generator=generator)
    if name == "resnet18":
        return ResNet18(shape, width, norm="none", generator=generator)
    return ConvTrunk(shape, width, kernel=kernel, norm="none", generator=generator)


Trunk = ConvTrunk | ResNet18 | Plain | HiddenLayer


def classifier_trunk(name: str, shape: Shape, width: int, *, generator: torch.Generator) -> Trunk:
    """A classifier's trunk by name."""
    name = chosen("classifier", name, shape)
    if name == "linear":
        return Plain(shape)
    if name == "mlp":
        return HiddenLayer(shape, width, generator=generator)
    return (ResNet18 if name == "resnet18" else ConvTrunk)(shape, width, generator=generator)
