"""The page: its weight, its silence on the network, and how it behaves in a real browser."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

import browser
from engram.cli import call
from engram.report.build import build
from engram.report.gather import gather
from engram.report.serve import Live, Server
from synthetic import write_run

TEN = [1.0, 0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.93, 0.92, 0.91]
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
METHODS = ["dgmw", "dgma", "dgr", "mergan", "ewcm", "icarl", "ewc-s", "si", "finetune", "joint"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, a bound, and every figure; on other data, a run that held images out."""
    runs = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(runs / f"w{seed}", seed=seed, accuracy=[*TEN[:9], 0.91 + 0.01 * seed], quality=True, mask_steps=20)
    write_run(runs / "a", method="dgma", accuracy=[*TEN[:9], 0.93], quality=True)
    write_run(runs / "j", method="joint", bound="upper", strict=False, accuracy=[0.99] * 10, generative=False)
    write_run(runs / "t", dataset="digits", accuracy=TEN, names=CLASSES, validation=0.1, attack=0.55)
    Image.new("L", (640, 640)).save(runs / "w0" / "grid.png")
    assert call(["report", str(runs), "--out", str(runs / "out")]) == 0
    return runs / "out"


def test_one_run_with_all_figures_weighs_little(tmp_path: Path) -> None:
    write_run(tmp_path / "run", accuracy=TEN, quality=True, mask_steps=40)
    Image.effect_noise((640, 640), 90).save(tmp_path / "run" / "samples.png")
    page = build(gather([tmp_path]), pngs=False)["index.html"]
    for figure in (
        "figure2",
        "figure3a",
        "figure3b",
        "figure4",
        "figure5",
        "forgetting",
        "confusion",
        "quality",
        "memory",
        "time",
    ):
        assert f'<figure id="{figure}' in page.decode(), figure
    assert len(page) < 3_000_000


def test_the_page_leads_nowhere_else(report: Path) -> None:
    """No address but its own files; the names of XML are no addresses that anybody asks for."""
    page = (report / "index.html").read_text()
    found = set(re.findall(r"(?:https?:)?//[^\s\"'<>]+", re.sub(r"^\s*//.*$", "", page, flags=re.MULTILINE)))
    assert found <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    for link in re.findall(r'(?:href|src)="([^"#]+)"', page):
        assert link.startswith("data:") or (report / link).exists(), link


def test_the_page_is_well_made(report: Path) -> None:
    """Tables have captions and scopes, figures have texts, names are unique, headings leave out no level."""

    class Reader(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.tags: list[tuple[str, dict[str, str | None]]] = []

        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            self.tags.append((tag, dict(attributes)))

    reader = Reader()
    reader.feed((report / "index.html").read_text())
    ids = [a["id"] for _, a in reader.tags if "id" in a]
    assert len(ids) == len(set(ids))
    count = [tag for tag, _ in reader.tags].count
    assert count("caption") == count("table") > 5
    assert all("scope" in a for tag, a in reader.tags if tag == "th")
    assert all(a.get("alt") for tag, a in reader.tags if tag == "img")
    assert all(a.get("aria-label") for tag, a in reader.tags if tag == "svg")
    levels = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))


def test_two_hundred_runs_in_seconds(tmp_path: Path) -> None:
    """Processor time, since another program may want the processor as well."""
    for method in METHODS:
        for seed in range(20):
            bound = {"finetune": "lower", "joint": "upper"}.get(method)
            write_run(
                tmp_path / "runs" / f"{method}-{seed}",
                method=method, seed=seed, bound=bound, strict=method not in ("icarl", "ewc-s", "joint"),
                accuracy=[*TEN[:9], 0.9 + 0.002 * seed], generative=method.startswith("dgm"), mask_steps=20,
            )  # fmt: skip
    code = (
        "import json, pathlib, resource, time\nfrom engram.cli import call\nbegan = time.monotonic()\n"
        f"assert call(['report', {str(tmp_path / 'runs')!r}, '--out', {str(tmp_path / 'out')!r}]) == 0\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "status = pathlib.Path('/proc/self/status')\n"
        # ru_maxrss of a new process starts from its parent's, and this one's parent has torch in it
        "lines = status.read_text().splitlines() if status.exists() else []\n"
        "peak = [int(line.split()[1]) for line in lines if line.startswith('VmHWM')] or [used.ru_maxrss]\n"
        "print(json.dumps([used.ru_utime + used.ru_stime, time.monotonic() - began, peak[0] * 1024]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    processor, wall, memory = json.loads(done.stdout.splitlines()[-1])
    assert processor < 10, f"{wall:.1f} s on the clock"
    assert memory < 500e6
    assert "200 runs" in done.stdout
    assert "± 1.18" in (tmp_path / "out" / "tables" / "table1-mnist.md").read_text()  # 0.2 * stdev(range(20)) per cent


@pytest.fixture(scope="module")
def page(report: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    path = browser.find()
    if path is None:
        pytest.skip("no Chromium is installed here: apt-get install chromium")
    with browser.browser(path, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


OPEN, CLOSE = (f"document.querySelectorAll('details').forEach((f) => {{ f.open = {v}; }})" for v in ("true", "false"))


def _soon(page: browser.Browser, condition: str) -> bool:
    """Whether it comes true within seconds: a page scrolls at leisure."""
    script = (
        f"(async () => {{ for (let i = 0; i < 100 && !({condition}); i++) await new Promise((r) => setTimeout(r, 50));"
    )
    return bool(page.run(f"{script} return {condition}; }})()"))


def click(page: browser.Browser, selector: str) -> None:
    """As a hand does it, which needs no script."""
    page.run(f"document.querySelector('{selector}').scrollIntoView({{behavior: 'instant', block: 'center'}})")
    middle = "((box) => [box.x + 20, box.y + box.height / 2])"
    x, y = page.run(f"{middle}(document.querySelector('{selector}').getBoundingClientRect())")
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


@pytest.mark.xdist_group("browser")
class TestInABrowser:
    def test_it_loads_in_silence(self, page: browser.Browser, report: Path) -> None:
        address = (report / "index.html").as_uri()
        page.resize(1200, 850)
        page.open(address)
        assert page.requests() == [address]
        assert page.complaints() == []

    def test_closed_it_is_short_and_begins_with_cards_and_contents(self, page: browser.Browser, report: Path) -> None:
        for width, height in ((1280, 800), (400, 844)):
            page.resize(width, height)
            page.open((report / "index.html").as_uri())
            assert page.run("document.querySelectorAll('details[open]:not(details details)').length") == 0
            assert page.run("document.documentElement.scrollHeight") < 2 * height
            assert page.run("document.querySelector('nav').getBoundingClientRect().bottom") < height
            page.run(OPEN)
            assert page.run("document.documentElement.scrollHeight") > 5 * height

    @pytest.mark.parametrize("target", ["data-mnist", "figure4-mnist", "privacy-digits", "runs-all"])
    def test_a_link_opens_what_it_leads_to(self, page: browser.Browser, report: Path, target: str) -> None:
        """In the address, by a click, and by a second click after it was closed."""
        page.resize(1280, 800)
        there = f"document.getElementById('{target}')"
        open_ = f"{there}.checkVisibility() && {there}.closest('details').open"
        seen = f"({open_} && Math.abs({there}.getBoundingClientRect().top) < innerHeight)"
        still = "document.documentElement.style.scrollBehavior = 'auto'"
        address = (report / "index.html").as_uri()
        page.open(f"{address}?{target}#{target}")
        assert _soon(page, seen)
        page.open(f"{address}?click-{target}")
        page.run(f"{still}; document.querySelector('.skip').href = '#{target}'")
        for _ in range(2):
            page.run(CLOSE)
            assert not page.run(seen)
            page.run("document.querySelector('.skip').click()")
            assert _soon(page, seen)

    def test_all_sections_open_and_close_at_once(self, page: browser.Browser, report: Path) -> None:
        page.open((report / "index.html").as_uri())
        for text, count in (("Close all sections", "0"), ("Open all sections", "folds.length")):
            page.run("document.getElementById('open-all').click()")
            assert page.run("document.getElementById('open-all').textContent") == text
            assert page.run(f"folds.filter((fold) => !fold.open).length === {count}")

    def test_sorting(self, page: browser.Browser, report: Path) -> None:
        page.open((report / "index.html").as_uri())
        rows = "document.querySelectorAll('#table1-mnist tbody')[0].querySelectorAll('tr:not(.section)')"
        first = f"[...{rows}].map(r => r.cells[0].textContent)"
        heads = "[...document.querySelectorAll('#table1-mnist thead button')]"
        click = f"{heads}.find(b => b.textContent === 'A_10 %').click()"
        before = page.run(first)
        assert sorted(before) == ["dgma", "dgmw"]
        page.run(click)
        assert page.run(first) == ["dgma", "dgmw"]  # 93.0, then the mean of 91 and 92
        page.run(click)
        assert page.run(first) == ["dgmw", "dgma"]
        assert page.run("document.querySelectorAll('#table1-mnist [aria-sort=ascending]').length") == 1
        assert page.run("document.querySelector('#table1-mnist tbody tr').textContent") == "Strict"
        assert page.complaints() == []

    def test_hiding_a_method(self, page: browser.Browser, report: Path) -> None:
        page.open((report / "index.html").as_uri())
        page.run(OPEN)
        boxes = "[...document.querySelectorAll('#methods label')]"
        page.run(f"{boxes}.find(l => l.textContent.trim() === 'dgma').firstChild.click()")
        assert page.run("[...document.querySelectorAll('tr[data-method=dgma]')].every(r => r.offsetHeight === 0)")
        assert page.run("[...document.querySelectorAll('tr[data-method=dgmw]')].every(r => r.offsetHeight > 0)")

    def test_values_under_the_pointer_and_by_key(self, page: browser.Browser, report: Path) -> None:
        page.open((report / "index.html").as_uri())
        key = "new KeyboardEvent('keydown', {key: 'ArrowRight'})"
        page.run(f"document.querySelector('[id^=figure2] .plot').dispatchEvent({key})")
        assert page.run("document.getElementById('tip').textContent") == "dgma, classes seen 1: 100.00 %"
        assert page.run("!document.getElementById('tip').hidden")

    def test_type_is_of_one_size_in_all_figures(self, page: browser.Browser, report: Path) -> None:
        page.resize(1280, 800)
        page.open((report / "index.html").as_uri())
        page.run(OPEN)
        scale = "(s) => s.getBoundingClientRect().width / s.viewBox.baseVal.width"
        scales = page.run(f"[...document.querySelectorAll('.plot svg')].map({scale})")
        assert len(scales) > 8
        assert scales == [pytest.approx(1.0, abs=0.01)] * len(scales)

    @pytest.mark.parametrize(("width", "height"), [(1200, 850), (390, 844)])
    def test_it_fits(self, page: browser.Browser, report: Path, width: int, height: int, tmp_path: Path) -> None:
        page.resize(width, height)
        page.open((report / "index.html").as_uri())
        assert page.run("document.documentElement.scrollWidth") <= width
        (tmp_path / "seen.png").write_bytes(page.picture())
        with Image.open(tmp_path / "seen.png") as seen:
            assert seen.size == (width, height)
            assert len(seen.convert("L").getcolors(256) or []) > 20
        # the answers stand on the first screen
        assert page.run("document.querySelector('.card dl').getBoundingClientRect().bottom") < height

    @pytest.mark.parametrize("scripts", [True, False])
    def test_it_fits_on_paper(self, page: browser.Browser, report: Path, scripts: bool) -> None:
        """All of it: what is folded on the screen is printed too."""
        page.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        page.call("Emulation.setDeviceMetricsOverride", width=703, height=1032, deviceScaleFactor=1, mobile=False)
        page.call("Emulation.setEmulatedMedia", media="print")  # what an A4 page holds between its margins
        try:
            page.open((report / "index.html").as_uri())
            wide = "#runs-all table"  # on a landscape page of its own
            script = f"[...document.querySelectorAll('table, svg')].filter(t => !t.matches(`{wide}`))"
            assert page.run(f"{script}.filter(t => t.getBoundingClientRect().right > innerWidth).length") == 0
            assert page.run(f"{script}.length") > 5
            assert page.run(f"{script}.every(t => t.checkVisibility() && t.getBoundingClientRect().height > 0)")
            assert page.run("document.documentElement.scrollHeight") > 5000
        finally:
            page.call("Emulation.setScriptExecutionDisabled", value=False)
            page.call("Emulation.setEmulatedMedia", media="")
            page.call("Emulation.clearDeviceMetricsOverride")

    def test_it_reads_without_scripts(self, page: browser.Browser, report: Path) -> None:
        page.call("Emulation.setScriptExecutionDisabled", value=True)
        try:
            page.open((report / "index.html").as_uri())
            text = page.run("document.body.innerText")
            assert page.run("document.querySelectorAll('.plot svg').length") > 8
            assert not page.run("document.getElementById('table1-mnist').checkVisibility()")
            click(page, "#data-mnist > summary")
            assert page.run("document.getElementById('table1-mnist').checkVisibility()")
            assert page.run("document.getElementById('open-all').hidden"), "it would do nothing"
        finally:
            page.call("Emulation.setScriptExecutionDisabled", value=False)
        assert "93.00" in text
        assert page.run("document.getElementById('methods').hidden")

    def test_a_served_page_shows_news(self, page: browser.Browser, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", accuracy=[1.0], tasks=3)
        live = Live([run], lambda version: build(gather([run]), version=version, pngs=False), rest=0.0)
        with Server("127.0.0.1", 0, live) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            page.open(server.address)
            assert "1 of 3" in page.run("document.body.textContent")
            page.run("document.getElementById('runs-all').open = true")
            write_run(run, accuracy=[1.0, 0.9], tasks=3)
            page.events.clear()
            page.wait("Page.loadEventFired")
            assert "2 of 3" in page.run("document.body.textContent")
            assert page.run("folds.filter((f) => f.open).map((f) => f.id)") == ["data-mnist-1", "runs-all"]
            assert page.complaints() == []
            assert all(url.startswith(server.address) for url in page.requests())
            server.shutdown()


def test_a_server_serves_the_report_and_nothing_else(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", accuracy=[1.0, 0.9])
    live = Live([run], lambda version: build(gather([run]), version=version, pngs=False), rest=0.0)

    def get(path: str, host: str | None = None) -> tuple[int, bytes]:
        request = urllib.request.Request(server.address + path, headers={"Host": host} if host else {})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, b""

    with Server("127.0.0.1", 0, live) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert b"Table 1" in get("")[1]
        assert get("tables/table1-mnist.csv")[0] == 200
        for path in ("../run/config.json", "%2e%2e/config.json", "records.jsonl", "tables/", "tables", "//etc/passwd"):
            assert get(path)[0] == 404, path
        assert get("", host="evil.example:80")[0] == 403
        before = get("version")[1]
        assert before == get("version")[1]
        write_run(tmp_path / "run", accuracy=[1.0, 0.9, 0.8])
        assert get("version")[1] != before
        server.shutdown()


def test_serving_ends_with_ctrl_c(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", accuracy=[1.0], tasks=2)
    command = [sys.executable, "-m", "engram", "report", "--watch", str(run), "--serve", "--port", "0"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores Ctrl-C
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[0]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert b"stopped; last" in answer.read()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "engram: interrupted\n"


def test_watching_writes_anew_when_records_arrive(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", accuracy=[1.0], tasks=2)
    page = tmp_path / "out" / "index.html"
    command = [sys.executable, "-m", "engram", "report", "--watch", str(run), "--out", str(tmp_path / "out")]

    def wait_for(text: bytes) -> None:
        for _ in range(600):
            if page.exists() and text in page.read_bytes():
                return
            time.sleep(0.1)
        raise AssertionError(f"{text!r} never came")

    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            wait_for(b"1 of 2")
            write_run(run, accuracy=[1.0, 0.9])
            wait_for(b"2 of 2")
        finally:
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, b"engram: interrupted\n")
