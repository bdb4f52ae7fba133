"""iCaRL (Rebuffi et al. 2017): a fixed number of stored images, chosen by herding; the nearest class mean answers.

    learn     every class has an output of its own (a sigmoid): truth for the new classes, for the old ones what the
              network said before the task (distillation)
    store     K images over all classes: for each class those whose mean feature stays nearest to the class's own
    answer    the class whose stored images have the nearest mean feature

A departure: an epoch holds as many images of every class, stored ones again and again. In the paper the stored images
are simply added to the new ones, which suits its hundred classes of 500 images and not one class of 6,000 against ten.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.config import demand
from engram.data.stream import Task
from engram.memory.exemplars import Exemplars, evenly, herd
from engram.methods.learner import SILENT, Method, Observer, State, Surroundings
from engram.methods.solver import Examples, Solver, solver_net
from engram.seeding import generator

FEATURE_BATCH = 500


@dataclass(frozen=True)
class ICaRLSettings:
    """Settings of iCaRL."""

    K: int = 2000
    """Real images stored over all classes at any time."""

    def __post_init__(self) -> None:
        demand(self.K >= 1, "method.K", self.K, "1 or more")


class ICaRL:
    """The learner."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.solver = Solver(around)
        self.exemplars = Exemplars()
        self.teacher: nn.Module | None = None
        """The network as it was before the task, while the task is learned."""
        self.means = torch.empty(0)
        """(classes seen, features) of unit length; derived from the stored images."""

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        if not self.solver.clock.running:
            if task.index:
                self.teacher = copy.deepcopy(self.solver.net).eval()
            self.solver.begin(len(task.seen), task=task.index, images=len(task), start="warm")
        self.solver.fit(lambda epoch: self._examples(task, epoch), task=task.index, observe=observe, loss=self._loss)
        self.teacher = None
        per_class = max(1, self.around.settings.K // len(task.seen))
        self.exemplars.shrink(per_class)
        for column in task.columns:
            images = task.images[torch.nonzero(task.targets == column).squeeze(1)]
            self.exemplars.add(column, images[herd(self._features(images), per_class)])
        self._find_means()
        observe.note("memory", bytes={"exemplars": self.exemplars.bytes})

    def scores(self, images: Tensor) -> Tensor:
        """Nearness to the mean of each class."""
        features = F.normalize(self._features(images), dim=1)
        return -torch.cdist(features, self.means)

    def second_scores(self, images: Tensor) -> Tensor:
        """The network's own answer."""
        return self.solver.scores(images)

    def _examples(self, task: Task, epoch: int) -> Examples:
        if not self.exemplars.images:
            return task.images, task.targets
        return evenly(task, self.exemplars, generator=generator(self.around.seed, "examples", task.index, epoch))

    def _loss(self, x: Tensor, scores: Tensor, columns: Tensor) -> Tensor:
        wanted = F.one_hot(columns, scores.shape[1]).to(scores)
        if self.teacher is not None:
            with torch.no_grad():
                before = self.teacher(x).sigmoid()
            wanted[:, : before.shape[1]] = before
        return F.binary_cross_entropy_with_logits(scores, wanted, reduction="none").sum(1).mean()

    def _features(self, images: Tensor) -> Tensor:
        return torch.cat([self.solver.features(some) for some in torch.split(images, FEATURE_BATCH)])

    def _find_means(self) -> None:
        means = [
            F.normalize(self._features(self.exemplars.images[column]), dim=1).mean(0)
            for column in range(len(self.exemplars.images))
        ]
        self.means = F.normalize(torch.stack(means), dim=1)

    def state(self) -> State:
        state: State = {"solver": self.solver.state(), "exemplars": self.exemplars.state()}
        if self.teacher is not None:
            known = len(self.exemplars.images)
            state["teacher"] = {"classes": known, "net": dict(self.teacher.state_dict())}
        return state

    def load(self, state: State) -> None:
        self.solver.load(state["solver"])
        self.exemplars = Exemplars.of(state["exemplars"])
        self.teacher = None
        if "teacher" in state:
            self.teacher = solver_net(self.around, state["teacher"]["classes"], state["teacher"]["net"])
        if self.exemplars.images:
            self._find_means()


ICARL = Method(
    build=ICaRL,
    settings=ICaRLSettings,
    summary="iCaRL: distillation, herding, and the nearest mean of stored images",
    stores="K real images",
    source="Rebuffi et al. 2017",
    strict=False,
)
