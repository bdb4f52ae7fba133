"""The strict stream: what is readable when, and what is not."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engram.data.datasets import Dataset, load_dataset
from engram.data.stream import ClassStream, Task, class_order, partition
from engram.errors import ConfigError, StrictnessError


def test_every_image_appears_once_and_in_its_own_task(tiny: Dataset) -> None:
    train = tiny._train
    assert train is not None
    expected = sorted(zip(train.labels.tolist(), [i.numpy().tobytes() for i in train.images], strict=True))
    found: list[tuple[int, bytes]] = []
    for task in ClassStream(tiny, 1, order=[2, 0, 3, 1]):
        assert set(task.labels.tolist()) == set(task.classes)
        found += zip(task.labels.tolist(), [i.numpy().tobytes() for i in task.images], strict=True)
    assert sorted(found) == expected


def test_targets_are_places_in_order_of_appearance(tiny: Dataset) -> None:
    stream = ClassStream(tiny, 2, order=[2, 0, 3, 1])
    places = []
    for task in stream:
        assert torch.equal(torch.tensor(task.seen)[task.targets], task.labels)
        assert set(task.targets.tolist()) == set(task.class_indices)
        places.append((task.classes, task.seen, list(task.class_indices)))
    assert places == [((2, 0), (2, 0), [0, 1]), ((3, 1), (2, 0, 3, 1), [2, 3])]


def test_a_past_task_cannot_be_read(tiny: Dataset) -> None:
    tasks = iter(ClassStream(tiny, 1))
    first = next(tasks)
    assert len(first.images) == 32
    next(tasks)
    for attribute in ("images", "targets", "labels"):
        with pytest.raises(StrictnessError, match=r"task 1 .* is over"):
            getattr(first, attribute)
    assert "closed" in repr(first)


def test_the_last_task_closes_too(tiny: Dataset) -> None:
    last = list(ClassStream(tiny, 2))[-1]
    with pytest.raises(StrictnessError):
        _ = last.images


def test_a_past_tasks_memory_is_freed(tiny: Dataset) -> None:
    tasks = iter(ClassStream(tiny, 1))
    reference = weakref.ref(next(tasks).images)
    assert reference() is not None
    next(tasks)
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("hide", [lambda t: t.images[:3], lambda t: t.images.numpy(), lambda t: t.targets])
def test_pixels_hidden_in_a_learner_are_noticed(tiny: Dataset, hide: Any) -> None:
    tasks = iter(ClassStream(tiny, 1))
    hidden = hide(next(tasks))
    with pytest.raises(StrictnessError, match="still held"):
        next(tasks)
    assert len(hidden)


def test_a_copy_may_be_kept(tiny: Dataset) -> None:
    tasks = iter(ClassStream(tiny, 1))
    kept = next(tasks).images[:3].clone()
    assert next(tasks).index == 1
    assert len(kept) == 3


def test_a_cycle_around_the_images_is_not_mistaken_for_a_leak(tiny: Dataset) -> None:
    tasks = iter(ClassStream(tiny, 1))
    ring: list[Any] = [next(tasks).images]
    ring.append(ring)
    del ring
    assert next(tasks).index == 1


def reachable(root: object) -> list[object]:
    """Everything that attributes and items lead to, classes and modules aside."""
    found: dict[int, object] = {}
    queue = [root]
    while queue:
        thing = queue.pop()
        if id(thing) in found or isinstance(thing, type) or type(thing).__name__ in ("module", "function", "method"):
            continue
        found[id(thing)] = thing
        queue += [] if isinstance(thing, torch.Tensor) else gc.get_referents(thing)
    return list(found.values())


def test_a_task_leads_to_nothing_but_itself(tiny: Dataset) -> None:
    """No way from a task to the stream, to later tasks, to test images, or to how many are to come."""
    stream = ClassStream(tiny, 1, order=[3, 1, 0, 2])
    tasks = iter(stream)
    next(tasks)
    task = next(tasks)
    found = reachable(task)
    assert {id(t) for t in found if isinstance(t, torch.Tensor)} == {id(task.images), id(task.targets)}
    assert not any(isinstance(t, ClassStream | Dataset) for t in found)
    numbers = {t for t in found if isinstance(t, int) and not isinstance(t, bool)}
    assert numbers <= {task.index, *task.seen, *task.shape}


def test_the_training_images_are_taken_out_of_the_data_set(tiny: Dataset) -> None:
    ClassStream(tiny, 1)
    with pytest.raises(StrictnessError):
        tiny.take_train()


def test_a_stream_is_walked_once(tiny: Dataset) -> None:
    stream = ClassStream(tiny, 1)
    list(stream)
    with pytest.raises(StrictnessError, match="once"):
        iter(stream)


def test_skipping_leaves_the_later_tasks_as_they_were(npz: Path) -> None:
    whole = {t.index: t.images.clone() for t in ClassStream(load_dataset(f"npz:{npz}"), 1, order_seed=5)}
    stream = ClassStream(load_dataset(f"npz:{npz}"), 1, order_seed=5)
    stream.skip_to(2)
    rest = {t.index: t.images.clone() for t in stream}
    assert list(rest) == [2, 3]
    assert all(torch.equal(rest[i], whole[i]) for i in rest)


def test_cumulative_tasks_bring_all_classes_so_far(tiny: Dataset) -> None:
    stream = ClassStream(tiny, 1, order=[1, 0, 2, 3], cumulative=True)
    assert stream.sizes == [32, 64, 96, 128]
    for task in stream:
        assert set(task.labels.tolist()) == set(task.seen)
        assert len(task) == stream.sizes[task.index]


def test_partition_covers_the_order_whatever_the_sizes() -> None:
    order = list(range(23, 0, -1))
    for per_task in range(1, 24):
        for first in range(1, 24):
            parts = partition(order, per_task, first)
            assert [c for part in parts for c in part] == order
            assert len(parts[0]) == first
            assert all(len(part) == per_task for part in parts[1:-1])


def test_order_seeds_shuffle_and_repeat() -> None:
    names = tuple("abcdefghij")
    orders = [class_order(names, order_seed=seed) for seed in range(20)]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len(set(orders)) == 20
    assert class_order(names, order_seed=3) == orders[3]
    assert orders[0] == (7, 2, 4, 9, 1, 3, 8, 0, 5, 6), "the orders of runs that there are"
    assert class_order(names) == tuple(range(10))


def test_an_order_goes_by_names_then_by_numbers() -> None:
    assert class_order(("cat", "dog", "cow"), order=["cow", "0", "dog"]) == (2, 0, 1)
    assert class_order(("3", "1", "0"), order=["0", "3", "1"]) == (2, 0, 1), "a name goes before a number"
    assert class_order(("3", "1", "0"), order=[0, 2, 1]) == (0, 2, 1), "a number is never a name"
    assert class_order(("3", "1", "0"), order=["2", 0]) == (2, 0), "no name, hence a number"
    assert class_order(("pen", "pen", "mug"), order=["1", "pen"]) == (1, 0), "a name that two classes have: the first"
    for word in ("hrose", "3", "-1", "1.0", "", "²"):
        with pytest.raises(ConfigError, match=rf"unknown class '{word}'.*Known: cat, dog, horse"):
            class_order(("cat", "dog", "horse"), order=["cat", word])
    with pytest.raises(ConfigError, match="did you mean 'horse'"):
        class_order(("cat", "dog", "horse"), order=["hrose"])
    with pytest.raises(ConfigError, match="class dog twice"):
        class_order(("cat", "dog", "horse"), order=["dog", "cat", "1"])


def test_a_stream_takes_names(npz: Path) -> None:
    named = ClassStream(load_dataset(f"npz:{npz}"), 1, order=["3", "1"])
    numbered = ClassStream(load_dataset(f"npz:{npz}"), 1, order=[3, 1])
    assert named.order == numbered.order == (3, 1)
    for one, other in zip(named, numbered, strict=True):
        assert one.class_names == other.class_names
        assert torch.equal(one.images, other.images)


def test_a_task_knows_the_shape_of_its_images(npz: Path) -> None:
    for size in (32, 64):
        tasks = list(ClassStream(load_dataset(f"npz:{npz}", image_size=size), 2))
        assert [task.shape for task in tasks] == [(1, size, size)] * 2, "also when it is over"


def test_a_stream_of_one_class(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", images=np.zeros((5, 4, 4), np.uint8), labels=np.zeros(5, int))
    stream = ClassStream(load_dataset(f"npz:{tmp_path / 'one.npz'}"))
    assert stream.tasks == ((0,),)
    assert [len(task) for task in stream] == [4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": [0, 1, 7]}, "class 7"),
        ({"order": [0, -1]}, "class -1"),
        ({"order": [0, 1, 0]}, "class 0 twice"),
        ({"order": ["0", 1, "1"]}, "class 1 twice"),
        ({"order": ["0", "7"]}, "unknown class '7'"),
        ({"order": []}, "empty"),
        ({"order": [0], "order_seed": 1}, "not both"),
        ({"classes_per_task": 5}, "classes_per_task must lie between 1 and the 4 classes, not 5"),
        ({"classes_per_task": 0}, "classes_per_task"),
        ({"first_task": 9}, "first_task"),
    ],
)
def test_bad_streams_are_refused(tiny: Dataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClassStream(tiny, **options)
    assert len(tiny.take_train().labels) == 128, "nothing was taken"


def test_an_order_may_leave_classes_out(tiny: Dataset) -> None:
    tasks: list[Task] = list(ClassStream(tiny, 1, order=[3, 1]))
    assert [t.classes for t in tasks] == [(3,), (1,)]
