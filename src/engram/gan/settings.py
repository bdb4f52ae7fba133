"""The settings of every GAN here, and their checks: once, for DGM and the generative baselines alike. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engram.config import (
    MOST_IMAGES,
    MOST_ROUNDS,
    MOST_ROWS,
    MOST_WEIGHT,
    MOST_WIDE,
    Group,
    MethodSettings,
    require,
    setting,
)

Architecture = Literal["auto", "dcgan", "residual", "mlp"]
MOST_NOISE = 65_536
"""Numbers of a noise vector."""


@dataclass(frozen=True)
class GanSettings(Group):
    """How generator and critic are trained."""

    group = "gan"
    epochs: int = setting(40, "rounds of training per task; I in the annealing", at_least=1, at_most=MOST_ROUNDS)
    steps: int = setting(
        50,
        "steps per round, for each class of the task; 0: a pass over the task's images, as in the paper",
        at_least=0,
        at_most=MOST_ROUNDS,
    )
    batch_size: int = setting(
        16, "real images per step; many small steps draw better than few large ones", at_least=2, at_most=MOST_ROWS
    )
    learning_rate: float = setting(
        3e-3, "Adam's, of generator and critic; falls to 0 towards the end", above=0, below=1
    )
    beta1: float = setting(0.0, "Adam's momentum; the paper has 0.5, drawings are better with 0", at_least=0, below=1)
    rare_power: float = setting(
        4.0,
        "images unlike the rest of their class are shown more often: distance to this power; 0: all alike",
        at_least=0,
        at_most=100,
    )
    lambda_aux: float = setting(
        1.0,
        "weight of the class term in the generator's loss; 0: none, as in the authors' runs on digits",
        at_least=0,
        at_most=MOST_WEIGHT,
    )

    def steps_of(self, *, images: int, classes: int) -> int:
        """Steps per round, for a task of so many images and classes.

        >>> GanSettings(steps=50).steps_of(images=100, classes=2), GanSettings(steps=0).steps_of(images=100, classes=2)
        (100, 7)
        """
        return self.steps * classes if self.steps else -(-images // self.batch_size)


@dataclass(frozen=True)
class BaselineGanSettings(GanSettings):
    """Of a generator that is retrained on its own drawings."""

    epochs: int = setting(15, "rounds of training per task", at_least=1, at_most=MOST_ROUNDS)
    batch_size: int = setting(32, "real images per step", at_least=2, at_most=MOST_ROWS)
    learning_rate: float = setting(
        2e-3, "Adam's, of generator and critic; falls to 0 over the second half", above=0, below=1
    )
    new_fraction: float = setting(
        0.0,
        "least share of the task's own images in what the critic is shown; 0: by its number of classes",
        at_least=0,
        below=1,
    )


@dataclass(frozen=True)
class GeneratorSettings(Group):
    """The network that draws."""

    group = "generator"
    architecture: Architecture = setting(
        "auto", "the paper's dcgan for digits, the residual one of WGAN-GP, or mlp for vectors; auto: by the data"
    )
    width: int = setting(
        12,
        "n: dcgan starts with 4n, 2n and n units, residual with n everywhere, mlp with 8n, 8n",
        at_least=1,
        at_most=MOST_WIDE,
    )
    latent_dim: int = setting(64, "length of the noise vector; the paper has 128", at_least=1, at_most=MOST_NOISE)
    ema_decay: float = setting(
        0.99, "of the moving average of the weights, which is kept; 0: none", at_least=0, below=1
    )
    bn_batches: int = setting(
        50, "batches of noise from which batch statistics are estimated in the end", at_least=1, at_most=MOST_ROUNDS
    )


@dataclass(frozen=True)
class CriticSettings(Group):
    """The network that judges drawings."""

    group = "critic"
    architecture: Literal["auto", "dcgan", "residual", "resnet18", "mlp"] = setting(
        "auto", "its trunk: auto takes the one that goes with the generator"
    )
    width: int = setting(
        24,
        "w: dcgan has w, 2w and 4w channels, residual w, resnet18 w to 8w, mlp 8w, 8w; the paper has 32",
        at_least=1,
        at_most=MOST_WIDE,
    )
    kernel: Literal[3, 4, 5] = setting(4, "side of dcgan's kernels; the paper has 5, 4 is faster")
    start: Literal["fresh", "warm"] = setting("fresh", "at a new task: anew, or on from the task before")
    lambda_gp: float = setting(1.0, "weight of the gradient penalty", at_least=0, at_most=MOST_WEIGHT)
    penalty_stride: int = setting(
        1, "2: penalty at every other interpolate of a batch, with the same mean", at_least=1, at_most=MOST_ROWS
    )


@dataclass(frozen=True)
class ReplaySettings(Group):
    """What the classifier is shown of the past."""

    group = "replay"
    images: int = setting(
        12800,
        "images per epoch of the classifier's training, evenly over all classes",
        at_least=2,
        at_most=MOST_IMAGES,
    )
    keep_fraction: float = setting(
        0.8, "share of drawings used: those it takes most surely for their class; 1: all", above=0, at_most=1
    )


@dataclass(frozen=True)
class ClassifierReplaySettings(ReplaySettings):
    """For a classifier that learns every class from drawings, with two remedies where drawings are poor."""

    real_fraction: float = setting(
        0.0, "share of the task's own real images in what is learned of the new classes", at_least=0, at_most=1
    )
    distill_weight: float = setting(
        0.0, "how strongly it is held to its earlier answers; 0: not at all", at_least=0, at_most=MOST_WEIGHT
    )
    by: Literal["even", "need"] = setting(
        "even", "how an epoch's images are shared out: evenly, or half of them by how unsure it is of each class"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.by == "even" or self.keep_fraction < 1
        require(fits, "replay.by", self.by, "even where replay.keep_fraction is 1: nobody judges drawings")


@dataclass(frozen=True)
class RegularisationSettings(Group):
    """How hard weights that matter are held where they were."""

    group = "regularisation"
    strength: float = setting(
        1.0, "lambda (EWC, RWalk) or c (SI): weight of the penalty", at_least=0, at_most=MOST_WEIGHT
    )


@dataclass(frozen=True)
class GanMethodSettings(MethodSettings):
    """Groups of a method with a GAN."""

    gan: GanSettings = GanSettings()
    generator: GeneratorSettings = GeneratorSettings()
    critic: CriticSettings = CriticSettings()
    replay: ReplaySettings = ReplaySettings()

    @property
    def batch_sizes(self) -> dict[str, int]:
        return {"gan.batch_size": self.gan.batch_size}


BASELINE_GENERATOR = GeneratorSettings(width=40, latent_dim=100)
"""518,240 weights with ten classes: the paper gives 5.18e5 for MeRGAN."""
BASELINE_CRITIC = CriticSettings(start="warm")
"""It goes on from task to task, as these methods' authors let it."""


@dataclass(frozen=True)
class BaselineSettings(GanMethodSettings):
    """Groups of a generative baseline: one generator of fixed size for all classes."""

    gan: BaselineGanSettings = BaselineGanSettings()
    generator: GeneratorSettings = BASELINE_GENERATOR
    critic: CriticSettings = BASELINE_CRITIC


@dataclass(frozen=True)
class ConditionalReplaySettings(BaselineSettings):
    """Groups of a baseline whose generator is told the class."""

    replay: ClassifierReplaySettings = ClassifierReplaySettings()
