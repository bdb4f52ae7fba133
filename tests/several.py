"""What torchrun starts in test_distributed.py: checks between the processes, then runs, one after the other."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from engram import distributed
from engram.experiment.loop import Interrupted, Stop
from engram.experiment.request import Request
from engram.experiment.run import execute
from engram.ops.batch_norm import BatchNorm2d, batch_norm
from test_run import AfterBatches

ROWS = 5


def check_words(rank: int) -> None:
    assert distributed.anybody(rank == 1)
    assert not distributed.anybody(False)
    assert distributed.same_everywhere("ab" * 32)
    assert not distributed.same_everywhere(f"{rank:064x}")
    mean = distributed.mean({"a": distributed.own(torch.arange(float(ROWS))).mean()}, rows=ROWS)
    assert mean["a"].item() == 2.0


def check_normalisation() -> None:
    """Values, gradients and running statistics of uneven shares against torch's own over the whole batch."""
    z, aim = torch.randn(2, ROWS, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    terms = torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours, torchs = BatchNorm2d(3).double(), torch.nn.BatchNorm2d(3).double()

    def gradients(whole: bool) -> tuple[Tensor, Tensor]:
        slope, weight, bias = leaves = [term.clone().requires_grad_() for term in terms]
        x = (z if whole else distributed.own(z)) * slope[:, None, None] + 3
        if whole:
            y = torchs(F.batch_norm(x, None, None, weight, bias, training=True, eps=1e-5).square())
            torch.autograd.backward((y - aim).square().mean())
        else:
            y = ours(batch_norm(x, weight, bias, eps=1e-5).square())
            distributed.backward((y - distributed.own(aim)).square().mean(), leaves, rows=ROWS)
        return y, torch.stack([leaf.grad for leaf in leaves if leaf.grad is not None])

    (expected, known), (y, found) = gradients(True), gradients(False)
    torch.testing.assert_close(y, distributed.own(expected))
    torch.testing.assert_close(found, known)
    torch.testing.assert_close(dict(ours.state_dict()), dict(torchs.state_dict()))


def main() -> None:
    with distributed.joined(torch.device("cpu"), 60) as world:
        check_words(world.rank)
        check_normalisation()
        for job in json.loads(Path(sys.argv[1]).read_text()):
            stop = Stop()
            display = AfterBatches(stop, job["stop_after"] or 10**9)
            with contextlib.suppress(Interrupted):
                execute(
                    Request(**job["request"]), Path(job["folder"]), resume=job["resume"], stop=stop, display=display
                )


if __name__ == "__main__":
    main()
    os._exit(0)  # as the command does
