"""What a solver of generated images is shown, and what holds it to its earlier answers."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch

from conftest import SMALL_GAN, Interrupt
from engram.config import TrainingConfig
from engram.data.datasets import Dataset, load
from engram.data.stream import ClassStream, Task
from engram.experiment.checkpoint import fingerprint
from engram.methods.dgm import DGM
from engram.methods.dgm_settings import DGMwSettings
from engram.methods.learner import SILENT, Surroundings
from engram.methods.rehearsal import SOFTNESS, Rehearsal, apart, class_loss
from engram.seeding import generator


def test_the_distance_between_answers_is_the_divergence_written_out() -> None:
    now, then = torch.randn(2, 3, 4, generator=generator(0), dtype=torch.float64)
    total = 0.0
    for row in range(3):
        p = [math.exp(v / SOFTNESS) for v in then[row].tolist()]
        q = [math.exp(v / SOFTNESS) for v in now[row].tolist()]
        total += sum(a / sum(p) * math.log((a / sum(p)) / (b / sum(q))) for a, b in zip(p, q, strict=True))
    assert apart(now, then).item() == pytest.approx(SOFTNESS**2 * total / 3, rel=1e-9)


def test_real_images_of_new_classes_teach_nothing_of_the_old() -> None:
    """No gradient reaches an old class's score from a marked image; all others are plain cross-entropy."""
    scores = torch.randn(5, 7, generator=generator(0), dtype=torch.float64).requires_grad_()
    columns = torch.tensor([2, 7 + 5, 6, 7 + 4, 0])
    loss = class_loss(scores, columns, old=4, smoothing=0.1)
    by_hand = 0.0
    for row, column in enumerate(columns.tolist()):
        first = 4 if column >= 7 else 0
        logs = [
            v - math.log(sum(math.exp(w) for w in scores[row, first:].tolist())) for v in scores[row, first:].tolist()
        ]
        by_hand -= 0.9 * logs[column % 7 - first] + 0.1 * sum(logs) / len(logs)
    assert loss.item() == pytest.approx(by_hand / 5, rel=1e-9)
    (slope,) = torch.autograd.grad(loss, scores)
    assert not slope[[1, 3], :4].any()
    assert slope[[0, 2, 4], :4].all()


def lesson(*, real_now: float, real_share: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Of six classes, the last two new. Generated images are 0, stored ones 1, the task's own 2 everywhere."""
    around = Surroundings(1, TrainingConfig(width=2), None)
    rehearsal = Rehearsal(around, replay=600, keep=1.0, real_now=real_now, distil=0.0)
    rehearsal.real_share = real_share
    for column in range(6):
        rehearsal.stored.add(column, torch.ones(3, 1, 32, 32, dtype=torch.uint8))
    twos, targets = torch.full((8, 1, 32, 32), 2, dtype=torch.uint8), torch.arange(8) % 2 + 4
    own = Task(2, (4, 5), tuple(range(6)), twos, targets, ("",))

    def source(column: int, count: int, draws: torch.Generator) -> torch.Tensor:
        return torch.zeros(count, 1, 32, 32, dtype=torch.uint8)

    images, targets = rehearsal.draw(source, 600, columns=6, task=2, epoch=0, own=own if real_now else None)
    return images[:, 0, 0, 0], targets


@pytest.mark.parametrize(
    ("real_now", "real_share", "old", "new"),
    [
        (0.0, 0.0, [100, 0, 0], [100, 0, 0]),
        (0.4, 0.0, [100, 0, 0], [60, 0, 40]),
        (0.4, 0.25, [75, 25, 0], [45, 25, 30]),
        (1.0, 0.5, [50, 50, 0], [0, 50, 50]),
        (1.0, 0.0, [100, 0, 0], [0, 0, 100]),
        (0.0, 0.5, [50, 50, 0], [50, 50, 0]),
    ],
)
def test_every_class_alike_and_new_ones_in_part_from_the_task(
    real_now: float, real_share: float, old: list[int], new: list[int]
) -> None:
    kinds, targets = lesson(real_now=real_now, real_share=real_share)
    assert torch.equal(kinds == 2, targets >= 6), "what may not be compared with the old is marked"
    targets = targets % 6
    for column in range(6):
        found = torch.bincount(kinds[targets == column].long(), minlength=3).tolist()
        assert found == (new if column >= 4 else old)


SETTINGS = DGMwSettings(**{**SMALL_GAN, "real_now": 0.5, "distil": 1.0, "epochs": 2, "steps": 3})  # type: ignore[arg-type]


def build(tiny: Dataset) -> DGM:
    return DGM(Surroundings(tiny.channels, TrainingConfig(epochs=3, batch_size=32), SETTINGS), variant="weights")


def test_the_teacher_and_the_lessons_survive_any_stop(npz: Path, tiny: Dataset) -> None:
    whole, torn = build(tiny), build(tiny)
    for task in ClassStream(load(f"npz:{npz}"), 2):
        whole.learn(task)
    stopped = 0
    for task in ClassStream(load(f"npz:{npz}"), 2):
        stops = iter([2, 9, 3, 5, 4, 4])
        while True:
            try:
                torn.learn(task, observe=Interrupt(next(stops, 0)))
                break
            except InterruptedError:
                stopped += torn.rehearsal.teacher is not None
                state = copy.deepcopy(torn.state())
                torn = build(tiny)
                torn.load(state)
    assert stopped >= 2, "never stopped while there was a teacher"
    assert fingerprint(torn.state()) == fingerprint(whole.state())
    assert "teacher" not in whole.state()["rehearsal"], "the teacher goes with the task"


def test_what_it_said_before_is_what_it_says_again(npz: Path) -> None:
    """Held strongly, the answers over the old classes stay; let go, they do not."""
    noise = torch.randint(0, 256, (32, 1, 32, 32), dtype=torch.uint8, generator=generator(0, "images"))

    def source(column: int, count: int, draws: torch.Generator) -> torch.Tensor:
        return noise[torch.randint(8, (count,), generator=draws) + 8 * column]

    def moved(distil: float) -> float:
        around = Surroundings(1, TrainingConfig(epochs=6, batch_size=16, width=4, learning_rate=1e-2), None)
        rehearsal = Rehearsal(around, replay=96, keep=1.0, real_now=0.0, distil=distil)
        answers = []
        for task in ClassStream(load(f"npz:{npz}"), 2):
            rehearsal.begin(len(task.seen), task=task.index, begins=0.0)
            rehearsal.fit(source, task=task, observe=SILENT)
            answers.append(rehearsal.solver.scores(noise)[:, :2].log_softmax(1))
        return (answers[1] - answers[0]).abs().mean().item()

    held, free = moved(30.0), moved(0.0)
    assert held < 0.5 * free
