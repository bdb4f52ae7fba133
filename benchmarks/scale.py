"""What many classes and many images would cost: recorded growth continued by the method's own rule (docs/scale.md).

    python benchmarks/scale.py [--classes 10 100 1000] [--per-task 1 10] [--images 1e8] [--price 0.05] [--runs RUN …]
                               [--step-ms A --step-ms-per-million B --replay-ms C]

Sizes: every task opens a share of the free mask entries and a share of the reserved ones. Up to the run's last task the
shares are the recorded ones; after it they are

    held     at the mean of the last three, for ever
    falling  the share of free entries goes on falling, by the power of the task's number that fits the record

Every layer grows by `plan_growth`, as in a run.

Times: GAN steps x (A + B x million products an image of the generator) + replayed images x (C + their drawing). A, B
and C are given, or fitted to the timing records of one run that had the machine to itself.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import fast_forward
from engram.masking.growth import LayerSize
from engram.masking.masks import Variant
from engram.nets.growth import plan_growth
from fast_forward import RecordedRun

Law = Literal["held", "falling"]
LAWS: tuple[Law, ...] = ("held", "falling")
RESULTS = fast_forward.ROOT / "results"
RUNS = [*fast_forward.RUNS, RESULTS / "svhn" / "dgma" / "10000-digits" / "seed0"]
TIMED = RESULTS / "archive" / "mnist" / "dgmw" / "momentum" / "seed2"
"""Had both cores to itself; its steps were slower than today's."""
SIDES = (1, 4, 8, 16)
"""Of what each layer, and then the head, reads: a transposed convolution has as many products a weight and image."""
AREA = 16
FEATURES = 2048
"""Of the classifier's trunk; its head has as many weights a class."""


@dataclass(frozen=True)
class Point:
    """The memory after a task; bytes are of all tasks so far."""

    task: int
    weights: int
    """Plastic ones, grown for the next task."""
    products: float
    """Millions an image, of the whole network in this task's training."""
    opened: float
    """The same of what the task's masks leave to compute."""
    masks: int
    heads: int
    norms: int
    nets: int
    """The compact networks, which lie in memory and not on disc."""

    @property
    def disc(self) -> int:
        return 4 * self.weights + self.masks + self.heads + self.norms


def simulate(recorded: RecordedRun, tasks: int, *, per_task: int = 1, law: Law = "held") -> list[Point]:
    """Task by task, in numbers alone. The first ones are the run's own, to the byte, where `per_task` is its own."""
    own, graph, channels = recorded.settings.generator, recorded.graph, recorded.shape[0]
    variant: Variant = "weights" if recorded.config.method == "dgmw" else "units"
    units = [multiple * own.width for multiple in graph.multiples]
    inputs = [own.latent_dim, *units[:-1]]
    sizes = [_size(a, b, variant) for a, b in zip(inputs, units, strict=True)]
    power, points = exponent(recorded), []
    masks = heads = norms = nets = 0
    for task in range(tasks):
        opened, reserved = [], []
        for number, layer in enumerate(sizes):
            free = _entries(layer, variant) - layer.reserved
            falls = law == "falling" and task >= len(recorded.shares)
            fade = (task / (len(recorded.shares) - fast_forward.LAST / 2)) ** -power if falls else 1.0
            new, again = recorded.taken(task, number, free=free, reserved=layer.reserved, fade=fade)
            opened.append(new + again)
            reserved.append(layer.reserved + new)
        units = [layer.units for layer in sizes]
        # DGMa leaves closed units out. Nearly every unit of DGMw has an open weight, unless a task may keep some alone
        active = recorded.kept(task, units) if variant == "weights" else opened
        masks += sum(math.ceil(_entries(layer, variant) / 8) for layer in sizes)
        heads += 4 * channels * (units[-1] * AREA + 1)
        norms += 8 * per_task * sum(units)
        nets += per_task * 4 * (_weights(own.latent_dim, active) + sum(active) + channels * active[-1] * AREA)
        full, some = (_products(own.latent_dim, ends, channels) for ends in (units, active))
        sizes = [
            LayerSize(layer.inputs, layer.units, AREA, taken, layer.start_free)
            for layer, taken in zip(sizes, reserved, strict=True)
        ]
        plan = plan_growth(graph, sizes, variant)
        sizes = [
            LayerSize(growth.inputs_after, growth.units_after, AREA, layer.reserved, layer.start_free)
            for layer, growth in zip(sizes, plan, strict=True)
        ]
        weights = sum(layer.inputs * layer.units * AREA for layer in sizes)
        points.append(Point(task + 1, weights, full, some, masks, heads, norms, nets))
    return points


def _size(inputs: int, units: int, variant: Variant) -> LayerSize:
    return LayerSize(inputs, units, AREA, 0, inputs * units * AREA if variant == "weights" else units)


def _entries(layer: LayerSize, variant: Variant) -> int:
    return layer.inputs * layer.units * AREA if variant == "weights" else layer.units


def _weights(latent_dim: int, units: Sequence[int]) -> int:
    return sum(a * b * AREA for a, b in zip([latent_dim, *units[:-1]], units, strict=True))


def _products(latent_dim: int, units: Sequence[int], channels: int) -> float:
    ends = [latent_dim, *units, channels]
    return sum(a * b * AREA * side**2 for a, b, side in zip(ends[:-1], ends[1:], SIDES, strict=True)) / 1e6


def exponent(recorded: RecordedRun) -> float:
    """p of share ~ task^-p: the mean over layers of what the recorded tasks from the second on took of the free."""
    means = [statistics.fmean(share.free for share in shares) for shares in recorded.shares]
    places = [math.log(number + 1) for number in range(1, len(means))]
    slope, _ = statistics.linear_regression(places, [math.log(max(mean, 1e-3)) for mean in means[1:]])
    return max(0.0, -slope)


@dataclass(frozen=True)
class Speed:
    """Constants of the machine, in milliseconds."""

    step: float
    """Of a GAN step, without its generator."""
    step_per_million: float
    """For each million products an image."""
    replay: float
    """Of one replayed image: drawn, filtered, learned; the consolidation spread over all."""
    products: float
    """The drawing networks' mean size when `replay` was measured."""
    threads: int


def speed_of(recorded: RecordedRun) -> Speed:
    """Fitted to the run's timing records."""
    records = [json.loads(line) for line in (recorded.folder / "records.jsonl").read_text().splitlines()]
    timing = [record for record in records if record["kind"] == "timing"]
    gan, points = recorded.settings.gan, simulate(recorded, len(timing))
    steps = [statistics.median(record["step_seconds"][: gan.epochs]) for record in timing]
    slope, first = statistics.linear_regression([computed(recorded, point) for point in points], steps)
    mean = [statistics.fmean(record["step_seconds"][: gan.epochs]) for record in timing]
    drawn = recorded.config.classifier.epochs * recorded.settings.replay.images
    rest = [r["seconds"] - gan.epochs * gan.steps * m for r, m in zip(timing[1:], mean[1:], strict=True)]
    environment = json.loads((recorded.folder / "environment.json").read_text())
    return Speed(
        step=1e3 * first,
        step_per_million=1e3 * max(slope, 0.0),
        replay=1e3 * statistics.median(rest) / drawn,
        products=statistics.fmean(point.opened for point in points),
        threads=environment[-1]["threads"],
    )


def computed(recorded: RecordedRun, point: Point) -> float:
    """Millions of products an image in a mean step: all while masks are learned, then what they leave."""
    share = recorded.settings.masks.fraction
    return share * point.products + (1 - share) * point.opened


@dataclass(frozen=True)
class Cost:
    """Hours of a whole stream."""

    gan: float
    replay: float
    """As many images in all as today, however many classes there are."""
    replay_even: float
    """As many of every class as at the tenth task of one class."""


def cost(recorded: RecordedRun, points: Sequence[Point], speed: Speed, *, per_task: int) -> Cost:
    """Step x steps + replay, over all tasks."""
    gan, replayed = recorded.settings.gan, recorded.settings.replay
    steps, images = gan.epochs * gan.steps * per_task, recorded.config.classifier.epochs * replayed.images
    # a step computes its batch forward and twice as much backward; drawing is forward alone, and keeps a part of it
    drawing = speed.step_per_million / (3 * gan.batch_size) / replayed.keep_fraction
    gan_ms = replay_ms = even_ms = drawn = 0.0
    for point in points:
        drawn += point.opened
        each = speed.replay + drawing * max(0.0, drawn / point.task - speed.products)
        gan_ms += steps * (speed.step + speed.step_per_million * computed(recorded, point))
        replay_ms += images * each
        even_ms += images / 10 * point.task * per_task * each
    return Cost(*(total / 3.6e6 for total in (gan_ms, replay_ms, even_ms)))


def breaks(recorded: RecordedRun, limit: float, *, per_task: int, law: Law) -> int | None:
    """How many classes there are when the compact networks outgrow so many bytes; None for none of the first 5,000."""
    points = simulate(recorded, 5000 // per_task, per_task=per_task, law=law)
    return next((point.task * per_task for point in points if point.nets > limit), None)


def images_table(images: float, channels: int, per_class: float) -> list[str]:
    """What so many images take to hold and to show once."""
    pixels = images * channels * 1024
    return [
        f"{images:.0e} images of 32x32x{channels}: {pixels / 1e9:,.0f} GB as uint8, twice that while cut up by task;",
        f"fingerprints {images * 57 / 1e9:.1f} GB, labels {images * 8 / 1e9:.1f} GB;",
        f"{per_class:,.0f} a class: one pass in batches of 16 is {per_class / 16:,.0f} steps;",
        f"sampling weights take {per_class * channels * 4096 / 1e9:.2f} GB of floats a class, for a moment twice that.",
    ]


def main() -> None:
    asks = fast_forward.parser(__doc__)
    asks.set_defaults(runs=RUNS)
    asks.add_argument("--classes", type=int, nargs="+", default=[10, 100, 1000])
    asks.add_argument("--per-task", type=int, nargs="+", default=[1, 10], help="classes a task")
    asks.add_argument("--images", type=float, default=1e8, help="of all classes together")
    asks.add_argument("--ram", type=float, default=24, help="GB of the machine")
    asks.add_argument("--price", type=float, default=0.05, help="of a core for an hour, in your currency")
    asks.add_argument("--timed", type=Path, default=TIMED, help="the run whose times are fitted, for all rows")
    asks.add_argument("--step-ms", type=float, help="A, from growth.py; all three or none")
    asks.add_argument("--step-ms-per-million", type=float, help="B, of a million products an image")
    asks.add_argument("--replay-ms", type=float, help="C, of a replayed image")
    given = asks.parse_args()
    settings = fast_forward.settings_of(given)
    timed = fast_forward.read_run(given.timed)
    speed = speed_of(timed)
    if given.step_ms is not None:
        ours = given.step_ms, given.step_ms_per_million, given.replay_ms
        speed = Speed(*ours, products=speed.products, threads=given.threads or speed.threads)
    print(
        f"a GAN step takes {speed.step:.1f} ms + {speed.step_per_million:.2f} a million products an image, a replayed "
        f"image {speed.replay:.2f} ms, on {speed.threads} thread(s)"
        + (f": {timed.name}" if given.step_ms is None else "")
    )
    for folder in given.runs:
        recorded = fast_forward.read_run(folder, settings)
        print(f"\n{recorded.name}: the share of free entries falls as task^-{exponent(recorded):.2f}")
        print("classes  a task  law      weights  disc MB  masks MB  KB/class  nets MB  step ms", end="  ")
        print("  GAN h  replay h    even h    price")
        for classes in given.classes:
            for per_task in given.per_task:
                for law in LAWS if classes // per_task > len(recorded.shares) else LAWS[:1]:
                    _row(recorded, speed, classes, per_task, law, given.price)
        texts = []
        for per_task in given.per_task:
            for law in LAWS:
                full = breaks(recorded, given.ram * 1e9, per_task=per_task, law=law)
                texts.append(f"{per_task} a task, {law}: {full or 'beyond 5,000'}")
        print(f"the class whose compact network no longer fits into {given.ram:.0f} GB: {'; '.join(texts)}")
        print("\n".join(images_table(given.images, recorded.shape[0], given.images / max(given.classes))))
    print(f"\nhead of the classifier: {4 * FEATURES / 1e3:.1f} KB a class, three times that with its optimiser")
    print(f"price: {given.price} a core-hour, GAN and even replay, all threads busy")


def _row(recorded: RecordedRun, speed: Speed, classes: int, per_task: int, law: Law, price: float) -> None:
    points = simulate(recorded, classes // per_task, per_task=per_task, law=law)
    last, hours = points[-1], cost(recorded, points, speed, per_task=per_task)
    step = speed.step + speed.step_per_million * computed(recorded, last)
    spent = price * speed.threads * (hours.gan + hours.replay_even)
    print(
        f"{classes:7}  {per_task:6}  {law:7}  {last.weights:7.1e}  {last.disc / 1e6:7.1f}  {last.masks / 1e6:8.1f}  "
        f"{last.disc / classes / 1e3:8.0f}  {last.nets / 1e6:7.0f}  {step:7.0f}  "
        f"{hours.gan:7.1f}  {hours.replay:8.1f}  {hours.replay_even:8.1f}  {spent:7.2f}"
    )


if __name__ == "__main__":
    main()
