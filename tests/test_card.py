"""The card: what it says is what the model's own facts say, whatever its classes are called."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from conftest import write_npz
from engram.cli import call
from engram.errors import RunError
from engram.evaluation.typicality import Typicality
from engram.experiment.run import run as run_benchmark
from engram.model.card import card, card_paths
from engram.model.card_page import Card, Section, Share, Table, as_html, as_markdown
from engram.model.history import history
from engram.model.lineage import Step
from engram.model.model import Model
from test_model import TOY, toy, write_folder

HOSTILE = "</td><script>alert('x')</script>|`$(\"*_[a](http://b.org)&amp;"
VOID = {"meta", "link", "img"}


class Page(HTMLParser):
    """Elements, texts and addresses of a page; every element must be closed by its own end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open += [] if tag in VOID else [tag]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += "" if "style" in self.open else data
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data


def section(made: Card, heading: str) -> Section:
    return next(one for one in made.sections if one.heading == heading)


def rows(made: Card, heading: str) -> dict[str, dict[str, str]]:
    """The section's table: first cell -> column -> text."""
    table = next(block for block in section(made, heading).blocks if isinstance(block, Table))
    words = [[cell.text if isinstance(cell, Share) else str(cell) for cell in row] for row in table.rows]
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in words}


def words(made: Card, heading: str) -> str:
    return " ".join(block for block in section(made, heading).blocks if isinstance(block, str))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes in May; in June a third, with test images of one of the others; more of one of them in July."""
    folder = tmp_path_factory.mktemp("card")
    model = toy()
    model.learn(write_folder(folder / "may", {"mug": 0, "ball": 5}, per_class=20))
    model.save(folder / "m.engram")
    write_folder(folder / "june/train", {"lamp": 9}, per_class=20)
    write_folder(folder / "june/test", {"lamp": 9, "mug": 0}, per_class=6)
    model.learn(folder / "june")
    model.learn(write_folder(folder / "july", {"lamp": 9}, per_class=15), update=True)
    model.save(folder / "products-v4.engram")
    return folder / "products-v4.engram"


def test_figures_are_those_of_the_lineage(trained: Path) -> None:
    model = Model.open(trained)
    made = card(model)
    told = rows(made, "Classes")
    assert list(told) == list(model.classes) == ["ball", "mug", "lamp"]
    second, third, fourth = (step.facts["evaluation"]["confusion"] for step in model.lineage[1:])
    right, of = fourth[2][2], sum(fourth[2])  # lamp was tested in July
    assert told["lamp"]["Test accuracy"].startswith(f"{100 * right / of:.0f} % of {of} (")
    assert told["lamp"]["Measured"].startswith("after task 4, ")
    assert told["lamp"]["Measured"].endswith("among 3 classes")
    right, of = third[1][1], sum(third[1])  # mug in June
    assert told["mug"]["Test accuracy"].startswith(f"{100 * right / of:.0f} % of {of} (")
    assert told["mug"]["Measured"].startswith("old figure: after task 3, ")
    assert told["mug"]["Measured"].endswith("among 3 classes; more was learned since")
    right, of = second[0][0], sum(second[0])  # ball in May, before there was a lamp
    assert told["ball"]["Test accuracy"].startswith(f"{100 * right / of:.0f} % of {of} (")
    assert told["ball"]["Measured"].startswith("old figure: after task 2, ")
    assert told["ball"]["Measured"].endswith("among 2 classes; 1 later one is not in it (lamp)")
    digests = [str(step.data["digest"])[:12] for step in model.lineage]
    assert told["lamp"]["From"] == f"folder:june ({digests[2]}); updated: folder:july ({digests[3]})"
    assert told["lamp"]["Images"] == "20; updated: 12"  # the rest of July was kept for testing
    assert [row["Id"] for row in told.values()] == ["0", "1", "2"]


def test_memory_growth_and_lineage_are_those_of_the_records(trained: Path) -> None:
    model = Model.open(trained)
    made, last = card(model), model.lineage[-1]
    size = rows(made, "Size by part")
    for part, count in last.facts["memory"]["bytes"].items():
        assert (part.capitalize() in size) == (count > 0)
        assert not count or size[part.capitalize()]["Bytes"] == f"{count:,}"
    assert size["File"]["Bytes"] == f"{trained.stat().st_size:,}"
    assert model.learner is not None
    net = model.learner.answer_net().state_dict()
    assert size["Classifier"]["Bytes"] == f"{sum(one.nbytes for one in net.values()):,}"
    grown = rows(made, "Growth of the generator")
    after = sum(layer["weights_after"] for layer in last.facts["growth"]["layers"])
    assert grown["Task 4"]["Weights after"] == f"{after:,}"
    steps = rows(made, "Lineage")
    said = ["ball (task 1)", "mug (task 2)", "lamp (task 3)", "more images of lamp (task 4)"]
    assert [row["What"] for row in steps.values()] == [f"learned {what}" for what in said]
    assert steps["3"]["Parent"] == str(model.lineage[2].parent)[:12]
    assert steps["1"]["Parent"] == "none noted"
    assert "3 classes, all stored bits" in words(made, "Memory unchanged")
    what = rows(made, "What it is")
    assert what["Digest"]["Value"] == model.digest
    assert what["Images"]["Value"].startswith("32 x 32 pixels, grey")


def test_trust_and_privacy_say_on_what_they_rest(trained: Path) -> None:
    model = Model.open(trained)
    made, record = card(model), model.lineage[-1].facts["calibration"]
    trust = rows(made, "How far answers can be trusted")
    assert model.trust is not None
    assert trust["Temperature"]["Value"] == f"{model.trust.temperature:.2f}"
    error = trust["Calibration error"]["Value"]
    assert error.startswith(f"{100 * record['ece_before']:.1f} points without, {100 * record['ece']:.1f} with")
    assert trust["Test images kept"]["Value"].endswith(f"(on {record['tested']} test images)")
    assert trust["Known from unknown"]["Value"] == trust["Unknown images noticed"]["Value"] == "not measured"
    drawings = f"{model.trust.calibration.drawings:,} drawings a class"
    assert drawings in words(made, "How far answers can be trusted")
    assert "For ball drawings alone speak" in words(made, "How far answers can be trusted")
    private = section(made, "Privacy")
    table = next(block for block in private.blocks if isinstance(block, Table))
    found = [(str(row[0]), str(row[1]), str(row[-1])) for row in table.rows]
    expected = {
        (name, f"task {1 + (step.task or 0)}", one["verdict"])
        for step in model.lineage
        for name, one in zip(step.facts["privacy"]["classes"], step.facts["privacy"]["found"], strict=True)
    }
    assert set(found) == expected
    assert len(found) == 4
    for limit in ("no training image is stored", "not differentially private", "stronger attack", "trunk"):
        assert limit in words(made, "Privacy")


def test_unknown_images_that_an_earlier_task_had_are_told_with_their_date(trained: Path) -> None:
    model = Model.open(trained)
    first, second, *others = model.lineage
    figures = {**second.facts["calibration"], "unknown": 1200, "auroc": 0.876, "rejected": 0.4321}
    model.lineage = (first, replace(second, facts={**second.facts, "calibration": figures}), *others)
    trust = rows(card(model), "How far answers can be trusted")
    assert trust["Known from unknown"]["Value"].startswith("0.88 (on 1,200 images of classes that were unknown then; ")
    assert "old figure: after task 2" in trust["Known from unknown"]["Value"]
    assert "among 2 classes; 1 later one is not in it (lamp)" in trust["Known from unknown"]["Value"]
    assert trust["Unknown images noticed"]["Value"] == "43.2 % (on 1,200 images; old figure, as above)"


def test_measured_privacy_is_told_with_interval() -> None:
    """Figures as a record has them, without the cost of measuring."""
    space = {"attack": [0.512, 0.481, 0.543], "near_copies": [0.004, 0, 0.01], "near_copies_of_real": [0.002, 0, 0.01]}
    found = {"pixels": space, "features": {**space, "attack": [0.7, 0.6, 0.8]}, "verdict": "copies training images: x"}
    facts = {"privacy": {"classes": ["mug"], "found": [found]}}
    model = toy()
    model.ids = {"mug": 0}
    model.lineage = (Step("learned", ("mug",), (0,), task=0, known=("mug",), facts=facts),)
    row = rows(card(model), "Privacy")["mug"]
    assert row["Attack on pixels"] == "0.51 (0.48 to 0.54)"
    assert row["Attack on features"] == "0.70 (0.60 to 0.80)"
    assert row["Near-copies"] == "0.4 % (real images 0.2 %)"
    assert row["Verdict"] == "copies training images: x"


def test_forgetting_rewrites_the_cards_and_says_what_may_remain(trained: Path, tmp_path: Path) -> None:
    model, path = Model.open(trained), tmp_path / "m.engram"
    model.save(path)
    assert {entry.name for entry in tmp_path.iterdir()} == {"m.engram", "m.card.md", "m.card.html"}
    before = [one.read_text() for one in card_paths(path)]
    assert all("None." in text.split("Forgotten classes")[-1] for text in before)
    assert call(["forget", str(path), "mug", "-q"]) == 0
    model = Model.open(path)
    for text, old in zip((one.read_text() for one in card_paths(path)), before, strict=True):
        assert text != old
        assert "trunk, the layers that all classes share, was trained on mug too" in text.replace("&#x27;", "'")
        assert str(model.digest) in text
    made = card(model)
    assert "mug" not in rows(made, "Classes")
    freed = model.lineage[-1].facts
    assert (
        rows(made, "Forgotten classes")["mug"]["Weights freed"] == f"{freed['weights']:,} of {freed['all_weights']:,}"
    )
    assert rows(made, "Forgotten classes")["mug"]["Classifier trained anew"] == "no"
    assert rows(made, "Classes")["lamp"]["Measured"].endswith("among 3 classes; mug forgotten since")
    assert f"freed {freed['bytes']:,} of these bytes" in words(made, "Size by part")
    model.relearn()
    made = card(model)
    assert "has been trained anew since" in words(made, "Forgotten classes")
    assert "traces may remain" not in words(made, "Forgotten classes")
    assert "the classifier was trained anew since" in rows(made, "Classes")["lamp"]["Measured"]
    assert "the classifier was trained anew since" in words(made, "How far answers can be trusted")


def test_a_class_that_comes_back_has_no_figures_of_its_former_self() -> None:
    def learned(name: str, number: int, among: tuple[str, ...], shares: list[float | None]) -> Step:
        counts = [[0 if share is None else 10] * len(among) for share in shares]
        facts = {"evaluation": {"classes": list(among), "accuracy": 0.5, "per_class": shares, "confusion": counts}}
        return Step("learned", (name,), (number,), task=number, known=among, facts=facts)

    steps = (
        learned("mug", 0, ("mug",), [1.0]),
        learned("ball", 1, ("mug", "ball"), [0.25, 0.75]),
        Step("forgot", ("mug",), (0,)),
        learned("mug", 2, ("ball", "mug"), [None, None]),
    )
    past = history(steps, {"ball": 1, "mug": 2})
    ball, mug = past.classes
    assert mug.accuracy is None
    assert ball.accuracy is not None
    assert (ball.accuracy.value, ball.accuracy.images, ball.accuracy.among) == (0.75, 20, (0, 1))
    assert past.later(ball.accuracy) == ["mug"]
    assert past.gone(ball.accuracy) == ["mug"]


def test_hostile_names_stay_texts(trained: Path) -> None:
    """Neither the table's cells nor the page's elements change with what a class is called."""
    model = Model.open(trained)
    plain = card(model)
    renamed = [replace(step, **_renamed(step)) for step in model.lineage]
    model.ids = {HOSTILE if name == "lamp" else name: number for name, number in model.ids.items()}
    model.lineage = tuple(renamed)
    made = card(model)
    page, tame = Page(as_html(made)), Page(as_html(plain))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in tame.tags]
    assert "script" not in {tag for tag, _ in page.tags}
    assert [len(row) for row in page.rows] == [len(row) for row in tame.rows]
    assert any(row[0] == HOSTILE for row in page.rows)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    text = as_markdown(made)
    bare = re.sub(r"```.*?```", "", text, flags=re.S)
    assert "<" not in bare
    tables = [line for line in bare.splitlines() if line.startswith("|")]
    others = [line for line in as_markdown(plain).splitlines() if line.startswith("|")]
    assert [_columns(line) for line in tables] == [_columns(line) for line in others]
    assert not re.search(r"(?<!\\)[`*_\[]", "".join(re.sub(r"`\w+`", "", line) for line in tables))


def _renamed(step: Step) -> dict[str, Any]:
    def name(word: str) -> str:
        return HOSTILE if word == "lamp" else word

    facts = {
        kind: {**record, "classes": list(map(name, record["classes"]))}
        if isinstance(record.get("classes"), list)
        else record
        for kind, record in step.facts.items()
    }
    return {key: tuple(map(name, getattr(step, key))) for key in ("classes", "known", "updated")} | {"facts": facts}


def _columns(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line))


def test_the_page_asks_nobody_and_shows_the_drawings(trained: Path) -> None:
    model = Model.open(trained)
    page = Page(card_paths(trained)[1].read_text())
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert str(policy).startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    addresses = [value for _, a in page.tags for key, value in a.items() if key in ("src", "href", "srcset", "action")]
    assert all(str(value).startswith(("data:", "#")) for value in addresses)
    assert not {"script", "iframe", "object", "form", "video"} & {tag for tag, _ in page.tags}
    assert "url(" not in card_paths(trained)[1].read_text()
    assert "@import" not in card_paths(trained)[1].read_text()
    targets = {a.get("id") for _, a in page.tags}
    assert {str(value)[1:] for value in addresses if str(value).startswith("#")} <= targets
    (picture,) = [str(a["src"]) for tag, a in page.tags if tag == "img"]
    image = Image.open(io.BytesIO(base64.b64decode(picture.removeprefix("data:image/png;base64,"))))
    assert image.size == (8 * 34 + 2, len(model.classes) * 34 + 2)
    assert [a["title"] for tag, a in page.tags if tag == "span" and "title" in a] == list(model.classes)


def test_a_model_that_knows_nothing_and_one_that_only_answers(trained: Path, tmp_path: Path) -> None:
    empty = toy()
    empty.save(tmp_path / "empty.engram")
    text = (tmp_path / "empty.card.md").read_text()
    assert "has learned nothing yet" in text
    assert "Accuracy: not measured." in text
    Page((tmp_path / "empty.card.html").read_text())
    model = Model.open(trained)
    model.save(tmp_path / "small.engram", with_generator=False)
    made = card(Model.open(tmp_path / "small.engram"))
    assert "only answers" in made.lead
    assert words(made, "Drawings") == "None: this model does not draw."
    assert words(made, "Memory unchanged").startswith("Not checked: this file only answers")
    assert set(rows(made, "Size by part")) == {"Classifier", "File"}
    assert "engram learn" not in as_markdown(made)
    assert rows(made, "Classes")["mug"] == rows(card(model), "Classes")["mug"]


def test_a_model_that_stores_images_says_so(tmp_path: Path) -> None:
    model = Model.create("icarl", settings={"exemplars.budget": 8, "classifier.epochs": 1, "runtime.threads": 1})
    model.learn(write_folder(tmp_path / "may", {"mug": 0, "ball": 5}))
    model.save(tmp_path / "m.engram", card=False)
    assert not any(path.exists() for path in card_paths(tmp_path / "m.engram"))
    made = card(model)
    assert rows(made, "What it is")["Strict"]["Value"].startswith("no: ")
    assert "stores real training images: icarl keeps K real images" in words(made, "Privacy")
    assert next(tile for tile in made.tiles if tile.label == "Real images stored").value == "yes"
    assert "Exemplars" in rows(made, "Size by part")
    assert "img" not in {tag for tag, _ in Page(as_html(made)).tags}
    model.save(tmp_path / "small.engram", with_generator=False)
    assert "they were left out of this file" in (tmp_path / "small.card.md").read_text()


def test_a_run_folder_has_a_card_and_what_is_missing_is_called_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_npz(tmp_path / "a.npz", classes=2)
    folder = run_benchmark(f"npz:{data}", "dgmw", settings=TOY, out=tmp_path / "run")
    assert call(["card", str(folder)]) == 0
    text = capsys.readouterr().out
    assert text == as_markdown(card(Model.open(folder)))
    assert "Not calibrated" in text
    assert "Whether drawings copy" in text
    assert "none: it was not read from a model file" in text
    lines = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    bare = [line for line in lines if json.loads(line)["kind"] in ("run", "task")]
    (folder / "records.jsonl").write_text("".join(bare))
    made = card(Model.open(folder))
    assert words(made, "Accuracy over time") == "Accuracy: not measured."
    assert rows(made, "Classes")["0"]["Test accuracy"] == "not measured"
    assert rows(made, "Classes")["0"]["Drawings recognised"] == "not measured"
    assert rows(made, "Privacy")["0"]["Verdict"] == "not measured"
    assert "Bytes of the memory by part: not measured" in words(made, "Size by part")
    Page(as_html(made))


def test_the_command_writes_either_kind(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("c.md", "c.html"):
        assert call(["card", str(trained), "--out", str(tmp_path / name)]) == 0
    markdown, page = (path.read_text() for path in card_paths(trained))
    assert (tmp_path / "c.md").read_text() == markdown
    assert (tmp_path / "c.html").read_text() == page
    assert call(["card", str(trained), "--out", str(tmp_path / "c.pdf")]) == 2
    assert "c.pdf: name a .md file" in capsys.readouterr().err


def test_a_card_that_cannot_be_written_leaves_the_model(trained: Path, tmp_path: Path) -> None:
    model, path = Model.open(trained), tmp_path / "m.engram"
    (tmp_path / "m.card.md").mkdir()
    with pytest.raises(RunError, match=r"cannot write .*m\.card\.md.*the model itself is written to") as caught:
        model.save(path)
    assert "\n" not in str(caught.value)
    assert Model.open(path).digest == model.digest
    assert not [entry for entry in tmp_path.iterdir() if entry.name.endswith(".tmp")]


def test_an_audit_file_is_counted_beside_the_model(tmp_path: Path) -> None:
    model = toy()
    model.learn(write_folder(tmp_path / "may", {"mug": 0}), audit=tmp_path / "m.audit")
    size = rows(card(model), "Size by part")["Audit file"]
    assert size["Bytes"] == f"{model.lineage[0].facts['audit']['bytes']:,}"
    assert "outside the model" in size["What it is"]


def test_a_model_of_one_class_says_what_it_calls_unknown(tmp_path: Path) -> None:
    """Too few images were held out for a typicality; with one, the unknown is told from the first class on."""
    model = toy()
    model.learn(write_folder(tmp_path / "may", {"mug": 0}))
    assert "Knows one class, mug, and answers it for every image." in card(model).lead
    assert model.trust is not None
    near = Typicality(0, 4, (0.0,), ((1.0,),), 3.0, (1.5,), (30,))
    model.trust = replace(model.trust, typicality=near)
    made = card(model)
    assert "Knows one class, mug, and calls an image unknown that is unlike its drawings." in made.lead
    assert "unlike all drawings is called unknown" in words(made, "How far answers can be trusted")


def test_what_is_not_in_the_accuracy_is_said_first_and_the_classifier_is_counted_once(tmp_path: Path) -> None:
    """Of the second month's data, no test images of the first month's classes are at hand."""
    model = toy()
    model.learn(write_folder(tmp_path / "may", {"mug": 0, "ball": 5}))
    tile = next(tile for tile in card(model).tiles if tile.label == "Accuracy")
    assert tile.detail == "of 4 test images"
    model.learn(write_folder(tmp_path / "june", {"lamp": 9}))
    made = card(model)
    assert next(tile for tile in made.tiles if tile.label == "Accuracy").detail == "of 2 test images of 1 of 3 classes"
    parts = [row[0] for block in section(made, "Size by part").blocks if isinstance(block, Table) for row in block.rows]
    assert parts.count("Classifier") == 1
