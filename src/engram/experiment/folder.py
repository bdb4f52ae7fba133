"""A run folder: what makes a folder one, and the lock that keeps a second process out.

RUN/
  config.json          the complete configuration and the data's digest; enough to run it again
  environment.json     versions, processor, threads, commit; one entry per start
  records.jsonl        the facts
  checkpoint.json      the last good state, and the one before it (see checkpoint.py)
  checkpoint-N.safetensors
  parts/               what never changes again, such as engrams: a file each, named by its SHA-256
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import filelock
import torch

from engram import __version__, distributed
from engram.config import Config, as_dict, from_dict
from engram.data.datasets import Dataset
from engram.errors import EngramError, InUseError, RunError
from engram.experiment.files import CONFIG, LOCK, os_errors, read_json, write_json
from engram.experiment.records import FORMAT, require_format
from engram.methods.registry import find_method

ENVIRONMENT = "environment.json"
PATIENCE = 1.0
"""Seconds: somebody may be looking whether the lock is held, which takes a moment of holding it."""
VARIABLES = (
    *(f"{head}_{tail}" for head in ("DNNL", "ONEDNN") for tail in ("CPU_ISA_HINTS", "DEFAULT_FPMATH_MODE")),
    *("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "MKL_NUM_THREADS", "MKL_DYNAMIC"),
    "MKL_THREADING_LAYER",
)
"""Those that change how oneDNN and MKL compute. A model is handed on: of the others, such as paths, it says nothing."""
PACKAGES = ("torch", "numpy", "scipy", "pillow", "safetensors")


@dataclass(frozen=True)
class Origin:
    """What `config.json` holds: the configuration, and which data it was started on."""

    config: Config
    data: dict[str, Any]


def describe_data(dataset: Dataset) -> dict[str, Any]:
    """The data set as records name it: the digest says exactly which images these are, or vectors by which backbone."""
    made = {} if dataset.backbone is None else {"backbone": dataset.backbone.as_dict()}
    return {"name": dataset.name, "variant": dataset.variant, "digest": dataset.digest, **made}


def is_run(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def is_blank(folder: Path) -> bool:
    """Missing, or holding nothing but a lock: what a run killed in its first moments leaves."""
    return not folder.exists() or (folder.is_dir() and all(p.name.startswith(".") for p in folder.iterdir()))


def require_blank(folder: Path) -> None:
    """A new run starts in a folder that holds nothing yet."""
    if is_run(folder):
        raise RunError(f"{folder} already holds a run: go on with it by --resume, or choose another --out")
    if not is_blank(folder):
        raise RunError(f"{folder} holds other files and is not a run folder: choose another --out")


def read_origin(folder: Path) -> Origin:
    """What the run in this folder was started with."""
    if not is_run(folder):
        what = "is not a run folder: it has no config.json" if folder.exists() else "does not exist"
        raise RunError(f"{folder} {what}; give the folder that `engram run` printed, or start a run without --resume")
    return origin_of(folder / CONFIG)


def origin_of(path: Path) -> Origin:
    """What a run's `config.json` holds."""
    plain = read_json(path)
    parts = plain if isinstance(plain, dict) else {}
    config, data = parts.get("config"), parts.get("data")
    if not isinstance(config, dict) or not isinstance(data, dict) or not isinstance(config.get("method"), str):
        raise RunError(f"{path} is not a run's configuration; choose another folder")
    require_format(path, parts)
    try:
        return Origin(from_dict(config, find_method(config["method"]).settings), data)
    except EngramError as error:
        raise RunError(f"{path} cannot be used: {error}") from None


def write_origin(folder: Path, origin: Origin) -> None:
    write_json(folder / CONFIG, {"format": FORMAT, "config": as_dict(origin.config), "data": origin.data})


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. The system gives it back when the process ends, however it ends."""
    with os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / LOCK)
    with os_errors(folder / LOCK):
        try:
            lock.acquire(timeout=PATIENCE)
        # errors of the system too, so they are caught first; the folder is gone where its holder was done with it
        except (filelock.Timeout, FileNotFoundError):
            raise InUseError(f"{folder} is in use by another process; wait for it or choose another --out") from None
    try:
        yield
    finally:
        lock.release()


def note_environment(folder: Path, device: torch.device) -> list[str]:
    """Add this start to `environment.json`; the differences to the first start that may change bits."""
    here = environment(device)
    path = folder / ENVIRONMENT
    starts = read_json(path) if path.exists() else []
    if not isinstance(starts, list):
        raise RunError(f"{path} is damaged: it must hold a list; remove it to go on")
    write_json(path, [*starts, here])
    return _differences(starts[0], here) if starts else []


def environment_of(folder: Path) -> dict[str, Any]:
    """Where the run's last start computed; nothing where nobody noted it."""
    path = folder / ENVIRONMENT
    starts = read_json(path) if path.exists() else []
    return starts[-1] if isinstance(starts, list) and starts and isinstance(starts[-1], dict) else {}


def _differences(before: dict[str, Any], here: dict[str, Any]) -> list[str]:
    return [f"{key}: {before.get(key)} -> {value}" for key, value in here.items() if before.get(key, value) != value]


def environment(device: torch.device) -> dict[str, Any]:
    """Where this process computes."""
    versions = {"engram": __version__}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "cpu": _cpu(),
        "instructions": _instructions(),
        "libraries": _libraries(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": distributed.world().size,
        "device": _device_name(device),
        "versions": versions,
        "commit": _commit(),
    }


def _cpuinfo() -> dict[str, str]:
    """What Linux says of its first processor; nothing elsewhere."""
    found: dict[str, str] = {}
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            first = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0]
            found = {
                key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())
            }
    return found


def _processor() -> str:
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def _cpu() -> str | None:
    """What tells processors of one name apart: libraries choose their code by it; None where the system is silent."""
    found = _cpuinfo()
    parts = [f"{key} {found[key]}" for key in ("cpu family", "model", "stepping") if key in found]
    if "flags" in found:
        parts.append(f"flags {hashlib.sha256(' '.join(sorted(found['flags'].split())).encode()).hexdigest()[:8]}")
    return ", ".join(parts) or None


def _instructions() -> str:
    """Which vector instructions torch and oneDNN compute with: they decide in which order sums are added up."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA")  # its older name
    found = torch.backends.cpu.get_cpu_capability()
    return f"{found}, oneDNN at most {limit}" if limit else found


def _libraries() -> str:
    """How torch's numeric libraries are set, where it decides last bits."""
    parts = ["oneDNN" if torch.backends.mkldnn.enabled else "without oneDNN"]
    return ", ".join(parts + [f"{name}={os.environ[name]}" for name in VARIABLES if os.environ.get(name)])


def _device_name(device: torch.device) -> str:
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def _commit() -> str | None:
    """The commit of the code that runs, with a mark where files were changed; None outside a checkout."""
    file = Path(__file__).resolve()

    def asked(*words: str) -> str:
        # not `describe --dirty`: it takes the index's lock whatever it is told, in the way of whoever commits just then
        command = ["git", "--no-optional-locks", "-C", str(file.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        asked("ls-files", "--error-unmatch", file.name)
        changed = asked("status", "--porcelain", "--untracked-files=no")
        return asked("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
