"""What binary masks leave of a network: the same images, the same gradients, and a way back that loses nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engram.masking.masks import Variant
from engram.nets.architectures import GRAPHS, VECTOR_GRAPHS, graph_of
from engram.nets.masked_generator import MaskedGenerator
from engram.nets.pruning import top_units
from engram.nets.reachability import prune, reachable_units
from engram.nets.subnetwork import Subnetwork, parameters_of
from engram.seeding import generator

VARIANTS: list[Variant] = ["weights", "units"]
Z, CLASSES = torch.randn(6, 8, generator=generator(9)), torch.arange(6) % 2


def network(variant: Variant, graph: str) -> tuple[MaskedGenerator, list[Tensor]]:
    """Two classes of a second task, whose masks reach into what a first one has reserved."""
    net = MaskedGenerator(
        graph_of(graph, 0 if graph in VECTOR_GRAPHS else 32),
        1,
        width=4,
        latent_dim=8,
        variant=variant,
        generator=generator(0),
    )
    net.begin(2, generator=generator(1))
    assert net.task_params is not None
    with torch.no_grad():
        for number, parameter in enumerate(net.task_params.parameters()):
            parameter.normal_(generator=generator(2, number))
        for number, layer in enumerate(net.plastic):
            layer.weight.normal_(std=0.5, generator=generator(3, number))
            layer.reserve_(torch.rand(layer.embedding.shape, generator=generator(4, number)) < 0.5)
    opened = [torch.rand(layer.embedding.shape, generator=generator(5, n)) < 0.6 for n, layer in enumerate(net.plastic)]
    shares = [torch.rand(n, generator=generator(7)) for n in net.units]
    return net, top_units(net.graph, opened, variant, shares, [n - 1 for n in net.units])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("graph", [*GRAPHS, *VECTOR_GRAPHS])
def test_images_and_gradients_are_those_of_the_masked_network(variant: Variant, graph: str) -> None:
    net, masks = network(variant, graph)
    assert net.task_params is not None
    with torch.no_grad():  # in DGMw a unit that nothing leads into would send its shift, which a tanh may hide
        for norm, units in zip(net.task_params.norms, reachable_units(net.graph, masks), strict=True):
            norm.get_parameter("shift").mul_(units)
    part = Subnetwork(net, masks)
    assert sum(part.units) < sum(net.units)
    whole, few = net(Z, CLASSES, [mask.float() for mask in masks]), part.net(Z, CLASSES)
    torch.testing.assert_close(few, whole, atol=1e-5, rtol=1e-4)
    toward = torch.randn(whole.shape, generator=generator(6))
    for images in (whole, few):
        torch.autograd.backward((images * toward).sum())
    net.gate_gradients(net.gates())
    part.net.gate_gradients(part.gates)
    opened = [*part.open, *[torch.tensor(True)] * len(parameters_of(net))]
    for (full, axes), (small, _), mask in zip(parameters_of(net), parameters_of(part.net), opened, strict=False):
        assert full.grad is not None
        assert small.grad is not None
        # the masked network has gradients of closed weights of DGMa too, behind units that are closed
        torch.testing.assert_close(small.grad, part.cut(full.grad, axes) * mask, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("graph", [*GRAPHS, *VECTOR_GRAPHS])
def test_what_it_learns_comes_back_and_nothing_else_moves(variant: Variant, graph: str) -> None:
    net, masks = network(variant, graph)
    before = [parameter.detach().clone() for parameter, _ in parameters_of(net)]
    part, free = Subnetwork(net, masks), net.free()
    part.write_back()
    for (parameter, _), old in zip(parameters_of(net), before, strict=True):
        assert torch.equal(parameter, old)
    with torch.no_grad():
        for layer, gate in zip(part.net.plastic, part.gates, strict=True):
            layer.weight.add_((gate != 0).float())
    part.write_back()
    for number, (layer, old, mask) in enumerate(zip(net.plastic, before, masks, strict=False)):
        changed = layer.weight != old
        assert changed.any()
        assert not (changed & ~free[number]).any(), "reserved"
        if variant == "weights":
            assert torch.equal(changed, mask & free[number])
    again = Subnetwork(net, masks)
    for (one, _), (other, _) in zip(parameters_of(again.net), parameters_of(part.net), strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


def test_a_node_of_a_single_unit_may_be_unreachable() -> None:
    net = MaskedGenerator(graph_of("residual", 32), 1, width=1, latent_dim=8, variant="units", generator=generator(0))
    net.begin(2, generator=generator(1))
    masks = [torch.ones(1, dtype=torch.bool) for _ in net.plastic]
    masks[1].zero_()  # the first block's branch; its shortcut leads on
    masks = prune(net.graph, masks, "units")
    part = Subnetwork(net, masks)
    assert part.units == [1, 0, 1, 1, 1, 1, 1]
    torch.testing.assert_close(part.net(Z, CLASSES), net(Z, CLASSES, [mask.float() for mask in masks]))
    part.write_back()
