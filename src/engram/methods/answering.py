"""What answers, as one network, and a learner that holds nothing else.

    classifier     trunk ─ linear ─> scores
    critic         the critic's trunk ─ its class output ─> scores
    nearest_mean   trunk ─ unit length ─> minus the distance to the mean of each class
    linear         fixed features ─ weights in closed form ─> scores
    correlation    fixed features ─> minus the distance to each class under its own correlations
    product        classifier or critic, and linear: log-probabilities and scores, weighted and added up

Such a network takes images in [-1, 1], or vectors as they are stored (the scale is its first part), and gives the
scores that its learner gives. It can be exported, and together with the configuration its weights are enough to answer:
no generator, no stored images, no optimiser.
"""

from __future__ import annotations

import copy
from typing import Literal, TypeAlias, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.config import Config, MethodSettings
from engram.context import Context, Shape
from engram.data.stream import Task
from engram.errors import ConfigError, unknown
from engram.gan.settings import GanMethodSettings
from engram.gan.step import new_critic
from engram.kinds import is_vector
from engram.methods.classifier import FEATURE_BATCH, Classifier, normalise
from engram.methods.closed_form.features import features_of
from engram.methods.closed_form.heads import FixedHead, LinearHead, blank_head
from engram.methods.closed_form.settings import ClosedFormSettings, FeatureSettings
from engram.methods.dgm.settings import DGMSettings
from engram.methods.learner import SILENT, Learner, Observer, State
from engram.methods.product import ProductHead, ProductTrunk
from engram.nets.classifier import GrowingHead
from engram.nets.critic import Critic
from engram.nets.scale import Scale
from engram.seeding import generator

Kind = Literal["classifier", "critic", "nearest_mean", "linear", "correlation", "product"]
Head: TypeAlias = "GrowingHead | NearestMean | FixedHead | ProductHead"


class NearestMean(nn.Module):
    """A head without weights to learn: the nearer a class's mean, the higher its score."""

    means: Tensor

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.register_buffer("means", means)  # (classes, features) of unit length

    @property
    def classes(self) -> int:
        """How many means it has."""
        return self.means.shape[0]

    def forward(self, features: Tensor) -> Tensor:
        """(B, features) -> (B, classes). Not `torch.cdist`, which has no counterpart in ONNX."""
        away = F.normalize(features, dim=1)[:, None] - self.means  # (B, classes, features)
        scores: Tensor = -torch.linalg.vector_norm(away, dim=2)
        return scores


class AnswerNet(nn.Module):
    """Trunk and head, for answering alone: in eval mode, without gradients, and nobody else's."""

    trunk: nn.Module
    head: Head

    def __init__(self, kind: Kind, trunk: nn.Module, head: Head) -> None:
        super().__init__()
        self.kind: Kind = kind
        self.trunk, self.head = copy.deepcopy(trunk), copy.deepcopy(head)
        self.eval().requires_grad_(False)

    @property
    def classes(self) -> int:
        """How many it tells apart."""
        return self.head.classes

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) in [-1, 1] -> (B, classes)."""
        scores: Tensor = self.head(self.trunk(x))
        return scores


def classifier_answer(classifier: Classifier) -> AnswerNet:
    """The classifier's own answer."""
    trunk, head = classifier.net
    assert isinstance(head, GrowingHead)
    return AnswerNet("classifier", trunk, head)


def critic_answer(critic: Critic) -> AnswerNet:
    """The critic's class output; its score is left out."""
    trunk = critic.trunk
    assert isinstance(trunk, nn.Module)
    return AnswerNet("critic", trunk, critic.classes)


def nearest_mean_answer(classifier: Classifier, means: Tensor) -> AnswerNet:
    """The mean that is nearest to the features; means (classes, features) of unit length."""
    return AnswerNet("nearest_mean", classifier.net[0], NearestMean(means.to(classifier.ctx.device)))


def product_answer(net: AnswerNet, trunk: nn.Module, head: LinearHead, weights: Tensor) -> AnswerNet:
    """A network's answer times that of a linear head on fixed features; weights (2,)."""
    return AnswerNet("product", ProductTrunk([net.trunk, trunk]), ProductHead(net.head, head, weights))


def with_scale(net: AnswerNet, scale: Scale) -> AnswerNet:
    """The same for vectors as they are stored."""
    return AnswerNet(net.kind, nn.Sequential(Scale(scale.mean, scale.deviation), net.trunk), net.head)


def blank_answer(ctx: Context[MethodSettings], kind: Kind, classes: int) -> AnswerNet:
    """A network of this kind and size, whose weights are yet to be loaded."""
    if kind not in get_args(Kind):
        raise unknown("kind of answer", kind, get_args(Kind))
    if isinstance(ctx.settings, ClosedFormSettings):
        trunk = features_of(ctx.shape, ctx.settings.features, generator=generator(0)).to(ctx.device)
        return AnswerNet(kind, trunk, blank_head(ctx.settings, classes, trunk.features).to(ctx.device))
    net = _blank(ctx, kind, classes)
    return with_scale(net, Scale.blank(*ctx.shape)) if is_vector(ctx.shape) else net


def _blank(ctx: Context[MethodSettings], kind: Kind, classes: int) -> AnswerNet:
    if kind == "product":
        own = ctx.settings
        assert isinstance(own, DGMSettings), type(own)
        first = _blank(ctx, "critic" if own.replay.classifier == "critic" else "classifier", classes)
        trunk = features_of(ctx.shape, FeatureSettings(own.statistics.filters), generator=generator(0)).to(ctx.device)
        second = LinearHead(torch.zeros(classes, trunk.features), torch.zeros(classes)).to(ctx.device)
        return product_answer(first, trunk, second, torch.zeros(2, device=ctx.device))
    if kind == "critic":
        assert isinstance(ctx.settings, GanMethodSettings), type(ctx.settings)
        return critic_answer(new_critic(cast("Context[GanMethodSettings]", ctx), classes, 0))
    classifier = Classifier(ctx)
    head = classifier.net[1]
    assert isinstance(head, GrowingHead)
    if kind == "nearest_mean":
        return nearest_mean_answer(classifier, torch.zeros(classes, head.weight.shape[1]))
    head.grow(classes, generator=generator(0))
    return classifier_answer(classifier)


# ---------------------------------------------------------------- a learner that only answers


class AnswerOnly:
    """A learner that has done with learning: it answers as the one that it was taken from did."""

    def __init__(self, ctx: Context[MethodSettings], net: AnswerNet) -> None:
        self.ctx, self.net = ctx, net

    def learn(self, task: Task, *, observe: Observer = SILENT) -> None:
        """Refused: what learning needs is not here."""
        raise ConfigError("this model only answers: its generator was left out; learn with the file that has it")

    @torch.inference_mode()
    def scores(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, classes seen)."""
        scores: Tensor = self.net(normalise(images.to(self.ctx.device)))
        return scores

    @torch.inference_mode()
    def features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, features), what the trunk makes of them, in batches."""
        parts = torch.split(images, FEATURE_BATCH)
        return torch.cat([self.net.trunk(normalise(some.to(self.ctx.device))).cpu() for some in parts])

    def answer_net(self) -> nn.Module:
        """A copy of the network."""
        return copy.deepcopy(self.net)

    def state(self) -> State:
        """What it takes to answer, beside the configuration."""
        return {"kind": self.net.kind, "classes": self.net.classes, "net": dict(self.net.state_dict())}

    def load(self, state: State) -> None:
        """Answer with this network from now on. A class without a row in any tensor is given no room."""
        rows = max((len(tensor) for tensor in state["net"].values() if tensor.dim()), default=0)
        if not 0 <= state["classes"] <= rows:
            raise ValueError(f"{state['classes']} classes, but weights of at most {rows}")
        self.net = blank_answer(self.ctx, state["kind"], state["classes"])
        self.net.load_state_dict(state["net"])


def answer_only(learner: Learner, config: Config, shape: Shape, device: torch.device) -> AnswerOnly:
    """What a learner needs to answer and nothing else; the learner was built with this configuration."""
    net = learner.answer_net()
    if not isinstance(net, AnswerNet):
        raise ConfigError(
            f"{config.method} answers with a {type(net).__name__}, which a state cannot rebuild: "
            "save the whole model, or return an engram.methods.answering.AnswerNet from its answer_net"
        )
    return AnswerOnly(_context(config, shape, device), net.to(device))


def rebuild_answer(config: Config, shape: Shape, state: State, device: torch.device) -> AnswerOnly:
    """Back from the state of an `AnswerOnly`."""
    ctx = _context(config, shape, device)
    made = AnswerOnly(ctx, blank_answer(ctx, "classifier", 0))
    made.load(state)
    return made


def _context(config: Config, shape: Shape, device: torch.device) -> Context[MethodSettings]:
    return Context(shape, config.classifier, config.settings, config.seed, device, config.runtime.precision)
