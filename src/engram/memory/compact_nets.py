"""The small networks that draw the known classes, extracted when they are needed and kept within a budget.

An engram says everything, so its networks can be had again at any time, with the same bits. Only so many bytes of them
stay in memory, those used last; with a thousand classes the rest are made anew when their turn comes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import overload

import torch

from engram.memory.class_generator import ClassGenerator
from engram.memory.engram import Engram, extract, shared_weights
from engram.nets.masked_generator import MaskedGenerator

KEPT_BYTES = 2**26
"""64 MB: a hundred classes of MNIST."""


class CompactNets(Sequence[list[ClassGenerator]]):
    """By class, in order of appearance: one small network an engram."""

    def __init__(self, net: MaskedGenerator, engrams: Iterable[Engram] = (), *, kept_bytes: int = KEPT_BYTES) -> None:
        self.net, self.kept_bytes = net, kept_bytes
        self.engrams: list[Engram] = []
        self.places: list[list[tuple[int, int]]] = []
        """By class: number of an engram, and the class's row in it."""
        self._kept: OrderedDict[int, list[ClassGenerator]] = OrderedDict()
        """By number of the engram, the one used last at the end."""
        self.bytes = 0
        """Of what is held now."""
        for engram in engrams:
            self.add(engram)

    def add(self, engram: Engram) -> None:
        """A network more for each of the engram's classes, new or known."""
        for row, index in enumerate(engram.class_indices):
            self.places += [[] for _ in range(len(self.places), index + 1)]
            self.places[index].append((len(self.engrams), row))
        self.engrams.append(engram)

    def make_all(self) -> CompactNets:
        """Make each once, as after loading: an engram that does not fit the network is noticed then, not later."""
        for number in range(len(self.engrams)):
            self._of(number)
        return self

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> list[ClassGenerator]: ...

    @overload
    def __getitem__(self, index: slice) -> list[list[ClassGenerator]]: ...

    def __getitem__(self, index: int | slice) -> list[ClassGenerator] | list[list[ClassGenerator]]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        return [self._of(number)[row] for number, row in self.places[index]]

    def engrams_of(self, index: int) -> int:
        """How many networks a class has, without making them."""
        return len(self.places[index])

    def _of(self, number: int) -> list[ClassGenerator]:
        if number not in self._kept:
            # whoever draws may be in inference mode, whose tensors are of no use elsewhere
            with torch.inference_mode(False), torch.no_grad():
                self._kept[number] = extract(self.engrams[number], shared_weights(self.net))
            self.bytes += _bytes(self._kept[number])
            while self.bytes > self.kept_bytes and len(self._kept) > 1:
                self.bytes -= _bytes(self._kept.popitem(last=False)[1])
        self._kept.move_to_end(number)
        return self._kept[number]


def _bytes(nets: Sequence[ClassGenerator]) -> int:
    """Of the networks of one engram; they share the head."""
    parts = [part for net in nets for part in (*net.weights, *net.biases, net.bias) if part is not None]
    parts += [part for net in nets for norm in net.norms if norm is not None for part in norm]
    return sum(part.numel() * part.element_size() for part in [*parts, *(net.head for net in nets[:1])])
