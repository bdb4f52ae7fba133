"""python -m fuzzing: all readers in turn, or one case again. Linux alone: it watches its children by /proc.

PYTHONPATH=src:tests python -m fuzzing --minutes 30 --jobs 2
PYTHONPATH=src:tests python -m fuzzing --reader mat npz --inputs 1000 --seed 7
PYTHONPATH=src:tests python -m fuzzing --again '{"reader": "mat", …}'
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fuzzing.campaign import SECONDS, Outcome, attempt, campaign, keep, told
from fuzzing.child import Case
from fuzzing.edits import Files
from fuzzing.planted import PLANTED
from fuzzing.readers import READERS, Reader

SLICE = 20.0
"""Seconds of a reader's turn."""
OUT = Path("build/fuzz")
BASES: dict[str, dict[str, Files]] = {}
"""Good folders, made before anything is forked."""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzzing", description="Broken files for every reader of files.")
    parser.add_argument("--reader", nargs="+", choices=READERS, default=list(READERS), help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inputs", type=int, help="of every reader; default: as many as `make test` tries")
    parser.add_argument("--minutes", type=float, help="in the place of a number of inputs: all readers in turn")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--out", type=Path, default=OUT, help="for folders that failed; default: build/fuzz")
    parser.add_argument("--again", help="one case, as a failure tells it")
    parser.add_argument("--serve", action="store_true", help="for the tests: requests on standard input, JSON a line")
    chosen = parser.parse_args(words)
    torch.set_num_threads(1)
    work = Path(tempfile.mkdtemp(prefix="engram-fuzz-")).resolve()
    try:
        if chosen.serve:
            return _serve(work)
        names = [json.loads(chosen.again)["reader"]] if chosen.again else chosen.reader
        BASES.update({name: _made(name, work) for name in names})
        if chosen.again:
            return _again(Case(**json.loads(chosen.again)), work)
        outcomes = _all(chosen, names, work)
        shutil.rmtree(chosen.out, ignore_errors=True)
        keep(outcomes, READERS, BASES, chosen.out)
        print(told(outcomes))
        if any(outcome.failures for outcome in outcomes):
            print(f"what failed lies in {chosen.out}")
        return int(any(outcome.failures for outcome in outcomes))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _made(name: str, work: Path, readers: dict[str, Reader] = READERS) -> dict[str, Files]:
    at = work / "good" / name
    at.mkdir(parents=True)
    return readers[name].good(at)


def _again(case: Case, work: Path) -> int:
    troubles = attempt(case, READERS[case.reader], BASES[case.reader], work / "again")
    for trouble in troubles:
        print(f"{trouble.what}\n{trouble.detail}")
    if not troubles:
        print("nothing: it was read, or refused in one line")
    return int(bool(troubles))


def _serve(work: Path) -> int:
    """{"reader", "inputs"} or {"cases"} a line; {"tried", "failures": [what], "told"} each."""
    readers = {**READERS, **PLANTED}
    for line in sys.stdin:
        asked = json.loads(line)
        cases = [Case(**one) for one in asked.get("cases", ())]
        for name in {asked.get("reader"), *(case.reader for case in cases)} - {None}:
            if name not in BASES:
                BASES[name] = _made(name, work, readers)
        if cases:
            found = [(case, attempt(case, readers[case.reader], BASES[case.reader], work / "case")) for case in cases]
            whats = [trouble.what for _, troubles in found for trouble in troubles]
            text = "\n".join(f"{case.text()}: {troubles}" for case, troubles in found if troubles)
        else:
            name = asked["reader"]
            inputs, seconds = asked.get("inputs") or readers[name].inputs, asked.get("seconds", SECONDS)
            outcome = campaign(name, readers[name], BASES[name], work / "turn", inputs=inputs, seconds=seconds)
            whats, text = [one.what for one in outcome.failures], told([outcome])
        print(json.dumps({"failures": whats, "told": text}), flush=True)
    return 0


Turn = tuple[str, Path, int, int | None, float | None]
"""(reader, place to work, seed, inputs, the moment at which all ends)"""


def _turn(turn: Turn) -> Outcome:
    name, at, seed, inputs, end = turn
    until = None if end is None else min(end, time.monotonic() + SLICE)
    return campaign(name, READERS[name], BASES[name], at, seed=seed, inputs=inputs, until=until)


def _all(chosen: argparse.Namespace, names: Sequence[str], work: Path) -> list[Outcome]:
    """One turn each, or turn after turn while there is time."""
    end = None if chosen.minutes is None else time.monotonic() + 60 * chosen.minutes

    def turns() -> Iterator[Turn]:
        for round_ in itertools.count() if end is not None else range(1):
            for name in names:
                if end is not None and time.monotonic() >= end:
                    return
                inputs = None if end is not None else chosen.inputs or READERS[name].inputs
                yield name, work / f"{name}-{round_}", chosen.seed + round_, inputs, end

    if chosen.jobs == 1:
        return _joined(names, map(_turn, turns()))
    with multiprocessing.get_context("fork").Pool(chosen.jobs) as pool:
        waiting, done = [], []
        for turn in turns():
            waiting.append(pool.apply_async(_turn, (turn,)))
            while len(waiting) >= chosen.jobs:
                done += [one.get() for one in waiting if one.ready()]
                waiting = [one for one in waiting if not one.ready()]
                time.sleep(0.1)
        return _joined(names, [*done, *(one.get() for one in waiting)])


def _joined(names: Sequence[str], outcomes: Iterator[Outcome] | list[Outcome]) -> list[Outcome]:
    """Of every reader one: its turns together."""
    joined = {name: Outcome(name, 0) for name in names}
    for outcome in outcomes:
        before = joined[outcome.reader]
        known = {one.what: one for one in before.failures}
        for one in outcome.failures:
            times = one.times + (known[one.what].times if one.what in known else 0)
            known[one.what] = replace(known.get(one.what, one), times=times)
        joined[outcome.reader] = Outcome(outcome.reader, before.tried + outcome.tried, list(known.values()))
    return list(joined.values())


if __name__ == "__main__":
    sys.exit(main())
