"""The served report against whoever comes: slow, rude, curious, or led here by somebody else's name."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from engram.errors import ConfigError
from engram.report import serve
from engram.report.build import Files, build
from engram.report.gather import gather
from engram.report.serve import Live, Server
from synthetic import write_run


@contextmanager
def served(live: Live, host: str = "127.0.0.1", names: tuple[str, ...] = ()) -> Iterator[Server]:
    with Server(host, 0, live, names=names) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def report_of(folder: Path) -> Live:
    return Live([folder], lambda version: build(gather([folder]), version=version, pngs=False), rest=0.0)


def still(**files: bytes) -> Live:
    """A report of a few files that never changes."""
    made = Files()
    made["index.html"] = b"<p>page"
    for name, contents in files.items():
        made[f"figures/{name}.svg"] = contents
    return Live([], lambda version: made)


def ask(
    server: Server, path: str = "/", *, host: str | None = None, method: str = "GET"
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body; over 127.0.0.1."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=host is not None)
        if host:
            connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def raw(server: Server, request: bytes) -> bytes:
    """What comes back for these bytes."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while part := connection.recv(65536):
                found += part
        except ConnectionResetError:
            pass
        return found


@pytest.fixture
def quiet(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Nothing is printed: the terminal belongs to whoever started the server."""
    yield
    time.sleep(0.1)
    assert capfd.readouterr() == ("", "")


def test_half_requests_do_not_hold_the_server(monkeypatch: pytest.MonkeyPatch, quiet: None) -> None:
    monkeypatch.setattr(serve, "READING", 1.0)
    with served(still()) as server, ExitStack() as stack:
        before = threading.active_count()
        for _ in range(3 * serve.MOST):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=60))
            half.sendall(b"GET / HTTP/1.1\r\nHost: 127")
        assert threading.active_count() - before <= serve.MOST
        deadline = time.monotonic() + 60
        while (status := ask(server)[0]) != 200 and time.monotonic() < deadline:
            assert status == 503, "told that it is busy, and not left waiting"
            time.sleep(0.2)
        assert status == 200
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.1)
        assert threading.active_count() <= before


def test_bytes_that_drip_have_no_more_time_than_others(monkeypatch: pytest.MonkeyPatch, quiet: None) -> None:
    monkeypatch.setattr(serve, "READING", 1.0)
    with served(still()) as server:
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as slow:
            ended = False
            for _ in range(100):
                try:
                    slow.sendall(b"G")
                except (BrokenPipeError, ConnectionResetError):
                    ended = True
                    break
                time.sleep(0.1)
        assert ended, "after ten seconds of a byte each tenth"


def test_a_closed_tab_prints_nothing(quiet: None) -> None:
    with served(still(big=b"x" * 20_000_000)) as server:
        for request in (b"", b"GET /figures/big.svg HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):
            for reset in (False, True):
                with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as tab:
                    if reset:
                        tab.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    tab.sendall(request)
                    if request:
                        tab.recv(10)
        assert ask(server)[0] == 200


def test_a_folder_that_vanished_is_said_to_be_gone(tmp_path: Path, quiet: None) -> None:
    run = write_run(tmp_path / "run", accuracy=[1.0, 0.9])
    with served(report_of(run)) as server:
        assert ask(server)[0] == 200
        shutil.rmtree(run)
        status, headers, body = ask(server)
        assert status == 410
        assert headers["Content-Type"].startswith("text/plain")
        assert b"is not a folder" in body
        assert ask(server, "/version")[0] == 200
        write_run(run, accuracy=[1.0])
        assert ask(server)[0] == 200, "and when it is back, so is the page"


def test_a_report_that_cannot_be_made_is_said_to_be_so(quiet: None) -> None:
    for error in (ValueError("odd"), OSError(5, "broken disc", "x"), RecursionError()):

        def fail(version: str, error: Exception = error) -> Files:
            raise error

        with served(Live([], fail)) as server:
            status, _, body = ask(server)
            assert status == 500
            assert body.count(b"\n") == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["records.jsonl", "config.json", "environment.json", "samples.png", ".lock"])
def test_a_pipe_in_a_run_folder_blocks_no_page(name: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", accuracy=[1.0, 0.9])
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)

    def ended(number: int, frame: object) -> None:
        raise AssertionError("still waiting for a pipe")

    before = signal.signal(signal.SIGALRM, ended)
    signal.alarm(120)
    try:
        with served(report_of(tmp_path)) as server:
            assert ask(server)[0] == 200
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


LED_HERE = (
    "evil.example",
    "evil.example:80",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "",
    "[",
    "a b",
)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_nobody_is_led_here_by_a_name_of_somebody_else(host: str, quiet: None) -> None:
    with served(still(), host, names=("report.lan",)) as server:
        assert ask(server)[0] == 200
        for name in ("localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]", "report.lan", "Report.LAN:8730"):
            assert ask(server, host=name)[0] == 200, name
        for name in LED_HERE:
            status, _, body = ask(server, host=name)
            assert status == 403, name
            assert b"--allow-host" in body
        # other machines know this one by its number or name, where it is shown to them
        for name in ("192.168.0.7:8730", "[fe80::1]:80", socket.gethostname()):
            assert ask(server, host=name)[0] == (403 if host == "127.0.0.1" and name != "localhost" else 200), name
        assert raw(server, b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n").split()[1] == b"403"
        assert raw(server, b"GET / HTTP/1.0\r\n\r\n").split()[1] == b"403"


def test_every_answer_says_what_it_may_do(quiet: None) -> None:
    with served(still(a=b"<svg><script>alert(1)</script></svg>")) as server:
        page, picture = ask(server), ask(server, "/figures/a.svg")
        for status, headers, _ in (
            page,
            picture,
            ask(server, "/none"),
            ask(server, "/version"),
            ask(server, host="x.y"),
        ):
            assert headers["X-Content-Type-Options"] == "nosniff", status
            assert headers["Referrer-Policy"] == "no-referrer"
            assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
            policy = headers["Content-Security-Policy"].split("; ")
            assert {"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'"} <= set(policy)
        assert picture[1]["Content-Type"] == "image/svg+xml"
        assert "sandbox" in picture[1]["Content-Security-Policy"].split("; ")
        assert "script-src" not in picture[1]["Content-Security-Policy"]
        assert "script-src 'unsafe-inline'" in page[1]["Content-Security-Policy"], "the page's own"


def test_odd_requests_get_a_clean_status(quiet: None) -> None:
    with served(still()) as server:
        status, headers, body = ask(server, method="HEAD")
        assert (status, headers["Content-Length"], body) == (200, "7", b"")
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get", "X" * 100):
            status, headers, _ = ask(server, method=method)
            assert (status, headers["Allow"]) == (405, "GET, HEAD"), method
        above = ("/../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/a\\..\\b", "/index.html/")
        for path in (*above, "/%00", "/index.html%00.svg", "/" + "x" * 60_000, "/" + "%41" * 10_000):
            assert ask(server, path)[0] == 404, path[:40]
        own = b"Host: localhost\r\n"
        for request, codes in (
            (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n" + own + b"\r\n", (b"414",)),
            (b"GET / HTTP/1.1\r\n" + own + b"X: " + b"y" * 70_000 + b"\r\n\r\n", (b"431",)),
            (b"GET / HTTP/1.1\r\n" + own + b"X: y\r\n" * 200 + b"\r\n", (b"431",)),
            (b"GET / HTTP/9.9\r\n" + own + b"\r\n", (b"505",)),
            (b"GET / HTTP/x\r\n\r\n", (b"400",)),
            (b"GET\r\n\r\n", (b"400",)),
            (b"\x16\x03\x01\x00\xff\xfe\r\n\r\n", (b"400",)),
        ):
            answer = raw(server, request)
            assert answer, request[:40]
            assert any(code in answer.split(b"\n")[0] for code in codes) or answer.startswith(
                (b"Bad", b"HTTP Version")
            ), (
                answer[:80]  # without a status line where the request named no version that there is
            )
        assert ask(server)[0] == 200


@pytest.mark.parametrize("host", ["a\0b", "x" * 300, "..", "256.1.1.1", "::zz"])
def test_a_host_that_is_none_is_one_line(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot serve at"):
        Server(host, 0, still())
