"""Rows as they were read, with the place of every row for error messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from exitpoll.errors import InputError


@dataclass(frozen=True)
class Row:
    """One row and where it comes from."""

    values: dict[str, object]
    place: str  # file and line, for error messages
    problem: str | None = None  # why the row cannot be used; its values are then what could be read of it


@dataclass(frozen=True)
class RawSplits:
    """The rows of a dataset as they were read."""

    rows: dict[str, list[Row]]  # by split: train, dev, test
    class_names: list[str] | None = None  # in the order of the dataset, if it defines one
    notes: tuple[str, ...] = ()  # what a reader of the results should know about the splits


def checked(rows: Iterable[Row]) -> Iterator[Row]:
    """Refuse rows that cannot be read.

    Args:
        rows: The rows of a reader.

    Yields:
        The same rows.
    """
    for row in rows:
        if row.problem is not None:
            raise InputError(row.problem)
        yield row
