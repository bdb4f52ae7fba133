"""A run folder in a few facts, from its records alone. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engram.experiment.records import read_records
from engram.opening import opening


@dataclass(frozen=True)
class Summary:
    """How far a run has come, and how well it did."""

    dataset: str
    method: str
    seed: int
    tasks: int
    """How many the stream has."""
    accuracy: dict[int, float]
    """Classes seen -> A_t, after each task that is done."""
    seconds: float
    """Spent learning, over the tasks that are done."""
    memory: int | None
    """Bytes that the method keeps of the past after the last task; None where it does not say."""
    failure: str | None
    """Why it stopped, if it failed."""

    @property
    def done(self) -> bool:
        return len(self.accuracy) == self.tasks

    @property
    def last(self) -> float | None:
        """The newest A_t."""
        return list(self.accuracy.values())[-1] if self.accuracy else None


def summarise(folder: Path) -> Summary | None:
    """None where the folder holds no run yet."""
    with opening(folder):
        return _summary(folder)


def _summary(folder: Path) -> Summary | None:
    head = None
    accuracy: dict[int, float] = {}
    seconds, memory, failure = 0.0, None, None
    for record in read_records(folder):
        kind = record["kind"]
        if kind == "run":
            head = record
        elif kind == "evaluation":
            accuracy[len(record["classes"])] = record["accuracy"]
        elif kind == "timing":
            seconds += record["seconds"]
        elif kind == "memory":
            memory = sum(record["bytes"].values())
        elif kind == "failure":
            failure = record["error"]
    if head is None:
        return None
    return Summary(
        dataset=head["dataset"]["name"],
        method=head["method"],
        seed=head["seed"],
        tasks=len(head["tasks"]),
        accuracy=accuracy,
        seconds=seconds,
        memory=memory,
        failure=failure,
    )
