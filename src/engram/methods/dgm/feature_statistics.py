"""A second memory beside the generator: statistics of fixed features. It is ours; the paper has none.

    task's real images ─ fixed random features ─> sums and a Gram matrix ─> linear discriminant analysis
    classifier (learned from drawings)  ─┐
    linear discriminant analysis        ─┴─ a product of experts ─> answer

The sums are exact and strict: gathered while the task's images may be read, and nothing is kept of a single image. How
far each of the two is trusted is measured then, too, on images that neither has seen: the classifier learns from
drawings, and the discriminant answers as if it had never seen the image that it is asked for. What both together lose,
under every pair of weights, is one small table of numbers a class. The pair whose loss is least in the mean over all
tables answers. It is one rule for all data, and looks at no past image.

A class cannot be taken out of a Gram matrix. So when one is forgotten, covariances are made anew of drawings of the
others; their counts and means are their own and stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from engram.context import Context
from engram.data.stream import Task
from engram.methods.closed_form.heads import LinearHead
from engram.methods.closed_form.settings import FeatureSettings, SLDASettings
from engram.methods.closed_form.slda import StreamingLDA
from engram.methods.closed_form.statistics import means
from engram.methods.dgm.settings import DGMSettings
from engram.methods.learner import State
from engram.methods.product import FIRST, SECOND, best_weights, losses, product
from engram.seeding import generator

MOST = 1000
"""Images of a task on which it is measured how far each memory is trusted."""
DRAWINGS = 1000
"""Of a class, from which its covariance is made anew when another is forgotten."""


class FeatureStatistics:
    """The second memory, and how far it is trusted beside the first."""

    def __init__(self, ctx: Context[DGMSettings]) -> None:
        own = SLDASettings(FeatureSettings(filters=ctx.settings.statistics.filters))
        self.ctx = ctx
        self.lda = StreamingLDA(replace(ctx, settings=own))  # type: ignore[arg-type]
        self.losses = torch.zeros(0, len(FIRST), len(SECOND), dtype=torch.float64)
        """(classes, FIRST, SECOND), mean cross-entropies on a class's own images."""
        self.measured = torch.zeros(0, dtype=torch.int64)
        """(classes,) on how many images; 0: never."""

    @property
    def weights(self) -> Tensor:
        """(2,): of the classifier's log-probabilities, and of the discriminant's scores."""
        known = self.measured > 0
        return best_weights(self.losses[known].mean(0)) if known.any() else torch.tensor([1.0, SECOND[0]])

    def learn(self, task: Task, scores: Callable[[Tensor], Tensor]) -> None:
        """Take in a task that the classifier, which gives `scores`, has learned."""
        classes = len(task.seen)
        self.lda.grow(classes)
        new = classes - len(self.measured)
        self.losses = torch.cat([self.losses, self.losses.new_zeros(new, *self.losses.shape[1:])])
        self.measured = torch.cat([self.measured, self.measured.new_zeros(new)])
        self.lda.add_images(task.images, task.targets)
        if classes == 1:  # every answer is right
            return
        rows = torch.randperm(len(task), generator=generator(self.ctx.seed, "statistics", task.index))
        rows = rows[self.lda.counts[task.targets[rows]] > 1][:MOST]  # leaving out the only one leaves nothing
        self._measure(task.images[rows], task.targets[rows], scores)

    def _measure(self, images: Tensor, targets: Tensor, scores: Callable[[Tensor], Tensor]) -> None:
        found = losses(scores(images).cpu(), self.lda.left_out_scores(images, targets), targets)
        for index in sorted(set(targets.tolist())):
            own = targets == index
            self.losses[index], self.measured[index] = found[own].mean(0), int(own.sum())

    def scores(self, first: Tensor, images: Tensor) -> Tensor:
        """The classifier's scores (B, classes) and the images they are of -> (B, classes) of both memories."""
        return product(first, self.lda.scores(images), self.weights.to(first.device))

    def head(self) -> LinearHead:
        """What the discriminant answers with now."""
        found = self.lda.head
        assert isinstance(found, LinearHead)
        return found

    @property
    def trunk(self) -> nn.Module:
        """The fixed features."""
        return self.lda.trunk

    @property
    def bytes(self) -> int:
        """Of sums, filters, and the tables of trust."""
        return sum(self.lda.bytes.values()) + sum(one.numel() * one.element_size() for one in self._tables().values())

    def forget(self, class_index: int, draw: Callable[[int, int], Tensor]) -> None:
        """Drop a class; the covariance is made anew of drawings of the others. `draw`: (place, count) -> images."""
        rest = [index for index in range(len(self.measured)) if index != class_index]
        self.losses, self.measured = self.losses[rest], self.measured[rest]
        self.lda.drop(class_index)
        self.lda.gram = self._gram_of_drawings(draw)

    def _gram_of_drawings(self, draw: Callable[[int, int], Tensor]) -> Tensor:
        """(D, D), in whole numbers where the sums are: of each class its own mean, and its drawings' covariance."""
        gram = torch.zeros_like(self.lda.gram)
        centres = means(self.lda.counts, self.lda.sums)
        for index, (count, centre) in enumerate(zip(self.lda.counts.tolist(), centres, strict=True)):
            features = self.lda.trunk.for_sums(self.lda.features(draw(index, DRAWINGS))).double()
            away = features - features.mean(0)
            gram += count * (away.T @ away / len(features) + torch.outer(centre, centre))
        return self.lda.trunk.for_sums(gram)

    def _tables(self) -> dict[str, Tensor]:
        return {"losses": self.losses, "measured": self.measured}

    def state(self) -> State:
        """For a checkpoint."""
        return {"lda": self.lda.state(), **self._tables()}

    def load(self, state: State) -> None:
        """Back from a checkpoint."""
        self.lda.load(state["lda"])
        self.losses, self.measured = state["losses"], state["measured"]
