"""A model in the hub's layout: the same bits, files that belong together, and no network for a folder."""

from __future__ import annotations

import importlib
import inspect
import json
import shutil
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conftest import SMALL_GAN
from engram.errors import ConfigError, RunError
from engram.experiment import files
from engram.model import hub
from engram.model.card import card
from engram.model.card_page import as_markdown
from engram.model.model import Model

TOY = {
    **SMALL_GAN, "gan.epochs": 1, "gan.steps": 2, "classifier.epochs": 1, "classifier.width": 4, "replay.images": 32,
    "runtime.threads": 1,
}  # fmt: skip
IMAGES = np.random.default_rng(1).integers(0, 256, (12, 16, 16), dtype=np.uint8)


def learned(names: str = "Ÿ mug") -> Model:
    model = Model.create(settings=TOY)
    model.learn(IMAGES, names.split() * 6)
    return model


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "model"
    learned().save_pretrained(folder, license="apache-2.0")
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(written, tmp_path / "model"))


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("somebody asked for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)


@pytest.mark.usefixtures("no_network")
def test_a_folder_is_the_same_model_without_package_and_network(tmp_path: Path) -> None:
    model = learned()
    digest = model.save_pretrained(tmp_path / "a/b")
    assert model.save(tmp_path / "m.engram") == digest
    assert sorted(path.name for path in (tmp_path / "a/b").iterdir()) == [hub.CARD, hub.CONFIG, hub.WEIGHTS]
    assert (tmp_path / "a/b" / hub.WEIGHTS).read_bytes() == (tmp_path / "m.engram").read_bytes()
    for where in (tmp_path / "a/b", str(tmp_path / "a/b")):
        again = Model.from_pretrained(where, strict=True, settings={"runtime.threads": 1})
        assert (again.classes, again.digest, again.lineage) == (model.classes, digest, model.lineage)
        np.testing.assert_array_equal(again.predict_proba(IMAGES), model.predict_proba(IMAGES))
        assert all(check.ok is not False for check in again.verify())


def test_config_says_what_the_model_is(written: Path) -> None:
    config = json.loads((written / hub.CONFIG).read_text())
    model = Model.open(written / hub.WEIGHTS)
    assert (config["format"], config["digest"]) == (1, model.digest)
    assert config["classes"] == [["Ÿ", 0], ["mug", 1]]
    assert config["shape"] == [1, 32, 32]
    assert config["config"]["method"] == "dgmw"


def test_the_card_has_the_hubs_front_matter_and_leaves_the_licence_to_the_owner(written: Path, tmp_path: Path) -> None:
    yaml = importlib.import_module("yaml")
    _, head, text = (written / hub.CARD).read_text().split("---\n", 2)
    front = yaml.safe_load(head)
    assert (front["library_name"], front["license"]) == ("engram", "apache-2.0")
    assert "continual-learning" in front["tags"]
    assert "Ÿ" in text
    learned().save_pretrained(tmp_path / "other")
    assert "license" not in yaml.safe_load((tmp_path / "other" / hub.CARD).read_text().split("---\n")[1])


def test_the_card_is_the_models_own(tmp_path: Path) -> None:
    model = Model.create(preset="fast")
    model.save_pretrained(tmp_path / "m")
    assert (
        (tmp_path / "m" / hub.CARD)
        .read_text()
        .endswith("---\n\n" + as_markdown(card(model, Path("model.safetensors"))))
    )


def test_what_only_answers_can_be_handed_on(tmp_path: Path) -> None:
    model = learned()
    model.save_pretrained(tmp_path / "m", with_generator=False)
    small = Model.from_pretrained(tmp_path / "m")
    assert small.answers_only
    assert (model.answers_only, model.digest) == (False, None)
    np.testing.assert_array_equal(small.predict_proba(IMAGES), model.predict_proba(IMAGES))


# ---------------------------------------------------------------- damage


def changed(folder: Path, **values: Any) -> None:
    config = json.loads((folder / hub.CONFIG).read_text())
    (folder / hub.CONFIG).write_text(json.dumps({**config, **values}))


DAMAGE: list[tuple[Any, str]] = [
    (lambda at: changed(at, classes=[["mug", 0], ["Ÿ", 1]]), "disagrees with model.safetensors in 'classes'"),
    (lambda at: changed(at, digest="0" * 64), "disagrees with model.safetensors in 'digest'"),
    (lambda at: changed(at, format=2), "disagrees with model.safetensors in 'format'"),
    (lambda at: changed(at, auto_map={"AutoModel": "evil.py"}), "disagrees with model.safetensors in 'auto_map'"),
    (lambda at: learned("a b").save_pretrained(at / "b") and shutil.copy(at / "b" / hub.WEIGHTS, at), "disagrees"),
    (lambda at: (at / hub.CONFIG).write_text("{"), "config.json is damaged: it is no JSON"),
    (lambda at: (at / hub.CONFIG).write_bytes(b"\xff"), "config.json is damaged: it is no JSON"),
    (lambda at: (at / hub.CONFIG).write_text("[]"), "config.json is damaged: it is no JSON object"),
    (lambda at: (at / hub.CONFIG).unlink(), "holds no config.json"),
    (lambda at: (at / hub.WEIGHTS).unlink(), "holds no model.safetensors"),
    (lambda at: (at / hub.WEIGHTS).write_bytes((at / hub.WEIGHTS).read_bytes()[:-1]), "model.safetensors is damaged"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_files_that_do_not_belong_together_are_refused_with_one_line(folder: Path, damage: Any, message: str) -> None:
    Model.from_pretrained(folder)
    damage(folder)
    with pytest.raises(RunError, match=message) as caught:
        Model.from_pretrained(folder)
    assert "\n" not in str(caught.value)


def test_a_model_that_stores_images_is_not_opened_as_strict(tmp_path: Path) -> None:
    model = Model.create("icarl", settings={"exemplars.budget": 4, "classifier.epochs": 1, "runtime.threads": 1})
    model.learn(IMAGES, ["a", "b"] * 6)
    model.save_pretrained(tmp_path / "m")
    with pytest.raises(RunError, match="is not strict"):
        Model.from_pretrained(tmp_path / "m", strict=True)


# ---------------------------------------------------------------- the hub


def test_a_repository_is_downloaded_by_the_hubs_own_package(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    takes, calls = inspect.signature(package.snapshot_download), []

    def download(*args: Any, **kwargs: Any) -> str:
        calls.append(takes.bind(*args, **kwargs).arguments)  # what the real one would refuse fails here
        return str(written)

    monkeypatch.setattr(package, "snapshot_download", download)
    model = Model.from_pretrained("someone/mugs", revision="v2", local_files_only=True)
    assert model.classes == ("Ÿ", "mug")
    (call,) = calls
    assert (call["repo_id"], call["revision"], call["local_files_only"]) == ("someone/mugs", "v2", True)
    assert sorted(call["allow_patterns"]) == [hub.CARD, hub.CONFIG, hub.WEIGHTS]


def test_offline_is_honoured_and_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(RunError, match="someone/mugs is no folder here, and the hub does not give it") as caught:
        Model.from_pretrained("someone/mugs", cache_dir=tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("where", ["/no/where", "./mugs", "a/b/c", "../mugs", Path("someone/mugs")])
@pytest.mark.usefixtures("no_network")
def test_a_path_that_is_not_there_is_no_repository(where: Any) -> None:
    with pytest.raises(RunError, match="does not exist; give a folder"):
        Model.from_pretrained(where)


@pytest.mark.usefixtures("no_network")
def test_a_file_or_a_revision_of_a_folder_is_refused(written: Path) -> None:
    with pytest.raises(RunError, match=r"is a file; open it by Model\.open"):
        Model.from_pretrained(written / hub.WEIGHTS)
    with pytest.raises(ConfigError, match="a folder, which has no revisions"):
        Model.from_pretrained(written, revision="v2")


@pytest.mark.usefixtures("no_network")
def test_without_the_package_the_error_says_what_to_install() -> None:
    for ask in (lambda: Model.from_pretrained("someone/mugs"), lambda: learned().push_to_hub("someone/mugs")):
        with pytest.raises(ConfigError, match=r"needs more packages: pip install .*\[hub\]"):
            ask()


class Api:
    """Stands in for the hub: takes what the real one takes, and keeps what it is given."""

    real: Any = None
    kept: dict[str, bytes]

    def __init__(self, **options: Any) -> None:
        inspect.signature(self.real).bind(**options)
        Api.calls = {"options": options}

    def create_repo(self, *args: Any, **kwargs: Any) -> Any:
        Api.calls["create"] = inspect.signature(self.real.create_repo).bind(self, *args, **kwargs).arguments
        return SimpleNamespace(repo_id=Api.calls["create"]["repo_id"])

    def upload_folder(self, **kwargs: Any) -> Any:
        Api.calls["upload"] = inspect.signature(self.real.upload_folder).bind(self, **kwargs).arguments
        if kwargs["repo_id"] == "someone/locked":
            raise PermissionError("403 Forbidden\nand much more")
        Api.kept = {path.name: path.read_bytes() for path in Path(kwargs["folder_path"]).iterdir()}
        return SimpleNamespace(commit_url="https://hub/commit/1")

    calls: dict[str, Any]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> type[Api]:
    package = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    monkeypatch.setattr(Api, "real", package.HfApi)
    monkeypatch.setattr(package, "HfApi", Api)
    return Api


def test_what_is_uploaded_is_what_would_be_saved(api: type[Api], tmp_path: Path) -> None:
    model = learned()
    url = model.push_to_hub("someone/mugs", private=True, token="t", commit_message="June", license="mit")
    assert url == "https://hub/commit/1"
    assert (model.path, model.digest is None) == (None, False)
    assert (api.calls["create"]["private"], api.calls["create"]["exist_ok"]) == (True, True)
    assert (api.calls["upload"]["commit_message"], api.calls["options"]["token"]) == ("June", "t")
    assert not Path(api.calls["upload"]["folder_path"]).exists()
    model.save_pretrained(tmp_path / "m", license="mit")
    assert api.kept == {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}
    model.push_to_hub("someone/mugs", create_pr=True)
    assert "create" not in api.calls


@pytest.mark.usefixtures("api")
def test_an_upload_that_fails_is_one_line() -> None:
    model = learned()
    with pytest.raises(RunError, match=r"cannot upload to someone/locked \(PermissionError: 403 Forbidden\)") as caught:
        model.push_to_hub("someone/locked")
    assert "\n" not in str(caught.value)
    assert model.digest is None, "nobody has that version"
    with pytest.raises(ConfigError, match="run_as_future"):
        model.push_to_hub("someone/mugs", run_as_future=True)


def test_a_full_disc_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, write = learned(), files.write_atomically

    def full(path: Path, content: bytes) -> None:
        if path.name == hub.CONFIG:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(hub, "write_atomically", full)
    with pytest.raises(RunError, match=r"No space left on device; model\.safetensors beside it is whole"):
        model.save_pretrained(tmp_path / "m")
    assert Model.open(tmp_path / "m" / hub.WEIGHTS).classes == model.classes
