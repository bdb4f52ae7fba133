"""Losses in closed form, and their gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engram.masking import losses
from engram.masking.masks import soft_mask


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def places(count: int, seed: int = 1) -> Tensor:
    """Where on the lines between fakes and real images a penalty is taken."""
    return torch.rand(count, generator=rng(seed))


def gradient_penalty(input_gradient: Callable[[Tensor], Tensor], real: Tensor, fake: Tensor, *, u: Tensor) -> Tensor:
    return losses.gradient_penalty(input_gradient(losses.interpolate(real, fake, u)))


def two_layers() -> list[tuple[Tensor, Tensor]]:
    e = [torch.randn(s, generator=rng(), dtype=torch.float64) for s in ((3, 4), (5,))]
    reserved = [torch.rand(x.shape, generator=rng(1)) < 0.4 for x in e]
    return list(zip(e, reserved, strict=True))


def free_of(layers: list[tuple[torch.Tensor, torch.Tensor]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """From what is reserved to what is free, in numbers."""
    return [(m, (~reserved).to(m.dtype)) for m, reserved in layers]


def test_sparsity_is_the_share_of_free_entries_taken_over_all_layers_together() -> None:
    total, n_free = 0.0, 0
    for m, reserved in two_layers():
        for value, r in zip(m.flatten().tolist(), reserved.flatten().tolist(), strict=True):
            total += value * (1 - r)
            n_free += 1 - r
    assert 0 < n_free < 17
    assert losses.sparsity(free_of(two_layers())).item() == pytest.approx(total / n_free, rel=1e-12)


def test_sparsity_gradient_by_finite_differences_through_the_mask() -> None:
    s, h = 3.0, 1e-6
    layers = [(e.requires_grad_(), r) for e, r in two_layers()]
    torch.autograd.backward(losses.sparsity(free_of([(soft_mask(e, s), r) for e, r in layers])))
    for k, (e, reserved) in enumerate(layers):
        assert e.grad is not None
        for index in torch.cartesian_prod(*[torch.arange(n) for n in e.shape]).reshape(e.numel(), -1).tolist():
            values = []
            for step in (h, -h):
                moved = [x.detach().clone() for x, _ in layers]
                moved[k][tuple(index)] += step
                pairs = [(soft_mask(x, s), r) for x, (_, r) in zip(moved, layers, strict=True)]
                values.append(losses.sparsity(free_of(pairs)).item())
            assert e.grad[tuple(index)].item() == pytest.approx((values[0] - values[1]) / (2 * h), abs=1e-9)
        assert (e.grad[reserved] == 0).all()  # reuse is free
        assert (e.grad[~reserved] > 0).all()


def test_sparsity_is_zero_where_nothing_is_free() -> None:
    m = torch.full((4,), 0.7, requires_grad=True)
    value = losses.sparsity([(m, torch.zeros(4))])
    assert value.item() == 0
    torch.autograd.backward(value)
    assert m.grad is not None
    assert (m.grad == 0).all()


def test_alpha_grows_as_the_free_share_shrinks() -> None:
    assert losses.alpha(100, 100) == 1
    assert losses.alpha(150, 100) == 1.5
    assert losses.alpha(10, 0) == 0


def test_wasserstein_losses_by_hand() -> None:
    real, fake = torch.tensor([1.0, 3.0]), torch.tensor([[0.5], [-1.5]])
    assert losses.critic_loss(real, fake).item() == -2.5
    assert losses.generator_loss(fake).item() == 0.5


@pytest.mark.parametrize("as_matrix", [False, True])
def test_penalty_of_a_linear_critic(as_matrix: bool) -> None:
    w = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64, requires_grad=True)
    real, fake = torch.randn(2, 6, 2, 2, generator=rng(), dtype=torch.float64)

    def critic(x: Tensor) -> Tensor:
        score = (x * w).sum(dim=(1, 2))
        return score[:, None] if as_matrix else score

    penalty = gradient_penalty(losses.input_gradient_of(critic), real, fake, u=places(6))
    norm = w.detach().norm()
    assert penalty.item() == pytest.approx((norm.item() - 1) ** 2, rel=1e-12)
    torch.autograd.backward(penalty)
    assert w.grad is not None  # d(|w| - 1)^2 / dw = 2 (|w| - 1) w / |w|
    torch.testing.assert_close(w.grad, 2 * (norm - 1) * w.detach() / norm)


def test_penalty_of_a_quadratic_critic_is_taken_on_the_line_between_fake_and_real() -> None:
    # D(x) = a |x|^2 / 2 has the gradient a x. With fake = 0 and |real| = 2 its norm at u real is 2 a u,
    # u uniform in [0, 1]; E[(2 a u - 1)^2] = 4 a^2 / 3 - 2 a + 1
    n, a = 20000, 1.5
    direction = torch.nn.functional.normalize(torch.randn(n, 3, generator=rng(), dtype=torch.float64))
    real = 2 * direction
    penalty = gradient_penalty(
        losses.input_gradient_of(lambda x: a * x.square().sum(dim=1) / 2), real, torch.zeros_like(real), u=places(n)
    )
    assert penalty.item() == pytest.approx(4 * a**2 / 3 - 2 * a + 1, abs=0.02)  # standard error 0.009


def test_penalty_keeps_the_images_apart_and_repeats_under_a_seed() -> None:
    # where real and fake coincide, so does every point between them: norms 2, 4 -> penalties 1, 9
    x = torch.tensor([[2.0, 0.0], [0.0, 4.0]])

    def critic(x: Tensor) -> Tensor:
        return x.square().sum(dim=1) / 2

    assert gradient_penalty(losses.input_gradient_of(critic), x, x, u=places(2)).item() == pytest.approx(5.0)
    real, fake = torch.randn(2, 8, 3, generator=rng())
    values = [
        gradient_penalty(losses.input_gradient_of(critic), real, fake, u=places(8, seed)).item() for seed in (1, 1, 2)
    ]
    assert values[0] == values[1] != values[2]


def test_penalty_sends_nothing_to_the_images() -> None:
    real, fake = torch.randn(2, 4, 3, generator=rng())
    real.requires_grad_()
    fake.requires_grad_()
    penalty = gradient_penalty(losses.input_gradient_of(lambda x: x.square().sum(dim=1)), real, fake, u=places(4))
    for images in (real, fake):
        with pytest.raises(RuntimeError, match="not have been used in the graph"):
            torch.autograd.grad(penalty, images, retain_graph=True)


def test_penalty_survives_a_flat_critic() -> None:
    w = torch.zeros(3, requires_grad=True)
    real, fake = torch.randn(2, 4, 3, generator=rng())
    penalty = gradient_penalty(losses.input_gradient_of(lambda x: x @ w), real, fake, u=places(4))
    assert penalty.item() == 1
    torch.autograd.backward(penalty)
    assert w.grad is not None
    assert w.grad.isfinite().all()  # the norm has no derivative at 0
