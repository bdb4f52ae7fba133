"""What the benchmarks compare is the same mathematics: plain loop and ours, dense and compact, on toy sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import accuracy
import classes
import clock
import fast_forward
import ladder
import permutations
import predict
import reference
import sampling
import scale
import share
import step
import stream
from engram.config import compose, differences
from engram.gan.oversampling import draw_rows, sampling_weights
from engram.masking.annealing import s_max_of_epoch, unit_scale, weight_scale
from engram.masking.losses import generator_loss, interpolate, sparsity
from engram.methods.classifier import normalise
from engram.methods.registry import configure
from engram.nets.critic import CriticBatch
from engram.report.ladder import CONTROLS, OURS, PAPER, RUNG
from engram.seeding import generator

TOY = {
    "generator.width": 3, "generator.latent_dim": 8, "generator.bn_batches": 2, "critic.width": 4, "gan.epochs": 4,
    "gan.batch_size": 6, "masks.fraction": 0.5, "replay.images": 64, "classifier.batch_size": 8, "classifier.width": 4,
}  # fmt: skip


def method_of(run: Path) -> str:
    """results/<data>/<method>/<label>/seed<N> -> data and method."""
    return "-".join(run.parts[-4:-2])


RUNS = pytest.mark.parametrize("run", fast_forward.RUNS, ids=method_of)


def test_the_ladder_leads_from_the_papers_algorithm_to_our_default() -> None:
    """One change at a time, each of settings that no other changes."""
    labels, settings = zip(*ladder.rungs().items(), strict=True)
    assert len(labels) == len(ladder.CHANGES) + 1
    changed = [key for change in ladder.CHANGES.values() for key in change]
    assert len(changed) == len(set(changed)) == len(ladder.PAPER)
    first, last = (
        compose(configure(dataset="mnist", method="dgmw"), {**ladder.BUDGET, **own})
        for own in (settings[0], settings[-1])
    )
    assert differences(last, compose(configure(dataset="mnist", method="dgmw"), ladder.BUDGET)) == []
    paper = compose(configure(dataset="mnist", method="dgmw", preset="paper"), ladder.BUDGET)
    other = [
        line for line in differences(first, paper) if not line.startswith(("preset", "replay.images", "classifier."))
    ]
    assert other == []
    assert ladder.left_out("momentum") == {**settings[-1], "gan.beta1": 0.5}
    # the report compares by these labels
    assert (labels[0], labels[-1]) == (PAPER, OURS)
    assert all(RUNG.fullmatch(label) for label in labels)


def test_the_ladders_controls_differ_in_one_setting_and_any_label_can_be_run() -> None:
    rungs, controls = ladder.rungs(), ladder.controls()
    assert controls.keys() == CONTROLS.keys()
    change: dict[str, dict[str, Any]] = {
        "growth-off": {"masks.growth": "off"},
        "paper-no-class-term": {"gan.lambda_aux": 0.0},
    }
    for label, own in controls.items():
        assert own == {**rungs[CONTROLS[label]], **change[label]}
        compose(configure(dataset="mnist", method="dgmw"), {**ladder.BUDGET, **own})  # every value is allowed

    def asked(*words: str) -> tuple[list[int], list[str]]:
        out, seeds, wanted = ladder.chosen_of(["--out", "there", *words])
        assert out == Path("there")
        assert all(ladder.everything()[label] == own for label, own in wanted.items())
        return seeds, [*wanted]

    assert asked() == ([0], [*rungs])
    assert asked("--seeds", "0,2", "--controls") == ([0, 2], [*controls])
    assert asked("--left-out", "momentum", "doubt")[1] == ["without-momentum", "without-doubt"]
    some = ["ladder-10-bound", "growth-off", "without-average"]
    assert asked("--only", *some) == ([0], some)
    assert asked("--only", OURS, "--controls", "--left-out", "masks")[1] == [OURS, "without-masks", *controls]
    with pytest.raises(SystemExit):
        asked("--only", "ladder-11")


@RUNS
def test_a_learner_brought_forward_reaches_the_sizes_of_the_run(run: Path) -> None:
    recorded = fast_forward.read_run(run)
    learner = fast_forward.new_learner(recorded)
    for units, weights in zip(recorded.units, recorded.weights, strict=True):
        fast_forward.advance(learner, recorded, 1, batch=2)
        assert [layer.size().units for layer in learner.net.plastic] == units
        assert sum(layer.weight.numel() for layer in learner.net.plastic) == weights


@pytest.mark.parametrize("run", scale.RUNS, ids=method_of)
def test_growth_in_numbers_is_the_recorded_one_to_the_byte(run: Path) -> None:
    recorded = fast_forward.read_run(run)
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    books = [record["bytes"] for record in records if record["kind"] == "memory"]
    points = scale.simulate(recorded, len(books))
    assert [point.weights for point in points] == recorded.weights
    assert [point.disc for point in points] == [sum(book.values()) for book in books]
    assert [point.masks for point in points] == [book["masks"] for book in books]


@RUNS
def test_losses_of_the_reference_loop_are_ours(run: Path) -> None:
    recorded = fast_forward.read_run(run, TOY)
    learner = fast_forward.learner_at(recorded, 3)
    trainer = step.trainer_of(learner, recorded, fixed=False)
    loop = reference.PlainLoop(learner, trainer)
    real, z, u = torch.rand(6, 1, 32, 32) * 2 - 1, torch.randn(6, 8), torch.rand(6)
    with torch.no_grad():  # masks that differ from entry to entry
        for layer, e in zip(trainer.net.plastic, loop.generator.embeddings, strict=True):
            e.copy_(layer.embedding.normal_())
    ours, plain = trainer.net.soft_masks(2.0), loop.generator.masks(2.0)
    fake = trainer.net(z, torch.zeros(6, dtype=torch.int64), ours)
    drawn = loop.generator(z, plain)
    torch.testing.assert_close(drawn, fake)
    assert trainer.n_free == sum(int((~layer.reserved).sum()) for layer in trainer.net.plastic)
    ours_taken = sparsity(zip(ours, trainer.free, strict=True), n_free=trainer.n_free)
    torch.testing.assert_close(loop.sparsity(plain), ours_taken)
    torch.testing.assert_close(ours_taken, sparsity(zip(ours, trainer.free, strict=True)))

    batch = CriticBatch(real, fake.detach(), interpolate(real, fake, u), penalty_weight=1.0, rows=6)
    terms = trainer.critic.terms(batch)
    scores = loop.critic(drawn.detach())[0].mean() - loop.critic(real)[0].mean()
    torch.testing.assert_close(scores, terms.adversarial)
    penalty = reference.penalty(loop.critic, real, drawn.detach(), u)
    torch.testing.assert_close(penalty, terms.penalty)
    torch.testing.assert_close(-loop.critic(drawn)[0].mean(), generator_loss(trainer.critic.held(fake)[0]))

    assert terms.penalty is not None
    torch.autograd.backward([penalty, terms.penalty])
    kernels = [m.weight for m in trainer.critic.trunk.modules() if isinstance(m, torch.nn.Conv2d)]
    for mine, theirs in zip(loop.critic.convolutions, kernels, strict=True):
        torch.testing.assert_close(mine.weight.grad, theirs.grad)


@RUNS
def test_steps_of_the_first_task_are_the_same_steps(run: Path) -> None:
    """With nothing to replay the two loops do the same to the same batch, optimisers and masks included."""
    recorded = fast_forward.read_run(run, {**TOY, "critic.penalty_stride": 1})  # the reference has no shortcut
    learner = fast_forward.learner_at(recorded, 1)
    settings, task = learner.settings, fast_forward.some_task(learner, images=20)
    trainer = step.trainer_of(learner, recorded, fixed=False)
    loop = reference.PlainLoop(learner, trainer)
    weights = sampling_weights(task.images, task.targets, settings.gan.rare_power)
    for batch in range(2):
        draws = generator(learner.ctx.seed, "gan", 0, 1, batch)
        rows = draw_rows(weights, 6, generator=draws)
        z, u = torch.randn(6, 8, generator=draws), torch.rand(6, generator=draws)
        s_max_i = s_max_of_epoch(2, trainer.mask_epochs, settings.masks.s_max)
        if learner.variant == "weights":
            s = weight_scale(2, trainer.mask_epochs, batch + 1, trainer.steps, settings.masks.s_max)
        else:
            s = unit_scale(2, trainer.mask_epochs, settings.masks.s_max)
        ours = trainer.step(task, 1, batch)
        plain = loop.step(normalise(task.images[rows]), z, u, s=s, s_max_i=s_max_i)
        # the gradient of the score's bias is 0 but for rounding, which Adam blows up to a step of up to its rate
        allowed = {"critic": 1e-4, "sparsity": 1e-4, "generator": settings.gan.learning_rate * (batch + 1)}
        for name, apart in allowed.items():
            torch.testing.assert_close(plain[name], ours[name], rtol=1e-3, atol=apart)


@RUNS
def test_the_reference_loop_keeps_its_hands_off_reserved_weights(run: Path) -> None:
    recorded = fast_forward.read_run(run, TOY)
    learner = fast_forward.learner_at(recorded, 3)
    loop = reference.PlainLoop(learner, step.trainer_of(learner, recorded, fixed=False))
    before = [w.detach().clone() for w in loop.generator.weights]
    losses = loop.step(torch.rand(6, 1, 32, 32), torch.randn(6, 8), torch.rand(6), s=1.0, s_max_i=1.0)
    assert all(loss.isfinite() for loss in losses.values())
    for old, new, gate in zip(before, loop.generator.weights, loop.gates, strict=True):
        closed = (gate == 0).expand_as(old)
        assert torch.equal(old[closed], new[closed])
        assert closed.any()
        assert not torch.equal(old, new)


@RUNS
def test_dense_sampling_draws_what_the_engram_draws(run: Path) -> None:
    learner = fast_forward.learner_at(fast_forward.read_run(run, TOY), 4)
    for class_index in range(3):
        assert sampling.difference(sampling.ways_of(learner, class_index, 5)) < 1e-5


def test_what_a_task_costs_besides_is_measured_in_all_its_parts() -> None:
    recorded = fast_forward.read_run(fast_forward.RUNS[0], TOY)
    assert step.rest_of(recorded, 1, images=20, rounds=1).classifier == 0  # one class: nothing to tell apart
    rest = step.rest_of(recorded, 2, images=20, rounds=1)
    assert min(vars(rest).values()) > 0


@pytest.mark.parametrize("transposed", [False, True])
def test_operations_of_a_convolution_by_hand(transposed: bool) -> None:
    """8 and 4 pixels a side, 4 taps, stride 2: of 16 meetings a side, 2 are with the padding."""
    ends, side = ((3, 5), 4) if transposed else ((5, 3), 8)
    x, w = torch.randn(2, 3, side, side, requires_grad=True), torch.randn(*ends, 4, 4, requires_grad=True)
    convolve = F.conv_transpose2d if transposed else F.conv2d
    once = 2 * 2 * 3 * 5 * 14 * 14
    assert share.operations(lambda: convolve(x, w, stride=2, padding=1)) == once
    for image, passes in ((x, 3), (x.detach(), 2)):  # forward, gradient of the weight, and of the image where asked for
        y = convolve(image, w, stride=2, padding=1)
        assert share.operations(lambda y=y: torch.autograd.backward(y.sum())) == (passes - 1) * once  # type: ignore[misc]


def test_the_clock_takes_the_ways_in_turn() -> None:
    calls: list[str] = []
    seconds = clock.best({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2)
    assert calls == ["a", "b"] * 3
    assert all(0 <= took < 1 for took in seconds.values())


def test_tasks_beyond_the_record_keep_no_more_units_than_they_may() -> None:
    recorded = fast_forward.read_run(fast_forward.RUNS[1])
    settings, known = recorded.settings, len(recorded.shares)
    assert recorded.config.method == "dgma"
    ratio, width = settings.masks.max_units_ratio, settings.generator.width
    most = [round(ratio * width * multiple) for multiple in recorded.graph.multiples]
    learner = fast_forward.advance(fast_forward.new_learner(recorded), recorded, known + 12, batch=2)
    opened = [[int(mask.sum()) for mask in engram.binary_masks()] for engram in learner.engrams]
    assert all(n <= limit for row in opened for n, limit in zip(row, most, strict=True))
    assert opened[-1][1:] == most[1:]  # they would be more
    assert [point.weights for point in scale.simulate(recorded, known + 12)][-1] == sum(
        layer.weight.numel() for layer in learner.net.plastic
    )
    new, again = recorded.taken(known, 1, free=500, reserved=500)
    fewer, more = recorded.taken(known, 1, free=500, reserved=500, fade=0.5)
    assert new + again == fewer + more == most[1]
    assert fewer < new


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="who is at work is read from Linux's /proc/stat")
def test_work_of_another_process_is_seen_and_named() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            line = clock.machine()
        finally:
            other.kill()
    assert "BUSY" in line


def test_time_to_accuracy_stands_on_run_folders_and_goes_on_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [f"{name}={value}" for name, value in TOY.items() if name != "gan.epochs"]
    told = ["--out", str(tmp_path), "--set", "stream.classes_per_task=5", "gan.steps=2", *small]
    command = ["accuracy.py", "--dataset", "digits", "--budgets", "2:1", "3:2", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", [*command, *told])
    accuracy.main()
    first = capsys.readouterr().out
    records = {run.name: (run / "records.jsonl").read_text() for run in tmp_path.iterdir()}
    assert sorted(records) == ["digits-dgmw-2-1-seed0", "digits-dgmw-3-2-seed0"]
    accuracy.main()
    again = capsys.readouterr().out
    assert {run.name: (run / "records.jsonl").read_text() for run in tmp_path.iterdir()} == records
    table = first[first.index("method  rounds") :]
    assert again.endswith(table)
    seconds = [
        sum(line["seconds"] for line in map(json.loads, text.splitlines()) if line["kind"] == "timing")
        for _, text in sorted(records.items())
    ]
    assert [row.split()[-1] for row in table.splitlines()[1:3]] == [f"{value:.0f}" for value in seconds]


def test_photographs_that_are_made_up_compress_like_real_ones() -> None:
    """Two real ones of this size and quality take 36 and 69 kB; noise alone would take 200, a smooth field 10."""
    sizes = [len(predict.as_jpeg(predict.photograph(seed))) for seed in range(2)]
    assert all(36e3 < size < 69e3 for size in sizes), sizes
    assert predict.photograph(0).shape == (400, 500, 3)


def test_a_learner_that_sees_a_part_is_brought_forward_with_masks_inside_it() -> None:
    """And what a step trains at a late task is no larger than the bound."""
    recorded = fast_forward.read_run(fast_forward.RUNS[1], {"masks.candidates": 1.5})
    width = recorded.settings.generator.width
    most = [round(1.5 * width * multiple) for multiple in recorded.graph.multiples]
    learner = fast_forward.advance(fast_forward.new_learner(recorded), recorded, 12, batch=2)
    assert all(n > limit for n, limit in zip(learner.net.units, most, strict=True))
    assert all(list(engram.units) == most for engram in learner.engrams[2:])
    assert learner.retention() == []
    for fixed in (False, True):
        trainer = step.trainer_of(learner, recorded, fixed=fixed)
        units = trainer.subnetwork.units if trainer.subnetwork is not None else trainer.net.units
        assert all(n <= limit for n, limit in zip(units, most, strict=True))
    assert trainer.fixed


def test_permuted_images_have_the_same_pixels_in_an_order_of_their_own() -> None:
    images = torch.arange(2 * 3 * 16).view(2, 3, 4, 4).to(torch.uint8).numpy()
    same, *others = permutations.orders(16, 3)
    assert (permutations.permuted(images, same) == images.transpose(0, 2, 3, 1)).all()
    for order in others:
        found = permutations.permuted(images, order)
        for n in range(2):
            for c in range(3):
                flat = images[n, c].reshape(-1).tolist()
                assert found[n, :, :, c].reshape(-1).tolist() == [flat[place] for place in order.tolist()]
    assert len({tuple(order.tolist()) for order in (same, *others)}) == 3
    labels = torch.tensor([1, 0, 1, 1, 0]).numpy()
    assert permutations.first_of_each(labels, 2).tolist() == [0, 1, 2, 4]
    assert permutations.first_of_each(labels, 0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="what a process holds is read from Linux's /proc")
def test_what_many_classes_cost_is_told_task_by_task() -> None:
    found = classes.costs(3, "vectors", "dgmw", {})
    assert len(found) == 3
    for cost in found:
        assert min(cost.learning, cost.evaluation, cost.resident, cost.checkpoint, cost.records) > 0
        assert cost.seconds == pytest.approx(cost.learning + cost.evaluation + cost.saving)
    assert classes.at([classes.Cost(*[float(n)] * 6) for n in range(1, 10)], 5).resident == 5.0


def test_the_stream_is_measured_on_made_up_sets(tmp_path: Path) -> None:
    """Toy sizes: what the processes cost is not looked at, but that each does what it is timed for."""
    costs = stream.second_start(tmp_path, 200, rounds=1)
    assert list(costs) == ["engram data prepare", "second start 1"]
    assert len(list((tmp_path / "cache" / "prepared").iterdir())) == 1
    cost, peaks = stream.memory(tmp_path, 1000, 1)
    assert len(peaks) == 1
    assert peaks[0] <= cost.peak_bytes
