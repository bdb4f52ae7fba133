"""A small plain network that draws one class: what an engram and the shared weights give, ready to be run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engram.context import Shape
from engram.gan.sampling import batch_that_fits, sample_images
from engram.kinds import from_network, spread
from engram.masking.masks import IN_AXIS, OUT_AXIS
from engram.nets.grain import with_grain
from engram.nets.graph import Graph, run_graph
from engram.nets.pruning import shares_of_power
from engram.seeding import generator as named_generator

FINGERPRINT_IMAGES = 8
REFERENCES = 2
"""How many of those images are stored as they were drawn."""


@dataclass(frozen=True)
class ClassGenerator:
    """A plain generator of one class: unreachable units dropped, normalisation folded into weights and biases.

    It cannot be folded where a shortcut reads the node as it is: there it stands in `norms`.
    """

    graph: Graph
    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]
    norms: tuple[tuple[Tensor, Tensor] | None, ...]
    head: Tensor
    bias: Tensor
    rest: Tensor | None = None
    """Of vectors (D,): deviations of what the head leaves out."""

    @property
    def latent_dim(self) -> int:
        """Length of the noise vector."""
        return self.weights[0].shape[IN_AXIS[self.graph.edges[0].operation.layout]]

    @property
    def units(self) -> list[int]:
        """Of each node."""
        edges = [self.graph.incoming[node][0] for node in range(1, self.graph.nodes + 1)]
        return [self.weights[n].shape[OUT_AXIS[self.graph.edges[n].operation.layout]] for n in edges]

    @property
    def shape(self) -> Shape:
        """Of what it draws."""
        return self.graph.example_shape(len(self.bias))

    def __call__(self, z: Tensor) -> Tensor:
        """(B, latent_dim) -> (B, C, H, W) in [-1, 1], or scaled vectors (B, D)."""

        drawn = run_graph(self.graph, z, self.weights, self.activate, (self.head, self.bias), biases=self.biases)
        return with_grain(drawn, z, self.rest)

    def activate(self, node: int, total: Tensor) -> Tensor:
        """What a node sends, of the sum that reaches it."""
        norm = self.norms[node - 1]
        if norm is not None:
            scale, shift = norm
            total = torch.addcmul(spread(shift, total), total, spread(scale, total))
        return self.graph.rectify(node, total)


@torch.inference_mode()
def unit_shares(net: ClassGenerator, z: Tensor) -> list[Tensor]:
    """By node but the noise, (units,): the share of its images' power that passes through each unit, for this noise."""
    active = [z.square().mean(0), *(z.new_zeros(units) for units in net.units)]

    def activate(node: int, total: Tensor) -> Tensor:
        sent = net.activate(node, total)
        active[node] = sent.square().mean((0, *range(2, sent.dim())))
        return sent

    run_graph(net.graph, z, net.weights, activate, (net.head, net.bias), biases=net.biases)
    return shares_of_power(net.graph, net.weights, active, net.head)


def sample(net: ClassGenerator, count: int, *, generator: torch.Generator) -> Tensor:
    """(count, C, H, W) uint8 images of one class."""
    device = net.head.device
    return sample_images(
        lambda z, _: net(z),
        count,
        net.shape,
        latent_dim=net.latent_dim,
        batch_size=batch_that_fits(net.graph, net.units, device),
        device=device,
        generator=generator,
    )


def sample_evenly(nets: Sequence[ClassGenerator], count: int, *, generator: torch.Generator) -> Tensor:
    """(count, C, H, W) uint8 images of one class, of its several generators one after the other."""
    counts = even_parts(count, len(nets))
    return torch.cat([sample(net, some, generator=generator) for net, some in zip(nets, counts, strict=True)])


def even_parts(count: int, parts: int) -> list[int]:
    """As `Tensor.tensor_split` cuts: the first ones are larger by one where it does not come out even.

    >>> even_parts(8, 3)
    [3, 3, 2]
    """
    return [count // parts + (part < count % parts) for part in range(parts)]


# ---------------------------------------------------------------- images for noise that never changes


@torch.inference_mode()
def fixed_images(net: ClassGenerator, noise_name: int) -> Tensor:
    """(8, C, H, W) in [-1, 1], for the noise of this name."""
    z = torch.randn(FINGERPRINT_IMAGES, net.latent_dim, generator=named_generator(0, "fingerprint", noise_name))
    return net(z.to(net.head.device)).cpu().contiguous()


def fingerprint(net: ClassGenerator, noise_name: int) -> str:
    """A hash of the images that a class gives for noise that never changes."""
    return hashlib.sha256(fixed_images(net, noise_name).numpy().tobytes()).hexdigest()


def reference_drawings(net: ClassGenerator, noise_name: int) -> Tensor:
    """(2, C, H, W) uint8, or (2, D) float32: the first of those images, to be looked at again on another machine."""
    return from_network(fixed_images(net, noise_name)[:REFERENCES].clone())
