"""Readers that do what no reader may: by them the tests know that the fuzz would notice."""

from __future__ import annotations

import ctypes
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from engram.errors import DataError
from fuzzing.edits import Files
from fuzzing.readers import Reader, told


def _good(at: Path) -> dict[str, Files]:
    return {"one": {"a.bin": b"good"}}


def _when_broken(act: Callable[[], object]) -> Callable[[Path], list[str]]:
    def read(folder: Path) -> list[str]:
        path = folder / "a.bin"
        return told(act) if not path.is_file() or path.read_bytes() != b"good" else []

    return read


class Garrulous(DataError):
    """An error that does not keep to its base class's one line."""

    def __str__(self) -> str:
        return self.text

    def __init__(self, text: str) -> None:
        self.text = text


def _raise(error: Exception) -> Callable[[], object]:
    def act() -> None:
        raise error

    return act


def _for_ever() -> None:
    while True:
        pass


def _program() -> None:
    subprocess.run([sys.executable, "--version"], check=False)


def _connection() -> None:
    with socket.socket() as one:
        one.connect(("127.0.0.1", 9))


FAULTS: dict[str, tuple[Callable[[], object], str]] = {
    "traceback": (_raise(ValueError("foreign")), "ValueError in planted.py:act"),
    "two lines": (_raise(Garrulous("one\ntwo")), "NotOneLine in readers.py:told"),
    "endless text": (_raise(Garrulous("x" * 10**6)), "NotOneLine in readers.py:told"),
    "crash": (lambda: ctypes.string_at(0), "dies of SIGSEGV"),
    "exit": (lambda: os._exit(3), "ends the process"),
    "slow": (_for_ever, "takes too long"),
    "greedy": (lambda: bytearray(b"x") * (3 << 29), "takes too much memory"),
    "outside": (lambda: Path("../escaped").write_text("x"), "writes outside its folder"),
    "removes": (lambda: os.rename("a.bin", "../gone"), "os.rename outside its folder"),
    "program": (_program, "starts a program"),
    "connection": (_connection, "opens a connection"),
    "pickle": (lambda: pickle.loads(b"cos\nsystem\n."), "unpickles ('os', 'system')"),
}
"""Name -> what it does with a file that was edited, and what is to be found."""

PLANTED = {name: Reader(_good, _when_broken(act), inputs=4) for name, (act, _) in FAULTS.items()}
