"""Blocks of rows: which of their columns are texts, their predictions, and the records that are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from exitpoll.data.columns import find_text_columns
from exitpoll.data.rows import Row
from exitpoll.decide.policy import Policy
from exitpoll.decide.shift import ProfileCounter, plain_shares
from exitpoll.engine.arguments import to_text
from exitpoll.engine.engine import Engine, Prediction
from exitpoll.engine.jobs import Layout
from exitpoll.errors import InputError

PREDICTED = ("predicted", "probability", "depth")  # columns of the output
DIGITS = 6  # of probabilities
ERROR = "error"  # and the column of messages, where rows with errors are skipped

OnError = Literal["stop", "skip"]


def choose_layout(
    block: Sequence[Row], text_column: str | None, pair_column: str | None, on_error: OnError, *, is_fixed: bool
) -> Layout:
    """Choose the columns by the first rows."""
    if not block:
        raise InputError("there are no rows")
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


def has_fixed_columns(kind: str) -> bool:
    """Return whether the columns of a file of some kind stand in its first line."""
    return kind in (".csv", ".tsv")


def predict_block(
    engine: Engine, block: Sequence[Row], layout: Layout, batch_size: int, on_error: OnError
) -> list[Prediction | str]:
    """Predict rows; the result for a row that cannot be predicted is the reason."""
    texts = [text_of(row, layout) for row in block]
    problems = [problem_of(row, text) for row, text in zip(block, texts, strict=True)]
    if on_error == "stop":
        for problem in problems:
            if problem is not None:
                raise InputError(problem)
    valid = [text for text, problem in zip(texts, problems, strict=True) if problem is None]
    predictions = iter(engine(valid, batch_size))
    return [next(predictions) if problem is None else problem for problem in problems]


def text_of(row: Row, layout: Layout) -> Any:
    """Return the text of a row, or its pair of texts; whatever the file has there."""
    first = row.values.get(layout.text)
    return first if layout.pair is None else (first, row.values.get(layout.pair))


def problem_of(row: Row, text: object) -> str | None:
    """Return why a row cannot be predicted; None if it can."""
    if row.problem is not None:
        return row.problem
    try:
        to_text(row.place, text)
    except InputError as error:
        return str(error)
    return None


def record_of(row: Row, outcome: Prediction | str, layout: Layout) -> dict[str, object]:
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


def counter_of(policy: Policy) -> ProfileCounter | None:
    """Return what tells whether texts differ from those that a policy was calibrated on, if its certificate does."""
    profile = None if policy.certificate is None else policy.certificate.profile
    return None if profile is None else ProfileCounter(profile)


def count_texts(outcomes: Sequence[Prediction | str], counter: ProfileCounter | None) -> None:
    """Count the texts of a block, to see whether they differ from the calibration texts."""
    predictions = [outcome for outcome in outcomes if isinstance(outcome, Prediction)]
    if counter is None or not predictions:
        return
    counter.add(
        [prediction.depth for prediction in predictions],
        plain_shares([prediction.probability for prediction in predictions]),
        [prediction.tokens for prediction in predictions],
    )
