"""Read comma- and tab-separated values; a quotation mark that is never closed costs its own row and no other."""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from threading import Lock
from typing import Literal

from exitpoll.data.lines import Line, read_lines
from exitpoll.data.places import Place
from exitpoll.data.rows import Row
from exitpoll.errors import InputError

LARGEST_FIELD = 2**31 - 1  # characters in a field; Python's own limit is 128 kB
LARGEST_RECORD = 2**23  # characters in a record of several lines, all of which are kept until it is complete
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}  # of files with the suffix .csv, the first that fits

Quoting = Literal[0, 3]  # csv.QUOTE_MINIMAL, csv.QUOTE_NONE


def read_csv(path: Place) -> Iterator[Row]:
    """Read comma-separated values with a header; fields may be quoted.

    A header with semicolons or tabs and without commas means that these separate the fields.
    """
    lines = read_lines(path)
    start = _up_to_header(lines)
    separator = _separator_of(start[-1].text) if start else ","
    yield from _read_separated(path, chain(start, lines), separator, csv.QUOTE_MINIMAL)


def read_tsv(path: Place) -> Iterator[Row]:
    """Read tab-separated values with a header; quotation marks have no meaning, as in the files of GLUE."""
    yield from _read_separated(path, read_lines(path), "\t", csv.QUOTE_NONE)


def separator_note(path: Place) -> str | None:
    """Return a note on a CSV file whose fields are not separated by commas.

    Args:
        path: The file.

    Returns:
        The note; None for commas.
    """
    start = _up_to_header(read_lines(path))
    separator = _separator_of(start[-1].text) if start else ","
    return None if separator == "," else f"'{path.name}' is read as separated by {SEPARATORS[separator]}, as its header"


def _up_to_header(lines: Iterator[Line]) -> list[Line]:
    """Read lines up to the first that is not blank."""
    start: list[Line] = []
    for line in lines:
        start.append(line)
        if not line.is_blank:
            break
    return start


def _separator_of(header: str) -> str:
    """Return what separates the fields of a header: the first separator that gives more than one."""
    return next((separator for separator in SEPARATORS if len(_lenient_fields(header, separator)) > 1), ",")


def _read_separated(path: Place, lines: Iterator[Line], separator: str, quoting: Quoting) -> Iterator[Row]:
    """Read a header and rows with as many fields."""
    records = _Records(lines, separator, quoting)
    header: list[str] | None = None
    while (record := records.read(None if header is None else len(header))) is not None:
        if record.is_blank:
            continue
        place = f"{path} line {record.line}"
        problem = None if record.problem is None else f"{place}: {record.problem}"
        if header is not None:
            cells = [*record.fields, *[None] * (len(header) - len(record.fields))]
            yield Row(dict(zip(header, cells, strict=False)), place, problem)
        elif problem is not None:
            raise InputError(problem)
        else:
            header = check_header(record.fields, place)


def check_header(header: Sequence[str], place: str) -> list[str]:
    """Refuse a header with two columns of the same name.

    Args:
        header: The names of the columns.
        place: Where they stand, for the message.

    Returns:
        The names, without spaces around them.
    """
    names = [name.strip() for name in header]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"{place}: two columns are named '{repeated[0]}'; column names must be unique")
    return names


@dataclass(frozen=True)
class _Record:
    """One row of separated values, which may span several lines."""

    fields: Sequence[str]  # of a damaged row, those that could be read
    line: int  # its first
    problem: str | None = None
    is_blank: bool = False  # a line without anything but spaces


class _Records:
    """The records of a file.

    A record of several lines that is damaged is given back as its first line, and the other lines are read again: where
    a quotation mark is not closed, they are rows of their own.
    """

    def __init__(self, lines: Iterator[Line], separator: str, quoting: Quoting) -> None:
        self._lines, self._separator = _Rereadable(lines), separator
        self._reader = csv.reader(self._lines, delimiter=separator, quoting=quoting, strict=True)

    def read(self, width: int | None) -> _Record | None:
        """Read the next record; None at the end of the file.

        Args:
            width: How many fields it should have; None for any number.
        """
        self._lines.start_record()
        fields, error = _next_fields(self._reader)
        lines = self._lines.taken
        if not lines:
            return None
        if len(lines) == 1 and lines[0].is_blank:
            return _Record([], lines[0].number, is_blank=True)
        damage = self._damage(fields, error, lines, width)
        if damage is None:
            return _Record(fields, lines[0].number, next((line.problem for line in lines if line.problem), None))
        if error is not None or len(lines) > 1:
            fields = self._readable_fields(lines[0].text, width)
        self._lines.put_back_all_but_first()
        return _Record(fields, lines[0].number, lines[0].problem or damage)

    def _damage(self, fields: Sequence[str], error: str | None, lines: Sequence[Line], width: int | None) -> str | None:
        """Return why the fields of a record cannot be told apart; None if they can."""
        reason = error
        if reason is None and width not in (None, len(fields)):
            reason = f"{len(fields)} fields where the header has {width}"
        if reason is None and self._lines.is_second_reading and not _has_clean_quotes(lines, self._separator):
            return "a quotation mark inside a field, in what follows one that is not closed"
        if reason is None or (len(lines) == 1 and "expected" not in reason):  # as csv words errors of quotation marks
            return reason
        number = _line_of_last_quote(lines, self._separator) if error is not None else lines[0].number
        return f"the quotation mark that opens in line {number} is not closed properly ({reason})"

    def _readable_fields(self, line: str, width: int | None) -> list[str]:
        """Return the fields of a line whose quotation marks are damaged; as many as there should be, if possible."""
        fields, plain = _lenient_fields(line, self._separator), line.rstrip("\r\n").split(self._separator)
        return plain if len(plain) == width else fields


class _Rereadable:
    """Lines that can be read again, as csv.reader takes them."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines, self._again = lines, deque[Line]()
        self._last_again = 0  # number of the last line that was put back
        self.taken: list[Line] = []  # since the start of the record
        self._size = 0  # of these, in characters

    def __iter__(self) -> Iterator[str]:
        """Return itself."""
        return self

    def __next__(self) -> str:
        """Return the next line."""
        if self._size > LARGEST_RECORD:
            raise csv.Error(f"its end was expected within {LARGEST_RECORD} characters")
        line = self._again.popleft() if self._again else next(self._lines)
        self.taken.append(line)
        self._size += len(line.text)
        return line.text

    @property
    def is_second_reading(self) -> bool:
        """Whether the record begins with a line that was put back."""
        return bool(self.taken) and self.taken[0].number <= self._last_again

    def start_record(self) -> None:
        """Forget the lines of the last record."""
        self.taken, self._size = [], 0

    def put_back_all_but_first(self) -> None:
        """Put the lines since the start of the record back, except for the first."""
        self._again.extendleft(reversed(self.taken[1:]))
        self._last_again = max(self._last_again, self.taken[-1].number if len(self.taken) > 1 else 0)


def _next_fields(reader: Iterator[list[str]]) -> tuple[list[str], str | None]:
    """Read the fields of the next record, none at the end of the file, and what is wrong with them."""
    with _unlimited_fields:
        try:
            return next(reader, []), None
        except csv.Error as error:
            return [], str(error)


class _UnlimitedFields:
    """Lifts the limit on the size of a field, which is global to the csv module, for one record."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._limit = 0  # of others

    def __enter__(self) -> None:
        """Lift the limit; other threads wait."""
        self._lock.acquire()
        self._limit = csv.field_size_limit(LARGEST_FIELD)

    def __exit__(self, *_: object) -> None:
        """Restore the limit."""
        csv.field_size_limit(self._limit)
        self._lock.release()


_unlimited_fields = _UnlimitedFields()


def _lenient_fields(line: str, separator: str) -> list[str]:
    """Split a line into fields whatever its quotation marks are like."""
    line = line.rstrip("\r\n")
    try:
        with _unlimited_fields:
            return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return line.split(separator)


def _has_clean_quotes(lines: Sequence[Line], separator: str) -> bool:
    """Return whether quotation marks stand only around whole fields, and doubled inside them (RFC 4180)."""
    field = rf'(?:"(?:[^"]++|"")*+"|[^"{separator}]*+)'
    text = "".join(line.text for line in lines).rstrip("\r\n")
    return re.fullmatch(rf"{field}(?:{separator}{field})*+", text) is not None


def _line_of_last_quote(lines: Sequence[Line], separator: str) -> int:
    """Return the number of the line in which the last quoted field of a record opens."""
    field = re.compile(rf'"(?:[^"]++|"")*+"?|[^{separator}\r\n]*+')
    text = "".join(line.text for line in lines)
    position = opened = 0
    while (match := field.match(text, position)) is not None:
        opened = position if match[0].startswith('"') else opened
        position = match.end() + 1
        if text[match.end() : position] != separator:
            break
    return lines[text.count("\n", 0, opened)].number
