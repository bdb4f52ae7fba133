"""The `engram` command: reads the words, calls the library, prints, and turns errors into exit codes.

    0 done · 1 a check failed, training diverged, a process was lost · 2 a user's mistake · 130 interrupted
    3 of `engram run`: another process is at work in the run folder

torch takes seconds to import, so everything that needs it is imported where it is used.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import NoReturn

from engram.cli.parser import build_parser
from engram.cli.shared import complain
from engram.errors import ConfigError, EngramError
from engram.values import shown

SHOWN = "backslashreplace"


def main(words: list[str] | None = None) -> NoReturn:
    """The entry point."""
    _set_streams()
    code = call(words)
    if _under_torchrun():
        # at once: threads of the process group may still let go of tensors, and abort where Python is going down
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _set_streams() -> None:
    """Names of files and classes may hold anything: what a stream cannot say is escaped, what it brings is kept."""
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, SHOWN), (sys.stderr, SHOWN)):
        if isinstance(stream, io.TextIOWrapper):  # None where it is closed
            stream.reconfigure(errors=errors)


def _under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def call(words: list[str] | None = None) -> int:
    """Run the command; its exit code."""
    try:
        code = _act(words)
        if sys.stdout is not None:
            sys.stdout.flush()  # a full disc is to be found here, not when Python is going down
        return code
    except EngramError as error:
        complain(f"engram: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        print("engram: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader of our output went away (`engram list | head`): not an error, and nobody to tell
        _drop_output()
        return 0
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        complain("engram: there is not enough memory; lower widths, batches or images, or close other programs")
        return 2
    except OSError as error:
        where = error.filename
        if where is None:
            _drop_output()
            where = "standard input or output"
        complain(f"engram: cannot read or write {where}: {error.strerror or error}; check path, rights and space")
        return 2


def _out_of_memory(error: Exception) -> bool:
    """torch says it by an error of its own for graphics cards, and in words for all else."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)


def _act(words: list[str] | None) -> int:
    parser = build_parser()
    if odd := [word for word in words or () if "\0" in word]:  # no shell hands one on, and no path may hold one
        raise ConfigError(f"{shown(odd[0])} holds a zero byte, which no word can")
    chosen = parser.parse_args(words)
    if chosen.version:
        from engram import __version__

        print(f"engram {__version__}")
        return 0
    if chosen.command is None:
        parser.print_help()
        return 0
    if chosen.command != "run" and _under_torchrun():
        raise ConfigError(f"torchrun is for `engram run` alone; call `engram {chosen.command}` without it")
    return int(chosen.act(chosen) or 0)


def _drop_output() -> None:
    """What is left of the output goes nowhere, or Python would try once more at its end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
