"""Groups -> the paper's four tables, and those the paper has not: retention, the memory in images, all runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial

from engram.evaluation.paper import TABLE_2, TABLE_3, TABLE_4, paper_accuracy
from engram.report.gather import Gathered, Run
from engram.report.groups import SECTIONS, Data, Group, Mean, stored
from engram.report.order import data_key
from engram.report.tables import NOTHING, Cell, Row, Table, mean, number, without_blank, words

MB = 1e-6


def named(g: Group) -> Cell:
    """Its label, with all that differs under the pointer."""
    return words(g.label, f"{g.method}: {g.settings}" if g.settings else "")


def in_full(groups: Iterable[Group]) -> tuple[str, ...]:
    """The labels that leave something out, and what they stand for."""
    return tuple(f"{g.label} in full: {g.settings}" for g in groups if g.label.endswith("…"))


def quoted(column: str) -> bool:
    """Whether a column is left out where it says nothing: the paper's figures, and top-5 with five classes or fewer."""
    return "paper" in column or "top-5" in column


def image_sizes(groups: Iterable[Group]) -> str:
    """How much an image or a vector counts in bytes; several where runs learn from several sizes."""
    shapes = {g.runs[0].head.shape for g in groups}
    images = sorted({shape[1:] for shape in shapes if len(shape) == 3})
    sizes = [" or ".join(f"{height} × {width}" for height, width in images) + " pixels, one byte per channel"]
    vectors = [f"{size} numbers of four bytes" for (size,) in sorted(shape for shape in shapes if len(shape) == 1)]
    return " or ".join((sizes if images else []) + vectors)


def in_sections(groups: Iterable[Group]) -> list[Group]:
    return sorted(groups, key=lambda g: SECTIONS.index(g.section))


def stations(data: Data, groups: Sequence[Group]) -> tuple[int, ...]:
    return data.stations(len(e.classes) for g in groups for run in g.runs for e in run.evaluations)


def table_1(data: Data, groups: Sequence[Group]) -> Table:
    """A_t by method: ours, the paper's; what it costs and how much was forgotten."""
    points = stations(data, groups)
    top = {t: _highest(groups, t) for t in points}
    rows = []
    for g in in_sections(groups):
        cells = [named(g), words(seeds(g))]
        for t in points:
            ours = g.score(t)
            best = ours is not None and g.contender and g.finished and ours.value == top[t]
            cells += [mean(ours, strong=best), number(paper_figure(g, t))]
        cells += [
            mean(g.score(data.classes, lambda e: e.forgetting)),
            mean(g.bytes, scale=MB),
            mean(g.seconds, 1, scale=1 / 60),
        ]
        rows.append(Row(tuple(cells), g.section, g.method))
    columns = [column for t in points for column in (f"A_{t} %", f"paper's A_{t} %")]
    note = (
        "Mean ± standard deviation over the seeds. Bold: the best strict method. Forgetting: how far a task ends below "
    )
    note += "its best accuracy, averaged over the tasks. Kept: what the method carries from task to task."
    if any(g.tag for g in groups):
        note += " A label names what differs from the method's main configuration, which has the most seeds."
    if not all(g.whole for g in groups):
        note += (
            " Held out: the share of the training images that a run was calibrated by, and did not learn from. Such "
        )
        note += "a run is the main one only where there is no other."
    if not data.comparable and any(paper_figure(g, t) for g in groups for t in points):
        note += " The paper's figures are for the full data set and not comparable with these."
    table = Table(
        f"table1-{data.slug}",
        f"Table 1. {data.title}: accuracy over all classes seen",
        ("method", "seeds", *columns, "forgetting %", "kept MB", "minutes"),
        tuple(rows),
        note,
        in_full(in_sections(groups)),
    )
    return without_blank(table, quoted)


def paper_figure(g: Group, classes: int) -> float | None:
    """The paper's A_t for the same method that stores as many images; None where it gives none."""
    if g.data.name == "imagenet50" and stored(g) not in ("", "r=0"):
        return TABLE_2.get((g.method, stored(g)), {}).get("top-1", {}).get(classes)
    return paper_accuracy(g.data.name, g.method, classes)


def seeds(g: Group) -> str:
    """Which seeds a row stands on, and what is missing."""
    if not g.finished:
        done, of = len(g.runs[0].evaluations), len(g.runs[0].head.tasks)
        states = " and ".join(dict.fromkeys(run.state for run in g.runs))
        return f"{g.seeds} ({states}" + (f", {done} of {of} tasks)" if len(g.runs) == 1 else ")")
    return f"{g.seeds} ({g.waiting} more not finished)" if g.waiting else g.seeds


def _highest(groups: Iterable[Group], classes: int) -> float | None:
    values = [m.value for g in groups if g.contender and g.finished and (m := g.score(classes)) is not None]
    return max(values, default=None)


def table_2(data: Data, groups: Sequence[Group]) -> Table | None:
    """With stored images: r and K. None where no run stores any."""
    rows, points = [], stations(data, groups)
    if all(g.strict or g.bound for g in groups):
        return None
    for g in in_sections(groups):
        if not (stored(g) or g.bound == "upper"):
            continue
        paper = TABLE_2.get((g.method, stored(g)), {}) if data.name == "imagenet50" else {}
        cells = [named(g), words(stored(g)), words(seeds(g))]
        for t in points:
            cells += [mean(g.score(t)), number(paper.get("top-1", {}).get(t))]
        for t in points:
            cells += [mean(g.score(t, lambda e: e.top5)), number(paper.get("top-5", {}).get(t))]
        rows.append(Row(tuple(cells), method=g.method))
    tops = [c for k in (1, 5) for t in points for c in (f"A_{t} top-{k} %", f"paper's A_{t} top-{k} %")]
    table = Table(
        f"table2-{data.slug}",
        f"Table 2. {data.title}: with stored images",
        ("method", "stores", "seeds", *tops),
        tuple(rows),
        "r: share of real images among the replayed ones. K: number of real images kept.",
    )
    return without_blank(table, quoted)


def table_3(data: Data, groups: Sequence[Group]) -> Table | None:
    """The generator's weights at first and at last. None where no run has a generator."""
    rows = []
    for g in in_sections(groups):
        first, last = g.mean(_first_weights), g.mean(last_weights)
        if last is None:
            continue
        paper = TABLE_3.get(data.name, {}).get(g.method) if data.classes == data.total else None
        theirs = [Cell(f"{v:.2e}", v) if v else words("") for v in (paper or (None, None))[:2]]
        cells = [named(g), words(seeds(g)), _count(first), theirs[0], _count(last), theirs[1], mean(g.final)]
        rows.append(Row((*cells, number(paper[2] if paper else None)), method=g.method))
    if not rows:
        return None
    end = f"A_{data.classes} %"
    columns = ("method", "seeds", "at first", "paper's at first", "at last", "paper's at last", end, f"paper's {end}")
    note = "DGM: the weights of the layers that grow. Baselines: everything in the generator's state."
    title = f"Table 3. {data.title}: parameters of the generator"
    return without_blank(Table(f"table3-{data.slug}", title, columns, tuple(rows), note), quoted)


def _count(value: Mean | None) -> Cell:
    return Cell(NOTHING) if value is None else Cell(f"{value.value:,.0f}", value.value, value.std)


def _first_weights(run: Run) -> float | None:
    return float(run.growth[0].weights[0]) if run.growth else _fixed_weights(run)


def last_weights(run: Run) -> float | None:
    """Of the generator after the last task: of DGM, of the layers that grow; of a baseline, all."""
    return float(run.growth[-1].weights[1]) if run.growth else _fixed_weights(run)


def _fixed_weights(run: Run) -> float | None:
    """A generator that does not grow: its bytes tell, at four a parameter."""
    sizes = [parts["generator"] for parts in run.memory.values() if "generator" in parts]
    return sizes[-1] / 4 if sizes else None


def table_4(data: Data, groups: Sequence[Group]) -> Table | None:
    """Disc space by part, half way and at the end. None where no run says."""
    points, rows = stations(data, groups), []
    for g in in_sections(groups):
        parts = list(dict.fromkeys(part for run in g.runs for sizes in run.memory.values() for part in sizes))
        if not parts:
            continue
        for part in (*parts, "total"):
            paper = TABLE_4.get(g.method, {}).get(part, {}) if data.name == "mnist" else {}
            cells = [named(g), words(part)]
            for t in points:
                ours = g.mean(partial(_part, part=part, classes=t))
                cells += [mean(ours, 3, scale=MB, strong=part == "total"), number(paper.get(t), 1)]
            if part == "total" or any(cell.number for cell in cells):
                rows.append(Row(tuple(cells), method=g.method))
    if not rows:
        return None
    sizes = [c for t in points for c in (f"after {t} classes, MB", f"paper's after {t}, MB")]
    note = "Masks are stored as bits; the paper stored them in a sparse form."
    title = f"Table 4. {data.title}: disc space by part"
    table = Table(f"table4-{data.slug}", title, ("method", "part", *sizes), tuple(rows), note)
    return without_blank(table, quoted)


def _part(run: Run, part: str, classes: int) -> float | None:
    """Bytes of a part once this many classes were learned."""
    found = [sizes for task, sizes in run.memory.items() if run.head.seen(task) == classes]
    return None if not found else sum(found[0].values()) if part == "total" else found[0].get(part)


def ledger(data: Data, groups: Sequence[Group]) -> Table | None:
    """How many stored images would take the bytes that the memory takes."""
    rows = []
    shown = [g for g in in_sections(groups) if g.bytes is not None]
    for g in shown:
        kept, head = g.bytes, g.runs[0].head
        if kept is None:
            continue
        bought = kept.value / head.image_bytes
        seen = sum(head.images[: len(g.runs[0].memory)])
        cells = [
            named(g),
            mean(kept, scale=MB),
            number(bought, 0),
            number(bought / head.seen(len(g.runs[0].memory) - 1), 0),
            mean(g.mean(lambda run: run.classifier), scale=MB),
        ]
        rows.append(
            Row((*cells, number(seen, 0), number(100 * bought / seen if seen else None, 1)), g.section, g.method)
        )
    if not rows:
        return None
    shares = ("training images", "share of these %")
    columns = ("method", "kept MB", "images of the same bytes", "per class", "classifier MB", *shares)
    note = "The classifier goes on from task to task and stands beside the memory; older records do not list it. "
    note += f"An image counts {image_sizes(shown)}, not compressed."
    title = f"{data.title}: the memory's size in images"
    return Table(f"ledger-{data.slug}", title, columns, tuple(rows), note)


def retention(data: Data, groups: Sequence[Group]) -> Table | None:
    """Whether old images came out as they were. None where no run checked."""
    rows = [
        Row((named(g), words(seeds(g)), number(g.checked[0], 0), number(g.checked[1], 0)), method=g.method)
        for g in in_sections(groups)
        if g.checked is not None
    ]
    columns = ("method", "seeds", "comparisons", "with a changed bit")
    note = "After every task, the images of each old class are generated again from the same noise. They are compared "
    note += "bit by bit with those generated when the class was learned."
    title = f"{data.title}: retention of old classes' images"
    return Table(f"retention-{data.slug}", title, columns, tuple(rows), note) if rows else None


def all_runs(gathered: Gathered) -> Table:
    """Every folder, as what it is."""
    rows = [_run_row(run) for run in sorted(gathered.runs, key=lambda run: data_key(data_of(run)))]
    rows += [
        Row((words(blank.place), *[words("")] * 4, words(blank.text), *[words("")] * 5)) for blank in gathered.blank
    ]
    columns = (
        "folder",
        "data",
        "method",
        "seed",
        "order seed",
        "state",
        "tasks",
        "A_t %",
        "minutes",
        "last record, UTC",
        "code",
    )
    return Table("runs", "All run folders", columns, tuple(rows))


def data_of(run: Run) -> Data:
    head = run.head
    return Data(head.dataset, head.variant, head.digest, head.seen(len(head.tasks)), len(head.class_names))


def _run_row(run: Run) -> Row:
    head = run.head
    scores = run.evaluations[-1].accuracy if run.evaluations else None
    state: str = run.state
    if state in ("running", "stopped") and run.epoch is not None:
        task, epoch = run.epoch
        state += f"; last: task {task + 1}, epoch {epoch + 1}"
    elif state == "failed":
        state += f": {run.failure}"
    return Row(
        (
            words(run.name),
            words(data_of(run).title),
            words(head.method),
            number(head.seed, 0),
            number(head.order_seed, 0),
            words(state),
            Cell(f"{len(run.evaluations)} of {len(head.tasks)}", len(run.evaluations)),
            number(None if scores is None else 100 * scores),
            number(sum(run.seconds.values()) / 60 if run.seconds else None, 1),
            words(time.strftime("%Y-%m-%d %H:%M", time.gmtime(run.last_record))),
            words(run.commit or ""),
        ),
        method=head.method,
    )
