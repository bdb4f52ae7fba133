"""What a classifier of generated images is shown, and what holds it to its earlier answers."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from conftest import SMALL_GAN, Interrupt, context
from engram.config import ClassifierSettings
from engram.data.datasets import Dataset, load_dataset
from engram.data.examples import Examples
from engram.data.stream import ClassStream, Task
from engram.errors import ConfigError
from engram.experiment.checkpoint import fingerprint
from engram.memory.exemplars import herd
from engram.methods.classifier_phase import TEMPERATURE, ClassifierPhase, by_need, class_loss, distillation
from engram.methods.dgm.learner import DGM
from engram.methods.learner import SILENT
from engram.seeding import generator


def test_the_distance_between_answers_is_the_divergence_written_out() -> None:
    now, then = torch.randn(2, 3, 4, generator=generator(0), dtype=torch.float64)
    total = 0.0
    for row in range(3):
        p = [math.exp(v / TEMPERATURE) for v in then[row].tolist()]
        q = [math.exp(v / TEMPERATURE) for v in now[row].tolist()]
        total += sum(a / sum(p) * math.log((a / sum(p)) / (b / sum(q))) for a, b in zip(p, q, strict=True))
    assert distillation(now, then).item() == pytest.approx(TEMPERATURE**2 * total / 3, rel=1e-9)


def test_real_images_of_new_classes_teach_nothing_of_the_old() -> None:
    """No gradient reaches an old class's score from a marked image; all others are plain cross-entropy."""
    scores = torch.randn(5, 7, generator=generator(0), dtype=torch.float64).requires_grad_()
    targets, among_new = torch.tensor([2, 5, 6, 4, 0]), torch.tensor([False, True, False, True, False])
    loss = class_loss(scores, targets, among_new, own=(4, 5, 6), smoothing=0.1)
    by_hand = 0.0
    for row, target in enumerate(targets.tolist()):
        first = 4 if among_new[row] else 0
        logs = [
            v - math.log(sum(math.exp(w) for w in scores[row, first:].tolist())) for v in scores[row, first:].tolist()
        ]
        by_hand -= 0.9 * logs[target - first] + 0.1 * sum(logs) / len(logs)
    assert loss.item() == pytest.approx(by_hand / 5, rel=1e-9)
    (gradient,) = torch.autograd.grad(loss, scores)
    assert not gradient[[1, 3], :4].any()
    assert gradient[[0, 2, 4], :4].all()


def test_where_nothing_is_marked_it_is_plain_cross_entropy() -> None:
    scores = torch.randn(5, 7, generator=generator(0), dtype=torch.float64)
    targets = torch.tensor([2, 5, 6, 4, 0])
    plain = torch.nn.functional.cross_entropy(scores, targets, label_smoothing=0.1).item()
    for among_new in (None, torch.zeros(5, dtype=torch.bool)):
        assert class_loss(scores, targets, among_new, own=(4, 5, 6), smoothing=0.1).item() == pytest.approx(
            plain, rel=1e-12
        )


def lessons(*, real_fraction: float, real_share: float = 0.0, engrams: int = 1) -> Examples:
    """Of six classes, the last two new. Generated images are 0, stored ones 1, the task's own 2 everywhere."""
    ctx = context(
        "dgmw",
        {"replay.keep_fraction": 1.0, "replay.real_fraction": real_fraction},
        classifier=ClassifierSettings(width=2),
    )
    phase = ClassifierPhase(ctx, ctx.settings.replay, engrams_of=lambda _: engrams)
    phase.real_share = real_share
    for class_index in range(6):
        phase.exemplars.add(class_index, torch.ones(3, 1, 32, 32, dtype=torch.uint8))
    twos, targets = torch.full((8, 1, 32, 32), 2, dtype=torch.uint8), torch.arange(8) % 2 + 4
    own = Task(2, (4, 5), tuple(range(6)), twos, targets, ("",))

    def source(class_index: int, count: int, draws: torch.Generator) -> torch.Tensor:
        return torch.zeros(count, 1, 32, 32, dtype=torch.uint8)

    return phase.draw(source, 600, classes=6, task=2, epoch=0, own=own)


@pytest.mark.parametrize(
    ("real_fraction", "real_share", "old", "new"),
    [
        (0.0, 0.0, [100, 0, 0], [100, 0, 0]),
        (0.4, 0.0, [100, 0, 0], [60, 0, 40]),
        (0.4, 0.25, [75, 25, 0], [45, 0, 55]),
        (1.0, 0.5, [50, 50, 0], [0, 0, 100]),
        (1.0, 0.0, [100, 0, 0], [0, 0, 100]),
        (0.0, 0.5, [50, 50, 0], [50, 0, 50]),
    ],
)
def test_every_class_alike_and_new_ones_in_part_from_the_task(
    real_fraction: float, real_share: float, old: list[int], new: list[int]
) -> None:
    drawn = lessons(real_fraction=real_fraction, real_share=real_share)
    kinds = drawn.images[:, 0, 0, 0]
    for class_index in range(6):
        found = torch.bincount(kinds[drawn.targets == class_index].long(), minlength=3).tolist()
        assert found == (new if class_index >= 4 else old)
    if not real_fraction:
        assert drawn.among_new is None
        return
    assert drawn.among_new is not None
    assert (kinds[drawn.among_new] == 2).all(), "only the task's own images may be marked"
    alike = (kinds == 1) | ((kinds == 2) & ~drawn.among_new)
    for class_index in range(6):  # what is compared with all classes: as much of it real, of every class
        assert int(alike[drawn.targets == class_index].sum()) == round(100 * real_share)


def test_more_of_a_class_shares_its_real_images_with_those_stored_of_earlier_tasks() -> None:
    drawn = lessons(real_fraction=0.0, real_share=0.5, engrams=2)
    kinds = drawn.images[:, 0, 0, 0]
    assert torch.bincount(kinds[drawn.targets == 5].long()).tolist() == [50, 25, 25]


SETTINGS = {**SMALL_GAN, "replay.real_fraction": 0.5, "replay.distill_weight": 1.0, "gan.epochs": 2, "gan.steps": 3}


def build(tiny: Dataset) -> DGM:
    ctx = context("dgmw", SETTINGS, shape=tiny.shape, classifier=ClassifierSettings(epochs=3, batch_size=32))
    return DGM(ctx, variant="weights")


def test_the_teacher_and_the_lessons_survive_any_stop(npz: Path, tiny: Dataset) -> None:
    whole, torn = build(tiny), build(tiny)
    for task in ClassStream(load_dataset(f"npz:{npz}"), 2):
        whole.learn(task)
    stopped = 0
    for task in ClassStream(load_dataset(f"npz:{npz}"), 2):
        stops = iter([2, 9, 3, 5, 4, 4])
        while True:
            try:
                torn.learn(task, observe=Interrupt(next(stops, 0)))
                break
            except InterruptedError:
                stopped += torn.classifier_phase.teacher is not None
                state = copy.deepcopy(torn.state())
                torn = build(tiny)
                torn.load(state)
    assert stopped >= 2, "never stopped while there was a teacher"
    assert fingerprint(torn.state()) == fingerprint(whole.state())
    assert "teacher" not in whole.state()["classifier_phase"], "the teacher goes with the task"


def test_what_it_said_before_is_what_it_says_again(npz: Path) -> None:
    """Held strongly, the answers over the old classes stay; let go, they do not."""
    noise = torch.randint(0, 256, (32, 1, 32, 32), dtype=torch.uint8, generator=generator(0, "images"))

    def source(class_index: int, count: int, draws: torch.Generator) -> torch.Tensor:
        return noise[torch.randint(8, (count,), generator=draws) + 8 * class_index]

    def moved(weight: float) -> float:
        ctx = context(
            "dgmw",
            {"replay.images": 96, "replay.keep_fraction": 1.0, "replay.distill_weight": weight},
            classifier=ClassifierSettings(epochs=6, batch_size=16, width=4, learning_rate=1e-2),
        )
        phase = ClassifierPhase(ctx, ctx.settings.replay)
        answers = []
        for task in ClassStream(load_dataset(f"npz:{npz}"), 2):
            phase.begin(len(task.seen), task=task.index, begins=0.0)
            phase.fit(source, task=task, observe=SILENT)
            answers.append(phase.classifier.scores(noise)[:, :2].log_softmax(1))
        return (answers[1] - answers[0]).abs().mean().item()

    held, free = moved(30.0), moved(0.0)
    assert held < 0.5 * free


def test_images_to_keep_are_chosen_by_a_classifier_that_knows_them(npz: Path, tiny: Dataset) -> None:
    """Herding takes the features that the classifier has when it has learned the class, not those from before."""
    relaxed = {**SMALL_GAN, "exemplars.ratio": 0.1, "exemplars.selection": "herding", "gan.epochs": 1, "gan.steps": 2}
    ctx = context("dgmw", relaxed, shape=tiny.shape, classifier=ClassifierSettings(epochs=1, batch_size=32))
    dgm = DGM(ctx, variant="weights")
    for task in ClassStream(load_dataset(f"npz:{npz}"), 2):
        dgm.learn(task)
        for index in task.class_indices:
            images = task.images[task.targets == index]
            best = herd(dgm.features(images), round(0.1 * len(images)))
            assert torch.equal(dgm.classifier_phase.exemplars.images[index], images[best])


# ---------------------------------------------------------------- by need


@pytest.mark.parametrize("total", [0, 1, 7, 600, 12800])
@pytest.mark.parametrize("classes", [1, 2, 10, 300])
def test_shares_by_need_add_up_and_lie_within_one_of_what_is_due(total: int, classes: int) -> None:
    needs = torch.rand(classes, generator=generator(classes), dtype=torch.float64).tolist()
    counts = by_need(total, needs)
    assert sum(counts) == total
    due = [
        Fraction(total, 2 * classes) + Fraction(total, 2) * Fraction(need) / sum(map(Fraction, needs)) for need in needs
    ]
    assert all(abs(count - wish) < 1 for count, wish in zip(counts, due, strict=True))
    assert min(counts) >= total // (2 * classes), "a class that nobody doubts has half an even share"
    order = sorted(range(classes), key=lambda place: needs[place])
    assert all(counts[a] <= counts[b] + 1 for a, b in itertools.pairwise(order))


def test_where_nobody_is_in_need_shares_are_even() -> None:
    assert by_need(11, [0.0, 0.0, 0.0]) == [4, 4, 3]
    assert by_need(10, [0.0, math.nan]) == [5, 5]


def test_a_class_that_the_filter_doubts_is_shown_more_often() -> None:
    """Six classes, told by their brightness; the filter is sure of all but the last."""
    ctx = context("dgmw", {"replay.by": "need", "replay.images": 600}, classifier=ClassifierSettings(width=2))
    phase = ClassifierPhase(ctx, ctx.settings.replay)
    phase.begin(6, task=0, begins=0.0)
    phase.confidence_filter = Sure()
    phase.classifier.progress.batch = 1  # as if resumed: the filter is not taken anew

    def source(class_index: int, count: int, draws: torch.Generator) -> torch.Tensor:
        return torch.full((count, 1, 32, 32), class_index, dtype=torch.uint8)

    shown = torch.bincount(phase._lessons(source, 0, None, 1).targets, minlength=6)
    # half of 600 evenly; the other half by needs of 0, 0, 0, 0, 0 and 1/2
    assert shown.tolist() == [50, 50, 50, 50, 50, 350]
    phase.confidence_filter = None
    assert torch.bincount(phase._lessons(source, 0, None, 1).targets).tolist() == [100] * 6


class Sure(torch.nn.Module):
    """Six scores of an image by its brightness: certain of 0 to 4, and of 5 that it is as likely 4."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        level = ((x[:, 0, 0, 0] + 1) * 127.5).round().long()
        scores = torch.full((len(x), 6), -1e3)
        scores[torch.arange(len(x)), level] = 0.0
        scores[level == 5, 4] = 0.0
        return scores


def test_by_need_somebody_has_to_judge() -> None:
    with pytest.raises(ConfigError, match=r"replay\.by='need' .* even where replay\.keep_fraction is 1"):
        context("dgmw", {"replay.by": "need", "replay.keep_fraction": 1.0})


def test_replay_by_need_survives_stops(npz: Path) -> None:
    settings = {**SMALL_GAN, "gan.epochs": 2, "gan.steps": 3, "replay.images": 96, "replay.by": "need"}
    settings |= {"replay.keep_fraction": 0.8, "generator.width": 4}
    own = ClassifierSettings(epochs=3, batch_size=16)
    whole, stopped = (DGM(context("dgmw", settings, classifier=own), variant="weights") for _ in range(2))
    streams = (ClassStream(load_dataset(f"npz:{npz}"), 1, order=[0, 1, 2]) for _ in range(2))
    for task, again in zip(*streams, strict=True):
        whole.learn(task)
        for after in (9, 7, 8, 0):  # within the second and the third of the classifier's epochs
            resumed = DGM(context("dgmw", settings, classifier=own), variant="weights")
            resumed.load(copy.deepcopy(stopped.state()))
            stopped = resumed
            with contextlib.suppress(InterruptedError):
                stopped.learn(again, observe=Interrupt(after))
                break
        assert fingerprint(stopped.state()) == fingerprint(whole.state())
