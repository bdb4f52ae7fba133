"""A run's complete configuration: frozen dataclasses, one per concern. No torch.

    Config
    ├── dataset, method, preset, seed, order_seed
    ├── stream     how classes become tasks
    ├── training   epochs, batches, learning rate
    ├── method     the method's own settings (the attribute is `method_settings`)
    └── runtime    device, threads, how often to save

`compose` builds one out of defaults, a preset and `--set group.field=value` texts; `as_dict` and `from_dict`
take it to `config.json` and back. Nothing changes a configuration during a run.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

from engram.errors import ConfigError, unknown

T = TypeVar("T")


def demand(ok: bool, name: str, value: object, wanted: str) -> None:
    """Raise an error that names the field, its value and what it may be."""
    if not ok:
        raise ConfigError(f"{name}={value!r} is out of range: it must be {wanted}")


@dataclass(frozen=True)
class StreamConfig:
    """How the classes of a data set become a stream of tasks."""

    classes_per_task: int = 1
    """How many new classes each task brings."""
    first_task: int | None = None
    """How many the first task brings; `classes_per_task` unless given."""
    order: tuple[int, ...] | None = None
    """Class numbers in order of appearance (`3,1,2`); may leave classes out. Goes before `order_seed`."""
    holdout: float = 0.2
    """Share of the images held out for testing, where a data set of your own brings no test part."""

    def __post_init__(self) -> None:
        demand(self.classes_per_task >= 1, "stream.classes_per_task", self.classes_per_task, "1 or more")
        demand(self.first_task is None or self.first_task >= 1, "stream.first_task", self.first_task, "1 or more")
        demand(0 < self.holdout < 1, "stream.holdout", self.holdout, "between 0 and 1")


@dataclass(frozen=True)
class TrainingConfig:
    """What every method that trains a network by gradient descent needs."""

    network: Literal["digits", "resnet18"] = "digits"
    """The solver's trunk: the paper's for digits, or ResNet-18 for 32x32 images."""
    width: int = 32
    """Its channels at the start; ResNet-18 usually has 64."""
    epochs: int = 3
    """Passes over the task's images, per task."""
    batch_size: int = 128
    """Images per step."""
    learning_rate: float = 3e-3
    """The peak of the one-cycle schedule, or the constant rate."""
    schedule: Literal["one-cycle", "constant"] = "one-cycle"
    """Learning rate within a task: up and down again (Smith & Topin 2019), or constant."""
    weight_decay: float = 0.0
    """Decoupled weight decay (AdamW)."""
    label_smoothing: float = 0.0
    """Share of the target that is spread over all classes."""
    augment: Literal["none", "affine", "photo", "strong", "colour", "texture"] = "none"
    """Random changes to every training batch: small affine maps; `photo`: mirroring as well; `strong`: wider maps,
    contrast, brightness and noise, so that a class cannot be told by the tone and texture of its images; `colour`:
    blur, greying and light swapped with dark as well, where shape tells the class and colour does not; `texture`:
    `strong` with blur and mirroring, for photographs."""

    def __post_init__(self) -> None:
        demand(self.width >= 1, "training.width", self.width, "1 or more")
        demand(self.epochs >= 1, "training.epochs", self.epochs, "1 or more")
        demand(self.batch_size >= 2, "training.batch_size", self.batch_size, "2 or more")
        demand(0 < self.learning_rate < 10, "training.learning_rate", self.learning_rate, "above 0 and below 10")
        demand(0 <= self.weight_decay < 1, "training.weight_decay", self.weight_decay, "0 or more and below 1")
        demand(0 <= self.label_smoothing < 1, "training.label_smoothing", self.label_smoothing, "0 up to 1")


@dataclass(frozen=True)
class RuntimeConfig:
    """Where and how a run computes. The device and the number of threads may change the last bits of a result."""

    device: str = "auto"
    """`auto` (CUDA, then MPS, then CPU), `cpu`, `cuda`, `cuda:1`, `mps`."""
    threads: int = 0
    """CPU threads; 0 takes one per core that this process may use, or its share of them beside others of its run."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the forward passes of training; all else is float32, so old images stay the same to the bit. For GPUs: CPUs
    are slower with bfloat16."""
    checkpoint_seconds: float = 10.0
    """Save at the end of an epoch when this much time has passed since the last save; always after a task."""
    wait_seconds: float = 60.0
    """How long the processes of one run (torchrun) wait for each other before they give up."""

    def __post_init__(self) -> None:
        kind, _, number = self.device.partition(":")
        fits = kind in ("auto", "cpu", "cuda", "mps") and (not number or (kind == "cuda" and number.isdigit()))
        demand(fits, "runtime.device", self.device, "auto, cpu, cuda, cuda:N or mps")
        demand(self.threads >= 0, "runtime.threads", self.threads, "0 (all cores) or more")
        demand(self.checkpoint_seconds >= 0, "runtime.checkpoint_seconds", self.checkpoint_seconds, "0 or more")
        demand(self.wait_seconds > 0, "runtime.wait_seconds", self.wait_seconds, "above 0")


@dataclass(frozen=True)
class NoSettings:
    """For a method without settings of its own."""


@dataclass(frozen=True)
class Config:
    """Everything that decides what a run computes."""

    dataset: str = "digits"
    method: str = "joint"
    preset: str = "auto"
    seed: int = 0
    """Seeds the training: weights, batches, augmentation."""
    order_seed: int | None = None
    """Seeds the order of the classes; without it they come in their own order."""
    stream: StreamConfig = field(default_factory=StreamConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    method_settings: Any = field(default_factory=NoSettings)
    """The method's own dataclass; the group is called `method` on the command line."""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)

    def __post_init__(self) -> None:
        demand(self.seed >= 0, "seed", self.seed, "0 or more")
        demand(self.order_seed is None or self.order_seed >= 0, "order_seed", self.order_seed, "0 or more")


GROUPS = {"stream": "stream", "training": "training", "method": "method_settings", "runtime": "runtime"}
"""Group name on the command line -> attribute of Config."""


def compose(base: Config, settings: Mapping[str, Any]) -> Config:
    """`base` with `group.field` (or plain top-level `field`) values replaced. Texts are read as the field's type."""
    grouped: dict[str, dict[str, Any]] = {}
    top: dict[str, Any] = {}
    for key, value in settings.items():
        group, dot, name = key.partition(".")
        if not dot:
            if key not in _plain_fields():
                raise _unknown_field(base, key)
            top[key] = _read(key, value, _hints(Config)[key])
            continue
        if group not in GROUPS:
            raise unknown("group", group, GROUPS)
        target = getattr(base, GROUPS[group])
        hints = _hints(type(target))
        if name not in hints:
            raise _unknown_field(base, key)
        grouped.setdefault(GROUPS[group], {})[name] = _read(key, value, hints[name])
    parts = {attribute: replace(getattr(base, attribute), **new) for attribute, new in grouped.items()}
    return replace(base, **top, **parts)


def _plain_fields() -> list[str]:
    return [f.name for f in fields(Config) if f.name not in GROUPS.values()]


def _unknown_field(base: Config, key: str) -> ConfigError:
    known = [
        f"{group}.{name}" for group, attribute in GROUPS.items() for name in _hints(type(getattr(base, attribute)))
    ]
    for name in known:
        if name.endswith(f".{key}"):  # the group was left out
            return ConfigError(f"unknown field {key!r}: did you mean {name!r}?")
    own = [name for name in known if name.startswith("method.")]
    if key.startswith("method.") and not own:
        return ConfigError(f"unknown field {key!r}: {base.method} has no settings of its own")
    if key.startswith("method."):
        return unknown(f"field of {base.method}", key, own)
    return unknown("field", key, [*known, *_plain_fields()])


def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(key: str, value: Any, hint: Any) -> Any:
    """Turn a text, or a value out of JSON, into the type of its field, or say what it should have been."""
    try:
        return _convert(value, hint)
    except (ValueError, TypeError, OverflowError):
        raise ConfigError(f"{key}={value!r} is not {_describe(hint)}") from None


def _convert(value: Any, hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None or value in ("none", "None", ""):
            return None
        return _convert(value, next(a for a in args if a is not type(None)))
    if origin is Literal:
        if value not in args:
            raise ValueError(value)
        return value
    if origin is tuple:
        items = [v for v in value.split(",") if v.strip()] if isinstance(value, str) else list(value)
        return tuple(_convert(item, args[0]) for item in items)
    if hint is bool:
        words = {
            "true": True,
            "yes": True,
            "on": True,
            "1": True,
            "false": False,
            "no": False,
            "off": False,
            "0": False,
        }
        return value if isinstance(value, bool) else words[_word(value, words)]
    if hint in (int, float):
        return _number(value, hint)
    if hint is str and isinstance(value, str):
        return value
    raise TypeError(value)


def _word(value: Any, words: Mapping[str, bool]) -> str:
    text = str(value).strip().lower()
    if text not in words:
        raise ValueError(value)
    return text


def _number(value: Any, kind: Callable[[Any], Any]) -> Any:
    if isinstance(value, bool) or (kind is int and isinstance(value, float) and not value.is_integer()):
        raise ValueError(value)
    number = kind(value)
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError(value)
    return number


def _describe(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _describe(next(a for a in args if a is not type(None))) + ", or none"
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin is tuple:
        return "a list of numbers such as 3,1,2"
    names = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}
    return names[hint]


def as_dict(config: Config) -> dict[str, Any]:
    """The configuration as plain values, the shape of `config.json`."""
    plain = dataclasses.asdict(config)
    plain["method_settings"] = dataclasses.asdict(config.method_settings)
    return plain


def from_dict(plain: Mapping[str, Any], settings_type: type) -> Config:
    """Back from `config.json`; every value is checked as if a user had typed it."""
    return typing.cast(Config, _build(Config, plain, settings_type, ""))


def _build(kind: type, plain: Any, settings_type: type, prefix: str) -> Any:
    if not isinstance(plain, Mapping):
        raise ConfigError(f"{prefix or 'the configuration'} must be a group of fields, not {plain!r}")
    hints = _hints(kind)
    for name in plain:
        if name not in hints:
            raise unknown("field", f"{prefix}{name}", [f"{prefix}{known}" for known in hints])
    # a setting that came later stands at its default, which is what was done before there was a choice
    if not prefix and (missing := [name for name in hints if name not in plain]):
        raise ConfigError(f"the configuration lacks {prefix}{missing[0]}; was it written by another version?")
    values = {}
    for name, value in plain.items():
        hint = settings_type if name == "method_settings" else hints[name]
        values[name] = (
            _build(hint, value, settings_type, f"{name}.") if is_dataclass(hint) else _read(prefix + name, value, hint)
        )
    return kind(**values)


def differences(a: Config, b: Config) -> list[str]:
    """Fields in which two configurations differ, as `field: a's value, not b's`."""

    def flat(config: Config) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, value in as_dict(config).items():
            group = next((g for g, attribute in GROUPS.items() if attribute == name), None)
            out |= {f"{group}.{k}": v for k, v in value.items()} if group else {name: value}
        return out

    left, right = flat(a), flat(b)
    return [
        f"{key}: {left.get(key)!r}, not {right.get(key)!r}" for key in left | right if left.get(key) != right.get(key)
    ]
