"""Run folders that no run ever made: records with figures that a test can work out by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TEST_IMAGES = 1000
"""Of every class."""


def write_run(
    folder: Path,
    *,
    method: str = "dgmw",
    seed: int = 0,
    order_seed: int | None = None,
    dataset: str = "mnist",
    variant: str = "standard",
    strict: bool = True,
    bound: str | None = None,
    accuracy: Sequence[float] = (1.0, 0.98, 0.96),
    tasks: int | None = None,
    names: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    generative: bool = True,
    quality: bool = False,
    mask_steps: int = 4,
    seconds: float = 60.0,
    cpu: float | None = None,
    validation: float = 0.0,
    kept: float = 0.95,
    attack: float = 0.5,
    reach: float | None = None,
    more: Sequence[str] = (),
) -> Path:
    """`accuracy[t]`: A_t after task t; every class seen is answered equally well. Fewer than `tasks`: unfinished.

    `validation`: share held out; with 0 there are no records of calibration and privacy, and the configuration does not
    name it, as none did once. `kept`, `attack`, `reach`: see `_held_out`.
    """
    count = tasks or len(accuracy)
    names = list(names or [str(c) for c in range(count)])
    head = {
        "kind": "run", "format": 2, "dataset": {"name": dataset, "variant": variant, "digest": f"{dataset}-{variant}"},
        "method": method, "bound": bound, "strict": strict, "seed": seed, "order_seed": order_seed,
        "tasks": [[c] for c in range(count)], "class_names": names, "shape": [1, 32, 32], "images": [6000] * count,
    }  # fmt: skip
    lines: list[dict[str, Any]] = [head]
    for t, share in enumerate(accuracy):
        lines.append({"kind": "epoch", "task": t, "epoch": 0, "losses": {"class": 0.1}})
        if generative:
            lines += _generative(t, mask_steps)
        if quality:
            measured = {"recognised": [0.9] * (t + 1), "precision": [None] * t + [0.7], "recall": [None] * t + [0.6]}
            lines.append({"kind": "quality", "task": t, "classes": names[: t + 1], **measured})
        right = round(share * TEST_IMAGES)
        confusion = [
            [right if i == j else (TEST_IMAGES - right) * (j == (i + 1) % (t + 1)) for j in range(t + 1)]
            for i in range(t + 1)
        ]
        lines.append(
            {"kind": "evaluation", "task": t, "classes": list(range(t + 1)), "accuracy": share, "macro": share,
             "top5": None, "per_class": [share] * (t + 1), "confusion": confusion,
             "forgetting": round(1 - share, 6) if t else 0.0, "backward_transfer": 0.0}
        )  # fmt: skip
        if validation:
            lines += _held_out(t, count, names[t], kept, attack, reach)
        lines.append(
            {"kind": "timing", "task": t, "seconds": seconds, "evaluation_seconds": 0.1,
             **({} if cpu is None else {"cpu_seconds": cpu}),
             "step_seconds": [None, 0.01 * (t + 1), 0.01 * (t + 1), 0.5], "peak_bytes": 10**8 + t * 10**6}
        )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "".join(more))
    config: dict[str, Any] = {
        "dataset": dataset, "method": method, "preset": "auto", "seed": seed, "order_seed": order_seed,
        "stream": {"classes_per_task": 1, "order": None}, "classifier": {"epochs": 3, "learning_rate": 0.003},
        "generator": {"width": 12}, "exemplars": {"ratio": 0.0, "budget": 0},
        "runtime": {"device": "auto", "threads": seed},
    }  # fmt: skip
    if validation:
        config["stream"]["validation"] = validation
    for key, value in (settings or {}).items():
        group, _, name = key.partition(".")
        config.setdefault(group, {})[name] = value
    (folder / "config.json").write_text(json.dumps({"format": 2, "config": config, "data": head["dataset"]}))
    return folder


def _generative(t: int, mask_steps: int) -> list[dict[str, Any]]:
    """Of every task's 10 units, 10 - t are new; the generator grows by as many."""
    values = [0.5, 0.2, 0.9, 1.0]
    masks = [
        {"kind": "mask", "task": t, "epoch": e + 1, "s": 1.0, "occupancy": [0.6, 0.5], "sample": [values, values]}
        for e in range(mask_steps)
    ]
    before = 20 + sum(10 - i for i in range(t))
    layer = {
        "newly_reserved": 10 - t, "reused": t, "unused": 5, "units_before": before, "units_after": before + 10 - t,
        "weights_before": 100 * before, "weights_after": 100 * (before + 10 - t),
    }  # fmt: skip
    return [
        *masks,
        {"kind": "growth", "task": t, "layers": [layer]},
        {"kind": "memory", "task": t, "bytes": {"weights": 1_000_000 * (t + 1), "masks": 24_000, "exemplars": 0}},
        {"kind": "retention", "task": t, "classes": t + 1, "changed": []},
    ]


def _held_out(t: int, count: int, name: str, kept: float, attack: float, reach: float | None) -> list[dict[str, Any]]:
    """Of the first task, all is kept; of task t > 0, `kept` + t %. Of class t, the attack's AUC is `attack` + 2 t %.

    `reach`: of typical images; None as in records that were made before there was such a thing.
    """
    trust = {"ece_before": 0.02 * (t + 1), "ece": 0.01 * (t + 1), "kept": kept + 0.01 * t if t else 1.0}
    if reach is not None:
        trust["reach"] = reach
    if 0 < t < count - 1:
        trust |= {"unknown": 1000 * (count - t - 1), "auroc": 0.9 - 0.1 * t, "rejected": 0.1 * t}
    auc = attack + 0.02 * t
    pixels = {
        "to_training": 0.3, "to_held_out": 0.3, "nearer_to_training": [0.5, 0.4, 0.6],
        "near_copies": [0.01 * t, 0.0, 0.1], "near_copies_of_real": [0.04 * (t == 2), 0.0, 0.1],
        "attack": [auc, auc - 0.05, auc + 0.05],
    }  # fmt: skip
    features = {**pixels, "nearer_to_training": [0.45, 0.35, 0.55], "attack": [0.4, 0.3, 0.5]}
    outcome = "copies" if auc > 0.6 else "leans" if auc > 0.55 else "no sign"
    found = {"class_index": t, "drawings": 1000, "training": 4000, "held_out": 500, "outcome": outcome, "verdict": "…"}
    return [
        {"kind": "calibration", "task": t, "temperature": 1.5, "threshold": 0.4, "tested": 1000 * (t + 1), **trust},
        {"kind": "privacy", "task": t, "classes": [name], "found": [{**found, "pixels": pixels, "features": features}]},
    ]
