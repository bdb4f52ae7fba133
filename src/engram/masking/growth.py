"""Growth: how many output units each plastic layer gains after a task, and the tensors that result.

Growth appends: old inputs and outputs keep their indices, so what an earlier task computes with is for ever
the leading block of every grown tensor, and the new entries are closed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from engram.masking.masks import IN_AXIS, OUT_AXIS, Layout, Variant

Rule = Literal["refill", "paper", "off"]
"""How a layer grows: until as much is free as at the start; by what the task newly reserved, rounded up; not at all."""

Init = Callable[[Sequence[int], torch.Generator], Tensor]
"""(shape, generator) -> freshly initialised weights"""


def dcgan_init(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Normal with standard deviation 0.02, whatever the fan-in, so growing never changes the scale."""
    return torch.randn(tuple(shape), generator=generator, device=generator.device) * 0.02


@dataclass(frozen=True)
class LayerSize:
    """A plastic layer as it stands after a task, before it grows."""

    inputs: int
    units: int
    """output units (channels)"""
    area: int
    """kernel height x width; 1 for a linear layer"""
    reserved: int
    """mask entries reserved so far, this task's included: weights for DGMw, units for DGMa"""
    start_free: int
    """free mask entries before the very first task, the capacity that every task shall find"""
    newly_reserved: int = 0
    """of `reserved`, by this task"""


@dataclass(frozen=True)
class LayerGrowth:
    """What one layer becomes; free counts weights for DGMw, units for DGMa."""

    inputs_before: int
    inputs_after: int
    units_before: int
    units_after: int
    free_before: int
    free_after: int

    @property
    def new_inputs(self) -> int:
        return self.inputs_after - self.inputs_before

    @property
    def new_units(self) -> int:
        return self.units_after - self.units_before


def grow_layer(
    layer: LayerSize, new_inputs: int, variant: Variant, *, at_least: int = 0, rule: Rule = "refill"
) -> LayerGrowth:
    """The fewest new output units, but `at_least` so many, with which the layer's free entries are again `start_free`.

    DGMa: a unit is one mask entry, so the layer gains exactly what the task newly reserved.

    DGMw: a unit brings n = inputs x area entries. The paper adds ceil(delta / n) for delta newly reserved
    weights (rule `paper`), and the remainder piles up as extra free weights task after task. Departure: we compare
    with the free weights at the start, so leftovers of earlier tasks, and the weights that `new_inputs`
    bring to the present units, are used up first. Without either it is the paper's number.

    >>> layer = LayerSize(inputs=10, units=8, area=1, reserved=25, start_free=80, newly_reserved=25)
    >>> grow_layer(layer, 0, "weights").new_units, grow_layer(layer, 2, "weights").new_units
    (3, 1)
    >>> grow_layer(layer, 2, "weights", rule="paper").new_units, grow_layer(layer, 2, "weights", rule="off").new_units
    (3, 0)
    """
    assert new_inputs >= 0
    inputs = layer.inputs + new_inputs
    before, after = (layer.inputs * layer.area, inputs * layer.area) if variant == "weights" else (1, 1)
    if rule == "refill":
        needed = _ceiling(layer.start_free + layer.reserved, after)
    else:
        needed = layer.units + (_ceiling(layer.newly_reserved, before) if rule == "paper" else 0)
    units = max(layer.units + at_least, needed)
    return LayerGrowth(
        inputs_before=layer.inputs,
        inputs_after=inputs,
        units_before=layer.units,
        units_after=units,
        free_before=layer.units * before - layer.reserved,
        free_after=units * after - layer.reserved,
    )


def _ceiling(a: int, b: int) -> int:
    """Of the quotient of two integers."""
    return -(-a // b)


def leading_block(weight: Tensor, n_in: int, n_out: int, layout: Layout) -> Tensor:
    """The part of a weight between the first n_in inputs and the first n_out outputs, as a view."""
    return weight.narrow(IN_AXIS[layout], 0, n_in).narrow(OUT_AXIS[layout], 0, n_out)


def grow_weight(
    weight: Tensor, new_in: int, new_out: int, layout: Layout, *, generator: torch.Generator, init: Init
) -> Tensor:
    """A new tensor: the old weight bit for bit as its leading block, the rest freshly initialised."""
    grown = init(_grown_shape(weight, new_in, new_out, layout), generator).to(weight)
    _copy_block(weight, grown, layout)
    return grown


def grow_mask(mask: Tensor, new_in: int, new_out: int, layout: Layout) -> Tensor:
    """A new binary mask, closed (False) at every new entry; of units (1-D) only the outputs grow."""
    assert mask.dtype == torch.bool
    if mask.dim() == 1:
        return torch.cat([mask, mask.new_zeros(new_out)])
    grown = mask.new_zeros(_grown_shape(mask, new_in, new_out, layout))
    _copy_block(mask, grown, layout)
    return grown


def _grown_shape(tensor: Tensor, new_in: int, new_out: int, layout: Layout) -> tuple[int, ...]:
    shape = list(tensor.shape)
    shape[IN_AXIS[layout]] += new_in
    shape[OUT_AXIS[layout]] += new_out
    return tuple(shape)


def _copy_block(old: Tensor, grown: Tensor, layout: Layout) -> None:
    n_in, n_out = old.shape[IN_AXIS[layout]], old.shape[OUT_AXIS[layout]]
    leading_block(grown, n_in, n_out, layout).copy_(old.detach())
