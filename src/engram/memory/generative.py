"""The engrams: what each task leaves behind, and how its classes are sampled from that alone.

    trained task ──consolidate──> Engram: binary masks (bits), folded normalisation, head, fingerprints
    Engram + shared weights ──extract──> one small plain network per class ──> images

An engram never changes. The shared weights do, but only where no engram's mask is open: for a fixed noise vector the
images of every class stay identical to the bit, whatever is learned later. `fingerprint` is how that is checked.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from engram.nets.generator import EPSILON, ClassNorm, PlasticGenerator
from engram.plastic.growth import leading_block
from engram.plastic.layers import from_one_pixel
from engram.plastic.masks import Variant, pack_bits, unpack_bits
from engram.seeding import generator as named_generator

FINGERPRINT_IMAGES = 8
SAMPLE_BATCH = 256


@dataclass(frozen=True)
class Engram:
    """One task's share of the memory. All sizes are those of the network when the task was learned."""

    columns: tuple[int, ...]
    """The classes it can produce, as columns of the answer."""
    inputs: int
    """Length of the noise vector."""
    units: tuple[int, ...]
    """Output units of each plastic layer."""
    variant: Variant
    masks: tuple[Tensor, ...]
    """Per layer, the binary mask packed to bits."""
    scales: tuple[Tensor, ...]
    """Per layer (classes, units): normalisation and its affine terms, folded to x * scale + shift."""
    shifts: tuple[Tensor, ...]
    head: Tensor
    """(units, channels, 4, 4)"""
    bias: Tensor
    """(channels,)"""
    fingerprints: tuple[str, ...] = ()
    """Per class, a hash of its images for fixed noise."""

    def binary_masks(self) -> list[Tensor]:
        ends = [self.inputs, *self.units]
        shapes: list[tuple[int, ...]] = [
            (a, b, 4, 4) if self.variant == "weights" else (b,) for a, b in itertools.pairwise(ends)
        ]
        return [unpack_bits(bits, shape) for bits, shape in zip(self.masks, shapes, strict=True)]


@dataclass(frozen=True)
class ClassNet:
    """A plain generator of one class: closed and dead units dropped, normalisation folded into weights and biases."""

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    head: Tensor
    bias: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        """(B, noise) -> (B, C, 32, 32) in [-1, 1]."""
        first, *later = self.weights
        x = F.relu_(from_one_pixel(z, first).add_(self.biases[0][:, None, None]))
        for weight, bias in zip(later, self.biases[1:], strict=True):
            x = F.relu_(F.conv_transpose2d(x, weight, bias, stride=2, padding=1))
        return torch.tanh_(F.conv_transpose2d(x, self.head, self.bias, stride=2, padding=1))


def alive_units(masks: Sequence[Tensor], variant: Variant) -> list[Tensor]:
    """Per layer, the units that take part: something open leads in, and something open leads on to the head.

    For DGMa these are the open units. For DGMw a unit without an open weight from a living one has nothing to say;
    it would send its constant shift onwards, so it is silenced. One that nobody listens to is left out.
    """
    if variant == "units":
        return [mask.clone() for mask in masks]
    alive: list[Tensor] = []
    for mask in masks:  # (in, out, 4, 4)
        open_pairs = mask.flatten(2).any(2)
        sources = open_pairs if not alive else open_pairs & alive[-1][:, None]
        alive.append(sources.any(0))
    for number in range(len(masks) - 2, -1, -1):
        heard = (masks[number + 1].flatten(2).any(2) & alive[number + 1][None, :]).any(1)
        alive[number] = alive[number] & heard
    return alive


def prune(masks: Sequence[Tensor], variant: Variant) -> list[Tensor]:
    """The same masks without the entries that cannot change an image: weights from and to units that are not alive."""
    if variant == "units":
        return list(masks)
    alive = alive_units(masks, variant)
    pruned, before = [], None
    for mask, after in zip(masks, alive, strict=True):
        keep = after[None, :].expand(mask.shape[0], -1)
        if before is not None:
            keep = keep & before[:, None]
        pruned.append(mask & keep[:, :, None, None])
        before = after
    return pruned


@torch.no_grad()
def consolidate(
    net: PlasticGenerator,
    masks: Sequence[Tensor],
    columns: Sequence[int],
    *,
    batches: int = 50,
    batch_size: int = 256,
    generator: torch.Generator,
) -> Engram:
    """Turn the task in training into an engram under its binary masks.

    Binarising moves the statistics of the normalisation, so they are estimated anew, from noise alone.
    """
    assert net.private is not None
    device = net.plastic[0].weight.device
    alive = alive_units(masks, net.variant)
    sums = [torch.zeros(2, int(living.sum()), dtype=torch.float64) for living in alive]
    classes = torch.arange(batch_size, device=device) % len(columns)
    for _ in range(batches):
        z = torch.randn(batch_size, net.noise, generator=generator).to(device)
        seen: list[Tensor] = []
        net(z, classes, masks, alive=alive, seen=seen)
        for total, x in zip(sums, seen, strict=True):
            variance, mean = torch.var_mean(x, (0, 2, 3), correction=0)
            total += torch.stack([mean, variance + mean.square()]).cpu()  # added up in float64
    scales: list[Tensor] = []
    shifts: list[Tensor] = []
    for total, norm, living in zip(sums, net.private.norms, alive, strict=True):
        assert isinstance(norm, ClassNorm)
        mean, square = total / batches
        deviation = (square - mean.square()).clamp(min=0).add(EPSILON).sqrt()
        scale = norm.scale[:, living].cpu().double() / deviation
        shift = norm.shift[:, living].cpu().double() - mean * scale
        for folded, values in ((scales, scale), (shifts, shift)):
            folded.append(torch.zeros(norm.scale.shape))  # a unit without a voice has none
            folded[-1][:, living.cpu()] = values.float()
    engram = Engram(
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
    device = weights[0].device
    masks = engram.binary_masks()
    alive = alive_units(masks, engram.variant)
    blocks, before, inputs = [], torch.ones(engram.inputs, dtype=torch.bool), engram.inputs
    for weight, mask, after, units in zip(weights, masks, alive, engram.units, strict=True):
        block = leading_block(weight, inputs, units, "conv_transpose").cpu()
        if engram.variant == "weights":
            block = block.masked_fill(~mask, 0)
        blocks.append(block[before][:, after])
        before, inputs = after, units
    head = engram.head[before].contiguous(memory_format=torch.channels_last).to(device)
    nets = []
    for number in range(len(engram.columns)):
        folded, biases = [], []
        for block, after, scale, shift in zip(blocks, alive, engram.scales, engram.shifts, strict=True):
            weight = block * scale[number][after][None, :, None, None]
            folded.append(weight.contiguous(memory_format=torch.channels_last).to(device))
            biases.append(shift[number][after].to(device))
        nets.append(ClassNet(tuple(folded), tuple(biases), head, engram.bias.to(device)))
    return nets


@torch.inference_mode()
def fingerprint(net: ClassNet, column: int) -> str:
    """A hash of the images that a class gives for noise that never changes."""
    inputs = net.weights[0].shape[0]
    z = torch.randn(FINGERPRINT_IMAGES, inputs, generator=named_generator(0, "fingerprint", column))
    images = net(z.to(net.head.device)).cpu().contiguous()
    return hashlib.sha256(images.numpy().tobytes()).hexdigest()


def _with_fingerprints(engram: Engram, nets: Sequence[ClassNet]) -> Engram:
    prints = tuple(fingerprint(net, column) for net, column in zip(nets, engram.columns, strict=True))
    return replace(engram, fingerprints=prints)


@torch.inference_mode()
def sample(net: ClassNet, count: int, *, generator: torch.Generator) -> Tensor:
    """(count, C, 32, 32) uint8 images of one class, drawn in large batches."""
    inputs = net.weights[0].shape[0]
    device = net.head.device
    out = torch.empty(count, net.bias.shape[0], 32, 32, dtype=torch.uint8)
    for start in range(0, count, SAMPLE_BATCH):
        z = torch.randn(min(SAMPLE_BATCH, count - start), inputs, generator=generator)
        images = net(z.to(device)).add_(1).mul_(127.5).round_().to(torch.uint8)
        out[start : start + len(z)] = images.cpu()
    return out


def engram_state(engram: Engram) -> dict[str, Any]:
    def numbered(tensors: Sequence[Tensor]) -> dict[str, Any]:
        return {str(n): tensor for n, tensor in enumerate(tensors)}

    return {
        "plain": {
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
