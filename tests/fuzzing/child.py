"""One process that reads one edited folder after the other, and is watched while it does.

It writes which case it tries before it tries it, so that whoever started it knows what killed it. A reader may start no
program, open no connection, unpickle nothing, and write nowhere but in its own folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from mmap import mmap
from pathlib import Path
from typing import Any

import torch

import engram
from fuzzing.edits import Edit, Files, apply
from fuzzing.readers import Reader

GREED = 1 << 30
"""Bytes that an input of a few kilobytes may take."""
SPACE = 3 << 30
"""Bytes of addresses that it may ask for, beyond which it gets none: so that the machine stays alive."""
FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn")
NETWORK = ("socket.connect", "socket.getaddrinfo", "urllib.Request")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate")
OURS = str(Path(engram.__file__).parent)


@dataclass(frozen=True)
class Case:
    """A folder that is to be read: all that it takes to make it again."""

    reader: str
    base: str
    edits: list[Edit]

    def text(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Trouble:
    """What came out that should not have."""

    number: int
    what: str
    """The same for the same fault: kind and place."""
    detail: str


class Watch:
    """Sees what the process does by Python's audit events; forbidden things are refused, and remembered."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen, self.on = str(folder.resolve()), list[str](), False
        sys.addaudithook(self._event)

    def _event(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in FORBIDDEN and not _asks_for_our_commit(args):
            self._refuse(f"starts a program: {args[1] if len(args) > 1 else args[0]!r:.200}")
        elif event in NETWORK:
            self._refuse(f"opens a connection: {args[:2]!r:.200}")
        elif event == "pickle.find_class":
            self._refuse(f"unpickles {args!r:.200}")
        elif event == "open" and _is_written(args[1], args[2]) and self._outside(args[0]):
            self._refuse(f"writes outside its folder: {args[0]!r:.200}")
        elif event in CHANGES and self._outside(args[1] if event == "os.rename" else args[0]):
            self._refuse(f"{event} outside its folder: {args!r:.200}")

    def _refuse(self, what: str) -> None:
        self.seen.append(what)
        raise PermissionError(what)

    def _outside(self, path: Any) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False  # an open file's number
        whole = os.path.realpath(os.fsdecode(path))
        return whole != "/dev/null" and not whole.startswith(f"{self.folder}{os.sep}")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        self.seen, self.on = [], True
        try:
            yield
        finally:
            self.on = False


def _asks_for_our_commit(args: tuple[Any, ...]) -> bool:
    """`git -C <our own folder>`, by which a run's environment tells the code's commit."""
    command = args[1] if len(args) > 1 and isinstance(args[1], list) else []
    where = command[command.index("-C") + 1] if "-C" in command else ""
    return command[:1] == ["git"] and str(where).startswith(OURS)


def _is_written(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & WRITES)


def work(reader: Reader, bases: dict[str, Files], cases: Iterable[tuple[int, Case]], board: mmap, at: Path) -> None:
    """Try all cases; troubles go to standard output, a line each. Never returns."""
    out = os.fdopen(os.dup(1), "w")
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(quiet, number)
    torch.set_num_threads(1)
    folder = at / "in"
    folder.mkdir(parents=True)
    os.environ.update(HOME=str(folder), TMPDIR=str(folder), XDG_CACHE_HOME=str(folder), SOURCE_DATE_EPOCH="1700000000")
    watch, peak = Watch(folder), Peak()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPACE, used + SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for count, (number, case) in enumerate(cases, start=1):
        board[8:16] = count.to_bytes(8, "little")
        board[:8] = number.to_bytes(8, "little")
        for trouble in _tried(reader, bases, number, case, folder, watch, peak):
            out.write(json.dumps(asdict(trouble)) + "\n")
            out.flush()
        if strays := [path.name for path in at.iterdir() if path != folder]:
            out.write(json.dumps(asdict(Trouble(number, "leaves files outside its folder", repr(strays)))) + "\n")
            out.flush()
            for name in strays:
                shutil.rmtree(at / name, ignore_errors=True)
                (at / name).unlink(missing_ok=True)
    board[:8] = (2**63).to_bytes(8, "little")  # done
    out.flush()
    os._exit(0)


def _tried(
    reader: Reader, bases: dict[str, Files], number: int, case: Case, folder: Path, watch: Watch, peak: Peak
) -> Iterator[Trouble]:
    files, places = apply(bases[case.base], case.edits, reader.seal)
    write(folder, files, places)
    peak.begin()
    try:
        os.chdir(folder)
        with watch.watching():
            refused = reader.read(folder)
        if refused and not case.edits:
            yield Trouble(number, "refuses a good folder", refused[0])
    except BaseException as error:
        if not watch.seen:
            yield Trouble(number, f"{type(error).__name__} in {_place(error)}", "".join(_lines(error)))
    taken = peak.taken()
    for what in watch.seen:
        yield Trouble(number, what.partition(":")[0], what)
    if taken > GREED:
        yield Trouble(
            number, "takes too much memory", f"{taken / 1e9:.1f} GB for {sum(map(len, files.values()))} bytes"
        )
    os.chdir(folder.parent)
    clear(folder)


def write(folder: Path, files: Files, places: dict[str, str]) -> None:
    """The edited folder."""
    clear(folder)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        match places.get(name):
            case None:
                path.write_bytes(content)
            case "empty":
                path.touch()
            case "folder":
                path.mkdir()
            case "pipe":
                os.mkfifo(path)
            case "loop":
                path.symlink_to(path.name)
            case "dangling":
                path.symlink_to("nowhere")
            case "up":
                path.symlink_to("../..")


def clear(folder: Path) -> None:
    """Leave nothing in it."""
    for path in list(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


class Peak:
    """The most memory that the process had since `begin`, above what it had then."""

    def __init__(self) -> None:
        self._reset = os.open("/proc/self/clear_refs", os.O_WRONLY)
        self._before = 0

    def begin(self) -> None:
        os.pwrite(self._reset, b"5", 0)
        self._before = _kilobytes("VmRSS")

    def taken(self) -> int:
        return 1024 * (_kilobytes("VmHWM") - self._before)


def _kilobytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def _place(error: BaseException) -> str:
    """The last place in our own code, else the last at all."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(OURS)] or list(frames)
    return f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else "?"


def _lines(error: BaseException) -> list[str]:
    try:
        return traceback.format_exception(error)[-12:]
    except Exception:  # its text cannot be made
        return [type(error).__name__]
