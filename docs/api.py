"""Pages of the public names, from their docstrings: `make docs`, or python docs/api.py FOLDER."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

from pdoc.doc import Doc, Module, Variable
from pdoc.render import configure, html_index, html_module, search_index

import engram

PAGES = ("engram", "engram.sklearn", "engram.testing")


def pages() -> dict[str, Module]:
    """The modules that a user imports from, by name."""
    for name in engram.__all__:  # imported when first used, and pdoc looks only at what is there
        setattr(engram, name, getattr(engram, name))
    found = {name: Module(importlib.import_module(name)) for name in PAGES}
    _describe(found["engram"].members["METHODS"])
    return found


def _describe(methods: Doc[object]) -> None:
    """A variable that comes from elsewhere has lost its docstring; its value is too long to read."""
    assert isinstance(methods, Variable)
    home = Module(importlib.import_module("engram.methods.registry"))
    methods.docstring, methods.default_value = home.members["METHODS"].docstring, inspect.Signature.empty


def write(folder: Path) -> None:
    """HTML, an index and a search."""
    configure(docformat="google", show_source=False, footer_text=f"Engram {engram.__version__}")
    modules = pages()
    files = {f"{name.replace('.', '/')}.html": html_module(module, modules) for name, module in modules.items()}
    files |= {"index.html": html_index(modules), "search.js": search_index(modules)}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
