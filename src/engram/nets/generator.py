"""The paper's generator for 32x32 images, plastic in every layer but the last.

    noise (B, Z) ─ 4x4 ─> 4n x 4 x 4 ─ 4x4/2 ─> 2n x 8 x 8 ─ 4x4/2 ─> n x 16 x 16 ─ head 4x4/2, tanh ─> C x 32 x 32
                  plastic, norm, ReLU   plastic, norm, ReLU  plastic, norm, ReLU   one task's own

The plastic weights are shared by all tasks and grow. Everything else belongs to one task (`Private`): the embeddings,
the normalisation with its statistics, a pair of affine terms per class of the task, and the head. The condition is the
class *within its task*, through those affine terms; nothing needs to know how many classes or tasks there will be.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.plastic.growth import dcgan_init, plan_growth
from engram.plastic.layers import Plastic, PlasticConvTranspose2d
from engram.plastic.masks import Variant

EPSILON = 1e-5


class ClassNorm(nn.Module):
    """Batch normalisation over a task's images with affine terms of each of its classes."""

    def __init__(self, units: int, classes: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(classes, units))
        self.shift = nn.Parameter(torch.zeros(classes, units))

    def forward(self, x: Tensor, classes: Tensor, units: Tensor | None = None) -> Tensor:
        """x (B, units, H, W), classes (B,) within the task; `units`: those that x holds, if not all."""
        scale: Tensor = self.scale
        shift: Tensor = self.shift
        if units is not None:
            scale, shift = scale.index_select(1, units), shift.index_select(1, units)
        if len(scale) == 1:
            return F.batch_norm(x, None, None, scale[0], shift[0], training=True, eps=EPSILON)
        x = F.batch_norm(x, None, None, training=True, eps=EPSILON)
        return torch.addcmul(shift[classes][:, :, None, None], x, scale[classes][:, :, None, None])


class Private(nn.Module):
    """What the task in training has of its own, the embeddings aside."""

    def __init__(self, units: Sequence[int], classes: int, channels: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.classes = classes
        self.norms = nn.ModuleList(ClassNorm(n, classes) for n in units)
        self.head = nn.Parameter(dcgan_init((units[-1], channels, 4, 4), generator))
        self.bias = nn.Parameter(torch.zeros(channels))


class PlasticGenerator(nn.Module):
    """The shared plastic layers, and one task's private parts while it is trained."""

    def __init__(self, channels: int, *, width: int, noise: int, variant: Variant, generator: torch.Generator) -> None:
        super().__init__()
        self.channels, self.noise, self.variant = channels, noise, variant
        units = [noise, 4 * width, 2 * width, width]
        self.layers = nn.ModuleList(
            PlasticConvTranspose2d(
                units[i],
                units[i + 1],
                kernel=4,
                stride=1 if i == 0 else 2,
                padding=0 if i == 0 else 1,
                variant=variant,
                generator=generator,
            )
            for i in range(3)
        )
        self.private: Private | None = None

    @property
    def plastic(self) -> list[Plastic]:
        return [layer for layer in self.layers if isinstance(layer, Plastic)]

    @property
    def units(self) -> list[int]:
        return [layer.size().units for layer in self.plastic]

    def begin(self, classes: int, *, generator: torch.Generator) -> None:
        """Private parts for a new task."""
        device = self.plastic[0].weight.device
        self.private = Private(self.units, classes, self.channels, generator=generator).to(device)

    def forward(
        self,
        z: Tensor,
        classes: Tensor,
        masks: Sequence[Tensor],
        *,
        alive: Sequence[Tensor] | None = None,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """z (B, noise), classes (B,) within the task, one mask a layer -> images (B, C, 32, 32) in [-1, 1].

        `alive`, where the masks are binary: the units that have a voice. The others are not computed at all: they would
        be multiplied by 0, or send a constant through closed weights. `seen` collects what each norm is given.
        """
        assert self.private is not None
        x: Tensor = z[:, :, None, None]
        head: Tensor = self.private.head
        sources: Tensor | None = None
        for number, (layer, norm, mask) in enumerate(zip(self.plastic, self.private.norms, masks, strict=True)):
            units: Tensor | None = None
            if alive is None:
                x = layer(x, mask)
            else:
                assert isinstance(layer, PlasticConvTranspose2d)
                units = alive[number].nonzero().squeeze(1)
                x = layer.among(x, mask, sources, units)
            if seen is not None:
                seen.append(x)
            x = F.relu(norm(x, classes, units))
            if alive is None:
                x = layer.mask_output(x, mask)
            sources = units
        if sources is not None:
            head = head.index_select(0, sources)
        return torch.tanh(F.conv_transpose2d(x, head, self.private.bias, stride=2, padding=1))

    def soft_masks(self, s: float) -> list[Tensor]:
        return [layer.soft_mask(s) for layer in self.plastic]

    def binary_masks(self) -> list[Tensor]:
        return [layer.binary_mask() for layer in self.plastic]

    def grow_(self, *, generator: torch.Generator) -> None:
        """Free capacity as at the start, fresh embeddings. Old engrams compute with the leading blocks, unchanged."""
        for layer, plan in zip(self.plastic, plan_growth([p.size() for p in self.plastic], self.variant), strict=True):
            layer.grow_(plan.new_inputs, plan.new_units, generator=generator)
