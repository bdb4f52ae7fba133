"""The baselines' generator: a graph like DGM's, of a fixed size, told which class to draw.

The condition is a scale and a shift per class and unit, so that it can gain classes without knowing how many will come.
Statistics of the normalisation are those of the batch while it learns; `settle` estimates fixed ones from noise for
sampling, for a group of classes that were learned together.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from engram.kinds import spread
from engram.masking.growth import dcgan_init
from engram.nets.graph import Graph, run_graph
from engram.nets.masked_generator import EPSILON
from engram.ops.batch_norm import Moments, batch_norm


class ConditionalGenerator(nn.Module):
    """Everything but the class terms has a fixed size."""

    group_of: Tensor
    """(classes,) whose statistics each class is drawn with"""
    mean0: Tensor
    """(groups, units) of the first node's normalisation; `mean1`, `deviation0` and so on alike"""

    def __init__(self, graph: Graph, channels: int, *, width: int, latent_dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.graph, self.latent_dim = graph, latent_dim
        self.units = [multiple * width for multiple in graph.multiples]
        ends = [latent_dim, *self.units]
        shapes = [edge.operation.weight_shape(ends[edge.source], ends[edge.target]) for edge in graph.edges]
        shapes.append(graph.head.weight_shape(ends[-1], channels))
        self.weights = nn.ParameterList(dcgan_init(shape, generator) for shape in shapes)
        self.bias = nn.Parameter(torch.zeros(channels))
        self.scales = nn.ParameterList(torch.ones(0, n) for n in self.units)
        self.shifts = nn.ParameterList(torch.zeros(0, n) for n in self.units)
        self.register_buffer("group_of", torch.empty(0, dtype=torch.int64))
        for number, n in enumerate(self.units):
            self.register_buffer(f"mean{number}", torch.zeros(0, n))
            self.register_buffer(f"deviation{number}", torch.ones(0, n))

    @property
    def classes(self) -> int:
        """How many it can draw."""
        return len(self.group_of)

    @property
    def groups(self) -> int:
        """How many sets of statistics it has."""
        return len(self.mean0)

    def grow(self, new: int, *, group: int) -> None:
        """Room for new classes, in a group that exists or the next one. The parameters are new objects."""
        device = self.group_of.device
        for terms, fill in ((self.scales, 1.0), (self.shifts, 0.0)):
            for number, n in enumerate(self.units):
                rows = torch.full((new, n), fill, device=device)
                terms[number] = nn.Parameter(torch.cat([terms[number].detach(), rows]))
        self.group_of = torch.cat([self.group_of, torch.full((new,), group, device=device)])
        if group == self.groups:
            for number, n in enumerate(self.units):
                for name, fill in (("mean", 0.0), ("deviation", 1.0)):
                    old = getattr(self, f"{name}{number}")
                    setattr(self, f"{name}{number}", torch.cat([old, torch.full((1, n), fill, device=device)]))

    def forward(
        self, z: Tensor, classes: Tensor, *, settled: bool = False, observe: Callable[[Tensor], None] | None = None
    ) -> Tensor:
        """z (B, latent_dim), classes (B,) -> images (B, C, H, W) in [-1, 1]. `observe` sees what each norm is given."""

        def activate(node: int, x: Tensor) -> Tensor:
            scale, shift = self.scales[node - 1][classes], self.shifts[node - 1][classes]
            if settled:
                group = self.group_of[classes]
                scale = scale / getattr(self, f"deviation{node - 1}")[group]
                shift = shift - getattr(self, f"mean{node - 1}")[group] * scale
            else:
                x = batch_norm(x, eps=EPSILON)
            return self.graph.rectify(node, torch.addcmul(spread(shift, x), x, spread(scale, x)))

        *weights, head = self.weights
        return run_graph(self.graph, z, weights, activate, (head, self.bias), observe=observe)

    @torch.no_grad()
    def settle(
        self, mix: Tensor, *, group: int, batches: int, batch_size: int = 256, generator: torch.Generator
    ) -> None:
        """Estimate a group's statistics from noise. `mix`: classes as they came in training, to be drawn from."""
        device = self.group_of.device
        moments = Moments(self.units)
        for _ in range(batches):
            z = torch.randn(batch_size, self.latent_dim, generator=generator).to(device)
            classes = mix[torch.randint(len(mix), (batch_size,), generator=generator)].to(device)
            self(z, classes, observe=moments.see)
        for number, (mean, deviation) in enumerate(moments.settled(EPSILON)):
            getattr(self, f"mean{number}")[group] = mean.float().to(device)
            getattr(self, f"deviation{number}")[group] = deviation.float().to(device)
