"""Predict the shards of a job: every shard is complete or absent, so that what is missing can be done by anyone."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from exitpoll.data.places import to_place
from exitpoll.data.readers import PARQUET, kind_of, read_rows
from exitpoll.data.rows import Row, checked
from exitpoll.data.writers import WRITERS, finish
from exitpoll.decide.policy import Policy
from exitpoll.engine.blocks import count_texts, counter_of, has_fixed_columns, predict_block, record_of
from exitpoll.engine.engine import Engine
from exitpoll.engine.jobs import Counts
from exitpoll.engine.plan import DONE, POLICY, Plan, Shard, readable_rows
from exitpoll.engine.predict import BLOCK
from exitpoll.files import JsonObject, read_json, write_json

ASIDE = ".aside"  # what is being written


@dataclass(frozen=True)
class ShardResult:
    """What is known of a shard that is done."""

    counts: Counts
    profile: JsonObject | None = None  # of its texts, to compare with the calibration texts


class ShardPredictor:
    """An engine at work on a job; where shards come in the order of a file, the file is read once."""

    def __init__(self, folder: Path, engine: Engine | None = None) -> None:
        """Load the model of a job.

        Args:
            folder: The folder of the job.
            engine: Its engine; loaded with one thread by default.
        """
        self.folder, self.plan = folder, Plan.load(folder)
        if engine is None:
            policy = Policy.load(folder / POLICY) if (folder / POLICY).exists() else None
            engine = self.plan.request.model.load(policy, fingerprint=self.plan.fingerprint)
        self.engine = engine
        self._place = ""
        self._rows: Iterator[Row] = iter(())
        self._next = 0  # the number of the next row

    def predict(self, number: int) -> ShardResult:
        """Predict a shard and write its output: aside first, then renamed, and counted last.

        Args:
            number: Which shard.

        Returns:
            Its counts.
        """
        out = output_of(self.plan, self.folder, number)
        aside = out.with_name(f"{out.name}.{platform.node()}-{os.getpid()}{ASIDE}")
        try:
            with aside.open("wb") as file:
                result = self._write(file, self.plan.shards[number], has_header=not (number and self._is_joined))
                file.flush()
                os.fsync(file.fileno())
            finish(aside, out)
        finally:
            aside.unlink(missing_ok=True)
        result.counts.size = out.stat().st_size
        write_json(_result_of(self.folder, number), asdict(result))
        return result

    @property
    def _is_joined(self) -> bool:
        """Whether the outputs are parts of one file, of which only the first has a header."""
        return self.plan.request.is_joined

    def _write(self, file: BinaryIO, shard: Shard, *, has_header: bool) -> ShardResult:
        """Predict the rows of a shard, block by block."""
        request, layout = self.plan.request, self.plan.layout
        counts, counter = Counts(), counter_of(self.engine.policy)
        rows = self._rows_of(shard)
        while block := list(islice(rows, BLOCK)):
            outcomes = predict_block(self.engine, block, layout, request.batch_size, request.on_error)
            records = [record_of(row, outcome, layout) for row, outcome in zip(block, outcomes, strict=True)]
            file.write(WRITERS[request.kind](records, layout.columns, has_header and not counts.rows).encode())
            counts.add(outcomes)
            count_texts(outcomes, counter)
        if has_header and not counts.rows and has_fixed_columns(request.kind):  # its rows follow in other shards
            file.write(WRITERS[request.kind]([], layout.columns, True).encode())
        return ShardResult(counts, None if counter is None else counter.to_dict())

    def _rows_of(self, shard: Shard) -> Iterator[Row]:
        """Read the rows of a shard, onward in the same file where possible."""
        is_parquet = kind_of(to_place(shard.place)) == PARQUET  # which can begin anywhere
        ahead = shard.start - self._next
        if shard.place != self._place or ahead < 0 or (ahead and is_parquet):
            self._rows, self._next = read_rows(to_place(shard.place), shard.start), shard.start
        rows = self._read_on(shard)
        return checked(rows) if self.plan.request.on_error == "stop" else readable_rows(rows, shard.place)

    def _read_on(self, shard: Shard) -> Iterator[Row]:
        """Read from the open file, which is closed where reading fails."""
        self._place = ""
        ahead = shard.start - self._next
        yield from islice(self._rows, ahead, None if shard.stop is None else shard.stop - self._next)
        if shard.stop is not None:
            self._place, self._next = shard.place, shard.stop


def output_of(plan: Plan, folder: Path, number: int) -> Path:
    """Return the file of a shard's output.

    Args:
        plan: The plan.
        folder: The folder of the job.
        number: Which shard.
    """
    digits = max(5, len(str(len(plan.shards) - 1)))
    return folder / f"shard-{number:0{digits}}{'.part' if plan.request.is_joined else plan.request.kind}"


def read_result(plan: Plan, folder: Path, number: int) -> ShardResult | None:
    """Return the counts of a shard that is done; None if it is not.

    Args:
        plan: The plan.
        folder: The folder of the job.
        number: Which shard.
    """
    content, out = read_json(_result_of(folder, number)), output_of(plan, folder, number)
    try:
        saved = (content or {})["counts"]
        counts = Counts(**{field.name: int(saved[field.name]) for field in fields(Counts)})
        return ShardResult(counts, (content or {})["profile"]) if out.stat().st_size == counts.size else None
    except (LookupError, TypeError, ValueError, OSError):
        return None


def _result_of(folder: Path, number: int) -> Path:
    """Return the file with the counts of a shard; it is written last."""
    return folder / DONE / f"{number}.json"
