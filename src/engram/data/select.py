"""Choose classes of a large folder of photographs and write them small: ImageNet-50 out of ILSVRC-2012.

    SOURCE/train/<class>/*.JPEG                     up to 1300 of each chosen class
    SOURCE/val/<class>/*.JPEG                       or val/*.JPEG with a file that names each one's class
      ──> OUT/train/<class>/*.png, OUT/val/<class>/*.png

Written once, losslessly: a run that reads OUT at the same size learns from the same pixels as one that scales the
originals.
"""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from engram.data.datasets import check_size, resize
from engram.data.formats import class_images
from engram.data.images import decode_image
from engram.data.raw import broken
from engram.errors import ConfigError, DataError

PER_CLASS = 1300
MOST = 50
"""Classes that are taken without being named."""


def select(
    source: Path,
    out: Path,
    *,
    classes: Sequence[str] = (),
    per_class: int = PER_CLASS,
    val_classes: Path | None = None,
    size: int = 32,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[int, int]:
    """Write the chosen classes at `size` x `size`; how many training and test images there are.

    OUT appears when it is whole.
    """
    check_size(size)
    if per_class < 1:
        raise ConfigError(f"--per-class {per_class} must be 1 or more")
    if out.exists():
        raise DataError(f"{out} is there already; remove it or choose another --out")
    train_at, val_at = source / "train", source / "val"
    for place in (train_at, val_at):
        if not place.is_dir():
            raise broken(place, "no such folder", "name the folder that holds train/ and val/")
    found = sorted(entry.name for entry in os.scandir(train_at) if entry.is_dir() and entry.name[0] != ".")
    chosen = list(dict.fromkeys(classes)) or found
    if missing := [name for name in chosen if name not in found]:
        raise broken(train_at, f"has no class {missing[0]!r}", "check --classes")
    if not chosen:
        raise broken(train_at, "has no class folders", "name the folder that holds train/<class>/ and val/")
    if not classes and len(found) > MOST:
        raise ConfigError(f"{train_at} has {len(found)} classes: name those you want with --classes")
    files = {"train": {name: _images(train_at / name)[:per_class] for name in chosen}}
    files["val"] = _val_files(val_at, chosen, val_classes)
    for part, by_class in files.items():
        for name, paths in by_class.items():
            if not paths:
                raise broken(source / part, f"no image of class {name!r}", "add some or leave the class out")
    total, done = sum(len(paths) for by_class in files.values() for paths in by_class.values()), 0
    building = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        for part, by_class in files.items():
            for name, paths in by_class.items():
                for path in paths:
                    _write(path, _target(path, source / part / name, building / part / name), size)
                    done += 1
                    progress(done, total)
        building.rename(out)
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror or error}; nothing was left behind") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return tuple(sum(map(len, by_class.values())) for by_class in files.values())  # type: ignore[return-value]


def _images(folder: Path) -> list[Path]:
    return list(class_images(folder)[0]) if folder.is_dir() else []


def _val_files(val_at: Path, chosen: Sequence[str], listing: Path | None) -> dict[str, list[Path]]:
    if listing is None:
        if not any((val_at / name).is_dir() for name in chosen):
            raise broken(val_at, "has no class folders", "name the file that tells each image's class: --val-classes")
        return {name: _images(val_at / name) for name in chosen}
    files: dict[str, list[Path]] = {name: [] for name in chosen}
    by_stem = {path.stem: path for path in _images(val_at)}
    for image, name in _listed(listing):
        if name in files:
            if image not in by_stem:
                raise broken(listing, f"names {image}, which {val_at} has not", "take the list that goes with it")
            files[name].append(by_stem[image])
    return files


def _listed(listing: Path) -> Iterator[tuple[str, str]]:
    """(image without suffix, class) a line: `ILSVRC2012_val_00000001.JPEG n01751748`, or Kaggle's solution file."""
    try:
        text = listing.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise broken(listing, f"cannot be read ({error})", "check --val-classes") from None
    for row in csv.reader(text.splitlines()):
        words = " ".join(row).split()
        if len(words) >= 2 and words[0] != "ImageId":
            yield Path(words[0]).stem, words[1]


def _target(path: Path, source: Path, out: Path) -> Path:
    """Where an image goes: as deep below its class folder as it was, under a name that no other one has."""
    to = (out / path.relative_to(source) if path.is_relative_to(source) else out / path.name).with_suffix(".png")
    return to.with_name(f"{path.name}.png") if to.exists() else to  # both a.jpg and a.webp


def _write(path: Path, to: Path, size: int) -> None:
    pixels = resize(decode_image(path, 3)[None], size)[0].numpy()
    to.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).save(to)
