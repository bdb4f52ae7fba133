"""The ladder: from the paper's algorithm to our default on MNIST, one change at a time, and each left out once.

    python benchmarks/ladder.py --out results/mnist/dgmw --seeds 0,1,2          # ENGRAM_DATA; one thread; hours
    python benchmarks/ladder.py --out results/mnist/dgmw --left-out momentum    # our default without one change

DGMw, 20 rounds of the GAN and 3 epochs of the classifier a task. A run that is there is left alone, one that was killed
goes on. Records stand in OUT/ladder-N-NAME/seedS and OUT/without-NAME/seedS; `engram report results --update
REPRODUCIBILITY.md` makes the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engram.experiment.request import Request
from engram.experiment.run import execute
from engram.experiment.summary import summarise

BUDGET = {"gan.epochs": 20, "gan.steps": 50, "classifier.epochs": 3, "runtime.threads": 1}
PAPER: dict[str, Any] = {
    "replay.classifier": "critic", "replay.keep_fraction": 1.0, "classifier.augment": "none",
    "classifier.label_smoothing": 0.0, "masks.fraction": 1.0, "masks.lambda_ru": 0.08, "masks.alpha": "units",
    "masks.growth": "paper", "masks.max_units_ratio": 0.0, "gan.rare_power": 0.0, "gan.beta1": 0.5,
    "gan.batch_size": 64, "gan.learning_rate": 2e-3, "generator.width": 6, "generator.latent_dim": 128,
    "generator.ema_decay": 0.0, "critic.width": 32, "critic.kernel": 5, "critic.penalty_stride": 1,
}  # fmt: skip
"""The paper's algorithm at our budget: what of its preset differs from ours."""
CHANGES: dict[str, dict[str, Any]] = {
    "batch": {"gan.batch_size": 16},
    "networks": {
        "generator.width": 12, "generator.latent_dim": 64, "critic.width": 24, "critic.kernel": 4,
        "gan.learning_rate": 3e-3, "masks.growth": "refill", "masks.alpha": "entries",
    },
    "classifier": {"replay.classifier": "generated", "classifier.label_smoothing": 0.05},
    "augmentation": {"classifier.augment": "strong"},
    "doubt": {"replay.keep_fraction": 0.8},
    "masks": {"masks.fraction": 0.2, "masks.lambda_ru": 0.4},
    "average": {"generator.ema_decay": 0.99},
    "oversampling": {"gan.rare_power": 4.0},
    "momentum": {"gan.beta1": 0.0},
    "bound": {"masks.max_units_ratio": 2.0, "critic.penalty_stride": 2},
}  # fmt: skip
"""In the order in which they are made: what makes a step cheap first. The last one ends at our default."""


def rungs() -> dict[str, dict[str, Any]]:
    """Label -> settings: the paper's algorithm, then one change more each time."""
    found, own = {"ladder-00-paper": dict(PAPER)}, dict(PAPER)
    for number, (name, change) in enumerate(CHANGES.items(), 1):
        own |= change
        found[f"ladder-{number:02d}-{name}"] = dict(own)
    return found


def left_out(name: str) -> dict[str, Any]:
    """Our default with one change taken back."""
    last = [*rungs().values()][-1]
    return {**last, **{key: PAPER[key] for key in CHANGES[name]}}


def train(folder: Path, seed: int, settings: Mapping[str, Any]) -> None:
    """One run to its end."""
    done = summarise(folder) if folder.exists() else None
    if done is None or not done.done:
        execute(Request("mnist", "dgmw", seed=seed, settings={**BUDGET, **settings}), folder, resume=True)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--seeds", default="0")
    words.add_argument("--left-out", nargs="*", choices=CHANGES, help="these instead of the rungs")
    chosen = words.parse_args()
    wanted = rungs() if chosen.left_out is None else {f"without-{name}": left_out(name) for name in chosen.left_out}
    for seed in map(int, chosen.seeds.split(",")):
        for label, settings in wanted.items():
            train(chosen.out / label / f"seed{seed}", seed, settings)


if __name__ == "__main__":
    main()
