"""Named streams of random numbers out of one seed.

Every consumer of randomness asks for a generator by name, `generator(seed, "batches", task, epoch)`,
and gets the same numbers for the same name, whatever else drew before. A run that resumes in the middle
asks by the same names again, so no generator has to be saved, and one method's draws never alter another's.
"""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed that depends on `seed` and on every name, and on their order.

    >>> derive(0, "batches", 1) == derive(0, "batches", 1)
    True
    >>> derive(0, "batches", 1) == derive(0, "batches", 2)
    False
    """
    text = "\x1f".join([str(seed), *map(repr, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of its own for this name."""
    return torch.Generator(device=device).manual_seed(derive(seed, *names))
