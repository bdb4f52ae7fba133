"""Broken files of every kind: whatever is in them, one line comes out, in bounded time and memory. See fuzzing/."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fuzzing.planted import FAULTS
from fuzzing.readers import READERS

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="watches its children by Linux's /proc"),
    pytest.mark.xdist_group("fuzz"),
]
TESTS = Path(__file__).parent
CRASHERS = [json.loads(line) for line in (TESTS / "fuzzing" / "crashers.jsonl").read_text().splitlines()]
"""What broke a reader once: the case, and what came of it then."""


class Fuzz:
    """A process that has imported everything once, and forks from there."""

    def __init__(self) -> None:
        paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "fuzzing", "--serve"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(words, env=environment, **pipes)

    def asked(self, **request: Any) -> dict[str, Any]:
        """What came of it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@pytest.fixture(scope="module")
def fuzz() -> Iterator[Fuzz]:
    made = Fuzz()
    yield made
    assert made.process.stdin is not None
    assert made.process.stdout is not None
    made.process.stdin.close()
    made.process.stdout.close()
    assert made.process.wait(60) == 0


@pytest.mark.parametrize("reader", READERS)
def test_a_broken_file_is_read_or_refused_in_one_line(reader: str, fuzz: Fuzz) -> None:
    """The good folders, which are the first inputs, are read without a word."""
    found = fuzz.asked(reader=reader)
    assert not found["failures"], found["told"]


@pytest.mark.parametrize("reader", sorted({one["reader"] for one in CRASHERS}))
def test_what_broke_a_reader_once_breaks_it_no_more(reader: str, fuzz: Fuzz) -> None:
    own = [{key: one[key] for key in ("reader", "base", "edits")} for one in CRASHERS if one["reader"] == reader]
    found = fuzz.asked(cases=own)
    assert not found["failures"], found["told"]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fuzz_would_notice(fault: str, fuzz: Fuzz) -> None:
    """A reader that does what no reader may, as soon as its file is not the good one."""
    found = fuzz.asked(reader=fault, **({"seconds": 0.5} if fault == "slow" else {}))
    assert found["failures"] == [FAULTS[fault][1]]
