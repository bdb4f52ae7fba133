"""The settings of Dynamic Generative Memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engram.config import demand


@dataclass(frozen=True)
class DGMwSettings:
    """Settings of DGMw; DGMa has the same with other defaults."""

    network: Literal["dcgan", "residual"] = "dcgan"
    """The generator and its critic: the paper's for digits, or the residual ones of WGAN-GP."""
    critic: Literal["auto", "dcgan", "residual", "resnet18"] = "auto"
    """The critic's trunk: the one that goes with the generator, or another; the paper has ResNet-18 for ImageNet-50."""
    critic_start: Literal["fresh", "warm"] = "fresh"
    """The critic at a new task: it starts anew, or goes on from the task before, as the paper's does on ImageNet-50."""
    width: int = 12
    """n: the generator starts with 4n, 2n and n units. The authors' 6 with a noise of 128 has fewer weights where the
    strokes are drawn: three quarters of them lie in the first layer."""
    noise: int = 64
    """Length of the noise vector."""
    epochs: int = 40
    """Rounds of generator training per task: I in the annealing."""
    steps: int = 50
    """Steps per round, for each class of the task."""
    masking: float = 0.2
    """Share of the rounds in which the masks are learned; in the rest they are binary."""
    batch_size: int = 16
    """Images per step. Many small steps draw better than few large ones in the same time."""
    rare: float = 0.0
    """How much more often the generator is shown images that are unlike the rest of their class: the weight of an image
    is its distance to its tenth nearest neighbour to this power. 0 shows all evenly."""
    learning_rate: float = 3e-3
    """Of generator and critic (Adam); falls to 0 over the second movement."""
    beta1: float = 0.5
    """Adam's momentum, of generator and critic. Photographs are drawn far better with 0."""
    beta2: float = 0.999
    """Decay of Adam's mean of squared gradients."""
    s_max: float = 1e4
    lambda_ru: float = 0.4
    """Weight of the sparsity term, times alpha."""
    most_units: float = 0.0
    """Units that a task keeps at most, as multiples of what a level had before the first task: those that matter most
    to its images. 0: all that its masks leave a voice."""
    lambda_gp: float = 1.0
    """Weight of the gradient penalty."""
    penalty_every: int = 1
    """1: the gradient penalty is the mean over as many lines as the batch has images; 2: over every other one, …"""
    lambda_aux: float = 1.0
    """Weight of the class term in the generator's loss, where a task has several classes."""
    critic_width: int = 24
    """w: the critic has w, 2w and 4w channels (residual: w everywhere, resnet18: w to 8w); the paper's has 32."""
    critic_kernel: int = 4
    """Of the trunk for digits; the paper's is 5."""
    average: float = 0.99
    """Decay of the moving average of the generator's weights in the second movement; 0 for none."""
    solver: Literal["symmetric", "shared"] = "symmetric"
    """Who answers: a solver trained on generated images of all classes, or the critic's class output (the paper)."""
    statistics: int = 50
    """Batches of noise from which the normalisation is estimated anew under the binary masks."""
    replay: int = 12800
    """Images per epoch of the solver's training, evenly over all classes."""
    keep: float = 0.8
    """Share of the generated images that are replayed from the solver's second epoch on: those that it takes most
    surely for their class. 1 keeps all."""
    real_now: float = 0.0
    """Share of the task's own real images among what the solver learns of the new classes; the rest is generated."""
    distil: float = 0.0
    """How strongly the solver is held to what it said before of the classes that it knew; 0 for not at all."""
    r: float = 0.0
    """Relaxed setting: share of the replayed images that are real; r N of them are stored per class, N being the mean
    number per class in the task. 0 is the strict setting."""
    K: int = 0
    """Relaxed setting: real images stored over all classes at any time, instead of r. 0 is the strict setting."""
    selection: Literal["random", "herding"] = "random"
    """Which real images the relaxed setting stores."""

    def __post_init__(self) -> None:
        for name in ("width", "noise", "epochs", "steps", "penalty_every", "critic_width", "statistics"):
            demand(getattr(self, name) >= 1, f"method.{name}", getattr(self, name), "1 or more")
        demand(self.batch_size >= 2, "method.batch_size", self.batch_size, "2 or more")
        demand(self.replay >= 2, "method.replay", self.replay, "2 or more")
        demand(0 < self.masking <= 1, "method.masking", self.masking, "above 0 and at most 1")
        for name in ("average", "beta1", "beta2"):
            demand(0 <= getattr(self, name) < 1, f"method.{name}", getattr(self, name), "0 or more and below 1")
        demand(self.s_max >= 1, "method.s_max", self.s_max, "1 or more")
        demand(0 < self.learning_rate < 1, "method.learning_rate", self.learning_rate, "above 0 and below 1")
        demand(self.critic_kernel in (3, 4, 5), "method.critic_kernel", self.critic_kernel, "3, 4 or 5")
        demand(0 < self.keep <= 1, "method.keep", self.keep, "above 0 and at most 1")
        demand(0 <= self.real_now <= 1, "method.real_now", self.real_now, "0 to 1")
        demand(self.distil >= 0, "method.distil", self.distil, "0 or more")
        demand(0 <= self.r < 1, "method.r", self.r, "0 or more and below 1")
        demand(self.K >= 0, "method.K", self.K, "0 or more")
        demand(not (self.r and self.K), "method.K", self.K, "0 where method.r is set")
        for name in ("rare", "lambda_ru", "most_units", "lambda_gp", "lambda_aux"):
            demand(getattr(self, name) >= 0, f"method.{name}", getattr(self, name), "0 or more")

    @property
    def stores_images(self) -> bool:
        """Whether this is the relaxed setting."""
        return self.r > 0 or self.K > 0


@dataclass(frozen=True)
class DGMaSettings(DGMwSettings):
    """Settings of DGMa."""

    width: int = 10
    s_max: float = 200.0
    """The authors' 1e5 decides all masks within the first round: from the second on every sigmoid is saturated."""
    lambda_ru: float = 0.5
