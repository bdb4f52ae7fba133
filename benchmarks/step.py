"""A training step of ours against the plain reference loop, at tasks 1, 5 and 10.

    python benchmarks/step.py [--threads N] [--batches 16 64] [--tasks 1 5 10] [--runs RUN …] [--set FIELD=VALUE …]

Our step is all of `TaskTrainer.step`: the mean of a step while masks are learned and of one under fixed masks, weighted
as in a task. It trains no classifier. A second figure therefore spreads all that a task costs besides over its steps:
consolidation, the check of retention, the sampling weights of rare images, the classifier's replay with its confidence
filter, and the classifier's steps. The reference step trains critic, generator and classifier at once. On neither side:
reading images, evaluation, saving.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

import clock
import fast_forward
from engram.data.examples import Examples
from engram.gan.oversampling import sampling_weights
from engram.masking.annealing import s_max_of_epoch
from engram.memory.engram import consolidate
from engram.methods.dgm.learner import DGM
from engram.methods.dgm.train_task import TaskTrainer
from engram.methods.learner import SILENT, Progress
from engram.seeding import generator
from fast_forward import RecordedRun
from reference import PlainLoop

PART = 4
"""Replay is timed on a fourth of an epoch's images, classifier steps on as many batches."""


def trainer_of(learner: DGM, recorded: RecordedRun, *, fixed: bool, classes: int = 1) -> TaskTrainer:
    """The next task's training on a copy of the network; `fixed`: in its second phase, under fixed masks."""
    net, task = copy.deepcopy(learner.net), len(learner.engrams)
    units = fast_forward.seen_by(net, learner.settings, task)
    trainer = TaskTrainer(net, learner.ctx, task=task, classes=classes, known=classes, units=units)
    if fixed:
        masks = recorded.masks(net, task)
        for layer, mask in zip(
            trainer.net.plastic, masks if trainer.seen is None else trainer.seen.narrow(masks), strict=True
        ):
            layer.embedding.data.copy_(mask.float() * 2 - 1)
        trainer.fix_masks(task)
    return trainer


def our_step(learner: DGM, trainer: TaskTrainer, *, classes: int = 1) -> Callable[[], object]:
    """A step in the middle of the phase that the trainer is in."""
    task, numbers = fast_forward.some_task(learner, classes=classes), itertools.count()
    epoch = trainer.mask_epochs if trainer.fixed else trainer.mask_epochs // 2
    return lambda: trainer.step(task, epoch, next(numbers) % trainer.steps)


def reference_step(learner: DGM, trainer: TaskTrainer) -> Callable[[], object]:
    """The same task, batch and noise by the plain loop; its masks are soft to the end, as the paper's are."""
    settings, task, numbers = learner.settings, fast_forward.some_task(learner), itertools.count()
    loop, size = PlainLoop(learner, trainer), settings.gan.batch_size
    s = s_max_of_epoch(trainer.mask_epochs // 2 + 1, trainer.mask_epochs, settings.masks.s_max)

    def step() -> object:
        draws = generator(0, "benchmark step", next(numbers))
        rows = torch.randint(len(task), (size,), generator=draws)
        real = (task.images[rows].float() / 127.5) - 1
        z, u = torch.randn(size, settings.generator.latent_dim, generator=draws), torch.rand(size, generator=draws)
        return loop.step(real, z, u, s=s, s_max_i=s)

    return step


def weighted(learned: float, fixed: float, trainer: TaskTrainer) -> float:
    """A mean step of a task."""
    share = trainer.mask_epochs / trainer.settings.gan.epochs
    return share * learned + (1 - share) * fixed


@dataclass(frozen=True)
class Rest:
    """Seconds that a task takes besides its GAN steps."""

    consolidation: float
    retention: float
    rarity: float
    replay: float
    classifier: float

    @property
    def all(self) -> float:
        return self.consolidation + self.retention + self.rarity + self.replay + self.classifier


def rest_of(recorded: RecordedRun, task: int, *, images: int = 6000, rounds: int = 2) -> Rest:
    """What follows the GAN steps of a task, counted from 1, measured in parts and added up."""
    before, after = fast_forward.learner_at(recorded, task), fast_forward.learner_at(recorded, task + 1)
    settings, classifier = before.settings, before.ctx.classifier
    trainer, some = trainer_of(before, recorded, fixed=True), fast_forward.some_task(before, images=images)
    tenth = -(-settings.generator.bn_batches // 10)
    draws = torch.Generator().manual_seed(0)
    ways: dict[str, Callable[[], object]] = {
        "consolidation": lambda: consolidate(trainer.net, trainer.fixed, [0], batches=tenth, generator=draws),
        "retention": after.retention,
        "rarity": lambda: sampling_weights(some.images, some.targets, settings.gan.rare_power),
    }
    if task > 1:  # a single class needs no classifier
        ways |= {"first": replay_part(after, filtered=False), "later": replay_part(after, filtered=True)}
        ways["classifier"] = classifier_part(after)
    seconds = clock.best(ways, rounds=rounds)
    filtered = classifier.epochs - 1 if settings.replay.keep_fraction < 1 else 0
    first = classifier.epochs - filtered
    batches = max(1, settings.replay.images // classifier.batch_size)
    return Rest(
        consolidation=seconds["consolidation"] * settings.generator.bn_batches / tenth,
        retention=seconds["retention"],
        rarity=seconds["rarity"],
        replay=PART * (first * seconds.get("first", 0.0) + filtered * seconds.get("later", 0.0)),
        classifier=classifier.epochs * batches / PART * seconds.get("classifier", 0.0),
    )


def replay_part(learner: DGM, *, filtered: bool) -> Callable[[], object]:
    """A fourth of the images of one classifier epoch, evenly over all classes."""
    phase, images, classes = copy.copy(learner.classifier_phase), learner.settings.replay.images, len(learner.nets)
    phase.confidence_filter = copy.deepcopy(phase.classifier.net).eval() if filtered else None

    def source(class_index: int, count: int, draws: torch.Generator) -> torch.Tensor:
        return learner.sample([class_index], count, generator=draws)

    return lambda: phase.draw(source, images // PART, classes=classes, task=0, epoch=0)


def classifier_part(learner: DGM) -> Callable[[], object]:
    """Four steps of the classifier, changes of tone and noise included."""
    classifier, size = learner.classifier_phase.classifier, learner.ctx.classifier.batch_size
    images = torch.randint(0, 256, (PART * size, *learner.ctx.shape), dtype=torch.uint8)
    examples = Examples(images, torch.randint(classifier.classes, (len(images),)))

    def steps() -> None:
        classifier.progress = Progress(epochs=1, batches=PART)
        classifier.fit(lambda epoch: examples, task=0, observe=SILENT)

    return steps


def compare(recorded: RecordedRun, tasks: Sequence[int], *, rounds: int, repeat: int) -> dict[tuple[int, str], float]:
    """(task, what) -> seconds of a step, all of them timed in turn; `ours` is the two phases weighted."""
    ways: dict[tuple[int, str], Callable[[], object]] = {}
    trainers = {}
    for task in tasks:
        learner = fast_forward.learner_at(recorded, task)
        learned, fixed = (trainer_of(learner, recorded, fixed=phase) for phase in (False, True))
        ways[task, "reference"] = reference_step(learner, learned)
        ways[task, "learned"], ways[task, "fixed"] = our_step(learner, learned), our_step(learner, fixed)
        trainers[task] = learned
    seconds = clock.best(ways, rounds=rounds, repeat=repeat)
    for task in tasks:
        seconds[task, "ours"] = weighted(seconds[task, "learned"], seconds[task, "fixed"], trainers[task])
    return seconds


def main() -> None:
    asks = fast_forward.parser(__doc__)
    asks.add_argument("--batches", type=int, nargs="+", default=[16, 64], help="images a step")
    asks.add_argument("--tasks", type=int, nargs="+", default=[1, 5, 10])
    asks.add_argument("--repeat", type=int, default=3, help="steps in a row")
    asks.set_defaults(rounds=15)
    given = asks.parse_args()
    settings = fast_forward.settings_of(given)
    print(clock.machine())
    for folder in given.runs:
        recorded = fast_forward.read_run(folder, settings)
        print(f"\n{recorded.name}: masks {'of the run' if recorded.engrams else 'drawn, as dense as recorded'}")
        for task in given.tasks:
            print("  " + fast_forward.sizes(recorded, fast_forward.learner_at(recorded, task)))
        rest = {task: rest_of(recorded, task, rounds=min(2, given.rounds)) for task in given.tasks}
        print("  seconds a task besides its steps")
        for task, parts in rest.items():
            each = ", ".join(f"{name} {value:.2f}" for name, value in vars(parts).items())
            print(f"  task {task:2}: {parts.all:6.2f} = {each}")
        for size in given.batches:
            batch = fast_forward.read_run(folder, {**settings, "gan.batch_size": size})
            seconds = compare(batch, given.tasks, rounds=given.rounds, repeat=given.repeat)
            steps = batch.settings.gan.epochs * batch.settings.gan.steps
            print(f"  ms a step, batches of {size}; whole task: spread over its {steps} steps")
            print("  task  reference   learned     fixed  our step  ratio  whole task  ratio")
            for task in given.tasks:
                reference, ours = seconds[task, "reference"], seconds[task, "ours"]
                whole = ours + rest[task].all / steps
                row = [reference, seconds[task, "learned"], seconds[task, "fixed"], ours]
                cells = "  ".join(f"{1e3 * value:8.1f}" for value in row)
                print(f"  {task:4}   {cells}  {reference / ours:5.2f}  {1e3 * whole:10.1f}  {reference / whole:5.2f}")
            first, last = given.tasks[0], given.tasks[-1]
            growth = seconds[last, "ours"] / seconds[first, "ours"]
            print(f"  our step at task {last} over task {first}: {growth:.2f}")
    print("\nbars: ratio 2 at task 1 and 5 at task 10; task 10 over task 1 at most 1.15")


if __name__ == "__main__":
    main()
