"""A run's complete configuration: frozen dataclasses, one per group of settings. No torch.

    Config
    ├── dataset, method, preset, seed, order_seed
    ├── stream       how classes become tasks
    ├── classifier   the network that answers, and its training
    ├── settings     the method's own groups: gan, generator, critic, masks, replay, exemplars, regularisation
    └── runtime      device, threads, how often to save

Every setting is declared once, by `setting`: default, meaning, and range. Help and checks are read off there.
`compose` builds a configuration out of defaults, a preset and `--set group.field=value` texts; `as_dict` and
`from_dict` take it to `config.json` and back. Nothing changes a configuration during a run.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, TypeVar, cast

from engram.errors import ConfigError, unknown
from engram.values import describe, read_value, shown

T = TypeVar("T")

# What no setting goes beyond: far above anything that makes sense, and below what a library can still hold. Whether
# it fits into this machine is another question (`methods.budget`).
MOST_CLASSES = 100_000
MOST_ROUNDS = 1_000_000
"""Epochs, steps, batches."""
MOST_ROWS = 1_000_000
"""Examples of a batch."""
MOST_IMAGES = 1_000_000_000
MOST_WIDE = 16_384
"""Units or channels of a network's first layer."""
MOST_FILTERS = 4_096
MOST_WEIGHT = 1e12
"""Of a term of a loss; its square is still a number in float32."""
MOST_THREADS = 1_024
"""OpenMP ends the process where it cannot start as many as it is told to."""
MOST_SECONDS = 1e9
MOST_DEVICES = 128
"""torch counts them in a byte."""
MOST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Range:
    """Which numbers a setting may be."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        """
        >>> str(Range(at_least=1)), str(Range(above=0, below=1)), str(Range(at_least=0, at_most=1))
        ('1 or more', 'above 0 and below 1', '0 to 1')
        """
        if self.at_least is not None and self.at_most is not None:
            return f"{_plain(self.at_least)} to {_plain(self.at_most)}"
        low = f"{_plain(self.at_least)} or more" if self.at_least is not None else ""
        low = f"above {_plain(self.above)}" if self.above is not None else low
        high = f"below {_plain(self.below)}" if self.below is not None else ""
        high = f"at most {_plain(self.at_most)}" if self.at_most is not None else high
        return " and ".join(part for part in (low, high) if part)


def _plain(bound: float) -> str:
    """
    >>> _plain(0.5), _plain(1_000_000), _plain(1e12)
    ('0.5', '1,000,000', '1e+12')
    """
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def setting(
    default: T,
    help: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> T:
    """A field of a group: its default, what it means in one line, and which numbers it may be."""
    allowed = Range(at_least, above, at_most, below)
    return field(default=default, metadata={"help": help, "range": allowed})


def require(ok: bool, name: str, value: object, wanted: str) -> None:
    """Raise an error that names the setting, its value and what it may be."""
    if not ok:
        raise ConfigError(f"{name}={shown(value)} is out of range: it must be {wanted}")


@dataclass(frozen=True)
class Group:
    """Settings that belong together; `--set GROUP.FIELD=VALUE` sets one."""

    group: ClassVar[str]

    def __post_init__(self) -> None:
        for spec in fields(self):
            value, allowed = getattr(self, spec.name), spec.metadata["range"]
            if isinstance(value, int | float):
                require(allowed.holds(value), f"{self.group}.{spec.name}", value, str(allowed))


@dataclass(frozen=True)
class StreamSettings(Group):
    """How the classes of a data set become a stream of tasks, and how large its images are."""

    group = "stream"
    classes_per_task: int = setting(1, "how many new classes each task brings", at_least=1, at_most=MOST_CLASSES)
    first_task: int | None = setting(
        None, "how many the first task brings, where that differs", at_least=1, at_most=MOST_CLASSES
    )
    order: tuple[str, ...] | None = setting(
        None, "classes in order of appearance, by name or number; may leave some out; goes before order_seed"
    )
    holdout: float = setting(
        0.2, "share held out for testing where data has no test part, or in development", above=0, below=1
    )
    development: bool = setting(
        False, "choose settings without the test images: training images are held out and tested on in their place"
    )
    image_size: Literal[32, 64] = setting(32, "side in pixels to which images are scaled")
    validation: float = setting(
        0.0,
        "share of a task's images kept out of the training, to calibrate answers and to measure privacy; 0: none",
        at_least=0,
        below=1,
    )
    tuned_on: str | None = setting(
        None, "by which images these settings were chosen, for the records; none: what the preset says of itself"
    )


@dataclass(frozen=True)
class ClassifierSettings(Group):
    """The network that answers (the paper's solver), and how it is trained."""

    group = "classifier"
    architecture: Literal["auto", "convnet", "resnet18", "linear", "mlp"] = setting(
        "auto",
        "the paper's convnet for digits, or ResNet-18; of vectors linear, or one hidden layer (mlp); auto: by the data",
    )
    width: int = setting(
        32,
        "channels of its first layer; ResNet-18 usually has 64; mlp has 16 times as many units",
        at_least=1,
        at_most=MOST_WIDE,
    )
    epochs: int = setting(3, "passes over a task's examples", at_least=1, at_most=MOST_ROUNDS)
    batch_size: int = setting(128, "examples per step", at_least=2, at_most=MOST_ROWS)
    learning_rate: float = setting(3e-3, "the peak of the one-cycle schedule", above=0, below=10)
    label_smoothing: float = setting(0.0, "share of the target spread over all classes", at_least=0, below=1)
    augment: Literal["none", "affine", "photo", "strong", "colour", "texture"] = setting(
        "none",
        "random changes to training images: affine; photo mirrors too; strong adds tone and noise; colour adds blur, "
        "grey and inversion to strong; texture adds blur and mirroring to strong; strong and more add noise to vectors",
    )


@dataclass(frozen=True)
class RuntimeSettings(Group):
    """Where and how a run computes. Device and threads may change the last bits of a result."""

    group = "runtime"
    device: str = setting("auto", "auto (CUDA, then MPS, then CPU), cpu, cuda, cuda:1 or mps")
    threads: int = setting(
        0,
        "CPU threads; 0: OMP_NUM_THREADS where set, else 1 for GANs of small networks, and one per core for others",
        at_least=0,
        at_most=MOST_THREADS,
    )
    precision: Literal["float32", "bfloat16"] = setting(
        "float32", "of training's forward passes; all that is kept is float32; bfloat16 is for GPUs"
    )
    checkpoint_seconds: float = setting(
        10.0, "save after an epoch when so much time has passed", at_least=0, at_most=MOST_SECONDS
    )
    wait_seconds: float = setting(
        60.0, "how long processes of one torchrun wait for each other", above=0, at_most=MOST_SECONDS
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        kind, _, number = self.device.partition(":")
        counts = number.isascii() and number.isdecimal() and len(number) <= 3 and int(number) < MOST_DEVICES
        fits = kind in ("auto", "cpu", "cuda", "mps") and (kind == self.device or (kind == "cuda" and counts))
        require(fits, "runtime.device", self.device, "auto, cpu, cuda, cuda:N or mps")


@dataclass(frozen=True)
class MethodSettings:
    """A method's own groups, one attribute each; this one has none."""

    @property
    def stores_images(self) -> bool:
        """Whether the settings relax the strict protocol by storing real images."""
        return False

    @property
    def batch_sizes(self) -> dict[str, int]:
        """By name, the batches that several processes share out."""
        return {}


@dataclass(frozen=True)
class Config:
    """Everything that decides what a run computes. `configure` makes one out of names and settings.

    >>> from engram import Config
    >>> config = Config(seed=1)
    >>> config.method, config.stream.classes_per_task, config.classifier.epochs
    ('dgmw', 1, 3)
    """

    dataset: str = "digits"
    method: str = "dgmw"
    preset: str = "auto"
    seed: int = 0
    """Seeds the training: weights, batches, augmentation."""
    order_seed: int | None = None
    """Seeds the order of the classes; without it they come in their own order."""
    stream: StreamSettings = StreamSettings()
    classifier: ClassifierSettings = ClassifierSettings()
    settings: MethodSettings = MethodSettings()
    runtime: RuntimeSettings = RuntimeSettings()

    def __post_init__(self) -> None:
        for name in ("seed", "order_seed"):
            seed = getattr(self, name)
            require(seed is None or 0 <= seed <= MOST_SEED, name, seed, f"0 to {MOST_SEED:,}")


TOP = ("dataset", "method", "preset", "seed", "order_seed")
"""Settings that belong to no group."""


def groups_of(config: Config) -> dict[str, Group]:
    """All groups by name, in the order in which people are told them."""
    own = {spec.name: cast(Group, getattr(config.settings, spec.name)) for spec in fields(config.settings)}
    return {"stream": config.stream, "classifier": config.classifier, **own, "runtime": config.runtime}


def with_groups(config: Config, new: Mapping[str, Group]) -> Config:
    """The configuration with some groups replaced."""
    shared = {name: group for name, group in new.items() if name in ("stream", "classifier", "runtime")}
    own = {name: group for name, group in new.items() if name not in shared}
    settings = replace(config.settings, **own) if own else config.settings
    return replace(config, settings=settings, **shared)  # type: ignore[arg-type]


@dataclass(frozen=True)
class SettingHelp:
    """One line of help."""

    name: str
    default: Any
    range: str
    help: str


def help_of(group: Group) -> Iterator[SettingHelp]:
    """What each setting of a group means, may be, and is."""
    hints = typing.get_type_hints(type(group))
    for spec in fields(group):
        hint, allowed = hints[spec.name], str(spec.metadata["range"])
        if allowed and type(None) in typing.get_args(hint):
            allowed += ", or none"
        allowed = allowed or describe(hint)
        yield SettingHelp(f"{group.group}.{spec.name}", getattr(group, spec.name), allowed, spec.metadata["help"])


def compose(base: Config, settings: Mapping[str, Any]) -> Config:
    """`base` with `group.field` (or plain top-level `field`) values replaced. Texts are read as the field's type."""
    if not isinstance(settings, Mapping) or not all(isinstance(key, str) for key in settings):
        raise ConfigError(
            f"settings cannot be {shown(settings)}; give a dictionary, such as {{'classifier.epochs': 3}}"
        )
    groups, new, top = groups_of(base), dict[str, dict[str, Any]](), dict[str, Any]()
    for key, value in settings.items():
        group, dot, name = key.partition(".")
        if not dot and key in TOP:
            top[key] = read_value(key, value, typing.get_type_hints(Config)[key])
            continue
        if not dot or group not in groups or name not in {spec.name for spec in fields(groups[group])}:
            raise _unknown_field(base, key)
        hints = typing.get_type_hints(type(groups[group]))
        new.setdefault(group, {})[name] = read_value(key, value, hints[name])
    changed = {group: replace(groups[group], **values) for group, values in new.items()}
    return replace(with_groups(base, changed), **top)


def _unknown_field(base: Config, key: str) -> ConfigError:
    known = [f"{name}.{spec.name}" for name, group in groups_of(base).items() for spec in fields(group)]
    if near := [name for name in known if name.endswith(f".{key.rpartition('.')[2]}")]:
        return ConfigError(f"unknown setting {key!r} of {base.method}: did you mean {' or '.join(map(repr, near))}?")
    group = key.partition(".")[0]
    own = [name for name in known if name.startswith(f"{group}.")]
    if own:
        return unknown(f"setting of {base.method}", key, own)
    groups = ", ".join(groups_of(base))
    return ConfigError(
        f"unknown setting {key!r}: {base.method} has the groups {groups}; see `engram list {base.method}`"
    )


def as_dict(config: Config) -> dict[str, Any]:
    """The configuration as plain values, the shape of `config.json`: top-level fields, then groups."""
    plain = {name: getattr(config, name) for name in TOP}
    return plain | {name: dataclasses.asdict(group) for name, group in groups_of(config).items()}


ADDED: dict[str, dict[str, Any]] = {
    "stream": {"validation": 0.0, "development": False, "tuned_on": None},
    "masks": {
        "alpha": "entries",
        "growth": "refill",
        "choice": "learned",
        "counts_of": "none",
        "candidates": 0.0,
        "candidates_by": "relevance",
    },
    "replay": {"critic_batch": "shared", "by": "even"},
    "statistics": {"kept": False, "filters": 64},
}
"""By group, settings that configurations of the same format may lack, with the value that stood for them before.

A group that is as young as all its settings may be missing as a whole.
"""


def from_dict(plain: Mapping[str, Any], settings: MethodSettings) -> Config:
    """Back from `config.json`; every value is checked as if a user had typed it, and none may be missing.

    `settings`: the method's own, whose groups are to be found there.
    """
    base = Config(settings=settings)
    groups = groups_of(base)
    if stray := [name for name in plain if name not in TOP and name not in groups]:
        raise unknown("group", stray[0], [*TOP, *groups])
    young = {
        name for name, group in groups.items() if {spec.name for spec in fields(group)} <= ADDED.get(name, {}).keys()
    }
    if missing := [name for name in (*TOP, *groups) if name not in plain and name not in young]:
        raise ConfigError(f"the configuration lacks {missing[0]}")
    values = {name: plain[name] for name in TOP}
    for name, group in groups.items():
        found = plain.get(name, {})
        if not isinstance(found, Mapping):
            raise ConfigError(f"{name} must be a group of settings, not {shown(found)}")
        names = [spec.name for spec in fields(group)]
        own = {key: value for key, value in ADDED.get(name, {}).items() if key in names} | dict(found)
        if missing := [key for key in names if key not in own]:
            raise ConfigError(f"the configuration lacks {name}.{missing[0]}")
        values |= {f"{name}.{field_name}": value for field_name, value in own.items()}
    return compose(base, values)


def changed_settings(config: Config, base: Config) -> dict[str, Any]:
    """`group.field` -> value, where a configuration differs from another of the same method.

    >>> changed_settings(compose(Config(), {"classifier.epochs": 4}), Config())
    {'classifier.epochs': 4}
    """
    groups = groups_of(base)
    return {
        f"{name}.{field_name}": value
        for name, group in groups_of(config).items()
        for field_name, value in vars(group).items()
        if value != getattr(groups[name], field_name)
    }


def differences(a: Config, b: Config) -> list[str]:
    """Settings in which two configurations differ, as `setting: a's value, not b's`."""

    def flat(config: Config) -> dict[str, Any]:
        groups = {f"{g}.{k}": v for g, group in groups_of(config).items() for k, v in vars(group).items()}
        return {name: getattr(config, name) for name in TOP} | groups

    left, right = flat(a), flat(b)
    return [
        f"{key}: {left.get(key)!r}, not {right.get(key)!r}" for key in left | right if left.get(key) != right.get(key)
    ]
