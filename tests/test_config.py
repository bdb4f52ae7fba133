"""Settings: declared once with meaning and range; texts become typed values, mistakes become one helpful line."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, fields
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.config import (
    ADDED,
    TOP,
    Config,
    Group,
    MethodSettings,
    Range,
    as_dict,
    compose,
    differences,
    from_dict,
    groups_of,
    help_of,
    setting,
    with_groups,
)
from engram.errors import ConfigError
from engram.methods.registry import METHODS, configure
from engram.values import read_value

DGMW = configure(method="dgmw", preset="default")
LONGEST_HELP = 120
LONGER = {"classifier.augment"}
"""Settings whose choices each need a word."""


@dataclass(frozen=True)
class Lamp(Group):
    """A group for tests."""

    group = "lamp"
    on: bool = setting(False, "whether it shines")
    watts: float = setting(5.0, "how brightly", above=0, at_most=100)
    socket: int | None = setting(None, "where it hangs", at_least=1)
    colour: Literal["red", "green"] = setting("red", "of its light")
    rooms: tuple[str, ...] | None = setting(None, "which it lights")


@dataclass(frozen=True)
class LampSettings(MethodSettings):
    """Of a method for tests."""

    lamp: Lamp = Lamp()


LIT = Config(method="lit", settings=LampSettings())


def lamp(config: Config) -> Lamp:
    assert isinstance(config.settings, LampSettings)
    return config.settings.lamp


# ---------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("classifier.epochs", "7", 7),
        ("classifier.learning_rate", "1e-4", 1e-4),
        ("classifier.augment", "photo", "photo"),
        ("stream.order", "mug, ball,2", ("mug", "ball", "2")),
        ("stream.order", "none", None),
        ("stream.first_task", "4", 4),
        ("stream.image_size", "64", 64),
        ("runtime.device", "cuda:1", "cuda:1"),
        ("masks.fraction", "0.5", 0.5),
        ("replay.classifier", "critic", "critic"),
    ],
)
def test_texts_are_read_as_the_fields_type(key: str, text: str, value: Any) -> None:
    group, name = key.split(".")
    found = getattr(groups_of(compose(DGMW, {key: text}))[group], name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("classifier.epochs", "many", "classifier.epochs='many' is not a whole number"),
        ("classifier.epochs", "1.5", "not a whole number"),
        ("classifier.epochs", "0", "classifier.epochs=0 is out of range: it must be 1 to 1,000,000"),
        ("classifier.learning_rate", "nan", "not a finite number"),
        ("classifier.learning_rate", "-1", "classifier.learning_rate=-1.0 is out of range: it must be above 0"),
        ("classifier.architecture", "vgg", "not one of auto, convnet, resnet18"),
        ("classifier.epoch", "3", "did you mean 'classifier.epochs'"),
        ("stream.image_size", "48", "not one of 32, 64"),
        ("stream.holdout", "1", "above 0 and below 1"),
        ("runtime.device", "tpu", "auto, cpu, cuda, cuda:N or mps"),
        ("runtime.device", "cpu:1", "auto, cpu, cuda, cuda:N or mps"),
        ("masks.fraction", "0", "masks.fraction=0.0 is out of range: it must be above 0 and at most 1"),
        ("exemplars.ratio", "1", "below 1"),
        ("seed", "-3", "seed=-3"),
        ("order_seed", "-3", "order_seed=-3"),
        ("nothing", "3", "unknown setting 'nothing': dgmw has the groups stream, classifier"),
    ],
)
def test_mistakes_name_the_value_and_the_remedy(key: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(DGMW, {key: text})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["training.epochs", "epochs", "traning.epochs", "method.epochs"])
def test_a_setting_that_is_elsewhere_is_found_by_its_last_word(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown setting '{key}' of dgmw: did you mean '(classifier|gan)\.epochs'"):
        compose(DGMW, {key: "3"})


def test_a_method_without_a_group_does_not_know_its_settings() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'masks\.fraction': joint has the groups"):
        compose(configure(method="joint"), {"masks.fraction": "0.5"})


def test_settings_that_exclude_each_other_say_so() -> None:
    with pytest.raises(ConfigError, match=r"exemplars\.budget=5 is out of range: it must be 0 where exemplars\.ratio"):
        compose(DGMW, {"exemplars.budget": 5, "exemplars.ratio": 0.5})


def test_booleans_are_words_not_truthiness() -> None:
    assert lamp(compose(LIT, {"lamp.on": "yes"})).on is True
    assert lamp(compose(LIT, {"lamp.on": "False"})).on is False
    for text in ("perhaps", "2", ""):
        with pytest.raises(ConfigError, match="true or false"):
            compose(LIT, {"lamp.on": text})


# ---------------------------------------------------------------- ranges

# not st.floats: a run in the same process may have told the processor to flush the smallest ones to 0
numbers = st.integers(-(10**6), 10**6).map(lambda n: n / 1000)


@given(watts=numbers)
def test_a_group_never_holds_a_number_out_of_its_range(watts: float) -> None:
    if 0 < watts <= 100:
        assert lamp(compose(LIT, {"lamp.watts": repr(watts)})).watts == watts
        return
    with pytest.raises(ConfigError) as caught:
        Lamp(watts=watts)
    assert str(caught.value) == f"lamp.watts={watts!r} is out of range: it must be above 0 and at most 100"


@given(low=numbers, high=numbers, value=numbers, closed=st.tuples(st.booleans(), st.booleans()))
def test_ranges_hold_what_they_say(low: float, high: float, value: float, closed: tuple[bool, bool]) -> None:
    bounds = {"at_least" if closed[0] else "above": low, "at_most" if closed[1] else "below": high}
    inside = (value >= low if closed[0] else value > low) and (value <= high if closed[1] else value < high)
    assert Range(**bounds).holds(value) == inside


def test_an_optional_number_is_checked_where_there_is_one() -> None:
    assert lamp(compose(LIT, {"lamp.socket": "none"})).socket is None
    with pytest.raises(ConfigError, match=r"lamp\.socket=0 is out of range: it must be 1 or more"):
        compose(LIT, {"lamp.socket": "0"})


@pytest.mark.parametrize("method", METHODS)
def test_every_bound_of_every_setting_is_checked(method: str) -> None:
    """Just outside of a bound a group cannot be made, and the message says the setting and its range."""
    config = configure(method=method, preset="default")
    for name, group in groups_of(config).items():
        for spec in fields(group):
            allowed: Range = spec.metadata["range"]
            outside = [bound - 1 for bound in (allowed.at_least, allowed.above) if bound is not None]
            outside += [bound + 1 for bound in (allowed.at_most, allowed.below) if bound is not None]
            outside += [bound for bound in (allowed.above, allowed.below) if bound is not None]
            for value in outside:
                with pytest.raises(ConfigError) as caught:
                    compose(config, {f"{name}.{spec.name}": value})
                assert str(caught.value).startswith(f"{name}.{spec.name}=")
                assert str(caught.value).endswith(f"it must be {allowed}")


floats = numbers | st.sampled_from([float("nan"), float("inf"), -float("inf"), -0.0, 1e300])
texts = st.text() | st.integers().map(str) | floats.map(str)
anything = texts | st.none() | st.booleans() | st.integers() | floats | st.lists(st.text())


@given(value=anything, name=st.sampled_from(sorted({f.name for f in fields(Lamp)})))
def test_any_value_becomes_one_of_the_type_or_one_line(value: Any, name: str) -> None:
    kinds = {"on": (bool,), "watts": (float,), "socket": (int, type(None)), "colour": (str,)}
    made, line = None, ""
    try:
        made = lamp(compose(LIT, {f"lamp.{name}": value}))
    except ConfigError as error:
        line = str(error)
    if made is None:
        assert line.startswith(f"lamp.{name}=")
        assert "\n" not in line
    else:
        assert isinstance(getattr(made, name), kinds.get(name, (tuple, type(None))))


@given(value=st.integers(-(10**20), 10**20))
def test_whole_numbers_survive_as_texts(value: int) -> None:
    assert read_value("n", str(value), int) == value
    assert read_value("n", value, int) == value


# ---------------------------------------------------------------- to a file and back


@pytest.mark.parametrize("method", METHODS)
def test_a_configuration_survives_the_file(method: str) -> None:
    config = configure(dataset="digits", method=method, seed=3, order_seed=4, settings={"stream.order": "3,1"})
    plain = as_dict(config)
    assert list(plain) == [*TOP, *groups_of(config)]
    assert from_dict(json.loads(json.dumps(plain)), METHODS[method].settings) == config


@pytest.mark.parametrize("method", METHODS)
def test_nothing_in_the_file_may_be_missing_or_unknown(method: str) -> None:
    settings = METHODS[method].settings
    whole = as_dict(configure(method=method))
    for name in whole:
        if name in ADDED and whole[name].keys() == ADDED[name].keys():  # a group as young as all its settings
            less = {key: value for key, value in whole.items() if key != name}
            assert as_dict(from_dict(less, settings))[name] == ADDED[name]
            continue
        with pytest.raises(ConfigError, match=f"the configuration lacks {name}$"):
            from_dict({key: value for key, value in whole.items() if key != name}, settings)
    for group in (name for name in whole if name not in TOP):
        for field in whole[group]:
            less = {**whole, group: {key: value for key, value in whole[group].items() if key != field}}
            if field in ADDED.get(group, {}):
                assert as_dict(from_dict(less, settings))[group][field] == ADDED[group][field]
                continue
            with pytest.raises(ConfigError, match=rf"the configuration lacks {group}\.{field}$"):
                from_dict(less, settings)
        with pytest.raises(ConfigError, match=rf"unknown setting .*'{group}\.stray'"):
            from_dict({**whole, group: {**whole[group], "stray": 1}}, settings)
    with pytest.raises(ConfigError, match="unknown group 'stray'"):
        from_dict({**whole, "stray": {}}, settings)


@pytest.mark.parametrize(
    ("group", "field", "value", "message"),
    [
        ("classifier", "epochs", "x", "not a whole number"),
        ("classifier", "epochs", True, "not a whole number"),
        ("classifier", "epochs", 0, "1 to 1,000,000"),
        ("stream", "order", 3, "not a list"),
        ("runtime", "device", None, "not a text"),
    ],
)
def test_stored_values_are_checked_like_typed_ones(group: str, field: str, value: Any, message: str) -> None:
    plain = as_dict(Config())
    with pytest.raises(ConfigError, match=message):
        from_dict({**plain, group: {**plain[group], field: value}}, MethodSettings())
    with pytest.raises(ConfigError, match=f"{group} must be a group of settings, not 3"):
        from_dict({**plain, group: 3}, MethodSettings())


def test_groups_can_be_taken_and_put_back() -> None:
    groups = groups_of(DGMW)
    assert list(groups)[:2] == ["stream", "classifier"]
    assert list(groups)[-1] == "runtime"
    assert with_groups(DGMW, groups) == DGMW
    assert all(group.group == name for name, group in groups.items())
    other = dataclasses.replace(DGMW.classifier, epochs=9)
    assert with_groups(DGMW, {"classifier": other}) == compose(DGMW, {"classifier.epochs": 9})


def test_differences_name_the_fields() -> None:
    other = compose(DGMW, {"classifier.epochs": 9, "seed": 4, "masks.fraction": 1})
    assert differences(DGMW, DGMW) == []
    assert differences(DGMW, other) == [
        "seed: 0, not 4",
        "classifier.epochs: 5, not 9",
        "masks.fraction: 0.2, not 1.0",
    ]


# ---------------------------------------------------------------- help


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_says_what_it_means_and_may_be(method: str) -> None:
    config = configure(method=method, preset="default")
    for name, group in groups_of(config).items():
        lines = list(help_of(group))
        assert [line.name for line in lines] == [f"{name}.{spec.name}" for spec in fields(group)]
        for line in lines:
            assert line.help, line.name
            assert "\n" not in line.help
            assert len(line.help) <= LONGEST_HELP or line.name in LONGER, line.name
            assert line.help == line.help.strip().rstrip("."), f"{line.name}: words, not a sentence"
            assert line.range, line.name
            assert compose(config, {line.name: line.default}) == config, "its default is a value that it may have"


def test_a_setting_has_one_meaning_for_all_methods_that_share_its_group() -> None:
    """Where methods declare a group of the same name, its fields are of the same type."""
    kinds: dict[str, set[str]] = {}
    for method in METHODS:
        for name, group in groups_of(configure(method=method, preset="default")).items():
            for spec in fields(group):
                kinds.setdefault(f"{name}.{spec.name}", set()).add(str(spec.type))
    assert {name: found for name, found in kinds.items() if len(found) > 1} == {}
