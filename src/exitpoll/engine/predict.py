"""Prediction for files of any size, block by block and in constant memory; an interrupted job can be resumed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from exitpoll.data.columns import find_text_columns
from exitpoll.data.json_rows import read_texts_or_objects
from exitpoll.data.progress import OnProgress, Progress, ignore
from exitpoll.data.readers import check_known, notes_on, read_rows
from exitpoll.data.rows import Row, checked
from exitpoll.data.writers import WRITERS, check_kind
from exitpoll.engine.arguments import to_integer
from exitpoll.engine.blocks import (
    OnError,
    choose_layout,
    count_texts,
    counter_of,
    has_fixed_columns,
    predict_block,
    problem_of,
    record_of,
    text_of,
)
from exitpoll.engine.engine import Engine
from exitpoll.engine.explain import Explanation
from exitpoll.engine.jobs import Job, Layout
from exitpoll.errors import InputError
from exitpoll.files import locked

BLOCK = 8192  # rows that are predicted and written together


@dataclass(frozen=True)
class Summary:
    """Result of a prediction job."""

    rows: int
    skipped: int
    broken: int  # rows whose logits are NaN or infinite
    mean_depth: float
    notes: tuple[str, ...] = ()  # on how the file was read, and whether its texts differ from the calibration texts


def predict_file(
    engine: Engine,
    source: str | Path,
    out: str | Path,
    *,
    text_column: str | None = None,
    pair_column: str | None = None,
    batch_size: int = 32,
    on_error: OnError = "stop",
    resume: bool = False,
    about: Mapping[str, object] | None = None,
    on_progress: OnProgress = ignore,
) -> Summary:
    """Predict every row of a file and write the rows with their predictions, in the order of the file.

    Args:
        engine: The model with its policy.
        source: A CSV, TSV, JSON, JSONL, TXT or Parquet file, the text files also compressed (.gz, .zst).
        out: The CSV, TSV, JSONL or Parquet file to write; it appears when it is complete.
        text_column: The column of the text; chosen by convention if not given.
        pair_column: The column of the second text of a pair.
        batch_size: The bound on memory, as for an engine.
        on_error: At a row that cannot be predicted: "stop", or "skip" it and state the reason in the column `error`,
            beside what could be read of the row.
        resume: Continue an interrupted job.
        about: What must be the same for a job to be resumed: model, policy.
        on_progress: Called after every block.

    Returns:
        How many rows were predicted.
    """
    source, out = Path(source), Path(out)
    _check_paths(source, out)
    stat = source.stat()
    identity = {
        "input": [stat.st_size, stat.st_mtime_ns],
        "columns": [text_column, pair_column],
        "on_error": on_error,
        "fingerprint": engine.runtime.fingerprint,
        "runtime": engine.runtime.name,
        **(about or {}),
    }
    counter = counter_of(engine.policy)
    with locked(out, "predict"):
        job = Job(out, identity, resume=resume)
        with job.open() as file, job.removed_if_empty():
            for block in _blocks(source, on_error, done=job.counts.rows):
                if job.layout is None:
                    job.layout = choose_layout(
                        block, text_column, pair_column, on_error, is_fixed=has_fixed_columns(out.suffix.lower())
                    )
                outcomes = predict_block(engine, block, job.layout, batch_size, on_error)
                records = [record_of(row, outcome, job.layout) for row, outcome in zip(block, outcomes, strict=True)]
                file.write(WRITERS[out.suffix.lower()](records, job.layout.columns, not job.counts.rows).encode())
                job.count(file, outcomes)
                count_texts(outcomes, counter)
                on_progress(Progress("predicting", job.counts.rows, mean_depth=job.counts.mean_depth))
            if not job.counts.rows:
                raise InputError(f"'{source}' has no rows")
        job.publish()
    counts, shift = job.counts, None if counter is None else counter.shift()
    notes = (*notes_on(source), *([] if shift is None else [str(shift)]))
    return Summary(counts.rows, counts.skipped, counts.broken, counts.mean_depth, notes)


def predict_lines(
    engine: Engine,
    lines: Iterable[str],
    batch_size: int = 32,
    *,
    text_column: str | None = None,
    pair_column: str | None = None,
    on_error: OnError = "stop",
) -> Iterator[str]:
    """Predict texts given one a line, or rows given as lines of JSON if the first line is a JSON object.

    Args:
        engine: The model with its policy.
        lines: Texts or JSON objects; empty lines are ignored.
        batch_size: The bound on memory, as for an engine; so many lines are read before the first is predicted.
        text_column: The field of the text, in lines of JSON; chosen by convention if not given.
        pair_column: The field of the second text of a pair.
        on_error: As for files.

    Yields:
        A line of JSON for every text, in their order, with all fields of its row.
    """
    batch_size = to_integer("batch_size", batch_size)
    rows = read_texts_or_objects(lines)
    if on_error == "stop":
        rows = checked(rows)
    layout: Layout | None = None
    while block := list(islice(rows, batch_size)):
        if layout is None:
            layout = choose_layout(block, text_column, pair_column, on_error, is_fixed=False)
        for row, outcome in zip(block, predict_block(engine, block, layout, batch_size, on_error), strict=True):
            is_problem = isinstance(outcome, str)  # the text may hold bytes that are not UTF-8
            yield json.dumps(record_of(row, outcome, layout), ensure_ascii=is_problem) + "\n"


def explain_rows(
    engine: Engine,
    rows: Iterable[Row],
    *,
    text_column: str | None = None,
    pair_column: str | None = None,
    on_error: OnError = "stop",
) -> Iterator[Explanation | str]:
    """Explain the predictions for rows, one by one.

    Args:
        engine: The model with its policy.
        rows: What `read_rows` or `read_texts_or_objects` reads.
        text_column: The column of the text; chosen by convention if not given.
        pair_column: The column of the second text of a pair.
        on_error: At a row that cannot be predicted: "stop", or "skip" it.

    Yields:
        An explanation for every row; the reason, for a row that is skipped.
    """
    layout: Layout | None = None
    for row in rows if on_error == "skip" else checked(rows):
        if layout is None and row.problem is None:
            layout = Layout(*find_text_columns([row], text_column, pair_column), columns=[])
        text: Any = None if layout is None else text_of(row, layout)
        problem = problem_of(row, text)
        if problem is not None and on_error == "stop":
            raise InputError(problem)
        yield engine.explain(text) if problem is None else problem


def _check_paths(source: Path, out: Path) -> None:
    """Refuse files that cannot be read or written."""
    check_kind(out)
    check_known(source)
    if not source.is_file():
        raise InputError(f"'{source}' does not exist")
    if out.exists() and out.samefile(source):
        raise InputError(f"'{out}' is the input; choose another output")


def _blocks(source: Path, on_error: OnError, done: int) -> Iterator[list[Row]]:
    """Read the rows of a file in blocks, without those that were predicted before an interruption."""
    rows = read_rows(source)
    rows = islice(checked(rows) if on_error == "stop" else rows, done, None)
    while block := list(islice(rows, BLOCK)):
        yield block
