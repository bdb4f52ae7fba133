"""Architectures by name: a generator's graph and a critic's trunk, for images of any allowed size.

To add a generator: write its graph here and add its line to GRAPHS. Masks, growth, engrams, retention and sampling
follow from the graph alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from engram.context import Shape
from engram.nets.classifier import ConvTrunk
from engram.nets.critic import CriticTrunk
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


GRAPHS: dict[str, Callable[[int], Graph]] = {"dcgan": _dcgan, "residual": _residual}


@cache
def graph_of(name: str, image_size: int) -> Graph:
    """A generator's graph by the name of its architecture."""
    return GRAPHS[name](image_size)


def critic_trunk(name: str, shape: Shape, *, width: int, kernel: int, generator: torch.Generator) -> CriticTrunk:
    """A critic's trunk by name; none has normalisation, which would mix the images of a batch."""
    if name == "residual":
        return ResidualTrunk(shape, width, generator=generator)
    if name == "resnet18":
        return ResNet18(shape, width, norm="none", generator=generator)
    return ConvTrunk(shape, width, kernel=kernel, norm="none", generator=generator)
