"""Rows to CSV, TSV, JSON lines and Parquet, a block at a time."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from exitpoll.errors import InputError, MissingExtraError

Rows = Sequence[Mapping[str, Any]]

PARQUET_ROWS = 8192  # in a group of a Parquet file


def write_separated(rows: Rows, columns: Sequence[str], header: bool) -> str:
    """Write rows as comma-separated values."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    careful = csv.DictWriter(text, columns, lineterminator="\n", quoting=csv.QUOTE_ALL)
    if header:
        writer.writeheader()
    for row in rows:
        cells = {name: _cell(value) for name, value in row.items()}
        bare = any(isinstance(cell, str) and "\r" in cell for cell in cells.values())  # which csv leaves unquoted
        (careful if bare else writer).writerow(cells)
    return text.getvalue()


def write_tabbed(rows: Rows, columns: Sequence[str], header: bool) -> str:
    """Write rows as tab-separated values without quotes, as we read them; line ends and tabs within become spaces."""
    lines = ["\t".join(columns)] if header else []
    for row in rows:
        cells = ("" if row.get(name) is None else str(_cell(row[name])) for name in columns)
        lines.append("\t".join(" ".join(cell.splitlines()).replace("\t", " ") for cell in cells))
    return "".join(line + "\n" for line in lines)


def _cell(value: Any) -> Any:
    """Write a value into one cell: labels parted by bars, probabilities of several as JSON."""
    if isinstance(value, tuple | list):
        return "|".join(map(str, value))
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict) else value


def write_json_lines(rows: Rows, columns: Sequence[str], header: bool) -> str:
    """Write rows as JSON, one a line; what JSON has no form for, dates and bytes say, is written as text."""
    return "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)


WRITERS: dict[str, Callable[[Rows, Sequence[str], bool], str]] = {  # rows, columns, and whether their names come first
    ".csv": write_separated,
    ".tsv": write_tabbed,
    ".jsonl": write_json_lines,
    ".parquet": write_json_lines,  # until all rows are there: a Parquet file cannot be added to
}


def finish(partial: Path, out: Path) -> None:
    """Put a file to which all rows were written in its place, whole or not at all.

    Args:
        partial: What `WRITERS` wrote, which is gone afterwards.
        out: Where it belongs.
    """
    if out.suffix.lower() == ".parquet":
        _to_parquet(partial, out)
        partial.unlink()
    else:
        partial.rename(out)


def check_kind(path: Path) -> None:
    """Refuse, before any work is done, what could not be written in the end.

    Args:
        path: The file to be written.
    """
    if path.suffix.lower() not in WRITERS:
        raise InputError(f"'{path}' is of an unknown kind; known kinds: {', '.join(WRITERS)}")
    if path.suffix.lower() == ".parquet":
        _pyarrow()


def _pyarrow() -> Any:
    """Import pyarrow, or say how to get it."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("writing Parquet", "data") from error
    return pyarrow


def _to_parquet(lines: Path, out: Path) -> None:
    """Turn lines of JSON into Parquet with memory for some of them; what has no type in common becomes text."""
    pyarrow = _pyarrow()
    schema = pyarrow.schema([])
    for table in _tables(lines):
        schema = _common(schema, table.schema)
    aside = out.with_name(f"{out.name}.{os.getpid()}.aside")
    try:
        with pyarrow.parquet.ParquetWriter(aside, schema) as writer:
            for table in _tables(lines, schema):
                writer.write_table(table)
        aside.rename(out)
    finally:
        aside.unlink(missing_ok=True)


def _tables(path: Path, schema: Any = None) -> Iterator[Any]:
    """Read lines of JSON as tables of some rows each, of their own types or of a schema's."""
    pyarrow = _pyarrow()
    with path.open(encoding="utf-8") as file:
        while lines := list(islice(file, PARQUET_ROWS)):
            rows = [json.loads(line) for line in lines]
            names = schema.names if schema else list(dict.fromkeys(name for row in rows for name in row))
            columns = {
                name: _column([row.get(name) for row in rows], schema.field(name).type if schema else None)
                for name in names
            }
            yield pyarrow.table(columns, schema=schema)


def _column(values: list[Any], kind: Any) -> Any:
    """Make a column of a type, or of whatever type fits; of text where Parquet has none."""
    pyarrow = _pyarrow()
    try:
        made = pyarrow.array(values, type=kind)
        fits = not _is_empty_inside(made.type)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError):
        fits = False
    if fits:
        return made
    texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    return pyarrow.array(texts, type=pyarrow.string())


def _is_empty_inside(kind: Any) -> bool:
    """Whether records without fields are in a type, which Parquet cannot hold."""
    types = _pyarrow().types
    if types.is_struct(kind):
        return not kind.num_fields or any(_is_empty_inside(each.type) for each in kind)
    return bool(types.is_list(kind)) and _is_empty_inside(kind.value_type)


def _common(first: Any, second: Any) -> Any:
    """Find a schema that two tables can have."""
    pyarrow = _pyarrow()
    try:
        return pyarrow.unify_schemas([first, second], promote_options="permissive")
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
        fields = {each.name: each for each in (*first, *second)}
        for name in set(first.names) & set(second.names):
            try:
                parts = [pyarrow.schema([schema.field(name)]) for schema in (first, second)]
                fields[name] = pyarrow.unify_schemas(parts, promote_options="permissive").field(name)
            except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
                fields[name] = pyarrow.field(name, pyarrow.string())
        return pyarrow.schema(list(fields.values()))
