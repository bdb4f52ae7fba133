"""TensorBoard: scalars and masks, derived from the records as they are written, and the drawings after each task."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from engram.errors import missing_extra
from engram.evaluation import metrics
from engram.experiment.records import Record

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class NoBoard:
    """Where nobody asked for TensorBoard."""

    def replay(self, records: Iterable[Record]) -> None:
        pass

    def add(self, record: Record) -> None:
        pass

    def picture(self, image: Tensor, classes: int) -> None:
        pass

    def close(self) -> None:
        pass


class Board(NoBoard):
    """Writes `RUN/tensorboard`. A resumed run writes it anew from the records, so no point appears twice."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise missing_extra("--tensorboard", "tensorboard") from None
        self._open = SummaryWriter
        self._folder = folder / "tensorboard"
        self._writer: SummaryWriter | None = None
        self._epochs = 0

    def replay(self, records: Iterable[Record]) -> None:
        """Start over with what has been recorded so far."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._writer = self._open(str(self._folder))
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Losses and masks over epochs, accuracies and replay quality over classes seen."""
        if self._writer is None:
            return
        if record["kind"] == "epoch":
            self._epochs += 1
            for name, value in record["losses"].items():
                self._scalar(f"loss/{name}", value, self._epochs)
        elif record["kind"] == "mask":
            for number, (share, values) in enumerate(zip(record["occupancy"], record["sample"], strict=True), 1):
                self._scalar(f"mask/layer {number}", share, self._epochs + 1)
                self._writer.add_histogram(f"mask/values of layer {number}", np.array(values), self._epochs + 1)
        elif record["kind"] == "quality":
            for name in ("recognised", "precision", "recall"):
                size = len(record["classes"])
                known = [value for value in metrics.values(record[name], size) if value is not None]
                if known:
                    self._scalar(f"replay/{name}", sum(known) / len(known), size)
        elif record["kind"] == "evaluation":
            for name in ("accuracy", "macro", "top5", "forgetting"):
                if record[name] is not None:
                    self._scalar(f"after task/{name}", record[name], len(record["classes"]))
            self._writer.flush()

    def picture(self, image: Tensor, classes: int) -> None:
        """The drawings after a task, (C, H, W) uint8. A resumed run has those of the tasks that it learned itself."""
        if self._writer is not None:
            self._writer.add_image("drawings", image, classes)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _scalar(self, tag: str, value: float, step: int) -> None:
        assert self._writer is not None
        self._writer.add_scalar(tag, value, step)
