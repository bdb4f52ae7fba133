"""Faults around a run: files that somebody else changes, numbers that are none. One line each, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import SMALL_GAN, saved_bits, write_npz
from engram.data.stream import Task
from engram.errors import DivergedError, RunError
from engram.experiment import checkpoint, folder
from engram.experiment.loop import Interrupted, Stop
from engram.experiment.progress import Display
from engram.experiment.records import RecordWriter, read_records
from engram.experiment.request import Request
from engram.experiment.run import execute
from engram.methods import registry
from engram.methods.bounds import FINETUNE, PlainLearner
from engram.methods.dgm.train_task import TaskTrainer
from engram.methods.learner import SILENT, Method, Observer, Progress
from engram.model.model import Model

SETTINGS = {"classifier.epochs": 2, "classifier.batch_size": 8, "runtime.threads": 1}


class AtBatch(Display):
    """Does something after so many batches; asks for a stop after so many."""

    def __init__(self, act: Callable[[], object] = lambda: None, *, at: int = 0, stop: int = 0) -> None:
        self.act, self.at, self.ends, self.count, self.stop = act, at, stop, 0, Stop()
        self.notes: list[str] = []

    def begin(self, config: Any, sizes: Any, done: Any, evaluations: Any, notes: Any) -> None:
        self.notes = list(notes)

    def batch(self, progress: Progress) -> None:
        self.count += 1
        if self.count == self.at:
            self.act()
        self.stop.asked = self.count == self.ends


def asked(data: Path, method: str = "finetune", **settings: Any) -> Request:
    return Request(dataset=f"npz:{data}", method=method, settings={**SETTINGS, **settings})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_npz(tmp_path_factory.mktemp("data") / "a.npz", classes=3, per_class=50)


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run left alone; read only."""
    return execute(asked(data), tmp_path_factory.mktemp("whole") / "run")


def stopped(data: Path, at: Path, after: int = 7) -> Path:
    display = AtBatch(stop=after)
    with pytest.raises(Interrupted):
        execute(asked(data), at, stop=display.stop, display=display)
    return at


def contents(at: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in at.iterdir() if p.is_file() and not p.name.startswith(".")}


def facts(at: Path) -> list[dict[str, Any]]:
    return [r for r in read_records(at) if r["kind"] != "timing"]


# ---------------------------------------------------------------- the configuration


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: plain["config"].update(seed=5),
        lambda plain: plain["config"]["classifier"].update(learning_rate=0.5),
        lambda plain: plain["config"]["stream"].update(order=[2, 1, 0]),
        lambda plain: plain["config"]["runtime"].update(threads=2),
    ],
    ids=["seed", "rate", "class order", "runtime"],
)
def test_a_configuration_that_was_edited_between_stop_and_resume_is_refused(
    data: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    at = stopped(data, tmp_path / "run")
    file = at / "config.json"
    plain = json.loads(file.read_text())
    change(plain)
    file.write_text(json.dumps(plain))
    before = contents(at)
    for go_on in (lambda: execute(Request(), at, resume=True), lambda: Model.open(at)):
        with pytest.raises(RunError) as caught:
            go_on()
        said = str(caught.value)
        assert said.startswith(f"{file} is not what the run was started with: put it back as it was")
        assert "\n" not in said
    assert contents(at) == before


def test_where_it_computes_may_still_be_set_anew(data: Path, whole: Path, tmp_path: Path) -> None:
    at = stopped(data, tmp_path / "run")
    execute(Request(settings={"runtime.checkpoint_seconds": 1}), at, resume=True)
    assert saved_bits(at) == saved_bits(whole)
    execute(Request(settings={"runtime.checkpoint_seconds": 2}), at, resume=True)


def test_the_hash_is_of_the_configuration_that_the_process_began_with(data: Path, tmp_path: Path) -> None:
    """An edit while the run is at work is not vouched for by its next save."""
    at = tmp_path / "run"
    file = at / "config.json"
    display = AtBatch(lambda: file.write_text(file.read_text().replace('"seed": 0', '"seed": 7')), at=3)
    execute(asked(data), at, display=display)
    with pytest.raises(RunError, match="is not what the run was started with"):
        execute(Request(), at, resume=True)


# ---------------------------------------------------------------- the records


def test_a_record_that_was_edited_is_refused(data: Path, tmp_path: Path) -> None:
    at = stopped(data, tmp_path / "run", after=13)
    file = at / "records.jsonl"
    good = file.read_text()
    accuracy = next(r for r in read_records(at) if r["kind"] == "evaluation")["accuracy"]
    assert f'"accuracy":{accuracy}' in good
    file.write_text(good.replace(f'"accuracy":{accuracy}', '"accuracy":0.5'))
    before = contents(at)
    with pytest.raises(RunError, match=r"records\.jsonl is not what the run wrote: a line was edited; restore it"):
        execute(Request(), at, resume=True)
    assert contents(at) == before
    file.write_text(good)
    execute(Request(), at, resume=True)


def test_the_checkpoint_knows_the_records_by_their_hash(whole: Path) -> None:
    import hashlib

    body = json.loads((whole / "checkpoint.json").read_text())["body"]
    written = (whole / "records.jsonl").read_bytes()[: body["meta"]["records"]]
    assert body["meta"]["records_sha256"] == hashlib.sha256(written).hexdigest()
    assert body["config_sha256"] == hashlib.sha256((whole / "config.json").read_bytes()).hexdigest()


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(20)


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes() + b"{}\n")
    os.replace(other, path)


def add(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"kind":"mine"}\n')


@pytest.mark.skipif(os.name != "posix", reason="an open file cannot be removed elsewhere")
@pytest.mark.parametrize(
    ("act", "word"),
    [(Path.unlink, "removed"), (replace, "replaced"), (cut, "changed"), (add, "changed")],
    ids=["removed", "replaced", "cut short", "added to"],
)
def test_records_that_somebody_takes_away_are_written_anew_and_the_run_stops(
    data: Path, whole: Path, tmp_path: Path, act: Callable[[Path], object], word: str
) -> None:
    """It says so in one line, with its state saved; going on ends with the records and bits of a run left alone."""
    at = tmp_path / "run"
    display = AtBatch(lambda: act(at / "records.jsonl"), at=6)
    with pytest.raises(RunError) as caught:
        execute(asked(data), at, display=display)
    said = str(caught.value)
    assert f"records.jsonl was {word} by another program while the run was at work. It was written anew" in said
    assert "\n" not in said
    assert [r["kind"] for r in read_records(at)] == ["run", "epoch", "epoch", "evaluation", "task", "timing"]
    execute(Request(), at, resume=True)
    assert facts(at) == facts(whole)
    assert saved_bits(at) == saved_bits(whole)


def test_a_resumed_writer_has_what_was_kept(tmp_path: Path) -> None:
    """Lines of an earlier start are written anew too."""
    writer = RecordWriter(tmp_path)
    writer.append("run", format=2)
    length, digest = writer.sync(), writer.sha256
    writer.close()
    writer = RecordWriter(tmp_path, length, digest)
    writer.append("task", task=0)
    (tmp_path / "records.jsonl").unlink()
    assert writer.sync() == len('{"kind":"run","format":2}\n{"kind":"task","task":0}\n')
    assert writer.altered == "removed"
    writer.append("task", task=1)
    writer.close()
    assert [r["kind"] for r in read_records(tmp_path)] == ["run", "task", "task"]


# ---------------------------------------------------------------- two saves


def test_a_run_whose_last_save_is_damaged_goes_on_from_the_one_before(data: Path, whole: Path, tmp_path: Path) -> None:
    at = stopped(data, tmp_path / "run", after=13)
    last = at / json.loads((at / "checkpoint.json").read_text())["body"]["file"]
    bits = bytearray(last.read_bytes())
    bits[-1] ^= 1
    last.write_bytes(bits)
    with pytest.raises(RunError, match="the checkpoint before it is whole: go on from there"):
        Model.open(at)
    display = AtBatch()
    execute(Request(), at, resume=True, display=display)
    assert [note for note in display.notes if "checkpoint" in note] == [
        f"{last} is damaged: its contents do not match their checksum; going on from the checkpoint before it"
    ]
    assert facts(at) == facts(whole)
    assert saved_bits(at) == saved_bits(whole)


def test_a_start_removes_what_an_interrupted_clean_up_left(whole: Path, tmp_path: Path) -> None:
    at = shutil.copytree(whole, tmp_path / "run")
    before = {p.name for p in at.iterdir()}
    (at / "checkpoint-99.safetensors").write_bytes((whole / "records.jsonl").read_bytes())
    execute(Request(), at, resume=True)
    assert {p.name for p in at.iterdir()} == before


# ---------------------------------------------------------------- numbers that are none


class Breaks(PlainLearner):
    """After its second task a weight that no loss shows is no number."""

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        super().learn(task, observe=observe)
        self.broken = task.index == 1

    def state(self) -> dict[str, Any]:
        return {**super().state(), "memory": torch.tensor([1.0, float("nan") if getattr(self, "broken", 0) else 2.0])}


def breaking(monkeypatch: pytest.MonkeyPatch) -> None:
    method = Method(lambda ctx: Breaks(ctx, start="warm"), FINETUNE.settings, "", "", "")
    monkeypatch.setitem(registry.METHODS, "breaks", method)


def test_weights_that_are_not_finite_are_not_saved(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch)
    at = tmp_path / "run"
    with pytest.raises(DivergedError, match="memory holds numbers that are not finite; the last good checkpoint is"):
        execute(asked(data, "breaks"), at)
    last = list(read_records(at))[-1]
    assert (last["kind"], last["task"]) == ("failure", 2)
    assert "memory holds numbers that are not finite" in last["error"]
    saved = checkpoint.load(at)
    assert saved is not None
    assert saved.meta["task"] == 1
    assert saved.state["memory"].tolist() == [1.0, 2.0]


def test_in_memory_too(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that diverges is put back to what it was."""
    breaking(monkeypatch)
    with np.load(data) as held:
        images, labels = held["images"], held["labels"]
    model = Model.create("breaks", settings={**SETTINGS})
    model.learn(images[labels == 0], ["a"] * 50)
    with pytest.raises(DivergedError, match="memory holds numbers"):
        model.learn(images[labels == 1], ["b"] * 50)
    assert model.classes == ("a",)


def test_a_model_file_is_not_replaced_by_one_that_is_not_finite(data: Path, tmp_path: Path) -> None:
    with np.load(data) as held:
        images, labels = held["images"], held["labels"]
    model = Model.create("finetune", settings={**SETTINGS})
    model.learn(images[labels == 0], ["a"] * 50)
    model.save(tmp_path / "m.engram")
    before = (tmp_path / "m.engram").read_bytes()
    assert isinstance(model.learner, PlainLearner)
    with torch.no_grad():
        next(model.learner.classifier.net.parameters()).view(-1)[3] = float("inf")
    with pytest.raises(DivergedError, match="not finite; the file before, if there was one, is intact"):
        model.save(tmp_path / "m.engram")
    assert (tmp_path / "m.engram").read_bytes() == before


def test_masks_that_are_no_numbers_end_as_a_loss_does(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, exit code 1, and a record of the failure; not a traceback out of the records."""
    real = TaskTrainer.step

    def step(trainer: TaskTrainer, *given: Any) -> Mapping[str, Tensor]:
        losses = real(trainer, *given)
        if given[0].index == 1:
            with torch.no_grad():
                for layer in trainer.net.plastic:
                    layer.embedding.fill_(float("nan"))
            return {name: torch.zeros(()) for name in losses}  # no loss shows it
        return losses

    monkeypatch.setattr(TaskTrainer, "step", step)
    at = tmp_path / "run"
    small = {**SMALL_GAN, "gan.epochs": 2, "gan.steps": 3, "replay.images": 32}
    with pytest.raises(DivergedError, match=r"mask\.\w+\.0(\.0)? is nan in task 2; the last good checkpoint is kept"):
        execute(asked(data, "dgmw", **small), at)
    assert DivergedError.exit_code == 1
    last = list(read_records(at))[-1]
    assert (last["kind"], last["task"]) == ("failure", 1)
    saved = checkpoint.load(at)
    assert saved is not None
    assert saved.meta["task"] == 1


# ---------------------------------------------------------------- what a start leaves alone


def test_a_start_takes_no_lock_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a repository of its own, whose index git would like to write anew: another's time stamp on a file."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "folder.py").write_text("x")

    def git(*words: str) -> None:
        user = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", "-C", str(package), *user, *words], check=True, capture_output=True)

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "x")
    os.utime(package / "folder.py", (1, 1))
    index = package / ".git/index"
    before = index.read_bytes()
    monkeypatch.setattr(folder, "__file__", str(package / "folder.py"))
    found = folder._commit()
    assert found is not None
    assert len(found) == 40
    assert index.read_bytes() == before
    (package / "folder.py").write_text("y")
    assert folder._commit() == f"{found}-dirty"
    (package / "folder.py").write_text("x")
    os.utime(package / "folder.py", (1, 1))
    git("describe", "--always", "--dirty")
    assert index.read_bytes() != before, "which it would do without being told"
