"""The plastic generator: all layers but the last are shared by all tasks and grow.

Everything else belongs to one task (`Private`): the embeddings, the normalisation with its statistics, a pair of affine
terms per class of the task, and the head. The condition is the class *within its task*, through those affine terms;
nothing needs to know how many classes or tasks there will be. How the layers hang together says the wiring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.nets.norm import batch_norm
from engram.plastic.growth import dcgan_init
from engram.plastic.layers import Plastic, PlasticConv2d, PlasticConvTranspose2d, mask_units
from engram.plastic.masks import Layout, Variant, bits
from engram.plastic.wiring import Wiring, plan_growth, reserved_inputs

EPSILON = 1e-5
LAYERS: dict[Layout, type[Plastic]] = {"conv": PlasticConv2d, "conv_transpose": PlasticConvTranspose2d}


class ClassNorm(nn.Module):
    """Batch normalisation over a task's images with affine terms of each of its classes."""

    def __init__(self, units: int, classes: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(classes, units))
        self.shift = nn.Parameter(torch.zeros(classes, units))

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        """x (B, units, H, W), classes (B,) within the task."""
        scale, shift = self.scale, self.shift
        if len(scale) == 1:
            return batch_norm(x, scale[0], shift[0], eps=EPSILON)
        x = batch_norm(x, eps=EPSILON)
        return torch.addcmul(shift[classes][:, :, None, None], x, scale[classes][:, :, None, None])


class Private(nn.Module):
    """What the task in training has of its own, the embeddings aside."""

    def __init__(
        self, wiring: Wiring, units: Sequence[int], classes: int, channels: int, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.classes = classes
        self.norms = nn.ModuleList(ClassNorm(n, classes) for n in units)
        self.head = nn.Parameter(dcgan_init(wiring.head.of(units[-1], channels), generator))
        self.bias = nn.Parameter(torch.zeros(channels))


class PlasticGenerator(nn.Module):
    """The shared plastic layers, and one task's private parts while it is trained."""

    def __init__(
        self,
        wiring: Wiring,
        channels: int,
        *,
        width: int,
        noise: int,
        variant: Variant,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.wiring, self.channels, self.noise, self.variant = wiring, channels, noise, variant
        units = [noise, *(multiple * width for multiple in wiring.multiples)]
        self.layers = nn.ModuleList(
            LAYERS[wire.shape.layout](
                units[wire.reads],
                units[wire.writes],
                kernel=wire.shape.kernel,
                stride=wire.shape.stride,
                padding=wire.shape.padding,
                variant=variant,
                generator=generator,
            )
            for wire in wiring.wires
        )
        self.private: Private | None = None

    @property
    def plastic(self) -> list[Plastic]:
        return [layer for layer in self.layers if isinstance(layer, Plastic)]

    @property
    def units(self) -> list[int]:
        """Of each level but the noise."""
        sizes = [layer.size().units for layer in self.plastic]
        return [sizes[self.wiring.into(level)[0]] for level in range(1, self.wiring.levels + 1)]

    def begin(self, classes: int, *, generator: torch.Generator) -> None:
        """Private parts for a new task."""
        device = self.plastic[0].weight.device
        self.private = Private(self.wiring, self.units, classes, self.channels, generator=generator).to(device)

    def forward(
        self,
        z: Tensor,
        classes: Tensor,
        masks: Sequence[Tensor] | None = None,
        *,
        see: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """z (B, noise), classes (B,) within the task, one mask a layer -> images (B, C, 32, 32) in [-1, 1].

        Without masks the weights are taken as they are, and a level may have no units at all. `see` is shown what each
        norm is given, level by level.
        """
        assert self.private is not None
        wiring = self.wiring
        raw, active = [z], [z]
        for level, norm in enumerate(self.private.norms, start=1):
            into, summed = wiring.into(level), wiring.summed(level)
            total: Tensor | None = None
            for number in into:
                wire, layer = wiring.wires[number], self.plastic[number]
                if not layer.weight.numel():
                    continue
                weight = layer.weight if masks is None else layer.opened(masks[number])
                part = wire((raw if wire.raw else active)[wire.reads], weight)
                if summed and masks is not None:  # somebody reads it as it is
                    part = layer.mask_output(part, masks[number])
                total = part if total is None else total + part
            if total is None:  # a branch without a voice, past which a shortcut leads
                total = x = z.new_empty(1, 0, 1, 1)
            else:
                x = F.relu(norm(total, classes))
            if see is not None:
                see(total)
            if masks is not None:
                x = self._close(x, [masks[number] for number in into])
            raw.append(total)
            active.append(x)
            for past in wiring.spent[level]:
                raw[past] = active[past] = z
        return torch.tanh(wiring.head(active[-1], self.private.head, self.private.bias))

    def _close(self, x: Tensor, masks: Sequence[Tensor]) -> Tensor:
        """DGMa: a unit that no wire opens sends exactly 0 onwards, whatever shift its normalisation has."""
        if self.variant == "weights":
            return x
        closed = 1 - masks[0]
        for mask in masks[1:]:
            closed = closed * (1 - mask)
        return mask_units(x, masks[0] if len(masks) == 1 else 1 - closed)

    def soft_masks(self, s: float) -> list[Tensor]:
        return [layer.soft_mask(s) for layer in self.plastic]

    def binary_masks(self) -> list[Tensor]:
        return [layer.binary_mask() for layer in self.plastic]

    def free(self) -> list[Tensor]:
        """By layer, what may still learn; spreads over the weight."""
        reserved = [layer.reserved for layer in self.plastic]
        units = self.variant == "units"
        return [
            layer.gate(reserved_inputs(self.wiring, number, reserved) if units else None)
            for number, layer in enumerate(self.plastic)
        ]

    def gates(self) -> list[Tensor]:
        """The same as bits, found once a task."""
        return [bits(free, layer.weight.dtype) for free, layer in zip(self.free(), self.plastic, strict=True)]

    def gate_gradients(self, gates: Sequence[Tensor]) -> None:
        """After `backward`: no gradient for what earlier tasks rely on (Eq. 5)."""
        for layer, gate in zip(self.plastic, gates, strict=True):
            layer.gate_gradients(gate)

    def grow_(self, *, generator: torch.Generator) -> None:
        """Free capacity as at the start, fresh embeddings. Old engrams compute with the leading blocks, unchanged."""
        plan = plan_growth(self.wiring, [layer.size() for layer in self.plastic], self.variant)
        for layer, growth in zip(self.plastic, plan, strict=True):
            layer.grow_(growth.new_inputs, growth.new_units, generator=generator)
