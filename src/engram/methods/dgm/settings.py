"""The settings of Dynamic Generative Memory. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engram.config import MOST_FILTERS, MOST_IMAGES, MOST_WEIGHT, Group, require, setting
from engram.gan.settings import ClassifierReplaySettings, CriticSettings, GanMethodSettings, GeneratorSettings


@dataclass(frozen=True)
class MaskSettings(Group):
    """How the masks are learned, and what they may open."""

    group = "masks"
    fraction: float = setting(
        0.2,
        "share of the rounds in which masks are learned; in the rest they are fixed; the paper has 1",
        above=0,
        at_most=1,
    )
    s_max: float = setting(
        1e4, "how sharp the masks become (Eq. 3); the authors have 1e4 and, for DGMa, 1e5", at_least=1, at_most=1e9
    )
    lambda_ru: float = setting(0.4, "weight of the sparsity term (Eq. 6), times alpha", at_least=0, at_most=MOST_WEIGHT)
    alpha: Literal["entries", "units"] = setting(
        "entries", "what alpha counts: mask entries over free ones, or units over those at the start (the authors)"
    )
    growth: Literal["refill", "paper", "off"] = setting(
        "refill", "after a task: until as much is free as at the start; by what it newly reserved, rounded up; not"
    )
    choice: Literal["learned", "shuffled", "random"] = setting(
        "learned",
        "controls: as many entries open, but others, at random: from the end of the masks' rounds, or from the start",
    )
    counts_of: str = setting(
        "none", "a run folder of learned masks: random ones open as many entries, by layer and task"
    )
    max_units_ratio: float = setting(
        2.0,
        "units a task keeps at most, as a multiple of a node's at the start: the most relevant; 0: all",
        at_least=0,
        at_most=1e6,
    )
    candidates: float = setting(
        0.0,
        "units that a task sees, as a multiple of a node's at the start: all free ones, then reserved ones; 0: all",
        at_least=0,
        at_most=1_000,
    )
    candidates_by: Literal["relevance", "random"] = setting(
        "relevance", "which ones: those of the known classes that the task's images look like; or any, as a control"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = "the folder of a run where masks.choice=random, and none elsewhere"
        require((self.choice == "random") == (self.counts_of != "none"), "masks.counts_of", self.counts_of, wanted)


@dataclass(frozen=True)
class DGMReplaySettings(ClassifierReplaySettings):
    """Who answers, and what it is shown of the past."""

    classifier: Literal["generated", "critic"] = setting(
        "generated", "who answers: a network trained on drawings of all classes, or the critic (the paper)"
    )
    critic_batch: Literal["shared", "per-class"] = setting(
        "shared",
        "replay a step for a critic that answers: one batch over the past classes, or one each; all weigh the same",
    )


@dataclass(frozen=True)
class ExemplarSettings(Group):
    """Real images that the relaxed setting stores; none in the strict one."""

    group = "exemplars"
    ratio: float = setting(
        0.0,
        "r: share of replayed images that are real; r N are stored per class, N the task's mean; 0: none",
        at_least=0,
        below=1,
    )
    budget: int = setting(
        0, "K: real images stored over all classes, instead of a ratio; 0: none", at_least=0, at_most=MOST_IMAGES
    )
    selection: Literal["random", "herding"] = setting("random", "which ones are stored")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not (self.ratio and self.budget), "exemplars.budget", self.budget, "0 where exemplars.ratio is set")


@dataclass(frozen=True)
class StatisticsSettings(Group):
    """A second memory in closed form, beside the generator: ours, not the paper's."""

    group = "statistics"
    kept: bool = setting(
        False, "also keep statistics of fixed features of the task's real images, and answer by both (ours)"
    )
    filters: int = setting(
        64,
        "random filters for images, 18 features each; vectors are taken as they are",
        at_least=1,
        at_most=MOST_FILTERS,
    )


@dataclass(frozen=True)
class DGMSettings(GanMethodSettings):
    """Groups of DGMw; DGMa has the same with other defaults."""

    critic: CriticSettings = CriticSettings(penalty_stride=2)
    masks: MaskSettings = MaskSettings()
    replay: DGMReplaySettings = DGMReplaySettings()
    exemplars: ExemplarSettings = ExemplarSettings()
    statistics: StatisticsSettings = StatisticsSettings()

    @property
    def stores_images(self) -> bool:
        """Whether this is the relaxed setting."""
        return self.exemplars.ratio > 0 or self.exemplars.budget > 0


DGMA_SETTINGS = DGMSettings(
    generator=GeneratorSettings(width=10),
    # the authors' 1e5 decides all masks within the first round: from the second on every sigmoid is saturated
    masks=MaskSettings(s_max=200.0, lambda_ru=0.5),
)
