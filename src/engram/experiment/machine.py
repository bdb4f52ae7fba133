"""The machine that a run computes on: its device, its cores, its memory."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from pathlib import Path

import torch

from engram import distributed
from engram.config import MOST_THREADS, Config, RuntimeSettings, groups_of
from engram.errors import ConfigError


def prepare(runtime: RuntimeSettings, *, most: int | None = None) -> torch.device:
    """Choose the device and make torch compute the same bits every time.

    `most`: threads at most, where no user says how many.
    """
    keep_memory()
    flush_denormals()
    here = distributed.launched()
    torch.set_num_threads(runtime.threads or default_threads(here, most))
    # as `use_deterministic_algorithms(True, warn_only=True)`, which imports torch's compiler: a third of the start
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs time
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # oneDNN keeps what it compiled for 1,024 shapes, and a network that grows has ever new ones: a third of the memory
    # at the same speed
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    wanted = runtime.device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if here.many and wanted == "cuda":
        wanted = f"cuda:{here.local_rank}"
    try:
        device = torch.device(wanted)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError):
        raise ConfigError(f"runtime.device={wanted!r} is not available here; use cpu or auto") from None
    return device


def default_threads(here: distributed.World, most: int | None = None) -> int:
    """As many as OMP_NUM_THREADS says, where a user has set it; else the cores shared out among local processes, up to
    `most`.

    torchrun sets the variable to 1 for want of a better guess, which is no user's wish.
    """
    wished = os.environ.get("OMP_NUM_THREADS", "").strip()
    said = int(wished) if wished.isdecimal() and len(wished) <= len(str(MOST_THREADS)) else 0
    if 1 <= said <= MOST_THREADS and not (here.many and said == 1):
        return said
    cores = max(1, available_cores() // here.local_size)
    return cores if most is None else min(cores, most)


LARGE = ("residual", "resnet18")
"""Networks that gain from a second thread."""


def threads_worth_having(config: Config) -> int | None:
    """How many threads are of use; None: all that there are.

    A GAN of small networks in small batches takes 1.6 times the processor's time with two, and is hardly faster. Two
    such runs at once took many times as long as one after the other: threads that wait for each other spin.
    """
    groups = groups_of(config)
    networks = [groups[name] for name in ("generator", "critic", "classifier") if name in groups]
    small = "gan" in groups and not any(getattr(group, "architecture", None) in LARGE for group in networks)
    return 1 if small else None


def available_cores() -> int:
    """Cores that this process may use: by its affinity, and by what its control group grants."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = granted_cores()
    return cores if granted is None else max(1, min(cores, math.ceil(granted)))


def granted_cores(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Cores' worth of time that Linux grants the control group, the least of its own and those around it; None: all.

    Version 2 has `cpu.max`, such as "150000 100000", in every group's folder; version 1 two files below `cpu`. In a
    container the own group is the root of what is seen.
    """
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return None
    found = []
    for _, controllers, path in (line for line in lines if len(line) == 3):
        base = root if not controllers else root / "cpu" if "cpu" in controllers.split(",") else None
        if base is not None:
            inside = base / path.strip("/")
            found += [_granted(folder) for folder in (inside, *inside.parents) if folder.is_relative_to(base)]
    return min((cores for cores in found if cores is not None), default=None)


def _granted(group: Path) -> float | None:
    """By one group's files."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return int(quota) / int(period) if quota != "max" and int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def keep_memory() -> bool:
    """Have freed memory kept for the next step, where the C library is glibc; whether it is.

    By itself glibc gives large blocks back to the system when they are freed, which a step does all the time; the
    system hands them out again page by page, each filled with zeros first. The most that is held stays the same.
    """
    trim_threshold, mmap_threshold = -1, -3
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return False
    return bool(mallopt(mmap_threshold, 2**25) and mallopt(trim_threshold, 2**30))


def flush_denormals() -> bool:
    """Have numbers below 1e-38 taken for 0 by all threads, where the processor can; whether it does.

    Masks that are closing pass through there on their way to 0, and the weights under them. A processor computes with
    such numbers many times more slowly: a step of a late task took twice as long.
    """
    if not torch.set_flush_denormal(True):
        return False
    # A thread has this from the one that started it. Those that are there already are sent away; new ones follow.
    try:
        ctypes.CDLL(None).omp_pause_resource_all(1)
    except (OSError, TypeError, AttributeError):  # another OpenMP, or an old one: its threads stay as they are
        return False
    return True


def peak_bytes() -> int | None:
    """The most memory that this process has held since its program started, where the system tells.

    Linux is asked itself: the usage that it hands to `getrusage` begins with that of whoever started the process.
    """
    try:
        with open("/proc/self/status") as lines:
            held = next((line for line in lines if line.startswith("VmHWM:")), None)
        if held is not None:
            return int(held.split()[1]) * 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
