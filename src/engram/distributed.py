"""One run on several processes: `torchrun --nproc-per-node N -m engram run …`.

Every process (rank) holds the whole learner and draws every batch whole, by the same named generator.

    own         a rank computes with its own rows of the batch
    total       a sum over ranks through which gradients flow: the normalisation's statistics are the whole batch's
    backward    the gradients of the mean over the whole batch, the same bits on every rank
    mean        the same for the losses that are told

So all ranks take the same step, and one process takes it too but for rounding. Whatever is not shared out this way
(masks, growth, engrams, replay, answers) every rank computes alike from the same weights; `same_everywhere` looks
whether that is so. With one process everything here is the identity, or plain torch.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from engram.errors import ConfigError, LostError


@dataclass(frozen=True)
class World:
    """Which of how many processes this is."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Among those on this machine."""
    local_size: int = 1

    @property
    def many(self) -> bool:
        return self.size > 1

    def first(self, total: int) -> int:
        """Which row of a batch is the first of this rank's own.

        >>> [World(rank, 3).first(8) for rank in range(3)]
        [0, 3, 6]
        """
        return self.rank * (total // self.size) + min(self.rank, total % self.size)

    def rows(self, total: int) -> int:
        """How many rows of a batch are this rank's own.

        >>> [World(rank, 3).rows(8) for rank in range(3)]
        [3, 3, 2]
        """
        return total // self.size + (self.rank < total % self.size)


def launched() -> World:
    """What torchrun told this process; one of one without it."""
    if not dist.is_available() or not dist.is_torchelastic_launched():
        return World()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return World(*(int(os.environ[name]) for name in names))


def world() -> World:
    """Where this process stands among those it computes with."""
    if not dist.is_available() or not dist.is_initialized():
        return World()
    return World(dist.get_rank(), dist.get_world_size())


@contextlib.contextmanager
def joined(device: torch.device, seconds: float) -> Iterator[World]:
    """Compute with the processes that torchrun started, none of which waits longer than `seconds` for another.

    Nobody gets in before all are there. Whoever has joined already stays as they are.
    """
    if world().many or not launched().many:
        anybody(False)
        yield world()
        return
    # words between processes go over gloo on any device: nobody waits for a GPU to say whether to stop
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with _explained():
        dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
    try:
        yield world()
    finally:
        dist.destroy_process_group()


def own(batch: Tensor) -> Tensor:
    """This rank's rows of a batch that all ranks have drawn alike."""
    here = world()
    if not here.many:
        return batch
    if len(batch) < here.size:
        raise ConfigError(f"a batch of {len(batch)} cannot be shared by {here.size} processes; start fewer")
    return batch.tensor_split(here.size)[here.rank]


def every(step: int, rows: int) -> tuple[slice, float]:
    """Every so-manieth row of a batch of `rows`, the first one included: those among this rank's own.

    Also how much more of these than of all rows this rank has, by which a mean over them counts.
    """
    here = world()
    own = range(here.first(rows), here.first(rows) + here.rows(rows))
    chosen = slice(-own.start % step, None, step)
    share = len(range(rows)[::step]) / rows
    return chosen, len(own[chosen]) / len(own) / share


def total(x: Tensor) -> Tensor:
    """The sum over all ranks. Gradients flow back to every rank's part."""
    result: Tensor = _Total.apply(x)  # type: ignore[no-untyped-call]
    return result


class _Total(torch.autograd.Function):
    # what enters a sum on one rank reaches the losses of all: the gradient is their sum too
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _add_up(x.clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _add_up(gradient.clone(memory_format=torch.contiguous_format))


def share(rows: int) -> float:
    """Of a whole batch of `rows`, how much is this rank's own."""
    here = world()
    return here.rows(rows) / rows if here.many else 1.0


def backward(loss: Tensor, parameters: Iterable[Tensor], *, rows: int) -> None:
    """Put in place the gradients of the mean over a whole batch of `rows`; `loss` is the mean over this rank's own."""
    # weighted before it flows back, so that `total` adds up gradients of one and the same mean
    torch.autograd.backward(loss * share(rows) if world().many else loss)
    add_up(parameters)


def add_up(parameters: Iterable[Tensor]) -> None:
    """Put in place the sum of all ranks' gradients."""
    if not world().many:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = _add_up(torch.cat([gradient.flatten() for gradient in gradients]))
    for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def mean(losses: Mapping[str, Tensor], *, rows: int) -> Mapping[str, Tensor]:
    """Losses over a whole batch of `rows`; `losses` are those over this rank's own."""
    if not world().many:
        return losses
    values = torch.stack([loss.detach() for loss in losses.values()])
    return dict(zip(losses, _add_up(values * share(rows)), strict=True))


def anybody(asks: bool) -> bool:
    """Whether any rank asks; all get the same answer. Nobody gets on before all have been asked."""
    return bool(_add_up(torch.tensor(int(asks)))) if world().many else asks


def same_everywhere(digest: str) -> bool:
    """Whether all ranks give the same hexadecimal digest."""
    here = world()
    if not here.many:
        return True
    given = torch.zeros(here.size, len(digest) // 2, dtype=torch.int64)
    given[here.rank] = torch.tensor(list(bytes.fromhex(digest)))
    _add_up(given)
    return bool((given == given[0]).all())


def _add_up(x: Tensor) -> Tensor:
    """In place, the sum over all ranks: the same bits on each."""
    with _explained():
        dist.all_reduce(x)
    return x


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        # "[file.cc:1] Read error [address]:1: Connection reset by peer. Advice …" -> what happened
        reason = re.sub(r"\s*\[[^]]*\](:\d+)?", "", str(error)).strip().split(". ")[0].splitlines()
        raise LostError(
            f"process {launched().rank} of {launched().size} has lost another one ({''.join(reason[:1])}); "
            "the last good checkpoint is kept: go on with --resume, on any number of processes"
        ) from error
