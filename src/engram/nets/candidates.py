"""The part of a masked generator that a task sees while its masks are learned: free units, and some reserved ones.

    whole ──Candidates(net, units)──> a smaller masked generator ──masks learned, part trained──> write_back ──> whole

A network that has grown for a hundred tasks is mostly what those tasks reserved. A task that sees all free units, and
reserved ones up to a fixed number in all, pays for no more units at its last task than at its second, and its masks
have as many bits. What it does not see is closed for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from engram.masking.masks import IN_AXIS, OUT_AXIS, Layout
from engram.nets.graph import Graph
from engram.nets.masked_generator import MaskedGenerator
from engram.nets.plastic_layers import laid_out, like
from engram.nets.subnetwork import axes_of, cut, put_

Units = list[Tensor | None]
"""By node, the noise first: numbers of units in ascending order; None for all."""


def reserved_units(graph: Graph, reserved: Sequence[Tensor]) -> list[Tensor]:
    """By node but the noise, (units,): whether any earlier task writes into the unit. The others are free."""
    found = []
    for node in range(1, graph.nodes + 1):
        edges = graph.incoming[node]
        into = [_written(reserved[number], graph.edges[number].operation.layout) for number in edges]
        found.append(torch.stack(into).any(0))
    return found


def _written(mask: Tensor, layout: Layout) -> Tensor:
    """(out,): the units with an entry of the mask."""
    return mask if mask.dim() == 1 else mask.transpose(0, OUT_AXIS[layout]).flatten(1).any(1)


def choose(
    reserved: Sequence[Tensor], scores: Sequence[Tensor], limits: Sequence[int], *, generator: torch.Generator
) -> list[Tensor]:
    """By node, the numbers of so many units: all free ones, then the reserved ones with the highest scores.

    Ties are decided at random. Where there are more free units than that, they are seen all the same.

    >>> reserved, scores = torch.tensor([True, True, False, True]), torch.tensor([0.1, 0.5, 0.0, 0.4])
    >>> choose([reserved], [scores], [3], generator=torch.Generator())[0].tolist()
    [1, 2, 3]
    """
    chosen = []
    for known, score, limit in zip(reserved, scores, limits, strict=True):
        known, score = known.cpu(), score.cpu()
        free, places = (some.nonzero().squeeze(1) for some in (~known, known))
        places = places[torch.randperm(len(places), generator=generator)]
        best = places[score[places].argsort(descending=True, stable=True)]
        chosen.append(torch.cat([free, best[: max(0, limit - len(free))]]).sort().values)
    return chosen


class Candidates:
    """Some units of a network as a masked generator of their own; `net` has embeddings and masks of their size."""

    @torch.no_grad()
    def __init__(self, whole: MaskedGenerator, units: Sequence[Tensor]) -> None:
        """`units`: by node but the noise, the numbers of those that are seen."""
        self.whole, device = whole, whole.plastic[0].weight.device
        self.units: Units = [None, *(numbers.to(device) for numbers in units)]
        self.net = MaskedGenerator(
            whole.graph,
            whole.channels,
            width=1,
            latent_dim=whole.latent_dim,
            variant=whole.variant,
            generator=torch.Generator(),
        )
        for number, (layer, own) in enumerate(zip(whole.plastic, self.net.plastic, strict=True)):
            own.weight = nn.Parameter(laid_out(cut(layer.weight.detach(), axes_of(whole, number), self.units)))
            own.reserved = like(own.weight, cut(layer.reserved, self._mask_axes(number), self.units))
            own.embedding = nn.Parameter(torch.zeros_like(own.reserved, dtype=own.weight.dtype))
            own.start_free = layer.start_free.clone()

    @torch.no_grad()
    def write_back(self) -> None:
        """Write what the seen part has learned into the whole; all else stays as it is."""
        for number, (layer, own) in enumerate(zip(self.whole.plastic, self.net.plastic, strict=True)):
            put_(layer.weight, own.weight.detach(), axes_of(self.whole, number), self.units)

    def spread(self, masks: Sequence[Tensor]) -> list[Tensor]:
        """Masks of the seen part as masks of the whole: closed at all that is not seen."""
        found = []
        for number, (layer, mask) in enumerate(zip(self.whole.plastic, masks, strict=True)):
            wide = torch.zeros_like(layer.reserved)
            put_(wide, mask, self._mask_axes(number), self.units)
            found.append(wide)
        return found

    def narrow(self, masks: Sequence[Tensor]) -> list[Tensor]:
        """The way back: what masks of the whole open of the seen part."""
        return [cut(mask, self._mask_axes(number), self.units) for number, mask in enumerate(masks)]

    def _mask_axes(self, number: int) -> dict[int, int]:
        edge = self.whole.graph.edges[number]
        if self.whole.variant == "units":
            return {0: edge.target}
        return {IN_AXIS[edge.operation.layout]: edge.source, OUT_AXIS[edge.operation.layout]: edge.target}
