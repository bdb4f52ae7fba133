"""What a classifier of generated images is shown, and what holds it to its earlier answers."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch

from conftest import SMALL_GAN, Interrupt, context
from engram.config import ClassifierSettings
from engram.data.datasets import Dataset, load_dataset
from engram.data.examples import Examples
from engram.data.stream import ClassStream, Task
from engram.experiment.checkpoint import fingerprint
from engram.memory.exemplars import herd
from engram.methods.classifier_phase import TEMPERATURE, ClassifierPhase, class_loss, distillation
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
