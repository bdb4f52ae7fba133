"""Groups -> the paper's four tables, and those the paper has not: retention, the ledger against images, all runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial

from engram.evaluation.paper import TABLE_2, TABLE_3, TABLE_4, paper_accuracy
from engram.report.gather import Gathered, Run
from engram.report.groups import SECTIONS, Data, Group, Mean, stored
from engram.report.tables import NOTHING, Cell, Row, Table, mean, number, words

MB = 1e-6
SIDE = 32
"""Images are stored at 32x32, a byte a channel."""


def in_sections(groups: Iterable[Group]) -> list[Group]:
    return sorted(groups, key=lambda g: SECTIONS.index(g.section))


def stations(data: Data, groups: Sequence[Group]) -> tuple[int, ...]:
    return data.stations(len(e.classes) for g in groups for run in g.runs for e in run.evaluations)


def table_1(data: Data, groups: Sequence[Group]) -> Table:
    """A_t by method: ours, the paper's; what it costs and how much was forgotten."""
    points = stations(data, groups)
    top = {t: _highest(groups, t) for t in points}
    settled = any(g.settings for g in groups)
    rows = []
    for g in in_sections(groups):
        cells = [words(g.label), words(seeds(g))]
        for t in points:
            ours = g.score(t)
            best = ours is not None and g.contender and g.finished and ours.value == top[t]
            cells += [mean(ours, strong=best), number(paper_accuracy(data.name, g.method, t))]
        cells += [
            mean(g.score(data.classes, lambda e: e.forgetting)),
            mean(g.bytes, scale=MB),
            mean(g.seconds, 1, scale=1 / 60),
        ]
        rows.append(Row((*cells, words(g.settings)) if settled else tuple(cells), g.section, g.method))
    columns = [column for t in points for column in (f"A_{t} %", f"paper's A_{t} %")]
    note = "Mean ± standard deviation over seeds. Bold: the best strict method of ours. Forgetting: how far each task "
    note += "fell below its best, on average. Kept: what the method carries of the past."
    if not data.comparable and any(paper_accuracy(data.name, g.method, t) for g in groups for t in points):
        note += " The paper's figures are for the full set and not comparable with these."
    return Table(
        f"table1-{data.slug}",
        f"Table 1. {data.title}: accuracy over all classes seen",
        ("method", "seeds", *columns, "forgetting %", "kept MB", "minutes", *(["settings that differ"] * settled)),
        tuple(rows),
        note,
    )


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
        cells = [words(g.label), words(stored(g)), words(seeds(g))]
        for t in points:
            cells += [mean(g.score(t)), number(paper.get("top-1", {}).get(t))]
        for t in points:
            cells += [mean(g.score(t, lambda e: e.top5)), number(paper.get("top-5", {}).get(t))]
        rows.append(Row(tuple(cells), method=g.method))
    tops = [c for k in (1, 5) for t in points for c in (f"A_{t} top-{k} %", f"paper's A_{t} top-{k} %")]
    return Table(
        f"table2-{data.slug}",
        f"Table 2. {data.title}: with stored images",
        ("method", "stores", "seeds", *tops),
        tuple(rows),
        "r: share of real images among those replayed. K: real images kept in all.",
    )


def table_3(data: Data, groups: Sequence[Group]) -> Table | None:
    """The generator's weights at first and at last. None where no run has a generator."""
    rows = []
    for g in in_sections(groups):
        first, last = g.mean(_first_weights), g.mean(_last_weights)
        if last is None:
            continue
        paper = TABLE_3.get(data.name, {}).get(g.method)
        quoted = [Cell(f"{v:.2e}", v) if v else words("") for v in (paper or (None, None))[:2]]
        cells = [words(g.label), words(seeds(g)), _count(first), quoted[0], _count(last), quoted[1], mean(g.final)]
        rows.append(Row((*cells, number(paper[2] if paper else None)), method=g.method))
    if not rows:
        return None
    columns = ("method", "seeds", "at first", "paper", "at last", "paper", f"A_{data.classes} %", "paper's")
    note = "DGM: the weights of the layers that grow. Rivals: all that the generator's state holds."
    return Table(
        f"table3-{data.slug}", f"Table 3. {data.title}: parameters of the generator", columns, tuple(rows), note
    )


def _count(value: Mean | None) -> Cell:
    return Cell(NOTHING) if value is None else Cell(f"{value.value:,.0f}", value.value, value.std)


def _first_weights(run: Run) -> float | None:
    return float(run.growth[0].weights[0]) if run.growth else _fixed_weights(run)


def _last_weights(run: Run) -> float | None:
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
            cells = [words(g.label), words(part)]
            for t in points:
                ours = g.mean(partial(_part, part=part, classes=t))
                cells += [mean(ours, 3, scale=MB, strong=part == "total"), number(paper.get(t), 1)]
            if part == "total" or any(cell.number for cell in cells):
                rows.append(Row(tuple(cells), method=g.method))
    if not rows:
        return None
    sizes = [c for t in points for c in (f"after {t} classes, MB", "paper")]
    note = "Masks are kept as bits; the paper stored them in a sparse form."
    return Table(
        f"table4-{data.slug}",
        f"Table 4. {data.title}: disc space by part",
        ("method", "part", *sizes),
        tuple(rows),
        note,
    )


def _part(run: Run, part: str, classes: int) -> float | None:
    """Bytes of a part once this many classes were learned."""
    found = [sizes for task, sizes in run.memory.items() if run.head.seen(task) == classes]
    return None if not found else sum(found[0].values()) if part == "total" else found[0].get(part)


def ledger(data: Data, groups: Sequence[Group]) -> Table | None:
    """What the memory's bytes would buy in stored images."""
    rows = []
    for g in in_sections(groups):
        kept, head = g.bytes, g.runs[0].head
        if kept is None or head.channels is None:
            continue
        bought = kept.value / (SIDE * SIDE * head.channels)
        seen = sum(head.images[: len(g.runs[0].memory)])
        cells = [
            words(g.label),
            mean(kept, scale=MB),
            number(bought, 0),
            number(bought / head.seen(len(g.runs[0].memory) - 1), 0),
        ]
        rows.append(
            Row((*cells, number(seen, 0), number(100 * bought / seen if seen else None, 1)), g.section, g.method)
        )
    if not rows:
        return None
    columns = ("method", "kept MB", "images for the same bytes", "a class", "images learned from", "share of them %")
    note = "An image as it is learned from: 32 × 32 pixels, a byte a channel, not compressed."
    return Table(
        f"ledger-{data.slug}", f"{data.title}: what the memory's bytes would buy in images", columns, tuple(rows), note
    )


def retention(data: Data, groups: Sequence[Group]) -> Table | None:
    """Whether old images came out as they were. None where no run checked."""
    rows = [
        Row((words(g.label), words(seeds(g)), number(g.checked[0], 0), number(g.checked[1], 0)), method=g.method)
        for g in in_sections(groups)
        if g.checked is not None
    ]
    columns = ("method", "seeds", "comparisons", "with a changed bit")
    note = "After every task, the images of each class learned so far are generated anew from fixed noise and compared "
    note += "with those of its own task, bit by bit."
    title = f"{data.title}: retention of old classes' images"
    return Table(f"retention-{data.slug}", title, columns, tuple(rows), note) if rows else None


def all_runs(gathered: Gathered) -> Table:
    """Every folder, as what it is."""
    rows = [_run_row(run) for run in gathered.runs]
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
        "last record",
        "code",
    )
    return Table("runs", "All run folders", columns, tuple(rows))


def _run_row(run: Run) -> Row:
    head = run.head
    scores = run.evaluations[-1].accuracy if run.evaluations else None
    state: str = run.state
    if state in ("running", "stopped") and run.epoch is not None:
        task, epoch = run.epoch
        state += f"; last: task {task + 1}, epoch {epoch + 1}"
    elif state == "failed":
        state += f": {run.failure}"
    data = Data(head.dataset, head.variant, head.digest, head.seen(len(head.tasks)), len(head.class_names))
    return Row(
        (
            words(run.name),
            words(data.title),
            words(head.method),
            number(head.seed, 0),
            number(head.order_seed, 0),
            words(state),
            Cell(f"{len(run.evaluations)} of {len(head.tasks)}", len(run.evaluations)),
            number(None if scores is None else 100 * scores),
            number(sum(run.seconds.values()) / 60 if run.seconds else None, 1),
            words(time.strftime("%Y-%m-%d %H:%M", time.localtime(run.last_record))),
            words(run.commit or ""),
        ),
        method=head.method,
    )
