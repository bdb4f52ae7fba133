"""The paper's claims -> the documents' table of what the records say of each, with a verdict by rule (`claims.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from engram.evaluation.paper import TABLE_1, TABLE_3, TABLE_4
from engram.report import claims as rules
from engram.report.claims import NO_RUN, UNTESTABLE, Finding
from engram.report.document_masks import families
from engram.report.document_rows import (
    QUOTED_AS,
    Place,
    algorithm,
    joint_of,
    papers_own,
    per_task,
    table,
    telling,
    text,
)
from engram.report.groups import Group, alike_but, main, setting, stored
from engram.report.ladder import OURS as LADDER_OURS

OURS, PAPERS = "our default", "the paper's algorithm"
WHOSE: dict[str, Callable[[Place, str, str], Group | None]] = {OURS: telling, PAPERS: papers_own}
"""Whose algorithm -> which group stands for it: (data, method)."""
DGM = ("dgmw", "dgma")
MIDDLE, END = 30, 50
"""Classes of ImageNet-50 at which the paper's table 2 is read."""


@dataclass(frozen=True)
class Claim:
    """What the paper says, where, and what has to be so for it to hold here."""

    said: str
    where: str
    rule: str
    judge: Callable[[Place], Iterator[Finding]]
    """A finding for each set of runs that it can be asked of."""


def claims(place: Place) -> str:
    """A row a finding. Where no run can be asked, a row says so."""
    rows = []
    for claim in CLAIMS:
        found = list(claim.judge(place)) or [Finding((), "", NO_RUN)]
        for number, one in enumerate(found):
            said = f"{claim.said}. *Holds where: {claim.rule}.*" if number == 0 else "(the same)"
            rows.append([said, claim.where, _records(place, one), one.verdict])
    return table(["claim", "where in the paper", "what the records say", "verdict"], rows)


def _records(place: Place, found: Finding) -> str:
    """`MNIST, dgmw default, dgma default: …`, with links."""
    if not found.groups:
        return found.told
    first = found.groups[0]
    names = ", ".join(f"`{g.method}` {place.link(g)}" for g in found.groups)
    whose = next((name for g in found.groups if (name := algorithm(g))), "")
    seeds = f"seeds {first.seeds}" if len(first.runs) > 1 else f"seed {first.seeds}"
    return f"{text(first.data.title)}, {names}; {', '.join(filter(None, (whose, seeds)))}: {text(found.told)}"


# ---------------------------------------------------------------- which runs a claim is asked of


def _one(
    place: Place, judge: Callable[[Group], Finding], methods: Sequence[str], data: str = "mnist"
) -> Iterator[Finding]:
    """Each variant, with our default and with the paper's algorithm."""
    for whose, chosen in WHOSE.items():
        for method in methods:
            g = chosen(place, data, method)
            yield judge(g) if g else _none(method, whose)


def _reuse(place: Place) -> Iterator[Finding]:
    """The same, and our default at the ladder's budget, whose records say what the masks opened."""
    yield from _one(place, rules.reuse_rises, DGM)
    for g in place.current:
        if g.runs[0].label == LADDER_OURS and g.finished:
            yield rules.reuse_rises(g)


def _two(place: Place, judge: Callable[[Group, Group], Finding], data: str = "mnist") -> Iterator[Finding]:
    """DGMw beside DGMa, with our default and with the paper's algorithm."""
    for whose, chosen in WHOSE.items():
        pair = [chosen(place, data, method) for method in DGM]
        w, a = pair
        missing = [method for method, g in zip(DGM, pair, strict=True) if g is None]
        yield judge(w, a) if w and a else _none(" and ".join(missing), whose)


def _none(method: str, whose: str) -> Finding:
    return Finding((), f"{method}, {whose}", NO_RUN)


def _sizes(place: Place) -> Iterator[Finding]:
    """DGMw's generator beside MeRGAN's on the same images."""
    for data in TABLE_3:
        first, last = (TABLE_3[data][method][1] for method in ("dgmw", "mergan"))
        for whose, chosen in WHOSE.items():
            ours = chosen(place, data, "dgmw")
            theirs = _rivals(place, ours, ("mergan",)) if ours else []
            yield (
                rules.smaller(ours, theirs[0], 1 - first / last)
                if ours and theirs
                else _none(f"dgmw or mergan on {data}", whose)
            )


def _rivals(place: Place, ours: Group, methods: Sequence[str]) -> list[Group]:
    """Each method's main group on the same images, from as many classes a task."""
    found = [g for g in place.current if g.data.digest == ours.data.digest and per_task(g) == per_task(ours)]
    by_method = [[g for g in found if g.method == method and g.finished and g.whole] for method in methods]
    return [main(groups) for groups in by_method if groups]


def _table_1(place: Place) -> Iterator[Finding]:
    """On each data set of the paper, DGM beside the strict methods that have a generator."""
    for data in TABLE_1:
        for chosen in WHOSE.values():
            ours = [g for method in DGM if (g := chosen(place, data, method))]
            rivals = _rivals(place, ours[0], ("ewcm", "dgr", "mergan", *QUOTED_AS)) if ours else []
            if ours and rivals:
                yield rules.above_all([g for g in ours if g.data == ours[0].data], rivals)


def _beside_joint(place: Place) -> Iterator[Finding]:
    for chosen in WHOSE.values():
        for g in (chosen(place, "mnist", method) for method in DGM):
            joint = joint_of(g, place.current) if g else None
            if g and joint:
                yield rules.near(g, joint, 5)


def _images(place: Place, *, papers: bool) -> Iterator[Finding]:
    """ImageNet-50: the paper's own figures need its images."""
    g = telling(place, "imagenet50", "dgmw")
    if g is not None:
        found = rules.against_images(g)
        yield (
            Finding((g,), "other images, and smaller networks", UNTESTABLE)
            if papers and not g.data.comparable
            else found
        )


def _stores(place: Place, method: str) -> dict[str, Group]:
    """What is stored, `r=0.5` or `K=1000` -> the group of ImageNet-50 that stands for it, ten classes a task."""
    found = [
        g
        for g in place.current
        if (g.data.name, g.method) == ("imagenet50", method) and g.finished and g.whole and per_task(g) == "10"
        if setting(g, "generator.architecture") in ("", "dcgan")
    ]
    kinds = dict.fromkeys(stored(g) for g in found)
    return {kind: main([g for g in found if stored(g) == kind]) for kind in kinds}


def _table_2(
    place: Place, judge: Callable[[dict[str, Group], dict[str, Group]], Iterator[Finding]]
) -> Iterator[Finding]:
    ours, theirs = _stores(place, "dgmw"), _stores(place, "icarl")
    if ours and theirs:
        yield from judge(ours, theirs)


def _strict_beside_icarl(ours: dict[str, Group], theirs: dict[str, Group]) -> Iterator[Finding]:
    if "r=0" in ours and "K=1000" in theirs:
        yield rules.crosses(ours["r=0"], theirs["K=1000"], MIDDLE, END)


def _same_memory(ours: dict[str, Group], theirs: dict[str, Group]) -> Iterator[Finding]:
    for kind in ("K=1000", "K=2000"):
        if kind in ours and kind in theirs:
            yield rules.crosses(ours[kind], theirs[kind], MIDDLE, END)


def _real_images(ours: dict[str, Group], theirs: dict[str, Group]) -> Iterator[Finding]:
    shares = sorted((kind for kind in ours if kind.startswith("r=") and kind != "r=0"), key=lambda k: float(k[2:]))
    for kind in shares:
        yield rules.all_above(ours[kind], [*theirs.values()], MIDDLE, END)


def _without_growth(place: Place) -> Iterator[Finding]:
    for family in alike_but("masks.growth", place.current):
        fixed = [g for g in family if setting(g, "masks.growth") == "off"]
        growing = [g for g in family if setting(g, "masks.growth") != "off"]
        for g in fixed[:1]:
            yield rules.cannot_take_in(g, main(growing)) if growing else Finding((g,), "no run that grows", NO_RUN)


def _controls(place: Place) -> Iterator[Finding]:
    for learned, *controls in families(place.current):
        yield rules.learned_are_better(learned, controls)


# ---------------------------------------------------------------- the claims


def _quoted_sizes() -> str:
    sizes = [TABLE_3[data]["dgmw"][1] / TABLE_3[data]["mergan"][1] for data in ("mnist", "svhn")]
    return " and ".join(f"{100 * (1 - size):.0f} %" for size in sizes)


def _quoted_total(method: str) -> float:
    return TABLE_4[method]["total"][10]


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "DGMw's network grows more slowly than DGMa's, at comparable accuracy (96.46 and 96.98 %)",
        "figure 4",
        "DGMw adds fewer units in every seed, and A_t is within one point",
        partial(_two, judge=partial(rules.less_than, measure=rules.added_units, unit="units added", scale=1)),
    ),
    Claim(
        f"DGMw takes less disc space than DGMa ({_quoted_total('dgmw')} and {_quoted_total('dgma')} MB)",
        "table 4",
        "its weights and masks take fewer bytes in every seed, and A_t is within one point",
        partial(_two, judge=partial(rules.less_than, measure=rules.stored_bytes, unit="MB", scale=rules.MB)),
    ),
    Claim(
        "The generator grows sub-linearly",
        "figure 4",
        "the second half of the tasks adds fewer units than the first, in every seed",
        partial(_one, judge=rules.sublinear, methods=DGM),
    ),
    Claim(
        "The share of reused units rises from task to task",
        "figure 3a",
        "of what the masks open it rises from the second to the last task in every seed, and is above chance there",
        _reuse,
    ),
    Claim(
        "A mask is sparse at first (most values near 0), then fills, and is binary by two thirds of the epochs",
        "figure 3b (DGMa)",
        "in the first third most values are below 0.1, the mean rises by more than 0.05 from its lowest value there to "
        "the end, and after two thirds nine tenths of the values are below 0.1 or above 0.9; over all tasks and layers",
        partial(_one, judge=rules.mask_trajectory, methods=DGM),
    ),
    Claim(
        f"The generator is smaller than MeRGAN's at the end: by {_quoted_sizes()} on MNIST and SVHN",
        "table 3",
        "DGMw's has fewer parameters in every seed",
        _sizes,
    ),
    Claim(
        "Storing the generator takes less than storing the training images",
        "memory usage analysis, ImageNet-50",
        "all that is kept of the past takes fewer bytes than the images, a byte a value",
        partial(_images, papers=False),
    ),
    Claim(
        "That is 228 MB against 315 MB",
        "memory usage analysis, ImageNet-50",
        "the same, on the paper's images",
        partial(_images, papers=True),
    ),
    Claim(
        "Without stored images DGMw is above iCaRL with K = 1000 after 30 classes, and below it after 50",
        "table 2, top-1",
        "it is so in every seed",
        partial(_table_2, judge=_strict_beside_icarl),
    ),
    Claim(
        "With stored images in the replay, from r = 0.1 on, DGMw is above iCaRL",
        "table 2, top-1",
        "above every iCaRL after 30 and after 50 classes, in every seed",
        partial(_table_2, judge=_real_images),
    ),
    Claim(
        "With the same K, DGMw is above iCaRL after 30 classes and below it after 50",
        "table 2, top-1",
        "it is so in every seed",
        partial(_table_2, judge=_same_memory),
    ),
    Claim(
        "DGM is above the other methods that store no images but generate them",
        "table 1",
        "at the end the better of DGMw and DGMa is above each of them in every common seed",
        _table_1,
    ),
    Claim(
        "On MNIST DGM is as good as joint training after five classes",
        "table 1 and its text",
        "A_5 is no more than one point below joint training's",
        _beside_joint,
    ),
    Claim(
        "Without growth the generator cannot take in new tasks",
        "growth pattern analysis",
        "of the classes of the second half of the tasks but the last, fewer than half as many test images are right as "
        "with growth, in every seed",
        _without_growth,
    ),
    Claim(
        "Learning finds which units are worth keeping: the mask matters",
        "plasticity evolution analysis",
        "learned masks are above shuffled and random ones, which open as much, by more than two standard errors",
        _controls,
    ),
)  # fmt: skip
"""In the order of the table."""
