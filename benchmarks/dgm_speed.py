"""Sampling from an engram's compact network against the whole masked one; and the time of a step, task by task.

    python benchmarks/dgm_speed.py RUN

RUN is a folder with a checkpoint. The two ways to sample are timed in turn, best of several, and their images
compared. Steps of the GAN are timed in turn on a network at the start and on the run's grown one, as a next task would
take them: while masks are learned, and under fixed masks, for which the run's first and last ones stand in.
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

from engram.data.stream import Task
from engram.experiment.reopen import reopen
from engram.memory.generative import Engram, shared_weights
from engram.methods.dgm import DGM
from engram.methods.imprint import Imprint

BATCH, ROUNDS, STEPS = 256, 5, 6


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


def steps(learner: DGM) -> None:
    settings, channels = learner.settings, learner.around.channels
    start = DGM(learner.around, variant=learner.variant)
    images = torch.randint(0, 256, (500, channels, 32, 32), dtype=torch.uint8)
    tasks, imprints = [], []
    for one, index in ((start, 0), (learner, len(learner.nets))):
        targets = torch.full((len(images),), index)
        tasks.append(Task(index, (index,), tuple(range(index + 1)), images, targets, ("noise",)))
        imprints.append(Imprint(one.net, learner.around, task=index, classes=1, known=1))

    def best(epoch: int) -> list[float]:
        seconds = [float("inf")] * 2
        for _ in range(ROUNDS):
            for number, (task, imprint) in enumerate(zip(tasks, imprints, strict=True)):
                began = time.perf_counter()
                for batch in range(STEPS):
                    imprint.step(task, epoch, batch)
                seconds[number] = min(seconds[number], (time.perf_counter() - began) / STEPS)
        return seconds

    learned = best(0)
    for imprint, engram in zip(imprints, (learner.engrams[0], learner.engrams[-1]), strict=True):
        for layer, mask in zip(imprint.net.plastic, engram.binary_masks(), strict=True):
            layer.embedding.data.fill_(-1.0)[tuple(map(slice, mask.shape))] = mask.float() * 2 - 1
        imprint.fix_masks(0)
    fixed = best(settings.epochs - 1)
    share = settings.masking
    whole = [share * a + (1 - share) * b for a, b in zip(learned, fixed, strict=True)]
    print("ms a step       first task  next task  ratio")
    for name, (first, last) in (("masks learned", learned), ("masks fixed", fixed), ("together", whole)):
        print(f"{name:14}  {1e3 * first:10.1f}  {1e3 * last:9.1f}  {last / first:5.2f}")


if __name__ == "__main__":
    opened = reopen(Path(sys.argv[1]))
    assert isinstance(opened.learner, DGM), "not a run of DGM"
    sampling(opened.learner)
    steps(opened.learner)
