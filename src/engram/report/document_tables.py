"""Groups of runs -> the Markdown tables of the documents, each under the name by which a document asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from engram.evaluation.paper import TABLE_3, TABLE_4
from engram.report.document_claims import claims
from engram.report.document_frontier import frontier
from engram.report.document_ladder import ladder
from engram.report.document_masks import CHOICE, mask_rounds, masks
from engram.report.document_memories import memories
from engram.report.document_rows import (
    DEFAULT_ALGORITHM,
    QUOTED_AS,
    Place,
    accuracies,
    algorithm,
    differences,
    kind,
    mean_cell,
    method_cell,
    pair_cell,
    papers,
    papers_own,
    per_task,
    seconds,
    share,
    stations,
    table,
    telling,
    text,
)
from engram.report.document_trust import privacy, trust, unknown
from engram.report.frontier import MB, core_seconds
from engram.report.gather import BOTH, Run
from engram.report.groups import TITLES, VECTORS, Group, Mean, alike_but, folder_of, one_per_method, setting

LONG_STREAM = (1, 2, 5, 10, 20, 30, 40, 50, 100, 200, 500, 1000)
"""Tasks at which the cost of a long stream is shown."""


# ---------------------------------------------------------------- accuracy


def accuracy(place: Place, name: str) -> str:
    """Every current group of one data set."""
    groups = [g for g in place.current if g.data.name == name]
    if not groups:
        return table(["images", "method"], [])
    points = stations(groups)
    tops = points[-1] > 10  # among ten classes, the best five say little
    at = " / ".join(f"A_{t}" for t in points)
    columns = ["images", "method", "label", "kind", "classes a task", *(f"A_{t} %" for t in points)]
    columns += [f"top-5 {at}"] * tops + [f"paper {at}", "of joint training", "seeds", "seconds (threads, CPU)"]
    rows = []
    for g in groups:
        top5 = pair_cell([found.value if (found := g.score(t, lambda e: e.top5)) else None for t in points], 1)
        cells = [text(g.data.variant), method_cell(g), place.link(g), kind(g), per_task(g)]
        cells += [*accuracies(g, points), *[top5] * tops, papers(g, points), share(g, groups, points)]
        rows.append([*cells, g.seeds, seconds(g)])
    return table(columns, rows)


OWN = ("own classifier", "oversampling", "bounded units", "no momentum")
"""Parts of our default algorithm, which the README does not list in every row."""


def readme(place: Place) -> str:
    """The most telling rows: DGM on each data set of the paper beside the strongest strict baseline; on MNIST the
    paper's algorithm too, and a control without learned masks beside the runs that it is to be compared with."""
    found = [telling(place, "mnist", "dgmw"), telling(place, "mnist", "dgma"), papers_own(place, "mnist", "dgmw")]
    controls = _random_masks(place, "mnist", "dgmw")
    found += [*controls[1:], *_beside(place, "mnist")]
    for name in ("svhn", "cifar10"):
        found += [telling(place, name, "dgmw"), *_beside(place, name)]
    found += [telling(place, "imagenet50", "dgmw")]
    rows = []
    for g in filter(None, found):
        end = stations([g])[-1:]
        ours = "".join(f"A_{t} = {mean_cell(g.score(t))}" for t in end)
        told = [word for word in differences(g) if algorithm(g) != DEFAULT_ALGORITHM or word not in OWN]
        words = "; ".join(told)
        if g in controls:
            words = f"control: {setting(g, 'gan.epochs')} rounds, random masks; learned: {mean_cell(controls[0].final)}"
        costs = [mean_cell(without_spread(g.bytes), 1, MB), mean_cell(without_spread(core_seconds(g)), 0)]
        rows.append([text(g.data.title), method_cell(g), ours, str(len(g.runs)), *costs, papers(g, end), words])
    return table(["data", "method", "ours, %", "seeds", "MB", "s", "paper, %", "what differs"], rows)


def without_spread(value: Mean | None) -> Mean | None:
    """The mean alone."""
    return None if value is None else replace(value, std=None)


def _beside(place: Place, name: str) -> list[Group | None]:
    """What DGM's row is read beside: DGM with a second memory, and the strongest strict baseline."""
    return [telling(place, name, f"dgmw + {BOTH}"), _strongest_baseline(place, name)]


def _strongest_baseline(place: Place, name: str) -> Group | None:
    """The strict rival that DGM has to beat: here the best by its test images is the fair choice."""
    found = [g for g in place.current if g.data.name == name and g.contender and g.whole]
    rivals = [g for g in found if not g.method.startswith("dgm")]
    done = [g for g in rivals if g.finished and g.final]
    return max(done, key=lambda g: (g.data.comparable, g.final.value if g.final else 0), default=None)


def _random_masks(place: Place, name: str, method: str) -> list[Group]:
    """Runs with learned masks, and those that differ in nothing but that theirs are random from the first step on."""
    mine = [g for g in place.current if (g.data.name, g.method) == (name, method) and g.whole]
    for family in alike_but(CHOICE, mine):
        both = {setting(g, CHOICE): g for g in sorted(family, key=lambda g: len(g.runs))}
        if {"learned", "random"} <= both.keys():
            return [both["learned"], both["random"]]
    return []


def repeated(place: Place) -> str:
    """Seed 0 once more on another machine: how much of a figure is rounding."""
    rows = []
    for again in (g for g in place.archived if g.runs[0].label == "repeated"):
        figures = [_twin(place, again), mean_cell(again.final), seconds(again)]
        rows.append([method_cell(again), *figures, place.link(again)])
    return table(["method", "seed 0, A_10 %", "again, A_10 %", "seconds (threads, CPU)", "records"], rows)


def _twin(place: Place, again: Group) -> str:
    """The figure of the other run with these settings and seeds, wherever it lies."""
    mine = again.runs[0]
    for run in (run for g in place.groups for run in g.runs):
        same = (run.head.digest, run.head.method, run.head.seed) == (mine.head.digest, mine.head.method, mine.head.seed)
        if same and run.folder != mine.folder and run.settings == mine.settings and run.evaluations:
            return f"{100 * run.evaluations[-1].accuracy:.2f}"
    return ""


# ---------------------------------------------------------------- sizes, retention, cost


def sizes(place: Place) -> str:
    """Weights and bytes after the last task, each method by the group that stands for it."""
    groups = [g for g in _mains(place.current) if g.bytes is not None]
    parts = list(dict.fromkeys(part for g in groups for part in _last_bytes(g.runs[0])))
    rows = []
    for g in groups:
        cells = [mean_cell(g.mean(partial(_last_part, part=part)), scale=MB) for part in parts]
        weights = mean_cell(g.mean(_weights_at_last), 0)
        row = [text(g.data.title), method_cell(g), place.link(g), weights, *cells, mean_cell(g.bytes, scale=MB)]
        rows.append([*row, mean_cell(g.mean(lambda run: run.classifier), scale=MB), g.seeds])
    columns = ["data", "method", "label", "plastic weights", *(f"{p}, MB" for p in parts)]
    return table([*columns, "all, MB", "classifier beside it, MB", "seeds"], rows)


def _mains(groups: Sequence[Group]) -> list[Group]:
    """Each method's main group on each set of images, the sets in their order; none that held images out."""
    whole = [g for g in groups if g.whole]
    sets = dict.fromkeys(g.data.digest for g in whole)
    return [m for digest in sets for m in one_per_method(g for g in whole if g.data.digest == digest)]


def _last_bytes(run: Run) -> dict[str, int]:
    return run.memory[max(run.memory)] if run.memory else {}


def _last_part(run: Run, part: str) -> float | None:
    return _last_bytes(run).get(part)


def _weights_at_first(run: Run) -> float | None:
    return float(run.growth[0].weights[0]) if run.growth else _fixed_weights(run)


def _weights_at_last(run: Run) -> float | None:
    return float(run.growth[-1].weights[1]) if run.growth else None


def _fixed_weights(run: Run) -> float | None:
    """A generator that does not grow: its bytes tell, at four a parameter."""
    size = _last_bytes(run).get("generator")
    return None if size is None else size / 4


def retention(place: Place) -> str:
    """How often a class's images were compared, and how often a bit had changed."""
    rows = []
    for g in place.current:
        if g.checked is not None:
            compared, changed = g.checked
            row = [text(g.data.title), method_cell(g), place.link(g), g.seeds, f"{compared:,}", f"{changed:,}"]
            rows.append(row)
    return table(["data", "method", "label", "seeds", "comparisons of a class", "with a changed bit"], rows)


def long_stream(place: Place) -> str:
    """What grows with the tasks, in the run that has most of them."""
    run = max((run for g in place.current for run in g.runs), key=lambda run: len(run.timing))
    rows = []
    for timing in run.timing:
        number = timing.task + 1
        if number in LONG_STREAM:
            grown = {growth.task: growth.weights[1] for growth in run.growth}
            step = "" if timing.step is None else f"{1000 * timing.step:.0f}"
            peak = "" if timing.peak is None else f"{MB * timing.peak:,.0f}"
            weights = f"{grown[timing.task]:,}" if timing.task in grown else ""
            kept = f"{MB * sum(run.memory[timing.task].values()):.2f}" if timing.task in run.memory else ""
            rows.append([str(number), f"{timing.seconds:.0f}", step, peak, weights, kept])
    columns = ["task", "seconds", "a training step, ms", "peak of the process, MB", "plastic weights", "kept, MB"]
    return table(columns, rows)


def vector_stream(place: Place) -> str:
    """What a class costs as a stream of vectors goes on: DGM on the set with most classes, its means over seeds."""
    groups = [g for g in place.current if g.data.name in VECTORS and g.method.startswith("dgm") and g.finished]
    most = max((g.data.classes for g in groups), default=0)
    rows = []
    for g in (g for g in groups if g.data.classes == most and g.runs[0].timing):
        tasks = [timing.task for timing in g.runs[0].timing]
        for task in sorted({tasks[0], tasks[len(tasks) // 2], tasks[-1]}):
            new, seen = len(g.runs[0].head.tasks[task]), g.runs[0].head.seen(task)
            spent = mean_cell(g.mean(partial(_seconds_at, task=task)), 2, 1 / new)
            kept = mean_cell(g.mean(partial(_bytes_at, task=task)), 1, 1e-3 / seen)
            rows.append([text(g.data.title), method_cell(g), place.link(g), str(seen), spent, kept, g.seeds])
    columns = ["data", "method", "label", "classes", "seconds of one core a class", "kept, kB a class", "seeds"]
    return table(columns, rows)


def _seconds_at(run: Run, task: int) -> float | None:
    return next((timing.cpu for timing in run.timing if timing.task == task), None)


def _bytes_at(run: Run, task: int) -> float | None:
    return sum(run.memory[task].values()) if task in run.memory else None


def machines(place: Place) -> str:
    """Where the current runs were made."""
    runs = [run for g in place.current for run in g.runs]
    rows = []
    for processor in sorted({run.machine.processor or "" for run in runs}):
        mine = [run for run in runs if (run.machine.processor or "") == processor]
        threads = ", ".join(sorted({str(run.machine.threads) for run in mine if run.machine.threads}))
        unnamed = sum(run.commit is None for run in mine)
        rows.append([text(processor), threads, str(len(mine)), str(unnamed)])
    return table(["processor", "threads", "runs", "of these, code not named by a commit"], rows)


# ---------------------------------------------------------------- the paper's tables


def paper_2(place: Place) -> str:
    """ImageNet-50 with stored images: top-1 and top-5, beside the paper's."""
    groups = [g for g in place.current if g.data.name == "imagenet50" and papers(g, (30, 50))]
    rows = []
    for g in groups:
        cells = [method_cell(g), place.link(g), kind(g)]
        for measure, points in (("top-1", (30, 50)), ("top-5", (30, 50))):
            of = (lambda e: e.accuracy) if measure == "top-1" else (lambda e: e.top5)
            ours = [found.value if (found := g.score(t, of)) else None for t in points]
            cells += [pair_cell(ours), papers(g, points, measure)]
        rows.append(cells)
    tops = [f"{whose} top-{k}, 30 / 50 classes" for k in (1, 5) for whose in ("ours,", "paper,")]
    return table(["method", "label", "kind", *tops], rows)


def paper_3(place: Place) -> str:
    """Parameters of the generator at first and at last, beside the paper's."""
    rows = []
    for g in _mains(place.current):
        quoted = TABLE_3.get(g.data.name, {}).get(QUOTED_AS.get(g.method, (g.method, ""))[0])
        first, last = g.mean(_weights_at_first), g.mean(_weights_at_last) or g.mean(_fixed_weights)
        if quoted is None or last is None:
            continue
        row = [text(g.data.title), method_cell(g), place.link(g), mean_cell(first, 0), f"{quoted[0]:,.0f}"]
        rows.append([*row, mean_cell(last, 0), f"{quoted[1]:,.0f}", mean_cell(g.final), f"{quoted[2]:.2f}"])
    columns = ["data", "method", "label", "at first", "paper", "at last", "paper", "A_10 %", "paper"]
    return table(columns, rows)


def paper_4(place: Place) -> str:
    """MNIST: disc space by part after five and ten classes, beside the paper's."""
    rows = []
    for g in (g for g in _mains(place.current) if g.data.name == "mnist" and g.method in TABLE_4):
        for part in [*(part for part, size in _last_bytes(g.runs[0]).items() if size), "total"]:
            quoted = TABLE_4[g.method].get(part, {})
            cells = [method_cell(g), place.link(g), part]
            for t in (5, 10):
                paper = quoted.get(t)
                cells += [
                    mean_cell(g.mean(partial(_part_at, part=part, classes=t)), 3, MB),
                    f"{paper:.1f}" if paper else "",
                ]
            rows.append(cells)
    return table(["method", "label", "part", "after 5, MB", "paper", "after 10, MB", "paper"], rows)


def _part_at(run: Run, part: str, classes: int) -> float | None:
    found = [sizes for task, sizes in run.memory.items() if run.head.seen(task) == classes]
    return None if not found else sum(found[0].values()) if part == "total" else found[0].get(part)


# ---------------------------------------------------------------- indices


def index(place: Place) -> str:
    return _index(place, place.current)


def archive(place: Place) -> str:
    return _index(place, place.archived)


def _index(place: Place, groups: Sequence[Group]) -> str:
    rows = []
    for g in groups:
        reached = min((len(run.evaluations[-1].classes) for run in g.runs if run.evaluations), default=0)
        found = f"A_{reached} = {mean_cell(g.score(reached))}" if reached else ""
        strict = f"{g.bound} bound" if g.bound else "yes" if g.strict else "no"
        rows.append([text(g.data.title), method_cell(g), place.link(g), g.seeds, found, strict, seconds(g)])
    return table(["data", "method", "label", "seeds", "A_t %", "strict", "seconds (threads, CPU)"], rows)


TABLES: dict[str, Callable[[Place], str]] = {
    "readme": readme,
    **{f"accuracy-{folder_of(name)}": partial(accuracy, name=name) for name in (*TITLES, *VECTORS)},
    "repeated": repeated,
    "sizes": sizes,
    "retention": retention,
    "claims": claims,
    "frontier": frontier,
    "ladder": ladder,
    "masks": masks,
    "memories": memories,
    "mask-rounds": mask_rounds,
    "trust": trust,
    "unknown": unknown,
    "privacy": privacy,
    "long-stream": long_stream,
    "vector-stream": vector_stream,
    "machines": machines,
    "paper-2": paper_2,
    "paper-3": paper_3,
    "paper-4": paper_4,
    "index": index,
    "archive": archive,
}
"""Name in a document -> what writes the table."""
