"""A model's card: what a person should know before trusting it, told from the model alone.

    Model ──> Card ──> products-v4.card.md, products-v4.card.html

What was not measured is called so. A figure that was measured before the model changed says what it leaves out.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from engram import __version__
from engram.data.datasets import Check
from engram.data.raw import one_line
from engram.experiment import maps
from engram.experiment.files import move, os_errors, write_atomically
from engram.experiment.pictures import png, sheet
from engram.kinds import is_vector
from engram.methods.learner import Forgets, KeepsEngrams, Retains, Samples
from engram.model import card_figures, card_memory, card_trust
from engram.model.card_figures import NOT_MEASURED, changes, counted, listed, moment, percent
from engram.model.card_page import Block, Card, Cell, Code, Mono, Picture, Section, Table, Tile, as_html, as_markdown
from engram.model.file import SUFFIX
from engram.model.history import History, history
from engram.model.model import Model
from engram.model.parts import preprocessing
from engram.model.verify import retention_check

DRAWINGS = 8
"""Of every class, in the picture."""


def card(model: Model, path: Path | None = None) -> Card:
    """What the model's own facts say. `path`: where it lies, if not where it was opened or saved."""
    path = path or model.path
    past, name = history(model.lineage, model.ids), f"model{SUFFIX}" if path is None else one_line(path.name)
    kept = retention_check(model)
    sections = (
        _identity(model),
        card_figures.classes(past),
        *_drawings(model),
        card_figures.accuracy(past),
        card_trust.calibration(model, past),
        card_memory.retention(model, kept),
        card_trust.privacy(model, past),
        card_memory.forgotten(model, past, name),
        card_memory.sizes(model, past, path),
        card_memory.growth(past),
        card_memory.lineage(past),
        _use(model, name),
    )
    title = f"Model card: {name.removesuffix(SUFFIX)}"
    return Card(title, _lead(model), tuple(_tiles(model, past, path, kept)), sections, _foot(model))


def card_paths(path: Path) -> tuple[Path, Path]:
    """The Markdown and the HTML card of a model file.

    >>> [card.name for card in card_paths(Path("products-v4.engram"))]
    ['products-v4.card.md', 'products-v4.card.html']
    """
    stem = path.name.removesuffix(SUFFIX)
    return path.with_name(f"{stem}.card.md"), path.with_name(f"{stem}.card.html")


def write_card(model: Model, path: Path) -> tuple[Path, Path]:
    """Write both cards beside the model's file at `path`, each whole or not at all."""
    made, paths = card(model, path), card_paths(path)
    for target, text in zip(paths, (as_markdown(made), as_html(made)), strict=True):
        with os_errors(target, kept=f"only the card is missing, the model itself is written to {path}"):
            write_atomically(target, text.encode())
    return paths


@contextmanager
def card_aside(path: Path, work: Path) -> Iterator[None]:
    """Both cards beside the model's file at `path` go, by way of the folder `work`; on an error they come back."""
    moved = [(card_path, work / card_path.name) for card_path in card_paths(path) if card_path.is_file()]
    try:
        for card_path, aside in moved:
            with os_errors(card_path, kept="the model is as it was"):
                move(card_path, aside)
        yield
    except BaseException:
        for card_path, aside in moved:
            if aside.is_file():
                move(aside, card_path)
        raise
    for _, aside in moved:
        with os_errors(aside, kept=f"{path} is written"):
            aside.unlink()


# ---------------------------------------------------------------- what is seen first


def _lead(model: Model) -> str:
    if not model.classes:
        return f"A {model.config.method} model that has learned nothing yet."
    what = f"Tells {counted(len(model.classes), 'class', 'classes')} apart: {listed(model.classes, 10)}."
    if len(model.classes) == 1:
        what = f"Knows one class, {model.classes[0]}, {_of_one_class(model)}."
    if model.within_task:
        return f"{what} A run that was stopped within a task: go on with it to its end."
    if model.answers_only:
        return f"{what} This file only answers: it cannot learn, draw or forget."
    return f"{what} It goes on learning new classes without the images of the old ones."


def _of_one_class(model: Model) -> str:
    """What it answers: with no other class to compare, typicality alone tells that an image is of another kind."""
    if model.trust is None or model.trust.typicality is None:
        return "and answers it for every image"
    return "and calls an image unknown that is unlike its drawings"


def _tiles(model: Model, past: History, path: Path | None, kept: Check) -> Iterator[Tile]:
    gone = sum(step.kind == "forgot" for step in past.steps)
    anew = sum(step.kind == "relearned" for step in past.steps)  # counted as tasks, to name their random draws
    tasks = f"from {counted(model.tasks - anew, 'task')}" + (f"; {gone} forgotten" if gone else "")
    yield Tile("Classes", str(len(model.classes)), tasks)
    if past.overall:
        last = past.overall[-1]
        on = "" if last.images is None else f"of {counted(last.images, 'test image')}"
        if tested := card_figures.tested_of(past, last):
            on += f" of {tested}"
        yield Tile("Accuracy", percent(last.value, last.images), "; ".join(filter(None, [on, *changes(past, last)])))
    else:
        yield Tile("Accuracy", "–", NOT_MEASURED)
    how = "left out of this file" if not model.learns_strictly else "by design"
    yield Tile("Real images stored", "none" if model.is_strict else "yes", how if model.is_strict else model.stores)
    yield _retention_tile(model, kept)
    if path is not None and path.is_file():
        digest = f"digest {model.digest[: card_figures.SHORT]}" if model.digest else "no digest"
        yield Tile("File", f"{path.stat().st_size / 1e6:,.2f} MB", digest)


def _retention_tile(model: Model, kept: Check) -> Tile:
    if not isinstance(model.learner, Retains) or not model.classes:
        return Tile("Memory unchanged", "–", "nothing to compare")
    what = f"every stored bit of {counted(len(model.classes), 'class', 'classes')} was compared"
    return Tile("Memory unchanged", "yes" if kept.ok else "NO", what)


def _foot(model: Model) -> str:
    last = model.lineage[-1].when if model.lineage else None
    made = f"Written by Engram {__version__} from the model itself"
    return f"{made}; its last change: {moment(last)}." if model.lineage else f"{made}."


# ---------------------------------------------------------------- what it is


def _identity(model: Model) -> Section:
    rows: list[tuple[Cell, ...]] = [
        ("Method", f"{model.config.method}: {model.method.summary}"),
        ("Strict", _strict(model)),
        ("Keeps of past tasks", model.stores),
        ("Vectors" if model.shape is not None and is_vector(model.shape) else "Images", _shape(model)),
        *_backbone(model),
        ("Seed", str(model.config.seed)),
        ("Engram", _version(model)),
        ("Digest", Mono(model.digest) if model.digest else "none: it was not read from a model file"),
    ]
    return Section("What it is", (Table(("Property", "Value"), tuple(rows)),))


def _strict(model: Model) -> str:
    if model.learns_strictly:
        return "yes: no real image of a past task is kept, and learning needs none"
    here = "; this file holds none of them" if model.answers_only else ""
    return f"no: {model.config.method} learns with stored real images{here}"


def _shape(model: Model) -> str:
    if model.shape is None:
        return "not known before the first is seen"
    if is_vector(model.shape):
        return f"{model.shape[0]} numbers each, scaled by what the first task was like"
    channels, height, width = model.shape
    colour = {1: "grey", 3: "RGB colour"}.get(channels, f"{channels} channels")
    return f"{width} x {height} pixels, {colour}; others are scaled"


def _backbone(model: Model) -> list[tuple[Cell, ...]]:
    """By what images become the vectors that it learns from."""
    if (recipe := model.backbone) is None:
        return []
    return [
        ("Backbone", f"{recipe.name}, an ONNX file that is not in this one; answers for images need it"),
        ("Shown to it", f"{recipe.preparation}; {recipe.resize}; output {recipe.output}"),
        ("Backbone's digest", Mono(recipe.digest)),
        ("SHA-256 of its file", Mono(recipe.sha256)),
    ]


def _version(model: Model) -> str:
    last = next((step.machine for step in reversed(model.lineage) if step.machine.get("versions")), {})
    learned = (last.get("versions") or {}).get("engram")
    return f"card of version {__version__}" + (f", last task learned with {learned}" if learned else "")


def _drawings(model: Model) -> list[Section]:
    """A row a class."""
    if not isinstance(model.learner, Samples) or not model.classes:
        return [Section("Drawings", ("None: this model does not draw.",))] if model.classes else []
    rows = range(len(model.classes))
    if model.shape is not None and is_vector(model.shape):
        return [_map(model)]
    picture = sheet(model.draw(rows, DRAWINGS), DRAWINGS)
    caption = "What the model remembers: all are drawn by its generator, none is a stored image."
    _, height, width = picture.shape
    block = Picture(png(picture, zoom=1), (width, height), model.classes, caption)
    return [Section("Drawings", (block,))]


def _map(model: Model) -> Section:
    """Of vectors: two directions of many."""
    classes = torch.arange(len(model.classes)).repeat_interleave(DRAWINGS)
    shown = maps.picture(maps.vector_map(model.draw(range(len(model.classes)), DRAWINGS), classes, model.classes))
    caption = (
        "What the model remembers, in the two directions in which it varies most: all dots are drawn, none is real."
    )
    block = Picture(png(shown, zoom=1), (maps.WIDTH, maps.HEIGHT), (), caption)
    return Section("Drawings", (block,))


# ---------------------------------------------------------------- how to use it


def _use(model: Model, name: str) -> Section:
    blocks: list[Block] = [Code("sh", _shell(model, name)), Code("python", _python(model, name))]
    if model.classes:
        target = shlex.quote(f"{name.removesuffix(SUFFIX)}.onnx")
        blocks += [
            f"For programs without Engram, as ONNX ({_input(model)} in, probabilities out"
            + ("):" if model.trust is None else ", and known: false for an unknown image):"),
            Code("sh", f"engram export {shlex.quote(name)} --onnx {target}"),
        ]
    if recipe := preprocessing(model.shape):
        texts = dict(recipe)
        if "size" in recipe:
            height, width = recipe["size"]
            texts["size"] = f"{width} x {height} pixels"
        rows = tuple((key.capitalize(), str(value)) for key, value in texts.items())
        blocks += [
            f"How {'a vector' if 'kind' in recipe else 'an image'} is prepared; Engram does it by itself:",
            Table(("Step", "How"), rows),
        ]
    return Section("How to use it", tuple(blocks))


def _input(model: Model) -> str:
    return "float32 vectors" if model.shape is not None and is_vector(model.shape) else "uint8 images"


def _shell(model: Model, name: str) -> str:
    file, vectors = shlex.quote(name), model.shape is not None and is_vector(model.shape)
    through = "" if model.backbone is None else f" --backbone {shlex.quote(model.backbone.name)}"
    photos, more = ("photos/", "more-classes/") if through or not vectors else ("new.npz", "more-classes.npz")
    lines = [f"engram verify {file}"]
    if model.classes:
        lines.insert(0, f"engram predict {file} {photos}{through} --top 3")
    if isinstance(model.learner, Samples) and model.classes:
        lines.append(f"engram sample {file} --out drawings.{'npz' if vectors else 'png'}")
    if not model.answers_only:
        lines.append(f"engram learn {file} {more}{through} --out next{SUFFIX}")
    if isinstance(model.learner, Forgets) and model.classes:
        retrain = "--retrain " if isinstance(model.learner, KeepsEngrams) else ""
        lines.append(f"engram forget {file} {shlex.quote(model.classes[-1])} {retrain}--out without{SUFFIX}")
    return "\n".join(lines)


def _python(model: Model, name: str) -> str:
    lines = ["from engram import Model", "", f"model = Model.open({name!r})"]
    if model.classes:
        vectors = model.shape is not None and is_vector(model.shape)
        asked = "features" if vectors else '["photo.jpg"]'
        if model.backbone is not None:
            asked = f'["photo.jpg"], backbone={model.backbone.name!r}'
        lines += [
            f'names = model.predict({asked})  # a class, or "unknown"',
            f"probabilities = model.predict_proba({asked})  # in the order of model.classes",
        ]
    if isinstance(model.learner, Samples) and model.classes:
        kind = "vectors" if model.shape is not None and is_vector(model.shape) else "images"
        lines.append(f"{kind} = model.sample({json.dumps(model.classes[0], ensure_ascii=False)}, 8)")
    return "\n".join(lines)
