"""The card's sections on trust: calibrated answers, and what drawings give away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engram.evaluation.calibration import Calibration
from engram.evaluation.privacy import FEWEST
from engram.methods.learner import Samples
from engram.model.card_figures import NOT_MEASURED, NOT_NOTED, changes, counted, listed, measured, percent, task_of
from engram.model.card_page import Block, Cell, Section, Table
from engram.model.history import Figure, History, OfClass
from engram.model.model import Model

# ---------------------------------------------------------------- calibration


def calibration(model: Model, past: History) -> Section:
    """Temperature, threshold, and how good they were on test images."""
    heading, trust = "How far answers can be trusted", model.trust
    if trust is None:
        return Section(
            heading,
            (
                "Not calibrated: no images were held out of the training to measure on. Probabilities are the "
                f"network's own, and no image is called unknown. Calibration error: {NOT_MEASURED}. Share of images "
                f"kept: {NOT_MEASURED}.",
            ),
        )
    now = trust.calibration
    if len(model.classes) < 2 and now.threshold == 0:
        few = "Among fewer than two classes every probability is 1: there is nothing to calibrate yet."
        unlike = " An image whose features are unlike all drawings is called unknown." if trust.typicality else ""
        return Section(heading, (few + unlike,))
    return Section(heading, tuple(_calibrated(now, past, model)))


def _calibrated(now: Calibration, past: History, model: Model) -> Iterator[Block]:
    place, record = past.last("calibration") or (None, {})
    yield (
        "A probability is meant to say how often such an answer is right. Scores are therefore divided by a "
        "temperature, and an image whose best probability is below a threshold is called unknown"
        + (", and so is one whose features are unlike all drawings." if model.trust and model.trust.typicality else ".")
    )
    yield Table(("Figure", "Value", "What it means"), tuple(_trust_rows(now, record, *_against_unknown(past, place))))
    yield _made_from(now, model.classes)
    if place is not None:
        figure = Figure(now.temperature, place, past.known_after(place))
        yield f"Measured {measured(past, figure)}."
        if changes(past, figure):
            yield "The threshold was set anew since, from drawings; the figures on test images are those of then."


def _against_unknown(past: History, place: int | None) -> tuple[Mapping[str, Any], str]:
    """The last record with images of unknown classes, and when that was, if not at the place of the others."""
    found = past.last("calibration", "auroc")
    if found is None or found[0] == place:
        return {} if found is None else found[1], ""
    figure = Figure(0.0, found[0], past.known_after(found[0]))
    return found[1], f"; old figure: {measured(past, figure)}"


def _trust_rows(
    now: Calibration, record: Mapping[str, Any], against: Mapping[str, Any], since: str
) -> Iterator[tuple[Cell, ...]]:
    tested, strange = record.get("tested"), against.get("unknown")
    on = f" (on {counted(tested, 'test image')})" if tested else ""
    yield "Temperature", f"{now.temperature:.2f}", "above 1: the network was too sure of itself; below 1: not enough"
    error = NOT_MEASURED
    if "ece" in record:
        error = f"{100 * record['ece_before']:.1f} points without, {100 * record['ece']:.1f} with the temperature{on}"
    yield "Calibration error", error, "how far probability and share of right answers lie apart (ECE); 0 is best"
    yield (
        "Threshold",
        f"{now.threshold:.3f}" if now.threshold < 0.999 else f"{now.threshold:.6f}",
        "the least probability of an image that is not called unknown",
    )
    kept = percent(record["kept"], tested) + on if "kept" in record else NOT_MEASURED
    yield "Test images kept", kept, "of known classes, the share that is not called unknown; 95 % is aimed at"
    others = f" (on {counted(strange, 'image')} of classes that were unknown then{since})" if strange else ""
    area = f"{against['auroc']:.2f}{others}" if "auroc" in against else NOT_MEASURED
    yield "Known from unknown", area, "chance that a known image is surer than an unknown one (AUROC); 0.5 is guessing"
    others = f" (on {counted(strange or 0, 'image')}{'; old figure, as above' if since else ''})"
    out = percent(against["rejected"], strange) + others if "rejected" in against else NOT_MEASURED
    yield "Unknown images noticed", out, "of images of other classes, the share that is called unknown"


def _made_from(now: Calibration, names: Sequence[str]) -> str:
    counts = [f"{name}: {count:,}" for name, count in zip(names, now.held_out, strict=False)]
    real = f"held-out real images ({listed(counts, 20)}), which are not kept"
    if not now.drawings:
        return f"Made from {real}. The model does not draw, so nothing of this was measured for classes of past tasks."
    without = [name for name, count in zip(names, now.held_out, strict=False) if not count]
    alone = f" For {listed(without)} drawings alone speak: none of their images were measured." if without else ""
    return f"Made from {now.drawings:,} drawings a class and {real}.{alone}"


# ---------------------------------------------------------------- privacy


def privacy(model: Model, past: History) -> Section:
    """What is promised, what was tested, what is not promised."""
    blocks: list[Block] = [_stored(model)]
    if isinstance(model.learner, Samples) or any(one.privacy for one in past.classes):
        blocks += _tested(past)
        blocks.append(
            "What this does not promise: these are tests that copying can fail, no proof that nothing leaks, and a "
            "stronger attack may find more. Training was not differentially private. The tests look at drawings "
            "alone: nobody attacked the classifier, whose trunk (the layers that all classes share) has learned from "
            "every class."
        )
    else:
        blocks.append(
            f"The model cannot draw. What its network gives away about its training images: {NOT_MEASURED}. Training "
            "was not differentially private."
        )
    return Section("Privacy", tuple(blocks))


def _stored(model: Model) -> str:
    if model.answers_only:
        kept = (
            ""
            if model.learns_strictly
            else f" {model.config.method} keeps real images; they were left out of this file."
        )
        return f"What is promised: this file holds a network that answers, and no image.{kept}"
    if model.is_strict:
        return "What is promised: no training image is stored in the model, neither of past tasks nor of the last."
    return (
        f"This model stores real training images: {model.config.method} keeps {model.stores}. Whoever has the file has "
        "these images."
    )


def _tested(past: History) -> list[Block]:
    columns = ("Class", "After", "Attack on pixels", "Attack on features", "Near-copies", "Verdict")
    rows = tuple(row for one in past.classes for row in _privacy_rows(past, one))
    if not rows:
        return [f"Whether drawings copy training images: {NOT_MEASURED}."]
    return [
        "Whether drawings copy training images was tested when each task was learned, while its images could be read. "
        "Attack: how well somebody who sees drawings alone can tell training images from others (area under the ROC "
        "curve with its 95 % interval; 0.50 is guessing), by pixels and by the classifier's features. Near-copies: the "
        "share of drawings that are far nearer to one training image than to any other, and the same share of real "
        f"images that copy nothing. Fewer than {FEWEST} held-out images of a class say too little.",
        Table(columns, rows),
    ]


def _privacy_rows(past: History, one: OfClass) -> Iterator[tuple[Cell, ...]]:
    for place, found in one.privacy:
        spaces = [found.get(space) for space in ("pixels", "features")]
        attacks = [_interval(space["attack"]) if space else NOT_MEASURED for space in spaces]
        verdict = str(found.get("verdict", NOT_MEASURED))
        yield one.name, task_of(past.steps[place]), *attacks, _copies(spaces), verdict
    if not one.privacy:
        yield one.name, NOT_NOTED, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED


def _interval(estimate: Sequence[float]) -> str:
    value, low, high = estimate
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def _copies(spaces: Sequence[Mapping[str, Any] | None]) -> str:
    """In the space with more of them."""
    found = [(space["near_copies"][0], space["near_copies_of_real"][0]) for space in spaces if space]
    if not found:
        return NOT_MEASURED
    drawn, real = max(found)
    return f"{100 * drawn:.1f} % (real images {100 * real:.1f} %)"
