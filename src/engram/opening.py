"""Opening what others made: regular files of a sensible size, and one line in the place of any error. No torch.

open_regular, read_regular   a FIFO, a device or a folder is refused and never waited for
opening                      any error inside is a RunError that names the place
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from engram.errors import EngramError, RunError

UNFIT = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What Python and torch raise at values that they were not made for; RecursionError is a RuntimeError."""
LONGEST = 160
"""Characters of another library's error."""


def open_regular(path: Path) -> BinaryIO:
    """The file, to be read; an OSError where it is none."""
    if "\0" in str(path):  # which Python refuses by a ValueError
        raise OSError(errno.EINVAL, "a name cannot hold a zero byte", repr(str(path)))
    _require_regular(os.stat(path).st_mode, path)  # opening a device may do something
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags)
    try:
        _require_regular(os.fstat(handle).st_mode, path)  # and by now another one may lie there
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _require_regular(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_regular(path: Path, most: int) -> bytes:
    """The file's bytes; an OSError where it has more than `most`, or is no regular file."""
    with open_regular(path) as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))
    return found


def require_no_pipes(place: Path) -> None:
    """Nothing at a place, or right in it where it is a folder, that whoever reads it might have to wait for."""
    found = [place]
    with contextlib.suppress(OSError, ValueError):
        found += place.iterdir()
    for path in found:
        with contextlib.suppress(OSError, ValueError):
            mode = os.stat(path).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise RunError(f"{path} is no regular file and no folder; take it away")


@contextlib.contextmanager
def opening(place: Path | str, remedy: str = "restore it from a copy") -> Iterator[None]:
    """Whatever a file or folder holds: what it cannot be used for is one line."""
    try:
        require_no_pipes(Path(place))
        yield
    except EngramError:
        raise
    except OSError as error:
        raise RunError(f"cannot read {error.filename or place}: {error.strerror or error}; check the path") from error
    except UNFIT as error:
        raise RunError(f"{place} cannot be opened: {why(error)}; {remedy}") from error


def why(error: BaseException) -> str:
    """What is wrong, in a line.

    >>> why(KeyError("meta")), why(RecursionError())
    ("it lacks 'meta'", 'it is nested too deeply')
    """
    if isinstance(error, KeyError):
        return f"it lacks {error!s:.{LONGEST}}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "it needs more memory than there is"
    said = " ".join(str(error).split()) or "no reason was given"
    return f"{type(error).__name__}: {said:.{LONGEST}}"
