"""Many cases of a reader in a child that is started anew when it dies, and what failed, made as small as is cheap."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from mmap import mmap
from pathlib import Path

from fuzzing import child
from fuzzing.child import Case, Trouble
from fuzzing.edits import Files, apply, draw
from fuzzing.readers import Reader

SECONDS = 10.0
"""Of the processor's time that one input may take, on a slow machine too."""
ASLEEP = 3.0
"""Seconds that it may wait for something, which nothing here gives."""
LOOK = 0.05
SHOWN = 2000
"""Bytes of a failing file that are printed."""


@dataclass(frozen=True)
class Failure:
    """A fault that was found: what it is, and by which case."""

    what: str
    case: Case
    detail: str
    times: int = 1


@dataclass(frozen=True)
class Outcome:
    """Of one reader."""

    reader: str
    tried: int
    failures: list[Failure] = field(default_factory=list)


def case_of(name: str, reader: Reader, bases: dict[str, Files], seed: int, number: int) -> Case:
    """The same for the same seed and number; the first cases are the good folders themselves."""
    every = sorted(bases)
    if number < len(every):
        return Case(name, every[number], [])
    draws = random.Random(f"{name} {seed} {number}")
    base = draws.choice(every)
    return Case(name, base, draw(draws, reader.names(bases[base])))


def campaign(
    name: str,
    reader: Reader,
    bases: dict[str, Files],
    at: Path,
    *,
    seed: int = 0,
    inputs: int | None = None,
    first: int = 0,
    until: float | None = None,
    enough: int = 40,
    seconds: float = SECONDS,
) -> Outcome:
    """So many inputs, or as many as there is time for; it stops after `enough` failures."""
    found: dict[str, Failure] = {}
    times: Counter[str] = Counter()
    tried, stop = 0, inputs if inputs is not None else 1 << 60

    def cases(start: int) -> Iterator[tuple[int, Case]]:
        for number in range(start, stop):
            if until is not None and time.monotonic() > until:
                return
            yield number, case_of(name, reader, bases, seed, first + number)

    while tried < stop and len(times) < enough and times.total() < 10 * enough:
        board = mmap(-1, 16)
        left = cases(tried)
        last, troubles = _watched(lambda: child.work(reader, bases, left, board, at), at, board, seconds)  # noqa: B023
        for trouble in troubles:
            times[trouble.what] += 1
            if trouble.what not in found:
                case = case_of(name, reader, bases, seed, first + trouble.number)
                found[trouble.what] = Failure(trouble.what, case, trouble.detail)
        if last is None:
            tried = stop if until is None else tried + _count(board)
            break
        tried = last + 1
        if until is not None and time.monotonic() > until:
            break
    failures = [replace(smaller(one, reader, bases, at, seconds), times=times[one.what]) for one in found.values()]
    return Outcome(name, tried, failures)


def _count(board: mmap) -> int:
    return int.from_bytes(board[8:16], "little")


def attempt(case: Case, reader: Reader, bases: dict[str, Files], at: Path, seconds: float = SECONDS) -> list[Trouble]:
    """What one case comes to."""
    board = mmap(-1, 16)
    return _watched(lambda: child.work(reader, bases, [(0, case)], board, at), at, board, seconds)[1]


def smaller(failure: Failure, reader: Reader, bases: dict[str, Files], at: Path, seconds: float) -> Failure:
    """With the edits left out that it fails without."""
    edits = failure.case.edits
    for edit in list(edits):
        fewer = replace(failure.case, edits=[one for one in edits if one is not edit])
        if any(trouble.what == failure.what for trouble in attempt(fewer, reader, bases, at, seconds)):
            edits = fewer.edits
    return replace(failure, case=replace(failure.case, edits=edits))


def _watched(act: Callable[[], None], at: Path, board: mmap, seconds: float) -> tuple[int | None, list[Trouble]]:
    """Fork, let it work, end it where it takes too long; the case that it died at, None where it came to the end."""
    shutil.rmtree(at, ignore_errors=True)
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        os.dup2(writing, 1)
        try:
            act()
        finally:
            os._exit(99)
    os.close(writing)
    os.set_blocking(reading, False)
    received, why = b"", ""
    began, cpu_began, number, awake, cpu_seen = time.monotonic(), 0.0, -1, time.monotonic(), -1.0
    while True:
        received += _read(reading)
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            break
        now, cpu, asleep = time.monotonic(), *_spent(process)
        if _number(board) != number:
            number, began, cpu_began, awake = _number(board), now, cpu, now
        if not asleep or cpu != cpu_seen:
            awake, cpu_seen = now, cpu
        if cpu - cpu_began > seconds:
            why = "takes too long"
        elif now - awake > ASLEEP and number >= 0:
            why = "waits for ever"
        if why:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            status = 0
            break
        time.sleep(LOOK)
    received += _read(reading)
    os.close(reading)
    troubles = [Trouble(**json.loads(line)) for line in received.splitlines() if line.endswith(b"}")]
    last = _number(board)
    if why:
        return last, [*troubles, Trouble(last, why, f"after {time.monotonic() - began:.1f} s")]
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return last, [*troubles, Trouble(last, f"dies of {name}", name)]
    if os.WEXITSTATUS(status):
        return last, [*troubles, Trouble(last, "ends the process", f"exit code {os.WEXITSTATUS(status)}")]
    return None, troubles


def _read(pipe: int) -> bytes:
    got = b""
    try:
        while chunk := os.read(pipe, 1 << 16):
            got += chunk
    except BlockingIOError:
        pass
    return got


def _number(board: mmap) -> int:
    number = int.from_bytes(board[:8], "little")
    return number if number < 2**62 else -1


def _spent(process: int) -> tuple[float, bool]:
    """Seconds of the processor's time, and whether it sleeps."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, False
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[0] in "SD"


# ---------------------------------------------------------------- telling


def told(outcomes: Sequence[Outcome]) -> str:
    """By reader, and all together in the last line."""
    lines = []
    for outcome in outcomes:
        lines.append(f"{outcome.reader}: {outcome.tried:,} inputs, {len(outcome.failures)} failures")
        for one in outcome.failures:
            lines += [f"  {one.what} ({one.times} times)", f"    {one.detail.strip().splitlines()[-1][:300]}"]
            lines.append(f"    again: python -m fuzzing --again {json.dumps(one.case.text())}")
    failures = sum(len(outcome.failures) for outcome in outcomes)
    lines.append(f"{sum(outcome.tried for outcome in outcomes):,} inputs tried, {failures} failures")
    return "\n".join(lines)


def contents(failure: Failure, reader: Reader, bases: dict[str, Files]) -> str:
    """The files that were edited, in base64 where they are short."""
    before = bases[failure.case.base]
    files, places = apply(before, failure.case.edits, reader.seal)
    lines = [f"{name}: {place}" for name, place in places.items()]
    for name, content in files.items():
        if content != before.get(name):
            short = base64.b64encode(content).decode() if len(content) <= SHOWN else f"{len(content)} bytes"
            lines.append(f"{name}: {short}")
    return "\n".join(lines)


def keep(
    outcomes: Sequence[Outcome], readers: dict[str, Reader], bases: dict[str, dict[str, Files]], out: Path
) -> None:
    """Every failing folder, with its case and what came of it."""
    for outcome in outcomes:
        for number, failure in enumerate(outcome.failures):
            folder = out / f"{outcome.reader}-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "in").mkdir(parents=True)
            reader, own = readers[outcome.reader], bases[outcome.reader]
            child.write(folder / "in", *apply(own[failure.case.base], failure.case.edits, reader.seal))
            text = f"{failure.case.text()}\n\n{failure.what}\n{failure.detail}\n\n{contents(failure, reader, own)}\n"
            (folder / "case.txt").write_text(text, "utf-8", "backslashreplace")
