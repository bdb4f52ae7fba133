"""A generator as a graph: nodes where units live, and edges, the plastic layers between them. One function runs it.

    node    a place where units live; the noise is node 0, and the last node is what the head reads
    edge    one plastic layer, from a node to a later one; edges into the same node add up

    active  a node as most edges read it: normalised, then ReLU
    raw     a node as a shortcut reads it: the sum alone

    noise ─edges─> node 1 ─edges─> … ─> last node ─head─> image

Edges into one node always have the same number of units, at every size that the network ever had: that is what keeps a
residual sum a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from engram.kinds import Shape
from engram.masking.masks import OUT_AXIS, Layout, Variant
from engram.ops.convolutions import doubled, from_one_pixel


@dataclass(frozen=True)
class Operation:
    """A linear layer or a convolution without its channels."""

    layout: Layout
    kernel: int = 1
    stride: int = 1
    padding: int = 0

    def weight_shape(self, n_in: int, n_out: int) -> tuple[int, ...]:
        ends = (n_out, n_in) if OUT_AXIS[self.layout] == 0 else (n_in, n_out)
        return ends if self.layout == "linear" else (*ends, self.kernel, self.kernel)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x (B, in) or (B, in, H, W), weight of `weight_shape`, bias (out,), or (B, out) for a linear layer."""
        if self.layout == "linear":
            if bias is not None and bias.dim() == 2:
                return torch.addmm(bias, x, weight.t())
            return F.linear(x, weight, bias)
        if self.layout == "conv":
            return F.conv2d(x, weight, bias, stride=self.stride, padding=self.padding)
        if x.dim() == 2:
            y = from_one_pixel(x, weight)
            return y if bias is None else y.add_(bias[:, None, None])
        if (self.kernel, self.stride, self.padding) == (4, 2, 1):
            return doubled(x, weight, bias)
        return F.conv_transpose2d(x, weight, bias, stride=self.stride, padding=self.padding)


@dataclass(frozen=True)
class Edge:
    """One plastic layer."""

    source: int
    target: int
    operation: Operation
    raw: bool = False
    """Reads the sum itself: a shortcut."""
    doubles: bool = False
    """Each pixel becomes four before the convolution."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not self.doubles:
            return self.operation(x, weight, bias)
        assert self.operation.layout == "conv"
        if self.operation.kernel == 1:  # the same either way round, and a quarter of the work this way
            return F.interpolate(self.operation(x, weight, bias), scale_factor=2, mode="nearest")
        # the same sums as on the doubled image, with 4 products instead of 9 a pixel
        kernel = over_square(weight).flip(2, 3).transpose(0, 1)
        kernel = kernel.contiguous(memory_format=torch.channels_last)
        return F.conv_transpose2d(x, kernel, bias, stride=2, padding=1)


def over_square(weight: Tensor) -> Tensor:
    """A kernel added up over the four places of a 2x2 square, (out, in, 3, 3) -> (out, in, 4, 4).

    A 3x3 convolution next to a doubling or a halving is one 4x4 convolution with this kernel and stride 2.
    """
    wide = F.pad(weight, (1, 1, 1, 1))
    rows = wide[:, :, 1:] + wide[:, :, :-1]
    return rows[:, :, :, 1:] + rows[:, :, :, :-1]


@dataclass(frozen=True)
class Graph:
    """A generator's layers in the order in which they compute, and its head."""

    name: str
    """Of its architecture."""
    image_size: int
    """Side of the images that it draws, in pixels; 0 where it draws vectors."""
    edges: tuple[Edge, ...]
    head: Operation
    multiples: tuple[int, ...]
    """Units of each node at the start, as multiples of the width."""

    @property
    def draws_vectors(self) -> bool:
        """Whether its outputs are vectors: numbers without bounds, and with an offset for every class."""
        return self.image_size == 0

    def rectify(self, node: int, x: Tensor) -> Tensor:
        """What a node sends, of what its norm gives: a ReLU; but the last node of vectors sends both signs.

        Halved numbers add up to lopsided vectors, where those of a class lie around a point. Of images a tanh bends
        them anyway.
        """
        return F.relu(x) if self.rectifies(node) else x

    def rectifies(self, node: int) -> bool:
        """Whether a node sends nothing below 0."""
        return not (self.draws_vectors and node == self.nodes)

    def example_shape(self, channels: int) -> Shape:
        """Of what it draws: images of so many channels, or vectors of so many numbers."""
        return (channels,) if self.draws_vectors else (channels, self.image_size, self.image_size)

    @property
    def nodes(self) -> int:
        """Without the noise."""
        return len(self.multiples)

    @cached_property
    def incoming(self) -> tuple[tuple[int, ...], ...]:
        """By node, the noise first: numbers of the edges that lead to it."""
        found = [[n for n, edge in enumerate(self.edges) if edge.target == node] for node in range(self.nodes + 1)]
        return tuple(map(tuple, found))

    @cached_property
    def outgoing(self) -> tuple[tuple[int, ...], ...]:
        """By node, the noise first: numbers of the edges that read it."""
        found = [[n for n, edge in enumerate(self.edges) if edge.source == node] for node in range(self.nodes + 1)]
        return tuple(map(tuple, found))

    @cached_property
    def read_for_the_last_time(self) -> tuple[tuple[int, ...], ...]:
        """By node: which nodes nobody reads any more once it is computed, so that their memory can be let go."""
        last = [max((self.edges[n].target for n in self.outgoing[node]), default=-1) for node in range(self.nodes + 1)]
        return tuple(tuple(n for n, read in enumerate(last) if read == node) for node in range(self.nodes + 1))

    @cached_property
    def sides(self) -> tuple[int, ...]:
        """Of the images of each node, in pixels; the noise is one."""
        sides = [1]
        for node in range(1, self.nodes + 1):
            edge = self.edges[self.incoming[node][0]]
            grown = edge.operation.kernel if edge.source == 0 else sides[edge.source] * edge.operation.stride
            sides.append(2 * grown if edge.doubles else grown)
        return tuple(sides)

    def largest_node(self, units: Sequence[int]) -> int:
        """Numbers per image in the largest of the nodes, whose `units` are given but for the noise's."""
        return max(n * side**2 for n, side in zip(units, self.sides[1:], strict=True))

    def is_sum(self, node: int) -> bool:
        """Whether the node is more than the output of one layer on its way through a norm."""
        return len(self.incoming[node]) > 1 or any(self.edges[number].raw for number in self.outgoing[node])

    def mask_shape(self, number: int, units: Sequence[int], variant: Variant) -> tuple[int, ...]:
        """Of an edge's mask; `units` by node, the noise first."""
        edge = self.edges[number]
        if variant == "units":
            return (units[edge.target],)
        return edge.operation.weight_shape(units[edge.source], units[edge.target])


def run_graph(
    graph: Graph,
    z: Tensor,
    weights: Sequence[Tensor],
    activate: Callable[[int, Tensor], Tensor],
    head: tuple[Tensor, Tensor],
    *,
    biases: Sequence[Tensor | None] | None = None,
    mask_edge: Callable[[int, Tensor], Tensor] | None = None,
    observe: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """z (B, latent_dim), one weight an edge, weight and bias of the head -> images (B, C, H, W) in [-1, 1].

    A graph that draws vectors gives (B, D), without bounds.

    The one forward pass of every generator: masked in training, cut out and folded for replay, told the class.
    `activate(node, sum)` normalises and rectifies; `mask_edge(number, output)` comes before the sum; `observe` is shown
    the sum of each node in turn. An edge whose weight is empty is left out, and so is a node that no edge leads to.
    """
    raw, active = [z], [z]
    for node in range(1, graph.nodes + 1):
        total: Tensor | None = None
        for number in graph.incoming[node]:
            if not weights[number].numel():
                continue
            edge = graph.edges[number]
            source = (raw if edge.raw else active)[edge.source]
            part = edge(source, weights[number], None if biases is None else biases[number])
            if mask_edge is not None:
                part = mask_edge(number, part)
            total = part if total is None else total + part
        if total is None:  # a branch without a unit, past which a shortcut leads
            total = x = z.new_empty(1, 0) if graph.draws_vectors else z.new_empty(1, 0, 1, 1)
        else:
            x = activate(node, total)
        if observe is not None:
            observe(total)
        raw.append(total)
        active.append(x)
        for past in graph.read_for_the_last_time[node]:
            raw[past] = active[past] = z
    outputs = graph.head(active[-1], *head)
    return outputs if graph.draws_vectors else torch.tanh(outputs)
