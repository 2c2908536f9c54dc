"""Rows of CSV, TSV, JSONL and Parquet files and of hub datasets, each with the place it came from."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exitpoll.data.tasks import Task
from exitpoll.errors import InputError, MissingExtraError

csv.field_size_limit(2**31 - 1)

PARQUET_ROWS = 8192  # that are read at a time


@dataclass(frozen=True)
class Row:
    """One row and where it stands, for error messages."""

    values: dict[str, Any]
    place: str
    problem: str | None = None  # why it cannot be read, and has no values


@dataclass(frozen=True)
class Source:
    """What was read of a dataset."""

    rows: dict[str, list[Row]]  # of each split: train, dev, test
    class_names: list[str] | None = None  # in the source's own order, if it has one
    notes: tuple[str, ...] = ()


def read_csv(path: Path) -> Iterator[Row]:
    """Read comma-separated values with a header; fields may be quoted."""
    yield from _read_separated(path, delimiter=",", quoting=csv.QUOTE_MINIMAL)


def read_tsv(path: Path) -> Iterator[Row]:
    """Read tab-separated values with a header; quotation marks mean nothing, as in GLUE's files."""
    yield from _read_separated(path, delimiter="\t", quoting=csv.QUOTE_NONE)


def _read_separated(path: Path, delimiter: str, quoting: Any) -> Iterator[Row]:
    """Read a header and rows of as many fields."""
    problems: list[str] = []  # of the lines of this row
    lines = (_noted(line, problem, problems) for line, problem in _lines(path))
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    header: list[str] | None = None
    while (fields := _next_fields(reader, problems)) is not None:
        place = f"{path} line {reader.line_num}"
        if header is None and problems:
            raise InputError(f"{place}: {problems[0]}")
        if not problems and (not fields or fields == [" " * len(fields[0])]):
            continue
        if header is None:
            header = _check_header(fields, place)
            continue
        if not problems and len(fields) != len(header):
            problems.append(f"{len(fields)} fields where the header has {len(header)}")
        if problems:
            yield Row({}, place, f"{place}: {problems[0]}")
        else:
            yield Row(dict(zip(header, fields, strict=True)), place)
        problems.clear()


def _noted(line: str, problem: str | None, problems: list[str]) -> str:
    """Write down what is wrong with a line."""
    problems += [] if problem is None else [problem]
    return line


def _check_header(header: list[str], place: str) -> list[str]:
    """Refuse a header that names two columns alike."""
    names = [name.strip() for name in header]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{place}: two columns are named '{twice[0]}'; name every column once")
    return names


def _next_fields(reader: Any, problems: list[str]) -> list[str] | None:
    """Read the next row, None at the end."""
    try:
        return next(reader, None)
    except csv.Error as error:
        problems.append(str(error))
        return []


def read_jsonl(path: Path) -> Iterator[Row]:
    """Read one JSON object a line."""
    for number, (line, problem) in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        place = f"{path} line {number}"
        values, problem = ({}, problem) if problem else _object(line)
        yield Row(values, place, None if problem is None else f"{place}: {problem}")


def _object(line: str) -> tuple[dict[str, Any], str | None]:
    """Read a line of JSON, or say what is wrong with it."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        return {}, f"not JSON: {error}"
    if not isinstance(values, dict):
        return {}, f"expected an object with named fields, found {type(values).__name__}"
    if "\\ud" in line.lower():  # half a character, which JSON can escape and UTF-8 cannot hold
        try:
            json.dumps(values, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            return {}, f"half a character, {error.object[error.start]!a}, stands alone"
    return values, None


def checked(rows: Iterable[Row]) -> Iterator[Row]:
    """Refuse rows that cannot be read.

    Args:
        rows: What a reader gives.

    Yields:
        The same rows.
    """
    for row in rows:
        if row.problem is not None:
            raise InputError(row.problem)
        yield row


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


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".jsonl": read_jsonl,
    ".parquet": read_parquet,
}


def read_hub(name: str, task: Task | None) -> Source:
    """Read a dataset of the hub.

    Args:
        name: The hub's name of the dataset, or a known task's name.
        task: That task, if the name is one.

    Returns:
        Its splits under our names for them: train, dev, test.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(f"'{name}' is no local file or folder, and reading it from the hub", "data") from error
    place = task.hub if task is not None else name
    try:
        loaded = datasets.load_dataset(place, task.subset if task is not None else None)
    except Exception as error:  # the hub's client raises a dozen kinds, from no network to no such dataset
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"'{name}' is no local file or folder, and the hub did not give it: {reason}") from error
    splits = task.splits if task is not None else _hub_splits(set(loaded))
    ours = {} if task is None else _our_names(task)
    rows, notes = {}, []
    for split, theirs in splits.items():
        if theirs not in loaded and split != "train":
            continue
        rows[split], hidden = _drop_hidden(list(_hub_rows(loaded[theirs], f"{place} {theirs}", ours)))
        notes += [f"{hidden} texts of {place} {theirs} have no label and were left out"] if hidden else []
    return Source(rows, _class_names(loaded[splits["train"]], ours), tuple(notes))


def _hub_splits(present: set[str]) -> dict[str, str]:
    """Match the hub's usual split names with ours."""
    if "train" not in present:
        raise InputError(f"the dataset has no train split; its splits are: {', '.join(sorted(present))}")
    usual = {"train": "train", "dev": "validation", "test": "test"}
    return {ours: theirs for ours, theirs in usual.items() if theirs in present}


def _our_names(task: Task) -> dict[str, str]:
    """Name a known task's columns by our conventions; a column that would then clash keeps out of the way."""
    texts = ("text",) if len(task.columns) == 1 else ("text_a", "text_b")
    ours = {"label": "label at the hub"} | dict(zip(task.columns, texts, strict=True))
    return ours | {task.label: "label"}


def _hub_rows(dataset: Any, place: str, ours: dict[str, str]) -> Iterator[Row]:
    """Go through a hub split, with class numbers turned to names; −1 marks a label that is not given."""
    names = {column: feature.names for column, feature in dataset.features.items() if hasattr(feature, "names")}
    for number, values in enumerate(dataset, start=1):
        named = {
            ours.get(column, column): _class_name(value, names[column]) if column in names else value
            for column, value in values.items()
        }
        yield Row(named, f"{place} row {number}")


def _class_name(value: int | None, names: list[str]) -> str | None:
    """Name a class number."""
    return None if value is None or value < 0 else names[value]


def _drop_hidden(rows: list[Row]) -> tuple[list[Row], int]:
    """Leave out the rows without a label where others have one, and count them."""
    labelled = [row for row in rows if row.values.get("label") is not None]
    return (labelled, len(rows) - len(labelled)) if labelled else (rows, 0)


def _class_names(dataset: Any, ours: dict[str, str]) -> list[str] | None:
    """Give the classes in the hub's own order, if it has one."""
    for column, feature in dataset.features.items():
        if ours.get(column, column) == "label" and hasattr(feature, "names"):
            return list(feature.names)
    return None


def _lines(path: Path) -> Iterator[tuple[str, str | None]]:
    """Go through a UTF-8 file's lines, and say of each what is wrong with it."""
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
