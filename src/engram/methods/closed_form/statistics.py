"""Sums over examples, and what classifiers make of them: pure functions, in float64.

    n      (classes,)             how many examples each class has
    s      (classes, D)           sums of their features
    G      (D, D)                 sum of f f' over all examples: the Gram matrix
    G_c    (classes, D, D)        the same, class by class

A sum does not depend on the order of what is added, so neither does what is made of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def add_sums(counts: Tensor, sums: Tensor, features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Counts (classes,) and sums (classes, D) with more examples: features (B, D), targets (B,)."""
    counts = counts + torch.bincount(targets, minlength=len(counts))
    return counts, sums.index_add(0, targets, features.to(sums))


def packed(sums: Tensor) -> Tensor:
    """The same numbers in half the bytes, where all are whole and small enough; else as they are.

    >>> packed(torch.tensor([1.0, 2.0], dtype=torch.float64)).dtype
    torch.int32
    >>> packed(torch.tensor([1.5, 2.0], dtype=torch.float64)).dtype
    torch.float64
    """
    whole = sums.clamp(-(2.0**31) + 1, 2.0**31 - 1).to(torch.int32)
    return whole if torch.equal(whole.to(sums), sums) else sums.clone()


def triangle(matrix: Tensor) -> Tensor:
    """(…, D, D) symmetric -> (…, D (D + 1) / 2): the half that is worth storing."""
    rows, columns = torch.triu_indices(matrix.shape[-1], matrix.shape[-1], device=matrix.device)
    return matrix[..., rows, columns]


def symmetric(triangle: Tensor, side: int) -> Tensor:
    """Back from `triangle`: (…, D (D + 1) / 2) -> (…, D, D)."""
    rows, columns = torch.triu_indices(side, side, device=triangle.device)
    matrix = triangle.new_zeros(*triangle.shape[:-1], side, side)
    matrix[..., rows, columns] = triangle
    matrix[..., columns, rows] = triangle
    return matrix


def means(counts: Tensor, sums: Tensor) -> Tensor:
    """(classes, D); 0 for a class without an example, as one may be in the middle of a task."""
    return sums / counts.clamp_min(1)[:, None]


def nearest_mean_weights(centres: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (classes, D) and biases of scores that differ from -|f - mean|^2 / 2 by the same for every class."""
    return centres, -centres.square().sum(1) / 2


def shared_covariance(gram: Tensor, counts: Tensor, sums: Tensor) -> Tensor:
    """(D, D): the covariance within classes, over all examples; G - sum_c n_c mean_c mean_c', divided by n."""
    centres = means(counts, sums)
    return (gram - centres.T @ (counts[:, None] * centres)) / counts.sum()


def discriminant_weights(covariance: Tensor, centres: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
    """Linear discriminant analysis with even priors: weights (classes, D) and biases.

    The covariance is shrunk towards its mean variance: (1 - e) C + e trace(C) / D I. Of a covariance of nothing but
    zeros, as one example a class has, the nearest mean is left.
    """
    weights = torch.cholesky_solve(centres.T, torch.linalg.cholesky(shrunk_covariance(covariance, shrinkage))).T
    return weights, -(weights * centres).sum(1) / 2


def shrunk_covariance(covariance: Tensor, shrinkage: float) -> Tensor:
    """(D, D): (1 - e) C + e trace(C) / D I; the identity where there is nothing but zeros."""
    scale = covariance.diagonal().mean()
    eye = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    return (1 - shrinkage) * covariance + shrinkage * scale * eye if scale > 0 else eye


def left_out_scores(
    features: Tensor, targets: Tensor, *, covariance: Tensor, counts: Tensor, centres: Tensor, shrinkage: float
) -> Tensor:
    """What linear discriminant analysis would answer had it never seen the example that it is asked for.

    features (B, D) that are part of the sums, targets (B,); covariance (D, D), counts (classes,) and centres
    (classes, D) of all examples -> (B, classes), minus half the squared distances. Every example's class needs a second
    one. Leaving one out changes its class's mean, and takes a matrix of rank one from the covariance, whose inverse is
    then known (Sherman and Morrison): no example costs a factorisation. What the covariance is divided by, and the mean
    variance that it is shrunk towards, stay as they are.
    """
    lower = torch.linalg.cholesky(shrunk_covariance(covariance, shrinkage))
    own = features - centres[targets]  # (B, D)
    solved = torch.cholesky_solve(own.T, lower).T  # (B, D)
    white = torch.linalg.solve_triangular(lower, torch.cat([features, centres]).T, upper=False).T
    distances = torch.cdist(white[: len(features)], white[len(features) :]).square()  # (B, classes)
    n = counts[targets].double()
    grows = n / (n - 1)  # how much farther its class's mean is without it
    taken = (1 - shrinkage) * grows / counts.sum()
    left = 1 - taken * (own * solved).sum(1)  # positive: what is left of a covariance is one
    along = (features * solved).sum(1, keepdim=True) - solved @ centres.T  # (B, classes)
    found = distances + (taken / left)[:, None] * along.square()
    rows = torch.arange(len(targets))
    found[rows, targets] *= grows.square()
    return -found / 2


def ridge_weights(gram: Tensor, sums: Tensor, strength: float) -> Tensor:
    """(classes, D): least squares to one-hot targets, with strength x trace(G) / D on the squared weights.

    `sums` (classes, D) is what one-hot targets make of the features: Y' F.
    """
    side = gram.shape[0]
    scale = strength * gram.diagonal().mean()
    eye = torch.eye(side, dtype=gram.dtype, device=gram.device)
    return torch.cholesky_solve(sums.T, torch.linalg.cholesky(gram + scale * eye)).T


def best_strength(
    features: Tensor, wanted: Tensor, aside: Tensor, wanted_aside: Tensor, strengths: Sequence[float]
) -> float:
    """Of ridge regression from features (N, D) to targets (N, classes): the least mean square on what is kept aside."""
    gram, sums = features.T @ features, wanted.T @ features
    errors = [(aside @ ridge_weights(gram, sums, one).T - wanted_aside).square().mean().item() for one in strengths]
    return strengths[min(range(len(strengths)), key=errors.__getitem__)]


def tukey(features: Tensor, power: float) -> Tensor:
    """Tukey's ladder of powers, sign kept: it makes skewed features more like a normal distribution."""
    return features.sign() * features.abs() ** power


def shrunk_correlation(gram: Tensor, count: Tensor, total: Tensor, shrinkage: float) -> Tensor:
    """(D, D): a class's covariance, shrunk, as a correlation matrix (Goswami et al. 2023, equations 6 and 8).

    gram (D, D), count (), total (D,) of one class. To the diagonal comes its mean, to the rest the rest's mean, each
    times `shrinkage`; then rows and columns are divided by the standard deviations.
    """
    side = gram.shape[0]
    mean = total / count
    covariance = gram / count - torch.outer(mean, mean)
    eye = torch.eye(side, dtype=gram.dtype, device=gram.device)
    on = covariance.diagonal().mean()
    off = (covariance.sum() - covariance.diagonal().sum()) / max(1, side * (side - 1))
    if on <= 0:  # one example: nothing is known of how the class varies
        return eye
    shrunk = covariance + shrinkage * (on * eye + off * (1 - eye))
    deviation = shrunk.diagonal().clamp_min(torch.finfo(gram.dtype).tiny).sqrt()
    return shrunk / torch.outer(deviation, deviation)
