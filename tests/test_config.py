"""Settings: texts become typed values, mistakes become one helpful line."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from engram.config import (
    GROUPS,
    Config,
    NoSettings,
    as_dict,
    compose,
    differences,
    from_dict,
)
from engram.errors import ConfigError
from engram.methods.registry import METHODS, configure
from engram.presets import PRESETS, preset_settings


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("training.epochs", "7", 7),
        ("training.learning_rate", "1e-4", 1e-4),
        ("training.augment", "photo", "photo"),
        ("stream.order", "3, 1,2", (3, 1, 2)),
        ("stream.order", "none", None),
        ("stream.first_task", "4", 4),
        ("runtime.device", "cuda:1", "cuda:1"),
    ],
)
def test_texts_are_read_as_the_fields_type(key: str, text: str, value: Any) -> None:
    group, name = key.split(".")
    config = compose(Config(), {key: text})
    assert getattr(getattr(config, GROUPS[group]), name) == value


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("training.epochs", "many", "training.epochs='many' is not a whole number"),
        ("training.epochs", "1.5", "not a whole number"),
        ("training.epochs", "0", "training.epochs=0 is out of range: it must be 1 or more"),
        ("training.learning_rate", "nan", "not a finite number"),
        ("training.learning_rate", "-1", "out of range"),
        ("training.schedule", "cosine", "not one of one-cycle, constant"),
        ("training.epoch", "3", "did you mean 'training.epochs'"),
        ("traning.epochs", "3", "unknown group 'traning': did you mean 'training'"),
        ("epochs", "3", "unknown field 'epochs': did you mean 'training.epochs'"),
        ("method.r", "0.5", "unknown field 'method.r': joint has no settings of its own"),
        ("stream.order", "a,b", "not a list of numbers"),
        ("runtime.device", "tpu", "auto, cpu, cuda, cuda:N or mps"),
        ("stream.holdout", "1", "between 0 and 1"),
        ("seed", "-3", "seed=-3"),
    ],
)
def test_mistakes_name_the_value_and_the_remedy(key: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(Config(), {key: text})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_booleans_are_words_not_truthiness() -> None:
    @dataclasses.dataclass(frozen=True)
    class Flag:
        on: bool = False

    base = Config(method_settings=Flag())
    assert compose(base, {"method.on": "yes"}).method_settings.on is True
    assert compose(base, {"method.on": "False"}).method_settings.on is False
    with pytest.raises(ConfigError, match="true or false"):
        compose(base, {"method.on": "perhaps"})


def test_every_preset_gives_every_method_a_valid_configuration() -> None:
    for preset in PRESETS:
        for name in METHODS:
            config = configure(dataset="digits", method=name, preset=preset)
            assert from_dict(json.loads(json.dumps(as_dict(config))), METHODS[name].settings) == config


def test_auto_takes_the_data_sets_preset_and_the_user_goes_before_it() -> None:
    assert configure(dataset="digits", method="joint").training.epochs == PRESETS["digits"]["*"]["training.epochs"]
    assert configure(dataset="digits", method="joint", settings={"training.epochs": "2"}).training.epochs == 2
    assert preset_settings("auto", "npz:x.npz", "joint") == {}
    assert preset_settings("auto", "npz:x.npz", "dgmw")["training.augment"] == "strong"
    with pytest.raises(ConfigError, match="did you mean 'mnist'"):
        preset_settings("mnit", "mnist", "joint")


def test_stored_configurations_are_checked_like_typed_ones() -> None:
    plain = as_dict(Config())
    for path, value, message in [
        (("training", "epochs"), "x", "not a whole number"),
        (("training", "epochs"), True, "not a whole number"),
        (("training", "new"), 1, "unknown field 'training.new'"),
        (("seed",), None, "not a whole number"),
        (("stream",), 3, "group of fields"),
    ]:
        changed = json.loads(json.dumps(plain))
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        with pytest.raises(ConfigError, match=message):
            from_dict(changed, NoSettings)
    older = json.loads(json.dumps(plain))
    del older["training"]["network"]  # written before there was a choice
    assert from_dict(older, NoSettings) == from_dict(plain, NoSettings)
    del plain["seed"]
    with pytest.raises(ConfigError, match="lacks seed"):
        from_dict(plain, NoSettings)


def test_differences_name_the_fields() -> None:
    other = compose(Config(), {"training.epochs": 9, "seed": 4})
    assert differences(Config(), Config()) == []
    assert differences(Config(), other) == ["seed: 0, not 4", "training.epochs: 3, not 9"]
