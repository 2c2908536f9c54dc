"""Read rows from CSV, TSV, JSONL and Parquet files, with the place of every row for error messages."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal

from exitpoll.errors import InputError, MissingExtraError

LARGEST_FIELD = 2**31 - 1  # characters in a field of a CSV file; Python's own limit is 128 kB
PARQUET_ROWS = 8192  # read at a time
SPLIT_STEMS = {"train": ("train",), "dev": ("dev", "validation", "valid", "val", "calibration"), "test": ("test",)}
SHARD = re.compile(r"-\d+-of-\d+$")

Quoting = Literal[0, 3]  # csv.QUOTE_MINIMAL, csv.QUOTE_NONE

_field_size_lock = Lock()


@dataclass(frozen=True)
class Row:
    """One row and where it comes from."""

    values: dict[str, object]
    place: str  # file and line, for error messages
    problem: str | None = None  # why the row cannot be read; it then has no values


@dataclass(frozen=True)
class RawSplits:
    """The rows of a dataset as they were read."""

    rows: dict[str, list[Row]]  # by split: train, dev, test
    class_names: list[str] | None = None  # in the order of the dataset, if it defines one
    notes: tuple[str, ...] = ()  # what a reader of the results should know about the splits


def read_csv(path: Path) -> Iterator[Row]:
    """Read comma-separated values with a header; fields may be quoted."""
    yield from _read_separated(path, delimiter=",", quoting=csv.QUOTE_MINIMAL)


def read_tsv(path: Path) -> Iterator[Row]:
    """Read tab-separated values with a header; quotation marks have no meaning, as in the files of GLUE."""
    yield from _read_separated(path, delimiter="\t", quoting=csv.QUOTE_NONE)


def _read_separated(path: Path, delimiter: str, quoting: Quoting) -> Iterator[Row]:
    """Read a header and rows with as many fields."""
    header: list[str] | None = None
    for record in _records(path, delimiter, quoting):
        if record.is_blank:
            continue
        if header is None:
            if record.problem is not None:
                raise InputError(f"{record.place}: {record.problem}")
            header = _check_header(record.fields, record.place)
            continue
        problem = record.problem
        if problem is None and len(record.fields) != len(header):
            problem = f"{len(record.fields)} fields where the header has {len(header)}"
        if problem is None:
            yield Row(dict(zip(header, record.fields, strict=True)), record.place)
        else:
            yield Row({}, record.place, f"{record.place}: {problem}")


@dataclass(frozen=True)
class _Record:
    """One row of separated values, which may span several lines."""

    fields: list[str]
    place: str
    problem: str | None  # the first that was noticed

    @property
    def is_blank(self) -> bool:
        """Whether the row is empty or a single field of spaces."""
        return self.problem is None and (not self.fields or self.fields == [" " * len(self.fields[0])])


def _records(path: Path, delimiter: str, quoting: Quoting) -> Iterator[_Record]:
    """Read the rows of a file, header and blank rows included."""
    lines = _Lines(path)
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    while True:
        fields, problem = _next_fields(reader)
        if fields is None:
            return
        yield _Record(fields, f"{path} line {reader.line_num}", lines.take_problem() or problem)


def _next_fields(reader: Iterator[list[str]]) -> tuple[list[str] | None, str | None]:
    """Read the fields of the next row, None at the end of the file, and what is wrong with them.

    The limit on the size of a field is global to the csv module, so it is lifted for one row at a time.
    """
    with _field_size_lock:
        limit = csv.field_size_limit(LARGEST_FIELD)
        try:
            return next(reader, None), None
        except csv.Error as error:
            return [], str(error)
        finally:
            csv.field_size_limit(limit)


class _Lines:
    """The decoded lines of a file; remembers the first problem of the lines read since `take_problem`."""

    def __init__(self, path: Path) -> None:
        self._lines = _decoded_lines(path)
        self._problem: str | None = None

    def __iter__(self) -> Iterator[str]:
        """Return itself: the lines can be read once."""
        return self

    def __next__(self) -> str:
        """Return the next line."""
        line, problem = next(self._lines)
        self._problem = self._problem or problem
        return line

    def take_problem(self) -> str | None:
        """Return the first problem since the last call."""
        problem, self._problem = self._problem, None
        return problem


def _decoded_lines(path: Path) -> Iterator[tuple[str, str | None]]:
    """Read the lines of a UTF-8 file, and what is wrong with them."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            encoding = "utf-8-sig" if number == 1 else "utf-8"
            try:
                text, problem = line.decode(encoding), None
            except UnicodeDecodeError as error:
                text = line.decode(encoding, errors="replace")
                problem = f"invalid UTF-8 ({error.reason}); save it as UTF-8"
            if "\0" in text:
                text, problem = text.replace("\0", ""), "a NUL byte, so it is not plain text; save it as UTF-8"
            yield text, problem


def _check_header(header: list[str], place: str) -> list[str]:
    """Refuse a header with two columns of the same name."""
    names = [name.strip() for name in header]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"{place}: two columns are named '{repeated[0]}'; column names must be unique")
    return names


def read_jsonl(path: Path) -> Iterator[Row]:
    """Read JSON lines: one object per line."""
    for number, (line, problem) in enumerate(_decoded_lines(path), start=1):
        if not line.strip():
            continue
        place = f"{path} line {number}"
        values, problem = ({}, problem) if problem else _parse_object(line)
        yield Row(values, place, None if problem is None else f"{place}: {problem}")


def _parse_object(line: str) -> tuple[dict[str, object], str | None]:
    """Parse a line of JSON, and return what is wrong with it."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        return {}, f"not JSON: {error}"
    if not isinstance(values, dict):
        return {}, f"expected a JSON object, got {type(values).__name__}"
    if "\\ud" in line.lower():  # a lone surrogate: JSON can escape it, UTF-8 cannot encode it
        try:
            json.dumps(values, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            return {}, f"half a character, the lone surrogate {error.object[error.start]!a}"
    return values, None


def read_parquet(path: Path) -> Iterator[Row]:
    """Read a Parquet file."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise MissingExtraError("reading Parquet", "data") from error
    done = 0
    try:
        with parquet.ParquetFile(path) as file:
            _check_header(file.schema_arrow.names, str(path))
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                for number, values in enumerate(batch.to_pylist(), start=done + 1):
                    yield Row(values, f"{path} row {number}")
                done += len(batch)
    except (ArrowException, OSError, OverflowError) as error:
        raise InputError(f"'{path}' cannot be read as Parquet: {error}") from error


# A new file format is one row here.
READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".jsonl": read_jsonl,
    ".parquet": read_parquet,
}


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


def read_file(path: Path) -> list[Row]:
    """Read all rows of a file, in the format that its suffix names.

    Args:
        path: A CSV, TSV, JSONL or Parquet file.

    Returns:
        The rows, at least one.
    """
    if path.suffix.lower() not in READERS:
        raise InputError(f"'{path}' is of an unknown kind; known kinds: {', '.join(READERS)}")
    rows = list(checked(READERS[path.suffix.lower()](path)))
    if not rows:
        raise InputError(f"'{path}' has no rows")
    return rows


def read_folder(folder: Path) -> RawSplits:
    """Read the splits of a folder, which are recognized by the names of its files.

    Args:
        folder: A folder with a train file, perhaps in several shards, and perhaps dev and test files.

    Returns:
        The rows of every split.
    """
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in READERS)
    rows: dict[str, list[Row]] = {}
    for split, stems in SPLIT_STEMS.items():
        shards = [file for file in files if SHARD.sub("", file.stem.lower()) in stems]
        if len({(SHARD.sub("", shard.stem), shard.suffix) for shard in shards}) > 1:
            names = ", ".join(shard.name for shard in shards)
            raise InputError(f"'{folder}' has more than one {split} file: {names}; keep one")
        if shards:
            rows[split] = [row for shard in shards for row in read_file(shard)]
    if "train" not in rows:
        kinds = ", ".join(READERS)
        raise InputError(f"'{folder}' has no train file; expected train, dev and test files of kind {kinds}")
    return RawSplits(rows)
