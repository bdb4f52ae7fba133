"""Whether a memory repeats the images it was trained on, measured while these may still be read.

Drawings of a class are compared with its training images and with real images that were held out of the training, in
pixels and in the classifier's features. A memory that learned the class, and not its images, treats both alike:

    nearer to training   of the drawings, the share whose nearest real image is a training image, among as many of
                         either kind; 0.5 for no copying
    near-copies          of the drawings, the share whose nearest training image is at less than a third of the distance
                         of the second nearest (Yoon et al. 2023, "Diffusion probabilistic models generalize when they
                         fail to memorize"); beside it the same share of held-out images, which copy nothing
    membership attack    who was trained on? An image is taken for a training image the nearer a drawing lies to it
                         (GAN-Leaks, Chen et al. 2020, the attack that sees drawings alone); AUC, 0.5 for guessing

These are tests that copying can fail, no proof that nothing leaks: a stronger attack may find more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from engram.data.examples import Examples
from engram.methods.learner import Embeds, Samples
from engram.seeding import generator

DRAWINGS = 1000
"""Per class, and at most so many held-out images."""
SEARCHED = 5000
"""At most so many training images of a class are searched for copies: what is not searched is not found. In features,
which take longer, at most as many as there are drawings."""
FEWEST = 50
"""Held-out images of a class, under which the intervals are too wide to tell anything."""
COPY_RATIO = 1 / 3
"""A near-copy is so much nearer to its nearest training image than to the second nearest."""
CLEAR = 0.55
"""A share or AUC of which even the low end of its interval is above this is no chance, even for many classes."""
RARE = 0.001
"""So rare a surplus of near-copies is no chance either."""
Z = 1.959964
"""Of a two-sided interval of 95 %."""
CHUNK = 256

Outcome = Literal["copies", "leans", "no sign", "cannot tell"]


# ---------------------------------------------------------------- pure functions


@dataclass(frozen=True)
class Estimate:
    """A share or an AUC with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"

    def as_record(self) -> list[float]:
        """Value, low and high end, rounded."""
        return [round(one, 4) for one in (self.value, self.low, self.high)]


def wilson(share: float, count: float) -> Estimate:
    """A share of `count` independent cases with Wilson's interval, which holds near 0 and 1 too.

    >>> print(wilson(0.5, 100), wilson(0.0, 100))
    0.50 (0.40 to 0.60) 0.00 (0.00 to 0.04)
    """
    weight = Z * Z / count
    centre = (share + weight / 2) / (1 + weight)
    reach = Z * math.sqrt(share * (1 - share) / count + weight / (4 * count)) / (1 + weight)
    return Estimate(share, min(max(0.0, centre - reach), share), max(min(1.0, centre + reach), share))


def delong(positive: Tensor, negative: Tensor) -> Estimate:
    """AUC of scores (N,) over scores (M,), with the interval of DeLong et al. (1988)."""
    wins = (positive[:, None] > negative).double() + (positive[:, None] == negative).double() / 2  # (N, M)
    value = float(wins.mean())
    reach = Z * math.sqrt(float(wins.mean(1).var() / len(positive) + wins.mean(0).var() / len(negative)))
    return Estimate(value, max(0.0, value - reach), min(1.0, value + reach))


def nearest(points: Tensor, others: Tensor, count: int = 1) -> tuple[Tensor, Tensor]:
    """Distances and rows (N, count) of the nearest of `others` (M, D) to `points` (N, D), nearest first.

    >>> nearest(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]]), 2)
    (tensor([[1., 5.]]), tensor([[1, 0]]))
    """
    centre = others.mean(0)
    shifted = others - centre  # smaller numbers: less is lost in the products below
    squares = shifted.square().sum(1)
    found = []
    for some in torch.split(points, CHUNK):
        rows = (squares - 2 * (some - centre) @ shifted.T).topk(count, dim=1, largest=False).indices
        # products tell who is nearest, but not how near a copy is: that is measured on the images themselves
        exact, order = (some[:, None] - others[rows]).norm(dim=2).sort(dim=1)
        found.append((exact, rows.gather(1, order)))
    return torch.cat([distances for distances, _ in found]), torch.cat([rows for _, rows in found])


def nearer_to_training(drawn: Tensor, training: Tensor, held: Tensor) -> Estimate:
    """Of `drawn` (N, D), the share nearer to one of `training` (M, D) than to any of `held` (M, D).

    Drawings that share their nearest image are not independent: their number is divided by how many do on average.
    """
    rows = nearest(drawn, torch.cat([training, held]))[1].squeeze(1)
    shared = rows.bincount().double()
    share = float((rows < len(training)).double().mean())
    return wilson(share, len(rows) ** 2 / float(shared.square().sum()))


def near_copies(points: Tensor, training: Tensor) -> Estimate:
    """Of `points` (N, D), the share that are near-copies of one of `training` (M, D), M > 1.

    >>> line = torch.tensor([[0.0], [10.0]])
    >>> near_copies(torch.tensor([[0.1], [4.0], [10.0], [7.6]]), line).value
    0.75
    """
    first, second = nearest(points, training, 2)[0].unbind(1)
    copied = (first < COPY_RATIO * second) | (first == 0)
    return wilson(float(copied.double().mean()), len(points))


def surplus_by_chance(hits: int, of: int, others: int, among: int) -> float:
    """How likely at least `hits` are, if they and `others` fell by chance: Fisher's exact test, one-sided.

    >>> round(surplus_by_chance(3, 4, 1, 4) * 70)  # 3 of 4 against 1 of 4
    17
    """
    total = hits + others
    tables = sum(math.comb(of, k) * math.comb(among, total - k) for k in range(hits, min(of, total) + 1))
    return tables / math.comb(of + among, total)


def membership_attack(drawn: Tensor, training: Tensor, held: Tensor) -> Estimate:
    """AUC of telling `training` (M, D) from `held` (K, D) by how near the nearest of `drawn` (N, D) is."""
    members, others = (-nearest(some, drawn)[0].squeeze(1) for some in (training, held))
    return delong(members, others)


# ---------------------------------------------------------------- results


@dataclass(frozen=True)
class Comparison:
    """Drawings, training and held-out images of a class in one space."""

    to_training: float
    """Median distance of a drawing to the nearest of as many training images as were held out."""
    to_held_out: float
    """The same to the held-out images."""
    nearer_to_training: Estimate
    near_copies: Estimate
    near_copies_of_real: Estimate
    """The same share of held-out images: what chance and likeness within the class make."""
    surplus_by_chance: float
    """How likely so many more near-copies among the drawings are, if there were none."""
    attack: Estimate

    @property
    def outcome(self) -> Outcome:
        """What the three say together."""
        chances = (self.nearer_to_training.low, self.attack.low)
        if self.surplus_by_chance < RARE or max(chances) > CLEAR:
            return "copies"
        return "leans" if max(chances) > 0.5 else "no sign"

    def as_record(self) -> dict[str, Any]:
        """Plain values, rounded."""
        return {
            name: value.as_record() if isinstance(value, Estimate) else round(value, 4)
            for name, value in vars(self).items()
        }

    def __str__(self) -> str:
        return (
            f"{self.nearer_to_training.value:.0%} of the drawings nearer to training than to held-out images, "
            f"{self.near_copies.value:.1%} near-copies (real images: {self.near_copies_of_real.value:.1%}), "
            f"membership attack AUC {self.attack}"
        )


def compare(drawn: Tensor, training: Tensor, held: Tensor) -> Comparison:
    """All measures on points (N, D), (M, D), (K, D) of one space; all of `training` are searched for copies."""
    equal = training[: len(held)]
    copied, real = near_copies(drawn, training), near_copies(held, training)
    hits, others = round(copied.value * len(drawn)), round(real.value * len(held))
    return Comparison(
        to_training=float(nearest(drawn, equal)[0].median()),
        to_held_out=float(nearest(drawn, held[: len(equal)])[0].median()),
        nearer_to_training=nearer_to_training(drawn, equal, held[: len(equal)]),
        near_copies=copied,
        near_copies_of_real=real,
        surplus_by_chance=surplus_by_chance(hits, len(drawn), others, len(held)),
        attack=membership_attack(drawn, equal, held),
    )


@dataclass(frozen=True)
class Privacy:
    """What was found for one class, and with how many images."""

    class_index: int
    drawings: int
    training: int
    held_out: int
    pixels: Comparison | None = None
    """Root mean square over pixels from -1 to 1; None: too few images."""
    features: Comparison | None = None
    """None: too few images, or a learner without features."""

    @property
    def outcome(self) -> Outcome:
        """The worse of the two spaces."""
        found = [one.outcome for one in (self.pixels, self.features) if one is not None]
        order: tuple[Outcome, ...] = ("copies", "leans", "no sign")
        return min(found, key=order.index) if found else "cannot tell"

    @property
    def verdict(self) -> str:
        """One sentence: what was found, by which tests, on how many images."""
        outcome = self.outcome
        if outcome == "cannot tell":
            return (
                f"not enough held-out images to tell: {self.held_out} beside {self.training} training images, "
                f"{FEWEST} of either are needed"
            )
        spaces = [("pixels", self.pixels), ("features", self.features)]
        worst = next((name, one) for name, one in spaces if one is not None and one.outcome == outcome)
        begins = {
            "copies": "copies training images",
            "leans": "leans towards training images, perhaps by chance",
            "no sign": "no sign of copying",
        }[outcome]
        tried = f"{self.drawings} drawings, {self.training} training and {self.held_out} held-out images"
        return f"{begins}: in {worst[0]}, {worst[1]}; tested with {tried}"

    def as_record(self) -> dict[str, Any]:
        """Plain values for the records."""
        spaces = {"pixels": self.pixels, "features": self.features}
        counts = {name: value for name, value in vars(self).items() if name not in spaces}
        compared = {name: None if one is None else one.as_record() for name, one in spaces.items()}
        return {**counts, **compared, "outcome": self.outcome, "verdict": self.verdict}


# ---------------------------------------------------------------- measuring


@torch.inference_mode()
def privacy(
    learner: Samples,
    images: Tensor,
    targets: Tensor,
    held: Examples | None,
    class_indices: Sequence[int],
    *,
    seed: int,
    task: int,
) -> list[Privacy]:
    """Test drawings of each of `class_indices` against the task's own images (N, C, H, W) uint8 and held-out ones."""
    found = []
    for c in class_indices:
        draws = generator(seed, "privacy", task, c)
        training = _some(images[targets == c], SEARCHED, draws)
        others = images[:0] if held is None else _some(held.images[held.targets == c], DRAWINGS, draws)
        if min(len(training), len(others)) < FEWEST:
            found.append(Privacy(c, 0, len(training), len(others)))
            continue
        drawn = learner.sample([c], DRAWINGS, generator=draws)
        in_pixels = compare(pixels(drawn), pixels(training), pixels(others))
        embedded = _features(learner, drawn, training[:DRAWINGS], others)
        in_features = compare(*embedded) if embedded else None
        found.append(Privacy(c, len(drawn), len(training), len(others), in_pixels, in_features))
    return found


def pixels(images: Tensor) -> Tensor:
    """(N, C, H, W) uint8 -> (N, D), so that a distance is the root mean square difference of values from -1 to 1."""
    flat = images.flatten(1).float().cpu()
    return (flat / 127.5 - 1) / math.sqrt(flat.shape[1])


def _features(learner: Samples, *kinds: Tensor) -> list[Tensor]:
    """(N, C, H, W) uint8 -> (N, F) each; nothing for a learner without features."""
    return [learner.features(images).float().cpu() for images in kinds] if isinstance(learner, Embeds) else []


def _some(images: Tensor, count: int, draws: torch.Generator) -> Tensor:
    """At most so many, in random order."""
    return images[torch.randperm(len(images), generator=draws)[:count]]
