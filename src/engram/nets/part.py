"""The part of a plastic generator that binary masks leave: a small network of its own, trained in place of the whole.

    whole ──Part(net, masks)──> living units alone, closed weights 0 ──train──> take_back ──> whole

Once a task's masks are fixed, nothing else can change its images. So nothing else is computed, and what a step costs
depends on the units that the task keeps, however large the network has grown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from engram.nets.generator import ClassNorm, PlasticGenerator, Private
from engram.plastic.layers import laid_out
from engram.plastic.masks import IN_AXIS, OUT_AXIS, bits
from engram.plastic.wiring import alive_units, numbers_of

Axes = Mapping[int, int]
"""Along which axis of a tensor the units of which level lie."""


class Part:
    """Living units of a network in training; `net` is a generator too, to be called without masks."""

    @torch.no_grad()
    def __init__(self, whole: PlasticGenerator, masks: Sequence[Tensor]) -> None:
        assert whole.private is not None
        self.whole, wiring = whole, whole.wiring
        self.alive = alive_units(wiring, masks, whole.variant)
        self.numbers: list[Tensor | None] = [None, *numbers_of(self.alive)]
        """By level, the noise first: the units that have a voice; None for all."""
        self.net = PlasticGenerator(
            wiring, whole.channels, width=1, noise=whole.noise, variant=whole.variant, generator=torch.Generator()
        )
        self.open: list[Tensor] = []
        """By layer, which of the part's weights its mask opens."""
        gates = []
        free = whole.free()
        for number, (layer, own, mask) in enumerate(zip(whole.plastic, self.net.plastic, masks, strict=True)):
            axes = _axes(whole, number)
            if mask.dim() == 1:  # of units: along the outputs
                along = [1] * layer.weight.dim()
                along[OUT_AXIS[layer.layout]] = len(mask)
                mask = mask.view(along)
            opened, may = (self.cut(bit.expand_as(layer.weight), axes) for bit in (mask, free[number]))
            weight = self.cut(layer.weight.detach(), axes).masked_fill_(~opened, 0)
            own.weight = nn.Parameter(laid_out(weight))
            own.embedding = nn.Parameter(own.embedding.detach()[:0], requires_grad=False)  # masks are fixed
            self.open.append(opened)
            gates.append(laid_out(may & opened))
        self.gates = [bits(gate, self.net.plastic[0].weight.dtype) for gate in gates]
        """By layer, what may still learn (Eq. 5): open and free."""
        self.units = [int(living.sum()) for living in self.alive]
        private = Private(wiring, self.units, whole.private.classes, whole.channels, generator=torch.Generator())
        self.net.private = private.to(whole.plastic[0].weight.device)
        for (full, axes), (small, _) in zip(_private(whole), _private(self.net), strict=True):
            small.copy_(self.cut(full.detach(), axes))

    def cut(self, full: Tensor, axes: Axes) -> Tensor:
        """A new tensor with the living units alone."""
        small = full.clone()
        for axis, level in axes.items():
            numbers = self.numbers[level]
            if numbers is not None:
                small = small.index_select(axis, numbers)
        return small

    @torch.no_grad()
    def take_back(self) -> None:
        """Write what the part has learned into the whole; what the masks close stays as it was, to the bit."""
        opened = [*self.open, *[None] * len(_private(self.net))]
        pairs = zip(parameters_of(self.whole), parameters_of(self.net), opened, strict=True)
        for (full, axes), (small, _), mask in pairs:
            new = small.detach()
            if mask is not None:
                new = torch.where(mask, new, self.cut(full.detach(), axes))
            if not axes:
                full.copy_(new)
                continue
            rows, columns = (self._places(full, axis, axes) for axis in (0, 1))
            full[rows[:, None], columns[None, :]] = new

    def _places(self, full: Tensor, axis: int, axes: Axes) -> Tensor:
        numbers = self.numbers[axes[axis]] if axis in axes else None
        return torch.arange(full.shape[axis], device=full.device) if numbers is None else numbers


def parameters_of(net: PlasticGenerator) -> list[tuple[nn.Parameter, Axes]]:
    """What a task trains besides its embeddings."""
    return [(layer.weight, _axes(net, number)) for number, layer in enumerate(net.plastic)] + _private(net)


def _axes(net: PlasticGenerator, number: int) -> Axes:
    wire = net.wiring.wires[number]
    return {IN_AXIS[wire.shape.layout]: wire.reads, OUT_AXIS[wire.shape.layout]: wire.writes}


def _private(net: PlasticGenerator) -> list[tuple[nn.Parameter, Axes]]:
    private, wiring = net.private, net.wiring
    assert private is not None
    found: list[tuple[nn.Parameter, Axes]] = []
    for level, norm in enumerate(private.norms, start=1):
        assert isinstance(norm, ClassNorm)
        found += [(norm.scale, {1: level}), (norm.shift, {1: level})]
    return [*found, (private.head, {IN_AXIS[wiring.head.layout]: wiring.levels}), (private.bias, {})]
