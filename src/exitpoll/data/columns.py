"""Which columns hold the texts and the labels, by name or by convention, and what they contain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exitpoll.data.labels import RawLabels, class_name, is_missing
from exitpoll.data.rows import Row
from exitpoll.errors import InputError

# Names by which columns are recognized, in lower case. Of the tuples in a list, the first that fits a column decides; a
# file in which two columns fit one tuple is refused.
PAIR_COLUMNS = (
    ("text_a", "text_b"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
)
TEXT_COLUMNS = (
    ("text",),
    ("sentence",),
    (
        *("content", "review", "review_text", "comment", "comment_text", "message", "body", "tweet", "post"),
        *("question", "query", "utterance", "title", "headline", "document", "description"),
    ),
)
LABEL_COLUMNS = (
    ("label",),
    ("labels",),
    ("class", "category", "target", "sentiment", "intent", "emotion", "topic"),
)


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
    present, place = _columns_of(rows), rows[0].place
    wanted = _as_spelled(wanted, present, place)
    text, pair = _pick_texts(wanted, present, place)
    free = [name for name in present if name not in (text, pair)]
    label = wanted.label or _by_convention(LABEL_COLUMNS, free, place, "label_column")
    return PickedColumns(text, pair, label, wanted.group)


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
    present, place = _columns_of(rows), rows[0].place
    return _pick_texts(_as_spelled(Columns(text_column, pair_column), present, place), present, place)


def column_notes(columns: PickedColumns, wanted: Columns) -> list[str]:
    """Return a note on columns that were recognized by a name that may mean something else.

    Args:
        columns: The columns that are read.
        wanted: The columns that were named.

    Returns:
        No note for columns that were named, and for the most common names.
    """
    usual = {name for names in (*TEXT_COLUMNS[:-1], *LABEL_COLUMNS[:-1], *PAIR_COLUMNS) for name in names}
    picked = {"texts": columns.text if wanted.text is None else None}
    picked["labels"] = columns.label if wanted.label is None else None
    return [
        f"the {kind} are read from the column '{name}'"
        for kind, name in picked.items()
        if name is not None and name.strip().lower() not in usual
    ]


def _columns_of(rows: Sequence[Row]) -> list[str]:
    """List the columns of rows."""
    return list(dict.fromkeys(name for row in rows for name in row.values))


def _as_spelled(wanted: Columns, present: Sequence[str], place: str) -> Columns:
    """Spell the named columns as the data do, and check that text, pair and label are three columns."""
    spelled = {field: None if name is None else _spelled(name, present, place) for field, name in vars(wanted).items()}
    three = [name for field, name in spelled.items() if name is not None and field != "group"]
    for name in three:
        if three.count(name) > 1:
            raise InputError(f"column '{name}' is named twice: text, pair and label are different columns")
    return Columns(**spelled)


def _spelled(name: str, present: Sequence[str], place: str) -> str:
    """Find a named column, if need be in another case."""
    if name in present:
        return name
    alike = [column for column in present if column.strip().lower() == name.strip().lower()]
    if len(alike) != 1:
        raise InputError(f"{place}: no column '{name}'; the columns are: {', '.join(present)}")
    return alike[0]


def _pick_texts(wanted: Columns, present: Sequence[str], place: str) -> tuple[str, str | None]:
    """Pick the columns of the text and, for pairs, of the second text."""
    if wanted.text is not None:
        return wanted.text, wanted.pair
    free = [name for name in present if name not in (wanted.pair, wanted.label)]
    for names in PAIR_COLUMNS if wanted.pair is None else ():
        first, second = (_named_like((name,), free) for name in names)
        if first and second:
            return _only(first, place, "text_column"), _only(second, place, "pair_column")
    text = _by_convention(TEXT_COLUMNS, free, place, "text_column")
    if text is None:
        is_one = len(present) == 1 and ("," in present[0] or ";" in present[0])
        hint = "are its fields separated by commas? then name the file .csv" if is_one else "name it: text_column"
        raise InputError(f"{place}: no text column among {', '.join(present)}; {hint}", options=["text_column"])
    return text, wanted.pair


def _by_convention(names: Sequence[tuple[str, ...]], present: Sequence[str], place: str, option: str) -> str | None:
    """Recognize a column by its name; None if there is none."""
    for tier in names:
        if columns := _named_like(tier, present):
            return _only(columns, place, option)
    return None


def _named_like(names: Sequence[str], present: Sequence[str]) -> list[str]:
    """List the columns that have one of some names, in any case; of `text` and `Text`, only the first."""
    alike = [column for column in present if column.strip().lower() in names]
    exact = [column for column in alike if column in names]
    return exact if len({column.strip().lower() for column in alike}) == 1 and exact else alike


def _only(columns: Sequence[str], place: str, option: str) -> str:
    """Return the column, unless there are several that it could be."""
    if len(columns) > 1:
        listed = " or ".join(f"'{column}'" for column in columns)
        raise InputError(f"{place}: is it the column {listed}? name it: {option}", options=[option])
    return columns[0]


def to_table(rows: Sequence[Row], columns: PickedColumns, class_names: Sequence[str] = ()) -> Table:
    """Extract texts, labels and groups from rows.

    Args:
        rows: The rows.
        columns: The columns to read.
        class_names: Names that are classes even if they usually mark a missing label, as `null`.

    Returns:
        The content of the columns; labels are None if no row has one.
    """
    return Table(
        first=[_text_at(row, columns.text) for row in rows],
        second=None if columns.pair is None else [_text_at(row, columns.pair) for row in rows],
        labels=None if columns.label is None else _labels_at(rows, columns.label, class_names),
        groups=None if columns.group is None else [str(row.values.get(columns.group)) for row in rows],
    )


def is_empty(row: Row, column: str) -> bool:
    """Return whether a row has nothing but white space where a text should be.

    Args:
        row: The row.
        column: The column of the text.

    Returns:
        Whether it is empty; not if the column is missing, or holds something other than a text.
    """
    text = row.values.get(column, column)
    return text is None or (isinstance(text, str) and not text.strip())


def _text_at(row: Row, column: str) -> str:
    """Return a text, which must not be empty."""
    if column not in row.values:
        raise InputError(f"{row.place}: no column '{column}'; the columns are: {', '.join(row.values)}")
    text = row.values[column]
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{row.place}: the text in column '{column}' is empty or not a string")
    return text


def _labels_at(rows: Sequence[Row], column: str, class_names: Sequence[str]) -> RawLabels | None:
    """Return the labels; None if the split has none at all, which GLUE marks by −1 in every row."""
    labels = [row.values.get(column) for row in rows]
    missing = [is_missing(label, class_names) for label in labels]
    if all(none or class_name(label) == "-1" for label, none in zip(labels, missing, strict=True)):
        return None
    for label, row, none in zip(labels, rows, missing, strict=True):
        if none:
            is_word = isinstance(label, str) and label.strip()
            word = f" ('{label}'; if that is a class, list it among the label names)" if is_word else ""
            raise InputError(f"{row.place}: the label in column '{column}' is missing{word}")
    return RawLabels(labels, [row.place for row in rows])
