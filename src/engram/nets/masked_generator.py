"""DGM's generator: all layers but the last are plastic, shared by all tasks, and grow.

Everything else belongs to one task (`TaskParams`): the normalisation with its statistics, a pair of affine terms per
class of the task, and the head. The condition is the class *within its task*, through those affine terms; nothing needs
to know how many classes or tasks there will be. How the layers hang together says the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.kinds import spread
from engram.masking.growth import Rule, dcgan_init
from engram.masking.masks import Variant, bits
from engram.nets.grain import with_grain
from engram.nets.graph import Graph, run_graph
from engram.nets.growth import plan_growth
from engram.nets.plastic_layers import PlasticLayer, mask_units
from engram.nets.reachability import reserved_inputs
from engram.ops.batch_norm import batch_norm

EPSILON = 1e-5


class ClassNorm(nn.Module):
    """Batch normalisation over a task's images with affine terms of each of its classes."""

    def __init__(self, units: int, classes: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(classes, units))
        self.shift = nn.Parameter(torch.zeros(classes, units))

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        """x (B, units) or (B, units, H, W), classes (B,) within the task."""
        scale, shift = self.scale, self.shift
        if len(scale) == 1:
            return batch_norm(x, scale[0], shift[0], eps=EPSILON)
        x = batch_norm(x, eps=EPSILON)
        return torch.addcmul(spread(shift[classes], x), x, spread(scale[classes], x))


MEASURED = 2048
"""Noise vectors by which it is measured what units send."""


def decorrelation(sent: Tensor) -> Tensor:
    """(units, units): what makes numbers (N, units) uncorrelated, with deviation 1, and moves them least."""
    squares, directions = torch.linalg.eigh(torch.cov(sent.T, correction=0).reshape(sent.shape[1], -1))
    scale = squares.clamp(min=1e-3 * float(squares.max()) + 1e-12).rsqrt()
    symmetric: Tensor = (directions * scale) @ directions.T
    return symmetric


def principal(vectors: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The directions (D, count) in which vectors (N, D) vary most around 0, and their deviations (count,).

    Where there are fewer directions than wanted, the rest are zeros.
    """
    if len(vectors) > vectors.shape[1]:
        squares, directions = torch.linalg.eigh(vectors.T @ vectors / len(vectors))
        deviations, directions = squares.clamp(min=0).sqrt().flip(0), directions.flip(1)
    else:
        _, deviations, rows = torch.linalg.svd(vectors, full_matrices=False)
        deviations, directions = deviations / len(vectors) ** 0.5, rows.T
    more = max(0, count - len(deviations))
    return F.pad(directions[:, :count], (0, more)), F.pad(deviations[:count], (0, more))


class TaskParams(nn.Module):
    """What the task in training has of its own, the embeddings aside."""

    def __init__(
        self, graph: Graph, units: Sequence[int], classes: int, channels: int, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.classes = classes
        self.norms = nn.ModuleList(ClassNorm(n, classes) for n in units)
        head = dcgan_init(graph.head.weight_shape(units[-1], channels), generator)
        # without a tanh behind it the head begins at the scale of what it is to draw
        self.head = nn.Parameter(head * (50 / units[-1] ** 0.5) if graph.draws_vectors else head)
        # vectors of a class lie around a point of its own, so each class has an offset
        self.bias = nn.Parameter(torch.zeros(classes, channels) if graph.draws_vectors else torch.zeros(channels))
        # and a deviation for what the head's directions leave out of them
        self.rest = nn.Parameter(torch.zeros(classes, channels)) if graph.draws_vectors else None


class MaskedGenerator(nn.Module):
    """The shared plastic layers, and one task's own parameters while it is trained."""

    def __init__(
        self,
        graph: Graph,
        channels: int,
        *,
        width: int,
        latent_dim: int,
        variant: Variant,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.graph, self.channels, self.latent_dim, self.variant = graph, channels, latent_dim, variant
        units = [latent_dim, *(multiple * width for multiple in graph.multiples)]
        self.layers = nn.ModuleList(
            PlasticLayer(edge.operation, units[edge.source], units[edge.target], variant=variant, generator=generator)
            for edge in graph.edges
        )
        self.task_params: TaskParams | None = None

    @property
    def plastic(self) -> list[PlasticLayer]:
        """The shared layers, one an edge of the graph."""
        return [layer for layer in self.layers if isinstance(layer, PlasticLayer)]

    @torch.no_grad()
    def start_at(self, vectors: Tensor, classes: Tensor, *, generator: torch.Generator) -> None:
        """Begin the task's own parameters where its vectors lie: (N, D), classes (N,) within the task.

        A unit for each of the directions in which they vary most within their classes, as far as each class does, and
        an offset to each class's mean. What the units send is measured on noise, with the weights as they are. How far
        each number varies beside these directions is left to a noise of its own (grain.py).
        """
        own = self.task_params
        assert own is not None
        assert own.rest is not None
        norm, sums = own.norms[-1], list[Tensor]()
        assert isinstance(norm, ClassNorm)
        z = torch.randn(MEASURED, self.latent_dim, generator=generator).to(vectors)
        self(z, torch.arange(MEASURED, device=z.device) % own.classes, observe=sums.append)
        sent = batch_norm(sums[-1], eps=EPSILON)  # (B, units), before any class's scale
        means = torch.stack([vectors[classes == number].mean(0) for number in range(own.classes)])
        around = vectors - means[classes]
        directions, deviations = principal(around, sent.shape[1])  # (D, units), (units,)
        along = torch.stack(
            [(around[classes == number] @ directions).square().mean(0) for number in range(own.classes)]
        )
        norm.scale.copy_(along.sqrt() / deviations.clamp(min=1e-12))
        norm.shift.zero_()
        own.head.copy_((directions * deviations) @ decorrelation(sent))
        own.bias.copy_(means - (sent.mean(0) * norm.scale) @ own.head.T)
        beside = around - (around @ directions) @ directions.T
        for number in range(own.classes):
            own.rest[number] = beside[classes == number].square().mean(0).sqrt()

    @property
    def units(self) -> list[int]:
        """Of each node but the noise."""
        sizes = [layer.size().units for layer in self.plastic]
        return [sizes[self.graph.incoming[node][0]] for node in range(1, self.graph.nodes + 1)]

    def begin(self, classes: int, *, generator: torch.Generator) -> None:
        """Parameters of a new task's own."""
        device = self.plastic[0].weight.device
        self.task_params = TaskParams(self.graph, self.units, classes, self.channels, generator=generator).to(device)

    def forward(
        self,
        z: Tensor,
        classes: Tensor,
        masks: Sequence[Tensor] | None = None,
        *,
        observe: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """z (B, latent_dim), classes (B,) within the task, one mask a layer -> images (B, C, H, W) in [-1, 1].

        Without masks the weights are taken as they are, and a node may have no units at all. `observe` is shown what
        each norm is given, node by node.
        """
        own, layers = self.task_params, self.plastic
        assert own is not None

        def activate(node: int, total: Tensor) -> Tensor:
            x = self.graph.rectify(node, own.norms[node - 1](total, classes))
            return x if masks is None else self._close(x, [masks[number] for number in self.graph.incoming[node]])

        def mask_edge(number: int, part: Tensor) -> Tensor:
            # only where somebody reads the sum as it is
            is_sum = self.graph.is_sum(self.graph.edges[number].target)
            return layers[number].mask_output(part, masks[number]) if is_sum and masks is not None else part

        weights: list[Tensor] = [layer.weight for layer in layers]
        if masks is not None:
            weights = [layer.opened(mask) for layer, mask in zip(layers, masks, strict=True)]
        bias = own.bias[classes] if self.graph.draws_vectors else own.bias
        drawn = run_graph(self.graph, z, weights, activate, (own.head, bias), mask_edge=mask_edge, observe=observe)
        return with_grain(drawn, z, None if own.rest is None else own.rest[classes])

    def _close(self, x: Tensor, masks: Sequence[Tensor]) -> Tensor:
        """DGMa: a unit that no edge opens sends exactly 0 onwards, whatever shift its normalisation has."""
        if self.variant == "weights":
            return x
        closed = 1 - masks[0]
        for mask in masks[1:]:
            closed = closed * (1 - mask)
        return mask_units(x, masks[0] if len(masks) == 1 else 1 - closed)

    def soft_masks(self, s: float) -> list[Tensor]:
        """The masks to train with, at scale s (Eq. 2)."""
        return [layer.soft_mask(s) for layer in self.plastic]

    def binary_masks(self) -> list[Tensor]:
        """The masks that would remain if the task ended now."""
        return [layer.binary_mask() for layer in self.plastic]

    def free(self) -> list[Tensor]:
        """By layer, what may still learn; spreads over the weight."""
        reserved = [layer.reserved for layer in self.plastic]
        units = self.variant == "units"
        return [
            layer.gate(reserved_inputs(self.graph, number, reserved) if units else None)
            for number, layer in enumerate(self.plastic)
        ]

    def gates(self) -> list[Tensor]:
        """The same as bits, found once a task."""
        return [bits(free, layer.weight.dtype) for free, layer in zip(self.free(), self.plastic, strict=True)]

    def gate_gradients(self, gates: Sequence[Tensor]) -> None:
        """After `backward`: no gradient for what earlier tasks rely on (Eq. 5)."""
        for layer, gate in zip(self.plastic, gates, strict=True):
            layer.gate_gradients(gate)

    def release_(self, reserved: Sequence[Tensor], kept: Sequence[Tensor], *, generator: torch.Generator) -> None:
        """By layer, only this stays reserved; all weights but those `kept` are drawn afresh, embeddings start anew."""
        for layer, mask, weights in zip(self.plastic, reserved, kept, strict=True):
            layer.release_(mask, weights, generator=generator)

    def grow_(self, newly_reserved: Sequence[int], *, rule: Rule = "refill", generator: torch.Generator) -> None:
        """New units by the rule, fresh embeddings. Old engrams compute with the leading blocks, unchanged.

        `newly_reserved`: by layer, mask entries that the task reserved and that were free before it.
        """
        sizes = [layer.size(new) for layer, new in zip(self.plastic, newly_reserved, strict=True)]
        plan = plan_growth(self.graph, sizes, self.variant, rule)
        for layer, growth in zip(self.plastic, plan, strict=True):
            layer.grow_(growth.new_inputs, growth.new_units, generator=generator)
