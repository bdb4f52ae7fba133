"""Runs -> groups: one configuration of one method on one data set, over its seeds. Only a group is ever averaged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from engram.evaluation import metrics
from engram.evaluation.paper import TABLE_1
from engram.report.gather import Run
from engram.report.labels import VALIDATION, labels
from engram.report.records import Evaluation

TITLES = {
    "digits": "Digits",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "svhn": "SVHN",
    "cifar10": "CIFAR-10",
    "imagenet50": "ImageNet-50",
}
VECTORS = {
    "npz:clinc150-minilm.npz": "CLINC150 by MiniLM",
    "npz:banking77-minilm.npz": "BANKING77 by MiniLM",
    "npz:cifar10-mobilenet.npz": "CIFAR-10 by MobileNetV2",
}
"""Sets of embeddings that are no part of the package: a file by this name, made as REPRODUCIBILITY.md says."""
SECTIONS = ("Strict", "With stored samples", "Bounds")
DEFAULT = "default"
"""The label of the configuration that stands for its method on a data set."""
STORES = ("exemplars.ratio", "exemplars.budget", "exemplars.per_class")
"""How many real images are stored, in one way or another: a name says it once, as `stored` does."""


@dataclass(frozen=True)
class Mean:
    """Over seeds."""

    value: float
    std: float | None
    """Between seeds (n - 1); None for one seed."""
    n: int


def folder_of(name: str) -> str:
    """Where the results of a data set lie.

    >>> folder_of("mnist"), folder_of("npz:clinc150-minilm.npz")
    ('mnist', 'clinc150-minilm')
    """
    return name.removeprefix("npz:").removesuffix(".npz")


def mean_of(values: Sequence[float]) -> Mean | None:
    """
    >>> mean_of([1.0, 3.0])
    Mean(value=2.0, std=1.4142135623730951, n=2)
    >>> mean_of([5.0]), mean_of([])
    (Mean(value=5.0, std=None, n=1), None)
    """
    if not values:
        return None
    return Mean(metrics.mean(values), metrics.std(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class Data:
    """A data set, as the records name it."""

    name: str
    variant: str
    digest: str
    classes: int
    """In the stream, which may leave some out."""
    total: int
    mark: str = ""
    """Tells two sets of one name apart."""

    @property
    def title(self) -> str:
        """`SVHN, 10,000 digits`: the variant stands wherever a figure stands, unless it is the standard one."""
        variant = {"standard": "", "own": "unknown contents" if self.name in TITLES else ""}.get(
            self.variant, self.variant
        )
        part = f"{self.classes} of {self.total} classes" if self.classes < self.total else ""
        known = {**TITLES, **VECTORS}.get(self.name, self.name)
        return ", ".join(filter(None, [known, variant, part, self.mark]))

    @property
    def slug(self) -> str:
        """For names of files."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or self.digest[:8]

    @property
    def comparable(self) -> bool:
        """Whether the paper's figures are for the same images."""
        return self.variant == "standard"

    def stations(self, reached: Iterable[int]) -> tuple[int, ...]:
        """Classes seen at which tables are read: the paper's, else half and all of them."""
        reached = sorted(set(reached))
        paper = sorted({t for by_t in TABLE_1.get(self.name, {}).values() for t in by_t})
        if paper and paper[-1] == self.classes:
            return tuple(t for t in paper if t in reached or t == self.classes)
        half = min(reached, key=lambda t: (abs(2 * t - self.classes), t), default=self.classes)
        return tuple(sorted({half, self.classes}))


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone."""

    data: Data
    method: str
    bound: str | None
    strict: bool
    runs: tuple[Run, ...]
    """Those whose figures count: the finished ones; where none is, all."""
    waiting: int = 0
    """Runs of this group that are not finished and do not count."""
    tag: str = ""
    """Tells configurations of one method apart; empty where there is one."""
    settings: str = ""
    """All that the configuration has otherwise than the method's main one; the tag may be a part of it."""

    @property
    def label(self) -> str:
        return f"{self.method}, {self.tag}" if self.tag else self.method

    @property
    def finished(self) -> bool:
        return self.runs[0].state == "done"

    @property
    def section(self) -> str:
        return SECTIONS[2] if self.bound else SECTIONS[0] if self.strict else SECTIONS[1]

    @property
    def contender(self) -> bool:
        """Strict, and no yardstick."""
        return self.strict and self.bound is None

    @property
    def held_out(self) -> str:
        """The share of the training images that it did not learn from, to calibrate by them."""
        return (self.runs[0].settings or {}).get(VALIDATION, "0")

    @property
    def whole(self) -> bool:
        """Whether it learned from all training images."""
        return self.held_out == "0"

    @property
    def seeds(self) -> str:
        """`0, 1, 2`; the seed of the class order behind a slash where there is one."""
        pairs = [(run.head.seed, run.head.order_seed) for run in self.runs]
        return ", ".join(str(seed) if order is None else f"{seed} / order {order}" for seed, order in pairs)

    def mean(self, measure: Callable[[Run], float | None]) -> Mean | None:
        """Over the runs that have it; all of them must, or the mean would be of other seeds than its neighbour."""
        values = [measure(run) for run in self.runs]
        known = [value for value in values if value is not None]
        return mean_of(known) if len(known) == len(values) else None

    def score(self, classes: int, of: Callable[[Evaluation], float | None] = lambda e: e.accuracy) -> Mean | None:
        """A_t, or another share of the evaluation over this many classes, in per cent."""

        def measure(run: Run) -> float | None:
            found = run.at(classes)
            value = None if found is None else of(found)
            return None if value is None else 100 * value

        return self.mean(measure)

    @property
    def final(self) -> Mean | None:
        """A_t over all classes."""
        return self.score(self.data.classes)

    @property
    def seconds(self) -> Mean | None:
        """Spent learning, a run; unknown where a task's time is not on record."""
        return self.mean(lambda run: sum(run.seconds.values()) if len(run.seconds) == len(run.evaluations) else None)

    @property
    def cpu_seconds(self) -> Mean | None:
        """Of a run; unknown in records from before it was measured."""
        return self.mean(lambda run: run.cpu_seconds)

    @property
    def bytes(self) -> Mean | None:
        """Kept of the past after the last task."""
        return self.mean(
            lambda run: (
                sum(run.memory[max(run.memory)].values()) if len(run.memory) >= len(run.evaluations) > 0 else None
            )
        )

    @property
    def checked(self) -> tuple[int, int] | None:
        """Comparisons of a class's images, bit by bit, over all tasks and runs; how many found a change."""
        lines = [line for run in self.runs for line in run.retention]
        return (sum(line.checked for line in lines), sum(line.changed for line in lines)) if lines else None


def group(runs: Iterable[Run]) -> list[Group]:
    """All groups, data set by data set, in the order in which they were found."""
    found: dict[object, list[Run]] = {}
    for run in runs:
        head = run.head
        own = run.folder if run.settings is None else tuple(sorted(run.settings.items()))
        found.setdefault((head.dataset, head.digest, head.method, own), []).append(run)
    groups = _marked([_group(members) for members in found.values()])
    named: list[Group] = []
    for data in dict.fromkeys(g.data for g in groups):
        for method in dict.fromkeys(g.method for g in groups if g.data == data):
            named += _named([g for g in groups if g.data == data and g.method == method])
    return named


def by_folder(runs: Iterable[Run]) -> list[Group]:
    """One group a folder of seeds (`LABEL/seed0`, …), or a run: what a row of a document names and links to."""
    found: dict[object, list[Run]] = {}
    for run in runs:
        found.setdefault((run.folder.parent if run.label else run.folder, run.head.method), []).append(run)
    return [_group(members) for members in found.values()]


def alike_but(key: str, groups: Iterable[Group]) -> list[list[Group]]:
    """Finished groups that know this setting, as families that agree in all others: what a control is compared with."""
    found: dict[object, list[Group]] = {}
    for g in groups:
        settings = g.runs[0].settings or {}
        if key in settings and g.finished:
            rest = frozenset((name, value) for name, value in settings.items() if name != key)
            found.setdefault((g.data.digest, g.method, rest), []).append(g)
    return list(found.values())


def setting(g: Group, name: str) -> str:
    """Its value as one would type it; empty where the group does not know it."""
    return (g.runs[0].settings or {}).get(name, "")


def _group(members: Sequence[Run]) -> Group:
    head = members[0].head
    data = Data(head.dataset, head.variant, head.digest, head.seen(len(head.tasks)), len(head.class_names))
    done = tuple(run for run in members if run.state == "done")
    used = tuple(sorted(done or members, key=lambda run: (run.head.order_seed or 0, run.head.seed)))
    return Group(data, head.method, head.bound, head.strict, used, len(members) - len(used))


def _marked(groups: list[Group]) -> list[Group]:
    """Two sets that would bear one name (images that were changed, say) show a piece of their digest."""
    sets = list(dict.fromkeys(g.data for g in groups))
    twins = {data for data in sets if sum(other.slug == data.slug for other in sets) > 1}
    return [replace(g, data=replace(g.data, mark=g.data.digest[:8])) if g.data in twins else g for g in groups]


def _named(groups: list[Group]) -> list[Group]:
    """Tags for the configurations of one method: in words, how each differs from the main one."""
    if len(groups) == 1 and groups[0].whole:
        return groups
    found = labels([g.runs[0].settings for g in groups], groups.index(main(groups)))
    return [replace(g, tag=label.short, settings=label.full) for g, label in zip(groups, found, strict=True)]


def main(groups: Sequence[Group]) -> Group:
    """Of one method's configurations the one that stands for it: finished without held-out images, then most finished
    seeds, then the folder least deep, then the label `default`.

    Not the best: that would be a choice by test images.
    """

    def key(g: Group) -> tuple[object, ...]:
        first = g.runs[0]
        return (
            not (g.whole and g.finished), -len(g.runs) * g.finished, first.name.count("/"), first.label != DEFAULT
        )  # fmt: skip

    return min(groups, key=key)


def stored(g: Group) -> str:
    """`r=0.5` or `K=1000`: what a run keeps of real images, in the paper's letters; empty where its method has no such
    setting."""
    settings = g.runs[0].settings or {}
    ratio, budget, per_class = (settings.get(name, "0") for name in STORES)
    if budget != "0":
        return f"K={budget}"
    if per_class != "0":
        return f"{per_class} a class"
    return f"r={ratio}" if "exemplars.ratio" in settings else ""


def one_per_method(groups: Iterable[Group]) -> list[Group]:
    """Each method's main configuration."""
    return _mains(groups, lambda g: g.method)


def one_per_store(groups: Iterable[Group]) -> list[Group]:
    """The same, but what a method stores of real images is part of its name: r = 0.1 is another one than r = 0.5."""
    return _mains(groups, lambda g: (g.method, stored(g)))


def longest_per_method(groups: Iterable[Group]) -> list[Group]:
    """Of each method the configuration with most tasks on record, where costs can be seen to grow."""
    groups = list(groups)
    most: dict[str, int] = {}
    for g in groups:
        most[g.method] = max(most.get(g.method, 0), len(g.runs[0].timing))
    return one_per_method(g for g in groups if len(g.runs[0].timing) == most[g.method])


def _mains(groups: Iterable[Group], name: Callable[[Group], object]) -> list[Group]:
    by_name: dict[object, list[Group]] = {}
    for g in groups:
        by_name.setdefault(name(g), []).append(g)
    return [main(members) for members in by_name.values()]


def best(groups: Iterable[Group]) -> Group | None:
    """The method that is furthest by its A_t over all classes, each with its main configuration."""
    scored = [
        (g.final.value, -i, g) for i, g in enumerate(one_per_method(groups)) if g.finished and g.final is not None
    ]
    return max(scored)[2] if scored else None
