"""The part of a masked generator that binary masks leave: a small network of its own, trained in place of the whole.

    whole ──Subnetwork(net, masks)──> reachable units alone, closed weights 0 ──train──> write_back ──> whole

Once a task's masks are fixed, nothing else can change its images. So nothing else is computed, and what a step costs
depends on the units that the task keeps, however large the network has grown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from engram.masking.masks import IN_AXIS, OUT_AXIS, bits
from engram.nets.masked_generator import ClassNorm, MaskedGenerator, TaskParams
from engram.nets.plastic_layers import laid_out
from engram.nets.reachability import reachable_units, unit_numbers

Axes = Mapping[int, int]
"""Along which axis of a tensor the units of which node lie."""


class Subnetwork:
    """The reachable units of a network in training; `net` is a generator too, to be called without masks."""

    @torch.no_grad()
    def __init__(self, whole: MaskedGenerator, masks: Sequence[Tensor]) -> None:
        assert whole.task_params is not None
        self.whole, graph = whole, whole.graph
        self.reachable = reachable_units(graph, masks)
        self.numbers: list[Tensor | None] = [None, *unit_numbers(self.reachable)]
        """By node, the noise first: the units that can be reached; None for all."""
        self.net = MaskedGenerator(
            graph,
            whole.channels,
            width=1,
            latent_dim=whole.latent_dim,
            variant=whole.variant,
            generator=torch.Generator(),
        )
        self.open: list[Tensor] = []
        """By layer, which of the subnetwork's weights its mask opens."""
        gates = []
        free = whole.free()
        for number, (layer, own, mask) in enumerate(zip(whole.plastic, self.net.plastic, masks, strict=True)):
            axes = axes_of(whole, number)
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
        self.units = [int(units.sum()) for units in self.reachable]
        own_params = TaskParams(
            graph, self.units, whole.task_params.classes, whole.channels, generator=torch.Generator()
        )
        self.net.task_params = own_params.to(whole.plastic[0].weight.device)
        for (full, axes), (small, _) in zip(_task_params_of(whole), _task_params_of(self.net), strict=True):
            small.copy_(self.cut(full.detach(), axes))

    def cut(self, full: Tensor, axes: Axes) -> Tensor:
        """A new tensor with the reachable units alone."""
        return cut(full, axes, self.numbers)

    @torch.no_grad()
    def write_back(self) -> None:
        """Write what the subnetwork has learned into the whole; what the masks close stays as it was, to the bit."""
        opened = [*self.open, *[None] * len(_task_params_of(self.net))]
        pairs = zip(parameters_of(self.whole), parameters_of(self.net), opened, strict=True)
        for (full, axes), (small, _), mask in pairs:
            new = small.detach()
            if mask is not None:
                new = torch.where(mask, new, self.cut(full.detach(), axes))
            put_(full, new, axes, self.numbers)


def cut(full: Tensor, axes: Axes, numbers: Sequence[Tensor | None]) -> Tensor:
    """A new tensor with these units alone; `numbers` by node, None for all of a node's."""
    small = full
    for axis, node in axes.items():
        own = numbers[node]
        if own is not None:
            small = small.index_select(axis, own)
    return small.clone() if small is full else small


def put_(full: Tensor, small: Tensor, axes: Axes, numbers: Sequence[Tensor | None]) -> None:
    """The way back: in place, what was cut out of a tensor."""
    if not axes:
        full.copy_(small)
        return
    places = []
    for axis in range(min(full.dim(), 2)):
        own = numbers[axes[axis]] if axis in axes else None
        places.append(torch.arange(full.shape[axis], device=full.device) if own is None else own)
    full[torch.meshgrid(*places, indexing="ij")] = small


def parameters_of(net: MaskedGenerator) -> list[tuple[nn.Parameter, Axes]]:
    """What a task trains besides its embeddings."""
    return [(layer.weight, axes_of(net, number)) for number, layer in enumerate(net.plastic)] + _task_params_of(net)


def axes_of(net: MaskedGenerator, number: int) -> Axes:
    """Along which axes of a layer's weight the units of its two nodes lie."""
    edge = net.graph.edges[number]
    return {IN_AXIS[edge.operation.layout]: edge.source, OUT_AXIS[edge.operation.layout]: edge.target}


def _task_params_of(net: MaskedGenerator) -> list[tuple[nn.Parameter, Axes]]:
    task_params, graph = net.task_params, net.graph
    assert task_params is not None
    found: list[tuple[nn.Parameter, Axes]] = []
    for node, norm in enumerate(task_params.norms, start=1):
        assert isinstance(norm, ClassNorm)
        found += [(norm.scale, {1: node}), (norm.shift, {1: node})]
    found += [(task_params.head, {IN_AXIS[graph.head.layout]: graph.nodes}), (task_params.bias, {})]
    return found if task_params.rest is None else [*found, (task_params.rest, {})]
