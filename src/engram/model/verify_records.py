"""Whether a run folder's files belong together: the records, the configuration and the checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from engram.data.datasets import Check
from engram.data.stream import class_order, partition
from engram.experiment import checkpoint
from engram.experiment.files import CONFIG, read_json
from engram.experiment.folder import Origin, read_origin
from engram.experiment.records import NAME, Record
from engram.methods.registry import find_method
from engram.model.parts import MODEL

OLDER = "written before checkpoints named hashes of records and configuration"


def records_check(folder: Path, saved: checkpoint.Checkpoint) -> Check:
    """Records, configuration and checkpoint, each against the others."""
    payload, meta = (folder / NAME).read_bytes(), saved.meta
    offset = meta["records"]
    wrong = []
    if not isinstance(offset, int) or len(payload) < offset or payload[offset - 1 : offset] != b"\n":
        wrong.append(f"the checkpoint was saved behind {offset} bytes of records, where no line ends")
        offset = payload.rfind(b"\n") + 1
    records = [json.loads(line) for line in payload[:offset].splitlines()]
    wrong += [*_of_start(records, read_origin(folder)), *_of_tasks(records, meta)]
    at_end = not within_task(saved)
    states = [record["state"] for record in records if record["kind"] == "task"]
    if at_end and states and states[-1] != checkpoint.fingerprint(saved.state):
        wrong.append("the checkpoint holds another state than the one that the last task ended with")
    before = checkpoint.load_before(folder)
    if before is not None:
        wrong += _of_before(before, payload[:offset])
    hashes = _hashes(folder, saved, payload[:offset])
    wrong += [
        f"{name} is not what it was when the checkpoint was saved" for name, same in hashes.items() if same is False
    ]
    if wrong:
        return Check("records", False, "; ".join(wrong))
    beyond = payload[offset:].count(b"\n")
    said = [f"{len(records)} lines up to the checkpoint"]
    if beyond:
        said.append(f"{beyond} lines beyond it, which the run writes anew when it goes on")
    said.append("seed, method, data, class order and tasks as in config.json")
    if before is not None:
        said.append("and so with the checkpoint before")
    unchecked = []
    if states and at_end:
        said.append(f"the state's hash is that of task {len(states)}")
    else:
        unchecked.append("the state's hash: the checkpoint lies within a task, and no record tells it")
    if missing := [name for name, same in hashes.items() if same is None]:
        unchecked.append(f"the hashes of {' and '.join(missing)}: {OLDER}")
    else:
        said.append("their bytes and those of config.json are those that the checkpoint names")
    if unchecked:
        return Check("records", None, f"{'; '.join(unchecked)}; checked: {', '.join(said)}")
    return Check("records", True, ", ".join(said))


def within_task(saved: checkpoint.Checkpoint) -> bool:
    """Whether a checkpoint was saved before its task was done."""
    return bool(saved.meta.get("within_task", saved.meta.get("epoch")))


def _of_before(before: checkpoint.Checkpoint, payload: bytes) -> Iterator[str]:
    """The checkpoint before the last one against the beginning of the records."""
    offset, sha256 = before.meta["records"], before.meta.get("records_sha256")
    if not isinstance(offset, int) or not 0 < offset <= len(payload) or payload[offset - 1 : offset] != b"\n":
        yield f"the checkpoint before was saved behind {offset} bytes of records, where no line ends"
        return
    if sha256 is not None and sha256 != hashlib.sha256(payload[:offset]).hexdigest():
        yield f"{NAME} is not what it was when the checkpoint before was saved"
    records = [json.loads(line) for line in payload[:offset].splitlines()]
    ends = [record for record in records if record["kind"] == "task"]
    if len(ends) != before.meta["task"] - records[0].get("start", 0):
        yield f"the checkpoint before knows of {before.meta['task']} tasks, the records up to it of {len(ends)}"
    if ends and not within_task(before) and ends[-1]["state"] != checkpoint.fingerprint(before.state):
        yield f"the checkpoint before holds another state than the one that task {len(ends)} ended with"


def _hashes(folder: Path, saved: checkpoint.Checkpoint, prefix: bytes) -> dict[str, bool | None]:
    """By name, whether the bytes are those that the checkpoint was saved with; None where it does not say."""
    pointer = read_json(folder / checkpoint.POINTER)
    known = {
        NAME: (saved.meta.get("records_sha256"), prefix),
        CONFIG: (pointer["body"].get("config_sha256"), (folder / CONFIG).read_bytes()),
    }
    return {name: None if sha is None else sha == hashlib.sha256(it).hexdigest() for name, (sha, it) in known.items()}


def _of_start(records: Sequence[Record], origin: Origin) -> Iterator[str]:
    """The `run` record against the configuration."""
    head, config = records[0], origin.config
    if head["kind"] != "run" or any(record["kind"] == "run" for record in records[1:]):
        yield "the records do not begin with the one and only `run` record"
        return
    method = find_method(config.method)
    wanted: dict[str, Any] = {
        "method": config.method,
        "seed": config.seed,
        "order_seed": config.order_seed,
        "strict": method.is_strict(config.settings),
        "bound": method.bound,
        "dataset": origin.data,
    }
    if config.dataset != MODEL:  # a model that goes on learning is told its classes by the data
        own, names = config.stream, head["class_names"]
        order = class_order(names, order=own.order, order_seed=config.order_seed if own.order is None else None)
        wanted["tasks"] = [list(task) for task in partition(order, own.classes_per_task, own.first_task)]
    for name, value in wanted.items():
        if head.get(name) != value:
            yield f"{name} is {head.get(name)} in the records and {value} in {CONFIG}"


def _of_tasks(records: Sequence[Record], meta: dict[str, Any]) -> Iterator[str]:
    """Every task has its evaluation and its end, each once and in order, as many as the checkpoint knows."""
    start = records[0].get("start", 0)
    wanted = list(range(start, meta["task"]))
    for kind in ("evaluation", "task"):
        found = [record["task"] for record in records if record["kind"] == kind]
        if found != wanted:
            yield f"`{kind}` records tell of tasks {_counted(found)}, the checkpoint of {_counted(wanted)}"
    epochs: dict[int, list[int]] = {}
    for record in records:
        if record["kind"] == "epoch":
            epochs.setdefault(record["task"], []).append(record["epoch"])
    for task, found in epochs.items():
        if found != list(range(len(found))):
            yield f"epochs of task {task + 1} are missing or told twice"


def _counted(tasks: Sequence[int]) -> str:
    return ", ".join(str(task + 1) for task in tasks) or "none"
