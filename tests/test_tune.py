"""A search for settings: what is drawn, who goes on, and what comes of it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from engram.config import as_dict
from engram.errors import ConfigError
from engram.experiment.folder import read_origin
from engram.experiment.records import read_records
from engram.experiment.request import Request
from engram.experiment.tune import (
    BEST,
    NAME,
    Choice,
    Range,
    Search,
    Space,
    Stopped,
    best_of,
    draw,
    goes_on,
    parse_space,
    rungs,
    tune,
)


def test_a_range_over_decades_is_drawn_evenly_in_the_logarithm() -> None:
    space = {"gan.learning_rate": Range(1e-4, 1e-1, False)}
    drawn = [float(draw(space, 0, number)["gan.learning_rate"]) for number in range(1, 401)]
    assert all(1e-4 <= value <= 1e-1 for value in drawn)
    by_decade = [sum(10.0**-k <= value < 10.0 ** (1 - k) for value in drawn) for k in (4, 3, 2)]
    assert all(abs(count - 400 / 3) < 4 * math.sqrt(400 * 2 / 9) for count in by_decade)


def test_whole_numbers_reach_both_ends_and_choices_all_values() -> None:
    space: Space = {"classifier.epochs": Range(2, 4, True), "classifier.augment": Choice(("none", "affine"))}
    drawn = [draw(space, 1, number) for number in range(1, 100)]
    assert {one["classifier.epochs"] for one in drawn} == {"2", "3", "4"}
    assert {one["classifier.augment"] for one in drawn} == {"none", "affine"}


def test_the_first_trial_is_what_there_was_and_others_repeat_by_their_seed() -> None:
    space = parse_space(["gan.learning_rate=1e-4..1e-2"])
    assert draw(space, 0, 0) == {}
    assert draw(space, 0, 3) == draw(space, 0, 3) != draw(space, 1, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gan.epochs", "is not GROUP.FIELD"),
        ("gan.epochs=", "is not GROUP.FIELD"),
        ("gan.epochs=5..1", "to a larger one"),
        ("gan.epochs=a..b", "two numbers"),
        ("gan.epochs=1..2..3", "two numbers"),
        ("gan.epochs=nan..2", "to a larger one"),
        ("gan.epochs=1..inf", "to a larger one"),
    ],
)
def test_a_space_that_is_none_is_one_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_space([text])


def test_a_name_that_stands_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="stands twice"):
        parse_space(["gan.epochs=1..2", "gan.epochs=3..4"])


def test_of_each_rung_the_best_third_goes_on() -> None:
    values = [0.1 * number for number in range(9)]
    went_on = [value for value in values if goes_on(value, [other for other in values if other != value], 3)]
    assert went_on == sorted(values)[-3:]
    assert rungs(100, 3) == [1, 3, 9, 27, 81]


class Written:
    """In the place of a process: writes the records of a run, a task a poll, with accuracies of its own."""

    polls = 0

    def __init__(self, folder: Path, accuracies: Sequence[float], wanted: int) -> None:
        self.folder, self.accuracies, self.ended = folder, accuracies, False
        folder.mkdir(parents=True, exist_ok=True)
        head = {
            "kind": "run", "format": 2, "dataset": {"name": "digits"}, "method": "dgmw", "seed": 0,
            "tasks": [[number] for number in range(wanted)],
        }  # fmt: skip
        (folder / "records.jsonl").write_text(json.dumps(head) + "\n")
        self.done = 0

    def poll(self) -> int | None:
        if self.ended or self.done == len(self.accuracies):
            return 0
        line = {"kind": "evaluation", "classes": list(range(self.done + 1)), "accuracy": self.accuracies[self.done]}
        with (self.folder / "records.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.done += 1
        return None

    def interrupt(self) -> None:
        self.ended = True

    def wait(self) -> int:
        return 0


def launcher(accuracies: Mapping[int, Sequence[float]]) -> Callable[[Sequence[str], Path, int], Written]:
    def start(command: Sequence[str], log: Path, threads: int) -> Written:
        folder = Path(command[command.index("--out") + 1])
        return Written(folder, accuracies[int(folder.name.rpartition("-")[2])], 4)

    return start


def search(out: Path, **more: object) -> Search:
    space = parse_space(["classifier.learning_rate=1e-4..1e-2"])
    return Search("digits", "finetune", space, out, preset="fast", **more)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engram.experiment.tune.POLL_SECONDS", 0.0)


def test_trials_that_fall_behind_are_stopped_and_the_first_never_is(tmp_path: Path) -> None:
    accuracies = {0: [1.0, 0.5, 0.4, 0.3], 1: [1.0, 0.9, 0.9, 0.8], 2: [1.0, 0.9, 0.5, 0.99], 3: [1.0, 0.9, 0.95, 0.7]}
    trials = tune(search(tmp_path / "s", trials=4), start=launcher(accuracies))
    # judged after 1 and 3 tasks: the third trial is behind the second there, the fourth is ahead
    assert [trial.status for trial in trials] == ["done", "done", "stopped", "done"]
    best = best_of(trials)
    assert best is not None
    assert best.number == 1
    assert best.score == 0.8


def test_a_search_that_was_stopped_goes_on_and_other_words_are_refused(tmp_path: Path) -> None:
    accuracies = {number: [1.0, 0.9, 0.8, 0.1 * number] for number in range(3)}
    with pytest.raises(Stopped):
        tune(search(tmp_path / "s", trials=3), start=launcher(accuracies), asked=lambda: True)
    assert json.loads((tmp_path / "s" / NAME).read_text())["trials"] == ["waiting"] * 3
    assert [trial.status for trial in tune(search(tmp_path / "s", trials=3), start=launcher(accuracies))] == [
        "done"
    ] * 3
    with pytest.raises(ConfigError, match="with other words"):
        tune(search(tmp_path / "s", trials=3, seed=1), start=launcher(accuracies))

    def never(command: Sequence[str], log: Path, threads: int) -> Written:
        raise AssertionError("all trials are done")

    assert len(tune(search(tmp_path / "s", trials=3), start=never)) == 3


def test_mistakes_in_the_space_are_found_before_anything_runs(tmp_path: Path) -> None:
    space = parse_space(["classifier.epochs=0,0"])
    wrong = Search("digits", "finetune", space, tmp_path / "s", preset="fast")
    with pytest.raises(ConfigError, match=r"classifier\.epochs"):
        tune(wrong, start=launcher({}))
    assert not (tmp_path / "s").exists()


def test_what_is_searched_for_cannot_be_set_and_test_images_not_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--set and --search"):
        search(tmp_path, settings={"classifier.learning_rate": "1"})
    with pytest.raises(ConfigError, match="in every trial"):
        search(tmp_path, settings={"stream.development": "false"})


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds other files"):
        tune(search(tmp_path), start=launcher({}))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_bad_setting_is_bettered_and_the_final_run_says_by_which_images(tmp_path: Path) -> None:
    """The command itself: joint training of three digits at a rate at which nothing is learned."""
    words = [
        sys.executable, "-m", "engram", "tune", "--dataset", "digits", "--method", "joint", "--preset", "fast",
        "--set", "stream.order=0,1,2", "--set", "stream.classes_per_task=3", "--set", "classifier.learning_rate=1e-7",
        "--out", str(tmp_path / "s"), "--trials", "3", "--jobs", "1",
    ]  # fmt: skip
    refused = subprocess.run(
        [*words, "--search", "classifier.learning_rate=1e-4..1e-2"], capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert "--set and --search" in refused.stderr
    words[words.index("classifier.learning_rate=1e-7")] = "classifier.epochs=1"
    words += ["--search", "classifier.learning_rate=1e-7,3e-3"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "best: trial" in done.stdout
    own = tomllib.loads((tmp_path / "s" / BEST).read_text())
    assert own["tuned_on"].startswith("held-out training images of digits")
    for folder in sorted((tmp_path / "s").glob("trial-*")):
        assert read_origin(folder).config.stream.development
    config = Request("digits", "joint", file=tmp_path / "s" / BEST, seed=1).config()
    assert config.stream.tuned_on == own["tuned_on"]
    assert not config.stream.development
    assert as_dict(config)["classifier"]["learning_rate"] == own["joint"]["classifier"]["learning_rate"]
    run = [sys.executable, "-m", "engram", "run", "-q", "--method", "joint", "--config", str(tmp_path / "s" / BEST)]
    subprocess.run([*run, "--out", str(tmp_path / "final")], check=True, capture_output=True)
    head = next(read_records(tmp_path / "final"))
    assert head["tuned_on"] == own["tuned_on"]
