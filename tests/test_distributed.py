"""Several processes, one run: the same steps as one process takes, one writer, and nothing lost with a process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import engram
from conftest import SMALL, write_npz
from engram import distributed
from engram.cli import call
from engram.config import RuntimeSettings
from engram.errors import ConfigError, RunError
from engram.experiment import checkpoint
from engram.experiment.loop import Interrupted, Stop
from engram.experiment.machine import available_cores, prepare
from engram.experiment.progress import Display
from engram.experiment.records import Record, read_records
from engram.experiment.request import Request
from engram.experiment.run import execute
from engram.methods.registry import METHODS
from test_run import AfterBatches

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes by /proc"),
    pytest.mark.xdist_group("distributed"),  # all look at the runs of one start of torchrun
]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def request(npz: Path, method: str, **settings: Any) -> Request:
    """Tiny, and with batches that two processes cannot share evenly."""
    own = SMALL.get(method, {})
    if "gan.epochs" in own:
        own = {**own, "gan.epochs": 2, "gan.steps": 2, "gan.batch_size": 11, "replay.images": 28}
    return Request(
        dataset=f"npz:{npz}",
        method=method,
        settings={
            "runtime.threads": 1, "runtime.device": "cpu", "stream.classes_per_task": 2,
            "classifier.epochs": 1, "classifier.batch_size": 7, "classifier.width": 4, "classifier.augment": "affine",
            **own, **settings,
        },
    )  # fmt: skip


def facts(folder: Path) -> list[dict[str, Any]]:
    return [r for r in read_records(folder) if r["kind"] != "timing"]


def kinds(folder: Path) -> list[tuple[Any, ...]]:
    return [(r["kind"], r.get("task"), r.get("epoch")) for r in facts(folder)]


def state(folder: Path) -> dict[str, Any]:
    saved = checkpoint.load(folder)
    assert saved is not None
    return saved.state


def first_moments(tree: Any, path: str = "") -> dict[str, torch.Tensor]:
    """The optimisers' moving averages of gradients: after an optimiser's first step, a share of the gradient itself."""
    found = {}
    for name, value in tree.items():
        if name == "exp_avg":
            found[path] = value
        elif isinstance(value, dict):
            found |= first_moments(value, f"{path}/{name}")
    return found


class AfterTask(Display):
    """Asks for a stop after the first task."""

    def __init__(self, stop: Stop) -> None:
        self.stop = stop

    def done(self, evaluation: Record, seconds: float) -> None:
        self.stop.asked = True


def stopped(asked: Request, folder: Path, display: type[AfterTask] | None = None, **how: Any) -> None:
    """Run to the end of the first task, or one batch."""
    stop = Stop()
    with pytest.raises(Interrupted):
        execute(asked, folder, stop=stop, display=AfterBatches(stop, 1) if display is None else display(stop), **how)


CLOSED = ("ncm", "slda", "ridge", "fecam")
"""They have no step to share: every process sums up all."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in METHODS if name not in CLOSED},
    "dgmw, critic": ("dgmw", {"replay.classifier": "critic"}),
    "dgma, residual": ("dgma", {"generator.architecture": "residual"}),
    "finetune, resnet18": ("finetune", {"classifier.architecture": "resnet18"}),
}
WHOLE = ["finetune", "mergan", "dgmw", "dgma", "ridge"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of two processes, all made by one start of torchrun."""
    root = tmp_path_factory.mktemp("distributed")
    npz = write_npz(root / "tiny.npz")
    jobs = []

    def job(asked: Request, name: str, *, resume: bool = False, stop_after: int | None = None) -> None:
        jobs.append({"request": asdict(asked), "folder": str(root / name), "resume": resume, "stop_after": stop_after})

    for name, (method, settings) in VARIANTS.items():  # one process learns a task, two begin the next one
        stopped(request(npz, method, **settings), root / "one" / name, AfterTask)
        shutil.copytree(root / "one" / name, root / "two" / name)
        job(Request(), f"two/{name}", resume=True, stop_after=1)
    for name in WHOLE:
        job(request(npz, name), name)
    job(request(npz, "dgmw"), "paused", stop_after=3)
    job(Request(), "paused", resume=True)
    (root / "jobs.json").write_text(json.dumps(jobs))
    worker = Path(__file__).parent / "several.py"
    done = subprocess.run(
        [*TORCHRUN, str(worker), str(root / "jobs.json")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stdout
    return root


@pytest.mark.parametrize("name", VARIANTS)
def test_two_processes_take_the_step_of_one(runs: Path, name: str) -> None:
    """From the same checkpoint, in the second task, where there is a past: the same gradients, the same losses."""
    stopped(Request(), runs / "one" / name, resume=True)
    one, two = (state(runs / number / name) for number in ("one", "two"))
    known, found = first_moments(one), first_moments(two)
    assert known.keys() == found.keys()
    assert len(known) > 4
    largest = max(float(gradient.abs().max()) for gradient in known.values())
    assert largest > 1e-3
    for path, gradient in known.items():
        # a unit that stands within rounding of its kink may fall on either side of it, and moves a few entries
        away = float((found[path] - gradient).norm())
        assert away <= 5e-3 * float(gradient.norm()) + 1e-6 * largest, path
    torch.testing.assert_close(losses(two), losses(one), rtol=1e-4, atol=1e-5)


def losses(tree: Any) -> dict[str, torch.Tensor]:
    """Sums over the epoch so far, wherever a task is under way."""
    found: dict[str, torch.Tensor] = {}
    for name, value in tree.items():
        if name == "totals":
            found |= value
        elif isinstance(value, dict):
            found |= losses(value)
    return found


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_run_tells_the_same_story(runs: Path, tmp_path: Path, name: str) -> None:
    """Its first epoch agrees; later, Adam makes whole steps out of gradients that are nothing but rounding.

    The critic's bias is the first to go: it has no gradient, and the generator's loss shows where it stands.
    """
    alone = execute(request(runs / "tiny.npz", name), tmp_path / "alone")
    assert kinds(runs / name) == kinds(alone)
    first, known = (next(r["losses"] for r in facts(f) if r["kind"] == "epoch") for f in (runs / name, alone))
    for told in (first, known):
        told.pop("generator", None)
    assert first == pytest.approx(known, rel=1e-3)
    if name == "finetune":
        torch.testing.assert_close(state(runs / name)["net"], state(alone)["net"], rtol=1e-3, atol=1e-4)
        answers = [[r["confusion"] for r in facts(f) if r["kind"] == "evaluation"] for f in (runs / name, alone)]
        assert answers[0] == answers[1]
    if name == "ridge":
        assert checkpoint.fingerprint(state(runs / name)) == checkpoint.fingerprint(state(alone))


@pytest.mark.parametrize("name", ["dgmw", "dgma"])
def test_retention_is_exact(runs: Path, name: str) -> None:
    kept = [r for r in facts(runs / name) if r["kind"] == "retention"]
    assert [r["classes"] for r in kept] == [2, 4]
    assert all(r["changed"] == [] for r in kept)
    assert call(["verify", str(runs / name)]) == 0


def test_one_process_writes(runs: Path) -> None:
    for name in WHOLE:
        lines = kinds(runs / name)
        assert lines[0][0] == "run"
        assert len([line for line in lines if line[0] == "task"]) == 2
        epochs = [line for line in lines if line[0] == "epoch"]
        assert len(set(epochs)) == len(epochs)
        assert [start["processes"] for start in json.loads((runs / name / "environment.json").read_text())] == [2]


def test_stopped_and_resumed_two_processes_end_with_the_same_bits(runs: Path) -> None:
    assert facts(runs / "paused") == facts(runs / "dgmw")
    assert checkpoint.fingerprint(state(runs / "paused")) == checkpoint.fingerprint(state(runs / "dgmw"))


def test_a_checkpoint_goes_on_with_any_number_of_processes(runs: Path) -> None:
    """One process learned the first task, two began the second; one ends it."""
    folder = runs / "two" / "dgma"
    assert state(folder)["phase"] == "generator"
    execute(Request(), folder, resume=True)
    assert kinds(folder) == kinds(runs / "dgma")
    assert [start["processes"] for start in json.loads((folder / "environment.json").read_text())] == [1, 2, 1]
    assert all(r["changed"] == [] for r in facts(folder) if r["kind"] == "retention")


# ---------------------------------------------------------------- signals


@pytest.fixture
def started(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], dict[int, int], Path]]:
    """A run of two processes under way: torchrun, the processes' ids by rank, the run folder."""
    npz, folder = write_npz(tmp_path / "data.npz", classes=2), tmp_path / "run"
    words = ["-m", "engram", "run", "--dataset", f"npz:{npz}", "--method", "finetune", "--out", str(folder)]
    for setting in ("classifier.epochs=50", "classifier.batch_size=8", "classifier.width=4"):
        words += ["--set", setting]
    words += ["--set", "runtime.threads=1", "--set", "runtime.checkpoint_seconds=0.2"]
    words += ["--set", "runtime.wait_seconds=20"]  # less than torchrun waits for a survivor before it kills it
    process = subprocess.Popen([*TORCHRUN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while sum(r["kind"] == "epoch" for r in read_records(folder)) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    ids = {}
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        (rank,) = re.findall("\0RANK=(\\d+)\0", Path(f"/proc/{child}/environ").read_text())
        ids[int(rank)] = int(child)
    yield process, ids, folder
    process.kill()
    process.communicate()


def test_a_killed_process_ends_the_run_and_loses_nothing(
    started: tuple[subprocess.Popen[str], dict[int, int], Path],
) -> None:
    process, ids, folder = started
    os.kill(ids[1], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    said = [line for line in err.splitlines() if line.startswith("engram: ")]
    assert len(said) == 1, err
    assert "process 0 of 2 has lost another one" in said[0]
    assert "go on with --resume" in said[0]
    assert str(Path(engram.__file__).parent) not in err, "no traceback of ours"
    execute(Request(), folder, resume=True)
    assert len([r for r in facts(folder) if r["kind"] == "epoch"]) == 2 * 50


def test_a_polite_stop_of_one_process_stops_and_saves_all(
    started: tuple[subprocess.Popen[str], dict[int, int], Path],
) -> None:
    process, ids, folder = started
    os.kill(ids[1], signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert out.count(f"saved; go on with: engram run --resume --out {folder}") == 1, err
    assert err.count("exitcode  : 130") == 2, err  # torchrun's own code is 1, whatever its processes say
    saved = checkpoint.load(folder)
    assert saved is not None
    recorded = [r for r in facts(folder) if r["kind"] == "epoch" and r["task"] == saved.meta["task"]]
    assert saved.meta["epoch"] == len(recorded), "saved at the very step at which it stopped"


# ---------------------------------------------------------------- what is refused; what one process is told


def pretend(monkeypatch: pytest.MonkeyPatch, world: distributed.World) -> None:
    monkeypatch.setattr(distributed, "launched", lambda: world)


@pytest.mark.parametrize(("method", "field"), [("finetune", "classifier.batch_size"), ("dgmw", "gan.batch_size")])
def test_a_batch_smaller_than_the_processes_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, field: str
) -> None:
    pretend(monkeypatch, distributed.World(0, 4))
    asked = request(write_npz(tmp_path / "data.npz"), method, **{field: 3})
    with pytest.raises(ConfigError, match=rf"{field}=3 .* 4 or more, one for each process"):
        execute(asked, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_states_that_differ_stop_the_run_and_keep_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([True, False])
    monkeypatch.setattr(distributed, "same_everywhere", lambda digest: next(answers))
    with pytest.raises(RunError, match="do not hold the same state after task 2"):
        execute(request(write_npz(tmp_path / "data.npz"), "finetune"), tmp_path / "run")
    saved = checkpoint.load(tmp_path / "run")
    assert saved is not None
    assert saved.meta["task"] == 1


def test_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as torchrun does
    before = torch.get_num_threads()
    try:
        pretend(monkeypatch, distributed.World(1, 4, 1, 2))
        prepare(RuntimeSettings(device="cpu"))
        assert torch.get_num_threads() == max(1, available_cores() // 2)
        prepare(RuntimeSettings(device="cpu", threads=3))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_torchrun_is_for_runs_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert call(["list"]) == 2
    assert "without it" in capsys.readouterr().err
