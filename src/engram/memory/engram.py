"""The engrams: what each task leaves behind, and how its classes are drawn from that alone.

    trained task ──consolidate──> Engram: binary masks (bits), folded normalisation, head, fingerprints
    Engram + shared weights ──extract──> one small plain network per class ──> images

An engram never changes. The shared weights do, but only where no engram's mask is open. Three things a class check that
(retention.py):

    content       a hash of the stored bits that the class depends on, before any arithmetic: the same on every machine
    fingerprint   a hash of its images for fixed noise: identical to the bit on one kind of machine
    references    the first of those images: how far today's drawings are from them, on any machine

A mask of an earlier, smaller network computes with the leading block of today's weight, in the shapes of that time.
Multiplying the rest by 0 would be the same sum on paper, but the order of a floating-point sum depends on its length,
and the promise is old images bit for bit. A task that saw some of the network's units alone has a list of them, and
computes with the weights between those.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from engram.errors import RunError
from engram.gan.sampling import SAMPLE_BATCH, batch_that_fits
from engram.masking.growth import leading_block
from engram.masking.masks import IN_AXIS, OUT_AXIS, Layout, Variant, pack_bits, unpack_bits
from engram.memory.class_generator import ClassGenerator, fingerprint, reference_drawings
from engram.memory.unchanging import Unchanging
from engram.nets.architectures import graph_of
from engram.nets.candidates import Candidates
from engram.nets.graph import Graph
from engram.nets.masked_generator import EPSILON, ClassNorm, MaskedGenerator
from engram.nets.plastic_layers import laid_out
from engram.nets.reachability import reachable_units
from engram.nets.subnetwork import Subnetwork, cut
from engram.ops.batch_norm import Moments


@dataclass(frozen=True)
class Engram:
    """One task's share of the memory. All sizes are those of the network when the task was learned."""

    architecture: str
    image_size: int
    """0 where it draws vectors."""
    class_indices: tuple[int, ...]
    """The classes it can draw, by their places in the answer."""
    latent_dim: int
    units: tuple[int, ...]
    """Of each node."""
    variant: Variant
    masks: tuple[Tensor, ...]
    """Per layer, the binary mask packed to bits."""
    scales: tuple[Tensor, ...]
    """Per node (classes, units): normalisation and its affine terms, folded to x * scale + shift."""
    shifts: tuple[Tensor, ...]
    head: Tensor
    """In the shape that the graph says."""
    bias: Tensor
    """(channels,); of vectors (classes, D), an offset for every class"""
    rest: Tensor | None = None
    """Of vectors (classes, D), deviations of what the head leaves out; none from a version that left it out."""
    contents: tuple[str, ...] = ()
    """Per class, a hash of the stored bits that it depends on."""
    fingerprints: tuple[str, ...] = ()
    """Per class, a hash of its images for fixed noise."""
    noise_names: tuple[int, ...] = ()
    """Per class, the name of that noise: its place when it was learned. Places move when a class is forgotten."""
    references: tuple[Tensor, ...] = ()
    """Per class (2, C, H, W) uint8, the first of those images; none from a version that did not store them."""
    candidates: tuple[Tensor, ...] = ()
    """Per node int32 (units,), which units of the network these are; none: the first ones."""

    @cached_property
    def stored(self) -> Unchanging:
        """For a checkpoint: the same object every time, so that it is written once."""
        return Unchanging(engram_state(self))

    @property
    def graph(self) -> Graph:
        """How its layers hang together."""
        return graph_of(self.architecture, self.image_size)

    @property
    def heads(self) -> list[Tensor]:
        """What turns the last node into an example."""
        return [self.head, self.bias] if self.rest is None else [self.head, self.bias, self.rest]

    def binary_masks(self) -> list[Tensor]:
        """Unpacked, one a layer."""
        units = (self.latent_dim, *self.units)
        shapes = [self.graph.mask_shape(number, units, self.variant) for number in range(len(self.masks))]
        return [unpack_bits(bits, shape) for bits, shape in zip(self.masks, shapes, strict=True)]

    @property
    def places(self) -> list[Tensor | None]:
        """By node, the noise first: the numbers of its units in the network. None: they are the first ones."""
        return (
            [None, *(units.long() for units in self.candidates)] if self.candidates else [None] * (1 + len(self.units))
        )

    def kept_units(self) -> list[Tensor]:
        """By node but the noise: the numbers, in the network, of the units that its compact networks have."""
        reachable = [units.nonzero().squeeze(1) for units in reachable_units(self.graph, self.binary_masks())]
        pairs = zip(reachable, self.places[1:], strict=True)
        return [own if places is None else places[own] for own, places in pairs]


@torch.no_grad()
def consolidate(
    net: MaskedGenerator,
    masks: Sequence[Tensor],
    class_indices: Sequence[int],
    *,
    batches: int = 50,
    batch_size: int = SAMPLE_BATCH,
    generator: torch.Generator,
    seen: Candidates | None = None,
) -> Engram:
    """Turn the task in training into an engram under its binary masks.

    Binarising moves the statistics of the normalisation, so they are estimated anew, from noise alone: from so many
    batches, or from as many images in smaller ones. `seen`: `net` is this part of a network.
    """
    own = net.task_params
    assert own is not None
    device, small = net.plastic[0].weight.device, Subnetwork(net, masks)
    # twice as many as where they are drawn: the batch's own statistics normalise what the next node reads
    moments, size = Moments(small.units), min(batch_size, 2 * batch_that_fits(net.graph, small.units, device))
    classes = torch.arange(size, device=device) % len(class_indices)
    for _ in range(math.ceil(batches * batch_size / size)):
        z = torch.randn(size, net.latent_dim, generator=generator).to(device)
        small.net(z, classes, observe=moments.see)
    scales: list[Tensor] = []
    shifts: list[Tensor] = []
    for (mean, deviation), norm, units in zip(moments.settled(EPSILON), own.norms, small.reachable, strict=True):
        assert isinstance(norm, ClassNorm)
        scale = norm.scale[:, units].cpu().double() / deviation
        shift = norm.shift[:, units].cpu().double() - mean * scale
        for folded, values in ((scales, scale), (shifts, shift)):
            folded.append(torch.zeros(norm.scale.shape))  # a unit that cannot be reached has none
            folded[-1][:, units.cpu()] = values.float()
    engram = Engram(
        architecture=net.graph.name,
        image_size=net.graph.image_size,
        class_indices=tuple(class_indices),
        latent_dim=net.latent_dim,
        units=tuple(net.units),
        variant=net.variant,
        masks=tuple(pack_bits(mask.cpu()) for mask in masks),
        scales=tuple(scales),
        shifts=tuple(shifts),
        head=own.head.detach().cpu().clone(),
        bias=own.bias.detach().cpu().clone(),
        candidates=() if seen is None else tuple(units.cpu().int() for units in seen.units if units is not None),
        rest=None if own.rest is None else own.rest.detach().cpu().clone(),
    )
    weights = shared_weights(net if seen is None else seen.whole)
    named = list(zip(extract(engram, weights), class_indices, strict=True))
    return replace(
        engram,
        contents=tuple(content_hashes(engram, weights)),
        fingerprints=tuple(fingerprint(net, name) for net, name in named),
        noise_names=tuple(class_indices),
        references=tuple(reference_drawings(net, name) for net, name in named),
    )


def shared_weights(net: MaskedGenerator) -> list[Tensor]:
    """Those of the plastic layers, as they are now."""
    return [layer.weight.detach() for layer in net.plastic]


def open_blocks(engram: Engram, weights: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """By layer, the weights between reachable units, closed ones 0, with the bits that are stored; and by node, the
    noise first, which units can be reached."""
    graph, masks = engram.graph, engram.binary_masks()
    units = (engram.latent_dim, *engram.units)
    reachable = [torch.ones(engram.latent_dim, dtype=torch.bool), *reachable_units(graph, masks)]
    blocks = []
    for edge, weight, mask in zip(graph.edges, weights, masks, strict=True):
        layout = edge.operation.layout
        if engram.candidates:
            axes = {IN_AXIS[layout]: edge.source, OUT_AXIS[layout]: edge.target}
            _require_there(engram, weight, axes)
            block = cut(weight.cpu(), axes, engram.places)
        else:
            block = leading_block(weight, units[edge.source], units[edge.target], layout).cpu()
        if engram.variant == "weights":
            block = block.masked_fill(~mask, 0)
        elif graph.is_sum(edge.target):  # a unit may be open by another edge alone
            block = block.masked_fill(~_along_outputs(mask, layout), 0)
        sources, targets = (reachable[node].nonzero().squeeze(1) for node in (edge.source, edge.target))
        blocks.append(block.index_select(IN_AXIS[layout], sources).index_select(OUT_AXIS[layout], targets))
    return blocks, reachable


def _require_there(engram: Engram, weight: Tensor, axes: Mapping[int, int]) -> None:
    """That a network has the units that an engram names: a file may have been changed by hand."""
    for axis, node in axes.items():
        places = engram.places[node]
        if places is None:
            continue
        units, there = engram.units[node - 1], weight.shape[axis]
        if len(places) != units or not ((places >= 0) & (places < there)).all():
            raise RunError(
                f"an engram of {units} units names {len(places)}, not all of them among the network's {there}: "
                "its file was changed by hand; take a backup"
            )


def content_hashes(engram: Engram, weights: Sequence[Tensor]) -> list[str]:
    """Per class, a SHA-256 over all that its images depend on, as it is stored: masks, open weights, norms, head.

    Nothing is computed first, so every processor and every version of torch finds the same.
    """
    blocks, _ = open_blocks(engram, weights)
    plain = [engram.architecture, engram.image_size, engram.latent_dim, list(engram.units), engram.variant]
    shared = hashlib.sha256(json.dumps(plain).encode())
    by_class = [*engram.scales, *engram.shifts, *([] if engram.rest is None else [engram.rest])]
    common = [*engram.masks, *engram.candidates, *blocks, engram.head]
    (by_class if engram.bias.dim() == 2 else common).append(engram.bias)
    for tensor in common:
        _add_bits(shared, tensor)
    hashes = []
    for number in range(len(engram.class_indices)):
        own = shared.copy()
        for tensor in by_class:
            _add_bits(own, tensor[number])
        hashes.append(own.hexdigest())
    return hashes


def _add_bits(total: hashlib._Hash, tensor: Tensor) -> None:
    """Type, shape and values in their plain order, the lowest byte first."""
    array = tensor.detach().cpu().contiguous().numpy()
    total.update(f"{array.dtype.name} {array.shape}".encode())
    total.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())


def extract(engram: Engram, weights: Sequence[Tensor]) -> list[ClassGenerator]:
    """One plain network per class, with everything that is closed or unreachable dropped."""
    graph, device = engram.graph, weights[0].device
    blocks, reachable = open_blocks(engram, weights)
    last = reachable[-1].nonzero().squeeze(1)
    head = _ready(engram.head.index_select(IN_AXIS[graph.head.layout], last), device)
    nets = []
    for number in range(len(engram.class_indices)):
        scales = [scale[number][units] for scale, units in zip(engram.scales, reachable[1:], strict=True)]
        shifts = [shift[number][units] for shift, units in zip(engram.shifts, reachable[1:], strict=True)]
        folded: list[Tensor] = []
        biases: list[Tensor | None] = []
        for edge, block in zip(graph.edges, blocks, strict=True):
            kept = graph.is_sum(edge.target)
            scale = _along_outputs(scales[edge.target - 1], edge.operation.layout)
            folded.append(_ready(block if kept else block * scale, device))
            biases.append(None if kept else shifts[edge.target - 1].to(device))
        norms = tuple(
            (scales[node - 1].to(device), shifts[node - 1].to(device)) if graph.is_sum(node) else None
            for node in range(1, graph.nodes + 1)
        )
        bias = (engram.bias[number] if engram.bias.dim() == 2 else engram.bias).to(device)
        rest = None if engram.rest is None else engram.rest[number].to(device)
        nets.append(ClassGenerator(graph, tuple(folded), tuple(biases), norms, head, bias, rest))
    return nets


def _along_outputs(values: Tensor, layout: Layout) -> Tensor:
    """(out,) so that it spreads over a weight."""
    if layout == "linear":
        return values[:, None]
    return values[:, None, None, None] if OUT_AXIS[layout] == 0 else values[None, :, None, None]


def _ready(weight: Tensor, device: torch.device) -> Tensor:
    return laid_out(weight).to(device)


PLAIN = ("architecture", "image_size", "class_indices", "latent_dim", "units", "variant", "contents", "fingerprints")
TENSORS = ("masks", "scales", "shifts")


def engram_state(engram: Engram) -> dict[str, Any]:
    """As a tree of dictionaries."""
    plain = {name: getattr(engram, name) for name in (*PLAIN, "noise_names")}
    tensors = {name: _numbered(getattr(engram, name)) for name in (*TENSORS, "references")}
    if engram.candidates:
        tensors["candidates"] = _numbered(engram.candidates)
    return {
        "plain": {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()},
        **tensors,
        "head": engram.head,
        "bias": engram.bias,
        **({} if engram.rest is None else {"rest": engram.rest}),
    }


def engram_of(saved: dict[str, Any]) -> Engram:
    """Back from a checkpoint; those of version 0.2 name no noise and have no references."""
    plain = {"noise_names": saved["plain"]["class_indices"], **saved["plain"]}
    values: dict[str, Any] = {name: tuple(saved[name].values()) for name in TENSORS}
    values |= {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    values |= {name: tuple(saved.get(name, {}).values()) for name in ("references", "candidates")}
    return Engram(**values, head=saved["head"], bias=saved["bias"], rest=saved.get("rest"))


def _numbered(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return {str(number): tensor for number, tensor in enumerate(tensors)}
