"""Mixed precision: forward passes of training in bfloat16, and everything that is kept in float32."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import SMALL_GAN, context, write_npz
from engram.errors import RunError
from engram.experiment import checkpoint
from engram.experiment.records import read_records
from engram.experiment.request import Request
from engram.methods.registry import configure


def test_float32_is_computed_without_any_context() -> None:
    with context("joint").autocast():
        assert not torch.is_autocast_enabled("cpu")
    with context("joint", precision="bfloat16").autocast():
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16


def run(folder: Path, method: str, *settings: str) -> None:
    """As a process of its own: some CPUs promise more bfloat16 than they have, and end the process that believes it."""
    data = write_npz(folder / "tiny.npz", per_class=20)
    command = [sys.executable, "-m", "engram", "run", "--dataset", f"npz:{data}", "--method", method]
    chosen = ["runtime.precision=bfloat16", "runtime.device=cpu", "runtime.threads=1", *settings]
    chosen += ["stream.classes_per_task=2", "classifier.batch_size=8", "classifier.augment=none", "classifier.width=4"]
    command += ["--out", str(folder / "run"), *(word for text in chosen for word in ("--set", text))]
    held = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    done = subprocess.run(command, env=held, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("architecture", ["dcgan", "residual"])
def test_dgm_learns_in_bfloat16_and_keeps_its_promise(architecture: str, tmp_path: Path) -> None:
    small: dict[str, Any] = {**SMALL_GAN, "generator.architecture": architecture, "critic.width": 4}
    small |= {"gan.steps": 30, "replay.images": 128}
    if architecture == "residual":  # a few steps: CPUs without bfloat16 take ten times as long with it
        small |= {"critic.architecture": "resnet18", "critic.start": "warm", "critic.width": 2, "gan.epochs": 2}
        small |= {"gan.steps": 2, "generator.bn_batches": 1, "replay.images": 16}
    run(tmp_path, "dgmw", *(f"{name}={value}" for name, value in small.items()))
    records = list(read_records(tmp_path / "run"))
    checked = [line["changed"] for line in records if line["kind"] == "retention"]
    assert checked == [[], []]  # by the process that drew them
    found = [tensor for tensor in leaves(state_of(tmp_path / "run")) if tensor.is_floating_point()]
    assert found
    assert {tensor.dtype for tensor in found} <= {torch.float32, torch.float64}
    assert all(tensor.isfinite().all() for tensor in found)
    if architecture == "dcgan":
        assert next(line["accuracy"] for line in records if line["kind"] == "evaluation") > 0.7


def test_a_baseline_learns_in_bfloat16(tmp_path: Path) -> None:
    small = {"generator.width": 4, "generator.latent_dim": 8, "generator.bn_batches": 2, "critic.width": 4}
    small |= {"gan.epochs": 2, "gan.steps": 2, "replay.images": 32}
    run(tmp_path, "mergan-ra", *(f"{name}={value}" for name, value in small.items()))
    found = [tensor for tensor in leaves(state_of(tmp_path / "run")) if tensor.is_floating_point()]
    assert {tensor.dtype for tensor in found} <= {torch.float32, torch.float64}
    assert all(tensor.isfinite().all() for tensor in found)


def test_a_run_keeps_its_precision(tmp_path: Path) -> None:
    stored = configure(method="joint")
    assert Request(settings={"runtime.threads": 1}).over(stored, tmp_path).runtime.threads == 1
    with pytest.raises(RunError, match=r"runtime\.precision"):
        Request(settings={"runtime.precision": "bfloat16"}).over(stored, tmp_path)


def state_of(folder: Path) -> Any:
    saved = checkpoint.load(folder)
    assert saved is not None
    return saved.state


def leaves(state: object) -> list[torch.Tensor]:
    if isinstance(state, dict):
        return [leaf for value in state.values() for leaf in leaves(value)]
    return [state] if isinstance(state, torch.Tensor) else []
