"""The soak in short: a few trials lose nothing, and where something is lost it says so. See soak.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="forks and sends signals")
SOAK = Path(__file__).with_name("soak.py")


def soak(*words: str, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SOAK), *words, "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


def test_disturbed_at_random_nothing_is_lost(tmp_path: Path) -> None:
    done = soak("--trials", "1", "--seed", "1", out=tmp_path / "lost")
    assert done.returncode == 0, done.stdout + done.stderr
    tried, words = done.stdout.splitlines()[-1].split(maxsplit=1)
    assert int(tried) > 3
    assert words == "tried, 0 lost"
    assert not (tmp_path / "lost").exists()


def test_a_bit_that_is_lost_is_noticed_and_kept(tmp_path: Path) -> None:
    done = soak("--trials", "1", "--seed", "1", "--harm", out=tmp_path / "lost")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith("tried, 1 lost")
    assert (tmp_path / "lost/1-0/run/config.json").is_file()
