"""Writing so that a file is either whole or not there, and saying plainly when that fails."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import filelock

from engram.errors import RunError

LOCK = ".lock"
"""In a run folder: held by the process that is at work there."""
CONFIG = "config.json"
"""In a run folder: what makes it one."""


@contextlib.contextmanager
def os_errors(path: Path, kept: str = "nothing else was touched") -> Iterator[None]:
    """Turn an operating-system error (full disk, unwritable folder) into one line for a person."""
    if "\0" in str(path):  # which Python refuses by a ValueError
        raise RunError(f"cannot write {str(path)!r}: a name cannot hold a zero byte; choose another")
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"cannot write {path}: {reason}; {kept}. Free some space or choose another place") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write under a temporary name, force it to disk, then rename: a reader sees the old file or the new one."""
    with whole_file(path) as file:
        file.write(content)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """The same, for what is written piece by piece."""
    _require_ordinary(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        move(temporary, path)
    except BaseException:
        remove(temporary)
        raise
    clear_left_overs(path)


def _require_ordinary(path: Path) -> None:
    """A rename would put a file in the place of a device or a pipe: whoever may do so would lose /dev/null for all."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is a device or a pipe, no file", str(path))


def clear_left_overs(path: Path) -> None:
    """What processes left that were killed while they wrote this file; who is still at work keeps theirs."""
    for old in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        number = old.name.split(".")[-2]
        if number.isdecimal() and not _is_alive(int(number)):
            remove(old)


def remove(path: Path) -> None:
    """Where it cannot be removed it stays, for the next who tries."""
    with contextlib.suppress(OSError):
        path.unlink()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's
        return True
    return True


def move(source: Path, target: Path) -> None:
    """Rename a file that is safely on disc, within one file system; what was there before is replaced."""
    _require_ordinary(target)
    source.replace(target)
    _sync_folder(target.parent)


def write_json(path: Path, value: Any) -> None:
    """Pretty JSON, atomically. NaN is refused: it is not JSON."""
    with os_errors(path):
        write_atomically(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The file's value, or a RunError that names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError):
        raise RunError(f"{path} is damaged: it is not JSON; restore it or start anew with another --out") from None
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error


def is_held(folder: Path) -> bool:
    """Whether a process is at work in a run folder."""
    if not (folder / LOCK).exists():
        return False
    try:
        with filelock.FileLock(folder / LOCK, timeout=0):
            return False
    except filelock.Timeout:  # an OSError too, so it is caught first
        return True
    except OSError:  # a folder that nobody may write to: nobody is at work there
        return False


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
