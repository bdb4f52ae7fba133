"""What answers can be taken out of a learner, kept as a plain state, and rebuilt from the configuration alone."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conftest import SMALL, SMALL_CRITIC_ANSWERS
from engram.config import Config
from engram.data.stream import ClassStream
from engram.errors import ConfigError
from engram.methods.answering import AnswerNet, NearestMean, answer_only, rebuild_answer
from engram.methods.classifier import normalise
from engram.methods.dgm.learner import DGM
from engram.methods.icarl import ICaRL
from engram.methods.learner import Embeds, Learner
from engram.methods.registry import METHODS, configure
from engram.testing import images_in, toy_dataset

CPU = torch.device("cpu")
SHAPE = (1, 32, 32)
BRIEF = {"classifier.epochs": 1, "classifier.batch_size": 8, "classifier.width": 4}
GAN = {"gan.epochs": 2, "gan.steps": 3, "replay.images": 32, "critic.width": 4}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "classifier": ("dgmw", {**SMALL["dgmw"], **GAN}),
    "critic": ("dgmw", {**SMALL_CRITIC_ANSWERS, **GAN}),
    "nearest_mean": ("icarl", SMALL["icarl"]),
    "linear": ("slda", {"features.filters": 4}),
    "product": ("dgmw", {**SMALL["dgmw"], **GAN, "statistics.kept": True, "statistics.filters": 2}),
    "correlation": ("fecam", {"features.filters": 2}),
}
every_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in CASES]
)


def configuration(kind: str) -> Config:
    method, settings = CASES[kind]
    return configure(dataset="toy", method=method, settings={**BRIEF, **settings})


@functools.cache
def learned(kind: str) -> Learner:
    """4 classes, two a task."""
    config = configuration(kind)
    learner = METHODS[config.method].learner(config, SHAPE, CPU)
    for task in ClassStream(toy_dataset(per_class=10), 2):
        learner.learn(task)
    return learner


def saved(node: Any) -> Any:
    """As it comes back from a file: plain values by way of JSON, tensors as they are."""
    if isinstance(node, dict):
        return {key: saved(value) for key, value in node.items()}
    return node.clone() if isinstance(node, Tensor) else json.loads(json.dumps(node))


@every_kind
def test_a_rebuilt_model_answers_as_its_learner(kind: str) -> None:
    learner, config, images = learned(kind), configuration(kind), toy_dataset().test.images
    kept = answer_only(learner, config, SHAPE, CPU)
    state = saved(kept.state())
    assert {key: state[key] for key in ("kind", "classes")} == {"kind": kind, "classes": 4}
    other = rebuild_answer(config, SHAPE, state, CPU)
    for answering in (kept, other):
        torch.testing.assert_close(answering.scores(images), learner.scores(images), atol=1e-5, rtol=0)
    assert torch.equal(kept.scores(images), other.scores(images))
    again = other.state()
    assert again["net"].keys() == state["net"].keys()
    assert all(torch.equal(again["net"][key], value) for key, value in state["net"].items())
    with torch.no_grad():
        assert torch.equal(other.answer_net()(normalise(images)), kept.scores(images))


@every_kind
def test_what_is_kept_is_what_answers_and_no_more(kind: str) -> None:
    learner, images = learned(kind), toy_dataset(per_class=10).take_train().images
    state = answer_only(learner, configuration(kind), SHAPE, CPU).state()
    assert {key.split(".")[0] for key in state["net"]} == {"trunk", "head"}
    assert images_in(state, images) == 0
    assert sum(value.numel() for value in state["net"].values()) < 10_000
    if kind == "critic":
        assert isinstance(learner, DGM)
        assert learner.critic is not None
        assert torch.equal(state["net"]["head.weight"], learner.critic.classes.weight)
    if kind == "nearest_mean":
        assert isinstance(learner, ICaRL)
        assert torch.equal(state["net"]["head.means"], learner.means)


@every_kind
def test_features_are_those_before_the_head(kind: str) -> None:
    learner, images = learned(kind), toy_dataset().test.images
    kept = answer_only(learner, configuration(kind), SHAPE, CPU)
    features = kept.features(images)
    torch.testing.assert_close(kept.net.head(features), learner.scores(images), atol=1e-5, rtol=0)
    if isinstance(learner, Embeds):
        assert torch.equal(features, learner.features(images))


@every_kind
def test_a_network_is_a_copy(kind: str) -> None:
    learner, images = learned(kind), toy_dataset().test.images
    before = learner.scores(images)
    net = learner.answer_net()
    assert not any(part.training for part in net.modules())
    assert not any(p.requires_grad for p in net.parameters())
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.zero_()
    net.train()
    assert torch.equal(learner.scores(images), before)


def test_it_only_answers() -> None:
    kept = answer_only(learned("classifier"), configuration("classifier"), SHAPE, CPU)
    task = next(iter(ClassStream(toy_dataset(per_class=10), 2)))
    with pytest.raises(ConfigError, match=r"^this model only answers: its generator was left out; learn with the file"):
        kept.learn(task)


def test_the_nearest_mean_is_minus_the_distance_of_unit_vectors() -> None:
    draws = torch.Generator().manual_seed(0)
    features = torch.randn(5, 3, generator=draws, dtype=torch.float64)
    means = F.normalize(torch.randn(2, 3, generator=draws, dtype=torch.float64), dim=1)
    cosines = torch.einsum("bf,cf->bc", features / features.norm(dim=1, keepdim=True), means)
    torch.testing.assert_close(NearestMean(means)(features), -(2 - 2 * cosines).sqrt())


def test_a_kind_that_does_not_exist_is_told() -> None:
    state = {**answer_only(learned("critic"), configuration("critic"), SHAPE, CPU).state(), "kind": "crtic"}
    with pytest.raises(ConfigError, match="unknown kind of answer 'crtic': did you mean 'critic'"):
        rebuild_answer(configuration("critic"), SHAPE, state, CPU)


def test_a_network_of_another_make_cannot_be_kept_alone() -> None:
    class Own(ICaRL):
        def answer_net(self) -> nn.Module:
            return nn.Sequential(super().answer_net()).eval()

    config = configuration("nearest_mean")
    learner = METHODS["icarl"].learner(config, SHAPE, CPU)
    assert isinstance(learner, ICaRL)
    own = Own(learner.ctx)
    own.load(learned("nearest_mean").state())
    assert not isinstance(own.answer_net(), AnswerNet)
    with pytest.raises(ConfigError, match="icarl answers with a Sequential, which a state cannot rebuild"):
        answer_only(own, config, SHAPE, CPU)
