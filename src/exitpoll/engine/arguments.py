"""What users pass to the engine: texts in the containers that they have, and numbers of any integer type."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from exitpoll.data.batching import Text
from exitpoll.data.columns import find_text_columns
from exitpoll.data.readers import Row
from exitpoll.errors import InputError


def to_integer(name: str, value: SupportsIndex, at_least: int = 1, at_most: int | None = None) -> int:
    """Check an integer, of Python or NumPy.

    Args:
        name: The name of the argument, for the message.
        value: Its value.
        at_least: The smallest value allowed.
        at_most: The largest value allowed, if there is one.

    Returns:
        The integer.
    """
    limits = f"at least {at_least}" if at_most is None else f"between {at_least} and {at_most}"
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < at_least or (at_most is not None and number > at_most):
        raise InputError(f"{name} {value!r:.60} must be an integer, {limits}")
    return number


def iterate_texts(given: object) -> Iterator[object]:
    """Iterate over texts in any container that has an order; of a table, over its text column.

    Args:
        given: A list, a generator, a NumPy array, a column or a whole table of pandas, polars, pyarrow or datasets, ….

    Returns:
        The texts, unchecked.
    """
    if isinstance(given, list):  # most of the time, and the rest takes longer than a short text in a small model
        return iter(given)
    if isinstance(given, str | bytes | bytearray):
        raise InputError("give a list of texts, not one text")
    if isinstance(given, set | frozenset):
        raise InputError(f"give a list of texts, not a {type(given).__name__}, whose order is arbitrary")
    if isinstance(given, np.ndarray):
        given = given.tolist() if given.ndim else given
    elif not isinstance(given, Mapping) and (names := _column_names(given)):
        given = _text_columns(given, names)
    if isinstance(given, Mapping | np.ndarray) or not isinstance(given, Iterable):
        raise InputError(f"give a list of texts, not {type(given).__name__}")
    return iter(given)


def _column_names(given: object) -> list[str]:
    """Return the names of the columns of a table; none for anything else."""
    names = getattr(given, "column_names", None)  # pyarrow, datasets
    names = getattr(given, "columns", None) if names is None else names  # pandas, polars
    return list(map(str, names)) if isinstance(names, Iterable) else []


def _text_columns(table: Any, names: Sequence[str]) -> Iterable[object]:
    """Return the texts of a table, or its pairs of texts, from columns that are found by convention."""
    try:
        text, pair = find_text_columns([Row(dict.fromkeys(names), "the table")])
    except InputError as error:
        hint = f"give one column: table['{names[0]}']"
        raise InputError(f"the table has no text column among {', '.join(names)}; {hint}") from error
    for name in filter(None, (text, pair)):
        if names.count(name) > 1:
            raise InputError(f"the table has two columns named '{name}'; rename one")
    first = _values(table[text])
    return first if pair is None else zip(first, _values(table[pair]), strict=True)


def _values(column: Any) -> Iterable[object]:
    """Return the values of a column as values of Python."""
    return column.to_pylist() if hasattr(column, "to_pylist") else column  # pyarrow


def to_text(place: str, given: object) -> Text:
    """Check a text or a pair of texts, neither of them empty.

    Args:
        place: Where it comes from, for the message.
        given: What was given as a text; a pair is a tuple or, as in JSON, a list.

    Returns:
        The text, a pair as a tuple.
    """
    parts: Sequence[Any] = given if isinstance(given, tuple | list) else (given,)
    expected = 2 if isinstance(given, tuple | list) else 1
    if len(parts) != expected or not all(isinstance(part, str) and part.strip() for part in parts):
        raise InputError(f"{place} is empty, or neither a text nor a pair of texts: {given!r:.60}")
    try:
        "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{place} holds half of a surrogate pair, which is not a character") from error
    return parts[0] if expected == 1 else (parts[0], parts[1])
