"""The terms of the two objectives, each a pure function and each without its weight lambda.

    critic      cross-entropy(class output) + critic_loss    + lambda_GP * gradient_penalty
    generator   generator_loss + lambda_aux * cross-entropy(class output) + lambda_RU * alpha * sparsity

The class terms are `torch.nn.functional.cross_entropy` as it is. The paper writes the generator's with a
minus, L_s - L_c. We add it: minimising a negative cross-entropy would train images *away* from their class,
while an AC-GAN's generator, like its critic, wants the class recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def sparsity(layers: Iterable[tuple[Tensor, Tensor]], *, n_free: int | None = None) -> Tensor:
    """R^t over the plastic layers, given as pairs (soft mask m^t, what is free: 1 - m^{<t} in numbers) of one shape.

    The share of the free entries that the task takes; reusing reserved ones costs nothing. It pools the
    entries of all layers, so a large layer weighs more. 0 where nothing is free. `n_free`: how much is free in all,
    where that has been counted.

    >>> sparsity([(torch.tensor([0.5, 0.9, 1.0]), torch.tensor([1.0, 0.0, 1.0]))]).item()
    0.75
    """
    pairs = list(layers)
    assert pairs, "no plastic layer"
    assert all(m.shape == free.shape and m.dtype == free.dtype for m, free in pairs)
    if n_free is None:
        n_free = sum(int(free.count_nonzero()) for _, free in pairs)
    # Eq. 6
    taken = torch.stack([(m * free).sum() for m, free in pairs]).sum()
    return taken / max(n_free, 1)


def alpha(size: int, free: int) -> float:
    """S_t / S_free: the size of the network before task t over its free part, the pressure to reuse.

    With nothing free the sparsity term is 0; so is alpha then, rather than infinite, to keep their product 0.
    """
    assert 0 <= free <= size
    return size / free if free else 0.0


def critic_loss(real_scores: Tensor, fake_scores: Tensor) -> Tensor:
    """Wasserstein critic: E[D(fake)] - E[D(real)], to be minimised by the critic."""
    return fake_scores.mean() - real_scores.mean()


def generator_loss(fake_scores: Tensor) -> Tensor:
    """Wasserstein generator: -E[D(fake)]."""
    return -fake_scores.mean()


def input_gradient_of(critic: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Images (B, ...) -> the gradient of each one's score with respect to it, by differentiating any critic.

    `critic` maps (B, ...) to one score an image.
    """

    def input_gradient(x: Tensor) -> Tensor:
        x = x.requires_grad_()
        # the sum's gradient holds each image's own gradient, as no score depends on another image
        (grad,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        return grad

    return input_gradient


def interpolate(real: Tensor, fake: Tensor, u: Tensor) -> Tensor:
    """x_hat, the interpolates between fakes and real images; u (B,), from 0 to 1, says where: 0 is the fake.

    Nothing flows back into real or fake.
    """
    assert real.shape == fake.shape
    return torch.lerp(fake.detach(), real.detach(), u.to(real).reshape(-1, *[1] * (real.dim() - 1)))


def gradient_penalty(input_gradients: Tensor) -> Tensor:
    """E[(||grad_x D(x_hat)||_2 - 1)^2] of the critic's input gradients (B, ...) at x_hat (WGAN-GP).

    The critic behind them must treat the images independently: batch normalisation in it would mix their gradients.
    """
    norm: Tensor = torch.linalg.vector_norm(input_gradients.flatten(start_dim=1), dim=1)
    return (norm - 1).square().mean()
