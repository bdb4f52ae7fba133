"""Images a second from compact engrams against the dense masked generator, and from all classes against one.

    python benchmarks/sampling.py [--threads N] [--tasks 10] [--images 256] [--runs RUN …]

compact     the class's own small network: closed and dead units dropped, normalisation folded in
dense then  every unit of the network as it was when the class was learned, times its mask
dense now   the same at today's size, as a generator without engrams computes it

The three draw the same images from the same noise; the largest difference is printed beside.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import clock
import fast_forward
from engram.memory.engram import shared_weights
from engram.methods.dgm.learner import DGM
from reference import PlainClass


def ways_of(learner: DGM, class_index: int, count: int) -> dict[str, Callable[[], Tensor]]:
    """Three ways to draw a class; one class a task."""
    engram, weights = learner.engrams[class_index], shared_weights(learner.net)
    z = torch.randn(count, engram.latent_dim, generator=torch.Generator().manual_seed(class_index))
    then, now = (PlainClass.of(engram, weights, today=today) for today in (False, True))
    return {
        "compact": partial(learner.nets[class_index][0], z),
        "then": partial(then, weights, z),
        "now": partial(now, weights, z),
    }


@torch.inference_mode()
def difference(ways: dict[str, Callable[[], Tensor]]) -> float:
    compact, *dense = (way() for way in ways.values())
    return max((compact - other).abs().max().item() for other in dense)


def spread(learner: DGM, count: int) -> dict[str, Callable[[], object]]:
    """`count` uint8 images of the first class, of the last one, and evenly of all."""
    classes, draws = len(learner.nets), torch.Generator().manual_seed(0)
    return {
        "first class": partial(learner.sample, [0], count, generator=draws),
        "last class": partial(learner.sample, [classes - 1], count, generator=draws),
        "all classes": partial(learner.sample, range(classes), count // classes, generator=draws),
    }


@torch.inference_mode()
def main() -> None:
    asks = fast_forward.parser(__doc__)
    asks.add_argument("--tasks", type=int, default=10, help="tasks learned")
    asks.add_argument("--images", type=int, default=256, help="a batch")
    given = asks.parse_args()
    settings = fast_forward.settings_of(given)
    print(clock.machine())
    for folder in given.runs:
        recorded = fast_forward.read_run(folder, settings)
        learner = fast_forward.learner_at(recorded, given.tasks + 1)
        print(f"\n{recorded.name}: after {given.tasks} tasks; {fast_forward.sizes(recorded, learner)}")
        every = {index: ways_of(learner, index, given.images) for index in range(given.tasks)}
        flat = {(index, name): way for index, ways in every.items() for name, way in ways.items()}
        seconds = clock.best(flat, rounds=given.rounds)
        print(f"{given.images} images, ms")
        print("class  compact  dense then  ratio  dense now  ratio  images/s  largest difference")
        for index, ways in every.items():
            compact, then, now = (seconds[index, name] for name in ("compact", "then", "now"))
            print(
                f"{index + 1:5}  {1e3 * compact:7.1f}  {1e3 * then:10.1f}  {then / compact:5.2f}  {1e3 * now:9.1f}  "
                f"{now / compact:5.2f}  {given.images / compact:8.0f}  {difference(ways):.1e}"
            )
        for name in ("then", "now"):
            dense, compact = (sum(seconds[index, way] for index in every) for way in (name, "compact"))
            print(f"all classes: dense {name} over compact {dense / compact:.2f}")
        count = given.images * given.tasks
        drawn = clock.best(spread(learner, count), rounds=given.rounds)
        texts = [f"{name} {count / took:.0f}" for name, took in drawn.items()]
        print(f"{count} uint8 images, images/s: {', '.join(texts)}")
    print("\nbar: compact 3 times as fast as dense")


if __name__ == "__main__":
    main()
