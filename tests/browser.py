"""A headless Chromium, driven by its DevTools protocol over a pipe: no driver, no port, no package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip
PHONE = 600
"""Pixels of width below which a screen is a phone's."""
PATIENCE = 120.0
"""Seconds for one answer: other programs may want the processor too."""


def find() -> str | None:
    """The path of a browser, where one is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page. `events` gathers what it reports: requests, console messages, exceptions."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._rest = write, read, b""
        self._number, self._session = 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, url: str) -> None:
        """Load a page and wait until it is whole."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait("Page.loadEventFired")

    def wait(self, method: str) -> None:
        while not any(event["method"] == method for event in self.events):
            self._next()

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def resize(self, width: int, height: int, *, scale: float = 1, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < PHONE,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, *, whole: bool = False) -> bytes:
        """A screenshot as PNG: of what is seen, or of the whole page."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def requests(self) -> list[str]:
        """Every address that was asked for, but for data inside the page."""
        asked = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith("data:")]

    def complaints(self) -> list[Any]:
        """Console errors, warnings and exceptions."""
        found: list[Any] = [e["params"] for e in self.events if e["method"] == "Runtime.exceptionThrown"]
        found += [e["params"]["entry"] for e in self.events if e["method"] == "Log.entryAdded"]
        found += [
            e["params"]
            for e in self.events
            if e["method"] == "Runtime.consoleAPICalled" and e["params"]["type"] in ("error", "warning", "assert")
        ]
        return found

    def _next(self) -> dict[str, Any]:
        ends = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, ends - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        if "method" in answer:
            self.events.append(answer)
        return answer


@contextmanager
def browser(path: str, folder: Path) -> Iterator[Browser]:
    """Start it with an empty profile in this folder; end it."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # the protocol's pipes are the file descriptors 3 and 4 of the browser
    command = [
        "bash",
        "-c",
        f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}',
        "bash",
        path,
        *FLAGS,
        f"--user-data-dir={folder}",
    ]
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), stdout=log, stderr=log)
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_out, ours_in)
    finally:
        os.close(ours_out)
        os.close(ours_in)
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def shoot(page: Path, picture: Path, width: int, height: int) -> None:
    """The first screen of a page, as a PNG file."""
    path = find()
    if path is None:
        sys.exit("no Chromium is installed here: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile, browser(path, Path(profile)) as opened:
        opened.resize(width, height, scale=2 if width < PHONE else 1)
        opened.open(page.resolve().as_uri())
        picture.write_bytes(opened.picture())


if __name__ == "__main__":  # python tests/browser.py report/index.html docs/report.png 1280 800
    shoot(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
