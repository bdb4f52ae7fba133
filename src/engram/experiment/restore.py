"""A loop put back where a folder's last checkpoint left it; a place that is none of the stream's is refused."""

from __future__ import annotations

import sys
from pathlib import Path

from engram.config import MOST_ROUNDS
from engram.data.stream import ClassStream
from engram.experiment.loop import TaskLoop
from engram.opening import opening
from engram.values import shown


def restored(folder: Path, loop: TaskLoop, stream: ClassStream) -> int:
    """The length of the records at the checkpoint. Whatever is wrong is found before anything is written."""
    with opening(folder):
        offset = loop.restore()
        places = {"task": loop.task, "epoch": loop.epoch_number, "byte": offset}
        first = {"task": stream.start}
        last = {"task": stream.start + len(stream), "epoch": MOST_ROUNDS, "byte": sys.maxsize}
        for name, place in places.items():
            if type(place) is not int or not first.get(name, 0) <= place <= last[name]:
                raise ValueError(f"its place is {name} {shown(place)}, and the last one is {last[name]}")
    return offset
