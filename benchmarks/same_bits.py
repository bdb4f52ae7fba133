"""Does another checkout compute the same bits? Every method on a short stream; hashes of answers, drawings, retention.

    PYTHONPATH=OLD/src python benchmarks/same_bits.py > old.txt
    PYTHONPATH=NEW/src python benchmarks/same_bits.py > new.txt
    diff old.txt new.txt

Bits differ between processors and versions of torch, so no hash is kept anywhere: both sides run on one machine. Every
setting is written out below, so that no preset has a say. A checkout from before 0.2 is told them by their old names.
With ENGRAM_DATA, DGM also learns one class of MNIST.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from typing import Any

import torch

Settings = dict[str, Any]

CLASSIFIER: Settings = {
    "classifier.architecture": "convnet",
    "classifier.width": 8,
    "classifier.epochs": 2,
    "classifier.batch_size": 32,
    "classifier.learning_rate": 3e-3,
    "classifier.label_smoothing": 0.05,
    "classifier.augment": "strong",
}
GAN: Settings = {
    "gan.epochs": 4,
    "gan.steps": 8,
    "gan.batch_size": 8,
    "gan.learning_rate": 3e-3,
    "gan.beta1": 0.5,
    "gan.rare_power": 4.0,
    "gan.lambda_aux": 1.0,
    "generator.architecture": "dcgan",
    "generator.width": 4,
    "generator.latent_dim": 16,
    "generator.ema_decay": 0.9,
    "generator.bn_batches": 3,
    "critic.architecture": "auto",
    "critic.width": 8,
    "critic.kernel": 4,
    "critic.start": "fresh",
    "critic.lambda_gp": 1.0,
    "replay.images": 256,
    "replay.keep_fraction": 0.8,
}
DGM: Settings = {
    **GAN,
    "critic.penalty_stride": 2,
    "masks.fraction": 0.5,
    "masks.s_max": 200.0,
    "masks.lambda_ru": 0.05,
    "masks.max_units_ratio": 0.0,
    "replay.classifier": "generated",
    "replay.real_fraction": 0.0,
    "replay.distill_weight": 0.0,
    "exemplars.ratio": 0.0,
    "exemplars.budget": 0,
    "exemplars.selection": "random",
}
BASELINE: Settings = {**GAN, "gan.new_fraction": 0.5, "critic.start": "warm"}
TOLD: Settings = {**BASELINE, "replay.real_fraction": 0.0, "replay.distill_weight": 0.0}
PAIRS: Settings = {"stream.classes_per_task": 2}

CASES: dict[str, tuple[str, Settings]] = {
    "joint": ("joint", {}),
    "joint, ResNet-18": ("joint", {"classifier.architecture": "resnet18", "classifier.width": 4}),
    "finetune": ("finetune", {"classifier.augment": "photo"}),
    "icarl": ("icarl", {"exemplars.budget": 30, "classifier.augment": "affine"}),
    "ewc": ("ewc", {"regularisation.strength": 100.0}),
    "ewc-s": ("ewc-s", {"regularisation.strength": 100.0, "exemplars.per_class": 10}),
    "si": ("si", {"regularisation.strength": 1.0}),
    "si-s": ("si-s", {"regularisation.strength": 1.0, "exemplars.per_class": 10}),
    "rwalk": ("rwalk", {"regularisation.strength": 1.0}),
    "rwalk-s": ("rwalk-s", {"regularisation.strength": 1.0, "exemplars.per_class": 10}),
    "dgr": ("dgr", BASELINE),
    "mergan": ("mergan", TOLD),
    "mergan, distilled": ("mergan", {**TOLD, "replay.real_fraction": 0.5, "replay.distill_weight": 2.0}),
    "mergan-ra": ("mergan-ra", {**TOLD, "gan.lambda_ra": 100.0, **PAIRS}),
    "ewcm": ("ewcm", {**TOLD, "regularisation.strength": 1e4}),
    "ewcm, residual": ("ewcm", {**TOLD, "regularisation.strength": 1e4, "generator.architecture": "residual"}),
    "dgmw": ("dgmw", DGM),
    "dgma": ("dgma", DGM),
    "dgmw, bounded units": ("dgmw", {**DGM, "masks.max_units_ratio": 1.0}),
    "dgma, bounded units": ("dgma", {**DGM, "masks.max_units_ratio": 1.5}),
    "dgmw, pairs": ("dgmw", {**DGM, **PAIRS}),
    "dgmw, the critic answers": ("dgmw", {**DGM, "replay.classifier": "critic", "critic.kernel": 5}),
    "dgma, the critic answers, warm": ("dgma", {**DGM, "replay.classifier": "critic", "critic.start": "warm", **PAIRS}),
    "dgmw, warm": ("dgmw", {**DGM, "critic.start": "warm"}),
    "dgmw, residual": ("dgmw", {**DGM, "generator.architecture": "residual"}),
    "dgma, residual, ResNet-18": (
        "dgma",
        {**DGM, "generator.architecture": "residual", "critic.architecture": "resnet18", "critic.width": 4},
    ),
    "dgmw, exemplars": ("dgmw", {**DGM, "exemplars.ratio": 0.25}),
    "dgma, exemplars by herding": ("dgma", {**DGM, "exemplars.budget": 60, "exemplars.selection": "herding"}),
    "dgmw, distilled": ("dgmw", {**DGM, "replay.real_fraction": 0.5, "replay.distill_weight": 2.0, **PAIRS}),
    "dgmw, no average": ("dgmw", {**DGM, "generator.ema_decay": 0.0, "replay.keep_fraction": 1.0}),
}

# ---------------------------------------------------------------- names before 0.2

BEFORE = {
    "classifier.architecture": "training.network",
    "gan.rare_power": "method.rare",
    "gan.new_fraction": "method.new_share",
    "generator.architecture": "method.network",
    "generator.latent_dim": "method.noise",
    "generator.ema_decay": "method.average",
    "generator.bn_batches": "method.statistics",
    "critic.architecture": "method.critic",
    "critic.width": "method.critic_width",
    "critic.kernel": "method.critic_kernel",
    "critic.start": "method.critic_start",
    "critic.penalty_stride": "method.penalty_every",
    "masks.fraction": "method.masking",
    "masks.max_units_ratio": "method.most_units",
    "replay.images": "method.replay",
    "replay.keep_fraction": "method.keep",
    "replay.classifier": "method.solver",
    "replay.real_fraction": "method.real_now",
    "replay.distill_weight": "method.distil",
    "exemplars.ratio": "method.r",
    "exemplars.budget": "method.K",
    "exemplars.per_class": "method.samples",
}
VALUES_BEFORE = {
    ("classifier.architecture", "convnet"): "digits",
    ("replay.classifier", "generated"): "symmetric",
    ("replay.classifier", "critic"): "shared",
}


def before(settings: Settings) -> Settings:
    """The same by the names and values of versions before 0.2."""

    def old(name: str) -> str:
        group, _, field = name.partition(".")
        kept = {"stream": "stream", "classifier": "training"}
        return BEFORE.get(name) or f"{kept.get(group, 'method')}.{field}"

    return {old(name): VALUES_BEFORE.get((name, value), value) for name, value in settings.items()}


# ---------------------------------------------------------------- what is computed


def in_colour(dataset: Any, datasets: Any) -> Any:
    """The digits in three channels, each with a tone of its own."""

    def coloured(part: Any) -> Any:
        images = part.images.float()
        tones = [images, 255 - images / 2, images / 3 + 40]
        return datasets.Split(torch.cat(tones, 1).round().to(torch.uint8), part.labels)

    return datasets.Dataset(
        "digits",
        dataset.class_names,
        dataset.digest,
        dataset.variant,
        train=coloured(dataset.take_train()),
        test=coloured(dataset.test),
    )


def digest(*tensors: torch.Tensor) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


def learn(method: str, settings: Settings, dataset: Any, order: tuple[int, ...]) -> str:
    """One short stream; what the learner answers and draws, and what has changed of its past, in hashes."""
    import engram

    per_task = settings.get("stream.classes_per_task", 1)
    own = {name: value for name, value in settings.items() if not name.startswith("stream.")}
    if old_checkout():
        own = before(own)
    learner: Any = engram.build(method, dataset, seed=3, settings=own)
    stream = engram.ClassStream(dataset, per_task, order=order, cumulative=method == "joint")
    seen = 0
    for task in stream:
        learner.learn(task)
        seen = len(task.seen)
    found = [f"scores {digest(learner.scores(dataset.test.images[:200]).float())}"]
    if hasattr(learner, "sample"):
        drawn = learner.sample(range(seen), 20, generator=torch.Generator().manual_seed(1))
        found.append(f"drawings {digest(drawn)}")
    if hasattr(learner, "retention"):
        found.append(f"changed {learner.retention()}")
    return ", ".join(found)


def old_checkout() -> bool:
    return importlib.util.find_spec("engram.plastic") is not None


def main(words: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name holds this")
    chosen = parser.parse_args(None if words is None else list(words))
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    datasets = importlib.import_module("engram.data.datasets")
    load = datasets.load if old_checkout() else datasets.load_dataset
    for name, (method, settings) in CASES.items():
        if chosen.only not in name:
            continue
        for channels in (1, 3):
            dataset = load("digits")
            if channels == 3:
                dataset = in_colour(dataset, datasets)
            order = (3, 0, 7) if "stream.classes_per_task" not in settings else (3, 0, 7, 1, 5, 9)
            print(f"{name}, {channels} ch: {learn(method, {**CLASSIFIER, **settings}, dataset, order)}", flush=True)
    if os.environ.get("ENGRAM_DATA"):
        for method in ("dgmw", "dgma"):
            if chosen.only in f"{method}, mnist":
                settings = {**CLASSIFIER, **DGM, "generator.width": 12, "critic.width": 24}
                print(f"{method}, mnist: {learn(method, settings, load('mnist'), (5,))}", flush=True)
    else:
        print("MNIST left out: ENGRAM_DATA is not set", file=sys.stderr)


if __name__ == "__main__":
    main()
