"""Runs placed by Ray: the same records, and a worker that dies takes nothing with it."""

from __future__ import annotations

import builtins
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conftest import write_npz
from engram.cli import call
from engram.experiment.bench import Cell, Plan, Stopped, bench
from engram.experiment.files import is_held
from engram.experiment.jobs import Machines
from engram.experiment.on_ray import connected
from engram.experiment.records import read_records
from engram.experiment.summary import summarise

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """Two cores: a cluster of our own, unless one is running."""
    pytest.importorskip("ray", reason="ray is not installed")
    with connected("auto", cores=2) as found:
        yield found


def plan(tmp_path: Path, methods: list[str], *, epochs: int, out: str = "bench") -> Plan:
    data = tmp_path / "a.npz"
    if not data.exists():
        write_npz(data, classes=3, per_class=12)
    settings = [f"classifier.epochs={epochs}", "classifier.batch_size=8"]
    return Plan([f"npz:{data}"], methods, [0], tmp_path / out, jobs=2, threads=1, settings=settings)


def quiet(cells: object) -> None:
    pass


def facts(cell: Cell) -> list[dict[str, Any]]:
    """Its records without clock times."""
    return [record for record in read_records(cell.folder) if record["kind"] != "timing"]


def process_of(cell: Cell) -> int | None:
    """The process that runs it, found by its command."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(cell.folder) in words and b"run" in words:
            return int(place.name)
    return None


def parent_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("PPid:"))


def test_the_same_records_as_a_local_bench(machines: Machines, tmp_path: Path) -> None:
    wanted = plan(tmp_path, ["finetune", "joint"], epochs=1)
    placed = bench(wanted, show=quiet, start=machines.start)
    local = bench(replace(wanted, out=tmp_path / "local"), show=quiet)
    assert [cell.status for cell in placed] == ["done", "done"]
    assert [facts(cell) for cell in placed] == [facts(cell) for cell in local]
    again = bench(wanted, show=quiet, start=machines.start)
    assert all(cell.tries == 0 for cell in again)


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_worker_that_dies_takes_its_process_along_and_the_run_is_tried_again(
    machines: Machines, tmp_path: Path
) -> None:
    wanted = plan(tmp_path, ["finetune"], epochs=60)
    killed: list[int] = []

    def kill_once(cells: Sequence[Cell]) -> None:
        pid = process_of(cells[0])
        if not killed and pid is not None and cells[0].summary is not None:
            os.kill(parent_of(pid), signal.SIGKILL)
            killed.append(pid)

    (cell,) = bench(wanted, show=kill_once, start=machines.start)
    assert killed
    assert (cell.status, cell.tries) == ("done", 2)
    assert not Path(f"/proc/{killed[0]}").exists()
    (alone,) = bench(replace(wanted, out=tmp_path / "local"), show=quiet)
    assert facts(cell) == facts(alone)


def test_asked_to_stop_its_runs_save(machines: Machines, tmp_path: Path) -> None:
    wanted = plan(tmp_path, ["finetune"], epochs=200)  # on a busy machine a shorter one ends before it is asked
    seen: list[Cell] = []

    def watch(cells: Sequence[Cell]) -> None:
        seen[:] = cells

    with pytest.raises(Stopped):
        bench(wanted, show=watch, asked=lambda: all(cell.summary is not None for cell in seen), start=machines.start)
    (cell,) = seen
    assert cell.status == "stopped"
    assert not is_held(cell.folder)
    assert (cell.folder / "checkpoint.json").exists()
    assert "--resume" in cell.log.read_text()  # it said how to go on, so it was asked and not killed
    (cell,) = bench(wanted, show=quiet, start=machines.start)
    assert cell.status == "done"


def test_a_run_that_cannot_be_placed_says_why(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = plan(tmp_path, ["finetune"], epochs=1)
    monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "not shared")
    (cell,) = bench(wanted, show=quiet, start=machines.start)
    assert (cell.status, cell.tries) == ("failed", 2)
    assert "not shared" in cell.error


def test_the_command_joins_a_cluster_and_stops_on_ctrl_c(machines: Machines, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    write_npz(tmp_path / "a.npz", classes=3, per_class=40)
    words = ["bench", "--ray", ray.get_runtime_context().gcs_address, "--dataset", "npz:./a.npz", "--out", "bench"]
    words += ["--methods", "finetune,joint", "--set", "classifier.epochs=2000", "--set", "classifier.batch_size=8"]
    # relative paths: Ray's workers live elsewhere
    process = subprocess.Popen([sys.executable, "-m", "engram", *words], stdout=subprocess.PIPE, cwd=tmp_path)
    records = tmp_path / "bench" / "a.npz-finetune-seed0" / "records.jsonl"
    for _ in range(600):
        if records.exists() and records.stat().st_size:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 130
    assert "the same command goes on" in said
    summary = summarise(records.parent)
    assert summary is not None
    assert not summary.done
    assert (records.parent / "checkpoint.json").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "127.0.0.1:123456"])
def test_where_nobody_answers(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    assert call(["bench", "--ray", address, "--methods", "finetune", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said == f"engram: --ray {address}: nobody answers there; give HOST:PORT of a running cluster, or auto\n"
    assert not (tmp_path / "out").exists()


def test_without_ray_it_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    genuine = builtins.__import__

    def without_ray(name: str, *more: Any, **named: Any) -> Any:
        if name == "ray":
            raise ImportError(name)
        return genuine(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", without_ray)
    assert call(["bench", "--ray", "auto", "--methods", "finetune", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "engram: --ray needs more packages: pip install 'engram-continual[ray]'\n"
