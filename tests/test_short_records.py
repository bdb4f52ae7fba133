"""Records of many classes: as long as what is new asks for, and read alike in either form."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.evaluation import metrics
from engram.evaluation.evaluate import Evaluation
from engram.evaluation.quality import Quality
from engram.model.card_figures import _tested
from engram.model.history import history
from engram.model.lineage import Step
from engram.report import records as kinds

MATRICES = st.integers(1, 12).flatmap(
    lambda n: st.lists(st.lists(st.sampled_from([0, 0, 0, 0, 1, 57]), min_size=n, max_size=n), min_size=n, max_size=n)
)


@given(MATRICES)
def test_a_matrix_comes_back_from_either_form(confusion: list[list[int]]) -> None:
    plain = json.loads(json.dumps(metrics.as_plain(confusion)))
    assert metrics.counts(plain) == confusion
    assert metrics.counts(confusion) == confusion
    assert len(json.dumps(plain)) <= len(json.dumps(confusion))


@given(st.lists(st.none() | st.floats(0, 1), max_size=40))
def test_values_come_back_from_either_form(values: list[float | None]) -> None:
    plain = json.loads(json.dumps(metrics.by_place(values)))
    assert metrics.values(plain, len(values)) == values
    assert metrics.values(values, len(values)) == values


@pytest.mark.parametrize(
    "plain",
    [
        {"right": [1, 2], "wrong": [[2, 1], []]},
        {"right": [1, 2], "wrong": [[-1, 1], []]},
        {"right": [1, 2], "wrong": [[0, 1], []]},
        {"right": [1, 2], "wrong": [[1], []]},
        {"right": [1, 2], "wrong": [[]]},
        {"right": [1] * 5001, "wrong": [[]] * 5001},
        {"right": [1, 2]},
        "matrix",
        None,
    ],
    ids=["class 2 of 2", "class -1", "itself", "no count", "a row short", "too large", "half", "text", "nothing"],
)
def test_what_is_no_matrix_is_refused(plain: Any) -> None:
    with pytest.raises(ValueError, match=r"confusion matrix|cannot be taken|zip"):
        metrics.counts(plain)


def evaluation(classes: int, images: int = 10, right: float = 0.7) -> Evaluation:
    """Of so many images a class, so many answered rightly, the others taken for any class."""
    draws = random.Random(classes)
    confusion = [[0] * classes for _ in range(classes)]
    for i in range(classes):
        for _ in range(images):
            confusion[i][i if draws.random() < right else draws.randrange(classes)] += 1
    return Evaluation(tuple(range(classes)), confusion, [0] * classes)


def test_records_of_300_classes_one_at_a_time_come_to_less_than_two_megabytes() -> None:
    """What grows with the classes: scores and the quality of drawings. Whole matrices alone would be 18."""
    total = whole = 0
    for classes in range(1, 301):
        scores = evaluation(classes)
        unknown: list[float | None] = [None] * (classes - 1)
        quality = Quality([0.985] * classes, [*unknown, 0.97], [*unknown, 0.95])
        for record in (scores.as_record(), quality.as_record()):
            total += len(json.dumps(record, separators=(",", ":")))
        whole += len(json.dumps(scores.confusion, separators=(",", ":")))
    assert whole > 18e6
    assert total < 1.8e6, f"{total:,} bytes, which leaves some for the records that do not grow"


def as_whole(record: dict[str, Any]) -> dict[str, Any]:
    """As it was written before there was a short form."""
    confusion = metrics.counts(record["confusion"])
    return {**record, "confusion": confusion, "per_class": [row[i] / sum(row) for i, row in enumerate(confusion)]}


def test_the_report_reads_both_forms_alike() -> None:
    record = {"kind": "evaluation", "task": 29, **evaluation(30).as_record(), "forgetting": 0.1}
    assert isinstance(record["confusion"], dict)
    assert "per_class" not in record
    assert kinds.evaluation(record) == kinds.evaluation(as_whole(record))
    measured = {"task": 29, "classes": [str(n) for n in range(30)]}
    unknown: list[float | None] = [None] * 29
    quality = Quality([0.9] * 30, [*unknown, 0.7], [*unknown, 0.6])
    assert isinstance(quality.as_record()["precision"], dict)
    assert kinds.quality({**measured, **quality.as_record()}) == kinds.quality({**measured, **vars(quality)})


def test_a_model_s_history_reads_both_forms_alike() -> None:
    record = evaluation(30).as_record()
    names = tuple(f"c{n}" for n in range(30))
    found = []
    for facts in (record, as_whole(record)):
        step = Step(
            "learned", names, tuple(range(30)), known=names, facts={"evaluation": {**facts, "classes": [*names]}}
        )
        past = history([step], {name: number for number, name in enumerate(names)})
        found.append((past.classes, past.overall, _tested(past, past.overall[0])))
    assert found[0] == found[1]
    assert found[0][1][0].images == 300
    assert found[0][2] == 30
