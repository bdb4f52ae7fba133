"""A disc that loses power: which states of a folder may be found after a crash at any moment.

    with Recorder(folder) as recorded:      # what is done is done, and noted
        save(folder, …)
    for state in recorded.crashes():        # every one that may be found: {path: bytes}

It is as hard as a system may be. A write that was not forced to disc may be gone, cut short, or zeros. A new name, a
rename, a removal may be missing as long as its folder was not forced to disc, and a later one may be there without an
earlier one. Only what was forced is sure.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pytest

Files = dict[str, bytes]
"""Path within the folder -> what it holds."""


@dataclass(frozen=True)
class Op:
    """One operation. `inode`: of a file; `names`: name -> its file, or None where it is gone."""

    kind: str
    inode: int = -1
    at: int = 0
    data: bytes = b""
    names: tuple[tuple[str, int | None], ...] = ()
    folder: str = ""


@dataclass
class Recorder:
    """Notes what is done to the files of a folder, by `Path` and `os.fsync`, and lets it be done."""

    root: Path
    forces: bool = True
    """False: nothing is ever forced to disc, as a control."""
    ops: list[Op] = field(default_factory=list)

    def __enter__(self) -> Recorder:
        self.before = snapshot(self.root)
        self.inodes = {name: number for number, name in enumerate(self.before)}
        self.contents = {self.inodes[name]: data for name, data in self.before.items()}
        self.handles: dict[int, int | str] = {}
        self.patch = pytest.MonkeyPatch()
        real_open, real_replace, real_unlink, real_os_open = Path.open, Path.replace, Path.unlink, os.open

        def opened(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
            name = self.name(path)
            file = real_open(path, mode, *more, **named)
            if name is None or mode in ("r", "rb"):
                return file
            if name not in self.inodes:
                self.inodes[name] = len(self.contents)
                self.contents[self.inodes[name]] = b""
                self.ops.append(Op("names", names=((name, self.inodes[name]),), folder=parent(name)))
            elif "w" in mode:
                self.ops.append(Op("cut", self.inodes[name]))
            self.handles[file.fileno()] = self.inodes[name]
            return _File(file, self.inodes[name], self.ops)

        def replace(path: Path, target: Any) -> Any:
            source, there = self.name(path), self.name(Path(target))
            if source is not None and there is not None:
                inode = self.inodes.pop(source)
                self.inodes[there] = inode
                if parent(source) == parent(there):
                    self.ops.append(Op("names", names=((source, None), (there, inode)), folder=parent(there)))
                else:
                    self.ops.append(Op("names", names=((there, inode),), folder=parent(there)))
                    self.ops.append(Op("names", names=((source, None),), folder=parent(source)))
            return real_replace(path, target)

        def unlink(path: Path, missing_ok: bool = False) -> None:
            name = self.name(path)
            real_unlink(path, missing_ok)
            if name is not None and self.inodes.pop(name, None) is not None:
                self.ops.append(Op("names", names=((name, None),), folder=parent(name)))

        def os_open(path: Any, *more: Any, **named: Any) -> int:
            handle = real_os_open(path, *more, **named)
            if os.path.isdir(path):
                self.handles[handle] = str(self.name(Path(path)))
            return handle

        def fsync(handle: int) -> None:
            there = self.handles.get(handle)
            if self.forces and there is not None:
                self.ops.append(Op("force", there) if isinstance(there, int) else Op("force names", folder=there))

        self.patch.setattr(Path, "open", opened)
        self.patch.setattr(Path, "replace", replace)
        self.patch.setattr(Path, "unlink", unlink)
        self.patch.setattr(os, "open", os_open)
        self.patch.setattr(os, "fsync", fsync)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.patch.undo()

    def name(self, path: Path) -> str | None:
        """Within the folder; None outside."""
        absolute = Path(os.path.abspath(path))
        return absolute.relative_to(self.root).as_posix() if absolute.is_relative_to(self.root) else None

    def crashes(self) -> list[Files]:
        """Every state that may be found after a crash, each once."""
        found: dict[tuple[tuple[str, bytes], ...], Files] = {}
        for count in range(len(self.ops) + 1):
            for state in self._after(self.ops[:count]):
                found.setdefault(tuple(sorted(state.items())), state)
        return list(found.values())

    def _after(self, ops: list[Op]) -> Iterator[Files]:
        names = {name: number for number, name in enumerate(self.before)}
        sure = dict(enumerate(self.before.values()))
        now, waiting = dict(sure), list[Op]()
        for op in ops:
            if op.kind == "write":
                old = now.get(op.inode, b"").ljust(op.at, b"\0")
                now[op.inode] = old[: op.at] + op.data + old[op.at + len(op.data) :]
            elif op.kind == "cut":
                now[op.inode] = now.get(op.inode, b"")[: op.at]
            elif op.kind == "force":
                sure[op.inode] = now.get(op.inode, b"")
            elif op.kind == "names":
                waiting.append(op)
            else:
                for done in [one for one in waiting if one.folder == op.folder]:
                    names = _renamed(names, done)
                    waiting.remove(done)
        for some in _subsets(waiting):
            there = names
            for op in some:
                there = _renamed(there, op)
            for loss in LOSSES:
                yield {name: loss(sure.get(inode, b""), now.get(inode, b"")) for name, inode in there.items()}


class _File:
    """A file that notes what is written."""

    def __init__(self, file: IO[Any], inode: int, ops: list[Op]) -> None:
        self.file, self.inode, self.ops = file, inode, ops

    def write(self, data: bytes) -> int:
        self.ops.append(Op("write", self.inode, self.file.tell(), bytes(data)))
        return self.file.write(data)

    def truncate(self, size: int) -> int:
        self.ops.append(Op("cut", self.inode, size))
        return self.file.truncate(size)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def _common(sure: bytes, now: bytes) -> int:
    """How many bytes at the beginning were forced to disc and are what they were."""
    return next((at for at, (a, b) in enumerate(zip(sure, now, strict=False)) if a != b), min(len(sure), len(now)))


LOSSES: list[Callable[[bytes, bytes], bytes]] = [
    lambda sure, now: now,
    lambda sure, now: sure,
    lambda sure, now: now[: (_common(sure, now) + len(now)) // 2],
    lambda sure, now: now[: _common(sure, now)].ljust(len(now), b"\0"),
]
"""What becomes of writes that were not forced: (what is sure, what was to be) -> what is found."""


def _renamed(names: dict[str, int], op: Op) -> dict[str, int]:
    changed = dict(names)
    for name, inode in op.names:
        if inode is None:
            changed.pop(name, None)
        else:
            changed[name] = inode
    return changed


def _subsets(ops: list[Op]) -> Iterator[tuple[Op, ...]]:
    """All of them, in their order; of many, those that lack or have three at most."""
    sizes = range(len(ops) + 1) if len(ops) <= 7 else [0, 1, 2, 3, *range(len(ops) - 3, len(ops) + 1)]
    for size in sizes:
        yield from itertools.combinations(ops, size)


def parent(name: str) -> str:
    return Path(name).parent.as_posix()


def snapshot(root: Path) -> Files:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def lay_out(state: Files, root: Path) -> Path:
    """A folder with these files."""
    for name, data in state.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    root.mkdir(parents=True, exist_ok=True)
    return root
