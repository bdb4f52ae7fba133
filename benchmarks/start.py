"""How long one waits before anything happens: `engram --help`, `import engram`, and what is under them.

    python benchmarks/start.py [--rounds 5]

Whole processes, in turn, best of several. Python's own start is part of each figure and stands beside.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import clock

BARS = {"engram --help": 0.3, "import engram": 0.5}


def commands() -> dict[str, list[str]]:
    python, script = sys.executable, Path(sys.executable).with_name("engram")
    return {
        "python -c pass": [python, "-c", "pass"],
        "import engram": [python, "-c", "import engram"],
        "engram --help": [str(script), "--help"] if script.exists() else [python, "-m", "engram", "--help"],
        "engram report --help": [python, "-m", "engram", "report", "--help"],
        "from engram import build": [python, "-c", "from engram import build"],
        "import torch": [python, "-c", "import torch"],
    }


def main() -> None:
    asks = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asks.add_argument("--rounds", type=int, default=5)
    given = asks.parse_args()
    print(clock.machine())
    run = partial(subprocess.run, stdout=subprocess.DEVNULL, check=True)
    ways: dict[str, Callable[[], object]] = {name: partial(run, command) for name, command in commands().items()}
    print("\nseconds")
    for name, took in clock.best(ways, rounds=given.rounds).items():
        bar = f"  (bar {BARS[name]})" if name in BARS else ""
        print(f"{name:26}  {took:5.3f}{bar}")


if __name__ == "__main__":
    main()
