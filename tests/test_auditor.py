"""`engram verify` against forgeries: each is caught, by the check that is named, or is said here to be out of reach.

Out of reach, whatever is done: a folder that was rolled back as a whole to an earlier task (a run that was stopped
there looks the same); the honest folder of another run; figures of earlier tasks, where all hashes are computed anew as
well; training images in an order of pixels that nobody knows, encrypted or compressed, as long as a part of the ledger
that is named for it holds them and the whole is smaller than the images.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save as to_bytes
from safetensors.torch import save_file
from torch import Tensor, nn

import engram
from conftest import SMALL_GAN, write_npz
from engram.cli import call
from engram.config import ClassifierSettings, MethodSettings
from engram.context import Context
from engram.data.datasets import Check, load_dataset
from engram.data.stream import Task
from engram.experiment import checkpoint
from engram.methods.learner import SILENT, Method, Observer, State
from engram.methods.registry import METHODS
from engram.model import search_state
from engram.model.search_runs import Found
from engram.model.verify import verify
from engram.model.verify_figures import wrong_figures

QUICK = {**SMALL_GAN, "gan.epochs": 3, "gan.steps": 6, "replay.images": 64, "stream.order": "2,0,1"}
PLAIN = {"classifier.epochs": 1, "classifier.width": 8, "runtime.threads": 1}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs for all tests, which look at copies: plain by two seeds, and one with engrams."""
    place = tmp_path_factory.mktemp("runs")
    data = f"npz:{write_npz(place / 'a.npz', per_class=60)}"
    for seed in (0, 1):
        engram.run(data, "finetune", seed=seed, settings=PLAIN, out=place / f"plain{seed}")
    engram.run(data, "dgmw", settings={**QUICK, **PLAIN}, out=place / "engrams")
    engram.run(data, "icarl", settings={**PLAIN, "exemplars.budget": 12}, out=place / "icarl")
    return place


@pytest.fixture
def run(place: Path, tmp_path: Path) -> Path:
    return sealed(shutil.copytree(place / "plain0", tmp_path / "run"))


@pytest.fixture
def remembering(place: Path, tmp_path: Path) -> Path:
    return sealed(shutil.copytree(place / "engrams", tmp_path / "run"))


def images(place: Path) -> Tensor:
    return load_dataset(f"npz:{place / 'a.npz'}").take_train().images


def sealed(folder: Path, **known: Any) -> Path:
    """With the hashes of records and configuration in the checkpoint's pointer, as they are now; None: without."""
    with_pointer(folder, lambda whole: seal(folder, whole["body"], **known))
    return folder


def with_pointer(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A pointer that was edited, its digests computed anew."""
    path = folder / checkpoint.POINTER
    whole = json.loads(path.read_text())
    change(whole)
    for entry in (whole, whole["before"]):
        if entry is not None:
            entry["digest"] = checkpoint._digest(entry["body"])
    path.write_text(json.dumps(whole))
    return folder


def seal(folder: Path, body: dict[str, Any], **known: Any) -> None:
    prefix = (folder / "records.jsonl").read_bytes()[: body["meta"]["records"]]
    hashes = {
        "config_sha256": hashlib.sha256((folder / "config.json").read_bytes()).hexdigest(),
        "records_sha256": hashlib.sha256(prefix).hexdigest(),
    } | known
    body["config_sha256"], body["meta"]["records_sha256"] = hashes["config_sha256"], hashes["records_sha256"]


def with_state(folder: Path, change: Callable[[State], object]) -> Path:
    """A state that was changed and saved by whoever knows how; every checksum is right."""
    saved = checkpoint.load(folder)
    assert saved is not None
    change(saved.state)
    checkpoint.save(folder, saved.state, saved.meta)
    return sealed(folder)


def with_records(folder: Path, change: Callable[[list[dict[str, Any]]], object], *, seal: bool = True) -> Path:
    """Records that were edited, no earlier checkpoint left to remember them; `seal`: and all that names their hash."""
    path = folder / "records.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))

    def follow(whole: dict[str, Any]) -> None:
        whole["body"]["meta"]["records"], whole["before"] = path.stat().st_size, None

    with_pointer(folder, follow)
    return sealed(folder) if seal else folder


def found(folder: Path) -> dict[str, Check]:
    return {check.what: check for check in verify(folder)}


def failed(folder: Path) -> set[str]:
    return {what for what, check in found(folder).items() if check.ok is False}


def evaluations(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["kind"] == "evaluation"]


# ---------------------------------------------------------------- good ones


@pytest.mark.parametrize("name", ["plain0", "engrams", "icarl"])
def test_a_whole_run_passes_every_check(name: str, place: Path, tmp_path: Path) -> None:
    checks = found(sealed(shutil.copytree(place / name, tmp_path / "run")))
    assert list(checks) == ["integrity", "retention", "strictness", "size", "figures", "records", "answers"]
    assert [check for check in checks.values() if check.ok is not True] == []


def test_the_last_line_sums_up_what_was_checked(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["verify", str(run)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "verified: 7 checks ok"
    assert call(["verify", str(run), "--quick"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "verified: 6 checks ok; 1 not checked: answers"
    with_records(run, lambda lines: evaluations(lines)[0].update(macro=0.5))
    assert call(["verify", str(run), "--quick", "--quiet"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "NOT verified: 5 checks ok; 1 failed: figures; 1 not checked: answers"


def test_a_folder_of_an_earlier_version_is_not_called_checked(run: Path) -> None:
    sealed(run, config_sha256=None, records_sha256=None)
    records = found(run)["records"]
    assert records.ok is None
    assert "the hashes of records.jsonl and config.json: written before checkpoints named" in records.detail


def test_records_beyond_the_checkpoint_are_told(run: Path) -> None:
    with (run / "records.jsonl").open("a") as file:
        file.write('{"kind":"epoch","task":9,"epoch":0,"losses":{}}\n')
    records = found(run)["records"]
    assert records.ok is True
    assert "1 lines beyond it, which the run writes anew" in records.detail


def test_retention_tells_how_much_was_compared(remembering: Path) -> None:
    """Three classes of an engram each: a hash a class, over its masks, open weights, normalisation and head."""
    saved = checkpoint.load(remembering)
    assert saved is not None
    engrams = saved.state["engrams"].values()
    drawings = sum(len(one) for engram in engrams for one in engram["references"].values())
    masks = sum(mask.nbytes for engram in engrams for mask in engram["masks"].values())
    detail = found(remembering)["retention"].detail
    assert f"({len(engrams)} hashes over " in detail
    assert f"{drawings} images drawn anew" in detail
    assert int(detail.split("hashes over ")[1].split(" bytes")[0].replace(",", "")) > masks > 0


def test_a_search_that_finds_nothing_planted_is_no_check(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_state, "search", lambda *_, **__: Found())
    strictness = found(run)["strictness"]
    assert strictness.ok is None
    assert "the search itself failed: images that were planted as " in strictness.detail
    assert "any a*x + b" in strictness.detail


# ---------------------------------------------------------------- what was found in the version before


@pytest.mark.parametrize("known", [{}, {"config_sha256": None, "records_sha256": None}], ids=["sealed", "older"])
def test_another_seeds_checkpoint_put_in_place(known: dict[str, Any], run: Path, place: Path) -> None:
    for path in run.glob("checkpoint*"):
        path.unlink()
    for path in (place / "plain1").glob("checkpoint*"):
        shutil.copy(path, run)
    with_pointer(run, lambda whole: whole.update(before=None))
    sealed(run, **known)
    checks = found(run)
    assert checks["records"].ok is False
    assert "holds another state than the one that the last task ended with" in checks["records"].detail


def test_an_accuracy_edited_to_99_percent(run: Path) -> None:
    with_records(run, lambda lines: evaluations(lines)[-1].update(accuracy=0.99))
    figures = found(run)["figures"]
    assert figures.ok is False
    assert "task 4: accuracy says 0.99, its confusion matrix " in figures.detail


def test_a_checkpoint_without_engrams(remembering: Path) -> None:
    """Without the last one it cannot even be opened, as it does not draw: that is all that is said then."""
    retention = found(with_state(remembering, lambda state: state["engrams"].pop("0")))["retention"]
    assert retention.ok is False
    assert "no engram of 2, which the records say were learned" in retention.detail
    (integrity,) = found(with_state(remembering, lambda state: state["engrams"].clear())).values()
    assert (integrity.what, integrity.ok) == ("integrity", False)
    assert "its weights do not fit its 3 classes" in integrity.detail


def test_a_configuration_edited_after_the_run(run: Path) -> None:
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text.replace('"learning_rate": 0.0', '"learning_rate": 0.1', 1))
    assert failed(run) & {"records", "integrity"}


ENCODINGS: dict[str, Callable[[Tensor], Any]] = {
    "(N, 1024)": lambda some: some.flatten(1),
    "(N, 32, 32)": lambda some: some[:, 0],
    "5-D": lambda some: some.reshape(2, -1, 1, 32, 32),
    "0 to 1": lambda some: some.float() / 255,
    "-1 to 1, flat, behind and before other numbers": lambda some: torch.cat(
        [torch.randn(101), some.flatten().float() / 127.5 - 1, torch.randn(13)]
    ),
    "standardised": lambda some: (some.double() - 33.3) / 78.5,
    "half": lambda some: (some.float() / 255).half(),
    "standardised, bfloat16": lambda some: ((some.float() - 33.3) / 78.5).bfloat16(),
    "int64": lambda some: some.long(),
    "inverted": lambda some: 255 - some,
    "columns first": lambda some: some.transpose(2, 3).contiguous(),
    "black and white, packed": lambda some: torch.from_numpy(np.packbits(some.flatten(1).numpy() > 127, axis=1)),
    "single rows": lambda some: some[:, 0, 8:11].float(),
    "each by an affine map of its own": lambda some: some.float() * torch.rand(len(some), 1, 1, 1) + torch.rand(1),
    "a row a tensor": lambda some: {str(n): row for n, row in enumerate(some.reshape(-1, 32).float() / 255)},
    "JSON numbers": lambda some: some[:2].tolist(),
    "base64": lambda some: base64.b64encode(some.numpy().tobytes()).decode(),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_training_images_kept_in_the_state(encoding: str, run: Path, place: Path) -> None:
    torch.manual_seed(0)
    some = images(place)[10:40]
    strictness = found(with_state(run, lambda state: state.update(kept=ENCODINGS[encoding](some))))["strictness"]
    assert strictness.ok is False, strictness.detail
    assert "they lie in checkpoint" in strictness.detail


# ---------------------------------------------------------------- ten more


def left_over(folder: Path, some: Tensor) -> None:
    save_file({"a": some.float() / 255}, folder / "notes.bin")


def picture(folder: Path, some: Tensor) -> None:
    Image.fromarray(torch.cat([*some[:, 0]]).numpy()).save(folder / "loss.png")


def archive(folder: Path, some: Tensor) -> None:
    np.savez_compressed(folder / "cache", x=some.numpy())


def in_a_record(folder: Path, some: Tensor) -> None:
    with_records(folder, lambda lines: lines.append({"kind": "note", "task": 3, "x": some[0].flatten().tolist()}))


def below(folder: Path, some: Tensor) -> None:
    (folder / "old").mkdir()
    (folder / "old/.x").write_bytes(b"abc" + some.numpy().tobytes())


@pytest.mark.parametrize("hide", [left_over, picture, archive, in_a_record, below])
def test_images_kept_beside_the_state(hide: Callable[[Path, Tensor], None], run: Path, place: Path) -> None:
    hide(run, images(place)[:6])
    assert found(run)["strictness"].ok is False


def better(matrix: list[list[int]], row: int) -> None:
    """All test images of a class right."""
    matrix[row] = [sum(matrix[row]) if column == row else 0 for column in range(len(matrix))]


def recompute(record: dict[str, Any], tasks: list[list[float]]) -> None:
    matrix = record["confusion"]
    shares = [row[i] / sum(row) for i, row in enumerate(matrix)]
    right = sum(row[i] for i, row in enumerate(matrix)) / sum(map(sum, matrix))
    record.update(
        per_class=shares, macro=sum(shares) / len(shares), accuracy=right, task_mean=sum(shares) / len(shares)
    )
    tasks[-1] = shares
    if last := len(tasks) - 1:
        best = [max(tasks[i][j] for i in range(j, last)) for j in range(last)]
        record["forgetting"] = sum(b - s for b, s in zip(best, shares, strict=False)) / last
        record["backward_transfer"] = sum(shares[j] - tasks[j][j] for j in range(last)) / last


def last_matrix(lines: list[dict[str, Any]]) -> None:
    told = evaluations(lines)
    for row in range(4):
        better(told[-1]["confusion"], row)
    recompute(told[-1], [record["per_class"] for record in told])


def earlier_row_count(lines: list[dict[str, Any]]) -> None:
    record = evaluations(lines)[1]
    record["confusion"][1][1] += 100
    recompute(record, [one["per_class"] for one in evaluations(lines)[:2]])


def no_second_evaluation(lines: list[dict[str, Any]]) -> None:
    lines.remove(evaluations(lines)[1])


def another_seed(lines: list[dict[str, Any]]) -> None:
    lines[0]["seed"] = 7


def fewer_images(lines: list[dict[str, Any]]) -> None:
    lines[0]["images"] = [5 for _ in lines[0]["images"]]


def another_order(lines: list[dict[str, Any]]) -> None:
    lines[0]["tasks"] = lines[0]["tasks"][::-1]


RECORDS: dict[Callable[[list[dict[str, Any]]], None], str] = {
    last_matrix: "answers",
    earlier_row_count: "figures",
    no_second_evaluation: "records",
    another_seed: "records",
    fewer_images: "answers",
    another_order: "records",
}


@pytest.mark.parametrize("forge", RECORDS)
def test_records_forged_with_all_their_hashes(forge: Callable[[list[dict[str, Any]]], None], run: Path) -> None:
    assert RECORDS[forge] in failed(with_records(run, forge))


def test_an_earlier_matrix_forged_with_all_its_figures_needs_the_hash_of_the_records(run: Path) -> None:
    """Out of reach for whoever computes that hash anew, too: nothing else remembers what the model once answered."""

    def forge(lines: list[dict[str, Any]]) -> None:
        told = evaluations(lines)
        for number, record in enumerate(told[1:-1], start=1):
            better(record["confusion"], 0)
            recompute(record, [one["per_class"] for one in told[: number + 1]])
        recompute(told[-1], [one["per_class"] for one in told])

    with_records(run, forge, seal=False)
    assert failed(run) == {"records"}
    assert failed(sealed(run)) == set(), "out of reach"


def test_weights_exchanged_with_every_hash_computed_anew(run: Path) -> None:
    """The records say of the state what it is now; it does not answer as they say."""

    def blank(state: State) -> None:
        for tensor in state["net"].values():
            tensor.mul_(0)

    with_state(run, blank)
    saved = checkpoint.load(run)
    assert saved is not None
    state = checkpoint.fingerprint(saved.state)
    with_records(run, lambda lines: [line for line in lines if line["kind"] == "task"][-1].update(state=state))
    assert failed(run) == {"answers"}


def test_an_engram_put_in_the_place_of_another(remembering: Path) -> None:
    """Each is whole by itself, and its own hash says so; the state is not the one that the records name."""

    def exchange(state: State) -> None:
        first, second = state["engrams"]["0"]["plain"], state["engrams"]["1"]["plain"]
        first["class_indices"], second["class_indices"] = second["class_indices"], first["class_indices"]

    assert "records" in failed(with_state(remembering, exchange))


def test_an_engram_that_lacks_its_hashes(remembering: Path) -> None:
    with_state(remembering, lambda state: state["engrams"]["0"]["plain"].update(contents=[]))
    assert "retention" in failed(remembering)


def test_a_ledger_that_says_less_than_is_kept(remembering: Path) -> None:
    def less(lines: list[dict[str, Any]]) -> None:
        [line for line in lines if line["kind"] == "memory"][-1]["bytes"]["weights"] //= 10

    size = found(with_records(remembering, less))["size"]
    assert size.ok is False
    assert "weights: " in size.detail


def test_a_relaxed_method_that_stores_more_than_its_ledger_names(place: Path, tmp_path: Path) -> None:
    folder = sealed(shutil.copytree(place / "icarl", tmp_path / "run"))
    with_state(folder, lambda state: state.update(more=images(place)[:40]))
    assert {"strictness", "records"} <= failed(folder)
    with_records(folder, lambda lines: lines[0].update(strict=True))
    assert "strict is True in the records and False in config.json" in found(folder)["records"].detail


# ---------------------------------------------------------------- parts, and the checkpoint before


def a_part(folder: Path) -> Path:
    """One that the last checkpoint names."""
    pointer = json.loads((folder / checkpoint.POINTER).read_text())
    return folder / checkpoint.PARTS / f"{next(checkpoint._parts_of(pointer['body']['tree']))}.safetensors"


def test_a_part_that_was_forged(remembering: Path) -> None:
    part = a_part(remembering)
    payload = bytearray(part.read_bytes())
    payload[-1] ^= 1
    part.write_bytes(payload)
    (integrity,) = found(remembering).values()
    assert integrity.ok is False
    assert f"{part.name} is damaged" in integrity.detail


def test_a_part_forged_with_its_name_and_every_reference_to_it(remembering: Path) -> None:
    """The engram's own hash, and the state's in the records, are those of what was there."""
    part = a_part(remembering)
    payload = bytearray(part.read_bytes())
    payload[-1] ^= 1
    forged = hashlib.sha256(payload).hexdigest()
    part.with_name(f"{forged}.safetensors").write_bytes(payload)
    pointer = remembering / checkpoint.POINTER
    pointer.write_text(pointer.read_text().replace(part.stem, forged))
    part.unlink()
    with_pointer(remembering, lambda whole: None)
    assert "records" in failed(remembering)


def test_a_part_that_no_checkpoint_names(remembering: Path, place: Path) -> None:
    """A process that was killed leaves some; they are searched and hashed as all others."""
    parts = remembering / checkpoint.PARTS
    payload = to_bytes({"kept": torch.zeros(5000)})
    name = f"{hashlib.sha256(payload).hexdigest()}.safetensors"
    (parts / name).write_bytes(payload)
    checks = found(remembering)
    assert [check for check in checks.values() if check.ok is not True] == []
    assert f"left over, named by neither: parts/{name}" in checks["integrity"].detail

    (parts / name).write_bytes(to_bytes({"kept": images(place)[:5].float() / 255}))
    checks = found(remembering)
    assert checks["integrity"].ok is False
    assert f"{name} in parts: not what was written there" in checks["integrity"].detail
    assert checks["strictness"].ok is False
    assert f"they lie in parts/{name}" in checks["strictness"].detail


def test_images_as_text_in_the_head_of_a_part(remembering: Path, place: Path) -> None:
    for text in (json.dumps({"x": images(place)[0].tolist()}), images(place)[:3].numpy().tobytes().hex()):
        payload = to_bytes({"kept": torch.zeros(3)}, {"note": text})
        file = remembering / checkpoint.PARTS / f"{hashlib.sha256(payload).hexdigest()}.safetensors"
        file.write_bytes(payload)
        assert failed(remembering) == {"strictness"}
        file.unlink()


def another_body(whole: dict[str, Any]) -> None:
    whole["before"]["body"]["meta"]["seconds"] = 0


def another_file(whole: dict[str, Any]) -> None:
    whole["before"]["body"]["sha256"] = "0" * 64


def no_entry(whole: dict[str, Any]) -> None:
    whole["before"] = "x"


@pytest.mark.parametrize("forge", [another_body, another_file, no_entry])
def test_the_checkpoint_before_damaged(forge: Callable[[dict[str, Any]], None], run: Path) -> None:
    path = run / checkpoint.POINTER
    whole = json.loads(path.read_text())
    forge(whole)
    if forge is another_file:
        whole["before"]["digest"] = checkpoint._digest(whole["before"]["body"])
    path.write_text(json.dumps(whole))
    assert "is damaged: " in found(run)["integrity"].detail
    assert "integrity" in failed(run)


def test_a_pointer_of_which_the_end_is_no_json(run: Path) -> None:
    path = run / checkpoint.POINTER
    whole = json.loads(path.read_text())
    text = checkpoint._as_text({name: whole[name] for name in ("digest", "body")}, whole["before"])
    path.write_text(text[:-9])
    assert "not all of it is JSON" in found(run)["integrity"].detail


def other_records(body: dict[str, Any]) -> None:
    body["meta"]["records_sha256"] = "0" * 64


def more_tasks(body: dict[str, Any]) -> None:
    body["meta"]["task"] += 1


def within_a_line(body: dict[str, Any]) -> None:
    body["meta"]["records"] -= 1


def another_state(body: dict[str, Any]) -> None:
    body["meta"]["within_task"], body["meta"]["epoch"] = False, 0
    body["tree"]["forged"] = 1


@pytest.mark.parametrize("forge", [other_records, more_tasks, within_a_line, another_state])
def test_the_checkpoint_before_forged_with_its_hash(forge: Callable[[dict[str, Any]], None], run: Path) -> None:
    with_pointer(run, lambda whole: forge(whole["before"]["body"]))
    records = found(run)["records"]
    assert records.ok is False
    assert "the checkpoint before" in records.detail


def test_images_in_the_checkpoint_before_alone(run: Path, place: Path) -> None:
    """The last one is clean, and so is its hash; what a strict method once held is found as long as it lies there."""
    saved = checkpoint.load(run)
    assert saved is not None
    earlier = {**saved.state, "kept": images(place)[:5]}
    before = checkpoint.save(run, earlier, saved.meta)
    checkpoint.save(run, saved.state, saved.meta, before=before)
    sealed(run)
    assert {"strictness"} <= failed(run)


def test_a_relaxed_method_holds_the_images_it_has_just_dropped_until_the_next_save(place: Path) -> None:
    """Each checkpoint against the ledger of its own time: 12 images among 3 classes and among 4, 3 of a class."""
    detail = found(place / "icarl")["strictness"].detail
    assert "; 12 found; " in detail
    assert re.search(r"; \d+ more in the checkpoint before, which the next save removes", detail)


def test_a_relaxed_method_whose_checkpoint_before_holds_more_than_its_ledger_names(place: Path, tmp_path: Path) -> None:
    folder = sealed(shutil.copytree(place / "icarl", tmp_path / "run"))
    last, before = checkpoint.load(folder), checkpoint.load_before(folder)
    assert last is not None
    assert before is not None
    before.state["more"] = images(place)[:40]
    meta = {**before.meta, "within_task": False, "epoch": 0}
    checkpoint.save(folder, last.state, last.meta, before=checkpoint.save(folder, before.state, meta))
    strictness = found(sealed(folder))["strictness"]
    assert strictness.ok is False
    assert "the checkpoint before holds " in strictness.detail


def test_a_relaxed_method_with_images_in_files_of_no_checkpoint(place: Path, tmp_path: Path) -> None:
    folder = sealed(shutil.copytree(place / "icarl", tmp_path / "run"))
    left_over(folder, images(place))
    strictness = found(folder)["strictness"]
    assert strictness.ok is False
    assert " more in files of no checkpoint" in strictness.detail


# ---------------------------------------------------------------- strictness as a promise


class Nearest(nn.Module):
    """What a copier answers with."""

    def __init__(self, copier: Copier) -> None:
        super().__init__()
        self.copier = copier

    def forward(self, images: Tensor) -> Tensor:
        return self.copier.scores((images + 1) * 127.5)


class Copier:
    """Copies every image and answers by the nearest of its class."""

    scramble, names_it = False, False

    def __init__(self, ctx: Context[MethodSettings]) -> None:
        self.images, self.labels = torch.empty(0, 1024), torch.empty(0, dtype=torch.int64)
        self.order = torch.randperm(1024, generator=torch.Generator().manual_seed(5))

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        rows = task.images.flatten(1).float() / 255
        self.images = torch.cat([self.images, rows[:, self.order] if self.scramble else rows])
        self.labels = torch.cat([self.labels, task.targets.clone()])
        if self.names_it:
            observe.note("memory", bytes={"kept": self.images.nbytes + self.labels.nbytes})

    def scores(self, images: Tensor) -> Tensor:
        rows = images.flatten(1).float() / 255
        apart = -torch.cdist(rows[:, self.order] if self.scramble else rows, self.images)
        return torch.stack([apart[:, self.labels == n].amax(1) for n in range(int(self.labels.max()) + 1)], 1)

    def answer_net(self) -> nn.Module:
        return Nearest(self)

    def state(self) -> State:
        return {"kept": {"images": self.images, "labels": self.labels}}

    def load(self, state: State) -> None:
        self.images, self.labels = state["kept"]["images"], state["kept"]["labels"]


@pytest.mark.parametrize("scramble", [False, True])
@pytest.mark.parametrize("names_it", [False, True])
def test_a_learner_that_copies_every_image(
    scramble: bool, names_it: bool, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain copies are found. In an order of pixels that nobody knows they are not; their bytes are."""
    build = type("Copier", (Copier,), {"scramble": scramble, "names_it": names_it})
    entry = Method(build, MethodSettings(), "a test's", "nothing", "nobody", ClassifierSettings())
    monkeypatch.setitem(METHODS, "copier", entry)
    folder = sealed(engram.run(f"npz:{place / 'a.npz'}", "copier", settings=PLAIN, out=tmp_path / "copier"))
    head, *_ = map(json.loads, (folder / "records.jsonl").read_text().splitlines())
    assert head["strict"] is True
    checks = found(folder)
    assert checks["answers"].ok is True
    assert "accuracy 100.00 %" in checks["answers"].detail
    assert checks["strictness"].ok is scramble
    size = checks["size"]
    if names_it:
        assert size.ok is None
        assert "is larger than the images: it proves nothing" in size.detail
        assert "keeps 0.79 MB of the past, 400.8 % of the 0.20 MB of its 192 training images" in size.detail
    else:
        assert size.ok is False
        assert "the state has 0.79 MB that no ledger names (/kept/images, /kept/labels)" in size.detail


def test_what_is_searched_is_read_as_what_it_is() -> None:
    """A file's name says nothing of what is in it."""
    some = torch.arange(1024).reshape(1, 1, 32, 32).remainder(251).byte()
    buffer = io.BytesIO()
    np.savez(buffer, x=some.numpy())
    assert any(some.numpy().tobytes() in blob for blob in search_state.of_file("a.json", buffer.getvalue()).blobs)
    assert search_state.of_file("a", b"[[1, 2], [3, [4]]]").arrays[0].tolist() == [1, 2, 3, 4]
    assert search_state.of_file("a", b"\x00\x01").blobs == [b"\x00\x01"]


def test_figures_beside_a_matrix_in_short_form() -> None:
    """29 classes of 9 images; of the last, one was taken for the first and three for the one before."""
    matrix = {"right": [9] * 28 + [5], "wrong": [[]] * 28 + [[0, 1, 27, 3]]}
    right, by_class = 257 / 261, (28 + 5 / 9) / 29
    said = {"accuracy": right, "macro": by_class, "top5": 1.0, "task_mean": right}
    told = {"kind": "evaluation", "task": 0, "classes": [*range(29)], "confusion": matrix, **said}
    told |= {"forgetting": 0.0, "backward_transfer": 0.0}
    head = {"kind": "run", "tasks": [[*range(29)]]}
    assert wrong_figures([head, told])[1] == []
    (wrong,) = wrong_figures([head, told | {"macro": 0.99}])[1]
    assert "macro says 0.99, its confusion matrix 0.984674" in wrong


def test_a_classifier_larger_than_few_images_leaves_the_size_no_doubt(place: Path, tmp_path: Path) -> None:
    """1.05 MB of weights beside 0.20 MB of images: its size is that of its settings, and nothing else is kept."""
    settings = {**PLAIN, "classifier.width": 64}
    folder = engram.run(f"npz:{place / 'a.npz'}", "finetune", settings=settings, out=tmp_path / "wide")
    size = found(folder)["size"]
    assert size.ok is True, size.detail
    assert "all but the classifier could hold " in size.detail
