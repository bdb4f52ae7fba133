"""Where the commands print with colours and tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from engram.report.fields import plain

ROOM = 160
"""Columns where there is no terminal: a pipe or a file has no width of its own, and tables want room."""


class PlainConsole(Console):
    """A console on which a name can do no more than be read: `:car:` stays text, control characters are replaced."""

    def __init__(self) -> None:
        super().__init__(width=None if sys.stdout.isatty() else ROOM, emoji=False, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As always, but for control characters in texts."""
        for segment in super().render(renderable, options):
            yield segment if segment.control or segment.text.isprintable() else _shown(segment)


def _shown(segment: Segment) -> Segment:
    """Line ends are the console's own."""
    return segment._replace(text="\n".join(map(plain, segment.text.split("\n"))))
