"""The bench's runs placed by Ray, on this machine or on many.

    bench ──> Ray task that holds `threads` cores ──> process `engram run --resume --out FOLDER` on the task's machine

A task does no work of its own: it starts the process, waits for it and returns its exit code. So a run is the same
whoever placed it, and the bench sees how far it has come where it always looks, in the run's folder. A worker that dies
takes its process along (SIGTERM: the run saves), and the bench starts the run again.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engram.errors import ConfigError, missing_extra
from engram.experiment.jobs import Machines, Process

POLL_SECONDS = 0.2
ANSWER_SECONDS = 5.0
PR_SET_PDEATHSIG = 1
REMEDY = "give HOST:PORT of a running cluster, or auto"
DIED = 1
"""Exit code of a run whose worker is gone: not 2, which would be the user's mistake and not tried again."""


@contextmanager
def connected(address: str, *, cores: int) -> Iterator[Machines]:
    """The machines of the cluster at `address`; for `auto` that of a running one, or a Ray of our own with `cores`."""
    try:
        import ray
    except ImportError:
        raise missing_extra("--ray", "ray") from None
    try:
        _join(address, cores)
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        yield Machines([int(resources.get("CPU", 0)) for resources in alive], RayJob)
    finally:
        ray.shutdown()


def _join(address: str, cores: int) -> None:
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    if address != "auto":
        _ask(address)
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        if address != "auto" or not isinstance(error, ConnectionError):
            reason = str(error).strip().partition("\n")[0]
            raise ConfigError(f"--ray {address}: {reason}; {REMEDY}") from None
        ray.init(address="local", num_cpus=cores, include_dashboard=False, **quiet)


def _ask(address: str) -> None:
    """Whether anybody is there: Ray itself keeps trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
    except (OSError, ValueError, OverflowError):
        raise ConfigError(f"--ray {address}: nobody answers there; {REMEDY}") from None


class RayJob:
    """A job wherever Ray has `threads` cores for it; until then it waits in Ray's queue."""

    def __init__(self, command: Sequence[str], log: Path, threads: int) -> None:
        import ray

        where = {name: value for name, value in os.environ.items() if name.startswith("ENGRAM_")}
        task = ray.remote(_keep).options(num_cpus=threads, max_retries=0)
        self._log, self._stop = log, log.with_suffix(".stop").absolute()
        self._stop.unlink(missing_ok=True)
        self._code = task.remote(list(command), log.absolute(), threads, Path.cwd(), where, self._stop)

    def poll(self) -> int | None:
        import ray

        ended, _ = ray.wait([self._code], timeout=0)
        return self.wait() if ended else None

    def interrupt(self) -> None:
        import ray

        self._stop.touch()
        ray.cancel(self._code)  # for a task that still waits; to one that runs Ray's word may be lost

    def wait(self) -> int:
        import ray

        try:
            code = int(ray.get(self._code))
            self._stop.unlink(missing_ok=True)
            return code
        except ray.exceptions.RayError as error:
            with self._log.open("a") as log:  # where the bench looks for the reason
                print(f"\n{error}", file=log)
            return DIED


def _keep(command: Sequence[str], log: Path, threads: int, cwd: Path, where: Mapping[str, str], stop: Path) -> int:
    """The task: one process from its start to its end.

    `where`: the variables that say where data sets lie. `stop`: a file that appears when the process is to stop.
    """
    os.environ.update(where)
    process, asked = Process([sys.executable, *command[1:]], log, threads, cwd=cwd, preexec_fn=_tie()), False
    while True:
        try:
            if (code := process.poll()) is not None:
                return code
            if not asked and stop.exists():
                asked = True
                process.interrupt()
            time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:  # Ray's way to cancel a task, beside the file
            if not asked:
                asked = True
                process.interrupt()


def _tie() -> Callable[[], None] | None:
    """What a new process does before it becomes the command: hang its life on this one's, where the system can."""
    if sys.platform != "linux":
        return None
    libc: Any = ctypes.CDLL(None)  # now: a process that has just been forked should load nothing
    parent = os.getpid()

    def tie() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray's workers are started with it blocked
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before we asked to be told
            os._exit(DIED)

    return tie
