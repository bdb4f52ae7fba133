"""How much memory a process has held. No torch."""

from __future__ import annotations

import sys


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
