"""Groups of runs -> cells of the Markdown tables in the documents: words, links, and figures from records."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engram.evaluation.paper import TABLE_2, paper_accuracy
from engram.report.gather import BOTH
from engram.report.groups import DEFAULT, SECTIONS, TITLES, VECTORS, Group, Mean, main, setting, stored

NOTHING = "–"
NONE_YET = "No run has such records yet.\n"
"""What stands in the place of a table without rows."""
RESIDUAL = ("cifar10", "imagenet50")
"""Data sets for which the paper has residual networks."""
TEN_A_TASK = ("imagenet50",)
"""Data sets of which the paper learns ten classes a task; of the others it learns one."""
QUOTED_AS = {"mergan-ra": ("mergan", "MeRGAN")}
"""Methods that the paper has under another name."""

Cells = Sequence[str]


@dataclass(frozen=True)
class Place:
    """What the tables of a document are made of."""

    folder: Path
    """Of the document: links start here."""
    groups: tuple[Group, ...]

    @property
    def current(self) -> list[Group]:
        return in_order(g for g in self.groups if not g.runs[0].archived)

    @property
    def archived(self) -> list[Group]:
        return in_order(g for g in self.groups if g.runs[0].archived)

    def link(self, g: Group) -> str:
        """The label, leading to the folder of the group's seeds."""
        folder = g.runs[0].folder.resolve()
        if g.runs[0].label:
            folder = folder.parent
        return f"[{text(folder.name)}]({Path(os.path.relpath(folder, self.folder)).as_posix()})"


def in_order(groups: Iterable[Group]) -> list[Group]:
    """Data set by data set; there bounds, strict methods, those that store images; there the default first."""
    sets, kinds = [*TITLES, *VECTORS], (SECTIONS[2], SECTIONS[0], SECTIONS[1])

    def key(g: Group) -> tuple[object, ...]:
        known = sets.index(g.data.name) if g.data.name in sets else len(sets)
        label = g.runs[0].label
        return known, g.data.name, g.data.variant, kinds.index(g.section), g.method, label != DEFAULT, label

    return sorted(groups, key=key)


def table(columns: Cells, rows: Iterable[Cells]) -> str:
    """Lines of Markdown; a dash where there is nothing."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(cell or NOTHING for cell in line) + " |\n" for line in lines)


def text(raw: str) -> str:
    """
    >>> text("a|b <i>")
    'a\\\\|b &lt;i>'
    """
    return raw.replace("|", "\\|").replace("<", "&lt;")


def mean_cell(value: Mean | None, digits: int = 2, scale: float = 1.0) -> str:
    """`98.63 ± 0.11`; without a deviation for one seed."""
    if value is None:
        return ""
    if not value.value and not value.std:
        return "0"
    if 0 < scale * value.value < 0.5 * 10**-digits:
        return text(f"< {10**-digits:.{digits}f}")
    spread = "" if value.std is None else f" ± {scale * value.std:,.{digits}f}"
    return f"{scale * value.value:,.{digits}f}{spread}"


def pair_cell(values: Sequence[float | None], digits: int = 2) -> str:
    """`98.75 / 96.46`; empty where there is neither."""
    if all(value is None for value in values):
        return ""
    return " / ".join(NOTHING if value is None else f"{value:.{digits}f}" for value in values)


# ---------------------------------------------------------------- what a group is


def method_cell(g: Group) -> str:
    return f"`{text(g.method)}`"


def kind(g: Group) -> str:
    """`strict`, `stores r=0.5`, `upper bound`; `strict, 0.1 held out` where not all images were learned from."""
    found = f"{g.bound} bound" if g.bound else "strict" if g.strict else f"stores {stored(g)}"
    return found if g.whole else f"{found}, {text(g.held_out)} held out"


def per_task(g: Group) -> str:
    """Classes a task brings: `1`, or `5, then 1`."""
    sizes = [len(task) for task in g.runs[0].head.tasks]
    return str(sizes[0]) if len(set(sizes[:2])) == 1 else f"{sizes[0]}, then {sizes[1]}"


def stations(groups: Sequence[Group]) -> tuple[int, ...]:
    """Classes seen at which figures are shown: those of the longest stream."""
    longest = max((g.data for g in groups), key=lambda data: data.classes)
    return longest.stations(len(e.classes) for g in groups for run in g.runs for e in run.evaluations)


def papers(g: Group, points: Sequence[int], measure: str = "top-1") -> str:
    """The paper's figures for the same method, memory and classes a task; `(MeRGAN)` where it has another name."""
    if not g.finished or per_task(g) != ("10" if g.data.name in TEN_A_TASK else "1"):
        return ""
    method, name = QUOTED_AS.get(g.method, (g.method, ""))
    if g.data.name == "imagenet50":
        quoted = TABLE_2.get((method, "" if g.bound else stored(g)), {}).get(measure, {})
        return pair_cell([quoted.get(t) for t in points])
    found = pair_cell([paper_accuracy(g.data.name, method, t) for t in points])
    return f"{found} ({name})" if found and name else found


def accuracies(g: Group, points: Sequence[int]) -> list[str]:
    """A_t at each station; what has stopped shows how far it came."""
    cells = [mean_cell(g.score(t)) for t in points]
    if not g.finished and not cells[-1]:
        reached = min(len(run.evaluations[-1].classes) if run.evaluations else 0 for run in g.runs)
        cells[-1] = f"stopped: A_{reached} = {mean_cell(g.score(reached))}"
    return cells


def joint_of(g: Group, groups: Iterable[Group]) -> Group | None:
    """Joint training on the very same images."""
    found = [other for other in groups if other.bound == "upper" and other.data.digest == g.data.digest]
    return main(found) if found else None


def share(g: Group, groups: Iterable[Group], points: Sequence[int]) -> str:
    """Of joint training's accuracy, at each station."""
    joint = joint_of(g, groups)
    pairs = [(g.score(t), joint.score(t)) if joint else (None, None) for t in points]
    return pair_cell([ours.value / theirs.value if ours and theirs else None for ours, theirs in pairs], 3)


def seconds(g: Group) -> str:
    """`1,828 (1, Intel)`: the mean of a run, its threads, its processor."""
    if g.seconds is None:
        return ""
    machines = [run.machine for run in g.runs]
    threads = "/".join(sorted({str(m.threads) for m in machines if m.threads is not None}))
    makers = "/".join(sorted({m.maker for m in machines if m.maker}))
    beside = ", ".join(filter(None, (threads, makers)))
    return f"{g.seconds.value:,.0f}" + (f" ({beside})" if beside else "")


EPOCHS = {"mnist": 101, "svhn": 151}
"""Of the authors' runs, a task."""
DEFAULT_ALGORITHM = "our default"
AS_IN_THE_PAPER = {
    "replay.classifier": "critic", "replay.keep_fraction": "1", "masks.fraction": "1", "masks.alpha": "units",
    "masks.growth": "paper", "masks.max_units_ratio": "0", "gan.rare_power": "0", "gan.beta1": "0.5",
    "gan.batch_size": "64", "generator.ema_decay": "0", "critic.penalty_stride": "1",
}  # fmt: skip
"""What makes an algorithm the paper's; a setting that a run does not name does not speak against it."""


def algorithm(g: Group) -> str:
    """Of DGM: `our default`, or `the paper's algorithm, 20 of 101 epochs`, or `between …`; empty for other methods."""
    settings = g.runs[0].settings or {}
    if "masks.fraction" not in settings:
        return ""
    if (settings.get("replay.classifier"), settings["masks.fraction"]) != ("critic", "1"):
        return DEFAULT_ALGORITHM
    if any(settings.get(key, value) != value for key, value in AS_IN_THE_PAPER.items()):
        return "between the paper's algorithm and ours"
    full, ran, steps = EPOCHS.get(g.data.name), settings.get("gan.epochs", ""), settings.get("gan.steps", "0")
    if steps != "0":
        return f"the paper's algorithm, {ran} rounds of {steps} steps"
    return "the paper's algorithm" + (f", {ran} of {full} epochs" if full and ran != str(full) else "")


def as_in_the_paper(g: Group) -> bool:
    """Whether it runs the paper's algorithm as the paper does: with rounds that are passes over the task's images."""
    return algorithm(g).startswith("the paper") and " rounds of " not in algorithm(g)


def telling(place: Place, name: str, method: str) -> Group | None:
    """One group of a method: the paper's images before others, then the group that stands for the method.

    All of the images: with some held out, a run answers another question.
    """
    mine = [g for g in place.current if (g.data.name, g.method) == (name, method)]
    found = [g for g in mine if g.finished and g.strict and g.whole and algorithm(g) in ("", DEFAULT_ALGORITHM)]
    standard = [g for g in found if g.data.comparable] or found
    return main(standard) if standard else None


def papers_own(place: Place, name: str, method: str) -> Group | None:
    """The paper's algorithm with its class term: most seeds first, then most epochs."""
    mine = [g for g in place.current if (g.data.name, g.method) == (name, method) and g.finished and g.whole]
    found = [g for g in mine if as_in_the_paper(g) and setting(g, "gan.lambda_aux") != "0"]
    return max(found, key=lambda g: (len(g.runs), int(setting(g, "gan.epochs") or 0)), default=None)


def differences(g: Group) -> list[str]:
    """What a row has that the paper has not, as its images and settings tell."""
    settings = g.runs[0].settings or {}
    units, rare = settings.get("masks.max_units_ratio", "0"), settings.get("gan.rare_power", "0")
    small = g.data.name in RESIDUAL and settings.get("generator.architecture") == "dcgan"
    told = {
        algorithm(g): bool(algorithm(g)),
        "other images": not g.data.comparable,
        "small networks": small,
        "own classifier": settings.get("replay.classifier") == "generated",
        "replay alignment": g.method == "mergan-ra",
        "oversampling": rare != "0",
        "bounded units": units != "0",
        "no momentum": settings.get("gan.beta1") == "0",
        "closed form": "features.filters" in settings,
        "a closed form beside it (ours)": settings.get(f"{BOTH}.kept") == "True",
        "masks at random": settings.get("masks.choice") == "random",
        "no class term in the generator": algorithm(g).startswith("the paper")
        and settings.get("gan.lambda_aux") == "0",
        "distillation": settings.get("replay.distill_weight", "0") != "0",
        "real images of new classes": settings.get("replay.real_fraction", "0") != "0",
    }
    return [words for words, true in told.items() if true]
