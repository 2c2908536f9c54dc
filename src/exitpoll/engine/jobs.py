"""An output file that is written block by block, and can be continued after an interruption.

A finished block is appended to `<output>.partial` and counted in `<output>.progress`. Resuming drops whatever was
written after the last count, so no row is lost or duplicated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import BinaryIO

from exitpoll.data.writers import finish
from exitpoll.engine.engine import Prediction
from exitpoll.errors import InputError
from exitpoll.files import read_json, write_json


@dataclass(frozen=True)
class Layout:
    """The columns of a job, the same for all its blocks."""

    text: str
    pair: str | None
    columns: Sequence[str]  # of the output
    is_fixed: bool = False  # whether later rows may not add columns


@dataclass
class Counts:
    """What is done of a job."""

    rows: int = 0
    skipped: int = 0
    broken: int = 0
    size: int = 0  # of the output, in bytes
    depth: int = 0  # sum over the rows that were predicted

    @property
    def mean_depth(self) -> float:
        """The mean depth of the rows that were predicted."""
        return self.depth / max(1, self.rows - self.skipped)

    def add(self, outcomes: Sequence[Prediction | str]) -> None:
        """Count rows: their predictions, or why there is none."""
        predictions = [outcome for outcome in outcomes if isinstance(outcome, Prediction)]
        self.rows += len(outcomes)
        self.skipped += len(outcomes) - len(predictions)
        self.broken += sum(not prediction.is_finite for prediction in predictions)
        self.depth += sum(prediction.depth for prediction in predictions)


class Job:
    """An output that is not finished."""

    def __init__(self, out: Path, identity: Mapping[str, object], *, resume: bool) -> None:
        """Start a job, or find what an interrupted one has done."""
        self.out, self.identity = out, json.loads(json.dumps(identity))
        self.partial = out.with_name(out.name + ".partial")
        self.progress = out.with_name(out.name + ".progress")
        self.counts = Counts()
        self.layout: Layout | None = None
        if not self.partial.exists():
            return
        saved = read_json(self.progress)
        if saved is None:
            raise InputError(f"'{self.partial}' exists and is not an interrupted job of exitpoll; remove it")
        if not resume:
            message = f"'{self.partial}' is an interrupted job; use resume to continue it, or remove it"
            raise InputError(message, options=["resume"])
        if saved.get("identity") != self.identity:
            message = f"'{self.partial}' was started with another input, model, policy or on_error"
            raise InputError(f"{message}; use the same ones, or remove it", options=["on_error"])
        try:
            self.counts = Counts(**{field.name: int(saved[field.name]) for field in fields(Counts)})
            self.layout = None if saved["layout"] is None else Layout(**saved["layout"])
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(f"'{self.progress}' is broken; remove it and '{self.partial}'") from error
        if self.partial.stat().st_size < self.counts.size:
            raise InputError(f"'{self.partial}' is shorter than when it was interrupted; remove it and start again")

    def open(self) -> BinaryIO:
        """Open the output after the last block that was counted."""
        self._save()  # first, because an output without saved progress is not recognized
        file = self.partial.open("r+b" if self.partial.exists() else "w+b")
        file.truncate(self.counts.size)
        file.seek(self.counts.size)
        return file

    def count(self, file: BinaryIO, outcomes: Sequence[Prediction | str]) -> None:
        """Count a block once it is on the disk."""
        file.flush()
        os.fsync(file.fileno())
        self.counts.add(outcomes)
        self.counts.size = file.tell()
        self._save()

    def _save(self) -> None:
        """Save the progress."""
        layout = None if self.layout is None else asdict(self.layout)
        write_json(self.progress, {"identity": self.identity, "layout": layout, **asdict(self.counts)})

    def publish(self) -> None:
        """Move the finished output to its place."""
        finish(self.partial, self.out)
        self.progress.unlink(missing_ok=True)

    @contextmanager
    def removed_if_empty(self) -> Iterator[None]:
        """Remove the files of a job that fails before its first block is done."""
        try:
            yield
        except BaseException:
            if not self.counts.rows:
                self.partial.unlink(missing_ok=True)
                self.progress.unlink(missing_ok=True)
            raise
