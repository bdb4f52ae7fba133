"""How much a weight matters, against brute force and closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conftest import context
from engram.data.examples import Examples
from engram.data.stream import Task
from engram.errors import ConfigError
from engram.memory.exemplars import Exemplars, balanced
from engram.methods.regularised import ewc, rwalk, si
from engram.methods.regularised.importance import fisher, mean_square_gradient, path_score, pull, scale_to_one, widen
from engram.methods.regularised.rwalk import WalkImportance
from engram.methods.regularised.si import PathImportance


def network(classes: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, classes)).double()


def draws() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_squared_gradients_are_taken_image_by_image() -> None:
    """Against a loop with the ordinary backward pass; the square of a mean gradient would be something else."""
    net, images, labels = network(), torch.randn(7, 1, 4, 4).double(), torch.tensor([0, 1, 2, 0, 1, 2, 0])

    def loss(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        scores = torch.func.functional_call(net, weights, (image[None],))
        return F.cross_entropy(scores, label[None])

    weights = {name: p.detach() for name, p in net.named_parameters()}
    found = mean_square_gradient(loss, weights, (images, labels), batch=3)
    wanted = {name: torch.zeros_like(p) for name, p in weights.items()}
    for image, label in zip(images, labels, strict=True):
        net.zero_grad()
        F.cross_entropy(net(image[None]), label[None]).backward()  # type: ignore[no-untyped-call]
        for name, p in net.named_parameters():
            assert p.grad is not None
            wanted[name] += p.grad.square() / len(images)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value)


def test_fisher_is_the_expectation_over_the_networks_own_answers() -> None:
    """Many draws of the label come to the exact sum over all labels, weighted by their probability."""
    net, image = network(), torch.randn(1, 1, 4, 4).double()
    found = fisher(net, image.expand(20_000, 1, 4, 4), generator=draws())
    probabilities = net(image).softmax(1)[0].detach()
    wanted = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for label, probability in enumerate(probabilities):
        net.zero_grad()
        F.cross_entropy(net(image), torch.tensor([label])).backward()  # type: ignore[no-untyped-call]
        for name, p in net.named_parameters():
            assert p.grad is not None
            wanted[name] += probability * p.grad.square()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0.05, atol=1e-3)


def test_fisher_is_the_curvature_of_the_divergence() -> None:
    """A second formulation: KL(p(theta) || p(theta + d)) bends by F along each weight."""
    net, images = network(), torch.randn(40, 1, 4, 4).double()
    found = fisher(net, images.repeat(500, 1, 1, 1), generator=draws())["3.bias"]
    bias, step = net[3].bias, 1e-4
    assert isinstance(bias, Tensor)
    with torch.no_grad():
        before = net(images).log_softmax(1)
        for place in range(3):
            bias[place] += step
            after = net(images).log_softmax(1)
            bias[place] -= step
            divergence = (before.exp() * (before - after)).sum(1).mean()
            assert 2 * divergence / step**2 == pytest.approx(found[place].item(), rel=0.05)


def walk(watch: PathImportance | WalkImportance, net: nn.Module, data: Examples, steps: int, rate: float) -> float:
    """Plain gradient descent under a watch; by how much the loss fell."""
    weights = dict(net.named_parameters())
    watch.begin(weights)
    first = last = 0.0
    for step in range(steps + 1):
        net.zero_grad()
        loss = F.cross_entropy(net(data.images), data.targets)
        last = loss.item()
        first = last if step == 0 else first
        if step < steps:
            torch.autograd.backward(loss)
            watch.before_step(weights)
            with torch.no_grad():
                for p in weights.values():
                    assert p.grad is not None
                    p.sub_(rate * p.grad)
            watch.after_step(weights)
    return first - last


def test_the_path_integral_adds_up_to_the_fall_of_the_loss() -> None:
    """The fundamental theorem of calculus along the way, when steps are small."""
    net = network()
    data = Examples(torch.randn(12, 1, 4, 4).double(), torch.arange(12) % 3)
    watch = PathImportance(context("si"))
    fall = walk(watch, net, data, steps=300, rate=0.01)
    assert fall > 0.1
    assert sum(value.sum().item() for value in watch.gone.values()) == pytest.approx(fall, rel=0.02)
    start = {name: value.clone() for name, value in watch.start.items()}
    importance = watch.end(net, data, 0)
    for name, p in net.named_parameters():
        moved = (p.detach() - start[name]).square()
        torch.testing.assert_close(importance[name], watch.gone[name].clamp(min=0) / (moved + si.DAMPING))


def test_riemannian_walk_against_a_loop_over_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rwalk, "FISHER_DECAY", 0.7)
    monkeypatch.setattr(rwalk, "STRETCH", 2)
    monkeypatch.setattr(rwalk, "DAMPING", 1e-6)
    net = network()
    data = Examples(torch.randn(6, 1, 4, 4).double(), torch.arange(6) % 3)
    watch = WalkImportance(context("rwalk"))
    # the same walk by hand, for one bias, in plain numbers
    other = network()
    bias = other[3].bias
    assert isinstance(bias, nn.Parameter)
    information = fall = total = 0.0
    mark = bias[1].item()
    for step in range(1, 6):
        other.zero_grad()
        torch.autograd.backward(F.cross_entropy(other(data.images), data.targets))
        assert bias.grad is not None
        gradient = bias.grad[1].item()
        information = 0.7 * information + 0.3 * gradient**2
        with torch.no_grad():
            for p in other.parameters():
                assert p.grad is not None
                p.sub_(0.1 * p.grad)
        fall += gradient * 0.1 * gradient
        if step % 2 == 0:
            now = bias[1].item()
            total += max(fall, 0) / (0.5 * information * (now - mark) ** 2 + 1e-6)
            mark, fall = now, 0.0
    walk(watch, net, data, steps=5, rate=0.1)
    assert watch.information["3.bias"][1].item() == pytest.approx(information)
    assert watch.scores["3.bias"][1].item() == pytest.approx(total)
    importance = watch.end(net, data, 0)
    low, high = (f(float(f(v.flatten().tolist())) for v in importance.values()) for f in (min, max))
    assert low >= 0
    assert high <= 2


def test_information_and_old_scores_begin_apart() -> None:
    """The information is changed in place, and the scores of the past must not move with it."""
    net = network()
    data = Examples(torch.randn(6, 1, 4, 4).double(), torch.arange(6) % 3)
    watch = WalkImportance(context("rwalk"))
    walk(watch, net, data, steps=3, rate=0.1)
    assert all(value.any() for value in watch.information.values())
    assert not any(value.any() for value in watch.old_scores.values())


def test_scores_never_reward_a_rise_and_scaling_fills_the_unit_interval() -> None:
    assert path_score(torch.tensor(-1.0), torch.tensor(1.0), torch.tensor(1.0), 0.1) == 0
    scaled = scale_to_one({"a": torch.tensor([2.0, 4.0]), "b": torch.tensor([3.0])})
    assert scaled["a"].tolist() == [0, 1]
    assert scaled["b"].tolist() == [0.5]
    assert scale_to_one({"a": torch.full((2,), 7.0)})["a"].tolist() == [0, 0]


def test_two_tasks_with_a_closed_form() -> None:
    """Least squares on two tasks in turn: with the exact curvature as importance, EWC ends at the joint optimum.

    Task k wants the point b_k, with curvatures h_k along the axes; together their optimum is the weighted mean.
    """
    h, b = torch.tensor([[4.0, 1.0], [1.0, 3.0]]), torch.tensor([[1.0, -2.0], [3.0, 2.0]])
    theta = b[0].clone()  # the first task is learned exactly
    anchor, importance = theta.clone(), h[0]
    for _ in range(2000):
        gradient = h[1] * (theta - b[1]) + pull(theta, anchor, importance, 1.0)
        theta = theta - 0.05 * gradient
    torch.testing.assert_close(theta, (h * b).sum(0) / h.sum(0))


def test_new_classes_matter_to_nobody() -> None:
    wide = widen(torch.ones(2, 3), torch.zeros(4, 3))
    assert wide.tolist() == [[1, 1, 1]] * 2 + [[0, 0, 0]] * 2
    same = torch.ones(2)
    assert widen(same, torch.zeros(2)) is same


def test_an_epoch_holds_every_class_evenly() -> None:
    images = torch.arange(10, dtype=torch.uint8)[:, None, None, None].expand(10, 1, 2, 2).clone()
    task = Task(1, (7,), (5, 6, 7), images, torch.full((10,), 2), ("seven",))
    stored = Exemplars({0: torch.full((2, 1, 2, 2), 100, dtype=torch.uint8), 1: torch.full((1, 1, 2, 2), 200).byte()})
    drawn = balanced(task, stored, generator=draws())
    x, y = drawn.images, drawn.targets
    assert torch.bincount(y).tolist() == [4, 3, 3]
    assert set(x[y == 0].flatten().tolist()) == {100}
    assert set(x[y == 1].flatten().tolist()) == {200}
    assert set(x[y == 2].flatten().tolist()) <= set(range(10))


@pytest.mark.parametrize("name", ["regularisation.strength", "exemplars.per_class"])
@pytest.mark.parametrize("method", ["ewc", "si", "rwalk", "ewc-s"])
def test_settings_out_of_range_are_refused(method: str, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}=-1(\.0)? is out of range: it must be 0 to "):
        context(method, {name: -1})


def test_the_published_constants() -> None:
    """Of the authors, where they are no settings."""
    assert ewc.FISHER_IMAGES == 500
    assert si.DAMPING == 0.1
    assert (rwalk.FISHER_DECAY, rwalk.STRETCH, rwalk.DAMPING) == (0.9, 10, 1e-8)


def test_fisher_information_is_estimated_from_so_many_images(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def counted(net: nn.Module, images: Tensor, *, generator: torch.Generator) -> dict[str, Tensor]:
        counts.append(len(images))
        return fisher(net, images, generator=generator)

    monkeypatch.setattr(ewc, "fisher", counted)
    monkeypatch.setattr(ewc, "FISHER_IMAGES", 5)
    found = ewc.FisherImportance(context("ewc"))
    for images in (12, 3):
        examples = Examples(torch.randint(0, 256, (images, 1, 4, 4), dtype=torch.uint8), torch.zeros(images).long())
        found.end(network().float(), examples, 0)
    assert counts == [5, 3]
