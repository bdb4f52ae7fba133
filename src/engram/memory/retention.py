"""Has anything of a class changed? Engrams against the shared weights as they are now. Pure functions.

Every class by itself is checked in a time that grows with their number. One hash over all weights that any of them
relies on, before a task and after it, says the same of all of them at once: an engram's own parts never change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from engram.kinds import levels_apart
from engram.masking.growth import leading_block
from engram.masking.masks import IN_AXIS, OUT_AXIS
from engram.memory.class_generator import fingerprint, reference_drawings
from engram.memory.engram import Engram, content_hashes, extract, open_blocks
from engram.nets.masked_generator import MaskedGenerator


def closed_weights(net: MaskedGenerator) -> list[Tensor]:
    """By layer, bool in the weight's shape: those that an earlier task relies on (Eq. 5)."""
    return [~free.expand_as(layer.weight) for free, layer in zip(net.free(), net.plastic, strict=True)]


def hash_of_closed(net: MaskedGenerator, closed: Sequence[Tensor]) -> str:
    """A SHA-256 over the bits of these weights, also in a network that has grown since."""
    total = hashlib.sha256()
    for layer, mask in zip(net.plastic, closed, strict=True):
        ends = mask.shape[IN_AXIS[layer.layout]], mask.shape[OUT_AXIS[layer.layout]]
        block = leading_block(layer.weight.detach(), *ends, layer.layout)
        total.update(block[mask].cpu().numpy().tobytes())
    return total.hexdigest()


def changed_classes(engrams: Sequence[Engram], weights: Sequence[Tensor]) -> list[int]:
    """Indices of the classes of which a stored bit that they depend on is not what it was."""
    return _differing(
        known_now
        for engram in engrams
        for known_now in zip(engram.class_indices, engram.contents, content_hashes(engram, weights), strict=True)
    )


def redrawn_classes(engrams: Sequence[Engram], weights: Sequence[Tensor]) -> list[int]:
    """Indices of the classes whose images for fixed noise are not, to the bit, what they were."""
    return _differing(
        known_now
        for engram in engrams
        for known_now in zip(engram.class_indices, engram.fingerprints, _fingerprints(engram, weights), strict=True)
    )


def largest_differences(engrams: Sequence[Engram], weights: Sequence[Tensor]) -> dict[int, int]:
    """By class index, in grey levels: how far today's drawings are from the references, where a class has some."""
    found: dict[int, int] = {}
    for engram in engrams:
        if not engram.references:
            continue
        nets = extract(engram, weights)
        for index, name, net, known in zip(
            engram.class_indices, engram.noise_names, nets, engram.references, strict=True
        ):
            apart = levels_apart(reference_drawings(net, name), known)
            found[index] = max(apart, found.get(index, 0))
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Compared:
    """What of a class is compared with what it was."""

    hashes: int = 0
    """Of stored bits: one an engram."""
    bytes: int = 0
    """That these hashes are over."""
    drawings: int = 0
    """That are drawn anew and held against stored ones, pixel by pixel."""


def compared_classes(engrams: Sequence[Engram], weights: Sequence[Tensor]) -> dict[int, Compared]:
    """By class index; a class without an engram is not in it."""
    found: dict[int, Compared] = {}
    for engram in engrams:
        parts = (*engram.masks, *engram.candidates, *open_blocks(engram, weights)[0], engram.head, engram.bias)
        own = (*engram.scales, *engram.shifts, *([] if engram.rest is None else [engram.rest]))
        size = sum(part.nbytes for part in parts) + sum(part[0].nbytes for part in own)
        for place, index in enumerate(engram.class_indices):
            before = found.get(index, Compared())
            stored = len(engram.references[place]) if place < len(engram.references) else 0
            found[index] = Compared(before.hashes + 1, before.bytes + size, before.drawings + stored)
    return dict(sorted(found.items()))


def _fingerprints(engram: Engram, weights: Sequence[Tensor]) -> Iterator[str]:
    for net, name in zip(extract(engram, weights), engram.noise_names, strict=True):
        yield fingerprint(net, name)


def _differing(found: Iterable[tuple[int, str, str]]) -> list[int]:
    """(class index, known, now) -> indices, each once: a class may have several engrams."""
    return sorted({index for index, known, now in found if now != known})
