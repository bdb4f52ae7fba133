"""A generator's graph: its one forward pass against the network written out plainly, at 32 and 64 pixels."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.context import Shape
from engram.masking.masks import Variant
from engram.nets.architectures import GRAPHS, START, graph_of
from engram.nets.classifier import ConvTrunk
from engram.nets.graph import run_graph
from engram.nets.masked_generator import EPSILON, ClassNorm, MaskedGenerator
from engram.nets.residual_critic import ResidualTrunk
from engram.nets.resnet import ResNet18
from engram.seeding import generator

VARIANTS: list[Variant] = ["weights", "units"]
SIZES = [32, 64]
DOUBLINGS = {32: 3, 64: 4}
"""From 4 x 4 pixels to the image."""

Activate = Callable[[int, Tensor], Tensor]
Mask = Callable[[int, Tensor], Tensor]


def some(*shape: int, name: object) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=generator(0, "graph", str(name)))


def twice(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, 2).repeat_interleave(2, 3)


def plain(
    name: str,
    size: int,
    z: Tensor,
    weights: Sequence[Tensor],
    activate: Activate,
    mask: Mask,
    head: tuple[Tensor, Tensor],
    biases: Sequence[Tensor | None],
) -> tuple[Tensor, list[Tensor]]:
    """The images, and the sum of every node, in torch's own words: no graph, nothing dropped or folded."""
    x = mask(0, F.conv_transpose2d(z[:, :, None, None], weights[0], biases[0]))
    sums = [x]
    if name == "dcgan":
        for node in range(1, DOUBLINGS[size]):
            x = activate(node, x)
            x = mask(node, F.conv_transpose2d(x, weights[node], biases[node], stride=2, padding=1))
            sums.append(x)
        return torch.tanh(F.conv_transpose2d(activate(DOUBLINGS[size], x), *head, stride=2, padding=1)), sums
    for block in range(DOUBLINGS[size]):
        node, edge = 2 * block + 1, 3 * block + 1
        inner = F.conv2d(twice(activate(node, x)), weights[edge], biases[edge], padding=1)
        inner = mask(edge, inner)
        outer = F.conv2d(activate(node + 1, inner), weights[edge + 1], biases[edge + 1], padding=1)
        short = F.conv2d(twice(x), weights[edge + 2], biases[edge + 2])
        x = mask(edge + 1, outer) + mask(edge + 2, short)
        sums += [inner, x]
    return torch.tanh(F.conv2d(activate(2 * DOUBLINGS[size] + 1, x), *head, padding=1)), sums


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_the_forward_pass_is_the_one_written_out(name: str, size: int, biased: bool, masked: bool) -> None:
    graph = graph_of(name, size)
    units = [6, *(n + 2 for n in range(graph.nodes))]  # all different, so that none is taken for another
    if name == "residual":
        units = [6, 3, *(n for block in range(DOUBLINGS[size]) for n in (4 + block, 3))]
    weights = [
        some(*edge.operation.weight_shape(units[edge.source], units[edge.target]), name=f"weight {number}") / 3
        for number, edge in enumerate(graph.edges)
    ]
    biases = [some(units[e.target], name=f"bias {n}") if biased else None for n, e in enumerate(graph.edges)]
    scales = [some(n, 1, 1, name=f"scale {node}") for node, n in enumerate(units)]
    shifts = [some(n, 1, 1, name=f"shift {node}") for node, n in enumerate(units)]
    masks = [torch.rand(units[e.target], 1, 1, generator=generator(n)).double() for n, e in enumerate(graph.edges)]
    head = some(*graph.head.weight_shape(units[-1], 2), name="head") / 5, some(2, name="head's bias")
    z, seen = some(3, 6, name="z"), list[Tensor]()

    def activate(node: int, x: Tensor) -> Tensor:
        return torch.relu(x * scales[node] + shifts[node])

    def mask(number: int, x: Tensor) -> Tensor:
        return x * masks[number] if masked else x

    images = run_graph(
        graph,
        z,
        weights,
        activate,
        head,
        biases=biases if biased else None,
        mask_edge=mask if masked else None,
        observe=seen.append,
    )
    expected, sums = plain(name, size, z, weights, activate, mask, head, biases)
    assert images.shape == (3, 2, size, size)
    assert images.std() > 0.1
    torch.testing.assert_close(images, expected)
    torch.testing.assert_close(seen, sums)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("classes", [1, 2])
def test_the_masked_generator_is_the_one_written_out(name: str, size: int, variant: Variant, classes: int) -> None:
    """DGMw multiplies weights. DGMa multiplies what leaves a node, and what enters a sum edge by edge."""
    graph = graph_of(name, size)
    net = MaskedGenerator(graph, 2, width=2, latent_dim=6, variant=variant, generator=generator(0)).double()
    net.begin(classes, generator=generator(1))
    own = net.double().task_params
    assert own is not None
    with torch.no_grad():
        for number, parameter in enumerate(own.parameters()):
            parameter.copy_(some(*parameter.shape, name=number))
        for number, layer in enumerate(net.plastic):
            layer.weight.copy_(some(*layer.weight.shape, name=f"layer {number}"))
    masks = [torch.rand(layer.embedding.shape, generator=generator(n)).double() for n, layer in enumerate(net.plastic)]
    z, told, seen = some(8, 6, name="z"), torch.arange(8) % classes, list[Tensor]()

    def activate(node: int, x: Tensor, masks: Sequence[Tensor] = masks) -> Tensor:
        norm = own.norms[node - 1]
        assert isinstance(norm, ClassNorm)
        mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True, correction=0)
        x = (x - mean) / (variance + EPSILON).sqrt()
        x = torch.relu(x * norm.scale[told][:, :, None, None] + norm.shift[told][:, :, None, None])
        if variant == "units":  # open as soon as one of the edges into the node is
            closed = torch.stack([1 - masks[n] for n, edge in enumerate(graph.edges) if edge.target == node]).prod(0)
            x = x * (1 - closed)[:, None, None]
        return x

    def mask(number: int, x: Tensor) -> Tensor:
        # in the residual network every node but those inside a block is read as it is
        is_sum = name == "residual" and graph.edges[number].target % 2 == 1
        return x * masks[number][:, None, None] if variant == "units" and is_sum else x

    pairs = zip(net.plastic, masks, strict=True)
    weights = [layer.weight * m if variant == "weights" else layer.weight for layer, m in pairs]
    images = net(z, told, masks, observe=seen.append)
    nobody = [None] * len(weights)
    expected, sums = plain(name, size, z, weights, activate, mask, (own.head, own.bias), nobody)
    assert images.shape == (8, 2, size, size)
    torch.testing.assert_close(images, expected)
    torch.testing.assert_close(seen, sums)
    assert not torch.allclose(images, net(z, told), atol=0.01), "the masks change the images"
    bare, opened = [layer.weight for layer in net.plastic], partial(activate, masks=[torch.ones_like(m) for m in masks])
    expected, _ = plain(name, size, z, bare, opened, _as_it_is, (own.head, own.bias), nobody)
    torch.testing.assert_close(net(z, told), expected)
    if classes == 2:
        assert not torch.allclose(images, net(z, 1 - told, masks), atol=0.01), "classes have terms of their own"


def _as_it_is(number: int, x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize("size", SIZES)
def test_a_branch_without_units_is_led_past_by_its_shortcut(size: int) -> None:
    graph = graph_of("residual", size)
    units = [6, *[3] * graph.nodes]
    empty = 4  # the node inside the second block
    units[empty] = 0
    weights = [
        some(*edge.operation.weight_shape(units[edge.source], units[edge.target]), name=number) / 3
        for number, edge in enumerate(graph.edges)
    ]
    assert [n for n, weight in enumerate(weights) if not weight.numel()] == [4, 5]
    biases = [some(units[e.target], name=f"bias {n}") for n, e in enumerate(graph.edges)]
    head, z = (some(1, 3, 3, 3, name="head"), some(1, name="bias")), some(3, 6, name="z")
    calls: list[int] = []
    seen: list[Tensor] = []

    def activate(node: int, x: Tensor) -> Tensor:
        calls.append(node)
        return torch.relu(x + node)

    images = run_graph(graph, z, weights, activate, head, biases=biases, observe=seen.append)
    assert calls == [node for node in range(1, graph.nodes + 1) if node != empty]
    assert [total.numel() == 0 for total in seen] == [node == empty for node in range(1, graph.nodes + 1)]
    # the same with a branch of one unit whose way out is closed, and no bias there
    whole: list[Tensor] = list(weights)
    whole[4], whole[5] = torch.ones(1, 3, 3, 3).double(), torch.zeros(3, 1, 3, 3).double()
    given: list[Tensor | None] = [*biases]
    given[4] = given[5] = None
    expected, _ = plain("residual", size, z, whole, activate, _as_it_is, head, given)
    torch.testing.assert_close(images, expected)


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_read_for_the_last_time_is_let_go(name: str) -> None:
    graph = graph_of(name, 32)
    net = MaskedGenerator(graph, 1, width=2, latent_dim=4, variant="weights", generator=generator(0))
    held: dict[int, weakref.ref[Tensor]] = {}

    def activate(node: int, x: Tensor) -> Tensor:
        past = {n for earlier in range(node) for n in graph.read_for_the_last_time[earlier] if n}
        alive = {n for n, tensor in held.items() if tensor() is not None}
        assert alive == set(range(1, node)) - past
        x = torch.relu(x)
        held[node] = weakref.ref(x)
        return x

    with torch.no_grad():
        weights = [layer.weight.detach() for layer in net.plastic]
        head = torch.zeros(graph.head.weight_shape(net.units[-1], 1)), torch.zeros(1)
        run_graph(graph, torch.randn(2, 4), weights, activate, head)
    assert len(held) == graph.nodes


def test_nodes_that_nobody_reads_any_more_by_hand() -> None:
    """From the drawing of the block: a node that a shortcut reads is kept until the sum."""
    assert graph_of("dcgan", 32).read_for_the_last_time == ((), (0,), (1,), (2,))
    assert graph_of("dcgan", 64).read_for_the_last_time == ((), (0,), (1,), (2,), (3,))
    residual = ((), (0,), (), (1, 2), (), (3, 4), (), (5, 6))
    assert graph_of("residual", 32).read_for_the_last_time == residual
    assert graph_of("residual", 64).read_for_the_last_time == (*residual, (), (7, 8))


def test_sides_by_hand() -> None:
    assert graph_of("dcgan", 32).sides == (1, 4, 8, 16)
    assert graph_of("dcgan", 64).sides == (1, 4, 8, 16, 32)
    assert graph_of("residual", 32).sides == (1, 4, 8, 8, 16, 16, 32, 32)
    assert graph_of("residual", 64).sides == (1, 4, 8, 8, 16, 16, 32, 32, 64, 64)
    assert graph_of("dcgan", 32).largest_node([4, 2, 1]) == 16 * 16
    assert graph_of("dcgan", 64).largest_node([200, 4, 2, 1]) == 200 * 4 * 4
    assert graph_of("residual", 64).largest_node([1] * 8 + [3]) == 3 * 64 * 64


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("size", SIZES)
def test_every_node_has_the_side_that_is_told(name: str, size: int) -> None:
    graph, seen = graph_of(name, size), list[Tensor]()
    net = MaskedGenerator(graph, 3, width=2, latent_dim=4, variant="units", generator=generator(0))
    net.begin(1, generator=generator(1))
    images = net(torch.randn(2, 4), torch.zeros(2, dtype=torch.int64), observe=seen.append)
    assert images.shape == (2, 3, size, size)
    assert [tuple(x.shape[1:]) for x in seen] == [
        (n, side, side) for n, side in zip(net.units, graph.sides[1:], strict=True)
    ]


def test_an_image_twice_as_large_takes_one_doubling_more() -> None:
    small, large = graph_of("dcgan", 32), graph_of("dcgan", 64)
    assert (small.image_size, large.image_size) == (32, 64)
    assert (small.name, large.name) == ("dcgan", "dcgan")
    assert (len(small.edges), len(large.edges)) == (3, 4)
    assert (small.multiples, large.multiples) == ((4, 2, 1), (8, 4, 2, 1))
    assert large.edges[:3] == small.edges
    assert large.head == small.head
    small, large = graph_of("residual", 32), graph_of("residual", 64)
    assert (len(small.edges), len(large.edges)) == (10, 13)
    assert (small.multiples, large.multiples) == ((1,) * 7, (1,) * 9)
    assert large.edges[:10] == small.edges
    assert graph_of("dcgan", 32) is graph_of("dcgan", 32)
    with pytest.raises(AssertionError):
        graph_of("dcgan", 48)
    assert START == 4


def test_edges_by_node_and_shapes_of_masks_by_hand() -> None:
    graph = graph_of("residual", 32)
    assert graph.incoming == ((), (0,), (1,), (2, 3), (4,), (5, 6), (7,), (8, 9))
    assert graph.outgoing == ((0,), (1, 3), (2,), (4, 6), (5,), (7, 9), (8,), ())
    assert [graph.is_sum(node) for node in range(1, 8)] == [True, False, True, False, True, False, True]
    units = [6, 1, 2, 3, 4, 5, 6, 7]
    assert graph.mask_shape(0, units, "weights") == (6, 1, 4, 4)
    assert graph.mask_shape(2, units, "weights") == (3, 2, 3, 3)
    assert graph.mask_shape(3, units, "weights") == (3, 1, 1, 1)
    assert graph.mask_shape(3, units, "units") == (3,)
    assert not any(graph_of("dcgan", 64).is_sum(node) for node in range(1, 5))


# ---------------------------------------------------------------- the critics' trunks

Trunk = ConvTrunk | ResidualTrunk | ResNet18
TRUNKS: dict[str, tuple[Callable[..., Trunk], int]] = {
    **{f"convnet {kernel}": (partial(ConvTrunk, kernel=kernel, norm="none"), 8 * 3 * 16) for kernel in (3, 4, 5)},
    "residual": (ResidualTrunk, 3),
    "resnet18": (partial(ResNet18, norm="none"), 8 * 3),
}
"""By name, how a trunk of width 3 is built for images of 64 x 64, and how many features it has."""


@pytest.mark.parametrize("name", TRUNKS)
@pytest.mark.parametrize("channels", [1, 3])
def test_trunks_at_64_pixels_and_their_way_back(name: str, channels: int) -> None:
    build, features = TRUNKS[name]
    shape: Shape = (channels, 64, 64)
    trunk = build(shape, 3, generator=generator(0)).double()
    for number, parameter in enumerate(trunk.parameters()):  # biases too: they say where the kinks lie
        nn.init.normal_(parameter, std=0.3, generator=generator(0, number))
    x = some(4, *shape, name="images").requires_grad_()
    y = trunk(x)
    assert trunk.features == features
    assert y.shape == (4, features)
    direction = some(4, features, name="direction")
    (expected,) = torch.autograd.grad((y * direction).sum(), x, create_graph=True)
    found = trunk.pull_back(x.detach(), direction)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(found, expected)
    weights = [parameter for parameter in trunk.parameters() if parameter.dim() == 4]
    toward = some(4, *shape, name="toward")
    known = torch.autograd.grad((expected * toward).sum(), weights)
    torch.testing.assert_close(torch.autograd.grad((found * toward).sum(), weights), known)


@pytest.mark.parametrize("kind", [ConvTrunk, ResNet18])
def test_the_classifiers_trunks_read_64_pixels(kind: type[ConvTrunk] | type[ResNet18]) -> None:
    trunk = kind((3, 64, 64), 4, generator=generator(0))
    assert trunk(torch.randn(2, 3, 64, 64, generator=generator(1))).shape == (2, trunk.features)
    assert trunk.features == (8 * 4 * 16 if kind is ConvTrunk else 8 * 4)
    assert trunk.training
