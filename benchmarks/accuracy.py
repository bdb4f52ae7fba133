"""Time to accuracy: how many seconds of learning until A_10 on MNIST reaches a bar.

    ENGRAM_DATA=… python benchmarks/accuracy.py [--methods dgmw] [--budgets 10:2 20:3 40:5] [--threads N] [--seed 0]
                                                [--out runs/accuracy] [--set FIELD=VALUE …]

A stream has no A_10 before its tenth task is over, so this trains once for each budget, GAN rounds : classifier epochs
a task, and tells for each bar the cheapest budget that reached it. 40:5 is the default. Every training is a run folder
under `--out`: called again, this goes on where it was. Seconds are those of learning; reading and testing are not
in them. The test images choose nothing but this table.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

import clock
import fast_forward
from engram import EngramError
from engram.experiment.progress import ConsoleDisplay
from engram.experiment.request import Request
from engram.experiment.run import execute
from engram.experiment.summary import Summary, summarise

BARS = (96.5, 97.0, 97.9)


def budget(text: str) -> tuple[int, int]:
    """
    >>> budget("20:3")
    (20, 3)
    """
    rounds, epochs = text.split(":")
    return int(rounds), int(epochs)


def train(method: str, rounds: int, epochs: int, given: argparse.Namespace) -> Summary:
    """One run folder, begun or gone on with."""
    settings = {"gan.epochs": rounds, "classifier.epochs": epochs, "runtime.threads": given.threads}
    settings |= dict(given.settings)
    request = Request(dataset=given.dataset, method=method, seed=given.seed, settings=settings)
    folder = given.out / f"{given.dataset}-{method}-{rounds}-{epochs}-seed{given.seed}"
    execute(request, folder, resume=True, display=ConsoleDisplay(Console()))
    summary = summarise(folder)
    assert summary is not None
    return summary


def per_cent(summary: Summary, classes: int) -> float:
    return 100 * summary.accuracy[classes]


def main() -> None:
    asks = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asks.add_argument("--methods", nargs="+", default=["dgmw"])
    asks.add_argument("--budgets", nargs="+", type=budget, default=[(10, 2), (20, 3), (40, 5)], metavar="ROUNDS:EPOCHS")
    asks.add_argument("--dataset", default="mnist")
    asks.add_argument("--threads", type=int, default=0, help="0: as torch would")
    asks.add_argument("--seed", type=int, default=0)
    asks.add_argument("--out", type=Path, default=Path("runs/accuracy"), help="where the run folders are")
    fast_forward.add_settings(asks)
    given = asks.parse_args()
    print(clock.machine())
    try:
        results = {
            (method, f"{rounds}:{epochs}"): train(method, rounds, epochs, given)
            for method in given.methods
            for rounds, epochs in given.budgets
        }
    except EngramError as error:
        sys.exit(str(error))
    print("\nmethod  rounds:epochs  A half way %  A at the end %  seconds learning")
    for (method, spent), one in results.items():
        seen = list(one.accuracy)
        half, end = per_cent(one, seen[(len(seen) - 1) // 2]), per_cent(one, seen[-1])
        print(f"{method:6}  {spent:13}  {half:12.2f}  {end:14.2f}  {one.seconds:16.0f}")
    for bar in BARS:
        enough = {name: one.seconds for name, one in results.items() if per_cent(one, max(one.accuracy)) >= bar}
        first = min(enough, key=lambda name: enough[name], default=None)
        print(f"to {bar} %: " + (f"{enough[first]:.0f} s ({' '.join(first)})" if first else "not reached"))
    print("bar: 97 % in 12 minutes on 2 cores")


if __name__ == "__main__":
    main()
