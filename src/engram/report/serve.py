"""The report at a local address, built anew when somebody looks and the records have changed.

Nothing is built while nobody looks: the page asks for the version, which costs a glance at the files' sizes, and comes
back for the page when it has changed. So a report that is watched takes little from the run that it watches.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from engram.errors import ConfigError
from engram.report.build import PAGE, Files

TYPES = {
    "html": "text/html; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "csv": "text/csv; charset=utf-8",
    "md": "text/markdown; charset=utf-8",
    "tex": "text/plain; charset=utf-8",
}
LOCAL = ("127.0.0.1", "localhost", "::1")
REST = 5.0
"""Seconds between two builds, at least."""


def version_of(places: Sequence[Path]) -> str:
    """Changes when a record file does."""
    seen = hashlib.sha256()
    for place in places:
        for root, folders, names in os.walk(place):
            folders.sort()
            for name in sorted(names):
                if name in ("records.jsonl", "config.json", "samples.png", "grid.png"):
                    path = os.path.join(root, name)
                    try:
                        facts = os.stat(path)
                    except OSError:
                        continue
                    seen.update(f"{path}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode(errors="surrogateescape"))
    return seen.hexdigest()[:16]


class Live:
    """The newest report, in memory."""

    def __init__(self, places: Sequence[Path], make: Callable[[str], Files], *, rest: float = REST) -> None:
        self._places, self._make, self._rest = places, make, rest
        self._lock = threading.Lock()
        self._version, self._files, self._built = "", Files(), -rest

    def version(self) -> str:
        """What the page shown now should be; waits a little after a build, so that a busy run is left in peace."""
        rested = time.monotonic() - self._built >= self._rest
        return version_of(self._places) if rested or not self._version else self._version

    def files(self) -> Files:
        with self._lock:
            now = self.version()
            if now != self._version:
                self._files, self._version, self._built = self._make(now), now, time.monotonic()
            return self._files


class Server(ThreadingHTTPServer):
    """Serves what is in the report and nothing else: names are looked up in a dictionary, never on the disc."""

    daemon_threads = True

    def __init__(self, host: str, port: int, live: Live) -> None:
        self.live, self.host = live, host
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot serve at {host}:{port} ({error}); choose another --host or --port") from None

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "engram", ""

    def do_GET(self) -> None:
        # a name that leads here by way of somebody else's DNS is not ours (DNS rebinding)
        host = (self.headers.get("Host") or "").rpartition(":")[0].strip("[]")
        if self.server.host in LOCAL and host not in LOCAL:
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        name = self.path.partition("?")[0].removeprefix("/") or PAGE
        if name == "version":
            self._answer(self.server.live.version().encode(), "text/plain")
            return
        contents = self.server.live.files().get(name)
        if contents is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self._answer(contents, TYPES[name.rpartition(".")[2]])

    def _answer(self, contents: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(contents)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(contents)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the terminal belongs to whoever started it."""
