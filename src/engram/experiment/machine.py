"""The machine that a run computes on: its device, its cores, its memory."""

from __future__ import annotations

import ctypes
import os
import sys

import torch

from engram import distributed
from engram.config import MOST_THREADS, RuntimeSettings
from engram.errors import ConfigError


def prepare(runtime: RuntimeSettings) -> torch.device:
    """Choose the device and make torch compute the same bits every time."""
    keep_memory()
    flush_denormals()
    here = distributed.launched()
    torch.set_num_threads(runtime.threads or default_threads(here))
    # as `use_deterministic_algorithms(True, warn_only=True)`, which imports torch's compiler: a third of the start
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs time
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
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


def default_threads(here: distributed.World) -> int:
    """As many as OMP_NUM_THREADS says, where a user has set it; else the cores shared out among local processes.

    torchrun sets the variable to 1 for want of a better guess, which is no user's wish.
    """
    wished = os.environ.get("OMP_NUM_THREADS", "").strip()
    said = int(wished) if wished.isdecimal() and len(wished) <= len(str(MOST_THREADS)) else 0
    if 1 <= said <= MOST_THREADS and not (here.many and said == 1):
        return said
    return max(1, available_cores() // here.local_size)


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
