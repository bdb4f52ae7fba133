"""Images that are gone are found again in whatever a model stores, by the hashes of an audit file; or they are not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from engram.cli import call
from engram.data.datasets import Check, resize
from engram.errors import ConfigError, DataError, RunError
from engram.experiment.loop import Interrupted, Stop
from engram.model import audit, file
from engram.model.learn import learn
from engram.model.model import Model
from engram.model.search_images import found_in, prints
from engram.model.verify import verify
from test_model import StopAfter, toy, write_folder

ENCODINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "uint8": lambda images: images,
    "int64": lambda images: images.long(),
    "int16": lambda images: images.short(),
    "-1 to 1": lambda images: images.float() / 127.5 - 1,
    "0 to 1": lambda images: images.float() / 255,
    "0 to 255": lambda images: images.float(),
    "double": lambda images: images.double() / 255,
    "half, -1 to 1": lambda images: (images.float() / 127.5 - 1).half(),
    "half, 0 to 1": lambda images: (images.float() / 255).half(),
    "bfloat16, -1 to 1": lambda images: (images.float() / 127.5 - 1).bfloat16(),
    "bfloat16, 0 to 1": lambda images: (images.float() / 255).bfloat16(),
    "bytes as float32": lambda images: images.reshape(-1).view(torch.float32),
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda images: images,
    "a single image": lambda images: images[0],
    "flat rows": lambda images: images.flatten(1),
    "one row": lambda images: images.flatten(),
    "planes": lambda images: images.flatten(0, 1),
    "five dimensions": lambda images: images.reshape(2, 3, *images.shape[1:]),
    "channels last": lambda images: images.permute(0, 2, 3, 1).contiguous(),
    "not contiguous": lambda images: images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
}


def some_images(channels: int, seed: int = 0) -> Tensor:
    """(6, C, 32, 32) uint8."""
    return torch.randint(0, 256, (6, channels, 32, 32), generator=torch.Generator().manual_seed(seed)).byte()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_are_found_in_every_encoding(layout: str, encoding: str, channels: int) -> None:
    images, key = some_images(channels), b"salt"
    known = {hashlib.blake2b(one.numpy().tobytes(), digest_size=16, key=key).digest() for one in images}
    hidden = ENCODINGS[encoding](LAYOUTS[layout](images))
    state = {"layers": {"0": {"weight": torch.randn(7, 3)}}, "more": [{"of": hidden}]}
    found = found_in(state, (channels, 32, 32), known, key)
    assert len(found) == (1 if layout == "a single image" else 6)
    assert found <= known
    assert not found_in(state, (channels, 32, 32), known, b"pepper"), "another salt"
    others = set(prints(some_images(channels, seed=1).numpy(), key))
    assert not found_in(state, (channels, 32, 32), others, key)


def test_the_state_is_only_read_and_odd_tensors_are_passed_over() -> None:
    odd = torch.tensor([float("nan"), float("inf"), -float("inf"), 3e38]).repeat(256)
    read, masks = odd.clone(), torch.ones(1024, dtype=torch.bool)
    state = {"odd": read, "none": torch.empty(0, 1, 32, 32), "masks": masks, "number": 3}
    assert not found_in(state, (1, 32, 32), set(prints(some_images(1).numpy())))
    assert torch.equal(read.view(torch.int32), odd.view(torch.int32))


def test_a_black_image_is_not_a_tensor_of_zeros() -> None:
    black = torch.zeros(1, 1, 32, 32, dtype=torch.uint8)
    assert not found_in({"moments": torch.zeros(4, 1024)}, (1, 32, 32), set(prints(black.numpy())))


# ---------------------------------------------------------------- the file


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of two versions, and its audit file."""
    folder = tmp_path_factory.mktemp("learned")
    model = toy()
    model.learn(write_folder(folder / "may", {"mug": 0, "ball": 5}), audit=folder / "m.audit")
    model.learn(write_folder(folder / "june", {"lamp": 9}), audit=folder / "m.audit")
    model.save(folder / "m.engram")
    return folder


def strictness(path: Path, by: Path | None) -> Check:
    return next(line for line in verify(path, by) if line.what == "strictness")


def lamps(folder: Path) -> Tensor:
    """(12, 1, 32, 32) uint8: all images of a class, of which 10 were learned from and 2 are for the test."""
    pixels = [np.array(Image.open(path)) for path in sorted((folder / "june/lamp").glob("*.png"))]
    return resize(np.stack(pixels)[:, None], 32)


def test_a_strict_model_passes_and_one_with_an_image_hidden_in_it_does_not(learned: Path, tmp_path: Path) -> None:
    assert strictness(learned / "m.engram", None).ok is None
    good = strictness(learned / "m.engram", learned / "m.audit")
    assert (good.ok, good.detail) == (
        True,
        "0 training images in the state, of 30 looked for, whole and one after the other",
    )
    contents = file.read(learned / "m.engram")
    hidden = (lamps(learned).float() / 255).half()
    file.write(tmp_path / "bad.engram", contents.body, {**contents.state, "hidden": hidden})
    bad = strictness(tmp_path / "bad.engram", learned / "m.audit")
    assert (bad.ok, bad.detail) == (
        False,
        "10 training images in the state, of 30 looked for, whole and one after the other",
    )


def test_every_training_image_is_in_it_once_and_none_as_it_is(learned: Path) -> None:
    head, *tasks, _ = map(json.loads, (learned / "m.audit").read_text().splitlines())
    assert [(task["task"], task["classes"], task["images"]) for task in tasks] == [
        (0, ["ball"], 10), (1, ["mug"], 10), (2, ["lamp"], 10),
    ]  # fmt: skip
    model = Model.open(learned / "m.engram")
    assert head["model"] == model.lineage[0].data["digest"] == tasks[0]["data"] != tasks[2]["data"]
    for task, step in zip(tasks, model.lineage, strict=True):
        assert step.facts["audit"] == {"bytes": len(json.dumps(task)) + 1, "images": 10}
        assert step.data["images"] == 10
    key = bytes.fromhex(head["salt"])
    both = {hashlib.blake2b(one.numpy().tobytes(), digest_size=16, key=key).hexdigest() for one in lamps(learned)}
    kept = [tasks[2]["prints"][at : at + 32] for at in range(0, len(tasks[2]["prints"]), 32)]
    assert len(set(kept) & both) == len(kept) == 10
    assert head["salt"].encode() not in (learned / "m.engram").read_bytes()
    assert tasks[0]["prints"][:32].encode() not in (learned / "m.engram").read_bytes()
    assert "audit" not in toy().learn(learned / "june").steps[0].facts, "off by default"


def test_two_files_have_two_salts(learned: Path, tmp_path: Path) -> None:
    toy().learn(learned / "june", audit=tmp_path / "b.audit")
    first, second = (
        json.loads(path.read_text().splitlines()[0]) for path in (learned / "m.audit", tmp_path / "b.audit")
    )
    assert len(bytes.fromhex(first["salt"])) == 32
    assert first["salt"] != second["salt"]


def test_tasks_learned_without_it_are_not_called_checked(learned: Path, tmp_path: Path) -> None:
    model = toy()
    model.learn(learned / "may")
    model.learn(learned / "june", audit=tmp_path / "late.audit")
    model.save(tmp_path / "m.engram")
    line = strictness(tmp_path / "m.engram", tmp_path / "late.audit")
    assert line.ok is None
    assert line.detail.endswith(
        "of 10 looked for, whole and one after the other; those of ball, mug are not in the audit file"
    )


def test_stopped_and_resumed_every_task_is_in_it_once(tmp_path: Path, learned: Path) -> None:
    path, by, stops = tmp_path / "m.engram", tmp_path / "m.audit", 0
    while True:
        stop = Stop()
        try:
            learn(toy(), learned / "may", path, audit=by, display=StopAfter(stop, 5), stop=stop)
            break
        except Interrupted:
            stops += 1
    assert stops > 1
    assert [json.loads(line)["task"] for line in by.read_text().splitlines()[1:-1]] == [0, 1]
    assert [step.facts["audit"]["images"] for step in Model.open(path).lineage] == [10, 10]
    before = by.read_bytes()
    with pytest.raises(DataError, match="known already"):
        learn(Model.open(path), learned / "may", path, audit=by)
    assert by.read_bytes() == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["m.audit", "m.card.html", "m.card.md", "m.engram"]


def test_mistakes_are_one_line(learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, good = str(learned / "m.engram"), (learned / "m.audit").read_bytes()
    salt_flipped = good.replace(b'"salt": "', b'"salt": "00', 1)
    cases = {
        "other.audit": (b"hello\n", "not an audit file"),
        "empty.audit": (b"", "not an audit file"),
        "cut.audit": (good[:-40], "damaged"),
        "line.audit": (b"\n".join(good.split(b"\n")[:2]) + b"\n", "damaged"),
        "flipped.audit": (salt_flipped, "do not match their checksum"),
        "newer.audit": (good.replace(b'"format": 1', b'"format": 7'), "audit format 7, this version reads format 1"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        assert call(["verify", model, "--audit", str(tmp_path / name)]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
    assert call(["verify", model, "--audit", str(tmp_path / "nowhere")]) == 2
    stranger = toy()
    stranger.learn(learned / "june")
    stranger.save(tmp_path / "s.engram")
    assert call(["verify", str(tmp_path / "s.engram"), "--audit", str(learned / "m.audit")]) == 2
    assert "of another model" in capsys.readouterr().err
    with pytest.raises(RunError, match="of another model"):
        toy().learn(learned / "june", audit=learned / "m.audit")
    with pytest.raises(ConfigError, match="model and audit file in one"):
        learn(toy(), learned / "june", tmp_path / "x", audit=tmp_path / "x")
    assert (learned / "m.audit").read_bytes() == good


def test_a_full_disc_is_told_before_anything_is_learned(
    learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(audit, "write_atomically", full)
    with pytest.raises(RunError, match=r"m\.audit: No space left on device; nothing was learned"):
        learn(toy(), learned / "june", tmp_path / "m.engram", audit=tmp_path / "m.audit")
    assert not list(tmp_path.iterdir())


def test_what_was_not_checked_is_the_last_line(learned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--quiet"]):
        assert call(["verify", str(learned / "m.engram"), *more]) == 0
        # these images are few: a model is larger than all of them together
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == "verified: 3 checks ok; 2 not checked: strictness, size"
    assert call(["verify", str(learned / "m.engram"), "--audit", str(learned / "m.audit")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "verified: 4 checks ok; 1 not checked: size"
