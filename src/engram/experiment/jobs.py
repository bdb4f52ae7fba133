"""A run as a job: started, asked to stop, waited for. No torch: who only keeps a run need not load it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Job(Protocol):
    """A command under way."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""

    def interrupt(self) -> None:
        """Ask it to save and stop."""

    def wait(self) -> int:
        """Its exit code, when it has ended."""


Launcher = Callable[[Sequence[str], Path, int], Job]
"""Starts a command, with its output in a file, on so many threads."""


@dataclass(frozen=True)
class Machines:
    """Where jobs run."""

    cores: Sequence[int]
    """Of each machine."""
    start: Launcher


class Process(subprocess.Popen[bytes]):
    """A job on this machine."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        threads: int,
        *,
        cwd: Path | None = None,
        preexec_fn: Callable[[], None] | None = None,
    ) -> None:
        with log.open("wb") as output:
            super().__init__(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
                # a group of its own: Ctrl-C reaches the bench, and the bench tells its runs
                start_new_session=True,
                cwd=cwd,
                preexec_fn=preexec_fn,
            )

    def interrupt(self) -> None:
        self.send_signal(signal.SIGINT)
