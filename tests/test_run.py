"""The run: same bits however often it is stopped, and nothing lost when something goes wrong."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import engram
from conftest import SMALL_GAN, saved_bits, write_npz
from engram.config import Config
from engram.data.stream import Task
from engram.errors import ConfigError, DataError, DivergedError, InUseError, RunError, StrictnessError
from engram.evaluation import metrics
from engram.experiment import checkpoint
from engram.experiment.loop import Interrupted, Stop
from engram.experiment.progress import BAR_WIDTH, ConsoleDisplay, Display, accuracy_table
from engram.experiment.records import read_records
from engram.experiment.request import Request, default_folder
from engram.experiment.run import execute
from engram.methods import registry
from engram.methods.bounds import FINETUNE, PlainLearner
from engram.methods.learner import SILENT, Method, Observer, Progress, Samples
from engram.model.model import Model
from engram.model.predict import Prediction, predict
from engram.model.verify import verify
from engram.seeding import generator

SETTINGS = {
    "runtime.threads": "1",
    "classifier.epochs": "2",
    "classifier.batch_size": "8",
    "classifier.augment": "affine",
}


def request(npz: Path, method: str = "finetune", **settings: Any) -> Request:
    return Request(dataset=f"npz:{npz}", method=method, settings={**SETTINGS, **settings})


def facts(folder: Path) -> list[dict[str, Any]]:
    return [r for r in read_records(folder) if r["kind"] != "timing"]


def tensors(folder: Path) -> bytes:
    return saved_bits(folder)


@pytest.mark.parametrize("method", ["joint", "finetune"])
def test_a_run_leaves_its_whole_story(npz: Path, tmp_path: Path, method: str) -> None:
    folder = execute(request(npz, method), tmp_path / "run")
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
    assert sum(map(sum, metrics.counts(last["confusion"]))) == 32
    # joint training learns all classes; fine-tuning forgets, even if two short epochs do not wipe out everything
    assert last["accuracy"] > 0.9 if method == "joint" else last["accuracy"] < 0.7


def test_same_seed_same_bits_other_seed_other_bits(npz: Path, tmp_path: Path) -> None:
    first, again = execute(request(npz), tmp_path / "a"), execute(request(npz), tmp_path / "b")
    assert facts(first) == facts(again)
    assert tensors(first) == tensors(again)
    other = execute(Request(dataset=f"npz:{npz}", method="finetune", seed=1, settings=SETTINGS), tmp_path / "c")
    assert tensors(first) != tensors(other)


def test_training_seed_and_order_seed_are_separate(npz: Path, tmp_path: Path) -> None:
    orders = {}
    for seed in (0, 1):
        for order_seed in (None, 5):
            asked = Request(f"npz:{npz}", "finetune", None, seed, order_seed, {**SETTINGS, "classifier.epochs": 1})
            folder = execute(asked, tmp_path / f"{seed}{order_seed}")
            orders[seed, order_seed] = next(read_records(folder))["tasks"]
    assert orders[0, None] == orders[1, None] == [[0], [1], [2], [3]]
    assert orders[0, 5] == orders[1, 5] != orders[0, None]


def test_a_run_can_be_made_again_from_its_own_configuration(npz: Path, tmp_path: Path) -> None:
    first = execute(request(npz), tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_bytes((first / "config.json").read_bytes())
    again = execute(Request(), tmp_path / "b", resume=True)
    assert tensors(first) == tensors(again)


class AfterBatches(Display):
    """Asks for a stop after a number of batches."""

    def __init__(self, stop: Stop, batches: int) -> None:
        self.stop, self.left = stop, batches

    def batch(self, progress: Progress) -> None:
        self.left -= 1
        self.stop.asked = self.left <= 0


def run_with_stops(asked: Request, folder: Path, every: int) -> int:
    """Run to the end, stopped and resumed after every few batches; how often it was stopped."""
    stops = 0
    while True:
        stop = Stop()
        display = AfterBatches(stop, every)
        try:
            execute(asked if stops == 0 else Request(), folder, resume=stops > 0, stop=stop, display=display)
            return stops
        except Interrupted:
            stops += 1


@pytest.mark.parametrize("method", ["joint", "finetune"])
@pytest.mark.parametrize("every", [1, 5, 7])
def test_stopped_again_and_again_it_ends_with_the_same_bits(npz: Path, tmp_path: Path, method: str, every: int) -> None:
    small = {"classifier.batch_size": "16"} if every == 1 else {}
    whole = execute(request(npz, method, **small), tmp_path / "whole")
    folder = tmp_path / "stopped"
    stops = run_with_stops(request(npz, method, **small), folder, every)
    assert stops >= 3
    assert facts(folder) == facts(whole)
    assert tensors(folder) == tensors(whole)
    assert len(json.loads((folder / "environment.json").read_text())) == stops + 1


GAN = {**SMALL_GAN, "gan.epochs": 4, "gan.steps": 5, "replay.images": 64}


@pytest.mark.parametrize(("method", "extra"), [
    ("dgmw", {}), ("dgma", {}), ("dgmw", {"replay.classifier": "critic"}), ("dgmw", {"exemplars.ratio": 0.3}),
])  # fmt: skip
def test_a_generative_run_stopped_in_every_phase_ends_with_the_same_bits(
    npz: Path, tmp_path: Path, method: str, extra: dict[str, Any]
) -> None:
    """Stops land while masks are learned, while they are fixed, and while the classifier learns."""
    asked = request(npz, method, **GAN, **extra, **{"stream.order": "0,1,2"})
    whole = execute(asked, tmp_path / "whole")
    folder = tmp_path / "stopped"
    assert run_with_stops(asked, folder, 7) >= 6
    assert facts(folder) == facts(whole)
    assert tensors(folder) == tensors(whole)
    kinds = {r["kind"] for r in facts(whole)}
    assert {"mask", "growth", "memory", "retention"} <= kinds
    head = next(read_records(folder))
    assert head["strict"] is ("exemplars.ratio" not in extra)


def test_resuming_a_finished_run_changes_nothing(npz: Path, tmp_path: Path) -> None:
    folder = execute(request(npz), tmp_path / "run")
    before = (folder / "records.jsonl").read_bytes(), tensors(folder)
    execute(Request(), folder, resume=True)
    assert ((folder / "records.jsonl").read_bytes(), tensors(folder)) == before


def stopped_run(npz: Path, folder: Path) -> Path:
    stop = Stop()
    with pytest.raises(Interrupted):
        execute(request(npz), folder, stop=stop, display=AfterBatches(stop, 9))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Request(seed=3), "seed: 0, not 3"),
        (Request(method="joint"), "method: 'finetune', not 'joint'"),
        (Request(dataset="digits"), "dataset"),
        (Request(settings={"classifier.epochs": "5"}), "classifier.epochs: 2, not 5"),
        (Request(preset="mnist"), "preset: 'auto', not 'mnist'"),
    ],
)
def test_another_configuration_is_refused(npz: Path, tmp_path: Path, asked: Request, message: str) -> None:
    folder = stopped_run(npz, tmp_path / "run")
    before = contents(folder)
    with pytest.raises(RunError, match="another configuration") as caught:
        execute(asked, folder, resume=True)
    assert message in str(caught.value)
    assert contents(folder) == before


def test_the_same_configuration_may_be_said_again(npz: Path, tmp_path: Path) -> None:
    folder = stopped_run(npz, tmp_path / "run")
    execute(request(npz), folder, resume=True)
    assert tensors(folder) == tensors(execute(request(npz), tmp_path / "whole"))


def test_other_images_are_refused(npz: Path, tmp_path: Path) -> None:
    folder = stopped_run(npz, tmp_path / "run")
    arrays = dict(np.load(npz))
    arrays["images"][0, 0, 0, 0] ^= 1
    np.savez(npz, **arrays)
    with pytest.raises(RunError, match="other images"):
        execute(Request(), folder, resume=True)


def test_a_folder_in_use_is_refused(npz: Path, tmp_path: Path) -> None:
    folder = stopped_run(npz, tmp_path / "run")
    before = contents(folder)
    code = f"""
import sys, time
from pathlib import Path
from engram.experiment.folder import locked
with locked(Path({str(folder)!r})):
    print("held", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InUseError, match="in use by another process"):
            execute(Request(), folder, resume=True)
        assert contents(folder) == before
        holder.kill()
    execute(Request(), folder, resume=True)  # the lock went with its holder


def test_folders_that_are_not_runs_are_left_alone(npz: Path, tmp_path: Path) -> None:
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.txt").write_text("meow")
    with pytest.raises(RunError, match="not a run folder"):
        execute(request(npz), other)
    with pytest.raises(RunError, match=r"no config\.json"):
        execute(Request(), other, resume=True)
    with pytest.raises(RunError, match="does not exist"):
        execute(Request(), tmp_path / "nowhere", resume=True)
    done = execute(request(npz), tmp_path / "done")
    with pytest.raises(RunError, match="already holds a run"):
        execute(request(npz), done)
    assert contents(other) == {"cat.txt": b"meow"}
    (other / "config.json").write_text('{"a": 1}')
    with pytest.raises(RunError, match="not a run's configuration"):
        execute(Request(), other, resume=True)
    (other / "config.json").write_text("not json")
    with pytest.raises(RunError, match="damaged"):
        execute(Request(), other, resume=True)


def test_a_run_killed_before_its_first_words_is_resumed(npz: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").touch()
    execute(request(npz), folder, resume=True)
    assert tensors(folder) == tensors(execute(request(npz), tmp_path / "whole"))


def test_a_lost_checkpoint_does_not_cost_the_records(npz: Path, tmp_path: Path) -> None:
    folder = stopped_run(npz, tmp_path / "run")
    (folder / "checkpoint.json").unlink()
    before = contents(folder)
    with pytest.raises(RunError, match=r"checkpoint\.json is missing"):
        execute(Request(), folder, resume=True)
    assert contents(folder)["records.jsonl"] == before["records.jsonl"]


def test_a_checkpoint_of_another_shape_is_refused(npz: Path, tmp_path: Path) -> None:
    folder = stopped_run(npz, tmp_path / "run")
    saved = checkpoint.load(folder)
    assert saved is not None
    saved.state["net"]["1.weight"] = torch.zeros(1, 3)
    checkpoint.save(folder, saved.state, saved.meta)
    with pytest.raises(RunError, match="does not fit this version"):
        execute(Request(), folder, resume=True)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Breaks(PlainLearner):
        def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
            if task.index == 2:
                with torch.no_grad():
                    next(self.classifier.net.parameters()).fill_(float("nan"))
            super().learn(task, observe=observe)

    broken = Method(lambda ctx: Breaks(ctx, start="warm"), FINETUNE.settings, "", "", "")
    monkeypatch.setitem(registry.METHODS, "breaks", broken)
    with pytest.raises(DivergedError, match="task 3, epoch 1"):
        execute(request(npz, "breaks"), tmp_path / "run")
    last = list(read_records(tmp_path / "run"))[-1]
    assert last["kind"] == "failure"
    assert "class loss is nan" in last["error"]
    saved = checkpoint.load(tmp_path / "run")
    assert saved is not None
    assert saved.meta["task"] == 2
    assert all(torch.isfinite(t).all() for t in saved.state["net"].values())
    monkeypatch.setitem(registry.METHODS, "breaks", FINETUNE)  # mended: the run goes on from the good checkpoint
    mended = execute(Request(), tmp_path / "run", resume=True)
    assert tensors(mended) == tensors(execute(request(npz), tmp_path / "whole"))
    assert "failure" not in [r["kind"] for r in read_records(mended)]


def test_a_learner_that_hides_images_is_stopped(npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hides(PlainLearner):
        def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
            self.hidden = task.images[:1]
            super().learn(task, observe=observe)

    monkeypatch.setitem(
        registry.METHODS,
        "hides",
        Method(lambda ctx: Hides(ctx, start="warm"), FINETUNE.settings, "", "", ""),
    )
    with pytest.raises(StrictnessError, match="still held"):
        execute(request(npz, "hides"), tmp_path / "run")


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
    whole = execute(request(npz), tmp_path / "whole")
    # the checkpoint grows with the optimiser's moments and the head: the first fits, a later one does not
    size = max(path.stat().st_size for path in whole.glob("checkpoint-*.safetensors")) - 1
    result = limited(npz, folder, size)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "cannot write" in result.stderr
    assert "the last good checkpoint is intact" in result.stderr
    assert checkpoint.load(folder) is not None
    execute(Request(), folder, resume=True)  # with space again, it goes on and ends as if nothing had happened
    assert tensors(folder) == tensors(whole)
    assert facts(folder) == facts(whole)


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")
def test_an_unwritable_folder_is_said(npz: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.geteuid() == 0:
        closed = Path("/proc")  # root may write everywhere but here
    with pytest.raises(RunError, match="cannot write"):
        execute(request(npz), closed / "run")


def test_a_file_in_the_way_is_said(npz: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError):
        execute(request(npz), tmp_path / "file")
    with pytest.raises(RunError, match="cannot write"):
        execute(request(npz), tmp_path / "file" / "run")


def test_saving_waits_for_its_time_but_not_at_the_end_of_a_task(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {}
    for seconds in ("0", "1000"):
        calls: list[float] = []
        real = checkpoint.save
        monkeypatch.setattr(
            checkpoint,
            "save",
            lambda *a, calls=calls, real=real, **k: (calls.append(time.monotonic()), real(*a, **k))[1],
        )
        execute(request(npz, **{"runtime.checkpoint_seconds": seconds}), tmp_path / seconds)
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
        execute(request(npz), folder, stop=stop, display=AfterBatches(stop, 9), tensorboard=True)
    execute(Request(), folder, resume=True, tensorboard=True)
    events = accumulators.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    shown = [event.value for event in events.Scalars("after task/accuracy")]
    recorded = [r["accuracy"] for r in read_records(folder) if r["kind"] == "evaluation"]
    assert shown == pytest.approx(recorded)
    assert len(events.Scalars("loss/class")) == 8, "no epoch twice"


# ---------------------------------------------------------------- as a library, at another size, by name


def test_the_library_runs_what_the_command_runs(tmp_path: Path) -> None:
    settings = {"stream.order": "1,0", "classifier.epochs": 1, "runtime.threads": 1}
    folder = engram.run("digits", "finetune", settings=settings, out=tmp_path / "run")
    assert folder == tmp_path / "run"
    assert next(read_records(folder))["tasks"] == [[1], [0]]
    last = [r for r in read_records(folder) if r["kind"] == "evaluation"][-1]
    assert last["classes"] == [1, 0]
    assert last["accuracy"] < 0.7
    asked = Request(dataset="digits", method="finetune", settings=settings)
    assert tensors(execute(asked, tmp_path / "same")) == tensors(folder)
    before = contents(folder)
    assert engram.run(out=str(folder), resume=True) == folder
    assert {**contents(folder), "environment.json": b""} == {**before, "environment.json": b""}
    with pytest.raises(RunError, match="already holds a run"):
        engram.run("digits", "finetune", settings=settings, out=folder)
    with pytest.raises(ConfigError, match=r"did you mean 'classifier\.epochs'"):
        engram.run("digits", "finetune", settings={"training.epochs": 1}, out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_run_at_64_pixels_from_end_to_end(tmp_path: Path) -> None:
    """Stopped and resumed it ends with the same bits; nothing is forgotten; the drawings are as large as the images."""
    npz = write_npz(tmp_path / "a.npz", classes=2, per_class=20)
    small = {"gan.epochs": 2, "gan.steps": 3, "replay.images": 32, "stream.image_size": 64}
    asked = request(npz, "dgmw", **{**GAN, **small})
    whole = execute(asked, tmp_path / "whole")
    folder = tmp_path / "stopped"
    assert run_with_stops(asked, folder, 4) >= 3
    assert facts(folder) == facts(whole)
    assert tensors(folder) == tensors(whole)
    head = next(read_records(folder))
    assert head["shape"] == [1, 64, 64]
    assert [r["changed"] for r in facts(folder) if r["kind"] == "retention"] == [[], []]
    checks = {line.what: line.ok for line in verify(folder)}
    assert all(checks[what] for what in ("integrity", "retention", "strictness", "figures", "answers"))
    assert False not in checks.values()
    run = Model.open(folder)
    assert run.shape == (1, 64, 64)
    assert isinstance(run.learner, Samples)
    drawn = run.learner.sample([0, 1], 10, generator=generator(0, "drawings"))
    assert drawn.shape == (20, 1, 64, 64)
    with Image.open(folder / "samples.png") as picture:
        pixels = torch.from_numpy(np.array(picture))[::2, ::2]  # every pixel is shown as four
    tile, gap = 64, 2
    assert pixels.shape == (2 * (tile + gap) + gap, 10 * (tile + gap) + gap)
    for row in range(2):
        for number in range(10):
            top, left = row * (tile + gap) + gap, number * (tile + gap) + gap
            assert torch.equal(pixels[top : top + tile, left : left + tile], drawn[row * 10 + number, 0])
    image = tmp_path / "x.png"
    Image.fromarray(np.full((50, 40), 90, np.uint8)).save(image)
    (answer,) = predict(run, [image])
    assert isinstance(answer, Prediction)
    assert answer.names[0] in ("0", "1")


def write_folder(root: Path, counts: dict[str, int]) -> Path:
    """Image folders: class -> how many images."""
    for shade, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(np.full((8, 8), 60 * shade + number, np.uint8)).save(root / name / f"{number}.png")
    return root


def test_classes_are_ordered_by_name(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "pets", {"cat": 10, "dog": 10, "newt": 10})

    def tasks(order: object, name: str) -> tuple[list[list[int]], Path]:
        settings = {**SETTINGS, "stream.order": order}
        folder = execute(Request(f"folder:{data}", "finetune", settings=settings), tmp_path / name)
        return next(read_records(folder))["tasks"], folder

    found, folder = tasks("newt,cat", "text")
    assert found == [[2], [0]]
    assert tasks(["newt", "cat"], "list")[0] == found
    assert tasks("2, cat", "mixed")[0] == found
    assert json.loads((folder / "config.json").read_text())["config"]["stream"]["order"] == ["newt", "cat"]
    execute(Request(), folder, resume=True)  # and it is read back
    assert Model.open(folder).classes == ("newt", "cat")
    for order, message in (("newt,cow", "unknown class 'cow'"), ("cat,0", "class cat twice")):
        with pytest.raises(ConfigError, match=message):
            tasks(order, "wrong")
    assert not (tmp_path / "wrong").exists()


def test_a_class_that_cannot_be_tested_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "pets", {"cat": 10, "dog": 1, "newt": 10})
    asked = Request(f"folder:{data}", "finetune", settings=SETTINGS)
    with pytest.raises(DataError) as caught:
        execute(asked, tmp_path / "run")
    said = str(caught.value)
    assert said.endswith("class 'dog' has no test image; add images of it, or leave it out by stream.order")
    assert "\n" not in said
    assert not (tmp_path / "run").exists()
    without = Request(f"folder:{data}", "finetune", settings={**SETTINGS, "stream.order": "newt,cat"})
    execute(without, tmp_path / "run")


# ---------------------------------------------------------------- on a terminal


def shown(console: Console, losses: dict[str, float], names: list[str]) -> str:
    """What a terminal is sent while a task is learned, and after it."""
    with ConsoleDisplay(console) as display:
        display.begin(Config(method="dgmw"), [100, 100], 0, [], ["a note on [bold]:car:"])
        display.task(0, names)
        display.epoch({"task": 0, "epoch": 0, "losses": losses})
        display.started -= 5  # something to reckon the time left from
        display.batch(Progress(epochs=4, batches=10, epoch=1, batch=5))
        display.bar.refresh()
        display.done({"task": 0, "classes": [0], "accuracy": 0.5}, 1.0)
    file = console.file
    assert isinstance(file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())


def terminal(width: int = 80) -> Console:
    return Console(width=width, force_terminal=True, file=io.StringIO(), _environ={"TERM": "xterm"})


WORDS = ("critic", "generator", "penalty", "class", "auxiliary", "sparsity", "distillation")
LOSSES = dict.fromkeys(WORDS, 123.4567)


def test_on_a_narrow_terminal_the_losses_give_way_to_the_bar() -> None:
    for losses in ({}, LOSSES):
        out = shown(terminal(80), losses, ["zero"])
        (line, *_) = [line for line in re.split(r"[\r\n]", out) if "epoch 2/4" in line]
        assert len(line) <= 80
        assert line.startswith("task 1/2 (zero) epoch 2/4 ")
        assert line.count("━") + line.count("╸") + line.count("╺") >= BAR_WIDTH, line
        assert re.search(r" \d+ % .*\d s left *$", line), line
        assert "…" not in line, "nothing is cut off"
        assert ("critic 123.4567" in line) == bool(losses), "as many as there is space for"
    wide = shown(terminal(240), LOSSES, ["zero"])
    assert all(f"{name} 123.4567" in wide for name in LOSSES)


@pytest.mark.parametrize("name", [":car:", "[red]x", "[/]", "a\\[b]"])
def test_names_appear_as_they_are(name: str) -> None:
    out = shown(terminal(), {}, [name])
    assert f"task 1/2 ({name}) epoch 2/4" in out
    assert f"task 1/2 ({name})  A_1 = 50.00 %" in out
    assert "note: a note on [bold]:car:" in out
    head = {
        "kind": "run", "method": "dgmw", "bound": None, "dataset": {"name": name, "variant": "own"},
        "class_names": [name],
    }  # fmt: skip
    evaluation = {
        "kind": "evaluation", "task": 0, "classes": [0], "accuracy": 1.0, "macro": 1.0, "top5": None, "forgetting": 0.0,
    }  # fmt: skip
    console = terminal(120)
    console.print(accuracy_table([head, evaluation]))
    assert isinstance(console.file, io.StringIO)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())
    assert f"dgmw on {name}, own" in text
    assert re.search(rf"1 +1 +{re.escape(name)} +100\.00", text), text


def test_a_long_list_of_classes_leaves_space_for_the_bar() -> None:
    out = shown(terminal(80), LOSSES, [f"class number {n}" for n in range(9)])
    assert "class number 5 …)  A_1 = 50.00 %" in out, "the line that stays has more of them"
    (line, *_) = [line for line in re.split(r"[\r\n]", out) if "epoch 2/4" in line]
    assert len(line) <= 80
    assert line.count("━") + line.count("╸") + line.count("╺") >= BAR_WIDTH, line
    assert re.search(r"\d s left *$", line), line
