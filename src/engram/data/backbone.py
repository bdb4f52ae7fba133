"""A frozen network in front of everything: images -> vectors, by an ONNX file that others trained.

    image ──> decode, scale, normalise ──> ONNX Runtime ──> (D,) float32
              └──────── what was done: a Recipe ────────┘

A `Backbone` is a recipe and its file, open. The file itself is stored in no model and no data.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engram.data.datasets import as_stored, resize
from engram.data.raw import ImageFiles, Pixels, Raw, RawSet, broken, one_line
from engram.data.recipe import Recipe, require_same
from engram.errors import ConfigError, DataError, missing_extra

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of the red, green and blue that most networks for photographs were trained with."""
GROUP = 8
"""Images that a network sees at a time. One number for everybody: in another batch last bits may differ."""
BATCH = 64
"""Images that are read before they are shown."""
TYPES = {"tensor(float)": "float32", "tensor(uint8)": "uint8"}
NOWHERE = os.devnull + "/weights"
"""Where a file's weights are looked for that lie in another file, whose bits the digest would not cover."""

Values = Sequence[float] | float | None


class Backbone:
    """An ONNX file as what turns images into vectors. Needs the extra `onnx`.

    path: the file; its input is (N, C, H, W) or (N, H, W, C), float32 or uint8, with 1 or 3 channels. size: height and
    width, where the file leaves them open. mean, std: of x / 255, one number or one a channel; by default ImageNet's
    for 3 channels, and 0 and 1 else; None for 0 and 1. output: by name, else the file's first; (N, D), or maps of
    (N, D, h, w), whose mean is taken.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from onnx import TensorProto, helper
    >>> from engram import Backbone
    >>> images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 4, 4])
    >>> colour = helper.make_tensor_value_info("colour", TensorProto.FLOAT, ["batch", 3, 1, 1])
    >>> mean = helper.make_node("GlobalAveragePool", ["images"], ["colour"])
    >>> graph = helper.make_graph([mean], "colours", [images], [colour])
    >>> model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = Path(folder, "colours.onnx").write_bytes(model.SerializeToString())
    ...     backbone = Backbone(Path(folder, "colours.onnx"), mean=None)
    >>> backbone
    Backbone('colours.onnx', 4 x 4 pixels, RGB, (x / 255 - (0, 0, 0)) / (1, 1, 1), colour: 3 numbers)
    >>> backbone.features(np.full((1, 3, 4, 4), 51, np.uint8)).tolist()
    [[0.20000000298023224, 0.20000000298023224, 0.20000000298023224]]
    """

    def __init__(
        self,
        path: str | Path,
        *,
        size: int | tuple[int, int] | None = None,
        mean: Values | str = "auto",
        std: Values | str = "auto",
        output: str | None = None,
    ) -> None:
        path = Path(os.path.expanduser(path))
        content = _content(path)
        self._session = _session(content, path)
        entry = _input(self._session, path)
        self._batch = entry.shape[0] if isinstance(entry.shape[0], int) else None
        self._last = _channels_last(entry, path)
        channels, *sides = (entry.shape[place] for place in ((3, 1, 2) if self._last else (1, 2, 3)))
        values = TYPES[entry.type]
        self._input_name = entry.name
        self.recipe = Recipe(
            one_line(path.name),
            hashlib.sha256(content).hexdigest(),
            (channels, *_size(sides, size, path)),
            values,
            *_normalisation(mean, std, channels, values),
            _output(self._session, output, path),
        )
        """What makes its vectors, without the file."""
        self.width = self._probed(path)
        """How many numbers a vector has."""

    @classmethod
    def like(cls, path: str | Path, recipe: Recipe) -> Backbone:
        """The file at `path`, if it is the recipe's, with the recipe's preparation."""
        path = Path(os.path.expanduser(path))
        found = hashlib.sha256(_content(path)).hexdigest()
        if found != recipe.sha256:
            what = f"is not the {recipe.name} by which the model's vectors were made"
            hashes = f"SHA-256 {found[:12]}…, not {recipe.sha256[:12]}…"
            raise broken(path, f"{what} ({hashes})", "give that one, or make a new model")
        own = {} if recipe.values == "uint8" else {"mean": recipe.mean, "std": recipe.std}
        made = cls(path, size=recipe.shape[1:], output=recipe.output, **own)
        require_same(recipe, made.recipe, str(path))
        return made

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images that `features` takes."""
        return self.recipe.shape

    def __repr__(self) -> str:
        recipe = self.recipe
        return f"Backbone({recipe.name!r}, {recipe.preparation}, {recipe.output}: {self.width} numbers)"

    def features(self, images: Pixels | Tensor) -> Tensor:
        """(B, C, H, W) uint8 of its shape -> (B, D) float32, each the same whatever the others are."""
        pixels = images.numpy() if isinstance(images, Tensor) else images
        assert pixels.dtype == np.uint8, pixels.dtype
        assert pixels.shape[1:] == self.shape, (pixels.shape, self.shape)
        found = [self._shown(pixels[start : start + self._group]) for start in range(0, len(pixels), self._group)]
        return torch.from_numpy(np.concatenate(found)) if found else torch.empty(0, self.width)

    # ---------------------------------------------------------------- one group

    def _shown(self, pixels: Pixels) -> npt.NDArray[np.float32]:
        """At most a group, filled up to one -> (n, D)."""
        group = np.zeros((self._group, *self.shape), np.uint8)
        group[: len(pixels)] = pixels
        return self._run(group)[: len(pixels)]

    def _run(self, group: Pixels) -> npt.NDArray[np.float32]:
        x: npt.NDArray[Any] = group
        if self.recipe.values == "float32":
            mean, std = (np.array(some, np.float32).reshape(-1, 1, 1) for some in (self.recipe.mean, self.recipe.std))
            x = (group.astype(np.float32) / np.float32(255) - mean) / std
        if self._last:
            x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        (found,) = self._session.run([self.recipe.output], {self._input_name: x})
        if found.ndim == 4:
            found = found.astype(np.float32).mean((1, 2) if self._last else (2, 3))
        return np.ascontiguousarray(found, np.float32)

    def _probed(self, path: Path) -> int:
        """Numbers a vector. A network whose answer for an image depends on the others sees images one by one."""
        self._group = self._batch or GROUP
        images = np.random.default_rng(0).integers(0, 256, (self._group, *self.shape), np.uint8)
        try:
            (raw,) = self._session.run([self.recipe.output], {self._input_name: self._blank(path)})
            found = self._checked(raw, path)
            once = self._run(images)
            moved = np.roll(images, 1, 0)
            moved[0] = 255
            apart = not np.array_equal(self._run(moved)[1:], once[:-1], equal_nan=True)
            if not np.array_equal(self._run(images), once, equal_nan=True):
                raise broken(path, "answers otherwise each time", "export it in evaluation mode")
        except DataError:
            raise
        except Exception as error:  # whatever the runtime raises: shapes that do not fit, operators that it lacks
            size = "x".join(map(str, self.shape[1:]))
            what = f"cannot answer for images of {size} ({_first_line(error)})"
            raise broken(path, what, "try another --size, or export it anew") from error
        if apart:
            if self._batch not in (None, 1):
                what = f"sees {self._batch} images at a time, and its answer for one depends on the others"
                raise broken(path, what, "export it for batches of 1, or of any size")
            self._group = 1
        return found

    def _blank(self, path: Path) -> npt.NDArray[Any]:
        shape = self.shape[1:] + self.shape[:1] if self._last else self.shape
        return np.zeros((self._group, *shape), self.recipe.values)

    def _checked(self, raw: Any, path: Path) -> int:
        """The rank of what the output really is: (N, D), or maps."""
        name, shape = self.recipe.output, tuple(raw.shape)
        if raw.ndim not in (2, 4) or raw.dtype.kind != "f" or shape[0] != self._group or 0 in shape:
            others = [one.name for one in self._session.get_outputs() if one.name != name]
            other = f"name another with --output: {', '.join(others)}" if others else "export it with such an output"
            what = f"its output {name} is {raw.dtype} {shape}, not float32 (N, D) or (N, D, h, w)"
            raise broken(path, what, other)
        return int(shape[3 if raw.ndim == 4 and self._last else 1])


def open_backbone(given: Backbone | str | Path | None, recipe: Recipe | None) -> Backbone | None:
    """What somebody gave as the backbone; where a model has learned by one, that one, prepared as it was then."""
    if given is None:
        return None
    if not isinstance(given, Backbone):
        return Backbone(given) if recipe is None else Backbone.like(given, recipe)
    if recipe is not None and recipe.digest != given.recipe.digest:
        what = f"is not the {recipe} by which the model's vectors were made: {recipe.preparation}, {recipe.output}"
        raise broken(repr(given), what, "give that file, and leave the preparation out")
    return given


# ---------------------------------------------------------------- a whole set


def embed(
    raw: RawSet,
    backbone: Backbone,
    origin: str,
    *,
    batch: int = BATCH,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> RawSet:
    """The same set as vectors: photographs are scaled from their own size to the backbone's, in one step."""
    parts = [part for part in (raw.train, raw.test) if part is not None]
    total = sum(len(part.labels) for part in parts)
    done = 0

    def vectors(part: Raw) -> Raw:
        nonlocal done
        out = np.empty((len(part.labels), backbone.width), np.float32)
        place = 0
        for images in _batches(part, backbone, batch, origin):
            found = backbone.features(images).numpy()
            if wrong := np.flatnonzero(~np.isfinite(found).all(1)).tolist():
                which = part.images.paths[place + wrong[0]] if isinstance(part.images, ImageFiles) else None
                where = which or f"{origin}, image {place + wrong[0]}"
                what = f"{backbone.recipe.name} finds NaN or infinite numbers in it"
                raise broken(where, what, "leave it out, or check --mean and --std")
            out[place : place + len(found)] = found
            place, done = place + len(found), done + len(found)
            progress(done, total)
        return replace(part, images=out)

    test = None if raw.test is None else vectors(raw.test)
    return replace(raw, train=vectors(raw.train), test=test, backbone=backbone.recipe)


def _batches(part: Raw, backbone: Backbone, batch: int, origin: str) -> Iterator[Tensor]:
    """(n, C, h, w) uint8 of the backbone's shape, in order."""
    channels, height, width = backbone.shape
    if part.channels == 3 and channels == 1:
        raise broken(origin, f"holds images in colour, {backbone.recipe.name} takes grey ones", "convert them first")
    if isinstance(part.images, ImageFiles):
        part = replace(part, images=replace(part.images, channels=channels))
    waiting: list[Tensor] = []
    for block, _ in part.blocks():
        for start in range(0, len(block), batch):
            some = resize(as_stored(block[start : start + batch]), (height, width))
            waiting.append(some if some.shape[1] == channels else some.expand(-1, channels, -1, -1))
            if sum(map(len, waiting)) >= batch:
                yield torch.cat(waiting)
                waiting = []
    if waiting:
        yield torch.cat(waiting)


# ---------------------------------------------------------------- the file


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(one_line(f"{path}: {error.strerror or error}; give the backbone's ONNX file")) from None


def _session(content: bytes, path: Path) -> Any:
    try:
        onnxruntime = importlib.import_module("onnxruntime")
    except ImportError:
        raise missing_extra("a backbone", "onnx") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised as well
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", NOWHERE)
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        # names that are no texts are found here, where whatever the runtime raises is one line
        if not [entry.name for entry in session.get_outputs()]:
            raise ValueError("it has no output")
        _ = [(entry.name, entry.shape) for entry in session.get_inputs()]
        return session
    except Exception as error:  # the runtime has a class of its own for each of many reasons
        if NOWHERE in str(error) or "xternal" in str(error):
            what, remedy = (
                "its weights lie in another file",
                "write one: torch.onnx.export(…, external_data=False)",
            )
            raise broken(path, what, remedy) from error
        raise broken(path, f"no ONNX file that can be run ({_first_line(error)})", "export it anew") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _input(session: Any, path: Path) -> Any:
    entries = session.get_inputs()
    if len(entries) != 1:
        names = ", ".join(entry.name for entry in entries)
        raise broken(path, f"takes {len(entries)} inputs ({names})", "a backbone for images takes one")
    (entry,) = entries
    if len(entry.shape) != 4 or entry.type not in TYPES:
        found = f"{entry.type.removeprefix('tensor(').removesuffix(')')} {_described(entry.shape)}"
        remedy = "a backbone takes float32 or uint8 images, (N, C, H, W) or (N, H, W, C)"
        raise broken(path, f"its input {entry.name} is {found}", remedy)
    return entry


def _described(shape: Sequence[object]) -> str:
    return f"({', '.join('?' if side is None else str(side) for side in shape)})"


def _channels_last(entry: Any, path: Path) -> bool:
    first, last = entry.shape[1] in (1, 3), entry.shape[3] in (1, 3)
    if not first and not last:
        what = f"its input {entry.name} is {_described(entry.shape)}, with neither 1 nor 3 channels"
        raise broken(path, what, "export it with its number of channels fixed")
    return not first


def _size(sides: Sequence[object], size: int | tuple[int, int] | None, path: Path) -> tuple[int, int]:
    """Height and width: the file's own, and where it leaves them open, those that were asked for."""
    asked = (size, size) if isinstance(size, int) or size is None else size
    if any(side is not None and side < 1 for side in asked):
        raise ConfigError(f"--size {size} must be 1 or more")
    found: list[int] = []
    for side, wanted in zip(sides, asked, strict=True):
        if isinstance(side, int) and side > 0:
            if wanted not in (None, side):
                fixed = _described(sides)
                raise ConfigError(one_line(f"--size {size}: {path} takes images of {fixed}; leave --size out"))
            found.append(side)
        elif wanted is None:
            raise ConfigError(one_line(f"{path} takes images of any size; say which with --size, such as --size 64"))
        else:
            found.append(wanted)
    return found[0], found[1]


def _normalisation(
    mean: Values | str, std: Values | str, channels: int, values: str
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """A number a channel, each; none where the file takes bytes."""
    given = [some for some in (mean, std) if some != "auto"]
    if values == "uint8":
        if any(some is not None for some in given):
            raise ConfigError("the backbone takes bytes, 0 to 255, and normalises them itself; leave --mean, --std out")
        return (), ()
    if len(given) == 1 and given[0] is not None:
        raise ConfigError("--mean and --std go together; give both, or none")
    plain = (0.0,) * channels, (1.0,) * channels
    if not given:
        return IMAGENET if channels == 3 else plain
    both = [
        plain[place] if some is None or some == "auto" else _numbers(name, some, channels)
        for place, (name, some) in enumerate((("--mean", mean), ("--std", std)))
    ]
    if 0 in both[1]:
        raise ConfigError(f"--std {both[1]}: it is divided by; give numbers above 0")
    return both[0], both[1]


def _numbers(name: str, some: Values | str, channels: int) -> tuple[float, ...]:
    """One number for all channels, or one each."""
    try:
        found = tuple(map(float, some if isinstance(some, Sequence) and not isinstance(some, str) else [some]))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = ()
    if len(found) not in (1, channels) or not all(map(math.isfinite, found)):
        raise ConfigError(f"{name} {some!r}: give one number, or {channels}, one a channel, or none")
    return found * (channels // len(found))


def _output(session: Any, wanted: str | None, path: Path) -> str:
    names = [one.name for one in session.get_outputs()]
    if wanted is not None and wanted not in names:
        raise ConfigError(one_line(f"--output {wanted}: {path} has no such output; it has {', '.join(names)}"))
    return wanted or str(names[0])
