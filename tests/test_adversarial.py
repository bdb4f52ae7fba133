"""The critic's slope, written out, against differentiating the critic twice."""

from __future__ import annotations

import pytest
import torch

from engram.methods.adversarial import Critic
from engram.plastic.losses import gradient_penalty, slope_of
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
        penalty = gradient_penalty(slope, real, fake, u=torch.rand(5, generator=generator(0, "line")))
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
