"""What a run is told of the machine."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engram.config import RuntimeSettings
from engram.distributed import World
from engram.experiment.machine import available_cores, default_threads, peak_bytes, prepare


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="other systems tell no more than getrusage does")
def test_the_peak_of_a_process_is_its_own_and_not_that_of_whoever_started_it() -> None:
    held = bytearray(b"\1") * 900_000_000
    code = "from engram.experiment.machine import peak_bytes; print(peak_bytes())"
    child = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(child.stdout) < 600_000_000 < len(held) < (peak_bytes() or 0)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has its own ways")
def test_memory_that_a_step_frees_is_there_for_the_next() -> None:
    code = """
import ctypes, resource, sys, torch
from engram.experiment.machine import keep_memory
mallopt = ctypes.CDLL(None).mallopt
assert mallopt(-1, 2**17) and mallopt(-3, 2**17)  # as glibc begins, before it adapts to what it is asked for
if sys.argv[1] == "kept":
    assert keep_memory()
def step():
    return [torch.ones(10_000 * n) for n in range(1, 60)]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
before = faults()
for _ in range(50):
    step()
print(faults() - before)
"""
    asked, kept = (
        int(subprocess.run([sys.executable, "-c", code, how], check=True, capture_output=True, text=True).stdout)
        for how in ("plain", "kept")
    )
    assert kept < 1000 < asked  # a step takes 70 MB, pages have 4 kB


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch brings another OpenMP, which need not tell")
def test_numbers_next_to_nothing_are_nothing_in_every_thread_even_one_from_before() -> None:
    code = """
import torch
from engram.config import RuntimeSettings
from engram.experiment.machine import prepare
torch.set_num_threads(2)
def tiny():
    small = torch.full((1024, 1024), 1e-30)
    return [int((small * 1e-10).count_nonzero()), int((small @ torch.full((1024, 1024), 1e-13)).count_nonzero())]
before = tiny()  # the second thread is there from now on
prepare(RuntimeSettings(device="cpu", threads=2))
print(before, tiny())
"""
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told.strip() == "[1048576, 1048576] [0, 0]"


@pytest.mark.parametrize(
    ("said", "here", "threads"),
    [
        (None, World(), available_cores()),
        ("3", World(), 3),
        (" 2 ", World(), 2),
        ("1", World(), 1),
        *((nonsense, World(), available_cores()) for nonsense in ("", "0", "-1", "4,2", "many", "1.5")),
        (None, World(0, 4, 0, 2), max(1, available_cores() // 2)),
        (None, World(0, 99, 0, 99), 1),
        ("3", World(0, 4, 0, 2), 3),
        ("1", World(0, 4, 0, 2), max(1, available_cores() // 2)),  # torchrun's own guess, not a user's wish
    ],
)
def test_as_many_threads_as_the_user_has_said(
    said: str | None, here: World, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert default_threads(here) == threads


def test_the_setting_goes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    try:
        prepare(RuntimeSettings(device="cpu"))
        assert torch.get_num_threads() == 3
        prepare(RuntimeSettings(device="cpu", threads=2))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
