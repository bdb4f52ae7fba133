"""After a crash at any moment of a save, whatever the disc has lost, the old state or the new one is there, whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import write_npz
from engram.errors import EngramError
from engram.experiment import checkpoint
from engram.experiment.records import RecordWriter, kept_records
from engram.memory.unchanging import Unchanging
from engram.model import file as model_file
from engram.model.learn import held, put
from engram.model.model import Model
from filesystem import Recorder, lay_out, snapshot


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """The folders that are laid out need not be forced to disc."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


def state_of(task: int) -> dict[str, Any]:
    parts = {str(number): Unchanging({"bits": torch.full((3,), number)}) for number in range(task + 1)}
    return {"net": {"weight": torch.full((5,), float(task))}, "done": task, "engrams": parts}


def saved(folder: Path, task: int, before: checkpoint.Entry | None, offset: int = 0) -> checkpoint.Entry:
    """A task's record and its state, as the loop over tasks does it."""
    writer = RecordWriter(folder, offset)
    writer.append("task", task=task)
    meta = {"task": task, "records": writer.sync(), "records_sha256": writer.sha256}
    entry = checkpoint.save(folder, state_of(task), meta, before=before)
    writer.append("epoch", task=task + 1)
    writer.close()
    return entry


def whole(folder: Path) -> checkpoint.Checkpoint:
    """What is found; that state, records and task belong together."""
    found = checkpoint.load(folder)
    assert found is not None
    task = found.meta["task"]
    assert checkpoint.fingerprint(found.state) == checkpoint.fingerprint(state_of(task))
    kept = kept_records(folder, found.meta["records"], found.meta["records_sha256"])
    assert kept == b"".join(b'{"kind":"task","task":%d}\n' % number for number in range(task + 1))
    return found


def recorded(root: Path, *, forces: bool = True) -> Recorder:
    """The save of task 2, in a folder that holds those of tasks 0 and 1."""
    folder = root / "run"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    first = saved(folder, 0, None)
    second = saved(folder, 1, first, first["body"]["meta"]["records"])
    with Recorder(folder, forces=forces) as seen:
        saved(folder, 2, second, second["body"]["meta"]["records"])
    return seen


def test_after_a_crash_in_a_save_a_run_goes_on(tmp_path: Path, no_waiting: None) -> None:
    states = recorded(tmp_path).crashes()
    tasks = []
    for number, state in enumerate(states):
        folder = lay_out(state, tmp_path / str(number))
        found = whole(folder)
        tasks.append(found.meta["task"])
        entry = saved(folder, tasks[-1] + 1, found.entry, found.meta["records"])
        assert whole(folder).meta["task"] == tasks[-1] + 1
        (folder / entry["body"]["file"]).write_bytes(b"damaged")
        before = checkpoint.load(folder, or_before=True)
        assert before is not None
        assert before.meta == found.meta, "the one that was gone on from is kept beside it"
        assert {p.name for p in folder.glob("*.safetensors")} == {e["body"]["file"] for e in (entry, found.entry)}, (
            "and nothing else is"
        )
        assert not list(folder.rglob(".*.tmp"))
        assert len(list((folder / "parts").iterdir())) == tasks[-1] + 2, "one for every task, each once"
    assert {*tasks} == {1, 2}
    assert len(states) >= 20


def test_without_forcing_anything_to_disc_a_crash_would_lose_a_save(tmp_path: Path, no_waiting: None) -> None:
    """So the states are hard enough."""
    lost = 0
    for number, state in enumerate(recorded(tmp_path, forces=False).crashes()[:400]):
        try:
            whole(lay_out(state, tmp_path / str(number)))
        except (EngramError, AssertionError):
            lost += 1
    assert lost > 0


def learned(data: Path, classes: int) -> Model:
    with np.load(data) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    model = Model.create("ncm", settings={"features.filters": 2, "runtime.threads": 1})
    for label in range(classes):
        model.learn(images[labels == label], [str(label)] * int((labels == label).sum()))
    return model


def by_put(model: Model, out: Path) -> None:
    with held(out) as work:
        put(model, out, work)


def by_save(model: Model, out: Path) -> None:
    model.save(out, card=False)


@pytest.mark.parametrize("write", [by_save, by_put])
def test_after_a_crash_while_a_model_is_written_one_version_is_there(
    tmp_path: Path, no_waiting: None, write: Callable[[Model, Path], None]
) -> None:
    data = write_npz(tmp_path / "a.npz", classes=2, per_class=8)
    old, new = learned(data, 1), learned(data, 2)
    folder = tmp_path / "models"
    folder.mkdir()
    write(old, folder / "m.engram")
    before = snapshot(folder)["m.engram"]
    with Recorder(folder) as seen:
        write(new, folder / "m.engram")
    after = snapshot(folder)["m.engram"]
    assert before != after
    states, found = seen.crashes(), []
    for number, state in enumerate(states):
        out = lay_out(state, tmp_path / str(number)) / "m.engram"
        found.append(out.read_bytes())
        assert found[-1] in (before, after)
        model_file.read(out)
        new.path = None  # it is written where it never was
        write(new, out)
        assert out.read_bytes() == after
    assert {*found} == {before, after}
    assert len(states) > 5
