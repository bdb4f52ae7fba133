"""The rivals' generator: wired as DGM's, of a fixed size, told which class to draw.

The condition is a scale and a shift per class and unit, so that it can gain classes without knowing how many will come.
The chain with n = 40 and a noise of 100 has 518,240 weights with ten classes: the paper gives 5.18e5 for MeRGAN.

Statistics of the normalisation: those of the batch while it learns; `settle` estimates fixed ones from noise for
sampling, for a group of classes that were learned together.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.nets.generator import EPSILON
from engram.nets.norm import Moments, batch_norm
from engram.plastic.growth import dcgan_init
from engram.plastic.wiring import Wiring


class ConditionalGenerator(nn.Module):
    """Everything but the class terms has a fixed size."""

    group_of: Tensor
    """(classes,) whose statistics each class is drawn with"""
    mean0: Tensor
    """(groups, units) of the first level's normalisation; `mean1`, `deviation0` and so on alike"""

    def __init__(self, wiring: Wiring, channels: int, *, width: int, noise: int, generator: torch.Generator) -> None:
        super().__init__()
        self.wiring, self.noise = wiring, noise
        self.units = [multiple * width for multiple in wiring.multiples]
        ends = [noise, *self.units]
        shapes = [wire.shape.of(ends[wire.reads], ends[wire.writes]) for wire in wiring.wires]
        shapes.append(wiring.head.of(ends[-1], channels))
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
        return len(self.group_of)

    @property
    def groups(self) -> int:
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
        self, z: Tensor, classes: Tensor, *, settled: bool = False, see: Callable[[Tensor], None] | None = None
    ) -> Tensor:
        """z (B, noise), classes (B,) -> images (B, C, 32, 32) in [-1, 1]. `see` is shown what each norm is given."""
        raw, active = [z], [z]
        for number in range(len(self.units)):
            parts = []
            for wire_number in self.wiring.into(number + 1):
                wire, weight = self.wiring.wires[wire_number], self.weights[wire_number]
                parts.append(wire((raw if wire.raw else active)[wire.reads], weight))
            x = parts[0] if len(parts) == 1 else parts[0] + parts[1]
            raw.append(x)
            if see is not None:
                see(x)
            scale, shift = self.scales[number][classes], self.shifts[number][classes]
            if settled:
                group = self.group_of[classes]
                scale = scale / getattr(self, f"deviation{number}")[group]
                shift = shift - getattr(self, f"mean{number}")[group] * scale
            else:
                x = batch_norm(x, eps=EPSILON)
            active.append(F.relu(torch.addcmul(shift[:, :, None, None], x, scale[:, :, None, None])))
            for past in self.wiring.spent[number + 1]:
                raw[past] = active[past] = z
        return torch.tanh(self.wiring.head(active[-1], self.weights[-1], self.bias))

    @torch.no_grad()
    def settle(
        self, mix: Tensor, *, group: int, batches: int, batch_size: int = 256, generator: torch.Generator
    ) -> None:
        """Estimate a group's statistics from noise. `mix`: classes as they came in training, to be drawn from."""
        device = self.group_of.device
        moments = Moments(self.units)
        for _ in range(batches):
            z = torch.randn(batch_size, self.noise, generator=generator).to(device)
            classes = mix[torch.randint(len(mix), (batch_size,), generator=generator)].to(device)
            self(z, classes, see=moments.see)
        for number, (mean, deviation) in enumerate(moments.settled(EPSILON)):
            getattr(self, f"mean{number}")[group] = mean.float().to(device)
            getattr(self, f"deviation{number}")[group] = deviation.float().to(device)
