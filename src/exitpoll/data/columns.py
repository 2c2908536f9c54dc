"""Which columns of some rows have the texts and the labels, by name or by convention, and what stands in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from exitpoll.data.labels import RawLabels
from exitpoll.data.readers import Row
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
    """Columns asked for by name; None is found by convention."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class Table:
    """The columns in question as they were read."""

    first: list[str]
    second: list[str] | None
    labels: RawLabels | None
    groups: list[str] | None


def pick_columns(rows: list[Row], wanted: Columns) -> Columns:
    """Choose the columns, by name or by convention.

    Args:
        rows: Some rows; of several splits those of train, for all.
        wanted: The columns asked for.

    Returns:
        All that there are; the text's is never None.
    """
    place = rows[0].place
    present = list(dict.fromkeys(name for row in rows for name in row.values))
    named = [name for name in (wanted.text, wanted.pair, wanted.label) if name is not None]
    for name in (*named, *([] if wanted.group is None else [wanted.group])):
        if name not in present:
            raise InputError(f"{place}: no column '{name}'; the columns are: {', '.join(present)}")
        if named.count(name) > 1:
            raise InputError(f"column '{name}' is named twice: text, pair and label are columns of their own")
    label = wanted.label or next((name for name in LABEL_COLUMNS if name in present), None)
    if wanted.text is not None:
        return replace(wanted, label=label)
    for first, second in PAIR_COLUMNS:
        if wanted.pair is None and first in present and second in present:
            return replace(wanted, text=first, pair=second, label=label)
    for name in TEXT_COLUMNS:
        if name in present:
            return replace(wanted, text=name, label=label)
    raise InputError(f"{place}: no text column among {', '.join(present)}; name it with --text-column")


def find_text_columns(
    rows: Sequence[Row], text_column: str | None = None, pair_column: str | None = None
) -> tuple[str, str | None]:
    """Find the column of the text and, for pairs, of the second text.

    Args:
        rows: Some rows.
        text_column: The column of the text, if it is known.
        pair_column: The column of the second text, if it is known.

    Returns:
        Both names; the second is None for single texts.
    """
    found = pick_columns(list(rows), Columns(text_column, pair_column))
    assert found.text is not None
    return found.text, found.pair


def to_table(rows: list[Row], columns: Columns) -> Table:
    """Take the texts and labels out of rows.

    Args:
        rows: The rows.
        columns: As `pick_columns` gave them.

    Returns:
        What stands in the columns; labels are None where no row has any.
    """
    assert columns.text is not None
    return Table(
        first=[_text_at(row, columns.text) for row in rows],
        second=None if columns.pair is None else [_text_at(row, columns.pair) for row in rows],
        labels=None if columns.label is None else _labels_at(rows, columns.label),
        groups=None if columns.group is None else [str(row.values.get(columns.group)) for row in rows],
    )


def _text_at(row: Row, column: str) -> str:
    """Take a text, which must say something."""
    if column not in row.values:
        raise InputError(f"{row.place}: no column '{column}'; the columns are: {', '.join(row.values)}")
    text = row.values[column]
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{row.place}: the text in column '{column}' is empty or no text")
    return text


def _labels_at(rows: list[Row], column: str) -> RawLabels | None:
    """Take the labels, None where a split has none at all; −1 in all rows is GLUE's way to say that."""
    labels = [row.values.get(column) for row in rows]
    if all(_is_missing(label) or str(label) == "-1" for label in labels):
        return None
    for label, row in zip(labels, rows, strict=True):
        if _is_missing(label):
            raise InputError(f"{row.place}: the label in column '{column}' is missing")
    return RawLabels(labels, [row.place for row in rows])


def _is_missing(label: Any) -> bool:
    """Whether there is no label; an empty list is one, of no class."""
    return label is None or label != label or (isinstance(label, str) and not label.strip())
