"""What masks leave of a graph: which units can be reached, which mask entries count, what is reserved. Pure functions.

A unit is *reachable* when open weights lead from the noise to it and from it on to the head. The others cannot change
an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from engram.masking.masks import OUT_AXIS, Variant
from engram.nets.graph import Edge, Graph


def reachable_units(graph: Graph, masks: Sequence[Tensor]) -> list[Tensor]:
    """By node but the noise, (units,): the units that take part.

    A unit of DGMw without an open weight from a reachable one would only send its constant shift onwards: it is left
    out. So is one that no reachable unit reads. In DGMa an open unit is connected with every open unit before and
    behind it, so a branch is reachable as a whole or not at all.
    """
    pairs = [_pairs(edge, mask) for edge, mask in zip(graph.edges, masks, strict=True)]
    reachable = [torch.ones(1, dtype=torch.bool, device=masks[0].device)]  # the noise
    for node in range(1, graph.nodes + 1):
        leads_in = [(pairs[n] & reachable[graph.edges[n].source][:, None]).any(0) for n in graph.incoming[node]]
        reachable.append(_any(leads_in))
    for node in range(graph.nodes - 1, 0, -1):
        leads_on = [(pairs[n] & reachable[graph.edges[n].target][None, :]).any(1) for n in graph.outgoing[node]]
        reachable[node] = reachable[node] & _any(leads_on)
    return reachable[1:]


def unit_numbers(reachable: Sequence[Tensor]) -> list[Tensor | None]:
    """By node, the numbers of the reachable units; None for all of them."""
    return [None if bool(units.all()) else units.nonzero().squeeze(1) for units in reachable]


def prune(graph: Graph, masks: Sequence[Tensor], variant: Variant) -> list[Tensor]:
    """The same masks without the entries that cannot change an image."""
    reachable = reachable_units(graph, masks)
    pruned = []
    for edge, mask in zip(graph.edges, masks, strict=True):
        targets = reachable[edge.target - 1]
        sources = reachable[edge.source - 1] if edge.source else targets.new_ones(1)
        if variant == "units":
            pruned.append(mask & targets & sources.any())
            continue
        keep = targets[None, :] & sources[:, None]
        keep = keep.T if OUT_AXIS[edge.operation.layout] == 0 else keep
        pruned.append(mask & (keep if mask.dim() == 2 else keep[:, :, None, None]))
    return pruned


def _pairs(edge: Edge, mask: Tensor) -> Tensor:
    """(in, out): whether anything between two units is open; (1, out) where the mask says nothing of the inputs."""
    if mask.dim() == 1:
        return mask[None, :]
    pairs = mask if mask.dim() == 2 else mask.flatten(2).any(2)
    return pairs.T if OUT_AXIS[edge.operation.layout] == 0 else pairs


def reserved_inputs(graph: Graph, number: int, reserved: Sequence[Tensor]) -> Tensor | None:
    """DGMa: which inputs of an edge any earlier task may read. None for the noise: all of it.

    A unit of a sum is read as soon as one of the edges into it is open.
    """
    node = graph.edges[number].source
    return _any([reserved[writer] for writer in graph.incoming[node]]) if node else None


def _any(masks: Sequence[Tensor]) -> Tensor:
    return reduce(torch.logical_or, masks) if len(masks) > 1 else masks[0].clone()
