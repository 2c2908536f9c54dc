"""Which columns hold the texts and the labels, by name or by convention, and what they contain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exitpoll.data.labels import RawLabels
from exitpoll.data.rows import Row
from exitpoll.errors import InputError

PAIR_COLUMNS = (
    ("text_a", "text_b"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
)
TEXT_COLUMNS = ("text", "sentence")
LABEL_COLUMNS = ("label", "labels")


@dataclass(frozen=True)
class Columns:
    """The columns that a user named; None is looked up by convention."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class PickedColumns:
    """The columns to read."""

    text: str
    pair: str | None = None
    label: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class Table:
    """The content of the picked columns."""

    first: list[str]
    second: list[str] | None
    labels: RawLabels | None
    groups: list[str] | None


def pick_columns(rows: Sequence[Row], wanted: Columns) -> PickedColumns:
    """Pick the columns by name or by convention.

    Args:
        rows: Some rows; those of the train split decide for all splits.
        wanted: The columns that were named.

    Returns:
        The columns to read.
    """
    place = rows[0].place
    present = list(dict.fromkeys(name for row in rows for name in row.values))
    _check_named(wanted, present, place)
    text, pair = _pick_texts(wanted, present, place)
    label = wanted.label or next((name for name in LABEL_COLUMNS if name in present), None)
    return PickedColumns(text, pair, label, wanted.group)


def _check_named(wanted: Columns, present: Sequence[str], place: str) -> None:
    """Check that the named columns exist, and that text, pair and label are three columns."""
    named = [name for name in (wanted.text, wanted.pair, wanted.label) if name is not None]
    for name in named if wanted.group is None else (*named, wanted.group):
        if name not in present:
            raise InputError(f"{place}: no column '{name}'; the columns are: {', '.join(present)}")
        if named.count(name) > 1:
            raise InputError(f"column '{name}' is named twice: text, pair and label are different columns")


def _pick_texts(wanted: Columns, present: Sequence[str], place: str) -> tuple[str, str | None]:
    """Pick the columns of the text and, for pairs, of the second text."""
    if wanted.text is not None:
        return wanted.text, wanted.pair
    for first, second in PAIR_COLUMNS:
        if wanted.pair is None and first in present and second in present:
            return first, second
    for name in TEXT_COLUMNS:
        if name in present:
            return name, wanted.pair
    raise InputError(f"{place}: no text column among {', '.join(present)}; name it with --text-column")


def find_text_columns(
    rows: Sequence[Row], text_column: str | None = None, pair_column: str | None = None
) -> tuple[str, str | None]:
    """Find the columns of the text and, for pairs, of the second text.

    Args:
        rows: Some rows.
        text_column: The column of the text, if it was named.
        pair_column: The column of the second text, if it was named.

    Returns:
        Both names; the second is None for single texts.
    """
    columns = pick_columns(rows, Columns(text_column, pair_column))
    return columns.text, columns.pair


def to_table(rows: Sequence[Row], columns: PickedColumns) -> Table:
    """Extract texts, labels and groups from rows.

    Args:
        rows: The rows.
        columns: The columns to read.

    Returns:
        The content of the columns; labels are None if no row has one.
    """
    return Table(
        first=[_text_at(row, columns.text) for row in rows],
        second=None if columns.pair is None else [_text_at(row, columns.pair) for row in rows],
        labels=None if columns.label is None else _labels_at(rows, columns.label),
        groups=None if columns.group is None else [str(row.values.get(columns.group)) for row in rows],
    )


def _text_at(row: Row, column: str) -> str:
    """Return a text, which must not be empty."""
    if column not in row.values:
        raise InputError(f"{row.place}: no column '{column}'; the columns are: {', '.join(row.values)}")
    text = row.values[column]
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{row.place}: the text in column '{column}' is empty or not a string")
    return text


def _labels_at(rows: Sequence[Row], column: str) -> RawLabels | None:
    """Return the labels; None if the split has none at all, which GLUE marks by −1 in every row."""
    labels = [row.values.get(column) for row in rows]
    if all(_is_missing(label) or str(label) == "-1" for label in labels):
        return None
    for label, row in zip(labels, rows, strict=True):
        if _is_missing(label):
            raise InputError(f"{row.place}: the label in column '{column}' is missing")
    return RawLabels(labels, [row.place for row in rows])


def _is_missing(label: object) -> bool:
    """Return whether a label is None, NaN or blank; an empty list is a label, of no class."""
    return label is None or label != label or (isinstance(label, str) and not label.strip())
