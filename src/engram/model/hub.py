"""A model in the layout of the Hugging Face Hub: a folder of three files.

    folder
    ├── config.json         format, digest, and what the model is: the weights' header, for people and the hub's pages
    ├── model.safetensors   byte by byte the .engram file
    └── README.md           the card, with the hub's front matter

A folder is written and read without any package and without network; only a repository's name asks for
huggingface_hub. Loading runs nothing.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engram import __version__
from engram.errors import ConfigError, RunError, missing_extra
from engram.experiment.files import os_errors, write_atomically
from engram.model import file
from engram.model.card_page import as_markdown
from engram.model.parts import Parts, parts_of

if TYPE_CHECKING:
    from engram.model.model import Model

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
LIBRARY = {"library_name": "engram", "library_version": __version__}
"""Told to the hub with every request, as it asks of libraries."""
REPOSITORY = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
"""`name` or `owner/name`."""
TAGS = ("engram", "continual-learning", "class-incremental-learning", "image-classification")


# ---------------------------------------------------------------- write


def write(model: Model, folder: Path, licence: str | None = None) -> str:
    """The three files; the model's digest."""
    parts = model.parts()
    body = parts.body()
    digest = file.write(folder / WEIGHTS, body, parts.state)
    config = json.dumps(config_of(body, digest), indent=2, ensure_ascii=False, allow_nan=False)
    named = copy.copy(model)
    named.digest = digest  # the card is of what was just written
    for name, text in ((CONFIG, f"{config}\n"), (CARD, readme(named, licence))):
        with os_errors(folder / name, kept=f"{WEIGHTS} beside it is whole"):
            write_atomically(folder / name, text.encode())
    return digest


def config_of(body: Mapping[str, Any], digest: str) -> dict[str, Any]:
    """What `config.json` says."""
    return {"format": file.FORMAT, "digest": digest, **body}


def readme(model: Model, licence: str | None = None) -> str:
    """The hub's front matter, then the model's card. Which licence it has, its owner says."""
    lines = ["---", "library_name: engram", "pipeline_tag: image-classification"]
    lines += [f"license: {json.dumps(licence)}"] if licence else []
    lines += ["tags:", *(f"- {tag}" for tag in TAGS), "---", ""]
    from engram.model.card import card  # the card imports the model, and the model this

    return "\n".join(lines) + "\n" + as_markdown(card(model, Path(WEIGHTS)))


# ---------------------------------------------------------------- read


def read(where: str | Path, revision: str | None, settings: Mapping[str, Any], options: Mapping[str, Any]) -> Parts:
    """What the model is made of, from a folder that is there, or else from a repository of the hub."""
    if os.path.isdir(where):
        if revision is not None:
            raise ConfigError(f"revision={revision!r}: {where} is a folder, which has no revisions; leave it out")
        return read_folder(Path(where), settings)
    if os.path.exists(where):
        raise RunError(f"{where} is a file; open it by Model.open")
    if not isinstance(where, str) or not REPOSITORY.fullmatch(where):
        raise RunError(f"{where} does not exist; give a folder that save_pretrained wrote, or a repository, owner/name")
    return read_folder(_downloaded(where, revision, options), settings)


def read_folder(folder: Path, settings: Mapping[str, Any]) -> Parts:
    """A folder that holds the files, if they belong together."""
    if missing := [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]:
        raise RunError(
            f"{folder} holds no {missing[0]}; give a folder that save_pretrained wrote (a run folder: Model.open)"
        )
    contents = file.read(folder / WEIGHTS)
    expected, found = config_of(contents.body, contents.digest), _config(folder / CONFIG)
    if wrong := [key for key in expected | found if expected.get(key) != found.get(key)]:
        raise RunError(
            f"{folder / CONFIG} disagrees with {WEIGHTS} in {wrong[0]!r}; write both anew by save_pretrained, or "
            f"open {WEIGHTS} alone by Model.open"
        )
    return parts_of(contents, folder / WEIGHTS, settings)


def _config(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}; check the path") from error
    except (ValueError, RecursionError) as error:
        raise file.damaged(path, f"it is no JSON ({type(error).__name__})") from error
    if not isinstance(found, dict):
        raise file.damaged(path, "it is no JSON object")
    return found


# ---------------------------------------------------------------- the hub


def _hub() -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise missing_extra("the Hugging Face Hub", "hub") from None


def _downloaded(repo_id: str, revision: str | None, options: Mapping[str, Any]) -> Path:
    """The folder in the hub's own cache; what else lies in the repository is not fetched."""
    hub = _hub()
    try:
        wanted = {"allow_patterns": [CONFIG, WEIGHTS, CARD], **LIBRARY, **options}
        return Path(hub.snapshot_download(repo_id, revision=revision, **wanted))
    except Exception as error:  # of many kinds: the hub's, its HTTP client's, the system's
        raise RunError(
            f"{repo_id} is no folder here, and the hub does not give it ({_line(error)}); check name and network"
        ) from error


def push(
    model: Model, repo_id: str, *, private: bool | None, token: str | None, licence: str | None, **more: Any
) -> str:
    """Upload the three files as one commit; its address. A repository is made where there is none."""
    if more.get("run_as_future"):
        raise ConfigError("run_as_future=True: the files are gone before it is done; leave it out")
    api = _hub().HfApi(token=token, **LIBRARY)
    with tempfile.TemporaryDirectory() as folder:
        digest = write(model, Path(folder), licence)
        try:
            if not more.get("create_pr"):
                repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
            done = api.upload_folder(repo_id=repo_id, folder_path=folder, **more)
        except Exception as error:  # as above
            raise RunError(
                f"cannot upload to {repo_id} ({_line(error)}); check the name, your token, the network"
            ) from error
    model.digest = digest
    return str(done.commit_url)


def _line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
