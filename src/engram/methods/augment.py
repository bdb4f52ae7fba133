"""Random changes to training images: what must not tell a class is made to vary.

affine    small affine maps
photo     the same, and half of the images mirrored
strong    wider maps, contrast, brightness and noise
colour    strong, with blur, greying and light swapped with dark: where shape tells the class and colour does not
texture   strong, with blur and half of the images mirrored: photographs, drawn with a texture of their generator's

Of vectors the last three add noise, of the strength that `disturb` has for images, and the first two nothing.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F


def changed(x: torch.Tensor, kind: str, *, generator: torch.Generator) -> torch.Tensor:
    """A batch (B, C, H, W) in [-1, 1], or scaled vectors (B, D), after the changes of one kind; each has its own."""
    strong = kind in ("strong", "colour", "texture")
    if x.dim() == 2:
        return with_noise(x, generator=generator) if strong else x
    x = augment(x, mirror=kind in ("photo", "texture"), reach=1.5 if strong else 1.0, generator=generator)
    if kind == "colour":
        x = recolour(x, generator=generator)
    elif kind == "texture":
        x = blur(x, torch.rand(len(x), 1, 1, 1, generator=generator).to(x))
    return disturb(x, generator=generator) if strong else x


def augment(x: torch.Tensor, *, mirror: bool, reach: float = 1.0, generator: torch.Generator) -> torch.Tensor:
    """A small random affine map for every image, and for half of them a mirrored one where `mirror` is set.

    (B, C, H, W) -> the same shape. Standard deviations, times `reach`: 0.06 in scale, 0.08 in shear, 0.05 in shift (of
    half a side).
    """
    spread = reach * torch.tensor([[0.06, 0.08, 0.05], [0.08, 0.06, 0.05]])
    maps = torch.eye(2, 3) + spread * torch.randn(len(x), 2, 3, generator=generator)
    if mirror:
        maps[:, 0] *= torch.randint(0, 2, (len(x), 1), generator=generator) * 2 - 1
    grid = F.affine_grid(maps.to(x), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def disturb(x: torch.Tensor, *, generator: torch.Generator) -> torch.Tensor:
    """Random contrast, brightness and noise for every image, (B, C, H, W) -> the same shape, within [-1, 1].

    Contrast has a standard deviation of 0.3 (at least a fifth is left), brightness one of 0.15; the noise's own
    standard deviation is uniform between 0 and 0.15.
    """
    tone = torch.randn(len(x), 2, 1, 1, 1, generator=generator)
    strength = torch.rand(len(x), 1, 1, 1, generator=generator) * 0.15
    noise = torch.randn(x.shape, generator=generator) * strength
    contrast = (1 + 0.3 * tone[:, 0]).clamp(min=0.2)
    return (x * contrast.to(x) + (0.15 * tone[:, 1]).to(x) + noise.to(x)).clamp_(-1, 1)


def with_noise(x: torch.Tensor, *, generator: torch.Generator) -> torch.Tensor:
    """Vectors (B, D) with noise, whose standard deviation is uniform between 0 and 0.15 for each of them."""
    strength = torch.rand(len(x), 1, generator=generator) * 0.15
    return x + (torch.randn(x.shape, generator=generator) * strength).to(x)


def recolour(x: torch.Tensor, *, generator: torch.Generator) -> torch.Tensor:
    """Random blur, part of the way to grey, and for half of the images light and dark swapped.

    (B, C, H, W) in [-1, 1] -> the same shape. For images whose shape tells the class and whose colours do not: what is
    left of a generator's own palette and texture is then the same for all classes.
    """
    softness, grey, swap = torch.rand(3, len(x), 1, 1, 1, generator=generator).to(x)
    x = blur(x, softness)
    x = torch.lerp(x, x.mean(1, keepdim=True), grey)
    return torch.where(swap < 0.5, -x, x)


def blur(x: torch.Tensor, softness: torch.Tensor) -> torch.Tensor:
    """x (B, C, H, W), softness (B, 1, 1, 1): from 0, sharp, over 1/2, once through a 3x3 kernel, to 1, twice."""
    kernel = torch.tensor([1.0, 2.0, 1.0]).to(x) / 4
    kernel = torch.outer(kernel, kernel).expand(x.shape[1], 1, 3, 3)
    for share in ((2 * softness).clamp(max=1), (2 * softness - 1).clamp(min=0)):
        soft = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), kernel, groups=x.shape[1])
        x = torch.lerp(x, soft, share)
    return x
