"""What the memory costs, in bytes by part, as it would lie on disc. Nothing is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from engram.memory.engram import Engram
from engram.nets.masked_generator import MaskedGenerator


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def ledger(net: MaskedGenerator, engrams: Sequence[Engram]) -> dict[str, int]:
    """Bytes of the shared weights, and of all engrams' masks, heads, normalisation and reference drawings.

    Masks are packed; those of some of the network's units alone have a list of them.
    """
    return {
        "weights": _bytes(layer.weight for layer in net.plastic),
        "masks": _bytes(part for engram in engrams for part in (*engram.masks, *engram.candidates)),
        "heads": _bytes(part for engram in engrams for part in engram.heads),
        "normalisation": _bytes(part for engram in engrams for part in (*engram.scales, *engram.shifts)),
        "references": _bytes(drawings for engram in engrams for drawings in engram.references),
    }
