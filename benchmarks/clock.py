"""Times out of one process: what is compared runs in turn, and the best of several rounds counts."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import torch

from engram.experiment.machine import available_cores

K = TypeVar("K", bound=Hashable)


def best(ways: Mapping[K, Callable[[], object]], *, rounds: int = 5, repeat: int = 1) -> dict[K, float]:
    """Seconds of one call of each way.

    A round runs every way once, one after the other, `repeat` calls at a time: what disturbs the machine for a while
    disturbs all of them alike. Each call counts by itself, so that a moment's rest is enough. A first round is not
    counted: memory is found and sampling weights are computed there.
    """
    seconds = dict.fromkeys(ways, float("inf"))
    for number in range(rounds + 1):
        for name, way in ways.items():
            for _ in range(repeat):
                began = time.perf_counter()
                way()
                took = time.perf_counter() - began
                if number:
                    seconds[name] = min(seconds[name], took)
    return seconds


def matmul(side: int = 2048) -> Callable[[], object]:
    """A product of two square matrices: the most that this machine computes. 2 side^3 operations."""
    a, b = torch.randn(side, side), torch.randn(side, side)
    out = torch.empty(side, side)
    return lambda: torch.mm(a, b, out=out)


def machine() -> str:
    """One line on where the figures come from; a busy machine is named as one."""
    cores, threads, others = available_cores(), torch.get_num_threads(), _others()
    busy = f"; {others:.1f} CORES BUSY WITH OTHER WORK: the figures are worth little" if others > 0.2 else ""
    name = platform.processor() or platform.machine()
    return f"{_model() or name}, {cores} cores, {threads} threads, torch {torch.__version__}{busy}"


def _others(seconds: float = 0.5) -> float:
    """How many cores are at work while this process sleeps; 0 where nobody can tell.

    The load average would remember the benchmark before this one.
    """
    try:
        before = _ticks()
        time.sleep(seconds)
        after = _ticks()
    except OSError:
        return 0.0
    return (after - before) / seconds / os.sysconf("SC_CLK_TCK")


def _ticks() -> int:
    """The clock ticks that all cores together have worked, as Linux counts them."""
    with open("/proc/stat") as lines:
        user, nice, system, _idle, _waiting, irq, soft_irq, *_ = map(int, lines.readline().split()[1:])
    return user + nice + system + irq + soft_irq


def _model() -> str | None:
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
    except OSError:
        return None
