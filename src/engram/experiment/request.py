"""What a user asks a run for, and the configuration that it comes to: of a new run, or of one that goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engram.config import Config, compose, differences
from engram.errors import ConfigError, RunError
from engram.experiment.folder import origin_of
from engram.methods.registry import configure
from engram.opening import opening, read_regular
from engram.presets import LARGEST, VECTORS, read_preset


@dataclass(frozen=True)
class Request:
    """What a user asked for. None: not said, so that a resumed run keeps what it has."""

    dataset: str | None = None
    method: str | None = None
    preset: str | None = None
    seed: int | None = None
    order_seed: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """`group.field` -> value"""
    file: Path | None = None
    """Settings to start from: a preset of the user's own (TOML), or another run's `config.json`."""

    @property
    def said(self) -> dict[str, Any]:
        """The top-level fields that were named."""
        own = ("settings", "file")
        return {name: value for name, value in vars(self).items() if value is not None and name not in own}

    def config(self) -> Config:
        """The configuration of a new run."""
        if self.file is None:
            return configure(settings=self.settings, **self.said)
        if self.file.suffix == ".json":
            with opening(self.file, "give another file"):
                read_regular(self.file, LARGEST)
                stored = origin_of(self.file).config
            if self.method not in (None, stored.method):
                raise ConfigError(f"{self.file} configures {stored.method}, not {self.method}; leave --method out")
            if self.preset is not None:
                raise ConfigError(f"{self.file} is complete, no preset adds to it; leave --preset out")
            return compose(stored, {**self.said, **self.settings})
        method = self.method or Config().method
        own = read_preset(self.file, str(self.file))
        settings = {"stream.tuned_on": own.tuned_on or None, **own.settings(method), **self.settings}
        return configure(**{**self.said, "method": method}, settings=settings)

    def over(self, stored: Config, folder: Path) -> Config:
        """The configuration to go on with: the stored one. Only where and how it computes may be set anew, but for the
        precision, which changes more than the last bits."""
        said = dict(self.said)
        if said.get("preset") == "auto" and stored.preset == VECTORS:
            del said["preset"]  # that is what it stood for
        if said.get("method", stored.method) != stored.method:
            wanted = replace(stored, method=said["method"])
        else:
            wanted = compose(stored, {**said, **self.settings})
        allowed = replace(wanted.runtime, precision=stored.runtime.precision)
        if other := differences(replace(stored, runtime=allowed), wanted):
            raise RunError(
                f"{folder} was started with another configuration ({'; '.join(other)}); "
                "leave these out to go on with it, or choose another --out"
            )
        return wanted


def default_folder(config: Config) -> Path:
    """`runs/mnist-joint-seed0`, with the order seed where there is one."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(config.dataset).name)
    order = "" if config.order_seed is None else f"-order{config.order_seed}"
    return Path("runs") / f"{name}-{config.method}-seed{config.seed}{order}"
