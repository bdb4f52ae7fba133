"""How the layers of a plastic generator hang together: a chain, or residual sums.

    level   a place where units live; the noise is level 0, and the last level is what the head reads
    wire    one plastic layer, from a level to a later one; wires into the same level add up

    active  a level as most wires read it: normalised, then ReLU
    raw     a level as a shortcut reads it: the sum alone

What depends on the wiring and on nothing else stands here, as pure functions: which units have a voice, which mask
entries can be heard, what counts as a reserved input, and how much each level grows. Wires into one level always have
the same number of units, at every size that the network ever had: that is what keeps a residual sum a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import torch
from torch import Tensor
from torch.nn import functional as F

from engram.plastic.convolve import doubled, from_one_pixel
from engram.plastic.growth import LayerGrowth, LayerSize, grow_layer
from engram.plastic.masks import OUT_AXIS, Layout, Variant


@dataclass(frozen=True)
class Shape:
    """A convolution without its channels."""

    layout: Layout
    kernel: int
    stride: int = 1
    padding: int = 0

    def of(self, n_in: int, n_out: int) -> tuple[int, int, int, int]:
        """The shape of its weight."""
        ends = (n_out, n_in) if OUT_AXIS[self.layout] == 0 else (n_in, n_out)
        return (*ends, self.kernel, self.kernel)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.layout == "conv":
            return F.conv2d(x, weight, bias, stride=self.stride, padding=self.padding)
        if x.dim() == 2:
            y = from_one_pixel(x, weight)
            return y if bias is None else y.add_(bias[:, None, None])
        if (self.kernel, self.stride, self.padding) == (4, 2, 1):
            return doubled(x, weight, bias)
        return F.conv_transpose2d(x, weight, bias, stride=self.stride, padding=self.padding)


@dataclass(frozen=True)
class Wire:
    """One plastic layer."""

    reads: int
    writes: int
    shape: Shape
    raw: bool = False
    """Reads the sum itself: a shortcut."""
    doubles: bool = False
    """Each pixel becomes four before the convolution."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not self.doubles:
            return self.shape(x, weight, bias)
        assert self.shape.layout == "conv"
        if self.shape.kernel == 1:  # the same either way round, and a quarter of the work this way
            return F.interpolate(self.shape(x, weight, bias), scale_factor=2, mode="nearest")
        # the same sums as on the doubled image, with 4 products instead of 9 a pixel
        kernel = over_square(weight).flip(2, 3).transpose(0, 1)
        kernel = kernel.contiguous(memory_format=torch.channels_last)
        return F.conv_transpose2d(x, kernel, bias, stride=2, padding=1)


def over_square(weight: Tensor) -> Tensor:
    """A kernel added up over the four places of a 2x2 square, (out, in, 3, 3) -> (out, in, 4, 4).

    A 3x3 convolution next to a doubling or a halving is one 4x4 convolution with this kernel and stride 2.
    """
    wide = F.pad(weight, (1, 1, 1, 1))
    rows = wide[:, :, 1:] + wide[:, :, :-1]
    return rows[:, :, :, 1:] + rows[:, :, :, :-1]


@dataclass(frozen=True)
class Wiring:
    """A generator's layers in the order in which they compute, and its head."""

    name: str
    wires: tuple[Wire, ...]
    head: Shape
    multiples: tuple[int, ...]
    """Units of each level at the start, as multiples of the width."""

    @property
    def levels(self) -> int:
        """Without the noise."""
        return len(self.multiples)

    def into(self, level: int) -> list[int]:
        """Numbers of the wires that write a level."""
        return [number for number, wire in enumerate(self.wires) if wire.writes == level]

    def out_of(self, level: int) -> list[int]:
        return [number for number, wire in enumerate(self.wires) if wire.reads == level]

    @cached_property
    def spent(self) -> tuple[tuple[int, ...], ...]:
        """By level: which levels nobody reads any more once it is computed, so that their memory can be let go."""
        last = [max((self.wires[n].writes for n in self.out_of(level)), default=-1) for level in range(self.levels + 1)]
        return tuple(tuple(n for n, read in enumerate(last) if read == level) for level in range(self.levels + 1))

    @cached_property
    def sides(self) -> tuple[int, ...]:
        """Of the images of each level, in pixels; the noise is one."""
        sides = [1]
        for level in range(1, self.levels + 1):
            wire = self.wires[self.into(level)[0]]
            grown = wire.shape.kernel if wire.reads == 0 else sides[wire.reads] * wire.shape.stride
            sides.append(2 * grown if wire.doubles else grown)
        return tuple(sides)

    def largest_level(self, units: Sequence[int]) -> int:
        """Numbers per image in the largest of the levels, whose `units` are given but for the noise's."""
        return max(n * side**2 for n, side in zip(units, self.sides[1:], strict=True))

    def summed(self, level: int) -> bool:
        """Whether the level is more than the output of one layer on its way through a norm."""
        return len(self.into(level)) > 1 or any(self.wires[number].raw for number in self.out_of(level))

    def mask_shape(self, number: int, units: Sequence[int], variant: Variant) -> tuple[int, ...]:
        """Of a wire's mask; `units` by level, the noise first."""
        wire = self.wires[number]
        if variant == "units":
            return (units[wire.writes],)
        return wire.shape.of(units[wire.reads], units[wire.writes])


def _chain() -> Wiring:
    """noise ─ 4x4 ─> 4n x 4 x 4 ─ 4x4/2 ─> 2n x 8 x 8 ─ 4x4/2 ─> n x 16 x 16 ─ head 4x4/2 ─> image"""
    first, later = Shape("conv_transpose", 4), Shape("conv_transpose", 4, stride=2, padding=1)
    return Wiring("dcgan", (Wire(0, 1, first), Wire(1, 2, later), Wire(2, 3, later)), later, (4, 2, 1))


def _residual() -> Wiring:
    """noise ─ 4x4 ─> n x 4 x 4, then three blocks that double the side, head 3x3 (Gulrajani et al. 2017)

    A block:  x ─ norm, ReLU, double, 3x3 ─ norm, ReLU, 3x3 ─(+)─>
              └────────── double, 1x1 ───────────────────────┘
    """
    side, point = Shape("conv", 3, padding=1), Shape("conv", 1)
    wires = [Wire(0, 1, Shape("conv_transpose", 4))]
    for start in (1, 3, 5):
        wires += [
            Wire(start, start + 1, side, doubles=True),
            Wire(start + 1, start + 2, side),
            Wire(start, start + 2, point, raw=True, doubles=True),
        ]
    return Wiring("residual", tuple(wires), side, (1,) * 7)


WIRINGS: dict[str, Wiring] = {wiring.name: wiring for wiring in (_chain(), _residual())}


# ---------------------------------------------------------------- voices


def alive_units(wiring: Wiring, masks: Sequence[Tensor], variant: Variant) -> list[Tensor]:
    """Per level but the noise, the units that take part: something open leads in, and something leads on to the head.

    A unit of DGMw without an open weight from a living one has nothing to say; it would send its constant shift
    onwards, so it is silenced. One that nobody listens to is left out. In DGMa an open unit is connected with every
    open unit before and behind it, so whole branches are silent or none of them is.
    """
    pairs = [_pairs(wire, mask) for wire, mask in zip(wiring.wires, masks, strict=True)]
    alive = [torch.ones(1, dtype=torch.bool, device=masks[0].device)]  # the noise
    for level in range(1, wiring.levels + 1):
        alive.append(_any([(pairs[n] & alive[wiring.wires[n].reads][:, None]).any(0) for n in wiring.into(level)]))
    for level in range(wiring.levels - 1, 0, -1):
        heard = _any([(pairs[n] & alive[wiring.wires[n].writes][None, :]).any(1) for n in wiring.out_of(level)])
        alive[level] = alive[level] & heard
    return alive[1:]


def numbers_of(alive: Sequence[Tensor]) -> list[Tensor | None]:
    """By level, the numbers of the living units; None for all of them."""
    return [None if bool(units.all()) else units.nonzero().squeeze(1) for units in alive]


def prune(wiring: Wiring, masks: Sequence[Tensor], variant: Variant) -> list[Tensor]:
    """The same masks without the entries that cannot change an image: what comes from or leads to no living unit."""
    alive = alive_units(wiring, masks, variant)
    pruned = []
    for wire, mask in zip(wiring.wires, masks, strict=True):
        targets = alive[wire.writes - 1]
        sources = alive[wire.reads - 1] if wire.reads else targets.new_ones(1)
        if variant == "units":
            pruned.append(mask & targets & sources.any())
            continue
        keep = targets[None, :] & sources[:, None]
        pruned.append(mask & (keep.T if OUT_AXIS[wire.shape.layout] == 0 else keep)[:, :, None, None])
    return pruned


def _pairs(wire: Wire, mask: Tensor) -> Tensor:
    """(in, out): whether anything between two units is open; (1, out) where the mask says nothing of the inputs."""
    if mask.dim() == 1:
        return mask[None, :]
    pairs = mask.flatten(2).any(2)
    return pairs.T if OUT_AXIS[wire.shape.layout] == 0 else pairs


def _any(masks: Sequence[Tensor]) -> Tensor:
    return reduce(torch.logical_or, masks) if len(masks) > 1 else masks[0].clone()


# ---------------------------------------------------------------- reserving and growing


def reserved_inputs(wiring: Wiring, number: int, reserved: Sequence[Tensor]) -> Tensor | None:
    """DGMa: which inputs of a wire any earlier task may read. None for the noise: all of it.

    A unit of a sum is read as soon as one of the wires into it is open.
    """
    level = wiring.wires[number].reads
    return _any([reserved[writer] for writer in wiring.into(level)]) if level else None


def plan_growth(wiring: Wiring, layers: Sequence[LayerSize], variant: Variant) -> list[LayerGrowth]:
    """Per wire, front to back: what a level gains, the wires that read it gain as inputs.

    Of several wires into one level the neediest decides for all. The noise never grows. The last level grows like the
    others: its readers are the tasks' heads, and an old head goes on seeing the channels it was trained with.
    """
    gained = [0] * (wiring.levels + 1)
    plan: dict[int, LayerGrowth] = {}
    for level in range(1, wiring.levels + 1):
        writers = wiring.into(level)
        inputs = [gained[wiring.wires[number].reads] for number in writers]
        wished = [
            grow_layer(layers[number], new, variant).new_units for number, new in zip(writers, inputs, strict=True)
        ]
        gained[level] = max(wished)
        for number, new in zip(writers, inputs, strict=True):
            plan[number] = grow_layer(layers[number], new, variant, at_least=gained[level])
    return [plan[number] for number in range(len(layers))]
