"""Checkpoints and records: whole or not there, and damage is found."""

from __future__ import annotations

import copy
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import write_npz
from engram.errors import DivergedError, RunError
from engram.experiment import checkpoint, files
from engram.experiment.folder import origin_of, read_origin
from engram.experiment.records import FORMAT, RecordWriter, read_records
from engram.experiment.request import Request
from engram.experiment.run import execute
from engram.experiment.summary import summarise
from engram.memory.unchanging import Unchanging
from engram.model.verify import verify


def a_state() -> dict[str, Any]:
    return {
        "net": {"a.weight": torch.randn(3, 4, generator=torch.Generator().manual_seed(1)), "steps": torch.tensor(7)},
        "strided": torch.arange(12.0).reshape(3, 4).t(),
        "empty": torch.empty(0, 5),
        "mask": torch.tensor([True, False]),
        "double": torch.tensor(1 / 3, dtype=torch.float64),
        "plain": {"epoch": 3, "rate": 0.1, "names": ["x", "y"], "nothing": None, "on": True},
    }


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    return bool(a == b)


def test_what_is_saved_comes_back_to_the_bit(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path) is None
    checkpoint.save(tmp_path, a_state(), {"task": 2})
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert equal(found.state, a_state())
    assert found.meta == {"task": 2}
    assert checkpoint.fingerprint(found.state) == checkpoint.fingerprint(a_state())


def test_fingerprints_see_every_bit_every_name_and_every_plain_value() -> None:
    reference = checkpoint.fingerprint(a_state())
    one_bit = a_state()
    one_bit["net"]["a.weight"].view(torch.int32)[0, 0] ^= 1
    renamed = a_state()
    renamed["net"]["b.weight"] = renamed["net"].pop("a.weight")
    plain = a_state()
    plain["plain"]["epoch"] = 4
    reshaped = a_state()
    reshaped["net"]["a.weight"] = reshaped["net"]["a.weight"].reshape(4, 3)
    prints = [checkpoint.fingerprint(state) for state in (one_bit, renamed, plain, reshaped)]
    assert len({reference, *prints}) == 5


def test_only_the_newest_tensor_file_stays(tmp_path: Path) -> None:
    for task in range(3):
        checkpoint.save(tmp_path, a_state(), {"task": task})
    assert len(list(tmp_path.glob("checkpoint-*"))) == 1
    assert not list(tmp_path.glob(".*"))
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found.meta == {"task": 2}


def saved_twice(folder: Path) -> checkpoint.Entry:
    """Task 1 with its own state, then task 2 with another; the first one's entry."""
    first = checkpoint.save(folder, a_state(), {"task": 1})
    checkpoint.save(folder, {"other": torch.arange(5)}, {"task": 2}, before=first)
    return first


def flip(path: Path, place: int) -> None:
    broken = bytearray(path.read_bytes())
    broken[place] ^= 0x10
    path.write_bytes(broken)


def test_two_generations_are_kept_and_no_third(tmp_path: Path) -> None:
    entry = saved_twice(tmp_path)
    for task in (3, 4):
        entry = checkpoint.save(tmp_path, a_state(), {"task": task}, before=entry)
    assert {p.name for p in tmp_path.iterdir()} == {
        "checkpoint-3.safetensors", "checkpoint-4.safetensors", "checkpoint.json"
    }  # fmt: skip


@pytest.mark.parametrize("place", ["tensors", "missing", "said of it", "first byte", "comma"])
def test_where_the_last_save_is_damaged_the_one_before_it_is_there(tmp_path: Path, place: str) -> None:
    saved_twice(tmp_path)
    pointer, tensors = tmp_path / "checkpoint.json", tmp_path / "checkpoint-2.safetensors"
    if place == "tensors":
        flip(tensors, 40)
    elif place == "missing":
        tensors.unlink()
    else:
        text = pointer.read_bytes()
        flip(pointer, {"said of it": text.index(b'"meta"') + 3, "first byte": 0, "comma": text.index(b", ")}[place])
    with pytest.raises(RunError, match=r"damaged: .*; the checkpoint before it is whole: go on from there"):
        checkpoint.load(tmp_path)
    found = checkpoint.load(tmp_path, or_before=True)
    assert found is not None
    assert (found.meta, equal(found.state, a_state())) == ({"task": 1}, True)
    assert found.damage is not None
    assert "is damaged" in found.damage
    checkpoint.save(tmp_path, a_state(), {"task": 2}, before=found.entry)
    whole = checkpoint.load(tmp_path)
    assert whole is not None
    assert (whole.meta, whole.damage) == ({"task": 2}, None)
    flip(next(p for p in tmp_path.glob("*.safetensors") if p.name != "checkpoint-1.safetensors"), 40)
    again = checkpoint.load(tmp_path, or_before=True)
    assert again is not None, "the save before that is the one that was gone on from, not the damaged one"
    assert again.meta == {"task": 1}


def test_where_neither_save_is_whole_nothing_is_loaded(tmp_path: Path) -> None:
    saved_twice(tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        flip(path, 40)
    for or_before in (False, True):
        with pytest.raises(RunError, match=r"checkpoint-2.safetensors is damaged: .*; restore it from a copy, or"):
            checkpoint.load(tmp_path, or_before=or_before)


def with_parts(count: int, size: int = 1000) -> dict[str, Any]:
    """Parts of so many numbers that never change, and one number that does."""
    parts = {str(n): Unchanging({"bits": torch.arange(n, n + size), "plain": {"number": n}}) for n in range(count)}
    return {"engrams": parts, "now": torch.tensor(count)}


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    """File -> which one it is, and its size."""
    found = {p.relative_to(folder).as_posix(): p.stat() for p in folder.rglob("*") if p.is_file()}
    return {name: (stat.st_ino, stat.st_size) for name, stat in found.items()}


def test_what_never_changes_is_written_once(tmp_path: Path) -> None:
    """Bytes of a save do not grow with what was learned before, neither in a process nor in one that goes on."""
    state, entry, sizes, before = with_parts(1), None, [], dict[str, tuple[int, int]]()
    for count in range(1, 9):
        engrams = {**state["engrams"], str(count - 1): with_parts(count)["engrams"][str(count - 1)]}
        state = {"engrams": engrams, "now": torch.tensor(count)}
        entry = checkpoint.save(tmp_path, state, {}, before=entry)
        after = files_of(tmp_path)
        written = {name: size for name, (inode, size) in after.items() if before.get(name) != (inode, size)}
        assert len([name for name in written if name.startswith("parts/")]) == 1
        sizes.append(sum(size for name, size in written.items() if name != "checkpoint.json"))
        before = after
    assert max(sizes) - min(sizes) < 100, sizes
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert equal(found.state, with_parts(8))
    assert checkpoint.fingerprint(found.state) == checkpoint.fingerprint(with_parts(8))
    checkpoint.save(tmp_path, with_parts(8), {}, before=found.entry)  # by a process that does not know them yet
    kept = {name: stat for name, stat in files_of(tmp_path).items() if name.startswith("parts/")}
    assert kept == {name: stat for name, stat in before.items() if name.startswith("parts/")}


def test_a_part_that_no_save_refers_to_is_removed(tmp_path: Path) -> None:
    entry = checkpoint.save(tmp_path, with_parts(3), {"task": 3})
    assert len(list((tmp_path / "parts").iterdir())) == 3
    fewer = checkpoint.save(tmp_path, with_parts(2), {"task": 2}, before=entry)
    assert len(list((tmp_path / "parts").iterdir())) == 3, "the save before this one has it"
    checkpoint.save(tmp_path, with_parts(2), {"task": 2}, before=fewer)
    assert len(list((tmp_path / "parts").iterdir())) == 2
    (tmp_path / "parts" / f"{'0' * 64}.safetensors").write_bytes(b"of nobody")
    (tmp_path / "parts" / ".x.7333.tmp").write_bytes(b"half")
    checkpoint.clear_left_overs(tmp_path)
    assert len(list((tmp_path / "parts").iterdir())) == 2


@pytest.mark.parametrize("fault", ["a byte", "missing", "another's"])
def test_every_part_is_checked_when_it_is_loaded(tmp_path: Path, fault: str) -> None:
    entry = checkpoint.save(tmp_path, with_parts(2), {"task": 2})
    old = {path.name for path in (tmp_path / "parts").iterdir()}
    checkpoint.save(tmp_path, with_parts(3), {"task": 3}, before=entry)
    (new,) = (path for path in (tmp_path / "parts").iterdir() if path.name not in old)
    good = new.read_bytes()
    if fault == "a byte":
        flip(new, 300)
    elif fault == "missing":
        new.unlink()
    else:
        new.write_bytes((tmp_path / "parts" / min(old)).read_bytes())
    with pytest.raises(RunError, match=rf"{new.name} is damaged: .*; the checkpoint before it is whole"):
        checkpoint.load(tmp_path)
    found = checkpoint.load(tmp_path, or_before=True)
    assert found is not None
    assert found.meta == {"task": 2}
    assert equal(found.state, with_parts(2))
    checkpoint.save(tmp_path, with_parts(3), {"task": 3}, before=found.entry)
    assert new.read_bytes() == good, "what is damaged is written anew"


def test_a_copy_of_a_part_may_be_changed(tmp_path: Path) -> None:
    state = with_parts(1)
    checkpoint.save(tmp_path, state, {})
    copied = copy.deepcopy(state)
    copied["engrams"]["0"]["bits"][5] = -1
    checkpoint.save(tmp_path, copied, {})
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found.state["engrams"]["0"]["bits"][5] == -1


def test_a_part_that_is_not_finite_is_not_stored(tmp_path: Path) -> None:
    state = {"engrams": {"0": Unchanging({"scale": torch.tensor([1.0, float("nan")])})}}
    for _ in range(2):
        with pytest.raises(DivergedError, match=r"engrams/0/scale holds numbers that are not finite"):
            checkpoint.save(tmp_path, state, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_that_are_none_never_replace_a_good_state(tmp_path: Path, wrong: float, dtype: torch.dtype) -> None:
    checkpoint.save(tmp_path, a_state(), {"task": 1})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    broken = a_state()
    broken["net"]["b.weight"] = torch.ones(3, 4, dtype=dtype)
    broken["net"]["b.weight"][2, 1] = wrong
    with pytest.raises(DivergedError, match=r"net/b\.weight holds numbers that are not finite; the last good"):
        checkpoint.save(tmp_path, broken, {"task": 2})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_checkpoint_of_format_2_is_read(tmp_path: Path) -> None:
    """It says nothing of configuration and records, and knows no save before it."""
    checkpoint.save(tmp_path, a_state(), {"task": 1})
    whole = json.loads((tmp_path / "checkpoint.json").read_text())
    body = {**whole["body"], "format": 2}
    del body["config_sha256"]
    (tmp_path / "checkpoint.json").write_text(json.dumps({"digest": checkpoint._digest(body), "body": body}))
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert equal(found.state, a_state())
    checkpoint.save(tmp_path, a_state(), {"task": 2}, before=found.entry)
    assert json.loads((tmp_path / "checkpoint.json").read_text())["before"]["body"]["meta"] == {"task": 1}


def test_what_an_interrupted_clean_up_left_goes_at_the_next_start(tmp_path: Path) -> None:
    saved_twice(tmp_path)
    (tmp_path / "checkpoint-9.safetensors").write_bytes(b"of some save long ago")
    (tmp_path / ".checkpoint.json.7333.tmp").write_bytes(b"half")
    checkpoint.clear_left_overs(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {
        "checkpoint-1.safetensors", "checkpoint-2.safetensors", "checkpoint.json"
    }  # fmt: skip


def test_what_a_killed_process_left_half_written_is_cleared_away(tmp_path: Path) -> None:
    """By the next that saves; whole files and the user's own stay."""
    (tmp_path / ".checkpoint-5.safetensors.7333.tmp").write_bytes(b"half")
    (tmp_path / "notes.tmp").write_bytes(b"mine")
    checkpoint.save(tmp_path, a_state(), {})
    assert {p.name for p in tmp_path.iterdir()} == {"checkpoint-1.safetensors", "checkpoint.json", "notes.tmp"}


def test_any_flipped_byte_is_found(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, a_state(), {"task": 2})
    for path in (tmp_path / "checkpoint.json", next(tmp_path.glob("*.safetensors"))):
        whole = path.read_bytes()
        said = whole.index(b', "before"') if path.suffix == ".json" else len(whole)  # of the save before, there is none
        for place in range(0, said, 7):
            broken = bytearray(whole)
            broken[place] ^= 0x10
            path.write_bytes(broken)
            with pytest.raises(RunError, match=r"damaged"):
                checkpoint.load(tmp_path)
        path.write_bytes(whole[: said - 1])
        with pytest.raises(RunError, match=r"damaged"):
            checkpoint.load(tmp_path)
        path.write_bytes(whole)
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(RunError, match=r"damaged"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("fail_at", [1, 2])
def test_a_full_disk_leaves_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    checkpoint.save(tmp_path, a_state(), {"task": 1})
    calls = 0

    def write(path: Path, content: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == fail_at:
            raise OSError(28, "No space left on device")
        files.write_atomically(path, content)

    monkeypatch.setattr(checkpoint, "write_atomically", write)
    with pytest.raises(RunError, match="No space left on device; the last good checkpoint is intact"):
        checkpoint.save(tmp_path, {"other": torch.zeros(2)}, {"task": 2})
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert equal(found.state, a_state())
    monkeypatch.undo()
    checkpoint.save(tmp_path, {"other": torch.zeros(2)}, {"task": 2})
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found.meta == {"task": 2}
    assert len(list(tmp_path.iterdir())) == 2, "left-overs of the failed save are cleared away"


def test_a_failed_write_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_sync(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_sync)
    with pytest.raises(OSError, match="No space"):
        files.write_atomically(tmp_path / "x.json", b"{}")
    assert not list(tmp_path.iterdir())


def test_records_are_cut_back_and_written_on(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    writer.append("run", format=FORMAT)
    offset = writer.sync()
    writer.append("epoch", losses={"class": 0.1})
    writer.close()
    with (tmp_path / "records.jsonl").open("ab") as file:
        file.write(b'{"kind":"epo')
    assert [r["kind"] for r in read_records(tmp_path)] == ["run", "epoch"], "a torn last line is passed over"
    writer = RecordWriter(tmp_path, offset)
    writer.append("task", task=0)
    writer.close()
    assert (tmp_path / "records.jsonl").read_text() == '{"kind":"run","format":2}\n{"kind":"task","task":0}\n'


def test_missing_and_foreign_lines_are_reported(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    writer.append("run", format=FORMAT)
    offset = writer.sync()
    writer.close()
    with pytest.raises(RunError, match="lines are missing"):
        RecordWriter(tmp_path, offset + 1)
    (tmp_path / "records.jsonl").write_text('{"kind":"run","format":2}\nhello\n')
    with pytest.raises(RunError, match="line 2, is not JSON"):
        list(read_records(tmp_path))
    (tmp_path / "records.jsonl").write_text("[1]\n")
    with pytest.raises(RunError, match="line 1, is not a record"):
        list(read_records(tmp_path))


def test_not_a_number_never_reaches_a_file(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    with pytest.raises(DivergedError, match=r"epoch\.losses\.class is nan in task 3; the last good checkpoint is kept"):
        writer.append("epoch", task=2, losses={"auxiliary": 0.5, "class": float("nan")})
    writer.close()
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(tmp_path / "a.json", {"x": float("inf")})
    assert not (tmp_path / "a.json").exists()


def test_loading_runs_nothing(tmp_path: Path) -> None:
    """A pickle in place of the tensors is refused by its checksum, and by the format even if the checksum fits."""
    import hashlib
    import pickle

    checkpoint.save(tmp_path, a_state(), {"task": 1})
    evil = pickle.dumps({"x": print})
    next(tmp_path.glob("*.safetensors")).write_bytes(evil)
    whole = json.loads((tmp_path / "checkpoint.json").read_text())
    whole["body"]["sha256"] = hashlib.sha256(evil).hexdigest()
    whole["digest"] = checkpoint._digest(whole["body"])
    (tmp_path / "checkpoint.json").write_text(json.dumps(whole))
    with pytest.raises(RunError, match="damaged"):
        checkpoint.load(tmp_path)


# ---------------------------------------------------------------- what another version wrote


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run; whoever changes it copies it first."""
    root = tmp_path_factory.mktemp("finished")
    npz = write_npz(root / "a.npz", classes=2, per_class=10)
    asked = Request(dataset=f"npz:{npz}", method="finetune", settings={"classifier.epochs": 1, "runtime.threads": 1})
    return execute(asked, root / "run")


def as_format(plain: dict[str, Any], number: int) -> dict[str, Any]:
    """Format 1 is from before there were numbers."""
    rest = {key: value for key, value in plain.items() if key != "format"}
    return rest if number == 1 else {**rest, "format": number}


def rewrite(folder: Path, name: str, number: int) -> None:
    """Turn one file of a run into another format's."""
    path = folder / name
    if name == "records.jsonl":
        head, *rest = path.read_text().splitlines(keepends=True)
        path.write_text("".join([json.dumps(as_format(json.loads(head), number)) + "\n", *rest]))
        return
    whole = json.loads(path.read_text())
    if name == "config.json":
        whole = as_format(whole, number)
    else:
        whole["body"] = as_format(whole["body"], number)
        whole["digest"] = checkpoint._digest(whole["body"])
    path.write_text(json.dumps(whole))


def test_every_file_says_its_format(finished: Path) -> None:
    assert json.loads((finished / "config.json").read_text())["format"] == 2
    assert next(read_records(finished))["format"] == 2
    assert json.loads((finished / "checkpoint.json").read_text())["body"]["format"] == 3


@pytest.mark.parametrize(
    ("name", "what", "read", "number"),
    [
        *(("config.json", "record", 2, number) for number in (1, 3)),
        *(("records.jsonl", "record", 2, number) for number in (1, 3)),
        *(("checkpoint.json", "checkpoint", 3, number) for number in (1, 4)),
    ],
)
def test_another_format_is_refused_with_one_sentence(
    finished: Path, tmp_path: Path, name: str, what: str, read: int, number: int
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    rewrite(folder, name, number)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    said = (
        f"{folder / name} is of {what} format {number}, this version reads format {read}; use the version of Engram "
        "that wrote it, or start anew with another --out"
    )
    asks: list[Callable[[], object]] = [lambda: execute(Request(), folder, resume=True)]
    if name == "config.json":
        asks += [lambda: read_origin(folder), lambda: Request(file=folder / name).config()]
        asks.append(lambda: origin_of(folder / name))
    elif name == "records.jsonl":
        asks += [lambda: list(read_records(folder)), lambda: summarise(folder)]
    else:
        asks.append(lambda: checkpoint.load(folder))
    for ask in asks:
        with pytest.raises(RunError) as caught:
            ask()
        assert str(caught.value) == said
    assert [(line.what, line.ok, line.detail) for line in verify(folder)] == [("integrity", False, said)]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before, "and nothing was touched"


def test_a_pipe_or_a_device_never_gives_its_place_to_a_file(tmp_path: Path) -> None:
    place = tmp_path / "pipe"
    os.mkfifo(place)
    with pytest.raises(RunError, match="a device or a pipe"), files.os_errors(place):
        files.write_atomically(place, b"whole")
    (tmp_path / "file").write_bytes(b"whole")
    with pytest.raises(RunError, match="a device or a pipe"), files.os_errors(place):
        files.move(tmp_path / "file", place)
    assert stat.S_ISFIFO(place.stat().st_mode)
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "file"}
