"""Drawing: from a network that maps noise to images in [-1, 1], or vectors, to them as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engram.context import Shape
from engram.kinds import blank, from_network
from engram.nets.graph import Graph

SAMPLE_BATCH = 256
LARGEST_NODE = {"cpu": 2**21}
"""Numbers that one node of a batch may have, by device: a network that has grown draws fewer images at a time.

On a CPU 8 MB: what its cache cannot hold is slower as well as larger.
"""
LARGEST_ELSEWHERE = 2**24


@torch.inference_mode()
def sample_images(
    draw: Callable[[Tensor, slice], Tensor],
    count: int,
    shape: Shape,
    *,
    latent_dim: int,
    batch_size: int,
    device: torch.device,
    generator: torch.Generator,
) -> Tensor:
    """(count, C, H, W) uint8, or (count, D). `draw(z, rows)`: z (B, latent_dim) -> as networks see these rows."""
    out = blank(count, shape)
    for start in range(0, count, batch_size):
        rows = slice(start, min(start + batch_size, count))
        z = torch.randn(rows.stop - start, latent_dim, generator=generator)
        out[rows] = from_network(draw(z.to(device), rows)).cpu()
    return out


def batch_that_fits(graph: Graph, units: Sequence[int], device: torch.device) -> int:
    """How many images are computed at a time; `units` of each node."""
    largest = LARGEST_NODE.get(device.type, LARGEST_ELSEWHERE)
    return max(1, min(SAMPLE_BATCH, largest // max(1, graph.largest_node(units))))
