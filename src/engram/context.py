"""What a learner is told before its first task."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import torch

from engram.config import ClassifierSettings, MethodSettings
from engram.kinds import Shape as Shape

S = TypeVar("S", bound=MethodSettings, covariant=True)


@dataclass(frozen=True)
class Context(Generic[S]):
    """All that a learner knows before its first task. Nothing tells it how many tasks or classes are to come.

    >>> from engram import METHODS, Context
    >>> method = METHODS["finetune"]
    >>> Context((1, 32, 32), method.classifier, method.settings, seed=1).device
    device(type='cpu')
    """

    shape: Shape
    """Of an example: (C, H, W) of an image, (D,) of a vector."""
    classifier: ClassifierSettings
    settings: S
    """The method's own groups."""
    seed: int = 0
    device: torch.device = torch.device("cpu")
    precision: Literal["float32", "bfloat16"] = "float32"

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Around a forward pass of training: it is computed in the lower precision, where that is asked for.

        What comes out of the pass is then to be made float32, and losses, penalties, weights, masks and whatever is
        kept or told is computed outside of it.
        """
        if self.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)
