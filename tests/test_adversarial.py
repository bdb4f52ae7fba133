"""What is written out of the critic's gradients, against differentiating the critic, twice for its slope."""

from __future__ import annotations

import pytest
import torch

from engram import parallel
from engram.config import TrainingConfig
from engram.methods.adversarial import Critic, critic_gradients, critic_terms, generator_terms
from engram.methods.dgm_settings import DGMwSettings
from engram.methods.learner import Surroundings
from engram.plastic.losses import between, slope_of, slope_penalty
from engram.seeding import generator


@pytest.mark.parametrize(
    ("network", "kernel"), [("dcgan", 3), ("dcgan", 4), ("dcgan", 5), ("residual", 3), ("resnet18", 3)]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_the_penalty_and_its_gradients_are_those_of_double_differentiation(
    network: str, kernel: int, channels: int
) -> None:
    draws = generator(0, "critic")
    critic = Critic(channels, 2, network=network, width=4, kernel=kernel, generator=draws).double()
    for parameter in critic.parameters():  # biases too: they say where the kinks lie
        torch.nn.init.normal_(parameter, std=0.3, generator=generator(0, "weights"))
    real, fake = torch.randn(2, 5, channels, 32, 32, generator=generator(0, "images"), dtype=torch.float64)
    found = []
    for slope in (critic.slope, slope_of(lambda x: critic(x)[0])):
        critic.zero_grad()
        penalty = slope_penalty(slope(between(real, fake, torch.rand(5, generator=generator(0, "line")))))
        torch.autograd.backward(penalty)
        weights = [p for name, p in critic.named_parameters() if name.endswith("weight") and "classes" not in name]
        assert len(weights) == {"dcgan": 4, "residual": 11, "resnet18": 21}[network]
        found.append((penalty.detach(), [w.grad.clone() for w in weights if w.grad is not None]))
    (value, grads), (expected, expected_grads) = found
    assert abs(float(expected)) > 0.01
    torch.testing.assert_close(value, expected)
    for grad, known in zip(grads, expected_grads, strict=True):
        assert known.abs().max() > 1e-4
        torch.testing.assert_close(grad, known)
    biases = [p.grad for name, p in critic.named_parameters() if name.endswith("bias")]
    assert all(grad is None or not grad.any() for grad in biases)  # a slope does not change with height


@pytest.mark.parametrize("kernel", [3, 4, 5])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("told", ["nothing", "classes", "replay"])
@pytest.mark.parametrize("every", [1, 2, 9])
def test_gradients_written_out_are_those_of_autograd(kernel: int, channels: int, told: str, every: int) -> None:
    critic = Critic(channels, 3, width=4, kernel=kernel, generator=generator(0, "critic")).double()
    for number, parameter in enumerate(critic.parameters()):
        torch.nn.init.normal_(parameter, std=0.3, generator=generator(0, "weights", number))
    real, fake, old = torch.randn(3, 5, channels, 32, 32, generator=generator(0, "images"), dtype=torch.float64)
    targets = None if told == "nothing" else torch.tensor([0, 1, 2, 1, 1])
    replay = (old[:2], torch.tensor([2, 0])) if told == "replay" else None
    u = torch.rand(5, generator=generator(0, "line"))

    lines = between(real, fake, u)[::every]
    known = critic_terms(critic, real, fake, targets=targets, replay=replay, lines=lines)
    assert known.penalty is not None
    torch.autograd.backward(known.plain + 0.7 * known.penalty)
    expected = {name: p.grad.clone() for name, p in critic.named_parameters() if p.grad is not None}
    around = Surroundings(channels, TrainingConfig(), None)
    given = real.clone(), fake.clone()
    terms = critic_gradients(
        around,
        critic,
        real,
        fake,
        targets=targets,
        replay=replay,
        u=u,
        penalty_every=every,
        penalty_weight=0.7,
        rows=5,
    )
    assert torch.equal(real, given[0])
    assert torch.equal(fake, given[1])
    for ours, theirs in zip(vars(terms).values(), vars(known).values(), strict=True):
        assert (ours is None) == (theirs is None)
        torch.testing.assert_close(ours, theirs, check_dtype=False)
    found = {name: p.grad for name, p in critic.named_parameters() if p.grad is not None}
    assert len(found) == (10 if told != "nothing" else 8)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.abs().max() > 1e-6 or name == "score.bias"  # which cancels
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-6)  # its answers are float32


@pytest.mark.parametrize(("rows", "every", "ranks"), [(8, 1, 1), (8, 2, 2), (8, 3, 3), (7, 2, 3), (5, 5, 4), (3, 9, 2)])
def test_every_so_manieth_row_is_the_same_however_a_batch_is_shared(
    rows: int, every: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = torch.randn(rows, generator=generator(0, "batch"))
    chosen, mean = [], 0.0
    for rank in range(ranks):
        here = parallel.World(rank, ranks)
        monkeypatch.setattr(parallel, "world", lambda here=here: here)
        own = parallel.own(batch)
        which, more = parallel.every(every, rows)
        chosen.append(own[which])
        if len(own[which]):
            mean += parallel.share(rows) * more * float(own[which].mean())
        else:
            assert more == 0
    assert torch.equal(torch.cat(chosen), batch[::every])
    assert mean == pytest.approx(float(batch[::every].mean()))


def test_a_critic_that_goes_on_judges_as_before_and_keeps_the_classes_it_is_told_to() -> None:
    before = Critic(1, 3, width=4, kernel=4, generator=generator(0, "before"))
    after = Critic(1, 5, width=4, kernel=4, generator=generator(0, "after"))
    fresh = after.classes.weight.detach().clone()
    images = torch.randn(4, 1, 32, 32, generator=generator(0, "images"))
    assert not torch.allclose(after(images)[0], before(images)[0])
    after.take_over(before, classes=2)
    torch.testing.assert_close(after(images)[0], before(images)[0])
    torch.testing.assert_close(after(images)[1][:, :2], before(images)[1][:, :2])
    assert torch.equal(after.classes.weight[2:], fresh[2:])


@pytest.mark.parametrize("kernel", [3, 4, 5])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("classes", [1, 3])
def test_the_generators_gradient_passes_a_critic_that_is_held_still(kernel: int, channels: int, classes: int) -> None:
    critic = Critic(channels, classes, width=3, kernel=kernel, generator=generator(0)).double()
    critic = critic.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    around = Surroundings(channels, TrainingConfig(), DGMwSettings(), seed=0)
    x = torch.randn(5, channels, 32, 32, generator=generator(1)).double()
    targets = torch.arange(5) % classes if classes > 1 else None
    found = []
    for held in (True, False):
        images = x.clone().requires_grad_()
        if held:
            terms = generator_terms(around, critic, images, targets)
            assert all(parameter.grad is None for parameter in critic.parameters())
        else:
            scores, answers = critic(images)
            terms = -scores.mean(), None if targets is None else torch.nn.functional.cross_entropy(answers, targets)
        loss = terms[0] if terms[1] is None else terms[0] + 2 * terms[1]
        found.append([loss, *torch.autograd.grad(loss, images)])
        assert all(parameter.requires_grad for parameter in critic.parameters())
    # answers are made float32 on the way to the loss
    torch.testing.assert_close(found[0], found[1], check_dtype=False, rtol=1e-5, atol=1e-7)
