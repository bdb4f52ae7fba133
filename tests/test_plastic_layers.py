"""Masked layers against torch's own, and the promise that reserved weights do not move by a bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engram.masking.growth import leading_block
from engram.masking.masks import Layout, Usage, Variant
from engram.nets.graph import Operation
from engram.nets.plastic_layers import PlasticLayer, laid_out, mask_units

LAYOUTS: tuple[Layout, ...] = ("linear", "conv", "conv_transpose")
VARIANTS: tuple[Variant, ...] = ("weights", "units")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def operation(layout: Layout, kernel: int = 4) -> Operation:
    return Operation(layout) if layout == "linear" else Operation(layout, kernel, stride=2, padding=1)


def build(layout: Layout, variant: Variant, n_in: int = 5, n_out: int = 7, kernel: int = 4) -> PlasticLayer:
    return PlasticLayer(operation(layout, kernel), n_in, n_out, variant=variant, generator=rng())


def inputs(layout: Layout, n_in: int = 5, batch: int = 3) -> Tensor:
    shape = (batch, n_in) if layout == "linear" else (batch, n_in, 6, 6)
    return torch.randn(shape, generator=rng(1))


def computed(layer: PlasticLayer, x: Tensor, mask: Tensor, kernel: int = 4) -> Tensor:
    """What the layer gives with a mask, before normalisation."""
    return operation(layer.layout, kernel)(x, layer.opened(mask))


def reference(layout: Layout, x: Tensor, weight: Tensor) -> Tensor:
    if layout == "linear":
        return F.linear(x, weight)
    function: Callable[..., Tensor] = F.conv2d if layout == "conv" else F.conv_transpose2d
    return function(x, weight, stride=2, padding=1)


def some(shape: torch.Size, seed: int) -> Tensor:
    return torch.rand(shape, generator=rng(seed)) < 0.5


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.detach().contiguous().view(torch.int32), b.detach().contiguous().view(torch.int32))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_are_multiplied_by_their_mask_soft_or_binary(layout: Layout) -> None:
    layer, x = build(layout, "weights"), inputs(layout)
    soft = torch.rand(layer.weight.shape, generator=rng(2))
    torch.testing.assert_close(computed(layer, x, soft), reference(layout, x, layer.weight * soft))
    binary = some(layer.weight.shape, 2)
    torch.testing.assert_close(computed(layer, x, binary), reference(layout, x, layer.weight * binary.float()))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_units_are_masked_after_the_layer_not_in_it(layout: Layout) -> None:
    layer, x = build(layout, "units"), inputs(layout)
    mask = torch.rand(7, generator=rng(2))
    y = computed(layer, x, mask)
    torch.testing.assert_close(y, reference(layout, x, layer.weight))
    out = layer.mask_output(y, mask)
    for c in range(7):
        torch.testing.assert_close(out[:, c], y[:, c] * mask[c])


def test_a_closed_unit_sends_exactly_zero_whatever_normalisation_adds() -> None:
    layer, x = build("conv_transpose", "units"), inputs("conv_transpose")
    norm = torch.nn.BatchNorm2d(7)
    torch.nn.init.constant_(norm.bias, -3.0)
    mask = torch.tensor([True, False, True, True, False, True, True])
    y = layer.mask_output(F.leaky_relu(norm(computed(layer, x, mask)), 0.2), mask)
    assert torch.equal(y[:, ~mask].view(torch.int32), torch.zeros_like(y[:, ~mask]).view(torch.int32))  # +0
    assert (y[:, mask] != 0).any(dim=(0, 2, 3)).all()


def test_for_weights_the_output_is_left_alone() -> None:
    layer, x = build("linear", "weights"), inputs("linear")
    assert layer.mask_output(x, layer.binary_mask()) is x


def test_a_binary_mask_shuts_out_even_what_is_not_finite() -> None:
    layer = build("linear", "weights", 2, 2)
    layer.weight.data = torch.tensor([[1.0, torch.nan], [torch.inf, 2.0]])
    y = computed(layer, torch.tensor([[3.0, 5.0]]), torch.tensor([[True, False], [False, True]]))
    assert y.tolist() == [[3.0, 10.0]]
    units = mask_units(torch.tensor([[3.0, torch.nan, torch.inf]]), torch.tensor([True, False, False]))
    assert units.tolist() == [[3.0, 0.0, 0.0]]


def test_a_fresh_layer_is_half_open_while_training_and_closed_when_binarised() -> None:
    layer = build("conv", "weights")
    assert (layer.soft_mask(100.0) == 0.5).all()
    assert not layer.binary_mask().any()
    assert not layer.reserved.any()
    assert torch.equal(layer.weight, build("conv", "weights").weight)  # repeats under its seed


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_embedding_takes_part_in_training(layout: Layout, variant: Variant) -> None:
    layer, x = build(layout, variant), inputs(layout)
    mask = layer.soft_mask(2.0)
    torch.autograd.backward(layer.mask_output(computed(layer, x, mask), mask).square().sum())
    assert layer.embedding.grad is not None
    before = layer.embedding.grad.clone()
    assert (before != 0).any()
    layer.compensate_gradients(s=2.0, s_max_i=8.0)
    # at e = 0 both hyperbolic cosines are 1: what remains is s_max_i / s
    torch.testing.assert_close(layer.embedding.grad, 4 * before)
    torch.nn.init.constant_(layer.embedding, 7.5)
    layer.clamp_()
    assert (layer.embedding == 6).all()


ADAMS: list[dict[str, Any]] = [{"foreach": False}, {"foreach": True}, {"fused": True}]


def train(layer: PlasticLayer, layout: Layout, adam: torch.optim.Adam, reserved_in: Tensor | None) -> None:
    target = torch.randn(1, generator=rng(9))
    for step in range(6):
        adam.zero_grad()
        mask = layer.soft_mask(1.0 + step)
        y = layer.mask_output(computed(layer, inputs(layout), mask), mask)
        torch.autograd.backward((y - target).square().mean())
        layer.gate_gradients(layer.gate(reserved_in))
        layer.compensate_gradients(1.0 + step, 10.0)
        adam.step()
        layer.clamp_()


@pytest.mark.parametrize("options", ADAMS, ids=lambda o: next(iter(o)) + str(next(iter(o.values()))))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_reserved_weights_do_not_move_by_a_bit(layout: Layout, variant: Variant, options: dict[str, Any]) -> None:
    layer = build(layout, variant)
    layer.reserve_(some(layer.embedding.shape, 3))
    reserved_in = some(torch.Size([5]), 4)
    before = layer.weight.detach().clone()
    train(layer, layout, torch.optim.Adam(layer.parameters(), lr=0.01, **options), reserved_in)

    n_closed = 0
    transposed = layout == "conv_transpose"
    for i in range(5):
        for j in range(7):
            at = (i, j) if transposed else (j, i)
            if variant == "weights":
                closed = layer.reserved[at]
            else:
                closed = (reserved_in[i] & layer.reserved[j]).expand(before[at].shape)
            old, new = before[at], layer.weight.detach()[at]
            assert same_bits(old[closed], new[closed])
            assert (old[~closed] != new[~closed]).all()  # and what is free does learn
            n_closed += int(closed.sum())
    assert 0 < n_closed < before.numel()


def test_noise_counts_as_reserved() -> None:
    layer = build("conv_transpose", "units")
    layer.reserve_(torch.tensor([True, False] * 3 + [True]))
    layer.weight.grad = torch.ones_like(layer.weight)
    layer.gate_gradients(layer.gate())
    for j in range(7):
        assert (layer.weight.grad[:, j] == (0 if j % 2 == 0 else 1)).all()


def test_an_infinite_gradient_does_not_pass_the_gate() -> None:
    layer = build("linear", "weights")
    layer.reserve_(torch.ones_like(layer.reserved))
    layer.weight.grad = torch.full_like(layer.weight, torch.inf)
    layer.gate_gradients(layer.gate())
    assert (layer.weight.grad == 0).all()


@pytest.mark.parametrize("how", ["momentum", "decay"])
def test_why_the_optimiser_must_start_fresh_and_without_decay(how: str) -> None:
    layer = build("linear", "weights")
    adam = torch.optim.Adam(layer.parameters(), lr=0.01, weight_decay=0.1 if how == "decay" else 0.0)
    if how == "momentum":
        train(layer, "linear", adam, None)
    layer.reserve_(torch.ones_like(layer.reserved))
    before = layer.weight.detach().clone()
    train(layer, "linear", adam, None)
    assert not torch.equal(layer.weight.detach(), before)


@pytest.mark.parametrize("kernel", [1, 3, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_old_mask_computes_the_same_bits_after_growth_and_training(
    layout: Layout, variant: Variant, kernel: int
) -> None:
    n_in, n_out = 37, 21  # odd sizes, where the order of a sum depends most on its length
    layer = build(layout, variant, n_in, n_out, kernel)
    x = inputs(layout, n_in, batch=8)
    mask = some(layer.embedding.shape, 3)
    layer.reserve_(mask)

    def images() -> Tensor:
        """As an engram computes: with the leading block of today's weight, closed where its mask is."""
        block = leading_block(layer.weight.detach(), n_in, n_out, layout)
        weight = block.masked_fill(~mask, 0) if variant == "weights" else block
        return layer.mask_output(operation(layout, kernel)(x, laid_out(weight)), mask)

    before = images()
    assert same_bits(before, layer.mask_output(computed(layer, x, mask, kernel), mask))
    for _ in range(2):
        layer.grow_(11, 6, generator=rng(4))
        layer.weight.grad = torch.ones_like(layer.weight)
        reserved_in = torch.arange(layer.size().inputs) < n_in
        layer.gate_gradients(layer.gate(reserved_in))
        torch.optim.SGD([layer.weight], lr=1.0).step()
    assert (layer.size().inputs, layer.size().units) == (n_in + 22, n_out + 12)
    assert same_bits(before, images())


def test_growing_makes_new_parameters_and_closes_them() -> None:
    layer = build("conv_transpose", "weights")
    torch.nn.init.constant_(layer.embedding, 1.0)
    opened = some(layer.reserved.shape, 3)
    n = int(opened.sum())
    assert layer.reserve_(opened) == Usage(n, 0, opened.numel() - n)
    assert layer.reserve_(opened) == Usage(0, n, opened.numel() - n)
    old = layer.weight
    layer.grow_(2, 3, generator=rng(1))
    assert layer.weight is not old
    assert layer.weight.requires_grad
    assert layer.weight.shape == layer.embedding.shape == layer.reserved.shape == (7, 10, 4, 4)
    assert (layer.embedding == 0).all()
    assert int(layer.reserved.sum()) == n


@pytest.mark.parametrize("variant", VARIANTS)
def test_size_remembers_the_capacity_at_the_start_through_growth_and_storage(variant: Variant) -> None:
    layer = build("conv", variant)
    start = 5 * 7 * 16 if variant == "weights" else 7
    layer.reserve_(some(layer.reserved.shape, 3))
    layer.grow_(1, 2, generator=rng(1))
    restored = build("conv", variant, 6, 9)
    restored.load_state_dict(layer.state_dict())
    assert restored.size() == layer.size()
    size = layer.size()
    assert (size.inputs, size.units, size.area, size.start_free) == (6, 9, 16, start)
    assert size.reserved == int(some(torch.Size([7, 5, 4, 4]) if variant == "weights" else torch.Size([7]), 3).sum())
