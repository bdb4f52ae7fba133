"""Drawing: from a network that maps noise to images in [-1, 1] to uint8 images, in batches that fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engram.context import Shape
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
    """(count, C, H, W) uint8. `draw(z, rows)`: z (B, latent_dim) -> images (B, C, H, W) of these rows in [-1, 1]."""
    out = torch.empty(count, *shape, dtype=torch.uint8)
    for start in range(0, count, batch_size):
        rows = slice(start, min(start + batch_size, count))
        z = torch.randn(rows.stop - start, latent_dim, generator=generator)
        out[rows] = in_grey_levels(draw(z.to(device), rows)).cpu()
    return out


def in_grey_levels(images: Tensor) -> Tensor:
    """[-1, 1] -> uint8 0 … 255; the images are overwritten."""
    return images.add_(1).mul_(127.5).round_().to(torch.uint8)


def batch_that_fits(graph: Graph, units: Sequence[int], device: torch.device) -> int:
    """How many images are computed at a time; `units` of each node."""
    largest = LARGEST_NODE.get(device.type, LARGEST_ELSEWHERE)
    return max(1, min(SAMPLE_BATCH, largest // max(1, graph.largest_node(units))))
