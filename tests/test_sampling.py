"""Drawing in batches: shapes, rounding, who is asked for which rows; and the moving average by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from engram.context import Shape
from engram.gan import sampling
from engram.gan.average import WeightAverage
from engram.gan.sampling import SAMPLE_BATCH, batch_that_fits, sample_images
from engram.nets.architectures import graph_of
from engram.seeding import generator

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 32, 32), (1, 64, 64), (3, 64, 64)])
@pytest.mark.parametrize(
    ("count", "batch_size", "rows"),
    [
        (10, 4, [(0, 4), (4, 8), (8, 10)]),
        (8, 4, [(0, 4), (4, 8)]),
        (3, 256, [(0, 3)]),
        (2, 1, [(0, 1), (1, 2)]),
        (0, 4, []),
    ],
)
def test_every_row_is_drawn_once_in_batches(
    shape: Shape, count: int, batch_size: int, rows: list[tuple[int, int]]
) -> None:
    asked: list[tuple[int, int]] = []
    noise: list[Tensor] = []

    def draw(z: Tensor, some: slice) -> Tensor:
        asked.append((some.start, some.stop))
        noise.append(z.clone())
        assert z.shape == (some.stop - some.start, 5)
        assert not torch.is_grad_enabled()
        numbers = torch.arange(some.start, some.stop) / 127.5 - 1  # each image has the value of its row
        return numbers[:, None, None, None].expand(-1, *shape).clone()

    draws = generator(0, "draws")
    images = sample_images(
        draw, count, shape, latent_dim=5, batch_size=batch_size, device=CPU, generator=generator(0, "draws")
    )
    assert asked == rows
    assert images.shape == (count, *shape)
    assert images.dtype == torch.uint8
    assert images.is_contiguous()
    for row in range(count):
        assert (images[row] == row).all()
    for z, (start, stop) in zip(noise, rows, strict=True):
        assert torch.equal(z, torch.randn(stop - start, 5, generator=draws))


def test_values_are_rounded_to_the_nearest_level() -> None:
    values = torch.cat([torch.tensor([-1.0, 1.0]), torch.linspace(-1, 1, 1022)])
    images = sample_images(
        lambda z, _: values.view(1, 1, 32, 32).clone(),
        1,
        (1, 32, 32),
        latent_dim=3,
        batch_size=4,
        device=CPU,
        generator=generator(0),
    )
    found = images.flatten().tolist()
    assert found[:2] == [0, 255]
    for value, level in zip(values.double().tolist(), found, strict=True):
        assert abs((value + 1) * 127.5 - level) <= 0.5 + 1e-4
    assert set(found) == set(range(256))


def test_images_are_alike_whatever_the_batch_size() -> None:
    """In distribution: the noise itself depends on how it is cut up."""
    found = []
    for batch_size in (7, 256):
        images = sample_images(
            lambda z, _: torch.tanh(z[:, :1, None, None]).expand(-1, 1, 32, 32).clone(),
            4000,
            (1, 32, 32),
            latent_dim=4,
            batch_size=batch_size,
            device=CPU,
            generator=generator(3),
        )
        found.append(images[:, 0, 0, 0].double())
    for one, other in zip(found[0].sort().values[::400], found[1].sort().values[::400], strict=True):
        assert abs(one - other) < 12
    again = sample_images(
        lambda z, _: torch.tanh(z[:, :1, None, None]).expand(-1, 1, 32, 32).clone(),
        4000,
        (1, 32, 32),
        latent_dim=4,
        batch_size=256,
        device=CPU,
        generator=generator(3),
    )
    assert torch.equal(again[:, 0, 0, 0].double(), found[1]), "the same draws, the same images"


def test_how_many_images_fit_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of("dcgan", 32)  # sides 4, 8, 16
    assert batch_that_fits(graph, [48, 24, 12], CPU) == SAMPLE_BATCH == 256
    assert batch_that_fits(graph, [400, 200, 100], CPU) == 2**21 // (100 * 16 * 16) == 81
    assert batch_that_fits(graph, [10_000, 1, 1], CPU) == 2**21 // (10_000 * 4 * 4) == 13
    assert batch_that_fits(graph_of("dcgan", 64), [800, 400, 200, 100], CPU) == 2**21 // (100 * 32 * 32) == 20
    assert batch_that_fits(graph_of("residual", 64), [16] * 9, CPU) == 2**21 // (16 * 64 * 64) == 32
    assert batch_that_fits(graph, [10**6] * 3, CPU) == 1, "one at least"
    assert batch_that_fits(graph, [0, 0, 0], CPU) == 256
    assert batch_that_fits(graph, [800, 400, 400], torch.device("cuda")) == 2**24 // (400 * 16 * 16) == 163
    monkeypatch.setitem(sampling.LARGEST_NODE, "cpu", 16 * 16)
    assert batch_that_fits(graph, [1, 1, 1], CPU) == 1


# ---------------------------------------------------------------- the moving average


def test_the_average_by_hand() -> None:
    weights = [nn.Parameter(torch.tensor([1.0, -2.0])), nn.Parameter(torch.tensor([[4.0]]))]
    average = WeightAverage(0.75)
    average.start(weights)
    with torch.no_grad():
        weights[0].copy_(torch.tensor([5.0, -2.0]))
        weights[1].fill_(0.0)
        average.update(weights)  # 0.75 * 1 + 0.25 * 5 = 2; 0.75 * 4 = 3
        weights[0].copy_(torch.tensor([6.0, 2.0]))
        weights[1].fill_(7.0)
        average.update(weights)  # 0.75 * 2 + 0.25 * 6 = 3; 0.75 * -2 + 0.25 * 2 = -1; 0.75 * 3 + 0.25 * 7 = 4
    assert [p.tolist() for p in weights] == [[6.0, 2.0], [[7.0]]], "the weights themselves go on"
    assert not any(mean.requires_grad for mean in average.means)
    average.put(weights)
    assert [p.tolist() for p in weights] == [[3.0, -1.0], [[4.0]]]
    assert average.means == []
    average.put(weights)
    assert [p.tolist() for p in weights] == [[3.0, -1.0], [[4.0]]], "put once"


def test_a_weight_that_is_held_keeps_its_bits() -> None:
    weight = nn.Parameter(torch.randn(1000, generator=generator(0)))
    before, average = weight.detach().clone(), WeightAverage(0.99)
    average.start([weight])
    for _ in range(20):
        average.update([weight])
    average.put([weight])
    assert torch.equal(weight, before)


def test_no_average_is_none() -> None:
    weight, average = nn.Parameter(torch.ones(3)), WeightAverage(0.0)
    average.start([weight])
    with torch.no_grad():
        weight.fill_(2.0)
    average.update([weight])
    assert average.state() == {}
    average.put([weight])
    assert weight.tolist() == [2.0] * 3


def test_the_average_goes_through_a_checkpoint_and_must_fit() -> None:
    shape, order = (3, 2, 4, 4), torch.channels_last
    weights = [nn.Parameter(torch.randn(shape, generator=generator(0)).contiguous(memory_format=order))]
    average = WeightAverage(0.9)
    average.start(weights)
    with torch.no_grad():
        weights[0].add_(1)
    average.update(weights)
    saved = {name: mean.clone(memory_format=torch.contiguous_format) for name, mean in average.state().items()}
    restored = WeightAverage(0.9)
    restored.load(saved, weights)
    assert torch.equal(restored.means[0], average.means[0])
    assert restored.means[0].stride() == weights[0].stride(), "in the order of its parameter"
    assert not restored.means[0].requires_grad
    for one in (average, restored):
        one.update(weights)
    assert torch.equal(restored.means[0], average.means[0])
    with pytest.raises(ValueError, match="argument 2 is longer"):
        average.update([*weights, *weights])
    empty = WeightAverage(0.9)
    empty.load({}, weights)
    assert empty.means == []
