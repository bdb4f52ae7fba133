"""Kill a run, a model that learns, one that is saved, at random moments, go on each time: the bits of one left alone.

ENGRAM_KILLS sets how often each (default 3, to keep the tests short). A hundred in all:

    ENGRAM_KILLS=34 pytest -s tests/test_kill.py -k random_moments
"""

from __future__ import annotations

import itertools
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from conftest import SMALL_GAN, saved_bits, write_npz
from engram.experiment.records import read_records
from engram.model.learn import held, put
from engram.model.model import Model

KILLS = int(os.environ.get("ENGRAM_KILLS", "3"))


STARTER = """
import json, os, sys
from engram.cli import call
import engram.experiment.run, engram.model.card, engram.model.learn
for line in sys.stdin:
    words, said = json.loads(line)
    child = os.fork()
    if not child:
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.argv = words
        code = exec(words[1]) if words[0] == "-c" else call(words)
        sys.stdout.flush()
        os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Starter:
    """Starts commands as processes of their own that have read all code already: a hundred in minutes."""

    def __init__(self, said: Path) -> None:
        self.said = said
        """What the command under way prints."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, command: list[str], patience: float | None = None, begins: Path | None = None) -> int | None:
        """Its exit code; None where it was killed because it took longer than so many seconds, from when a file is
        there on."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([command, str(self.said)]), file=self.process.stdin, flush=True)
        child = int(self.process.stdout.readline())
        while begins is not None and not begins.exists():
            time.sleep(0.01)
        if patience is not None and not select.select([self.process.stdout], [], [], patience)[0]:
            os.kill(child, signal.SIGKILL)
        code = int(self.process.stdout.readline())
        return None if code == -signal.SIGKILL else code


@pytest.fixture
def starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    made = Starter(tmp_path_factory.mktemp("said") / "said.txt")
    yield made
    made.process.communicate()


def words(npz: Path, folder: Path, epochs: int, *more: str) -> list[str]:
    return [
        "run", "--dataset", f"npz:{npz}", "--method", "joint", "--out", str(folder),
        "--set", f"classifier.epochs={epochs}", "--set", "classifier.batch_size=8", "--set", "runtime.threads=1",
        "--set", "runtime.checkpoint_seconds=0.05", *more,
    ]  # fmt: skip


def outcome(folder: Path) -> tuple[list[object], bytes]:
    records: list[object] = [r for r in read_records(folder) if r["kind"] != "timing"]
    return records, saved_bits(folder)


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_killed_at_random_moments_it_ends_with_the_same_bits(tmp_path: Path, starter: Starter) -> None:
    npz = write_npz(tmp_path / "data.npz")
    epochs = 4
    began = time.monotonic()
    assert starter.run(words(npz, tmp_path / "whole", epochs)) == 0
    length = time.monotonic() - began
    expected = outcome(tmp_path / "whole")
    draws = random.Random(11)
    killed = rounds = 0
    while killed < KILLS:  # a run that reaches its end is compared, and another one is started
        rounds += 1
        folder = tmp_path / f"killed{rounds}"
        # some land in the start, some in the middle of writing, some in training
        moments = (draws.uniform(0, 0.6) * length for _ in range(KILLS - killed))
        killed += killed_until_done(starter, words(npz, folder, epochs, "--resume"), moments)
        assert outcome(folder) == expected
        assert not [p.name for p in folder.iterdir() if p.name.endswith(".tmp")]
    print(f"{killed} kills in {rounds} rounds")


TOY = {
    **SMALL_GAN, "gan.epochs": 3, "gan.steps": 8, "classifier.epochs": 2, "replay.images": 64, "runtime.threads": 1,
    "runtime.checkpoint_seconds": 0.05,
}  # fmt: skip


def month(at: Path, classes: int, first: int) -> Path:
    """An .npz file whose classes are called by their numbers, from `first` on."""
    with np.load(write_npz(at, classes=classes, seed=first)) as held:
        arrays = {"images": held["images"], "labels": held["labels"] + first}
    np.savez(at, **arrays)
    return at


def learn_words(model: Path, data: Path) -> list[str]:
    settings = [word for key, value in TOY.items() for word in ("--set", f"{key}={value}")]
    words = ["learn", str(model), str(data), "--quiet"]
    return [*words, "--audit", str(model.with_name("m.audit")), *settings]


def killed_until_done(starter: Starter, command: list[str], moments: Iterator[float]) -> int:
    """Call it again and again, killed after so many seconds each time, until it ends by itself; how often it was."""
    for kills in itertools.count():
        code = starter.run(command, next(moments, None))
        if code is not None:
            # the one before may have been killed after its last act
            said = starter.said.read_text()
            assert code == 0 or (kills and "is known already" in said), said
            return kills
    raise AssertionError


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_learning_killed_at_random_moments_ends_with_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A new model and its second version, by the same command each time; nothing is left beside the file."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    starter: Starter = request.getfixturevalue("starter")  # so that it knows the time
    data = [month(tmp_path / "may.npz", 2, 0), month(tmp_path / "june.npz", 1, 2)]
    whole = tmp_path / "whole/m.engram"
    whole.parent.mkdir()
    expected, lengths = [], []
    for months in data:
        began = time.monotonic()
        assert starter.run(learn_words(whole, months)) == 0, starter.said.read_text()
        lengths.append(time.monotonic() - began)
        expected.append(whole.read_bytes())
    draws, killed, rounds = random.Random(12), 0, 0
    while killed < KILLS:
        rounds += 1
        model = tmp_path / f"killed{rounds}/m.engram"
        model.parent.mkdir()
        for months, length, bits in zip(data, lengths, expected, strict=True):
            moments = (draws.uniform(0, 1.1) * length for _ in range(KILLS - killed))
            killed += killed_until_done(starter, learn_words(model, months), moments)
            assert model.read_bytes() == bits
        assert sorted(entry.name for entry in model.parent.iterdir()) == [
            "m.audit", "m.card.html", "m.card.md", "m.engram"
        ]  # fmt: skip
    print(f"{killed} kills in {rounds} rounds")


SAVES = """
import sys
from engram import Model
from engram.model.learn import held, put
from pathlib import Path
_, _, out, first, second, way, ready = sys.argv
versions, out = [Model.open(path) for path in (first, second)], Path(out)
Path(ready).touch()
while True:
    for model in versions:
        model.path = None
        if way == "save":
            model.save(out, card=False)
        else:
            with held(out) as work:
                put(model, out, work)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_saving_killed_at_random_moments_leaves_one_version_whole(tmp_path: Path, starter: Starter) -> None:
    """Two versions in turn, to one place; what a killed process left half written goes with the next."""
    data = [month(tmp_path / "may.npz", 2, 0), month(tmp_path / "june.npz", 1, 2)]
    versions = [tmp_path / "first.engram", tmp_path / "second.engram"]
    model = Model.create("dgmw", settings={**TOY, "gan.epochs": 1, "gan.steps": 2})
    for path, months in zip(versions, data, strict=True):
        model.learn(f"npz:{months}")
        model.save(path, card=False)
    bits = [path.read_bytes() for path in versions]
    out, draws, found = tmp_path / "place/m.engram", random.Random(13), []
    out.parent.mkdir()
    out.write_bytes(bits[1])
    for kill in range(KILLS):
        way = ("save", "put")[kill % 2]
        ready = tmp_path / f"ready{kill}"
        command = ["-c", SAVES, str(out), *map(str, versions), way, str(ready)]
        assert starter.run(command, draws.uniform(0, 0.3), ready) is None, starter.said.read_text()
        found.append(out.read_bytes())
        assert found[-1] in bits
    whole = Model.open(versions[0])
    with held(out) as work:
        put(whole, out, work)
    assert out.read_bytes() == bits[0]
    assert [p.name for p in out.parent.iterdir()] == ["m.engram"]
    print(f"{KILLS} kills: {found.count(bits[0])} times the one version was found, {found.count(bits[1])} the other")


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_stop_saves_and_says_how_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    npz = write_npz(tmp_path / "data.npz")
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "engram", *words(npz, folder, 60)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not any(r["kind"] == "epoch" for r in read_records(folder)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"go on with: engram run --resume --out {folder}" in out
    before = sum(1 for _ in read_records(folder))
    again = subprocess.Popen(
        [sys.executable, "-m", "engram", "run", "--resume", "--out", str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while sum(1 for _ in read_records(folder)) <= before:
        assert again.poll() is None, again.communicate()
        time.sleep(0.05)
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=60)
    assert again.returncode == 130
