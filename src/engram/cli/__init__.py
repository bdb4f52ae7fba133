"""The `engram` command: reads the words, calls the library, prints, and turns errors into exit codes.

    0 done · 1 a check failed, training diverged, a process was lost · 2 a user's mistake · 130 interrupted

torch takes seconds to import, so everything that needs it is imported where it is used.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn

from engram.cli.parser import build_parser
from engram.cli.shared import complain
from engram.errors import ConfigError, EngramError


def main(words: list[str] | None = None) -> NoReturn:
    """The entry point."""
    code = call(words)
    if _under_torchrun():
        # at once: threads of the process group may still let go of tensors, and abort where Python is going down
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def call(words: list[str] | None = None) -> int:
    """Run the command; its exit code."""
    try:
        parser = build_parser()
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
    except EngramError as error:
        complain(f"engram: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        print("engram: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader of our output went away (`engram list | head`): not an error, and nobody to tell
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
