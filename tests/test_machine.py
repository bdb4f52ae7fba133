"""What a run is told of the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engram.experiment.machine import peak_bytes


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="other systems tell no more than getrusage does")
def test_the_peak_of_a_process_is_its_own_and_not_that_of_whoever_started_it() -> None:
    held = bytearray(b"\1") * 900_000_000
    code = "from engram.experiment.machine import peak_bytes; print(peak_bytes())"
    child = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(child.stdout) < 600_000_000 < len(held) < (peak_bytes() or 0)
