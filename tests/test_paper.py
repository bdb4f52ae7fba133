"""The paper's algorithm to the letter, and the controls that stand beside it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import Interrupt, context, write_npz
from engram.config import groups_of
from engram.data.datasets import load_dataset
from engram.data.stream import ClassStream, Task
from engram.errors import ConfigError
from engram.evaluation import metrics
from engram.evaluation.evaluate import evaluate
from engram.experiment.checkpoint import fingerprint
from engram.experiment.records import read_records
from engram.experiment.request import Request
from engram.experiment.run import execute
from engram.masking.masks import random_mask
from engram.methods.dgm.learner import DGM
from engram.methods.dgm.train_task import TaskTrainer
from engram.methods.registry import build, configure
from engram.nets.critic import CriticBatch, CriticTerms
from engram.nets.critic_backward import WrittenOutCritic

SMALL: dict[str, Any] = {
    "generator.width": 4, "generator.latent_dim": 8, "generator.bn_batches": 2, "critic.width": 4, "gan.epochs": 2,
    "gan.batch_size": 12, "classifier.epochs": 1, "classifier.width": 4, "replay.images": 32,
}  # fmt: skip
PAPER: dict[str, Any] = {
    **SMALL, "replay.classifier": "critic", "replay.keep_fraction": 1.0, "masks.fraction": 1.0, "masks.alpha": "units",
    "masks.growth": "paper", "masks.max_units_ratio": 0.0, "masks.lambda_ru": 0.0, "generator.ema_decay": 0.0,
    "gan.rare_power": 0.0, "gan.steps": 0, "gan.beta1": 0.5, "critic.penalty_stride": 1,
}  # fmt: skip


def paper_learner(data: Path, **settings: Any) -> DGM:
    learner = build("dgmw", load_dataset(f"npz:{data}"), settings={**PAPER, **settings})
    assert isinstance(learner, DGM)
    return learner


# ---------------------------------------------------------------- the preset

AUTHORS = {
    ("mnist", "dgmw"): (101, 2e-3, 1e4, 0.08, 6),
    ("mnist", "dgma"): (101, 2e-3, 1e5, 0.01, 20),
    ("svhn", "dgmw"): (151, 5e-4, 1e4, 1e-3, 6),
}
"""Epochs, rate, s_max, lambda_RU, width of the generator: from the authors' public files."""


@pytest.mark.parametrize(("data", "method"), AUTHORS)
def test_the_preset_has_the_authors_settings(data: str, method: str) -> None:
    config = configure(dataset=data, method=method, preset="paper")
    own: Any = config.settings
    found = own.gan.epochs, own.gan.learning_rate, own.masks.s_max, own.masks.lambda_ru, own.generator.width
    assert found == AUTHORS[data, method]
    assert (own.gan.batch_size, own.gan.beta1, own.generator.latent_dim) == (64, 0.5, 128)
    assert (own.critic.width, own.critic.kernel, own.critic.lambda_gp, own.critic.start) == (32, 5, 1.0, "fresh")
    # no second phase, no falling rate, no average, no oversampling, no dropped samples, no bound
    assert (own.masks.fraction, own.generator.ema_decay, own.gan.rare_power, own.replay.keep_fraction) == (1, 0, 0, 1)
    assert (own.masks.max_units_ratio, own.critic.penalty_stride, own.gan.steps) == (0, 1, 0)
    assert (own.masks.alpha, own.masks.growth, own.replay.classifier) == ("units", "paper", "critic")
    assert own.gan.lambda_aux == 1


def test_the_paper_has_no_settings_for_other_data() -> None:
    with pytest.raises(ConfigError, match="there for mnist and svhn, not for cifar10"):
        configure(dataset="cifar10", method="dgmw", preset="paper")


# ---------------------------------------------------------------- the class loss


@pytest.mark.parametrize("batch", ["shared", "per-class"])
@pytest.mark.parametrize("per_task", [1, 2])
def test_every_class_weighs_the_same_in_the_critics_class_loss(
    batch: str, per_task: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the gradients that reach the critic's own parameters, whatever the loss is made of.

    With softmax answers p, alike for all images, a loss of total weight W of which W_c falls on images of class c has
    the gradient W p_c - W_c by the class's bias. Two answers p and q give both: W = (g_c - h_c) / (p_c - q_c).
    """
    seen: list[tuple[Tensor, Tensor]] = []
    before = WrittenOutCritic.backward

    def gradient(critic: WrittenOutCritic, shown: CriticBatch, biases: Tensor) -> Tensor:
        with torch.no_grad():
            critic.classes.weight.zero_()
            critic.classes.bias.copy_(biases)
        before(critic, shown)
        assert critic.classes.bias.grad is not None
        return critic.classes.bias.grad.clone()

    def spy(self: WrittenOutCritic, shown: CriticBatch) -> CriticTerms:
        if shown.targets is not None and shown.replayed is not None:
            kept, classes = copy.deepcopy(self.classes.state_dict()), self.classes.classes
            alike, other = torch.zeros(classes), torch.arange(classes) / classes
            g, h = gradient(self, shown, alike), gradient(self, shown, other)
            p, q = alike.softmax(0), other.softmax(0)
            total = (g - h)[0] / (p - q)[0]
            seen.append((total * p - g, shown.replayed.targets))
            self.classes.load_state_dict(kept)
        return before(self, shown)

    monkeypatch.setattr(WrittenOutCritic, "backward", spy)
    data = write_npz(tmp_path / "a.npz", classes=6, per_class=30)
    learner = paper_learner(
        data, **{"replay.critic_batch": batch, "gan.batch_size": 12, "gan.epochs": 1, "gan.steps": 5}
    )
    for task in ClassStream(load_dataset(f"npz:{data}"), per_task):
        seen.clear()
        learner.learn(task)
        if task.index == 0:
            assert not seen
            continue
        classes, new = len(task.seen), len(task.classes)
        mean = torch.stack([weights for weights, _ in seen]).mean(0)
        assert mean.sum().item() == pytest.approx(1, rel=1e-4)
        # of 60 images an epoch or more every past class has as many; the task's own have as many as are drawn
        torch.testing.assert_close(mean[: classes - new], torch.full((classes - new,), 1 / classes), rtol=1e-4, atol=0)
        assert mean[classes - new :].sum().item() == pytest.approx(new / classes, rel=1e-4)
        if batch == "per-class":
            for _, replayed in seen:
                assert torch.bincount(replayed, minlength=classes).tolist() == [12] * (classes - new) + [0] * new


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_the_generator_has_the_class_term_at_one_class_a_task_unless_it_is_switched_off(
    weight: float, npz: Path
) -> None:
    learner = paper_learner(npz, **{"gan.lambda_aux": weight})
    losses: list[set[str]] = []
    for task in ClassStream(load_dataset(f"npz:{npz}"), 1, order=[0, 1]):
        step = learner._step

        def spy(*args: Any, step: Any = step) -> Any:
            found = step(*args)
            losses.append(set(found))
            return found

        learner._step = spy  # type: ignore[assignment,method-assign]
        learner.learn(task)
        learner._step = step  # type: ignore[method-assign]
    first, second = losses[0], losses[-1]
    assert "class" not in first, "one class: nothing to tell apart"
    assert ("class" in second) == bool(weight)


def test_a_round_is_a_pass_over_the_images_of_the_task(npz: Path) -> None:
    learner = paper_learner(npz)
    task = next(iter(ClassStream(load_dataset(f"npz:{npz}"), 2)))
    trainer = TaskTrainer(learner.net, learner.ctx, task=0, classes=2, known=2, images=len(task))
    assert trainer.steps == -(-len(task) // 12) == 6  # 64 images
    assert trainer.mask_epochs == 2, "masks are learned to the end"


# ---------------------------------------------------------------- alpha, growth


def test_alpha_by_units_is_todays_units_over_those_at_the_start() -> None:
    ctx = context("dgmw", {**PAPER, "masks.lambda_ru": 0.5})
    learner = DGM(ctx, variant="weights")
    assert TaskTrainer(learner.net, ctx, task=0, classes=1, known=1).pressure == 0.5
    for layer in learner.net.plastic:  # 16, 8 and 4 units at the start
        layer.reserve_(torch.ones_like(layer.reserved))
    learner.net.task_params = None
    learner.net.grow_([16 * 8, 16 * 8 * 16, 8 * 4 * 16], rule="paper", generator=torch.Generator())
    units = [layer.size().units for layer in learner.net.plastic]
    trainer = TaskTrainer(learner.net, ctx, task=1, classes=1, known=1)
    assert trainer.pressure == pytest.approx(0.5 * sum(units) / 28)
    assert trainer.pressure > 0.5


@pytest.mark.parametrize("method", ["dgmw", "dgma"])
def test_without_growth_the_generator_keeps_its_size_and_what_it_drew(method: str, npz: Path) -> None:
    dataset = load_dataset(f"npz:{npz}")
    own = {**SMALL, "gan.steps": 2, "masks.growth": "off", "masks.max_units_ratio": 0.0, "masks.lambda_ru": 0.0}
    learner = build(method, dataset, settings=own)
    assert isinstance(learner, DGM)
    sizes = [tuple(layer.weight.shape) for layer in learner.net.plastic]
    for task in ClassStream(dataset, 1, order=[0, 1, 2]):
        learner.learn(task)
        assert [tuple(layer.weight.shape) for layer in learner.net.plastic] == sizes
        assert learner.retention() == []


# ---------------------------------------------------------------- it learns


TOY: dict[str, Any] = {
    "gan.epochs": 20, "gan.batch_size": 16, "generator.latent_dim": 16, "generator.width": 8,
    "generator.bn_batches": 10, "critic.width": 8, "critic.kernel": 4,
}  # fmt: skip
"""Sizes alone: on three digits of a hundred or so images each."""


@pytest.mark.parametrize("method", ["dgmw", "dgma"])
def test_the_paper_preset_learns_end_to_end_at_toy_size(method: str) -> None:
    """Every setting but the sizes is the preset's, s_max and lambda_RU with them. Chance is a third, and so is a critic
    that knows its newest class alone."""
    dataset = load_dataset("digits")
    preset = configure(dataset="mnist", method=method, preset="paper")
    own = {
        f"{group}.{name}": value
        for group, settings in groups_of(preset).items()
        if group in ("gan", "generator", "critic", "masks", "replay", "exemplars")
        for name, value in vars(settings).items()
    }
    learner = build(method, dataset, settings={**own, **TOY})
    assert isinstance(learner, DGM)
    binary: list[float] = []
    for task in ClassStream(dataset, 1, order=["0", "1", "7"]):
        notes = MaskValues()
        learner.learn(task, observe=notes)
        assert [epoch for epoch, _ in notes.seen] == list(range(1, 21)), "masks are learned in all rounds"
        values = torch.tensor(notes.seen[-1][1])
        binary.append(((values < 0.01) | (values > 0.99)).double().mean().item())
        assert 0 < (values > 0.5).double().mean() < 1, "neither all open nor all closed"
    assert min(binary) > 0.9, "annealed to the end"
    assert learner.answering is not None
    assert learner.retention() == []
    found = evaluate(learner, dataset, [0, 1, 7])
    assert found.accuracy > 0.8
    right = [row[i] / sum(row) for i, row in enumerate(found.confusion)]
    assert min(right) > 0.5, "the first two classes are known from drawings alone"


class MaskValues(Interrupt):
    """The mask values that are put on record, by epoch."""

    def __init__(self) -> None:
        super().__init__(0)
        self.seen: list[tuple[int, list[float]]] = []

    def note(self, kind: str, **facts: Any) -> None:
        if kind == "mask":
            self.seen.append((facts["epoch"], [value for row in facts["sample"] for value in row]))


# ---------------------------------------------------------------- masks that are not learned


def test_a_random_mask_opens_as_many_as_it_is_told_and_others_each_time() -> None:
    reserved = torch.rand(40, 30, generator=torch.Generator().manual_seed(0)) < 0.4
    draws = torch.Generator().manual_seed(1)
    first, second = (random_mask(reserved, 100, 50, generator=draws) for _ in range(2))
    for mask in (first, second):
        assert int((mask & ~reserved).sum()) == 100
        assert int((mask & reserved).sum()) == 50
    assert not torch.equal(first, second)
    assert random_mask(reserved, 10**6, 10**6, generator=draws).all()


def learned_counts(folder: Path) -> list[list[tuple[int, int]]]:
    layers = [record["layers"] for record in read_records(folder) if record["kind"] == "growth"]
    return [[(one["opened_free"], one["opened_reserved"]) for one in task] for task in layers]


CONTROL: dict[str, Any] = {
    **SMALL, "generator.width": 6, "gan.epochs": 4, "gan.steps": 6, "masks.fraction": 0.5, "masks.lambda_ru": 0.05,
    "stream.order": "0,1,2",
}  # fmt: skip


@pytest.mark.parametrize("bound", [0.0, 1.0])
@pytest.mark.parametrize("method", ["dgmw", "dgma"])
def test_random_masks_open_as_much_as_the_learned_ones_of_a_run(
    method: str, bound: float, npz: Path, tmp_path: Path
) -> None:
    own = {**CONTROL, "masks.max_units_ratio": bound}
    if method == "dgma":
        own |= {"masks.s_max": 200.0, "generator.width": 8}
    learned = execute(Request(f"npz:{npz}", method, settings=own), tmp_path / "learned")
    control = own | {"masks.choice": "random", "masks.counts_of": str(learned)}
    random = execute(Request(f"npz:{npz}", method, settings=control), tmp_path / "random")
    for ours, theirs in zip(learned_counts(random), learned_counts(learned), strict=True):
        for (free, reserved), (wanted_free, wanted_reserved) in zip(ours, theirs, strict=True):
            # fewer only where an entry leads nowhere
            assert 0.6 * wanted_free <= free <= wanted_free
            assert reserved <= wanted_reserved
    for record in read_records(random):
        if record["kind"] == "retention":
            assert record["changed"] == []
    sparsity = [record["losses"] for record in read_records(random) if record["kind"] == "epoch"]
    assert not any("sparsity" in losses for losses in sparsity), "nothing is learned of the masks"


def test_shuffled_masks_open_as_much_as_the_learned_ones_would_have(npz: Path) -> None:
    task = next(iter(ClassStream(load_dataset(f"npz:{npz}"), 1)))
    trainers = []
    for choice in ("learned", "shuffled"):
        ctx = context("dgmw", {**SMALL, "gan.steps": 3, "masks.max_units_ratio": 0.0, "masks.choice": choice})
        learner = DGM(ctx, variant="weights")
        trainer = TaskTrainer(learner.net, ctx, task=0, classes=1, known=1, images=len(task))
        with torch.no_grad():
            for number, layer in enumerate(learner.net.plastic):
                layer.embedding.normal_(generator=torch.Generator().manual_seed(number))
                layer.reserve_(torch.rand(layer.reserved.shape, generator=torch.Generator().manual_seed(9)) < 0.5)
        trainer.fix_masks(0)
        trainers.append(trainer)
    learned, shuffled = trainers
    assert shuffled.opened == learned.opened, "with so many open, everything can be reached"
    assert not any(torch.equal(a, b) for a, b in zip(learned.fixed, shuffled.fixed, strict=True))


def test_a_control_that_is_stopped_goes_on_with_the_same_bits(npz: Path, tmp_path: Path) -> None:
    learned = execute(Request(f"npz:{npz}", "dgmw", settings=CONTROL), tmp_path / "learned")
    own = {**CONTROL, "masks.choice": "random", "masks.counts_of": str(learned)}
    del own["stream.order"]
    dataset = load_dataset(f"npz:{npz}")
    whole, stopped = (build("dgmw", dataset, settings=own) for _ in range(2))
    streams = (ClassStream(load_dataset(f"npz:{npz}"), 1, order=[0, 1]) for _ in range(2))
    for task, again in zip(*streams, strict=True):
        whole.learn(task)
        for after in (3, 9, 12, 0):
            resumed = build("dgmw", dataset, settings=own)
            resumed.load(stopped.state())
            stopped = resumed
            try:
                stopped.learn(again, observe=Interrupt(after))
                break
            except InterruptedError:
                continue
    assert fingerprint(stopped.state()) == fingerprint(whole.state())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"masks.choice": "random"}, r"masks\.counts_of='none' is out of range: .* the folder of a run"),
        ({"masks.counts_of": "there"}, r"masks\.counts_of='there' is out of range"),
    ],
)
def test_a_control_needs_a_run_to_count_by(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        configure(dataset="digits", method="dgmw", settings=settings)


@pytest.mark.parametrize("lines", [None, "", "nonsense\n", '{"kind": "growth", "task": 0, "layers": [{}]}\n'])
def test_a_folder_that_says_nothing_of_masks_is_refused_in_one_line(
    lines: str | None, npz: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    if lines is not None:
        folder.mkdir()
        (folder / "records.jsonl").write_text(lines)
    own = {**CONTROL, "masks.choice": "random", "masks.counts_of": str(folder)}
    learner = build("dgmw", load_dataset(f"npz:{npz}"), settings={k: v for k, v in own.items() if "order" not in k})
    with pytest.raises(ConfigError, match=r"name the folder of a run|name a run of dgmw or dgma") as error:
        learner.learn(next(iter(ClassStream(load_dataset(f"npz:{npz}"), 1))))
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------- what runs say of themselves


def test_a_development_run_never_tests_on_test_images(tmp_path: Path) -> None:
    usual, held = (load_dataset("digits", development=development) for development in (False, True))
    before = {image.numpy().tobytes() for image in usual.train.images}
    tested = {image.numpy().tobytes() for image in held.test.images}
    trained = {image.numpy().tobytes() for image in held.train.images}
    assert tested <= before, "from the training part alone"
    assert not tested & trained
    assert len(held.test.images) + len(held.train.images) == len(usual.train.images)
    assert len(held.test.images) == pytest.approx(0.2 * len(usual.train.images), abs=10)
    assert held.variant == "standard, tested on held-out training images"
    assert held.digest == usual.digest

    own = {"stream.development": True, "classifier.epochs": 1, "stream.order": "0,1"}
    folder = execute(Request("digits", "finetune", settings=own), tmp_path / "run")
    (head, *_) = read_records(folder)
    assert head["dataset"]["variant"] == held.variant
    assert sum(head["images"]) == sum(held.train_counts[:2])
    assert json.loads((folder / "config.json").read_text())["config"]["stream"]["development"] is True


def test_a_run_says_by_what_its_settings_were_chosen(tmp_path: Path) -> None:
    own = {"classifier.epochs": 1, "stream.order": "0,1"}
    folder = execute(Request("digits", "finetune", settings=own), tmp_path / "run")
    (head, *_) = read_records(folder)
    assert head["tuned_on"] == "its test images: a demonstration, and no result"


def test_a_t_is_recorded_as_the_authors_report_it_too(tmp_path: Path) -> None:
    """The mean over tasks of each task's accuracy, here of two tasks of two and one classes."""
    own = {"classifier.epochs": 1, "stream.order": "0,1,2", "stream.first_task": 2}
    folder = execute(Request("digits", "finetune", settings=own), tmp_path / "run")
    (*_, last) = (record for record in read_records(folder) if record["kind"] == "evaluation")
    counts = torch.tensor(metrics.counts(last["confusion"])).double()
    first = float(counts.diagonal()[:2].sum() / counts[:2].sum())
    second = float(counts[2, 2] / counts[2].sum())
    assert last["task_mean"] == pytest.approx((first + second) / 2)


def test_the_classifier_that_goes_on_is_in_the_ledger(npz: Path) -> None:
    class Notes(Interrupt):
        def __init__(self) -> None:
            super().__init__(0)
            self.kept: dict[str, int] = {}

        def note(self, kind: str, **facts: Any) -> None:
            if kind == "memory":
                self.kept = facts["bytes"]

    notes, task = Notes(), _task(npz)
    learner = build("dgmw", load_dataset(f"npz:{npz}"), settings={**SMALL, "gan.steps": 2, "masks.lambda_ru": 0.0})
    assert isinstance(learner, DGM)
    learner.learn(task, observe=notes)
    parameters = learner.classifier_phase.classifier.net.state_dict().values()
    assert notes.kept["classifier"] == sum(p.numel() * p.element_size() for p in parameters)


def _task(npz: Path) -> Task:
    return next(iter(ClassStream(load_dataset(f"npz:{npz}"), 2)))
