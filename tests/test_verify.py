"""Sampling, predicting and verifying a run from its folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import SMALL_GAN, write_npz
from engram.cli import call
from engram.data.datasets import Check, load_dataset
from engram.errors import ConfigError
from engram.experiment import checkpoint
from engram.memory.exemplars import herd
from engram.model.model import Model
from engram.model.verify import verify
from engram.nets.reachability import reachable_units

QUICK = {**SMALL_GAN, "gan.epochs": 3, "gan.steps": 6, "replay.images": 64}


def trained(tmp_path: Path, method: str, *more: str, channels: int = 1) -> Path:
    npz = write_npz(tmp_path / "a.npz", channels=channels)
    settings = [f"{name}={value}" for name, value in QUICK.items()] if method.startswith("dgm") else []
    settings += ["classifier.epochs=1", "runtime.threads=1", "stream.order=2,0,1", *more]
    words = ["run", "--dataset", f"npz:{npz}", "--method", method, "--out", str(tmp_path / "run")]
    assert call([*words, *(word for setting in settings for word in ("--set", setting))]) == 0
    return tmp_path / "run"


@pytest.fixture(scope="module")
def one_task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run for tests that only look."""
    return trained(tmp_path_factory.mktemp("one_task"), "dgmw", "stream.classes_per_task=3")


@pytest.mark.parametrize("method", ["dgmw", "dgma", "finetune"])
def test_a_good_run_passes(tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained(tmp_path, method)
    names = ["integrity", "retention", "strictness", "size", "figures", "records", "answers"]
    assert [line.what for line in verify(folder)] == names
    assert call(["verify", str(folder)]) == 0
    assert "FAILED" not in capsys.readouterr().out


@pytest.mark.parametrize("variable", [{"ATEN_CPU_CAPABILITY": "default"}, {"ONEDNN_MAX_CPU_ISA": "AVX2"}])
@pytest.mark.parametrize("method", ["dgmw", "dgma"])
def test_retention_holds_on_another_kind_of_processor(method: str, variable: dict[str, str], tmp_path: Path) -> None:
    """Other vector instructions are another processor, in effect: sums come out in another order."""
    folder = trained(tmp_path, method, *(["masks.lambda_ru=0.0"] if method == "dgma" else []))

    def there(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variable})

    def verified() -> subprocess.CompletedProcess[str]:
        return there("-m", "engram", "verify", str(folder))

    code = "import json, sys; from engram import Model; "
    code += "print(json.dumps(Model.open(sys.argv[1]).learner.largest_difference()))"
    apart = json.loads(there("-c", code, str(folder)).stdout)
    assert sorted(apart) == ["0", "1", "2"]
    assert max(apart.values()) <= 1, "what sums in another order change is at most a grey level"

    good = verified()
    assert good.returncode == 0, good.stdout
    assert "ok     retention: 3 classes, all stored bits that they depend on are as they were" in good.stdout

    saved = checkpoint.load(folder)
    assert saved is not None
    engram = Model.open(folder).learner.engrams[1]  # type: ignore[union-attr]
    (index,) = engram.class_indices
    opened = engram.binary_masks()[2]
    place = torch.nonzero(opened)[0].tolist()
    weight = saved.state["layers"]["2"]["weight"]
    units = reachable_units(engram.graph, engram.binary_masks())
    at = tuple(place) if opened.dim() > 1 else (int(units[1].nonzero()[0]), place[0], 0, 0)
    weight.view(torch.int32)[at] ^= 1  # the lowest bit of one reserved weight
    checkpoint.save(folder, saved.state, saved.meta)
    bad = verified()
    assert bad.returncode == 1
    name = Model.open(folder).classes[index]
    named = bad.stdout.split("FAILED retention: stored bits of ")[1].split(" have changed")[0]
    assert name in named.split(", "), "and whoever else opens that weight"


def retention_of(folder: Path) -> Check:
    return next(line for line in verify(folder) if line.what == "retention")


def test_drawings_that_differ_are_a_failure_from_two_grey_levels_on(tmp_path: Path) -> None:
    """Within one, the machine is named where it has changed; else it is said that nothing of it seems to have."""
    folder = trained(tmp_path, "dgmw")
    saved = checkpoint.load(folder)
    assert saved is not None
    engram = saved.state["engrams"]["0"]
    engram["plain"]["fingerprints"] = ["0" * 64 for _ in engram["plain"]["fingerprints"]]
    checkpoint.save(folder, saved.state, saved.meta)
    line = retention_of(folder)
    assert line.ok is True
    assert (
        " bytes compared); drawings differ by at most one grey level, though the machine looks the same" in line.detail
    )

    file = folder / "environment.json"
    file.write_text(json.dumps([{**start, "processor": "another"} for start in json.loads(file.read_text())]))
    line = retention_of(folder)
    assert line.ok is True
    assert "drawings differ by at most one grey level, since they were made: processor: another -> " in line.detail

    drawings = next(iter(engram["references"].values()))
    drawings.copy_(drawings ^ 2)
    checkpoint.save(folder, saved.state, saved.meta)
    line = retention_of(folder)
    assert line.ok is False
    assert "yet this machine draws 2 up to 2 grey levels off" in line.detail


@pytest.mark.parametrize(
    ("variable", "switch"),
    [
        ({"DNNL_MAX_CPU_ISA": "SSE41"}, ""),
        ({"MKL_CBWR": "COMPATIBLE"}, ""),
        ({}, "torch.backends.mkldnn.set_flags(False)"),
    ],
    ids=["oneDNN's instructions", "MKL's way", "without oneDNN"],
)
def test_other_settings_of_the_numeric_libraries_change_no_class(
    one_task: Path, variable: dict[str, str], switch: str
) -> None:
    """No stored bit has changed, so no class has."""
    code = "import sys; import torch; from pathlib import Path; from engram.model.verify import verify\n"
    code += f"{switch}\nprint(*(line for line in verify(Path(sys.argv[1])) if line.what == 'retention'))"
    command = [sys.executable, "-c", code, str(one_task)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variable})
    assert "ok=True, detail='3 classes, all stored bits that they depend on are as they were" in done.stdout, done
    if "drawings differ" in done.stdout:  # where the processor computes otherwise at all
        assert "by at most one grey level, since they were made: " in done.stdout


def test_records_that_name_less_of_the_machine_stay_readable(one_task: Path, tmp_path: Path) -> None:
    """Those of earlier versions say nothing of libraries."""
    folder = shutil.copytree(one_task, tmp_path / "run")
    file = folder / "environment.json"
    (start,) = json.loads(file.read_text())
    assert start["libraries"].startswith("oneDNN")
    file.write_text(json.dumps([{key: start[key] for key in start if key not in ("cpu", "libraries")}]))
    line = retention_of(folder)
    assert line.ok is True
    assert "to the bit" in line.detail


def test_a_changed_weight_a_kept_image_and_a_flipped_byte_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained(tmp_path, "dgmw")
    saved = checkpoint.load(folder)
    assert saved is not None
    opened = Model.open(folder).learner.engrams[1].binary_masks()[2]  # type: ignore[union-attr]
    saved.state["layers"]["2"]["weight"][tuple(torch.nonzero(opened)[0].tolist())] += 1e-3
    checkpoint.save(folder, saved.state, saved.meta)
    capsys.readouterr()
    assert call(["verify", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "FAILED retention: stored bits of" in out
    assert "0" in out.split("stored bits of")[1].split("have changed")[0], "class 0, the second task's, is named"

    hidden = load_dataset(f"npz:{tmp_path / 'a.npz'}").take_train().images[:1]
    saved.state["hidden"] = hidden.float() / 127.5 - 1
    checkpoint.save(folder, saved.state, saved.meta)
    assert [line.ok for line in verify(folder) if line.what == "strictness"] == [False]

    file = next(folder.glob("checkpoint-*"))
    broken = bytearray(file.read_bytes())
    broken[-1] ^= 1
    file.write_bytes(broken)
    assert [(line.what, line.ok) for line in verify(folder)] == [("integrity", False)]
    assert call(["verify", str(folder)]) == 1


def test_what_cannot_be_checked_is_not_called_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained(tmp_path, "finetune")
    (tmp_path / "a.npz").unlink()
    capsys.readouterr()
    assert call(["verify", str(folder)]) == 0
    assert "not checked strictness: the data is not here" in capsys.readouterr().out


def test_the_relaxed_setting_says_what_it_stores(tmp_path: Path) -> None:
    folder = trained(tmp_path, "dgmw", "exemplars.budget=6", "exemplars.selection=herding")
    line = next(line for line in verify(folder) if line.what == "strictness")
    assert line.ok
    assert "not strict: it stores real images" in line.detail
    assert "6 found" in line.detail


@pytest.mark.parametrize("channels", [1, 3])
def test_sample_and_predict(tmp_path: Path, channels: int, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained(tmp_path, "dgmw", channels=channels)
    out = tmp_path / "grid.png"
    assert call(["sample", str(folder), "--classes", "0,2", "--per-class", "3", "--out", str(out)]) == 0
    with Image.open(out) as picture:
        assert picture.size == (2 * (3 * 34 + 2), 2 * (2 * 34 + 2))
        assert picture.mode == ("L" if channels == 1 else "RGB")
    capsys.readouterr()
    image = tmp_path / "x.png"
    Image.fromarray(np.full((50, 40, 3), 90, np.uint8)).save(image)
    assert call(["predict", str(folder), str(image)]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f"{image}: ")
    assert line.split(": ")[1][0] in "012"


def test_a_class_is_meant_by_its_name_and_never_by_its_number(one_task: Path) -> None:
    run = Model.open(one_task)
    run.ids = {"cat": 2, "2": 0, "a, b": 5}
    assert [run.class_index(word) for word in ("cat", "2", "a, b")] == [0, 1, 2]
    for word in ("dog", "0", "5", "-1", "²", ""):
        with pytest.raises(ConfigError, match="unknown class"):
            run.class_index(word)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sample", "RUN", "--classes", "7"], "unknown class '7'"),
        (["sample", "RUN", "--per-class", "0"], "--per-class"),
        (["sample", "RUN", "--out", "nowhere/x.png"], "cannot be written"),
        (["sample", "nowhere"], "does not exist"),
        (["predict", "RUN", "nowhere.png"], "nowhere.png"),
        (["predict", "nowhere", "x.png"], "does not exist"),
    ],
)
def test_mistakes(
    tmp_path: Path,
    one_task: Path,
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert call([str(one_task) if word == "RUN" else word for word in words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_method_without_a_generator_cannot_be_sampled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained(tmp_path, "finetune")
    assert call(["sample", str(folder)]) == 2
    assert "no generator" in capsys.readouterr().err


def test_herding_follows_its_definition() -> None:
    """Algorithm 4 of iCaRL, written out: each choice brings the mean of the chosen nearest to the mean of all."""
    features = torch.randn(30, 5, generator=torch.Generator().manual_seed(1)).double()
    normal = features / features.norm(dim=1, keepdim=True)
    centre = normal.mean(0)
    chosen: list[int] = []
    for _ in range(8):
        options = [i for i in range(30) if i not in chosen]
        distances = [(centre - normal[[*chosen, i]].mean(0)).norm().item() for i in options]
        chosen.append(options[distances.index(min(distances))])
    assert herd(features, 8).tolist() == chosen
    assert sorted(herd(features, 99).tolist()) == list(range(30))
