"""What is written out of the critic's gradients, against differentiating the critic, twice for its penalty."""

from __future__ import annotations

import pytest
import torch

from engram import distributed
from engram.context import Shape
from engram.masking.losses import generator_loss, gradient_penalty, input_gradient_of, interpolate
from engram.nets.architectures import critic_trunk
from engram.nets.critic import Critic, CriticBatch, Replayed
from engram.nets.critic_backward import WrittenOutCritic
from engram.seeding import generator


def new_critic(
    shape: Shape,
    classes: int,
    *,
    architecture: str = "dcgan",
    width: int = 4,
    kernel: int = 4,
    generator: torch.Generator,
    kind: type[Critic] = Critic,
) -> Critic:
    trunk = critic_trunk(architecture, shape, width=width, kernel=kernel, generator=generator)
    return kind(trunk, classes, generator=generator)


@pytest.mark.parametrize(
    ("architecture", "kernel"), [("dcgan", 3), ("dcgan", 4), ("dcgan", 5), ("residual", 3), ("resnet18", 3)]
)
@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 32, 32), (3, 64, 64)])
def test_the_penalty_and_its_gradients_are_those_of_double_differentiation(
    architecture: str, kernel: int, shape: Shape
) -> None:
    draws = generator(0, "critic")
    critic = new_critic(shape, 2, architecture=architecture, kernel=kernel, generator=draws).double()
    for parameter in critic.parameters():  # biases too: they say where the kinks lie
        torch.nn.init.normal_(parameter, std=0.3, generator=generator(0, "weights"))
    real, fake = torch.randn(2, 5, *shape, generator=generator(0, "images"), dtype=torch.float64)
    at = interpolate(real, fake, torch.rand(5, generator=generator(0, "line")))
    found = []
    for input_gradient in (critic.input_gradient, input_gradient_of(lambda x: critic(x)[0])):
        critic.zero_grad()
        penalty = gradient_penalty(input_gradient(at))
        torch.autograd.backward(penalty)
        weights = [p for name, p in critic.named_parameters() if name.endswith("weight") and "classes" not in name]
        more = {"dcgan": 1, "residual": 3, "resnet18": 0}[architecture] if shape[1] == 64 else 0
        assert len(weights) == {"dcgan": 4, "residual": 11, "resnet18": 21}[architecture] + more
        found.append((penalty.detach(), [w.grad.clone() for w in weights if w.grad is not None]))
    (value, grads), (expected, expected_grads) = found
    assert abs(float(expected)) > 0.01
    torch.testing.assert_close(value, expected)
    for grad, known in zip(grads, expected_grads, strict=True):
        assert known.abs().max() > 1e-4
        torch.testing.assert_close(grad, known)
    biases = [p.grad for name, p in critic.named_parameters() if name.endswith("bias")]
    assert all(grad is None or not grad.any() for grad in biases)  # an input gradient does not change with them


SHAPES = [(1, 32, 32), (3, 32, 32), (1, 64, 64), (3, 64, 64)]


@pytest.mark.parametrize("kernel", [3, 4, 5])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("told", ["nothing", "classes", "replay"])
@pytest.mark.parametrize("stride", [1, 2, 9, None])
def test_gradients_written_out_are_those_of_autograd(kernel: int, shape: Shape, told: str, stride: int | None) -> None:
    """All terms at once; `stride` of the penalty, None: without it."""
    critic = new_critic(shape, 3, kernel=kernel, generator=generator(0, "critic"), kind=WrittenOutCritic).double()
    for number, parameter in enumerate(critic.parameters()):
        torch.nn.init.normal_(parameter, std=0.3, generator=generator(0, "weights", number))
    real, fake, old = torch.randn(3, 5, *shape, generator=generator(0, "images"), dtype=torch.float64)
    u = torch.rand(5, generator=generator(0, "line"))
    batch = CriticBatch(
        real=real,
        fake=fake,
        interpolates=interpolate(real, fake, u)[:: stride or 1][: 0 if stride is None else 5],
        penalty_weight=0.7,
        rows=5,
        targets=None if told == "nothing" else torch.tensor([0, 1, 2, 1, 1]),
        replayed=Replayed(old[:2], torch.tensor([2, 0]), class_share=0.4, rows=2) if told == "replay" else None,
    )
    given = [images.clone() for images in (real, fake, batch.interpolates)]
    known = Critic.backward(critic, batch)
    assert (known.penalty is None) == (stride is None)
    expected = {name: p.grad.clone() for name, p in critic.named_parameters() if p.grad is not None}
    terms = critic.backward(batch)
    for images, before in zip((real, fake, batch.interpolates), given, strict=True):
        assert torch.equal(images, before)
    for ours, theirs in zip(vars(terms).values(), vars(known).values(), strict=True):
        assert (ours is None) == (theirs is None)
        torch.testing.assert_close(ours, theirs, check_dtype=False)
    found = {name: p.grad for name, p in critic.named_parameters() if p.grad is not None}
    assert len(found) == (10 if told != "nothing" else 8) + (2 if shape[1] == 64 else 0)
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
        here = distributed.World(rank, ranks)
        monkeypatch.setattr(distributed, "world", lambda here=here: here)
        own = distributed.own(batch)
        which, more = distributed.every(every, rows)
        chosen.append(own[which])
        if len(own[which]):
            mean += distributed.share(rows) * more * float(own[which].mean())
        else:
            assert more == 0
    assert torch.equal(torch.cat(chosen), batch[::every])
    assert mean == pytest.approx(float(batch[::every].mean()))


def test_a_critic_that_goes_on_judges_as_before_and_keeps_the_classes_it_is_told_to() -> None:
    before = new_critic((1, 32, 32), 3, generator=generator(0, "before"))
    after = new_critic((1, 32, 32), 5, generator=generator(0, "after"))
    fresh = after.classes.weight.detach().clone()
    images = torch.randn(4, 1, 32, 32, generator=generator(0, "images"))
    assert not torch.allclose(after(images)[0], before(images)[0])
    after.take_over(before, classes=2)
    torch.testing.assert_close(after(images)[0], before(images)[0])
    torch.testing.assert_close(after(images)[1][:, :2], before(images)[1][:, :2])
    assert torch.equal(after.classes.weight[2:], fresh[2:])


@pytest.mark.parametrize(
    ("architecture", "kernel", "kind"),
    [
        *[("dcgan", kernel, kind) for kernel in (3, 4, 5) for kind in (WrittenOutCritic, Critic)],
        ("residual", 3, Critic),
        ("resnet18", 3, Critic),
    ],
)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("classes", [1, 3])
def test_the_generators_gradient_passes_a_critic_that_is_held_still(
    architecture: str, kernel: int, kind: type[Critic], shape: Shape, classes: int
) -> None:
    draws = generator(0)
    critic = new_critic(
        shape, classes, architecture=architecture, width=3, kernel=kernel, generator=draws, kind=kind
    ).double()
    critic = critic.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(5, *shape, generator=generator(1)).double()
    targets = torch.arange(5) % classes if classes > 1 else None
    found = []
    for held in (True, False):
        images = x.clone().requires_grad_()
        scores, answers = critic.held(images) if held else critic(images)
        loss = generator_loss(scores)
        if targets is not None:
            loss = loss + 2 * torch.nn.functional.cross_entropy(answers, targets)
        found.append([loss, *torch.autograd.grad(loss, images, retain_graph=True)])
        if held:
            torch.autograd.backward(loss)
            assert all(parameter.grad is None for parameter in critic.parameters())
        assert all(parameter.requires_grad for parameter in critic.parameters())
    # answers are made float32 on the way to the loss
    torch.testing.assert_close(found[0], found[1], check_dtype=False, rtol=1e-5, atol=1e-7)
