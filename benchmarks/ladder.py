"""The ladder: from the paper's algorithm to our default on MNIST, one change at a time, and each left out once.

    python benchmarks/ladder.py --out results/mnist/dgmw --seeds 0,1,2          # ENGRAM_DATA; one thread; hours
    python benchmarks/ladder.py --out results/mnist/dgmw --left-out momentum    # our default without one change
    python benchmarks/ladder.py --out results/mnist/dgmw --controls             # growth-off, paper-no-class-term
    python benchmarks/ladder.py --out results/mnist/dgmw --only ladder-00-paper ladder-10-bound

DGMw, 20 rounds of the GAN and 3 epochs of the classifier a task. A run that is there is left alone, one that was killed
goes on. Records stand in OUT/LABEL/seedS; `engram report results --update REPRODUCIBILITY.md` makes the table.
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


def controls() -> dict[str, dict[str, Any]]:
    """Label -> settings. `growth-off`: our default whose generator keeps its size; the paper says that it could not
    take in new tasks then. `paper-no-class-term`: the paper's rung without L_c in the generator's loss, as the authors'
    own MNIST and SVHN runs have it.
    """
    first, *_, last = rungs().values()
    return {"growth-off": {**last, "masks.growth": "off"}, "paper-no-class-term": {**first, "gan.lambda_aux": 0.0}}


def everything() -> dict[str, dict[str, Any]]:
    """All that there is to run: label -> settings."""
    return {**rungs(), **controls(), **{f"without-{name}": left_out(name) for name in CHANGES}}


def train(folder: Path, seed: int, settings: Mapping[str, Any]) -> None:
    """One run to its end."""
    done = summarise(folder) if folder.exists() else None
    if done is None or not done.done:
        execute(Request("mnist", "dgmw", seed=seed, settings={**BUDGET, **settings}), folder, resume=True)


def chosen_of(words: list[str] | None = None) -> tuple[Path, list[int], dict[str, dict[str, Any]]]:
    """The command line -> where to, which seeds, and label -> settings: the rungs, where nothing else is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--left-out", nargs="+", default=[], choices=CHANGES, help="our default without one change")
    parser.add_argument("--controls", action="store_true", help=" and ".join(controls()))
    parser.add_argument("--only", nargs="+", default=[], choices=everything(), metavar="LABEL", help="these runs")
    told = parser.parse_args(words)
    labels = [*told.only, *(f"without-{name}" for name in told.left_out), *(controls() if told.controls else ())]
    wanted = {label: everything()[label] for label in labels or rungs()}
    return told.out, [int(seed) for seed in told.seeds.split(",")], wanted


def main() -> None:
    out, seeds, wanted = chosen_of()
    for seed in seeds:
        for label, settings in wanted.items():
            train(out / label / f"seed{seed}", seed, settings)


if __name__ == "__main__":
    main()
