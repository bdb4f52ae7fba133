"""A run: a request carried out in a folder, by the loop over tasks (loop.py)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engram import distributed
from engram.config import Config, require
from engram.data.datasets import load_dataset
from engram.data.stream import ClassStream
from engram.errors import RunError
from engram.evaluation.evaluate import require_test_images
from engram.experiment.board import Board, NoBoard
from engram.experiment.folder import (
    Origin,
    describe_data,
    is_blank,
    locked,
    note_environment,
    read_origin,
    require_blank,
    write_origin,
)
from engram.experiment.loop import Stop, TaskLoop
from engram.experiment.machine import prepare, threads_worth_having
from engram.experiment.progress import Display
from engram.experiment.request import Request, default_folder
from engram.experiment.restore import restored
from engram.methods import budget
from engram.methods.registry import find_method
from engram.opening import opening
from engram.presets import lighter_presets


def run(
    dataset: str | None = None,
    method: str | None = None,
    *,
    preset: str | None = None,
    seed: int | None = None,
    order_seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    tensorboard: bool = False,
) -> Path:
    """Train one method on one stream of tasks, or go on with a run; returns its folder.

    `settings`: `group.field` -> value. `engram run` on the command line does the same, and shows how it is getting on.

    >>> import tempfile
    >>> from engram import Model, run
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = run("digits", "finetune", preset="fast", settings={"stream.order": "3,5"}, out=f"{place}/run")
    ...     Model.open(folder).classes
    ('3', '5')
    """
    request = Request(dataset, method, preset, seed, order_seed, settings or {})
    return execute(request, None if out is None else Path(out), resume=resume, tensorboard=tensorboard)


def execute(
    request: Request,
    folder: Path | None = None,
    *,
    resume: bool = False,
    tensorboard: bool = False,
    display: Display | None = None,
    stop: Stop | None = None,
) -> Path:
    """Carry a request out; returns the run's folder.

    Nothing is written before the request is known to be good. `resume` in a folder that holds nothing yet starts the
    run, where the request says which: a run killed in its very first moments is resumed like any other.
    """
    if folder is None:
        folder = default_folder(request.config())
    if resume and not (is_blank(folder) and request.dataset and request.method):
        with opening(folder):
            known = read_origin(folder)
        config = request.over(known.config, folder)
    else:
        require_blank(folder)
        known, config = None, request.config()
    _require_rows(config, distributed.launched().size)
    device = prepare(config.runtime, most=threads_worth_having(config))
    own = config.stream
    dataset = load_dataset(config.dataset, holdout=own.holdout, image_size=own.image_size, development=own.development)
    origin = Origin(config, describe_data(dataset))
    if known is not None and known.data != origin.data:
        raise RunError(
            f"{folder} was started on other images ({known.data}, not {origin.data}); "
            "bring the old data back, or start anew with another --out"
        )
    chosen = find_method(config.method)
    budget.require(config, dataset.shape, device, training=True)
    learner = chosen.learner(config, dataset.shape, device)
    stream = ClassStream(
        dataset,
        config.stream.classes_per_task,
        first_task=config.stream.first_task,
        order=config.stream.order,
        order_seed=config.order_seed if config.stream.order is None else None,
        validation=config.stream.validation,
        cumulative=chosen.given_all_data,
    )
    require_test_images(dataset, stream.order)
    with distributed.joined(device, config.runtime.wait_seconds) as world:
        if world.rank:
            loop = TaskLoop(folder, config, learner, stop=stop)
            loop.go(dataset, stream, restored(folder, loop, stream), [])
            return folder
        board: Board | NoBoard = Board(folder) if tensorboard else NoBoard()
        with locked(folder):
            if known is None:
                require_blank(folder)
                write_origin(folder, origin)
            loop = TaskLoop(folder, config, learner, display=display, board=board, stop=stop)
            offset = restored(folder, loop, stream)
            notes = list(dataset.notes) if known is None else []
            with opening(folder):
                moved = note_environment(folder, device)
            notes += [f"since the start, {line}; the last bits may differ" for line in moved]
            lighter = lighter_presets(config) if known is None and device.type == "cpu" else []
            notes += [f"these sizes are meant for a GPU; for a CPU there is --preset {name}" for name in lighter]
            loop.go(dataset, stream, offset, notes)
    return folder


def _require_rows(config: Config, processes: int) -> None:
    """A row of every batch for each process."""
    sizes = {"classifier.batch_size": config.classifier.batch_size, **config.settings.batch_sizes}
    for name, size in sizes.items():
        require(size >= processes, name, size, f"{processes} or more, one for each process")
