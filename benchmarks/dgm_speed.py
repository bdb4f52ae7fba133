"""Sampling from an engram's compact network against the whole masked one; and the time of a step, task by task.

    python benchmarks/dgm_speed.py RUN

RUN is a folder with a checkpoint. The two ways to sample are timed in turn, best of several, and their images
compared. The time of a step comes from the run's own records: the fastest round while the masks are learned, and the
fastest once they are fixed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from engram.experiment.records import Record
from engram.experiment.reopen import reopen
from engram.memory.generative import Engram, shared_weights
from engram.methods.dgm import DGM
from engram.methods.dgm_settings import DGMwSettings

BATCH, ROUNDS = 256, 7


def masked(engram: Engram, weights: list[Tensor], z: Tensor) -> Tensor:
    """The network of the engram's time in full: closed entries are multiplied by zero, none is left out."""
    x, inputs = z[:, :, None, None], engram.inputs
    for number, (weight, mask, units) in enumerate(zip(weights, engram.binary_masks(), engram.units, strict=True)):
        w = weight[:inputs, :units]
        w = w * mask if engram.variant == "weights" else w
        x = F.conv_transpose2d(x, w, stride=2 if number else 1, padding=1 if number else 0)
        x = F.relu(x * engram.scales[number][0][:, None, None] + engram.shifts[number][0][:, None, None])
        x = x * mask[:, None, None] if engram.variant == "units" else x
        inputs = units
    return torch.tanh(F.conv_transpose2d(x, engram.head, engram.bias, stride=2, padding=1))


@torch.inference_mode()
def sampling(learner: DGM) -> None:
    weights, first = shared_weights(learner.net), 0
    print("task  compact ms  masked ms  ratio  largest difference")
    for number, engram in enumerate(learner.engrams):
        z = torch.randn(BATCH, engram.inputs)
        net = learner.nets[first]
        first += len(engram.columns)
        ways: list[Callable[[], Tensor]] = [partial(net, z), partial(masked, engram, weights, z)]
        best = [float("inf")] * len(ways)
        for _ in range(ROUNDS):
            for way, draw in enumerate(ways):
                began = time.perf_counter()
                draw()
                best[way] = min(best[way], time.perf_counter() - began)
        apart = (ways[0]() - ways[1]()).abs().max().item()
        print(f"{number + 1:4}  {1e3 * best[0]:10.1f}  {1e3 * best[1]:9.1f}  {best[1] / best[0]:5.2f}  {apart:.1e}")


def steps(records: list[Record], settings: DGMwSettings) -> None:
    print("task  masks learned, ms a step  fixed, ms a step")
    learned = max(1, round(settings.masking * settings.epochs))
    for record in records:
        if record["kind"] == "timing":
            times = record["step_seconds"][: settings.epochs]
            halves = [[1e3 * t for t in part if t is not None] for part in (times[:learned], times[learned:])]
            print(f"{record['task'] + 1:4}" + "".join(f"  {min(half):23.0f}" for half in halves if half))


if __name__ == "__main__":
    opened = reopen(Path(sys.argv[1]))
    assert isinstance(opened.learner, DGM), "not a run of DGM"
    sampling(opened.learner)
    steps(opened.records, opened.config.method_settings)
