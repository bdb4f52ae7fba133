"""Batch normalisation over the whole batch, also where several processes have a share of it each.

With one process these are torch's own sums, on a CPU by rows of pixels. Without gradients, nothing is shared out: every
process sees the whole batch then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram import distributed
from engram.kinds import spread


def batch_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float) -> Tensor:
    """x (B, units) or (B, units, H, W) by the batch's own statistics, then times weight plus bias, each (units,)."""
    if not _shared():
        if x.device.type != "cpu" or x.dtype == torch.bfloat16:
            return F.batch_norm(x, None, None, weight, bias, training=True, eps=eps)
        y: Tensor = _ByRows.apply(x, weight, bias, eps)  # type: ignore[no-untyped-call]
        return y
    x = _wide(x)
    mean, variance, _ = _moments(x)
    return _normalised(x, mean, variance, weight, bias, eps)


class _ByRows(torch.autograd.Function):
    """The same on a CPU, a pixel's channels side by side: a few sums and products over rows.

    torch's own takes about twice as long where the number of channels does not fill its vectors.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        rows = _rows(x)
        away = rows - rows.mean(0)
        scale = away.square().mean(0).add_(eps).rsqrt_()
        ctx.save_for_backward(away, scale, weight)
        if weight is None:
            return _image(away * scale, x)
        assert bias is not None
        return _image(torch.addcmul(bias, away, scale * weight), x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        away, scale, weight = ctx.saved_tensors
        rows = _rows(gradient)
        of_bias, of_weight = rows.sum(0), (rows * away).sum(0).mul_(scale)
        whole = scale if weight is None else scale * weight
        share = whole / -len(rows)
        of_x = torch.addcmul(share * of_bias, rows, whole).addcmul_(away, share * scale * of_weight)
        needed = ctx.needs_input_grad
        return _image(of_x, gradient), of_weight if needed[1] else None, of_bias if needed[2] else None, None


def _rows(x: Tensor) -> Tensor:
    """(B, units, H, W) -> (B H W, units); no copy where the units of a pixel lie side by side."""
    if x.dim() == 2:
        return x
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def _image(rows: Tensor, like: Tensor) -> Tensor:
    if like.dim() == 2:
        return rows
    count, units, height, width = like.shape
    return rows.view(count, height, width, units).permute(0, 3, 1, 2)


class _BatchNorm(nn.modules.batchnorm._BatchNorm):
    """torch's, running statistics and all."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not _shared():
            return super().forward(x)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        x = _wide(x)
        mean, variance, count = _moments(x)
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(x.dtype), self.momentum)
            self.running_var.lerp_((variance * (count / (count - 1))).to(x.dtype), self.momentum)
            self.num_batches_tracked.add_(1)
        return _normalised(x, mean, variance, self.weight, self.bias, self.eps)


class BatchNorm1d(_BatchNorm, nn.BatchNorm1d):
    """For (B, units)."""


class BatchNorm2d(_BatchNorm, nn.BatchNorm2d):
    """For (B, units, H, W)."""


def _shared() -> bool:
    return torch.is_grad_enabled() and distributed.world().many


def _wide(x: Tensor) -> Tensor:
    """Statistics are no less precise than torch's own, which are float32 for bfloat16 as well."""
    return x.float() if x.dtype == torch.bfloat16 else x


def _moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance (units,) over all processes' rows and pixels, and how many these are."""
    variance, mean = (part.double() for part in torch.var_mean(x, _but_units(x), correction=0))
    count = x.numel() // x.shape[1]
    # added up in float64, where the difference of squares is harmless
    sums = distributed.total(torch.cat([count * mean, count * (variance + mean.square()), mean.new_tensor([count])]))
    every = sums[-1].detach()
    mean, square = sums[:-1].view(2, -1) / every
    return mean, (square - mean.square()).clamp(min=0), every


def _but_units(x: Tensor) -> tuple[int, ...]:
    """All dimensions that statistics run over."""
    return (0, *range(2, x.dim()))


def _normalised(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    scale = (variance + eps).rsqrt()
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale
    if bias is not None:
        shift = shift + bias
    return torch.addcmul(spread(shift.to(x.dtype), x), x, spread(scale.to(x.dtype), x))


class Moments:
    """Mean and deviation of what the norm of each node is given, over batches, added up in float64.

    One node after the other, so that no batch's nodes are in memory at once.
    """

    def __init__(self, units: Sequence[int]) -> None:
        self.sums = [torch.zeros(2, n, dtype=torch.float64) for n in units]
        self.shown = 0

    def see(self, x: Tensor) -> None:
        """(B, units) or (B, units, H, W), or nothing: a node that no unit reaches."""
        if x.numel():
            variance, mean = torch.var_mean(x, _but_units(x), correction=0)
            self.sums[self.shown % len(self.sums)] += torch.stack([mean, variance + mean.square()]).cpu()
        self.shown += 1

    def settled(self, eps: float) -> list[tuple[Tensor, Tensor]]:
        """(mean, deviation) of each node, float64."""
        averages = [total / (self.shown // len(self.sums)) for total in self.sums]
        return [(mean, (square - mean.square()).clamp(min=0).add(eps).sqrt()) for mean, square in averages]
