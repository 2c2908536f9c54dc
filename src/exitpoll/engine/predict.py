"""Prediction for files of any size, block by block and in constant memory; an interrupted job can be resumed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from exitpoll.data.columns import find_text_columns
from exitpoll.data.json_rows import read_texts_or_objects
from exitpoll.data.progress import OnProgress, Progress, ignore
from exitpoll.data.readers import check_known, notes_on, read_rows
from exitpoll.data.rows import Row, checked
from exitpoll.data.writers import WRITERS, check_kind
from exitpoll.decide.policy import Policy
from exitpoll.decide.shift import ProfileCounter, plain_shares
from exitpoll.engine.arguments import to_integer, to_text
from exitpoll.engine.engine import Engine, Prediction
from exitpoll.engine.explain import Explanation
from exitpoll.engine.jobs import Job, Layout
from exitpoll.errors import InputError
from exitpoll.files import locked

BLOCK = 8192  # rows that are predicted and written together

PREDICTED = ("predicted", "probability", "depth")  # columns of the output
DIGITS = 6  # of probabilities
ERROR = "error"  # and the column of messages, where rows with errors are skipped

OnError = Literal["stop", "skip"]


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
        batch_size: Most texts in a call.
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
    counter = _counter_of(engine.policy)
    with locked(out, "predict"):
        job = Job(out, identity, resume=resume)
        with job.open() as file, job.removed_if_empty():
            for block in _blocks(source, on_error, done=job.counts.rows):
                if job.layout is None:
                    job.layout = _layout(block, text_column, pair_column, on_error, is_fixed=_has_fixed_columns(out))
                outcomes = _predict(engine, block, job.layout, batch_size, on_error)
                records = [_record(row, outcome, job.layout) for row, outcome in zip(block, outcomes, strict=True)]
                file.write(WRITERS[out.suffix.lower()](records, job.layout.columns, not job.counts.rows).encode())
                job.count(file, outcomes)
                _count(outcomes, counter)
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
        batch_size: Most texts in a call; so many lines are read before the first is predicted.
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
            layout = _layout(block, text_column, pair_column, on_error, is_fixed=False)
        for row, outcome in zip(block, _predict(engine, block, layout, batch_size, on_error), strict=True):
            is_problem = isinstance(outcome, str)  # the text may hold bytes that are not UTF-8
            yield json.dumps(_record(row, outcome, layout), ensure_ascii=is_problem) + "\n"


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
        text: Any = None if layout is None else _text_of(row, layout)
        problem = _problem_of(row, text)
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


def _counter_of(policy: Policy) -> ProfileCounter | None:
    """Return what tells whether texts differ from those that a policy was calibrated on, if its certificate does."""
    profile = None if policy.certificate is None else policy.certificate.profile
    return None if profile is None else ProfileCounter(profile)


def _count(outcomes: Sequence[Prediction | str], counter: ProfileCounter | None) -> None:
    """Count the texts of a block, to see whether they differ from the calibration texts."""
    predictions = [outcome for outcome in outcomes if isinstance(outcome, Prediction)]
    if counter is None or not predictions:
        return
    counter.add(
        [prediction.depth for prediction in predictions],
        plain_shares([prediction.probability for prediction in predictions]),
        [prediction.tokens for prediction in predictions],
    )


# ---- rows -----------------------------------------------------------------------------------------------------------


def _blocks(source: Path, on_error: OnError, done: int) -> Iterator[list[Row]]:
    """Read the rows of a file in blocks, without those that were predicted before an interruption."""
    rows = read_rows(source)
    rows = islice(checked(rows) if on_error == "stop" else rows, done, None)
    while block := list(islice(rows, BLOCK)):
        yield block


def _layout(
    block: Sequence[Row], text_column: str | None, pair_column: str | None, on_error: OnError, *, is_fixed: bool
) -> Layout:
    """Choose the columns by the first rows."""
    if all(row.problem is not None for row in block):
        raise InputError(f"none of the first {len(block)} rows can be read; {block[0].problem}")
    text, pair = find_text_columns(block, text_column, pair_column)
    names = dict.fromkeys(name for row in block for name in row.values)
    added = _added_columns(on_error)
    for name in added:
        if name in names:
            raise InputError(f"{block[0].place}: there is a column '{name}' already, which predictions need; rename it")
    return Layout(text, pair, [*names, *added], is_fixed)


def _added_columns(on_error: OnError) -> tuple[str, ...]:
    """Return the columns that a job adds to those of the input."""
    return (*PREDICTED, ERROR) if on_error == "skip" else PREDICTED


def _has_fixed_columns(out: Path) -> bool:
    """Return whether the columns of a file stand in its first line."""
    return out.suffix.lower() in (".csv", ".tsv")


def _predict(
    engine: Engine, block: Sequence[Row], layout: Layout, batch_size: int, on_error: OnError
) -> list[Prediction | str]:
    """Predict rows; the result for a row that cannot be predicted is the reason."""
    texts = [_text_of(row, layout) for row in block]
    problems = [_problem_of(row, text) for row, text in zip(block, texts, strict=True)]
    if on_error == "stop":
        for problem in problems:
            if problem is not None:
                raise InputError(problem)
    valid = [text for text, problem in zip(texts, problems, strict=True) if problem is None]
    predictions = iter(engine(valid, batch_size))
    return [next(predictions) if problem is None else problem for problem in problems]


def _text_of(row: Row, layout: Layout) -> Any:
    """Return the text of a row, or its pair of texts; whatever the file has there."""
    first = row.values.get(layout.text)
    return first if layout.pair is None else (first, row.values.get(layout.pair))


def _problem_of(row: Row, text: object) -> str | None:
    """Return why a row cannot be predicted; None if it can."""
    if row.problem is not None:
        return row.problem
    try:
        to_text(row.place, text)
    except InputError as error:
        return str(error)
    return None


def _record(row: Row, outcome: Prediction | str, layout: Layout) -> dict[str, object]:
    """Return the columns of a row with its prediction, or with the reason why there is none."""
    if row.problem is not None:
        cells = {name: cell for name, cell in row.values.items() if name in layout.columns or not layout.is_fixed}
        return {**cells, **dict.fromkeys(PREDICTED), ERROR: outcome}
    for name in row.values:
        if name in PREDICTED or (layout.is_fixed and name not in layout.columns):
            raise InputError(
                f"{row.place}: the first rows have no column '{name}'; only .jsonl and .parquet can add it"
            )
    if isinstance(outcome, str):
        return {**row.values, **dict.fromkeys(PREDICTED), ERROR: outcome}
    predicted = (outcome.label, _rounded(outcome.probability), outcome.depth)
    record = {**row.values, **dict(zip(PREDICTED, predicted, strict=True))}
    return {**record, ERROR: None} if ERROR in layout.columns else record


def _rounded(probability: float | dict[str, float]) -> float | dict[str, float] | None:
    """Round probabilities to six digits; None for a value, which has none."""
    if isinstance(probability, dict):
        return {name: round(share, DIGITS) for name, share in probability.items()}
    return None if math.isnan(probability) else round(probability, DIGITS)
