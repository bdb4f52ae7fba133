"""How much of the machine a step uses: its operations a second over those of a matrix product in the same process.

    python benchmarks/share.py [--threads N] [--batches 16 64] [--tasks 1 5 10] [--runs RUN …]

Counted are the multiplications and additions of convolutions and matrix products, forward and backward, as the step
really calls them: a shortcut that computes less has less to show. Products with the zeros of a padding are not counted.
Everything else (norms, activations, optimisers, random numbers) takes time and counts as nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import clock
import fast_forward
from step import PART, classifier_part, our_step, trainer_of

SIDE = 2048


def pairs(wide: int, narrow: int, kernel: int, stride: int, padding: int) -> int:
    """How often a tap meets a pixel along one side; `narrow` is the side that the stride has shortened.

    A 4x4 kernel, stride 2, over 8 pixels with one of padding: 4 places of 4 taps, of which 2 fall beside the image.

    >>> pairs(8, 4, 4, 2, 1)
    14
    """
    return sum(0 <= place * stride - padding + tap < wide for place in range(narrow) for tap in range(kernel))


def convolution(
    x: Sequence[int], w: Sequence[int], bias: Any, stride: Sequence[int], padding: Sequence[int], *more: Any, **out: Any
) -> int:
    """Operations of a convolution, transposed or not. torch's own formula counts the padding's zeros as well."""
    transposed, groups, result = more[1], more[3], out["out_shape"]
    wide, narrow = (result, x) if transposed else (x, result)
    meets = [pairs(a, b, k, s, p) for a, b, k, s, p in zip(wide[2:], narrow[2:], w[2:], stride, padding, strict=True)]
    inputs, outputs = x[1], result[1]
    return int(2 * x[0] * inputs * outputs // groups * meets[0] * meets[1])


def convolution_backward(
    grad: Sequence[int], x: Sequence[int], w: Sequence[int], bias: Any, *more: Any, **_: Any
) -> int:
    """As much for the gradient of the input as for that of the weight, and for either as much as forward."""
    wanted, out = more[-1], {"out_shape": grad}
    return convolution(x, w, None, *more[:-1], **out) * (bool(wanted[0]) + bool(wanted[1]))


def operations(call: Callable[[], object]) -> int:
    """Of one call."""
    aten = torch.ops.aten
    mapping = {aten.convolution: convolution, aten.convolution_backward: convolution_backward}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        call()
    return int(counter.get_total_flops())


def main() -> None:
    asks = fast_forward.parser(__doc__)
    asks.add_argument("--batches", type=int, nargs="+", default=[16, 64], help="images a step")
    asks.add_argument("--tasks", type=int, nargs="+", default=[1, 5, 10])
    asks.add_argument("--side", type=int, default=SIDE, help="of the matrices")
    given = asks.parse_args()
    settings = fast_forward.settings_of(given)
    print(clock.machine())
    for folder in given.runs:
        ways: dict[str, Callable[[], object]] = {}
        work: dict[str, int] = {}
        for size in given.batches:
            recorded = fast_forward.read_run(folder, {**settings, "gan.batch_size": size})
            for task in given.tasks:
                learner = fast_forward.learner_at(recorded, task)
                for name, fixed in (("learned", False), ("fixed", True)):
                    step = our_step(learner, trainer_of(learner, recorded, fixed=fixed))
                    ways[f"GAN step, batch {size}, task {task}, masks {name}"] = step
        recorded = fast_forward.read_run(folder, settings)
        classifier = f"classifier step, batch {recorded.config.classifier.batch_size}"
        ways[classifier] = classifier_part(fast_forward.learner_at(recorded, 11))
        for name, way in ways.items():
            way()  # what is computed once a task, such as the sampling weights of rare images, is not of the step
            work[name] = operations(way)
        product = f"matrix product {given.side}x{given.side}"
        ways[product], work[product] = clock.matmul(given.side), 2 * given.side**3
        seconds = clock.best(ways, rounds=given.rounds)
        peak = work[product] / seconds[product]
        print(f"\n{recorded.name}")
        print(f"{'':46}  GFLOP      ms  GFLOP/s  share %")
        for name, took in seconds.items():
            calls = PART if name == classifier else 1
            rate = work[name] / took
            cells = f"{work[name] / calls / 1e9:5.3f}  {1e3 * took / calls:6.1f}  {rate / 1e9:7.1f}"
            print(f"{name:46}  {cells}  {100 * rate / peak:7.1f}")
    print("\nbar: 50 %")


if __name__ == "__main__":
    main()
