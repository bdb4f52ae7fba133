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
    more: Sequence[str] = (),
) -> Path:
    """`accuracy[t]`: A_t after task t; every class seen is answered equally well. Fewer than `tasks`: unfinished."""
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
        lines.append(
            {"kind": "timing", "task": t, "seconds": seconds, "evaluation_seconds": 0.1,
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
