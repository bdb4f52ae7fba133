"""The run: same bits however often it is stopped, and nothing lost when something goes wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import SMALL_GAN
from engram.data.stream import Task
from engram.errors import DivergedError, RunError, StrictnessError
from engram.experiment import checkpoint
from engram.experiment.progress import Quiet
from engram.experiment.records import read_records
from engram.experiment.run import Interrupted, Request, Stop, default_folder, run
from engram.methods import registry
from engram.methods.bounds import FINETUNE, Plain
from engram.methods.learner import SILENT, Clock, Method, Observer

SETTINGS = {"runtime.threads": "1", "training.epochs": "2", "training.batch_size": "8", "training.augment": "affine"}


def request(npz: Path, method: str = "finetune", **settings: Any) -> Request:
    return Request(dataset=f"npz:{npz}", method=method, settings={**SETTINGS, **settings})


def facts(folder: Path) -> list[dict[str, Any]]:
    return [r for r in read_records(folder) if r["kind"] != "timing"]


def tensors(folder: Path) -> bytes:
    return next(folder.glob("checkpoint-*.safetensors")).read_bytes()


@pytest.mark.parametrize("method", ["joint", "finetune"])
def test_a_run_leaves_its_whole_story(npz: Path, tmp_path: Path, method: str) -> None:
    folder = run(request(npz, method), tmp_path / "run")
    records = list(read_records(folder))
    kinds = [r["kind"] for r in records]
    assert kinds[0] == "run"
    assert kinds.count("epoch") == 4 * 2
    assert [len(r["classes"]) for r in records if r["kind"] == "evaluation"] == [1, 2, 3, 4]
    timings = [r for r in records if r["kind"] == "timing"]
    assert [r["peak_bytes"] > 0 for r in timings] == [True] * 4
    for timing in timings:  # a step's mean time, epoch by epoch: steps are a part of the task
        assert len(timing["step_seconds"]) == 2
        assert 0 < sum(timing["step_seconds"]) < timing["seconds"]
    assert records[0]["bound"] == ("upper" if method == "joint" else "lower")
    environment = json.loads((folder / "environment.json").read_text())
    assert environment[0]["threads"] == 1
    assert environment[0]["versions"]["torch"] == torch.__version__
    last = next(r for r in reversed(records) if r["kind"] == "evaluation")
    assert sum(map(sum, last["confusion"])) == 32
    # joint training learns all classes; fine-tuning forgets, even if two short epochs do not wipe out everything
    assert last["accuracy"] > 0.9 if method == "joint" else last["accuracy"] < 0.7


def test_same_seed_same_bits_other_seed_other_bits(npz: Path, tmp_path: Path) -> None:
    first, again = run(request(npz), tmp_path / "a"), run(request(npz), tmp_path / "b")
    assert facts(first) == facts(again)
    assert tensors(first) == tensors(again)
    other = run(Request(dataset=f"npz:{npz}", method="finetune", seed=1, settings=SETTINGS), tmp_path / "c")
    assert tensors(first) != tensors(other)


def test_training_seed_and_order_seed_are_separate(npz: Path, tmp_path: Path) -> None:
    orders = {}
    for seed in (0, 1):
        for order_seed in (None, 5):
            asked = Request(f"npz:{npz}", "finetune", None, seed, order_seed, {**SETTINGS, "training.epochs": 1})
            folder = run(asked, tmp_path / f"{seed}{order_seed}")
            orders[seed, order_seed] = next(read_records(folder))["tasks"]
    assert orders[0, None] == orders[1, None] == [[0], [1], [2], [3]]
    assert orders[0, 5] == orders[1, 5] != orders[0, None]


def test_a_run_can_be_made_again_from_its_own_configuration(npz: Path, tmp_path: Path) -> None:
    first = run(request(npz), tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_bytes((first / "config.json").read_bytes())
    again = run(Request(), tmp_path / "b", resume=True)
    assert tensors(first) == tensors(again)


class AfterBatches(Quiet):
    """Asks for a stop after a number of batches."""

    def __init__(self, stop: Stop, batches: int) -> None:
        self.stop, self.left = stop, batches

    def batch(self, clock: Clock) -> None:
        self.left -= 1
        self.stop.asked = self.left <= 0


def run_with_stops(asked: Request, folder: Path, every: int) -> int:
    """Run to the end, stopped and resumed after every few batches; how often it was stopped."""
    stops = 0
    while True:
        stop = Stop()
        display = AfterBatches(stop, every)
        try:
            run(asked if stops == 0 else Request(), folder, resume=stops > 0, stop=stop, display=display)
            return stops
        except Interrupted:
            stops += 1


@pytest.mark.parametrize("method", ["joint", "finetune"])
@pytest.mark.parametrize("every", [1, 5, 7])
def test_stopped_again_and_again_it_ends_with_the_same_bits(npz: Path, tmp_path: Path, method: str, every: int) -> None:
    small = {"training.batch_size": "16"} if every == 1 else {}
    whole = run(request(npz, method, **small), tmp_path / "whole")
    folder = tmp_path / "stopped"
    stops = run_with_stops(request(npz, method, **small), folder, every)
    assert stops >= 3
    assert facts(folder) == facts(whole)
    assert tensors(folder) == tensors(whole)
    assert len(json.loads((folder / "environment.json").read_text())) == stops + 1


GAN = {f"method.{name}": value for name, value in {**SMALL_GAN, "epochs": 4, "steps": 5, "replay": 64}.items()}


@pytest.mark.parametrize(("method", "extra"), [
    ("dgmw", {}), ("dgma", {}), ("dgmw", {"method.solver": "shared"}), ("dgmw", {"method.r": 0.3}),
])  # fmt: skip
def test_a_generative_run_stopped_in_every_movement_ends_with_the_same_bits(
    npz: Path, tmp_path: Path, method: str, extra: dict[str, Any]
) -> None:
    """Stops land while masks are learned, while they are fixed, and while the solver learns."""
    asked = request(npz, method, **GAN, **extra, **{"stream.order": "0,1,2"})
    whole = run(asked, tmp_path / "whole")
    folder = tmp_path / "stopped"
    assert run_with_stops(asked, folder, 7) >= 6
    assert facts(folder) == facts(whole)
    assert tensors(folder) == tensors(whole)
    kinds = {r["kind"] for r in facts(whole)}
    assert {"mask", "growth", "memory", "retention"} <= kinds
    head = next(read_records(folder))
    assert head["strict"] is ("method.r" not in extra)


def test_resuming_a_finished_run_changes_nothing(npz: Path, tmp_path: Path) -> None:
    folder = run(request(npz), tmp_path / "run")
    before = (folder / "records.jsonl").read_bytes(), tensors(folder)
    run(Request(), folder, resume=True)
    assert ((folder / "records.jsonl").read_bytes(), tensors(folder)) == before


def stopped_run(npz: Path, folder: Path) -> Path:
    stop = Stop()
    with pytest.raises(Interrupted):
        run(request(npz), folder, stop=stop, display=AfterBatches(stop, 9))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Request(seed=3), "seed: 0, not 3"),
        (Request(method="joint"), "method: 'finetune', not 'joint'"),
        (Request(dataset="digits"), "dataset"),
        (Request(settings={"training.epochs": "5"}), "training.epochs: 2, not 5"),
        (Request(preset="mnist"), "preset: 'auto', not 'mnist'"),
    ],
)
def test_another_configuration_is_refused(npz: Path, tmp_path: Path, asked: Request, message: str) -> None:
    folder = stopped_run(npz, tmp_path / "run")
    before = contents(folder)
    with pytest.raises(RunError, match="another configuration") as caught:
        run(asked, folder, resume=True)
    assert message in str(caught.value)
    assert contents(folder) == before


def test_the_same_configuration_may_be_said_again(npz: Path, tmp_path: Path) -> None:
    folder = stopped_run(npz, tmp_path / "run")
    run(request(npz), folder, resume=True)
    assert tensors(folder) == tensors(run(request(npz), tmp_path / "whole"))


def test_other_images_are_refused(npz: Path, tmp_path: Path) -> None:
    import numpy as np

    folder = stopped_run(npz, tmp_path / "run")
    arrays = dict(np.load(npz))
    arrays["images"][0, 0, 0, 0] ^= 1
    np.savez(npz, **arrays)
    with pytest.raises(RunError, match="other images"):
        run(Request(), folder, resume=True)


def test_a_folder_in_use_is_refused(npz: Path, tmp_path: Path) -> None:
    folder = stopped_run(npz, tmp_path / "run")
    before = contents(folder)
    code = f"""
import sys, time
from pathlib import Path
from engram.experiment.folder import occupied
with occupied(Path({str(folder)!r})):
    print("held", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunError, match="in use by another process"):
            run(Request(), folder, resume=True)
        assert contents(folder) == before
        holder.kill()
    run(Request(), folder, resume=True)  # the lock went with its holder


def test_folders_that_are_not_runs_are_left_alone(npz: Path, tmp_path: Path) -> None:
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.txt").write_text("meow")
    with pytest.raises(RunError, match="not a run folder"):
        run(request(npz), other)
    with pytest.raises(RunError, match=r"no config\.json"):
        run(Request(), other, resume=True)
    with pytest.raises(RunError, match="does not exist"):
        run(Request(), tmp_path / "nowhere", resume=True)
    done = run(request(npz), tmp_path / "done")
    with pytest.raises(RunError, match="already holds a run"):
        run(request(npz), done)
    assert contents(other) == {"cat.txt": b"meow"}
    (other / "config.json").write_text('{"a": 1}')
    with pytest.raises(RunError, match="not a run's configuration"):
        run(Request(), other, resume=True)
    (other / "config.json").write_text("not json")
    with pytest.raises(RunError, match="damaged"):
        run(Request(), other, resume=True)


def test_a_run_killed_before_its_first_words_is_resumed(npz: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").touch()
    run(request(npz), folder, resume=True)
    assert tensors(folder) == tensors(run(request(npz), tmp_path / "whole"))


def test_a_lost_checkpoint_does_not_cost_the_records(npz: Path, tmp_path: Path) -> None:
    folder = stopped_run(npz, tmp_path / "run")
    (folder / "checkpoint.json").unlink()
    before = contents(folder)
    with pytest.raises(RunError, match=r"checkpoint\.json is missing"):
        run(Request(), folder, resume=True)
    assert contents(folder)["records.jsonl"] == before["records.jsonl"]


def test_a_checkpoint_of_another_shape_is_refused(npz: Path, tmp_path: Path) -> None:
    folder = stopped_run(npz, tmp_path / "run")
    saved = checkpoint.load(folder)
    assert saved is not None
    saved.state["net"]["1.weight"] = torch.zeros(1, 3)
    checkpoint.save(folder, saved.state, saved.meta)
    with pytest.raises(RunError, match="does not fit this version"):
        run(Request(), folder, resume=True)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Breaks(Plain):
        def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
            if task.index == 2:
                with torch.no_grad():
                    next(self.solver.net.parameters()).fill_(float("nan"))
            super().learn(task, observe=observe)

    broken = Method(lambda around: Breaks(around, start="warm"), FINETUNE.settings, "", "", "")
    monkeypatch.setitem(registry.METHODS, "breaks", broken)
    with pytest.raises(DivergedError, match="task 3, epoch 1"):
        run(request(npz, "breaks"), tmp_path / "run")
    last = list(read_records(tmp_path / "run"))[-1]
    assert last["kind"] == "failure"
    assert "class loss is nan" in last["error"]
    saved = checkpoint.load(tmp_path / "run")
    assert saved is not None
    assert saved.meta["task"] == 2
    assert all(torch.isfinite(t).all() for t in saved.state["net"].values())
    monkeypatch.setitem(registry.METHODS, "breaks", FINETUNE)  # mended: the run goes on from the good checkpoint
    mended = run(Request(), tmp_path / "run", resume=True)
    assert tensors(mended) == tensors(run(request(npz), tmp_path / "whole"))
    assert "failure" not in [r["kind"] for r in read_records(mended)]


def test_a_learner_that_hides_images_is_stopped(npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hides(Plain):
        def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
            self.hidden = task.images[:1]
            super().learn(task, observe=observe)

    monkeypatch.setitem(
        registry.METHODS,
        "hides",
        Method(lambda around: Hides(around, start="warm"), FINETUNE.settings, "", "", ""),
    )
    with pytest.raises(StrictnessError, match="still held"):
        run(request(npz, "hides"), tmp_path / "run")


def limited(npz: Path, folder: Path, size: int) -> subprocess.CompletedProcess[str]:
    """A run whose files may not grow beyond `size` bytes: what a full disk does to it."""
    words = ["run", "--dataset", f"npz:{npz}", "--method", "finetune", "--out", str(folder)]
    words += [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    code = f"""
import resource, sys
from engram.cli import call
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
sys.exit(call({words!r}))
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.skipif(os.name != "posix", reason="limits on file sizes are a POSIX matter")
def test_a_full_disk_is_said_in_one_line(npz: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    whole = run(request(npz), tmp_path / "whole")
    # the checkpoint grows with the optimiser's moments and the head: the first fits, a later one does not
    size = len(tensors(whole)) - 1
    result = limited(npz, folder, size)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "cannot write" in result.stderr
    assert "the last good checkpoint is intact" in result.stderr
    assert checkpoint.load(folder) is not None
    run(Request(), folder, resume=True)  # with room again, it goes on and ends as if nothing had happened
    assert tensors(folder) == tensors(whole)
    assert facts(folder) == facts(whole)


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")
def test_an_unwritable_folder_is_said(npz: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.geteuid() == 0:
        closed = Path("/proc")  # root may write everywhere but here
    with pytest.raises(RunError, match="cannot write"):
        run(request(npz), closed / "run")


def test_a_file_in_the_way_is_said(npz: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError):
        run(request(npz), tmp_path / "file")
    with pytest.raises(RunError, match="cannot write"):
        run(request(npz), tmp_path / "file" / "run")


def test_saving_waits_for_its_time_but_not_at_the_end_of_a_task(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {}
    for seconds in ("0", "1000"):
        calls: list[float] = []
        real = checkpoint.save
        monkeypatch.setattr(
            checkpoint, "save", lambda *a, calls=calls, real=real: (calls.append(time.monotonic()), real(*a))
        )
        run(request(npz, **{"runtime.checkpoint_seconds": seconds}), tmp_path / seconds)
        monkeypatch.undo()
        counts[seconds] = len(calls)
    assert counts == {"0": 1 + 4 * 2 + 4, "1000": 1 + 4}


def test_default_folders_are_plain_names() -> None:
    assert default_folder(Request("mnist", "joint").config()) == Path("runs/mnist-joint-seed0")
    odd = Request("folder:/tmp/my images", "finetune", order_seed=3).config()
    assert default_folder(odd) == Path("runs/my-images-finetune-seed0-order3")


def test_tensorboard_shows_what_the_records_say(npz: Path, tmp_path: Path) -> None:
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    stop = Stop()
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        run(request(npz), folder, stop=stop, display=AfterBatches(stop, 9), tensorboard=True)
    run(Request(), folder, resume=True, tensorboard=True)
    events = accumulators.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    shown = [event.value for event in events.Scalars("after task/accuracy")]
    recorded = [r["accuracy"] for r in read_records(folder) if r["kind"] == "evaluation"]
    assert shown == pytest.approx(recorded)
    assert len(events.Scalars("loss/class")) == 8, "no epoch twice"
