"""What the paper claims, judged by rule: here every verdict is worked out by hand, for records written by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engram.report import claims
from engram.report.claims import FAILS, HOLDS, NO_RUN, UNTESTABLE
from engram.report.document_claims import CLAIMS
from engram.report.documents import END, update
from engram.report.gather import gather
from engram.report.groups import Group, by_folder
from synthetic import write_run

VERDICTS = {HOLDS, FAILS, UNTESTABLE, NO_RUN}
OURS = {"replay.classifier": "generated", "masks.fraction": 0.2, "masks.choice": "learned"}
PAPER = {
    "replay.classifier": "critic", "replay.keep_fraction": 1.0, "masks.fraction": 1.0, "masks.alpha": "units",
    "masks.growth": "paper", "masks.max_units_ratio": 0.0, "gan.rare_power": 0.0, "gan.beta1": 0.5, "gan.lambda_aux": 1,
    "gan.batch_size": 64, "gan.steps": 0, "gan.epochs": 20, "generator.ema_decay": 0.0, "critic.penalty_stride": 1,
}  # fmt: skip


def made(folder: Path, *ends: float, tasks: int = 4, first_seed: int = 0, **more: Any) -> Group:
    """A group of a seed for each A_t at the end."""
    for seed, end in enumerate(ends, first_seed):
        write_run(folder / f"seed{seed}", seed=seed, accuracy=[1.0] * (tasks - 1) + [end], **more)
    (found,) = by_folder(gather([folder]).runs)
    return found


def grown(units: Sequence[int], reused: Sequence[int] = (), weights: int = 100) -> list[str]:
    """Records of growth: units before the first task and after each; of ten entries a task uses, so many reused."""
    lines = []
    for task, (before, after) in enumerate(pairwise(units)):
        again = reused[task] if reused else 0
        layer = {
            "newly_reserved": 10 - again, "reused": again, "unused": 30, "units_before": before, "units_after": after,
            "weights_before": weights * before, "weights_after": weights * after,
        }  # fmt: skip
        lines.append(json.dumps({"kind": "growth", "task": task, "layers": [layer]}) + "\n")
    return lines


def kept(size: int, tasks: int = 4) -> str:
    return json.dumps({"kind": "memory", "task": tasks - 1, "bytes": {"weights": size, "masks": 1000}}) + "\n"


# ---------------------------------------------------------------- growth and sizes


@pytest.mark.parametrize(
    ("units", "end", "said"),
    [((20, 24, 28, 32, 36), 0.97, HOLDS), ((20, 30, 40, 50, 61), 0.97, FAILS), ((20, 24, 28, 32, 36), 0.95, FAILS)],
)
def test_slower_growth_is_fewer_units_in_every_seed_at_comparable_accuracy(
    units: Sequence[int], end: float, said: str, tmp_path: Path
) -> None:
    """The other adds 40 units, at 97 %."""
    weights = made(tmp_path / "w", end, end, more=grown(units))
    other = made(tmp_path / "a", 0.97, 0.97, method="dgma", more=grown((50, 60, 70, 80, 90)))
    found = claims.less_than(weights, other, claims.added_units, "units added", 1)
    assert found.verdict == said
    assert found.told.startswith(f"{units[-1] - 20} units added against 40; A_t ")
    later = made(tmp_path / "b", 0.97, method="dgma", first_seed=5, more=grown((50, 60, 70, 80, 90)))
    assert claims.less_than(weights, later, claims.added_units, "units added", 1).verdict == NO_RUN


def test_one_seed_that_is_not_less_is_enough_to_fail(tmp_path: Path) -> None:
    other = made(tmp_path / "a", 0.97, 0.97, method="dgma", more=[kept(5000)])
    write_run(tmp_path / "w" / "seed1", seed=1, accuracy=(1.0, 1.0, 1.0, 0.97), more=[kept(6000)])
    ours = made(tmp_path / "w", 0.97, more=[kept(1000)])
    assert [claims.stored_bytes(run) for run in ours.runs] == [2000, 7000]
    assert claims.less_than(ours, other, claims.stored_bytes, "MB", claims.MB).verdict == FAILS


def test_growth_is_sublinear_where_the_second_half_adds_less(tmp_path: Path) -> None:
    slower = made(tmp_path / "a", 0.9, more=grown((20, 30, 38, 44, 48)))
    faster = made(tmp_path / "b", 0.9, more=grown((20, 24, 28, 36, 44)))
    assert claims.sublinear(slower).told.endswith("18 and 10")
    assert [claims.sublinear(g).verdict for g in (slower, faster)] == [HOLDS, FAILS]
    assert claims.sublinear(made(tmp_path / "c", 0.9, generative=False)).verdict == NO_RUN


def test_smaller_than_a_generator_of_fixed_size_by_its_bytes(tmp_path: Path) -> None:
    fixed = json.dumps({"kind": "memory", "task": 3, "bytes": {"generator": 4 * 5000}}) + "\n"
    other = made(tmp_path / "m", 0.9, method="mergan", generative=False, more=[fixed])
    small = made(tmp_path / "a", 0.9, more=grown((20, 25, 30, 35, 40)))  # 4,000 weights
    large = made(tmp_path / "b", 0.9, more=grown((20, 30, 40, 50, 60)))
    held, failed = (claims.smaller(g, other, 0.26) for g in (small, large))
    assert (held.verdict, failed.verdict) == (HOLDS, FAILS)
    assert held.told == "4,000 parameters against 5,000: 20 % smaller (the paper: 26 % smaller)"
    assert "20 % larger" in failed.told


def test_what_is_kept_is_compared_with_all_training_images(tmp_path: Path) -> None:
    """Four tasks of 6,000 images of 32 x 32 bytes: 24.576 MB."""
    less, more = (made(tmp_path / str(size), 0.9, more=[kept(size)]) for size in (24_000_000, 25_000_000))
    assert claims.against_images(less).told == "24.00 MB against 24.6 MB"
    assert [claims.against_images(g).verdict for g in (less, more)] == [HOLDS, FAILS]


# ---------------------------------------------------------------- what masks do


@pytest.mark.parametrize(
    ("reused", "said"),
    [((0, 3, 5, 8), HOLDS), ((0, 8, 5, 8), FAILS), ((0, 3, 4, 5), FAILS)],
)
def test_reuse_has_to_rise_and_to_be_above_chance(reused: Sequence[int], said: str, tmp_path: Path) -> None:
    """Of 40 entries 10 + 7 + 5 and more are reserved before the last task: chance is 55 % and more."""
    found = claims.reuse_rises(made(tmp_path, 0.9, more=grown((20, 30, 40, 50, 60), reused)))
    chance = 100 * sum(10 - again for again in reused[:3]) / 40
    assert found.told.endswith(f"{10 * reused[3]:.1f} % at the last, where chance is {chance:.1f} %")
    assert found.verdict == said


def test_behind_a_bound_the_reuse_of_what_masks_opened_counts(tmp_path: Path) -> None:
    """The bound leaves 80 % reused at the end; the masks opened 60 % reserved entries, chance is 55 %."""
    lines = grown((20, 30, 40, 50, 60), (0, 3, 5, 8))
    bound = {"masks.max_units_ratio": 2.0}
    assert claims.reuse_rises(made(tmp_path / "old", 0.9, settings=bound, more=lines)).verdict == UNTESTABLE
    for share, said in {60: HOLDS, 50: FAILS}.items():
        told = [json.loads(line) for line in lines]
        for task, record in enumerate(told):
            record["layers"][0] |= {"opened_free": 100 - share, "opened_reserved": share if task > 1 else 10}
        new = [json.dumps(record) + "\n" for record in told]
        found = claims.reuse_rises(made(tmp_path / str(share), 0.9, settings=bound, more=new))
        assert f"{share}.0 % at the last, where chance is 55.0 %" in found.told
        assert found.verdict == said


def masks(*epochs: Sequence[float]) -> list[str]:
    """Mask values of one layer, an epoch a sequence; the layer's mean is theirs."""
    return [
        json.dumps(
            {"kind": "mask", "task": 0, "epoch": number, "s": 1.0, "occupancy": [sum(values) / len(values)],
             "sample": [list(values)]}
        ) + "\n"
        for number, values in enumerate(epochs, 1)
    ]  # fmt: skip


START, SPARSE, HALF_OPEN, BINARY = (0.5,) * 4, (0.0, 0.0, 0.0, 0.4), (0.0, 0.5, 0.5, 0.9), (0.0, 0.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("epochs", "parts"),
    [
        ((START, SPARSE, HALF_OPEN, BINARY, BINARY, BINARY), (True, True, True)),
        ((START, HALF_OPEN, HALF_OPEN, BINARY, BINARY, BINARY), (False, True, True)),
        ((START, SPARSE, SPARSE, SPARSE, SPARSE, SPARSE), (True, False, False)),
        ((START, SPARSE, HALF_OPEN, HALF_OPEN, BINARY, BINARY), (True, True, False)),
    ],
)
def test_a_masks_trajectory_has_three_parts(
    epochs: Sequence[Sequence[float]], parts: Sequence[bool], tmp_path: Path
) -> None:
    if parts == (False, True, True):  # the mean rises from 0.475 to the end's 0.75
        epochs = (*epochs[:-1], (0.0, 1.0, 1.0, 1.0))
    g = made(tmp_path, 0.9, mask_steps=0, more=masks(*epochs))
    found = claims.trajectory(g.runs[0])
    assert found is not None
    assert tuple(found.parts.values()) == parts
    assert claims.mask_trajectory(g).verdict == (HOLDS if all(parts) else FAILS)


def test_a_trajectory_needs_three_epochs(tmp_path: Path) -> None:
    assert claims.mask_trajectory(made(tmp_path, 0.9, mask_steps=0, more=masks(START, BINARY))).verdict == NO_RUN


# ---------------------------------------------------------------- accuracy


def test_the_better_of_ours_has_to_be_above_every_rival_in_every_common_seed(tmp_path: Path) -> None:
    weights, units = made(tmp_path / "w", 0.90, 0.91), made(tmp_path / "a", 0.95, 0.93, method="dgma")
    weak, strong = made(tmp_path / "dgr", 0.94, method="dgr"), made(tmp_path / "m", 0.94, 0.94, method="mergan")
    assert claims.above_all([weights, units], [weak]).verdict == HOLDS
    assert claims.above_all([weights, units], [weak, strong]).verdict == FAILS
    assert claims.above_all([weights], []).verdict == NO_RUN
    later = made(tmp_path / "e", 0.1, method="ewcm", first_seed=7)
    assert claims.above_all([weights, units], [weak, later]).verdict == NO_RUN


def test_above_at_one_station_and_below_at_another(tmp_path: Path) -> None:
    for name, accuracy in {"ours": (1.0, 0.9, 0.5), "theirs": (1.0, 0.8, 0.6)}.items():
        write_run(tmp_path / name / "seed0", accuracy=accuracy)
    ours, theirs = (by_folder(gather([tmp_path / name]).runs)[0] for name in ("ours", "theirs"))
    assert claims.crosses(ours, theirs, 2, 3).verdict == HOLDS
    assert claims.crosses(theirs, ours, 2, 3).verdict == FAILS
    assert claims.crosses(ours, theirs, 2, 3).told == "A_2, A_3: 90.00 / 50.00 against 80.00 / 60.00"
    assert claims.all_above(ours, [theirs], 2, 3).verdict == FAILS
    assert claims.near(ours, theirs, 3).verdict == FAILS
    assert claims.near(theirs, ours, 3).verdict == HOLDS


# ---------------------------------------------------------------- controls


def test_late_classes_are_those_of_the_second_half_but_the_last(tmp_path: Path) -> None:
    """Of five tasks the fourth alone: the first three are early, the fifth was seen in real images just now."""
    g = made(tmp_path, 0.9, tasks=5)
    (run,) = g.runs
    counts = [[0] * 5 for _ in range(5)]
    for i, right in enumerate((90, 80, 70, 30, 100)):
        counts[i][i], counts[i][0 if i else 1] = right, 100 - right
    line = {"kind": "evaluation", "task": 4, "classes": list(range(5)), "accuracy": 0.74, "forgetting": 0.0}
    path = run.folder / "records.jsonl"
    path.write_text(path.read_text() + json.dumps({**line, "confusion": counts}) + "\n")
    assert claims.late_classes(gather([tmp_path]).runs[0]) == pytest.approx(0.3)


@pytest.mark.parametrize(("end", "said"), [(0.4, HOLDS), (0.6, FAILS), (0.96, FAILS)])
def test_a_generator_that_cannot_take_in_loses_half_of_the_late_classes(end: float, said: str, tmp_path: Path) -> None:
    growing, fixed = made(tmp_path / "on", 0.96, 0.96), made(tmp_path / "off", end, end)
    found = claims.cannot_take_in(fixed, growing)
    assert found.verdict == said
    assert found.told.startswith(f"of the late classes {100 * end:.1f} % are right, with growth 96.0 %")


@pytest.mark.parametrize(
    ("shuffled", "random", "said"),
    [
        ((0.93, 0.95), (0.90, 0.91), HOLDS),  # 2 and 6 points less, with an error of nothing and of half a point
        ((0.95, 0.965), (0.90, 0.91), FAILS),  # 0 and 0.5 points less: within two standard errors
        ((0.97, 0.99), (0.90, 0.91), FAILS),  # better than learned
        ((0.93,), (0.90, 0.91), NO_RUN),
        ((0.93, 0.95), (), NO_RUN),
        ((0.95, 0.965), (), FAILS),
    ],
)
def test_learned_masks_are_better_by_more_than_two_standard_errors_or_not(
    shuffled: Sequence[float], random: Sequence[float], said: str, tmp_path: Path
) -> None:
    learned = made(tmp_path / "learned", 0.95, 0.97, settings={"masks.choice": "learned"})
    controls = [
        made(tmp_path / choice, *ends, settings={"masks.choice": choice})
        for choice, ends in {"shuffled": shuffled, "random": random}.items()
        if ends
    ]
    assert claims.learned_are_better(learned, controls).verdict == said


# ---------------------------------------------------------------- the table


def rows_of(folder: Path) -> list[list[str]]:
    page = folder / "page.md"
    page.write_text(f"<!-- table: claims -->\n{END}\n")
    update(page, folder)
    lines = [line for line in page.read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[2:-2].split(" | ")] for line in lines[2:]]


def test_where_there_is_no_run_the_table_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "digits" / "finetune" / "default" / "seed0", dataset="digits", method="finetune")
    rows = rows_of(tmp_path)
    assert {row[3] for row in rows} == {NO_RUN}
    assert sum(row[0] != "(the same)" for row in rows) == len(CLAIMS)


def test_every_claim_is_asked_of_ours_and_of_the_papers_algorithm(tmp_path: Path) -> None:
    place = tmp_path / "mnist"
    for method in ("dgmw", "dgma"):
        for label, own in {"default": OURS, "paper-20-epochs": PAPER}.items():
            made(place / method / label, 0.96, settings=own, method=method)
    made(place / "dgmw" / "growth-off", 0.3, settings={**OURS, "masks.growth": "off"})
    for choice in ("shuffled", "random"):
        made(place / "dgmw" / f"masks-{choice}", 0.95, settings={**OURS, "masks.choice": choice})
    made(place / "joint" / "default", 0.99, method="joint", bound="upper", strict=False, generative=False)
    made(place / "dgr" / "default", 0.9, method="dgr", generative=False)
    said, at = "", dict[str, list[tuple[str, str]]]()
    for row in rows_of(tmp_path):
        assert row[3] in VERDICTS
        said = said if row[0] == "(the same)" else row[0]
        at.setdefault(said.split(".")[0], []).append((row[2], row[3]))
    reuse = next(found for claim, found in at.items() if claim.startswith("The share of reused units"))
    assert [("our default" in text, "the paper's algorithm, 20 of 101 epochs" in text) for text, _ in reuse] == [
        (True, False), (True, False), (False, True), (False, True)
    ]  # fmt: skip
    growth = next(found for claim, found in at.items() if claim.startswith("Without growth"))
    # growth-off has one partner: it agrees with it in every other setting
    assert [verdict for _, verdict in growth] == [HOLDS]
    assert "[growth-off](mnist/dgmw/growth-off), `dgmw` [default](mnist/dgmw/default)" in growth[0][0]
    table_1 = next(found for claim, found in at.items() if claim.startswith("DGM is above"))
    assert [verdict for _, verdict in table_1] == [HOLDS, HOLDS]
    (learned,) = next(found for claim, found in at.items() if claim.startswith("Learning finds"))
    assert learned[1] == NO_RUN
    assert "two seeds of both controls are needed" in learned[0]


def test_stored_images_are_compared_with_icarl_on_the_same_images(tmp_path: Path) -> None:
    """Fifty classes, ten a task: A_30 and A_50 are after three and five tasks."""
    runs: list[tuple[str, str, dict[str, Any], tuple[float, float]]] = [
        ("dgmw", "default", {}, (0.35, 0.20)),
        ("dgmw", "exemplars-0.1", {"exemplars.ratio": 0.1}, (0.40, 0.30)),
        ("dgmw", "budget-1000", {"exemplars.budget": 1000}, (0.39, 0.25)),
        ("icarl", "budget-1000", {"exemplars.budget": 1000}, (0.38, 0.28)),
    ]
    for method, label, own, (middle, end) in runs:
        folder = tmp_path / "imagenet50" / method / label / "seed0"
        settings = {"generator.architecture": "dcgan", **OURS, **own}
        strict = method == "dgmw" and not own
        write_run(
            folder, dataset="imagenet50", variant="part of Tiny-ImageNet", method=method, strict=strict,
            accuracy=(0.9, 0.5, middle, 0.4, end), settings=settings,
        )  # fmt: skip
        ten_a_task(folder / "records.jsonl")
    found = {row[0].split(".")[0]: row for row in rows_of(tmp_path) if row[1] == "table 2, top-1"}
    assert [row[3] for row in found.values()] == [FAILS, HOLDS, HOLDS]
    sizes = [row for row in rows_of(tmp_path) if row[1].startswith("memory usage")]
    assert [row[3] for row in sizes] == [HOLDS, UNTESTABLE]


def ten_a_task(path: Path) -> None:
    """The records as if each task had brought ten classes; all images of a class are answered alike."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "run":
            line["tasks"] = [list(range(10 * t, 10 * t + 10)) for t in range(5)]
            line["class_names"] = [str(c) for c in range(50)]
        elif line["kind"] == "evaluation":
            seen = 10 * (line["task"] + 1)
            line["classes"] = list(range(seen))
            line["confusion"] = [[int(i == j) for j in range(seen)] for i in range(seen)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
