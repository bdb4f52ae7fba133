"""The report at a local address, built anew when somebody looks and the records have changed.

Nothing is built while nobody looks: the page asks for the version, which costs a glance at the files' sizes, and comes
back for the page when it has changed. So a report that is watched takes little from the run that it watches.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import ipaddress
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from engram.errors import ConfigError, EngramError
from engram.opening import UNFIT, why
from engram.report.build import PAGE, Files
from engram.report.fields import plain

TYPES = {
    "html": "text/html; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "csv": "text/csv; charset=utf-8",
    "md": "text/markdown; charset=utf-8",
    "tex": "text/plain; charset=utf-8",
}
LOCAL = ("127.0.0.1", "localhost", "::1")
WILDCARDS = ("", "0.0.0.0", "::")
"""Hosts that stand for every address of this machine."""
READING, WRITING = 5.0, 60.0
"""Seconds that a request may take to arrive as a whole, and an answer to be taken."""
MOST = 32
"""Requests at a time; a browser has six."""
ALWAYS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Headers of every answer."""
NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
PAGE_POLICY = f"{NOTHING}; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'"
"""As the page says of itself; nobody may put it into a frame."""
FILE_POLICY = f"{NOTHING}; style-src 'unsafe-inline'; sandbox"
"""Of everything else: a picture may hold a script, and it does not run."""
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
    """Serves what is in the report and nothing else: names are looked up in a dictionary, never on the disc.

    `names`: by which browsers may ask for it, beside those that are safe (`allows`).
    """

    daemon_threads = True
    request_queue_size = 2 * MOST

    def __init__(self, host: str, port: int, live: Live, *, names: Sequence[str] = ()) -> None:
        self.live, self.host = live, host
        own = [host, socket.gethostname(), f"{socket.gethostname()}.local", *names]
        self.names = {name.lower() for name in (names if host in LOCAL else own) if name not in WILDCARDS} | {*LOCAL}
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._room = threading.BoundedSemaphore(MOST)
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError, ValueError, TypeError) as error:
            raise ConfigError(f"cannot serve at {host}:{port} ({error}); choose another --host or --port") from None

    def server_bind(self) -> None:
        """Without asking the network for a name of ours, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.host, self.server_address[1]

    @property
    def address(self) -> str:
        return (
            f"http://[{self.host}]:{self.server_port}/"
            if ":" in self.host
            else f"http://{self.host}:{self.server_port}/"
        )

    def allows(self, host: str) -> bool:
        """Whether a browser that asked for this host meant us.

        A name that leads here by way of somebody else's DNS is not ours (DNS rebinding); who asked by a number asked
        no DNS. At a local address numbers of other machines are none of ours either.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self.names or (self.host not in LOCAL and _is_number(name))

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, if there is room for one more."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):
            request.settimeout(0)
            request.send(b"HTTP/1.0 503 Service Unavailable\r\nConnection: close\r\n\r\ntoo many at a time\n")
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A tab was closed, or somebody did not wait: the terminal belongs to whoever started the server."""


def _is_number(name: str) -> bool:
    """Whether it is an address, not a name.

    >>> _is_number("192.168.0.7"), _is_number("::1"), _is_number("evil.example")
    (True, True, False)
    """
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _Request(io.RawIOBase):
    """The bytes of a request up to a moment: who sends them one by one has no more time than others."""

    def __init__(self, connection: socket.socket, end: float) -> None:
        self._connection, self._end = connection, end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "engram", ""

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Request(self.connection, time.monotonic() + READING))

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not self.server.allows(hosts[0].strip()):
            self._tell(HTTPStatus.FORBIDDEN, "asked for by a name that is not this machine's; see --allow-host")
            return
        name = self.path.partition("?")[0].removeprefix("/") or PAGE
        try:
            if name == "version":
                self._answer(self.server.live.version().encode(), "text/plain; charset=utf-8")
                return
            contents = self.server.live.files().get(name)
        except EngramError as error:  # the folder is gone, say
            self._tell(HTTPStatus.GONE, str(error))
        except OSError as error:
            self._tell(HTTPStatus.INTERNAL_SERVER_ERROR, f"cannot read {error.filename}: {error.strerror or error}")
        except UNFIT as error:
            self._tell(HTTPStatus.INTERNAL_SERVER_ERROR, f"the report cannot be made: {why(error)}")
        else:
            if contents is None:
                self._tell(HTTPStatus.NOT_FOUND, "the report has no such file")
            else:
                self._answer(contents, TYPES.get(name.rpartition(".")[2], "application/octet-stream"))

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the library finds wrong with a request: malformed, too long, of a kind that is not served."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code = HTTPStatus.METHOD_NOT_ALLOWED
        self._tell(HTTPStatus(code), HTTPStatus(code).phrase)

    def _tell(self, status: HTTPStatus, text: str) -> None:
        """A status with a sentence."""
        self._answer(f"{plain(text)}\n".encode(), "text/plain; charset=utf-8", status)

    def _answer(self, contents: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.close_connection = True
        self.connection.settimeout(WRITING)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(contents)))
        self.send_header("Content-Security-Policy", PAGE_POLICY if kind == TYPES["html"] else FILE_POLICY)
        for name, value in ALWAYS.items():
            self.send_header(name, value)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(contents)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the terminal belongs to whoever started it."""
