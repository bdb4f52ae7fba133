"""Batch normalisation by rows is torch's own."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from engram.ops.batch_norm import batch_norm
from engram.seeding import generator


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(5, 3, 4, 6), (2, 1, 3, 3), (16, 12, 2, 2)])
def test_it_is_torchs_own(affine: bool, order: torch.memory_format, shape: tuple[int, ...]) -> None:
    """Far from 0 too, where the mean of squares minus the square of the mean would have no digits left."""
    found = []
    for way in ("ours", "torch"):
        x = 1e3 + torch.randn(shape, dtype=torch.float64, generator=generator(0)).to(torch.float32)
        x = x.contiguous(memory_format=order).requires_grad_()
        terms = [torch.randn(shape[1], generator=generator(n)).requires_grad_() for n in (1, 2)] if affine else []
        weight, bias = terms or (None, None)
        if way == "ours":
            y = batch_norm(x, weight, bias, eps=1e-5)
        else:
            wide = [None if term is None else term.double() for term in (weight, bias)]
            y = F.batch_norm(x.double(), None, None, wide[0], wide[1], training=True, eps=1e-5).float()
        toward = torch.randn(shape, generator=generator(3))
        found.append([y, *torch.autograd.grad((y * toward).sum(), [x, *terms])])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)


def test_its_gradients_are_differences() -> None:
    x, weight, bias = (torch.randn(s, dtype=torch.float64, generator=generator(4)) for s in ((3, 2, 2, 2), (2,), (2,)))
    inputs = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    assert torch.autograd.gradcheck(lambda *given: batch_norm(*given, eps=1e-5), inputs)
