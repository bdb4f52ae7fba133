"""The engrams: what each task leaves behind, and how its classes are sampled from that alone.

    trained task ──consolidate──> Engram: binary masks (bits), folded normalisation, head, fingerprints
    Engram + shared weights ──extract──> one small plain network per class ──> images

An engram never changes. The shared weights do, but only where no engram's mask is open: for a fixed noise vector the
images of every class stay identical to the bit, whatever is learned later. `fingerprint` is how that is checked.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from engram.nets.generator import EPSILON, ClassNorm, PlasticGenerator
from engram.nets.norm import Moments
from engram.nets.part import Part
from engram.plastic.growth import leading_block
from engram.plastic.masks import IN_AXIS, OUT_AXIS, Layout, Variant, pack_bits, unpack_bits
from engram.plastic.wiring import WIRINGS, Wiring, alive_units
from engram.seeding import generator as named_generator

FINGERPRINT_IMAGES = 8
SAMPLE_BATCH = 256
LARGEST_LEVEL = {"cpu": 2**21}
"""Numbers that one level of a batch may have, by device: a network that has grown draws fewer images at a time.

On a CPU 8 MB: what its cache cannot hold is slower as well as larger.
"""
LARGEST_ELSEWHERE = 2**24


@dataclass(frozen=True)
class Engram:
    """One task's share of the memory. All sizes are those of the network when the task was learned."""

    network: str
    """Which wiring."""
    columns: tuple[int, ...]
    """The classes it can produce, as columns of the answer."""
    inputs: int
    """Length of the noise vector."""
    units: tuple[int, ...]
    """Of each level."""
    variant: Variant
    masks: tuple[Tensor, ...]
    """Per layer, the binary mask packed to bits."""
    scales: tuple[Tensor, ...]
    """Per level (classes, units): normalisation and its affine terms, folded to x * scale + shift."""
    shifts: tuple[Tensor, ...]
    head: Tensor
    """In the shape that the wiring says."""
    bias: Tensor
    """(channels,)"""
    fingerprints: tuple[str, ...] = ()
    """Per class, a hash of its images for fixed noise."""

    @property
    def wiring(self) -> Wiring:
        return WIRINGS[self.network]

    def binary_masks(self) -> list[Tensor]:
        units = (self.inputs, *self.units)
        shapes = [self.wiring.mask_shape(number, units, self.variant) for number in range(len(self.masks))]
        return [unpack_bits(bits, shape) for bits, shape in zip(self.masks, shapes, strict=True)]


@dataclass(frozen=True)
class ClassNet:
    """A plain generator of one class: closed and dead units dropped, normalisation folded into weights and biases.

    It cannot be folded where a shortcut reads the level as it is: there it stands in `norms`.
    """

    wiring: Wiring
    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]
    norms: tuple[tuple[Tensor, Tensor] | None, ...]
    head: Tensor
    bias: Tensor

    @property
    def inputs(self) -> int:
        """Length of the noise vector."""
        return self.weights[0].shape[IN_AXIS[self.wiring.wires[0].shape.layout]]

    @property
    def units(self) -> list[int]:
        """Of each level."""
        wires = [self.wiring.into(level)[0] for level in range(1, self.wiring.levels + 1)]
        return [self.weights[n].shape[OUT_AXIS[self.wiring.wires[n].shape.layout]] for n in wires]

    def __call__(self, z: Tensor) -> Tensor:
        """(B, noise) -> (B, C, 32, 32) in [-1, 1]."""
        raw, active = [z], [z]
        for level, norm in enumerate(self.norms, start=1):
            total: Tensor | None = None
            for number in self.wiring.into(level):
                wire = self.wiring.wires[number]
                if not self.weights[number].numel():  # a branch without a voice
                    continue
                x = (raw if wire.raw else active)[wire.reads]
                part = wire(x, self.weights[number], self.biases[number])
                total = part if total is None else total.add_(part)
            if total is None:
                total = z.new_empty(0)
                norm = None
            raw.append(total)
            if norm is not None:
                scale, shift = norm
                total = torch.addcmul(shift[:, None, None], total, scale[:, None, None])
            active.append(F.relu_(total))
            for past in self.wiring.spent[level]:
                raw[past] = active[past] = z
        return torch.tanh_(self.wiring.head(active[-1], self.head, self.bias))


@torch.no_grad()
def consolidate(
    net: PlasticGenerator,
    masks: Sequence[Tensor],
    columns: Sequence[int],
    *,
    batches: int = 50,
    batch_size: int = SAMPLE_BATCH,
    generator: torch.Generator,
) -> Engram:
    """Turn the task in training into an engram under its binary masks.

    Binarising moves the statistics of the normalisation, so they are estimated anew, from noise alone: from so many
    batches, or from as many images in smaller ones.
    """
    assert net.private is not None
    device, part = net.plastic[0].weight.device, Part(net, masks)
    units = part.units
    # twice as many as where they are drawn: the batch's own statistics normalise what the next level reads
    moments, size = Moments(units), min(batch_size, 2 * _batch(net.wiring, units, device))
    classes = torch.arange(size, device=device) % len(columns)
    for _ in range(math.ceil(batches * batch_size / size)):
        z = torch.randn(size, net.noise, generator=generator).to(device)
        part.net(z, classes, see=moments.see)
    scales: list[Tensor] = []
    shifts: list[Tensor] = []
    for (mean, deviation), norm, living in zip(moments.settled(EPSILON), net.private.norms, part.alive, strict=True):
        assert isinstance(norm, ClassNorm)
        scale = norm.scale[:, living].cpu().double() / deviation
        shift = norm.shift[:, living].cpu().double() - mean * scale
        for folded, values in ((scales, scale), (shifts, shift)):
            folded.append(torch.zeros(norm.scale.shape))  # a unit without a voice has none
            folded[-1][:, living.cpu()] = values.float()
    engram = Engram(
        network=net.wiring.name,
        columns=tuple(columns),
        inputs=net.noise,
        units=tuple(net.units),
        variant=net.variant,
        masks=tuple(pack_bits(mask.cpu()) for mask in masks),
        scales=tuple(scales),
        shifts=tuple(shifts),
        head=net.private.head.detach().cpu().clone(),
        bias=net.private.bias.detach().cpu().clone(),
    )
    return _with_fingerprints(engram, extract(engram, shared_weights(net)))


def shared_weights(net: PlasticGenerator) -> list[Tensor]:
    return [layer.weight.detach() for layer in net.plastic]


def extract(engram: Engram, weights: Sequence[Tensor]) -> list[ClassNet]:
    """One plain network per class, with everything that is closed or dead dropped."""
    wiring, device = engram.wiring, weights[0].device
    masks = engram.binary_masks()
    units = (engram.inputs, *engram.units)
    alive = [torch.ones(engram.inputs, dtype=torch.bool), *alive_units(wiring, masks, engram.variant)]
    blocks = []
    for wire, weight, mask in zip(wiring.wires, weights, masks, strict=True):
        layout = wire.shape.layout
        block = leading_block(weight, units[wire.reads], units[wire.writes], layout).cpu()
        if engram.variant == "weights":
            block = block.masked_fill(~mask, 0)
        elif wiring.summed(wire.writes):  # a unit may be open by another wire alone
            block = block.masked_fill(~_along_outputs(mask, layout), 0)
        sources, targets = (alive[level].nonzero().squeeze(1) for level in (wire.reads, wire.writes))
        blocks.append(block.index_select(IN_AXIS[layout], sources).index_select(OUT_AXIS[layout], targets))
    living = alive[-1].nonzero().squeeze(1)
    head = _ready(engram.head.index_select(IN_AXIS[wiring.head.layout], living), device)
    nets = []
    for number in range(len(engram.columns)):
        scales = [scale[number][units] for scale, units in zip(engram.scales, alive[1:], strict=True)]
        shifts = [shift[number][units] for shift, units in zip(engram.shifts, alive[1:], strict=True)]
        folded: list[Tensor] = []
        biases: list[Tensor | None] = []
        for wire, block in zip(wiring.wires, blocks, strict=True):
            kept = wiring.summed(wire.writes)
            scale = _along_outputs(scales[wire.writes - 1], wire.shape.layout)
            folded.append(_ready(block if kept else block * scale, device))
            biases.append(None if kept else shifts[wire.writes - 1].to(device))
        norms = tuple(
            (scales[level - 1].to(device), shifts[level - 1].to(device)) if wiring.summed(level) else None
            for level in range(1, wiring.levels + 1)
        )
        nets.append(ClassNet(wiring, tuple(folded), tuple(biases), norms, head, engram.bias.to(device)))
    return nets


def _along_outputs(values: Tensor, layout: Layout) -> Tensor:
    """(out,) so that it spreads over a weight."""
    return values[:, None, None, None] if OUT_AXIS[layout] == 0 else values[None, :, None, None]


def _ready(weight: Tensor, device: torch.device) -> Tensor:
    return weight.contiguous(memory_format=torch.channels_last).to(device)


@torch.inference_mode()
def fingerprint(net: ClassNet, column: int) -> str:
    """A hash of the images that a class gives for noise that never changes."""
    z = torch.randn(FINGERPRINT_IMAGES, net.inputs, generator=named_generator(0, "fingerprint", column))
    images = net(z.to(net.head.device)).cpu().contiguous()
    return hashlib.sha256(images.numpy().tobytes()).hexdigest()


def _with_fingerprints(engram: Engram, nets: Sequence[ClassNet]) -> Engram:
    prints = tuple(fingerprint(net, column) for net, column in zip(nets, engram.columns, strict=True))
    return replace(engram, fingerprints=prints)


@torch.inference_mode()
def sample(net: ClassNet, count: int, *, generator: torch.Generator) -> Tensor:
    """(count, C, 32, 32) uint8 images of one class, drawn in large batches."""
    device = net.head.device
    size = _batch(net.wiring, net.units, device)
    out = torch.empty(count, net.bias.shape[0], 32, 32, dtype=torch.uint8)
    for start in range(0, count, size):
        z = torch.randn(min(size, count - start), net.inputs, generator=generator)
        images = net(z.to(device)).add_(1).mul_(127.5).round_().to(torch.uint8)
        out[start : start + len(z)] = images.cpu()
    return out


def _batch(wiring: Wiring, units: Sequence[int], device: torch.device) -> int:
    """How many images are computed at a time; `units` of each level."""
    largest = LARGEST_LEVEL.get(device.type, LARGEST_ELSEWHERE)
    return max(1, min(SAMPLE_BATCH, largest // max(1, wiring.largest_level(units))))


def engram_state(engram: Engram) -> dict[str, Any]:
    def numbered(tensors: Sequence[Tensor]) -> dict[str, Any]:
        return {str(n): tensor for n, tensor in enumerate(tensors)}

    return {
        "plain": {
            "network": engram.network,
            "columns": list(engram.columns),
            "inputs": engram.inputs,
            "units": list(engram.units),
            "variant": engram.variant,
            "fingerprints": list(engram.fingerprints),
        },
        "masks": numbered(engram.masks),
        "scales": numbered(engram.scales),
        "shifts": numbered(engram.shifts),
        "head": engram.head,
        "bias": engram.bias,
    }


def engram_of(saved: dict[str, Any]) -> Engram:
    plain = saved["plain"]
    return Engram(
        network=plain["network"],
        columns=tuple(plain["columns"]),
        inputs=plain["inputs"],
        units=tuple(plain["units"]),
        variant=plain["variant"],
        masks=tuple(saved["masks"].values()),
        scales=tuple(saved["scales"].values()),
        shifts=tuple(saved["shifts"].values()),
        head=saved["head"],
        bias=saved["bias"],
        fingerprints=tuple(plain["fingerprints"]),
    )
