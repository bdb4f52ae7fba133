"""The two kinds of examples. What differs between images and vectors stands here, and is asked for here.

               shape       stored as          a network sees
    images     (C, H, W)   uint8, 0 … 255     float32, -1 … 1
    vectors    (D,)        float32            float32, scaled by what the first task was like (methods/scaling.py)

Names of fields say "images" for both: what holds for an image holds for a vector, unless a function here is asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Shape = tuple[int, ...]
"""Of an example: channels, height, width of an image; how many numbers a vector has."""


def is_vector(shape: Sequence[int]) -> bool:
    """Whether an example of this shape is a vector.

    >>> is_vector((384,)), is_vector((3, 32, 32))
    (True, False)
    """
    return len(shape) == 1


def noun(shape: Sequence[int], *, many: bool = True) -> str:
    """What people call examples of this shape.

    >>> noun((384,)), noun((3, 32, 32), many=False)
    ('vectors', 'image')
    """
    return ("vector" if is_vector(shape) else "image") + ("s" if many else "")


def described(shape: Sequence[int]) -> str:
    """Examples of this shape, in words.

    >>> described((384,)), described((3, 32, 32))
    ('vectors of 384', 'images of 3x32x32')
    """
    return f"{noun(shape)} of {'x'.join(map(str, shape))}"


def blank(count: int, shape: Sequence[int]) -> Tensor:
    """Room for so many examples as they are stored."""
    return torch.empty(count, *shape, dtype=torch.float32 if is_vector(shape) else torch.uint8)


def to_network(examples: Tensor) -> Tensor:
    """As they are stored -> as a network sees them. One batch at a time: images never all exist as floats."""
    if examples.dim() == 2:
        return examples.to(torch.float32)
    return examples.to(torch.float32, memory_format=torch.channels_last).div_(127.5).sub_(1.0)


def from_network(outputs: Tensor) -> Tensor:
    """As a generator draws them -> as they are stored: [-1, 1] becomes grey levels. Images are overwritten."""
    if outputs.dim() == 2:
        return outputs.to(torch.float32)
    return outputs.add_(1).mul_(127.5).round_().to(torch.uint8)


def levels_apart(a: Tensor, b: Tensor) -> int:
    """The largest difference between stored examples: in grey levels, of which a scaled 1 has 127.5; rounded up.

    >>> levels_apart(torch.tensor([[0.5, 1.0]]), torch.tensor([[0.5, 1.001]]))
    1
    """
    if a.dtype == torch.uint8:
        return int((a.int() - b.int()).abs().max())
    return math.ceil(float((a.double() - b.double()).abs().max()) * 127.5)


def level(shape: Sequence[int]) -> str:
    """What `levels_apart` counts, in words; of vectors a standard deviation of the first task has 127.5 of them.

    >>> level((384,)), level((3, 32, 32))
    ('level', 'grey level')
    """
    return "level" if is_vector(shape) else "grey level"


def spread(values: Tensor, x: Tensor) -> Tensor:
    """(…, units) so that it spreads over what units say of each example: x (B, units) or (B, units, H, W)."""
    return values.reshape(*values.shape, *[1] * (x.dim() - 2))


def to_search(examples: Tensor) -> Tensor:
    """As they are stored -> (N, n) floats by which examples are like each other, whatever their kind.

    Images are halved in size first: what shifts by a pixel is not another shape.
    """
    if examples.dim() == 2:
        return examples.float()
    return torch.nn.functional.avg_pool2d(examples.float() / 255, 2).flatten(1)
