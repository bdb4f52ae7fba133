"""Time to accuracy: how many seconds of learning until A_10 on MNIST reaches a bar.

    ENGRAM_DATA=… python benchmarks/accuracy.py [--methods dgmw] [--budgets 10:2 20:3 40:5] [--threads N] [--seed 0]

A stream has no A_10 before its tenth task is over, so this trains once for each budget, GAN rounds : solver epochs a
task, and tells for each bar the cheapest budget that reached it. 40:5 is the preset. Seconds are those of learning;
reading and testing stand beside. The test images choose nothing but this table.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

import torch

import clock
from engram import ClassStream, DataError, build, evaluate, load

BARS = (96.5, 97.0, 97.9)


@dataclass(frozen=True)
class Result:
    """One training."""

    method: str
    budget: str
    halfway: float
    """A_t in per cent after half the tasks."""
    accuracy: float
    seconds: float
    wall: float


def train(method: str, budget: str, *, dataset: str = "mnist", seed: int = 0, tasks: int | None = None) -> Result:
    """All tasks of one class each, or the first few."""
    rounds, epochs = budget.split(":")
    began, learning, reached = time.perf_counter(), 0.0, []
    data = load(dataset)
    learner = build(method, data, seed=seed, settings={"method.epochs": rounds, "training.epochs": epochs})
    stream = ClassStream(data, 1)
    for task in stream:
        start = time.perf_counter()
        learner.learn(task)
        learning += time.perf_counter() - start
        reached.append(100 * evaluate(learner, data, task.seen).accuracy)
        print(f"  {method} {budget}: A_{len(reached)} = {reached[-1]:.2f} after {learning:.0f} s", flush=True)
        if len(reached) == tasks:
            break
    return Result(method, budget, reached[(len(reached) - 1) // 2], reached[-1], learning, time.perf_counter() - began)


def main() -> None:
    asks = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asks.add_argument("--methods", nargs="+", default=["dgmw"])
    asks.add_argument("--budgets", nargs="+", default=["10:2", "20:3", "40:5"], metavar="ROUNDS:EPOCHS")
    asks.add_argument("--dataset", default="mnist")
    asks.add_argument("--tasks", type=int, help="stop after so many")
    asks.add_argument("--threads", type=int, default=0, help="0: as torch would")
    asks.add_argument("--seed", type=int, default=0)
    given = asks.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    try:
        load(given.dataset)
    except DataError as error:
        sys.exit(f"this benchmark trains on real images: {error}")
    print(clock.machine())
    results = [
        train(method, budget, dataset=given.dataset, seed=given.seed, tasks=given.tasks)
        for method in given.methods
        for budget in given.budgets
    ]
    print("\nmethod  rounds:epochs  A half way %  A at the end %  seconds learning  minutes in all")
    for one in results:
        print(
            f"{one.method:6}  {one.budget:13}  {one.halfway:12.2f}  {one.accuracy:14.2f}  {one.seconds:16.0f}  "
            f"{one.wall / 60:14.1f}"
        )
    for bar in BARS:
        enough = [one for one in results if one.accuracy >= bar]
        first = min(enough, key=lambda one: one.seconds, default=None)
        print(f"to {bar} %: " + (f"{first.seconds:.0f} s ({first.method} {first.budget})" if first else "not reached"))
    print("bar: 97 % in 12 minutes on 2 cores")


if __name__ == "__main__":
    main()
