"""Mixed precision: forward passes of training in bfloat16, and everything that is kept in float32."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import SMALL_GAN, write_npz
from engram.config import TrainingConfig
from engram.errors import RunError
from engram.experiment.reopen import reopen
from engram.experiment.run import Request
from engram.methods.learner import Surroundings
from engram.methods.registry import configure


def test_float32_is_computed_without_any_context() -> None:
    around = Surroundings(1, TrainingConfig(), None)
    with around.lowered():
        assert not torch.is_autocast_enabled("cpu")
    with Surroundings(1, TrainingConfig(), None, precision="bfloat16").lowered():
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16


def run(folder: Path, method: str, *settings: str) -> None:
    """As a process of its own: some CPUs promise more bfloat16 than they have, and end the process that believes it."""
    data = write_npz(folder / "tiny.npz", per_class=20)
    command = [sys.executable, "-m", "engram", "run", "--dataset", f"npz:{data}", "--method", method]
    chosen = ["runtime.precision=bfloat16", "runtime.device=cpu", "runtime.threads=1", *settings]
    chosen += ["stream.classes_per_task=2", "training.batch_size=8", "training.augment=none", "training.width=4"]
    command += ["--out", str(folder / "run"), *(word for text in chosen for word in ("--set", text))]
    held = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    done = subprocess.run(command, env=held, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("network", ["dcgan", "residual"])
def test_dgm_learns_in_bfloat16_and_keeps_its_promise(network: str, tmp_path: Path) -> None:
    small: dict[str, Any] = {**SMALL_GAN, "network": network, "critic_width": 4, "steps": 30, "replay": 128}
    if network == "residual":  # a few steps: CPUs without bfloat16 take ten times as long with it
        small |= {"critic": "resnet18", "critic_start": "warm", "critic_width": 2, "epochs": 2, "steps": 2}
        small |= {"statistics": 1, "replay": 16}
    run(tmp_path, "dgmw", *(f"method.{name}={value}" for name, value in small.items()))
    opened = reopen(tmp_path / "run")
    checked = [line["changed"] for line in opened.records if line["kind"] == "retention"]
    assert checked == [[], []]  # by the process that drew them
    found = [tensor for tensor in leaves(opened.state) if tensor.is_floating_point()]
    assert found
    assert {tensor.dtype for tensor in found} <= {torch.float32, torch.float64}
    assert all(tensor.isfinite().all() for tensor in found)
    if network == "dcgan":
        assert next(line["accuracy"] for line in opened.records if line["kind"] == "evaluation") > 0.7


def test_a_rival_learns_in_bfloat16(tmp_path: Path) -> None:
    small = {"width": 4, "noise": 8, "epochs": 2, "steps": 2, "critic_width": 4, "replay": 32, "statistics": 2}
    run(tmp_path, "mergan-ra", *(f"method.{name}={value}" for name, value in small.items()))
    found = [tensor for tensor in leaves(reopen(tmp_path / "run").state) if tensor.is_floating_point()]
    assert {tensor.dtype for tensor in found} <= {torch.float32, torch.float64}
    assert all(tensor.isfinite().all() for tensor in found)


def test_a_run_keeps_its_precision(tmp_path: Path) -> None:
    stored = configure(method="joint")
    assert Request(settings={"runtime.threads": 1}).over(stored, tmp_path).runtime.threads == 1
    with pytest.raises(RunError, match=r"runtime\.precision"):
        Request(settings={"runtime.precision": "bfloat16"}).over(stored, tmp_path)


def leaves(state: object) -> list[torch.Tensor]:
    if isinstance(state, dict):
        return [leaf for value in state.values() for leaf in leaves(value)]
    return [state] if isinstance(state, torch.Tensor) else []
