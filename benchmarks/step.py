"""A training step of ours against the plain reference loop, at tasks 1, 5 and 10.

    python benchmarks/step.py [--threads N] [--batches 16 64] [--tasks 1 5 10] [--runs RUN …] [--set FIELD=VALUE …]

Counted as our step: `Imprint.step`, all of it, while masks are learned and under fixed masks, weighted as in a task. It
trains no solver. So a second figure spreads all that a task costs besides over its steps: consolidation, retention,
the odds of rare images, the replay of every solver epoch with its judging, and the solver's steps. The reference step
trains critic, generator and solver at once. Not counted on either side: reading images, evaluation, saving.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

import clock
import stage
from engram.memory.generative import consolidate
from engram.methods.dgm import DGM
from engram.methods.imprint import Imprint
from engram.methods.learner import SILENT, Clock
from engram.methods.rarity import odds
from engram.plastic.schedule import s_max_of_epoch
from engram.seeding import generator
from reference import PlainLoop

PART = 4
"""Replay is timed on a fourth of an epoch's images, solver steps on as many batches."""


def imprint_of(learner: DGM, past: stage.Past, *, fixed: bool, classes: int = 1) -> Imprint:
    """The next task's training on a copy of the network; `fixed`: in its second movement."""
    net, task = copy.deepcopy(learner.net), len(learner.engrams)
    imprint = Imprint(net, learner.around, task=task, classes=classes, known=classes)
    if fixed:
        for layer, mask in zip(net.plastic, past.masks(net, task), strict=True):
            layer.embedding.data.copy_(mask.float() * 2 - 1)
        imprint.fix_masks(task)
    return imprint


def our_step(learner: DGM, imprint: Imprint, *, classes: int = 1) -> Callable[[], object]:
    """A step in the middle of the movement that the imprint is in."""
    task, numbers = stage.some_task(learner, classes=classes), itertools.count()
    epoch = imprint.mask_epochs if imprint.fixed else imprint.mask_epochs // 2
    return lambda: imprint.step(task, epoch, next(numbers) % imprint.steps)


def reference_step(learner: DGM, imprint: Imprint) -> Callable[[], object]:
    """The same task, batch and noise by the plain loop; its masks are soft to the end, as the paper's are."""
    settings, task, numbers = learner.settings, stage.some_task(learner), itertools.count()
    loop, size = PlainLoop(learner, imprint), learner.settings.batch_size
    s = s_max_of_epoch(imprint.mask_epochs // 2 + 1, imprint.mask_epochs, settings.s_max)

    def step() -> object:
        draws = generator(0, "benchmark step", next(numbers))
        rows = torch.randint(len(task), (size,), generator=draws)
        real = (task.images[rows].float() / 127.5) - 1
        z, u = torch.randn(size, settings.noise, generator=draws), torch.rand(size, generator=draws)
        return loop.step(real, z, u, s=s, s_max_i=s)

    return step


def weighted(learned: float, fixed: float, imprint: Imprint) -> float:
    """A mean step of a task."""
    share = imprint.mask_epochs / imprint.settings.epochs
    return share * learned + (1 - share) * fixed


@dataclass(frozen=True)
class Rest:
    """Seconds that a task takes besides its GAN steps."""

    consolidation: float
    retention: float
    rarity: float
    replay: float
    solver: float

    @property
    def all(self) -> float:
        return self.consolidation + self.retention + self.rarity + self.replay + self.solver


def rest_of(past: stage.Past, task: int, *, images: int = 6000, rounds: int = 2) -> Rest:
    """What follows the GAN steps of a task, counted from 1, measured in parts and added up."""
    before, after = stage.learner_at(past, task), stage.learner_at(past, task + 1)
    settings, training = before.settings, before.around.training
    imprint, some = imprint_of(before, past, fixed=True), stage.some_task(before, images=images)
    tenth = -(-settings.statistics // 10)
    draws = torch.Generator().manual_seed(0)
    ways: dict[str, Callable[[], object]] = {
        "consolidation": lambda: consolidate(imprint.net, imprint.fixed, [0], batches=tenth, generator=draws),
        "retention": after.retention,
        "rarity": lambda: odds(some.images, some.targets, settings.rare),
    }
    if task > 1:  # a single class needs no solver
        ways |= {"first": replay_part(after, judged=False), "later": replay_part(after, judged=True)}
        ways["solver"] = solver_part(after)
    seconds = clock.best(ways, rounds=rounds)
    judged = training.epochs - 1 if settings.keep < 1 else 0
    first = training.epochs - judged
    batches = max(1, settings.replay // training.batch_size)
    return Rest(
        consolidation=seconds["consolidation"] * settings.statistics / tenth,
        retention=seconds["retention"],
        rarity=seconds["rarity"],
        replay=PART * (first * seconds.get("first", 0.0) + judged * seconds.get("later", 0.0)),
        solver=training.epochs * batches / PART * seconds.get("solver", 0.0),
    )


def replay_part(learner: DGM, *, judged: bool) -> Callable[[], object]:
    """A fourth of the images of one solver epoch, evenly over all classes."""
    rehearsal, settings, columns = copy.copy(learner.rehearsal), learner.settings, len(learner.nets)
    rehearsal.judge = copy.deepcopy(rehearsal.solver.net).eval() if judged else None

    def source(column: int, count: int, draws: torch.Generator) -> torch.Tensor:
        return learner.sample([column], count, generator=draws)

    return lambda: rehearsal.draw(source, settings.replay // PART, columns=columns, task=0, epoch=0)


def solver_part(learner: DGM) -> Callable[[], object]:
    """Four steps of the solver, changes of tone and noise included."""
    solver, size = learner.rehearsal.solver, learner.around.training.batch_size
    images = torch.randint(0, 256, (PART * size, learner.around.channels, 32, 32), dtype=torch.uint8)
    targets = torch.randint(solver.classes, (len(images),))

    def steps() -> None:
        solver.clock = Clock(epochs=1, batches=PART)
        solver.fit(lambda epoch: (images, targets), task=0, observe=SILENT)

    return steps


def compare(past: stage.Past, tasks: Sequence[int], *, rounds: int, repeat: int) -> dict[tuple[int, str], float]:
    """(task, what) -> seconds of a step, all of them timed in turn; `ours` is the two movements weighted."""
    ways: dict[tuple[int, str], Callable[[], object]] = {}
    shares = {}
    for task in tasks:
        learner = stage.learner_at(past, task)
        learned, fixed = (imprint_of(learner, past, fixed=movement) for movement in (False, True))
        ways[task, "reference"] = reference_step(learner, learned)
        ways[task, "learned"], ways[task, "fixed"] = our_step(learner, learned), our_step(learner, fixed)
        shares[task] = learned
    seconds = clock.best(ways, rounds=rounds, repeat=repeat)
    for task in tasks:
        seconds[task, "ours"] = weighted(seconds[task, "learned"], seconds[task, "fixed"], shares[task])
    return seconds


def main() -> None:
    asks = stage.parser(__doc__)
    asks.add_argument("--batches", type=int, nargs="+", default=[16, 64], help="images a step")
    asks.add_argument("--tasks", type=int, nargs="+", default=[1, 5, 10])
    asks.add_argument("--repeat", type=int, default=3, help="steps in a row")
    asks.set_defaults(rounds=15)
    given = asks.parse_args()
    settings = stage.settings_of(given)
    print(clock.machine())
    for folder in given.runs:
        past = stage.past_of(folder, settings)
        print(f"\n{past.name}: masks {'of the run' if past.engrams else 'drawn, as dense as recorded'}")
        for task in given.tasks:
            print("  " + stage.sizes(past, stage.learner_at(past, task)))
        rest = {task: rest_of(past, task, rounds=min(2, given.rounds)) for task in given.tasks}
        print("  seconds a task besides its steps")
        for task, parts in rest.items():
            each = ", ".join(f"{name} {value:.2f}" for name, value in vars(parts).items())
            print(f"  task {task:2}: {parts.all:6.2f} = {each}")
        for size in given.batches:
            batch = stage.past_of(folder, {**settings, "method.batch_size": size})
            seconds = compare(batch, given.tasks, rounds=given.rounds, repeat=given.repeat)
            steps = batch.config.method_settings.epochs * batch.config.method_settings.steps
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
