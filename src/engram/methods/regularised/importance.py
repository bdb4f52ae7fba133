"""How much each weight matters to what has been learned: three published answers, as pure functions.

    fisher      how sharply the answer's likelihood bends along the weight (EWC, Kirkpatrick et al. 2017, Eq. 3)
    path        how much of the loss's fall the weight's own way accounts for (SI, Zenke et al. 2017, Eqs. 3 and 5)
    path_score  the same fall, over the distance that the answer moved meanwhile (RWalk, Chaudhry et al. 2018, Eq. 7)

Tensors come by name of parameter, as in `dict(net.named_parameters())`. A head that has gained classes since is longer
than what was noted before: `widen` adds zeros, for an output that did not exist mattered to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

Weights = dict[str, Tensor]


def to_device(noted: Mapping[str, Tensor], device: torch.device) -> Weights:
    """The same on a device, as after loading."""
    return {name: value.to(device) for name, value in noted.items()}


def widen(noted: Tensor, like: Tensor) -> Tensor:
    """`noted` in the shape of `like`: zeros for the rows that have been added."""
    if noted.shape == like.shape:
        return noted
    wide = torch.zeros_like(like)
    wide[: len(noted)] = noted
    return wide


def mean_square_gradient(
    value: Callable[..., Tensor], weights: Weights, inputs: Sequence[Tensor], *, batch: int = 50
) -> Weights:
    """Mean over examples of the squared gradient of `value(weights, *example)`, example by example.

    `inputs`: tensors whose first dimension runs over the examples.
    """
    each = vmap(grad(value), in_dims=(None, *[0] * len(inputs)))
    total = {name: torch.zeros_like(p) for name, p in weights.items()}
    for some in zip(*(torch.split(tensor, batch) for tensor in inputs), strict=True):
        for name, gradient in each(weights, *some).items():
            total[name] += gradient.detach().square().sum(0)
    return {name: value / len(inputs[0]) for name, value in total.items()}


def fisher(net: nn.Module, images: Tensor, *, generator: torch.Generator) -> Weights:
    """Diagonal of the Fisher information: the mean over images of the squared gradient of log p(y | image).

    images (N, C, H, W) in [-1, 1]. The label y is drawn from the network's own answer, which makes this an unbiased
    estimate of the Fisher; with the true labels it would be another matrix. `net` is in evaluation mode: each
    image's gradient is its own.
    """
    rest = dict(net.named_buffers())

    def likelihood(weights: Weights, image: Tensor, label: Tensor) -> Tensor:
        scores: Tensor = functional_call(net, {**weights, **rest}, (image[None],))
        return -F.cross_entropy(scores, label[None])

    with torch.no_grad():
        answers = torch.cat([net(some).softmax(1).cpu() for some in torch.split(images, 500)])
    labels = torch.multinomial(answers, 1, generator=generator).squeeze(1).to(images.device)
    weights = {name: p.detach() for name, p in net.named_parameters()}
    return mean_square_gradient(likelihood, weights, (images, labels))


def path(gradient: Tensor, change: Tensor) -> Tensor:
    """Eq. 3 of SI, one step of it: how much the loss fell because this weight moved, to first order."""
    return -gradient * change


def path_importance(gone: Tensor, moved: Tensor, damping: float) -> Tensor:
    """Eq. 5 of SI: the path integral over the squared distance from the task's start; never negative."""
    return gone.clamp(min=0) / (moved.square() + damping)


def path_score(fall: Tensor, information: Tensor, change: Tensor, damping: float) -> Tensor:
    """Eq. 7 of RWalk, one stretch of it: fall of the loss over the distance in the answers, 1/2 F change^2."""
    return fall.clamp(min=0) / (0.5 * information * change.square() + damping)


def scale_to_one(values: Mapping[str, Tensor]) -> Weights:
    """All values into 0 … 1 by the smallest and the largest among all weights, as RWalk adds unlike quantities."""
    low = min(float(value.min()) for value in values.values())
    high = max(float(value.max()) for value in values.values())
    span = high - low if high > low else 1.0
    return {name: (value - low) / span for name, value in values.items()}


def pull(p: Tensor, anchor: Tensor, importance: Tensor, strength: float) -> Tensor:
    """Gradient of strength / 2 * sum importance * (p - anchor)^2."""
    return strength * importance * (p - anchor)
