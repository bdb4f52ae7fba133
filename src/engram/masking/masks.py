"""Masks: from embedding to soft mask to binary mask, what binary masks close, and how they are stored.

A mask entry is *open* (True) where its task uses the weight or unit, *closed* where it does not. What any
earlier task opened is *reserved*, m^{<t}; everything else is *free*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Variant = Literal["weights", "units"]
"""DGMw masks single weights, DGMa the output units (channels) of a layer."""

Layout = Literal["linear", "conv", "conv_transpose"]
"""How torch lays a weight out: (out, in), (out, in, kh, kw), (in, out, kh, kw)."""

IN_AXIS: dict[Layout, int] = {"linear": 1, "conv": 1, "conv_transpose": 0}
OUT_AXIS: dict[Layout, int] = {"linear": 0, "conv": 0, "conv_transpose": 1}


def soft_mask(e: Tensor, s: float) -> Tensor:
    """The differentiable mask m = sigmoid(s e) of the embedding e; the larger s, the nearer to a step."""
    # Eq. 2
    return torch.sigmoid(s * e)


def binarise(e: Tensor) -> Tensor:
    """The binary mask that a trained embedding stands for: open iff e > 0.

    The paper's rule is m >= 0.5 at s_max, that is e >= 0. The one difference is e == 0, where every embedding
    starts: an entry that no gradient ever moved holds no knowledge of the task. Open, it would reserve
    capacity for nothing, and a weight still at its random initial value would take part in every replay.
    (The sign is tested, not m: for a tiny e < 0 the sigmoid rounds to exactly 0.5.)

    >>> binarise(torch.tensor([-0.2, 0.0, 0.3])).tolist()
    [False, False, True]
    """
    return e.detach() > 0


def random_mask(reserved: Tensor, n_free: int, n_reserved: int, *, generator: torch.Generator) -> Tensor:
    """A mask that opens so many of the free and so many of the reserved entries, at random; all, where there are fewer.

    >>> mask = random_mask(torch.tensor([True, False, False, False]), 2, 1, generator=torch.Generator().manual_seed(0))
    >>> mask[0].item(), mask[1:].sum().item()
    (True, 2)
    """
    flat = reserved.flatten().cpu()
    mask = torch.zeros_like(flat)
    for group, count in ((~flat, n_free), (flat, n_reserved)):
        places = group.nonzero().squeeze(1)
        mask[places[torch.randperm(len(places), generator=generator)[:count]]] = True
    return mask.view(reserved.shape).to(reserved.device)


def accumulate(previous: Tensor, new: Tensor) -> Tensor:
    """m^{<=t} = max(m^t, m^{<t}) of binary masks (Eq. 5, right): what is reserved from now on."""
    assert previous.dtype == new.dtype == torch.bool
    assert previous.shape == new.shape
    return previous | new


def weight_gate(reserved: Tensor) -> Tensor:
    """DGMw: True where a weight may still learn, 1 - m^{<t} (Eq. 5), in the shape of the weight."""
    assert reserved.dtype == torch.bool
    return ~reserved


def unit_gate(reserved_in: Tensor, reserved_out: Tensor, layout: Layout) -> Tensor:
    """DGMa: True where a weight may still learn, 1 - min(m_in^{<t}, m_out^{<t}).

    A weight is closed when both its ends are reserved: an earlier task may read its input and uses its
    output. With one free end it may learn: old tasks close that end. Inputs that are no units, such as the
    noise, are never closed by any task and count as reserved.

    reserved_in (n_in,), reserved_out (n_out,) -> broadcasts over a weight of this layout: (n_out, n_in),
    (n_out, n_in, 1, 1) or (n_in, n_out, 1, 1).

    >>> unit_gate(torch.tensor([True, False]), torch.tensor([True, False, False]), "linear").tolist()
    [[False, True], [True, True], [True, True]]
    """
    assert reserved_in.dtype == reserved_out.dtype == torch.bool
    # Eq. 5 with the cumulated mask spread over the weight as in HAT; the minimum of two bits is their "and"
    gate = ~(reserved_out[:, None] & reserved_in[None, :])  # (n_out, n_in)
    if OUT_AXIS[layout] == 1:
        gate = gate.T
    return gate if layout == "linear" else gate[:, :, None, None]


def close_(x: Tensor, gate: Tensor) -> None:
    """Eq. 5 in place: +0 where the gate is False, whatever stood there; the rest keeps its bits.

    A product would turn 0 times an infinite gradient into nan. `masked_fill_` would not, but on a CPU it branches at
    every entry and guesses wrong at every other one; an "and" of bits says the same and is 25 times faster. The gate
    may come as the `bits` of one, which saves finding them every time.
    """
    gate = bits(gate, x.dtype) if gate.dtype == torch.bool else gate
    x.view(gate.dtype).bitwise_and_(gate)


def bits(gate: Tensor, dtype: torch.dtype) -> Tensor:
    """A gate for numbers of this type: all ones where it is True, else all zeros."""
    assert gate.dtype == torch.bool
    return gate.to(_BITS[dtype.itemsize]).neg_()  # -1 is all ones


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Usage:
    """What one task does with the entries of one layer's mask; the three numbers sum to all of them."""

    newly_reserved: int
    """opened by the task and free before it"""
    reused: int
    """opened by the task and reserved by an earlier one"""
    unused: int
    """not opened by the task, reserved or not"""


def count_usage(opened: Tensor, reserved: Tensor) -> Usage:
    """Compare a task's binary mask with what was reserved *before* it.

    >>> count_usage(torch.tensor([True, True, False]), torch.tensor([True, False, True]))
    Usage(newly_reserved=1, reused=1, unused=1)
    """
    assert opened.dtype == reserved.dtype == torch.bool
    assert opened.shape == reserved.shape
    n_open = int(opened.sum())
    reused = int((opened & reserved).sum())
    return Usage(newly_reserved=n_open - reused, reused=reused, unused=opened.numel() - n_open)


def pack_bits(mask: Tensor) -> Tensor:
    """Eight mask entries a byte: bool of any shape -> (ceil(n/8),) uint8.

    The first entry takes the highest bit, as in `numpy.packbits`; the last byte is filled up with zeros.

    >>> pack_bits(torch.tensor([True, False, False, False, False, False, False, True, True])).tolist()
    [129, 128]
    """
    assert mask.dtype == torch.bool
    flat = mask.reshape(-1)
    flat = torch.nn.functional.pad(flat, (0, -flat.numel() % 8))
    return (flat.reshape(-1, 8) * _place_values(mask.device)).sum(dim=1, dtype=torch.uint8)


def unpack_bits(packed: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of `pack_bits`, for a mask of this shape."""
    n = math.prod(shape)
    n_bytes = -(-n // 8)
    if packed.dtype != torch.uint8 or packed.shape != (n_bytes,):
        found = f"{packed.dtype} of shape {tuple(packed.shape)}"
        raise ValueError(f"a mask of shape {tuple(shape)} is stored in {n_bytes} uint8, not in {found}")
    bits = (packed[:, None] & _place_values(packed.device)) != 0
    return bits.reshape(-1)[:n].reshape(tuple(shape))


def _place_values(device: torch.device) -> Tensor:
    return torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=device)
