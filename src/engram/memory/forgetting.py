"""Forgetting a class: what remains of the engrams without it, and what they need of the shared weights.

A weight that no remaining engram opens is of use to nobody: it can be drawn afresh, and is free for later tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engram.masking.growth import grow_mask
from engram.masking.masks import IN_AXIS, OUT_AXIS, unit_gate
from engram.memory.engram import Engram
from engram.nets.graph import Graph
from engram.nets.masked_generator import MaskedGenerator
from engram.nets.reachability import reserved_inputs
from engram.nets.subnetwork import put_


def without_class(engrams: Sequence[Engram], class_index: int) -> list[Engram]:
    """The engrams without this class; the classes behind it move up by a place.

    An engram of several classes loses its row for the class. Masks and head stay: the others draw with them.
    """
    others = [_without_row(engram, class_index) for engram in engrams]
    return [_moved_up(engram, class_index) for engram in others if engram.class_indices]


def _moved_up(engram: Engram, class_index: int) -> Engram:
    return replace(engram, class_indices=tuple(index - (index > class_index) for index in engram.class_indices))


def _without_row(engram: Engram, class_index: int) -> Engram:
    rows = [row for row, index in enumerate(engram.class_indices) if index != class_index]
    if len(rows) == len(engram.class_indices):
        return engram
    return replace(
        engram,
        class_indices=tuple(engram.class_indices[row] for row in rows),
        scales=tuple(scale[rows] for scale in engram.scales),
        shifts=tuple(shift[rows] for shift in engram.shifts),
        bias=engram.bias[rows] if engram.bias.dim() == 2 else engram.bias,
        rest=None if engram.rest is None else engram.rest[rows],
        contents=tuple(engram.contents[row] for row in rows),
        fingerprints=tuple(engram.fingerprints[row] for row in rows),
        noise_names=tuple(engram.noise_names[row] for row in rows),
        references=tuple(engram.references[row] for row in rows) if engram.references else (),
    )


def release_(net: MaskedGenerator, before: Sequence[Engram], after: Sequence[Engram], draws: torch.Generator) -> int:
    """Draw all weights afresh that no remaining engram opens, in place; how many of them one had opened before."""
    opened, needed = opened_weights(before, net), opened_weights(after, net)
    net.release_(reserved_masks(after, net), needed, generator=draws)
    return sum(int((a & ~b).sum()) for a, b in zip(opened, needed, strict=True))


def reserved_masks(engrams: Sequence[Engram], net: MaskedGenerator) -> list[Tensor]:
    """By layer, what any of the engrams' masks opens, in the size that the network has now."""
    total = [torch.zeros_like(layer.reserved) for layer in net.plastic]
    for engram in engrams:
        _add(total, engram.binary_masks(), engram, net)
    return total


def opened_weights(engrams: Sequence[Engram], net: MaskedGenerator) -> list[Tensor]:
    """By layer, the weights that any of the engrams computes with, in the shape that they have now."""
    total = [torch.zeros_like(layer.weight, dtype=torch.bool) for layer in net.plastic]
    for engram in engrams:
        masks = engram.binary_masks()
        if engram.variant == "units":
            masks = _between_open_units(engram.graph, masks, (engram.latent_dim, *engram.units))
        _add(total, masks, engram, net)
    return total


def _between_open_units(graph: Graph, masks: Sequence[Tensor], units: Sequence[int]) -> list[Tensor]:
    """DGMa: a weight is open where both its ends are; all of the noise is."""
    found = []
    for number, (edge, mask) in enumerate(zip(graph.edges, masks, strict=True)):
        inputs = reserved_inputs(graph, number, masks)
        if inputs is None:
            inputs = torch.ones(units[edge.source], dtype=torch.bool)
        shape = edge.operation.weight_shape(units[edge.source], units[edge.target])
        found.append((~unit_gate(inputs, mask, edge.operation.layout)).expand(shape))
    return found


def _add(total: Sequence[Tensor], masks: Sequence[Tensor], engram: Engram, net: MaskedGenerator) -> None:
    """Masks of an engram's size into totals of today's; what the network has gained since is closed for it."""
    units, places = (engram.latent_dim, *engram.units), engram.places
    for edge, layer, so_far, mask in zip(net.graph.edges, net.plastic, total, masks, strict=True):
        if engram.candidates:
            ends = {IN_AXIS[layer.layout]: edge.source, OUT_AXIS[layer.layout]: edge.target}
            wide = torch.zeros_like(so_far)
            put_(wide, mask.to(wide.device), {0: edge.target} if mask.dim() == 1 else ends, places)
            so_far |= wide
            continue
        new_in = layer.weight.shape[IN_AXIS[layer.layout]] - units[edge.source]
        new_out = layer.weight.shape[OUT_AXIS[layer.layout]] - units[edge.target]
        so_far |= grow_mask(mask, new_in, new_out, layer.layout).to(so_far.device)
