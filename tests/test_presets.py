"""Presets: complete for every method, every value allowed, and what stands in the file is what runs."""

from __future__ import annotations

import time
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

import engram.presets as presets
from conftest import write_npz
from engram.config import Config, as_dict, groups_of
from engram.data.datasets import DATASETS
from engram.errors import ConfigError
from engram.experiment.records import read_records
from engram.experiment.request import Request
from engram.experiment.run import execute
from engram.methods.registry import METHODS, configure
from engram.presets import DEFAULT, PAPER, PRESETS, lighter_presets, load_preset, preset_settings, read_preset

SHARED = ("stream", "runtime")
"""Groups that are no part of a method's section."""
SECONDS = 30
"""Far more than `fast` takes; a preset that trains for real takes minutes."""


def own_groups(method: str) -> dict[str, set[str]]:
    """Group -> its fields, for all that a method's section has to hold."""
    groups = groups_of(configure(method=method, preset=DEFAULT))
    return {name: {spec.name for spec in fields(group)} for name, group in groups.items() if name not in SHARED}


def methods_of(preset: str) -> set[str]:
    """The paper's own settings are those of its method."""
    return {"dgmw", "dgma"} if preset.startswith(PAPER) else set(METHODS)


def test_the_files_are_those_that_are_listed() -> None:
    found = {path.stem for path in Path(presets.__file__).parent.glob("*.toml")}
    assert found == set(PRESETS)
    assert len(PRESETS) == len(set(PRESETS))
    assert DEFAULT not in PRESETS
    assert "auto" not in PRESETS


def test_every_data_set_has_a_preset() -> None:
    assert set(DATASETS) <= set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_complete_for_every_method_and_holds_nothing_else(name: str) -> None:
    preset = load_preset(name)
    assert preset.description
    assert preset.tuned_on, "by which images were its values chosen?"
    assert set(preset.methods) == methods_of(name)
    for method, groups in preset.methods.items():
        assert {group: set(values) for group, values in groups.items()} == own_groups(method), method


@pytest.mark.parametrize("name", PRESETS)
def test_what_stands_in_the_file_is_what_runs(name: str) -> None:
    tables = tomllib.loads((Path(presets.__file__).parent / f"{name}.toml").read_text())
    for method in methods_of(name):
        composed = as_dict(configure(dataset="digits", method=method, preset=name))
        for group, values in {"stream": tables.get("stream", {}), **tables[method]}.items():
            assert values == {field: composed[group][field] for field in values}


def test_auto_takes_the_data_sets_file_and_the_user_goes_before_it() -> None:
    for dataset in DATASETS:
        for method in METHODS:
            assert preset_settings("auto", dataset, method) == load_preset(dataset).settings(method)
    assert configure(dataset="mnist", method="finetune").classifier.epochs == 1
    assert configure(dataset="mnist", method="finetune", settings={"classifier.epochs": "2"}).classifier.epochs == 2
    assert configure(dataset="mnist", method="finetune", preset="cifar10").classifier.architecture == "resnet18"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dataset", ["folder:somewhere", "npz:x.npz", "npz:mnist"])
def test_own_data_gets_the_methods_defaults(method: str, dataset: str) -> None:
    assert preset_settings("auto", dataset, method) == {}
    config = configure(dataset=dataset, method=method)
    assert config.settings == METHODS[method].settings
    assert config.classifier == METHODS[method].classifier
    assert config == configure(dataset=dataset, method=method, preset="auto")


def test_defaults_can_be_asked_for_by_name() -> None:
    assert preset_settings(DEFAULT, "mnist", "dgmw") == {}
    assert configure(dataset="cifar10", method="dgmw", preset=DEFAULT).settings == METHODS["dgmw"].settings


def test_a_preset_that_is_not_there_is_named_with_its_neighbours() -> None:
    with pytest.raises(ConfigError, match="unknown preset 'mnit': did you mean 'mnist'"):
        preset_settings("mnit", "mnist", "joint")


def test_large_presets_know_their_smaller_forms() -> None:
    assert lighter_presets(Config(dataset="imagenet50")) == ["imagenet50-quick", "imagenet50-small"]
    assert lighter_presets(Config(dataset="digits", preset="cifar10")) == ["cifar10-small"]
    assert lighter_presets(Config(dataset="npz:x.npz")) == []


@pytest.mark.parametrize("method", METHODS)
def test_fast_runs_every_method_on_a_small_set_in_seconds(method: str, tmp_path: Path) -> None:
    data = write_npz(tmp_path / "a.npz", classes=3, per_class=12)
    request = Request(f"npz:{data}", method, "fast", settings={"runtime.threads": 1, "runtime.device": "cpu"})
    began = time.monotonic()
    records = list(read_records(execute(request, tmp_path / "run")))
    assert time.monotonic() - began < SECONDS
    accuracy = [r["accuracy"] for r in records if r["kind"] == "evaluation"]
    assert len(accuracy) == 3
    assert accuracy[0] == 1.0, "one class alone is always told"


# ---------------------------------------------------------------- a user's own file


def own(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(text)
    return path


def test_an_own_file_goes_before_the_preset_and_after_the_words(tmp_path: Path) -> None:
    path = own(tmp_path, "[stream]\nclasses_per_task = 2\n[finetune]\nclassifier = { epochs = 9, width = 8 }\n")
    settings = {"classifier.width": "4"}
    config = Request("mnist", "finetune", settings=settings, file=path).config()
    assert (config.stream.classes_per_task, config.classifier.epochs, config.classifier.width) == (2, 9, 4)
    rest = configure(dataset="mnist", method="finetune").classifier
    assert config.classifier.augment == rest.augment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[finetune]\nclassifier = { epoch = 3 }", "did you mean 'classifier.epochs'"),
        ("[finetune]\nclassifier = { epochs = 0 }", "classifier.epochs=0 is out of range"),
        ("[finetune]\nclassifier = { epochs = 'x' }", "not a whole number"),
        ("[finetune]\nclassifier = 3", "must hold groups such as classifier = { epochs = 3 }"),
        ("[finetune]\nmasks = { fraction = 1 }", "unknown setting 'masks.fraction': finetune has the groups"),
        ("finetune = 3", "must hold groups such as"),
        ("stream = 3", "must hold groups such as"),
        ("[joint]\nclassifier = { epochs = 3 }", "has no section [finetune]; it has joint"),
        ("[finetune", "is not TOML"),
        ("[finetune]\nclassifier = { epochs = 3 }\n[finetune]\n", "is not TOML"),
    ],
)
def test_a_mistake_in_an_own_file_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Request("digits", "finetune", file=own(tmp_path, text)).config()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "nowhere.toml", tmp_path, binary):
        with pytest.raises(ConfigError) as caught:
            read_preset(path, "own")
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
