"""Many runs: what is missing is done, what failed is said, what is done is left alone."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from conftest import write_npz
from engram.cli import call
from engram.errors import ConfigError, RunError
from engram.experiment.bench import Cell, Plan, bench, rows, share_out
from engram.experiment.bench_tables import cell_table, result_table
from engram.experiment.folder import locked
from engram.experiment.jobs import Process
from engram.experiment.summary import Summary, summarise

QUICK = ["classifier.epochs=1", "classifier.batch_size=8"]


def plan(tmp_path: Path, methods: list[str], seeds: list[int], settings: list[str] | None = None) -> Plan:
    data = tmp_path / "a.npz"
    if not data.exists():
        write_npz(data, classes=3, per_class=12)
    chosen = QUICK if settings is None else settings
    return Plan([f"npz:{data}"], methods, seeds, tmp_path / "bench", jobs=2, threads=1, settings=chosen, tries=2)


def quiet(cells: object) -> None:
    pass


def test_does_all_then_nothing(tmp_path: Path) -> None:
    wanted = plan(tmp_path, ["finetune", "joint"], [0, 1])
    cells = bench(wanted, show=quiet)
    assert [cell.status for cell in cells] == ["done"] * 4
    stamps = {cell.name: (cell.folder / "records.jsonl").stat().st_mtime_ns for cell in cells}
    again = bench(wanted, show=quiet)
    assert all(cell.tries == 0 for cell in again)
    assert stamps == {cell.name: (cell.folder / "records.jsonl").stat().st_mtime_ns for cell in again}
    (first, second) = rows(again)
    assert (first.method, second.method) == ("finetune", "joint")
    assert first.seeds == [0, 1]
    assert first.classes == 3
    values = [
        100 * s.last for cell in again if cell.method == "finetune" and (s := cell.summary) and s.last is not None
    ]
    assert first.mean == pytest.approx(sum(values) / 2)
    assert first.deviation == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    more = bench(plan(tmp_path, ["finetune", "joint"], [0, 1, 2]), show=quiet)
    assert sum(cell.tries for cell in more) == 2  # the new seed alone


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    wanted = plan(tmp_path, ["finetune", "joint"], [0])
    broken = wanted.cells()[0].folder
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("{}")
    cells = bench(wanted, show=quiet)
    assert [cell.status for cell in cells] == ["failed", "done"]
    assert "config" in cells[0].error
    assert cells[0].tries == 1  # a mistake (exit code 2) is not tried again


def test_runs_with_other_settings_are_not_taken_for_its_own(tmp_path: Path) -> None:
    bench(plan(tmp_path, ["finetune"], [0]), show=quiet)
    with pytest.raises(ConfigError, match=r"other settings: classifier\.epochs 1 instead of 2; choose another --out"):
        bench(plan(tmp_path, ["finetune"], [0], [*QUICK, "classifier.epochs=2"]), show=quiet)
    fewer = plan(tmp_path, ["finetune"], [0])
    (cell,) = bench(replace(fewer, threads=2), show=quiet)  # how it is computed may differ
    assert cell.tries == 0
    slow = replace(plan(tmp_path, ["ewc"], [0], []), preset="mnist")
    (cell,) = slow.cells()
    assert slow.expected(cell).classifier.epochs == 1  # the preset's
    assert slow.command(cell)[-4:-2] == ["--preset", "mnist"]


def test_a_run_that_dies_is_tried_again(tmp_path: Path) -> None:
    wanted = plan(tmp_path, ["finetune"], [0], [*QUICK, "classifier.epochs=40"])
    killed = False

    def kill_once(cells: object) -> None:
        nonlocal killed
        cell = cells[0]  # type: ignore[index]
        if not killed and cell.process is not None and cell.summary is not None:
            cell.process.kill()
            killed = True

    (cell,) = bench(wanted, show=kill_once)
    assert killed
    assert cell.status == "done"
    assert cell.tries == 2


def test_stopped_and_called_again_it_goes_on(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "a.npz", classes=3, per_class=40)
    out = tmp_path / "bench"
    words = ["bench", "--dataset", f"npz:{data}", "--methods", "finetune,joint", "--seeds", "0", "--out", str(out)]
    words += ["--set", "classifier.epochs=60", "--set", "classifier.batch_size=8", "--jobs", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "engram", *words], stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    records = out / "a.npz-finetune-seed0" / "records.jsonl"
    for _ in range(600):
        if records.exists() and records.stat().st_size:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 130
    assert "the same command goes on" in said
    for name in ("finetune", "joint"):
        summary = summarise(out / f"a.npz-{name}-seed0")
        assert summary is None or not summary.done
    assert call(words) == 0
    for name in ("finetune", "joint"):
        summary = summarise(out / f"a.npz-{name}-seed0")
        assert summary is not None
        assert summary.done


def test_a_run_that_another_process_was_quicker_with_is_waited_for(tmp_path: Path) -> None:
    """The folder is free when the bench looks, and taken when its run starts: a user's mistake elsewhere, not here."""
    wanted, taken, statuses = plan(tmp_path, ["finetune"], [0]), contextlib.ExitStack(), list[str]()

    def start(command: Sequence[str], log: Path, threads: int) -> Process:
        if not statuses.count("running"):
            taken.enter_context(locked(wanted.cells()[0].folder))
        return Process(command, log, threads)

    def watch(cells: Sequence[Cell]) -> None:
        statuses.append(cells[0].status)
        if statuses[-1] == "elsewhere":
            taken.close()

    (cell,) = bench(wanted, show=watch, start=start)
    assert "elsewhere" in statuses
    assert (cell.status, cell.tries) == ("done", 1), cell.log.read_text()


def test_killed_and_called_again_it_waits_for_the_runs_left_behind(tmp_path: Path) -> None:
    wanted = plan(tmp_path, ["finetune", "joint"], [0], [*QUICK, "classifier.epochs=60"])
    code = f"from pathlib import Path; import test_bench; test_bench.bench_for(Path({str(tmp_path)!r}))"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent)
    left = wanted.cells()[0]
    for _ in range(600):
        if (left.folder / "records.jsonl").exists():
            break
        time.sleep(0.1)
    process.kill()
    process.wait()
    seen: set[tuple[str, str]] = set()

    def watch(cells: Sequence[Cell]) -> None:
        seen.update((cell.method, cell.status) for cell in cells)

    cells = bench(wanted, show=watch)
    assert ("finetune", "elsewhere") in seen
    assert [cell.status for cell in cells] == ["done", "done"]
    assert cells[0].tries == 0


def bench_for(tmp_path: Path) -> None:
    bench(plan(tmp_path, ["finetune", "joint"], [0], [*QUICK, "classifier.epochs=60"]), show=quiet)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--methods", "dgmx"], "dgmx"),
        (["--seeds", "a"], "--seeds"),
        (["--seeds", "-1"], "--seeds"),
        (["--jobs", "0"], "--jobs"),
        (["--dataset", "nosuch"], "nosuch"),
        (["--set", "classifier.epochs=x"], "classifier.epochs"),
        (["--methods", ","], "--methods"),
        (["--preset", "nosuch"], "nosuch"),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["bench", *words, "--out", str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunError, match="cannot write"):
        bench(replace(plan(tmp_path, ["finetune"], [0]), out=tmp_path / "file" / "bench"), show=quiet)


def test_cores_are_shared_out() -> None:
    assert share_out([2], 1) == (1, 2)
    assert share_out([2], 2) == (2, 1)
    assert share_out([4, 2], None) == (6, 1)
    assert share_out([], None) == (1, 1)  # a cluster that grows on demand


def test_summaries_come_from_records_alone(tmp_path: Path) -> None:
    assert summarise(tmp_path) is None
    lines = [
        {"kind": "run", "format": 2, "dataset": {"name": "mnist"}, "method": "dgmw", "seed": 3, "tasks": [[0], [1]]},
        {"kind": "memory", "task": 0, "bytes": {"weights": 10, "masks": 2}},
        {"kind": "evaluation", "task": 0, "classes": [0], "accuracy": 1.0},
        {"kind": "timing", "task": 0, "seconds": 2.5},
    ]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = summarise(tmp_path)
    assert summary == Summary("mnist", "dgmw", 3, 2, {1: 1.0}, 2.5, 12, None)
    assert not summary.done


def test_the_papers_figure_stands_beside_ours() -> None:
    summary = Summary("mnist", "dgma", 0, 10, dict.fromkeys(range(1, 11), 0.98), 60.0, 1_000_000, None)
    (row,) = rows([Cell("mnist", "dgma", 0, Path("x"), "done", summary=summary)])
    assert row.paper == 97.92
    assert row.gap == pytest.approx(0.08)
    assert row.deviation is None


def test_names_and_errors_appear_as_they_are() -> None:
    cell = Cell("npz::car:", "dgmw", 0, Path(":car:-[red]x"), "failed", error="[a] :bus: b")
    console = Console(width=120, file=io.StringIO())
    console.print(cell_table([cell]), result_table(rows([cell])))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for word in (":car:-[red]x", "failed [a] :bus: b", "npz::car:"):
        assert word in text
