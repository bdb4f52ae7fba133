"""Direct accuracy, the measure of the paper's starred rows: drawings, judged by a classifier that learned real images.

    python benchmarks/direct_accuracy.py runs/mnist-dgmw-seed0 runs/mnist-joint-seed0

Two finished runs on the same data: one that draws, and joint training, the judge. A line of JSON: the share of each
class's drawings that the judge takes for the class, and their mean.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from engram.errors import ConfigError
from engram.evaluation.metrics import mean
from engram.evaluation.quality import direct_accuracy
from engram.methods.learner import Samples
from engram.model.model import Model
from engram.seeding import generator


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    words.add_argument("run", type=Path)
    words.add_argument("judge", type=Path, help="a run of joint training on the same data, in the same order")
    words.add_argument("--drawings", type=int, default=1000, help="of each class")
    chosen = words.parse_args()
    model, judge = Model.open(chosen.run), Model.open(chosen.judge)
    (memory, _), (answers, _) = model.ready("draw"), judge.ready("answer")
    if judge.method.bound != "upper" or judge.classes != model.classes:
        raise ConfigError(f"{chosen.judge} is not joint training of the same classes in the same order")
    if not isinstance(memory, Samples):
        raise ConfigError(f"{chosen.run} cannot draw: {model.config.method} has no generator that is told the class")
    draws = generator(model.config.seed, "direct accuracy")
    found = direct_accuracy(answers, memory, len(model.classes), chosen.drawings, generator=draws)
    told = {"method": model.config.method, "seed": model.config.seed, "drawings": chosen.drawings}
    print(json.dumps({**told, "direct_accuracy": mean(found), "per_class": found, "classes": model.classes}))


if __name__ == "__main__":
    main()
