"""Which units an image owes itself to, and what remains of a mask when only the most relevant are kept.

    power       the mean square of what a unit sends on: of noise 1, of a normalised ReLU what its scale and shift say
    relevance   how much of the image's power passes through a unit; every node has 1 in all

Both follow from weights, masks and norms alone: nothing is drawn and no image is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from engram.masking.masks import IN_AXIS, OUT_AXIS, Layout, Variant
from engram.nets.graph import Graph
from engram.nets.reachability import prune, reachable_units


def rectified_power(scale: Tensor, shift: Tensor) -> Tensor:
    """E[max(0, x)^2] of x normal with mean `shift` and deviation |`scale`|.

    >>> rectified_power(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 3.0, -3.0])).tolist()
    [0.5, 9.0, 0.0]
    """
    deviation = scale.abs()
    t = shift / deviation.clamp(min=torch.finfo(scale.dtype).tiny)
    below: Tensor = torch.special.ndtr(t)
    density = torch.exp(-t.square() / 2) / math.sqrt(2 * math.pi)
    power = (deviation.square() + shift.square()) * below + deviation * shift * density
    return power.clamp(min=0)  # far below 0 the difference of two small numbers may not be


def relevance(
    graph: Graph, weights: Sequence[Tensor], norms: Sequence[tuple[Tensor, Tensor]], head: Tensor
) -> list[Tensor]:
    """By node but the noise, (units,): the share of the image's power that passes through each unit.

    `weights` as the masks leave them; `norms`: scale and shift of each node, (classes, units), of which a unit that
    sends nothing has zeros. A normalised unit is worth what it is worth to its readers, however large or small the
    sum was before it was normalised; what it is worth falls to its sources by the power that they bring to it.
    """
    active = [weights[0].new_ones(weights[0].shape[IN_AXIS[graph.edges[0].operation.layout]])]
    active += [
        (rectified_power(scale, shift) if graph.rectifies(node) else scale.square() + shift.square()).mean(0)
        for node, (scale, shift) in enumerate(norms, start=1)
    ]
    return shares_of_power(graph, weights, active, head)


def shares_of_power(graph: Graph, weights: Sequence[Tensor], active: Sequence[Tensor], head: Tensor) -> list[Tensor]:
    """The same, where it is known what units send: by node, the noise first, the mean square of each."""
    raw, brought = [active[0]], [torch.empty(0)] * len(weights)
    for node in range(1, graph.nodes + 1):
        for number in graph.incoming[node]:
            edge = graph.edges[number]
            source = (raw if edge.raw else active)[edge.source]
            brought[number] = source[:, None] * squares(weights[number], edge.operation.layout)  # (in, out)
        raw.append(torch.stack([brought[number].sum(0) for number in graph.incoming[node]]).sum(0))
    shares = [torch.zeros_like(power) for power in active]
    last = active[-1][:, None] * squares(head, graph.head.layout)  # (units, channels)
    shares[-1] = (last / _positive(last.sum(0))).mean(1)
    for node in range(graph.nodes, 0, -1):
        for number in graph.incoming[node]:
            falls = brought[number] / _positive(raw[node]) * shares[node]
            source_node = graph.edges[number].source
            shares[source_node] = shares[source_node] + falls.sum(1)
    return shares[1:]


def squares(weight: Tensor, layout: Layout) -> Tensor:
    """The sum of squares between every two units, (in, out)."""
    total = weight.square().flatten(2).sum(2) if weight.dim() > 2 else weight.square()
    return total.T if OUT_AXIS[layout] == 0 else total


def unit_limits(graph: Graph, width: int, ratio: float) -> list[int]:
    """How many units of each node a task may keep: `ratio` times those at the start, and one at least."""
    return [max(1, round(ratio * width * multiple)) for multiple in graph.multiples]


def top_units(
    graph: Graph, masks: Sequence[Tensor], variant: Variant, shares: Sequence[Tensor], limits: Sequence[int]
) -> list[Tensor]:
    """The masks with at most so many units of each node: those with the largest shares."""
    reachable = reachable_units(graph, masks)
    kept = [
        _largest(share.masked_fill(~units, -1.0), limit)
        for share, units, limit in zip(shares, reachable, limits, strict=True)
    ]
    closed = []
    for edge, mask in zip(graph.edges, masks, strict=True):
        keep = kept[edge.target - 1]
        along = [1] * mask.dim()
        along[OUT_AXIS[edge.operation.layout] if mask.dim() > 1 else 0] = len(keep)
        closed.append(mask & keep.view(along))
    return prune(graph, closed, variant)


def _largest(values: Tensor, count: int) -> Tensor:
    keep = torch.zeros_like(values, dtype=torch.bool)
    keep[values.topk(min(count, len(values))).indices] = True
    return keep


def _positive(total: Tensor) -> Tensor:
    """To divide by: where nothing is brought, nothing falls."""
    return total.masked_fill(total == 0, 1.0)
