"""The command line under odd words: an exit code and one line for each, and never a traceback."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from engram.cli import call
from test_limits import at_most, made

__all__ = ["made"]  # a fixture

ODD = [
    "", " ", "-", "--", "=", ".", "..", "/", "~", "*", "0", "-1", "1e999", "nan", "9" * 5000, "٣", "\0", "\n",
    "\x1b[31m", "\udcff", "x" * 300, "a,b", ",,", "{}", "[]", "null", "True", "../../etc/passwd", "/dev/null/x",
    "/dev/full", "/dev/zero", "file:///x", "npz:", "folder:", "npz:/dev/zero", "folder:\0", "a=b", "stream.order=",
    "classifier.epochs=-0", "-h1", "😀", "mnist\0", "1_0",
]  # fmt: skip
COMMANDS = [
    "run --method ? --out O", "run --dataset ? --out O", "run --preset ? --out O", "run --config ? --out O",
    "run --resume --out ?", "run --seed ? --resume --out N", "run --set ? --resume --out N", "learn ? N", "learn M ?",
    "learn M N --method ?", "learn X N --set ?", "learn M N --audit ?", "learn M N --backbone ?", "predict ? I",
    "predict M ?", "predict M N --top ?", "predict M N --batch ?", "predict M I --format ?", "predict M N --backbone ?",
    "sample ?", "sample M --classes ? --out /dev/null/x", "sample M --per-class 1 --seed ? --out /dev/null/x",
    "sample M --per-class 1 --out ?", "verify ?", "verify M --audit ?", "card ?", "card M --out ?", "export ? --onnx O",
    "export M --engram ?", "export M --onnx ?", "forget M ?", "forget ? mug", "list ?", "list settings ?",
    "list presets ?", "bench --methods ? --out O", "bench --seeds ? --dataset N", "bench --dataset ? --methods N",
    "bench --jobs ? --methods N", "bench --set ? --methods N", "data check ?", "data check N --image-size ?", "data ?",
    "data select ? --out O", "report ?", "report N --out ?", "report N --against ?",
    "report R --watch --serve --port ?",
    "report R --watch --serve --host ?", "embed ? --backbone N --out O", "completion ?", "?",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_odd_words_end_in_one_line(
    command: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few of the odd words a command, chosen by its name; each ends in an exit code and in no traceback."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # a relative word is to leave nothing elsewhere
    monkeypatch.setattr("socketserver.BaseServer.serve_forever", lambda server: None)
    draws = random.Random(command)
    shutil.copy(made / "two.engram", tmp_path / "m.engram")
    image = next((made / "may" / "mug").iterdir())
    stands = {"M": tmp_path / "m.engram", "R": made / "run", "I": image, "O": tmp_path / "o", "N": tmp_path / "none"}
    stands["X"] = tmp_path / "new.engram"
    for odd in draws.sample(ODD, 4):
        words = [odd if word == "?" else str(stands.get(word, word)) for word in command.split()]
        capsys.readouterr()
        with at_most(100):
            try:
                code = call(words)
            except SystemExit as ended:  # help and such, of argparse
                code = int(ended.code or 0)
        said = capsys.readouterr().err
        assert code in (0, 1, 2, 3), words
        assert said.count("\n") == 1 if code in (2, 3) else "Traceback" not in said, (words, said)
        shutil.rmtree(tmp_path / "o", ignore_errors=True)
