"""Values beyond all measure: bounds of settings, memory asked for before it is taken, and one line for a mistake."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engram.cli import call
from engram.config import MOST_SEED, MOST_THREADS, Range, compose, groups_of
from engram.context import Shape
from engram.distributed import World
from engram.errors import ConfigError, RunError
from engram.experiment.machine import available_cores, default_threads
from engram.experiment.run import run
from engram.methods import budget
from engram.methods.registry import METHODS, configure
from engram.model import file
from engram.model.model import Model
from engram.nets.architectures import classifier_trunk, critic_trunk, graph_for
from engram.nets.conditional_generator import ConditionalGenerator
from engram.opening import opening, read_regular
from engram.presets import DEFAULT, PRESETS, load_preset, read_preset
from engram.values import read_value, shown
from test_model import TOY, toy, write_folder

CPU = torch.device("cpu")
GB = 10**9
pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Whoever waits for a pipe would wait for ever."""

    def ended(number: int, frame: object) -> None:
        raise AssertionError(f"still waiting after {seconds} s")

    before = signal.signal(signal.SIGALRM, ended)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_with_a_number_has_an_upper_bound(method: str) -> None:
    config = configure(method=method, preset="default")
    for name, group in groups_of(config).items():
        for spec in fields(group):
            value, allowed = getattr(group, spec.name), spec.metadata["range"]
            if type(value) in (int, float) and str(allowed):
                top = allowed.at_most if allowed.at_most is not None else allowed.below
                assert top is not None, f"{name}.{spec.name}"


def test_no_recorded_run_lies_beyond_the_bounds() -> None:
    checked = 0
    for path in sorted((Path(__file__).parents[1] / "results").rglob("config.json")):
        stored = json.loads(path.read_text())["config"]
        for name, group in groups_of(configure(method=stored["method"], preset="default")).items():
            for spec in fields(group):
                value, allowed = stored.get(name, {}).get(spec.name), spec.metadata["range"]
                if type(value) in (int, float):
                    assert allowed.holds(value), (path, name, spec.name, value)
                    checked += 1
    assert checked > 1000


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("replay.images", "1e12"),
        ("replay.images", 10**12),
        ("generator.width", 10**6),
        ("masks.s_max", "1e308"),
        ("runtime.threads", 10**6),
        ("runtime.threads", 2**40),
        ("runtime.device", "cuda:99999999999999999999"),
        ("runtime.device", "cuda:²"),
        ("runtime.device", "cuda:"),
        ("runtime.device", "cpu:"),
        ("classifier.epochs", "9" * 5000),
        ("classifier.epochs", 16**50_000),
        ("classifier.epochs", "٣"),
        ("classifier.learning_rate", "1e99999"),
        ("classifier.learning_rate", "-0.0"),
        ("stream.order", [16**50_000]),
        ("seed", MOST_SEED + 1),
        ("order_seed", 10**300),
    ],
    ids=lambda one: shown(one)[:20],
)
def test_a_value_beyond_measure_is_one_short_line(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(configure(), {key: value})
    assert str(caught.value).startswith(f"{key}=")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_negative_zero_is_zero() -> None:
    assert str(read_value("x", "-0.0", float)) == str(read_value("x", -0.0, float)) == "0.0"


def test_a_tree_without_end_can_be_told() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "a value of type list that is too large"


@pytest.mark.parametrize("said", [str(10**6), str(2**40), "9" * 5000, str(MOST_THREADS + 1)])
def test_more_threads_than_a_system_starts_are_not_believed(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert default_threads(World()) == available_cores()


def test_a_bound_says_its_number_in_full() -> None:
    assert str(Range(at_least=1, at_most=1_000_000)) == "1 to 1,000,000"


# ---------------------------------------------------------------- files of settings


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"[finetune]\nclassifier = { epochs = " + b"9" * 5000 + b" }", "is not TOML"),
        (b"\xff\xfe\x00", "is not TOML"),
        (b" " * 1_000_001, "larger than 1,000,000 bytes"),
    ],
)
def test_a_file_of_settings_that_is_none_is_one_line(contents: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(contents)
    with pytest.raises(ConfigError, match=message):
        read_preset(tmp_path / "x.toml", "x")


@pipes
@pytest.mark.parametrize("name", ["x.toml", "x.json"])
def test_nobody_waits_for_a_pipe_of_settings(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / name)
    with at_most(60):
        assert call(["run", "--config", str(tmp_path / name), "--out", str(tmp_path / "out")]) == 2
    assert "no regular file" in capsys.readouterr().err


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert read_regular(tmp_path / "a", 3) == b"abc"
    for place in (tmp_path, Path("/dev/zero"), tmp_path / "a\0b", tmp_path / ("x" * 300), tmp_path / "none"):
        with pytest.raises(OSError, match=r"directory|regular|zero byte|too long|No such"):
            read_regular(place, 3)
    with pytest.raises(OSError, match="larger than 2 bytes"):
        read_regular(tmp_path / "a", 2)


def test_opening_leaves_what_is_said_already(tmp_path: Path) -> None:
    for error in (
        KeyError("x"),
        ValueError("two\nlines"),
        RecursionError(),
        MemoryError(),
        IndexError(),
        OverflowError(),
    ):
        with pytest.raises(RunError) as caught, opening(tmp_path):
            raise error
        assert str(caught.value).startswith(f"{tmp_path} cannot be opened: ")
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"^mine$"), opening(tmp_path):
        raise ConfigError("mine")


# ---------------------------------------------------------------- memory


def weights(net: nn.Module) -> int:
    """Of layers; what normalisation and biases have besides is small."""
    return sum(tensor.numel() for tensor in net.parameters() if tensor.dim() > 1)


@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 64, 64), (40,)])
@pytest.mark.parametrize("width", [2, 6])
def test_the_weights_of_a_network_are_counted_before_it_is_built(shape: Shape, width: int) -> None:
    vectors, draws = len(shape) == 1, torch.Generator()
    for name in ("linear", "mlp") if vectors else ("convnet", "resnet18"):
        built = classifier_trunk(name, shape, width, generator=draws)
        assert budget.classifier_size(name, shape, width).weights == weights(built), name
    for name in ("mlp",) if vectors else ("dcgan", "residual", "resnet18"):
        critic = critic_trunk(name, shape, width=width, kernel=4, generator=draws)
        assert isinstance(critic, nn.Module)
        assert budget.critic_size(name, shape, width, 4).weights == weights(critic), name
    for name in ("mlp",) if vectors else ("dcgan", "residual"):
        graph = graph_for(name, shape)
        net = ConditionalGenerator(graph, shape[0], width=width, latent_dim=5, generator=draws)
        found = sum(weight.numel() for weight in net.weights)
        assert budget.generator_size(graph, shape[0], width, 5).weights == found, name


def cases() -> Iterator[tuple[str, str, Shape]]:
    """Every section of every preset, with the shapes that it may meet."""
    vectors: tuple[Shape, ...] = ((384,), (2048,))
    images: tuple[Shape, ...] = ((1, 32, 32), (3, 32, 32), (3, 64, 64))
    for name in PRESETS:
        for method in load_preset(name).methods:
            for shape in vectors if name == "embeddings" else images:
                yield name, method, shape


@pytest.mark.parametrize("preset", [*PRESETS, DEFAULT])
def test_every_preset_fits_into_a_small_machine(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "memory_of", lambda device: 4 * GB)
    tried = 0
    for name, method, shape in [*cases(), *((DEFAULT, method, (3, 64, 64)) for method in METHODS)]:
        if name == preset:
            budget.require(configure(method=method, preset=name), shape, CPU, training=True)
            tried += 1
    assert tried


ABSURD: list[tuple[str, dict[str, Any], Shape]] = [
    ("dgmw", {"generator.width": 16_384}, (1, 32, 32)),
    ("dgmw", {"critic.width": 16_384}, (1, 32, 32)),
    ("dgmw", {"classifier.width": 16_384}, (1, 32, 32)),
    ("dgmw", {"replay.images": 10**9}, (1, 32, 32)),
    ("dgmw", {"gan.batch_size": 10**6}, (3, 64, 64)),
    ("dgmw", {"statistics.kept": True, "statistics.filters": 4096}, (1, 32, 32)),
    ("dgr", {"generator.width": 8_192}, (3, 64, 64)),
    ("slda", {"features.filters": 4096}, (1, 32, 32)),
    ("ridge", {"features.projections": 70_000}, (384,)),
    ("ridge", {}, (10**6,)),
    ("finetune", {"classifier.architecture": "resnet18", "classifier.width": 8_192}, (1, 32, 32)),
]


@pytest.mark.parametrize(("method", "settings", "shape"), ABSURD)
def test_what_can_never_fit_is_refused_before_it_is_built(
    method: str, settings: dict[str, Any], shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "memory_of", lambda device: 24 * GB)
    config = configure(method=method, preset="default", settings=settings)
    began = time.process_time()
    with pytest.raises(
        ConfigError, match=r"^this needs about [\d,.]+ GB of memory, there are 24: most of it by "
    ) as told:
        budget.require(config, shape, CPU, training=True)
    assert time.process_time() - began < 1, "numbers alone are looked at"
    if settings:
        assert list(settings)[-1] in str(told.value)


def test_a_learner_that_cannot_fit_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def built(context: object) -> Any:
        raise AssertionError("it was built")

    monkeypatch.setattr(budget, "memory_of", lambda device: GB)
    method = replace(METHODS["finetune"], build=built)  # type: ignore[type-var]
    config = configure(method="finetune", preset="default", settings={"classifier.width": 16_384})
    with pytest.raises(ConfigError, match=r"classifier\.width=16384"):
        method.learner(config, (1, 32, 32), CPU)
    with pytest.raises(ConfigError, match=r"classifier\.width=16384"):
        run("digits", "finetune", settings={"classifier.width": 16_384, "stream.order": "3"}, out="never-made")
    assert not Path("never-made").exists()


def test_a_container_has_what_its_group_may_take(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/a/b\n")
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert budget._allowed(tmp_path, own) is None
    (tmp_path / "a" / "b" / "memory.max").write_text("max\n")
    assert budget._allowed(tmp_path, own) is None
    (tmp_path / "a" / "memory.max").write_text("3000000000\n")
    assert budget._allowed(tmp_path, own) == 3 * GB
    old = tmp_path / "memory" / "x"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("2000000000\n")
    own.write_text("4:cpu,memory:/x\n0::/a/b\n")
    assert budget._allowed(tmp_path, own) == 2 * GB


def test_this_machine_says_how_much_it_has() -> None:
    assert (budget.memory_of(CPU) or 0) > GB


# ---------------------------------------------------------------- run folders and model files of others


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder, a model file, and images."""
    place = tmp_path_factory.mktemp("made")
    settings = {**TOY, "stream.order": "3,5", "stream.classes_per_task": 2}
    run("digits", "dgmw", preset="default", settings=settings, out=place / "run")
    model = toy()
    model.learn(write_folder(place / "may", {"mug": 0, "ball": 5}))
    model.save(place / "two.engram", card=False)
    return place


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "run", tmp_path / "run")
    return tmp_path / "run"


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A checkpoint that somebody changed who knows how to make its checksum."""
    body = json.loads((folder / "checkpoint.json").read_text())["body"]
    change(body)
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    (folder / "checkpoint.json").write_text(json.dumps({"digest": digest, "body": body}))


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What a command says that ends as a mistake: one line."""
    capsys.readouterr()
    assert call([str(word) for word in words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("engram: ")
    assert said.count("\n") == 1
    return said


PLACES = [("task", -1), ("task", "x"), ("task", 10**9), ("task", True), ("records", -1), ("records", "x")]


@pytest.mark.parametrize(("name", "value"), PLACES)
def test_a_checkpoint_with_a_place_that_is_none_is_one_line(
    name: str, value: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(folder, lambda body: body["meta"].update({name: value}))
    refused(capsys, "run", "--resume", "--out", folder)
    if name == "task":
        assert "task is" in refused(capsys, "sample", folder, "--out", folder.parent / "x.png")


@pytest.mark.parametrize("value", [5, None, {}, "x" * 300, "a\0b", "/dev/zero"])
def test_a_checkpoint_with_a_file_that_is_none_is_one_line(
    value: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(folder, lambda body: body.update(file=value))
    with at_most(60):
        refused(capsys, "sample", folder)
        refused(capsys, "run", "--resume", "--out", folder)


@pytest.mark.parametrize("tree", [None, {}, 5, {"a": {"$tensor": 5}}])
def test_a_state_without_what_answers_is_one_line(
    tree: Any, folder: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(folder, lambda body: body.update(tree=tree))
    image = next((made / "may" / "mug").iterdir())
    refused(capsys, "predict", folder, image)
    refused(capsys, "sample", folder)
    refused(capsys, "card", folder)


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("name", ["config.json", "checkpoint.json", "environment.json", "records.jsonl"])
@pytest.mark.parametrize("text", [DEEP, "9" * 5000, "null"], ids=["deep", "digits", "null"])
def test_json_that_is_not_ours_is_one_line(
    name: str, text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).write_text(text + "\n")
    for words in (["sample", folder, "--out", folder.parent / "x.png"], ["run", "--resume", "--out", folder]):
        capsys.readouterr()
        code = call([str(word) for word in words])
        said = capsys.readouterr().err
        # where a run was last started, no command needs to know
        assert code == 2 or (name == "environment.json" and text == "null")
        assert said.count("\n") == (code == 2)


@pipes
@pytest.mark.parametrize("name", ["config.json", "checkpoint.json", "environment.json", "records.jsonl", "odd"])
def test_nobody_waits_for_a_pipe_in_a_run_folder(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with at_most(60):
        refused(capsys, "sample", folder)
        refused(capsys, "verify", folder)
        refused(capsys, "run", "--resume", "--out", folder)


@pytest.mark.parametrize(
    ("path", "said"), [("two.engram", "weights do not fit"), ("run", "is not what the run was started with")]
)
def test_settings_that_do_not_fit_the_weights_are_one_line(path: str, said: str, made: Path, tmp_path: Path) -> None:
    target = tmp_path / path
    if path == "run":
        shutil.copytree(made / path, target)
        plain = json.loads((target / "config.json").read_text())
        plain["config"]["classifier"]["width"] = 16
        (target / "config.json").write_text(json.dumps(plain))
    else:
        contents = file.read(made / path)
        contents.body["config"]["classifier"]["width"] = 16
        target.write_bytes(file.pack(contents.body, contents.state))
    with pytest.raises(RunError, match=said):
        Model.open(target)


WRONG: list[tuple[tuple[str, ...], Any, str]] = [
    (("classes",), [["mug", 0]] * 2, "told apart"),
    (("classes",), [["a", 0], ["b", 1], ["c", 2]], "yet to be given"),
    (("next_id",), -1, "next_id is -1"),
    (("tasks",), "x", "tasks is 'x'"),
    (("shape",), [1, 10**6, 10**6], "."),
    (("shape",), [10**9], "."),
    (("config", "generator", "width"), 16_384, "GB of memory"),
    (("config", "generator", "width"), 10**6, "out of range"),
]


@pytest.mark.parametrize(("place", "value", "message"), WRONG)
def test_a_model_of_a_stranger_is_opened_or_refused_in_one_line(
    place: tuple[str, ...], value: Any, message: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "memory_of", lambda device: 24 * GB)
    contents = file.read(made / "two.engram")
    at: Any = contents.body
    for name in place[:-1]:
        at = at[name]
    at[place[-1]] = value
    (tmp_path / "m.engram").write_bytes(file.pack(contents.body, contents.state))
    with pytest.raises((RunError, ConfigError), match=message) as caught:
        Model.open(tmp_path / "m.engram")
    assert "\n" not in str(caught.value)


def test_a_model_that_names_more_classes_than_it_answers_is_refused(made: Path, tmp_path: Path) -> None:
    contents = file.read(made / "two.engram")
    contents.body["classes"].append(["lamp", 2])
    contents.body["next_id"] = 3
    (tmp_path / "m.engram").write_bytes(file.pack(contents.body, contents.state))
    with pytest.raises(RunError, match="do not fit its 3 classes"):
        Model.open(tmp_path / "m.engram")


def test_a_number_that_python_cannot_read_is_no_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(
        capsys, "run", "--method", "finetune", "--set", f"stream.order={'9' * 5000}", "--out", tmp_path / "x"
    )
    assert "unknown class '999" in said
    assert len(said) < 300


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "/dev/null", "/proc/none/x"])
def test_a_place_that_cannot_be_written_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, "run", "--method", "finetune", "--set", "stream.order=3", "--out", tmp_path / name)
