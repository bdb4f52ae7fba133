"""Kill a run at random moments, resume it each time: it ends with the bits of a run that was left alone.

ENGRAM_KILLS sets how often (default 4, to keep the tests short).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import write_npz
from engram.experiment.records import read_records

KILLS = int(os.environ.get("ENGRAM_KILLS", "4"))


def words(npz: Path, folder: Path, epochs: int, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "engram", "run", "--dataset", f"npz:{npz}", "--method", "joint", "--out", str(folder),
        "--set", f"classifier.epochs={epochs}", "--set", "classifier.batch_size=8", "--set", "runtime.threads=1",
        "--set", "runtime.checkpoint_seconds=0.2", *more,
    ]  # fmt: skip


def outcome(folder: Path) -> tuple[list[object], bytes]:
    records: list[object] = [r for r in read_records(folder) if r["kind"] != "timing"]
    return records, next(folder.glob("checkpoint-*.safetensors")).read_bytes()


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_killed_at_random_moments_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    npz = write_npz(tmp_path / "data.npz")
    epochs = 16
    began = time.monotonic()
    subprocess.run(words(npz, tmp_path / "whole", epochs), check=True, capture_output=True)
    length = time.monotonic() - began
    expected = outcome(tmp_path / "whole")
    draws = random.Random(11)
    killed = rounds = 0
    while killed < KILLS:  # a run that reaches its end is compared, and another one is started
        rounds += 1
        folder = tmp_path / f"killed{rounds}"
        resume = words(npz, folder, epochs, "--resume")
        done = False
        while not done:
            process = subprocess.Popen(resume, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            # some land in the start, some in the middle of writing, some in training
            patience = draws.uniform(0.5, 0.6 * length) if killed < KILLS else None
            try:
                _, err = process.communicate(timeout=patience)
                assert process.returncode == 0, err
                done = True
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
                killed += 1
        assert outcome(folder) == expected
        assert not [p.name for p in folder.iterdir() if p.name.endswith(".tmp")]


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_stop_saves_and_says_how_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    npz = write_npz(tmp_path / "data.npz")
    folder = tmp_path / "run"
    process = subprocess.Popen(words(npz, folder, 60), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not any(r["kind"] == "epoch" for r in read_records(folder)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"go on with: engram run --resume --out {folder}" in out
    before = sum(1 for _ in read_records(folder))
    again = subprocess.Popen(
        [sys.executable, "-m", "engram", "run", "--resume", "--out", str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while sum(1 for _ in read_records(folder)) <= before:
        assert again.poll() is None, again.communicate()
        time.sleep(0.05)
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=60)
    assert again.returncode == 130
