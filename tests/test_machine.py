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
from engram.experiment.machine import (
    available_cores,
    default_threads,
    granted_cores,
    peak_bytes,
    prepare,
    threads_worth_having,
)
from engram.methods.registry import configure


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


def test_two_runs_of_small_networks_do_not_fight_for_cores_and_large_ones_take_all() -> None:
    small = [configure(dataset="mnist", method=name) for name in ("dgmw", "dgma", "dgr", "ewcm")]
    large = [
        configure(dataset="cifar10", method="dgmw", preset="cifar10"),
        configure(dataset="imagenet50", method="dgmw", preset="imagenet50-small"),
        configure(dataset="mnist", method="joint"),
        configure(dataset="mnist", method="slda"),
    ]
    assert [threads_worth_having(config) for config in small] == [1] * len(small)
    assert [threads_worth_having(config) for config in large] == [None] * len(large)


def test_threads_are_bounded_only_where_no_user_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engram.experiment.machine.available_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert (default_threads(World(), 1), default_threads(World()), default_threads(World(0, 4, 0, 2), 3)) == (1, 8, 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert default_threads(World(), 1) == 5


@pytest.mark.parametrize(
    ("files", "lines", "cores"),
    [
        ({"a/b/cpu.max": "150000 100000"}, "0::/a/b", 1.5),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, "0::/a/b", 0.5),
        ({"a/b/cpu.max": "max 100000"}, "0::/a/b", None),
        ({"cpu.max": "200000 100000"}, "0::/", 2.0),
        ({"cpu/x/cpu.cfs_quota_us": "300000\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, "3:cpu,cpuacct:/x", 3.0),
        ({"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, "3:cpu:/x\n4:memory:/y", None),
        ({"cpu.max": "garbage"}, "0::/", None),
        ({"cpu.max": "100 0"}, "0::/", None),
        ({}, "nonsense\n0::/a", None),
    ],
)
def test_a_control_group_grants_so_many_cores(
    tmp_path: Path, files: dict[str, str], lines: str, cores: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text)
    (tmp_path / "own").write_text(lines)
    assert granted_cores(tmp_path / "fs", tmp_path / "own") == cores


def test_less_than_a_core_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engram.experiment.machine.granted_cores", lambda: 0.5)
    assert available_cores() == 1
