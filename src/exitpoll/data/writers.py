"""Write rows as CSV, TSV, JSON lines and Parquet, one block at a time."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from exitpoll.errors import InputError, check_installed

if TYPE_CHECKING:
    import pyarrow

Rows = Sequence[Mapping[str, object]]

PARQUET_ROWS = 8192  # in a row group of a Parquet file


def write_csv(rows: Rows, columns: Sequence[str], header: bool) -> str:
    """Format rows as comma-separated values."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    quoting_writer = csv.DictWriter(text, columns, lineterminator="\n", quoting=csv.QUOTE_ALL)
    if header:
        writer.writeheader()
    for row in rows:
        cells = {name: _cell(value) for name, value in row.items()}
        has_return = any(isinstance(cell, str) and "\r" in cell for cell in cells.values())  # csv does not quote it
        (quoting_writer if has_return else writer).writerow(cells)
    return text.getvalue()


def write_tsv(rows: Rows, columns: Sequence[str], header: bool) -> str:
    """Format rows as tab-separated values without quotes; line breaks and tabs in a value become spaces."""
    lines = ["\t".join(columns)] if header else []
    for row in rows:
        cells = ("" if row.get(name) is None else str(_cell(row[name])) for name in columns)
        lines.append("\t".join(" ".join(cell.splitlines()).replace("\t", " ") for cell in cells))
    return "".join(line + "\n" for line in lines)


def _cell(value: object) -> object:
    """Format a value for one cell: several labels are separated by `|`, several probabilities are JSON."""
    if isinstance(value, tuple | list):
        return "|".join(map(str, value))
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict) else value


def write_jsonl(rows: Rows, columns: Sequence[str], header: bool) -> str:
    """Format rows as JSON lines; values without a JSON type, such as dates and bytes, become strings."""
    return "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)


# Functions of rows, columns and whether to write a header.
WRITERS: dict[str, Callable[[Rows, Sequence[str], bool], str]] = {
    ".csv": write_csv,
    ".tsv": write_tsv,
    ".jsonl": write_jsonl,
    ".parquet": write_jsonl,  # converted at the end: one cannot append to a Parquet file
}


def finish(partial: Path, out: Path) -> None:
    """Move a file to its place atomically, converted to Parquet if it is to be that.

    Args:
        partial: What a function of `WRITERS` wrote; it is removed.
        out: Where the finished file belongs.
    """
    if out.suffix.lower() == ".parquet":
        _to_parquet(partial, out)
        partial.unlink()
    else:
        partial.rename(out)


def check_kind(path: Path) -> None:
    """Check, before any work is done, that a file can be written.

    Args:
        path: The file to be written.
    """
    if path.suffix.lower() not in WRITERS:
        raise InputError(f"'{path}' is of an unknown kind; known kinds: {', '.join(WRITERS)}")
    if path.suffix.lower() == ".parquet":
        check_installed(["pyarrow"], "writing Parquet", "data")


def _to_parquet(lines: Path, out: Path) -> None:
    """Convert JSON lines to Parquet in constant memory; columns without a common type become strings."""
    import pyarrow
    from pyarrow import parquet

    schema = pyarrow.schema([])
    for table in _tables(lines):
        schema = _common_schema(schema, table.schema)
    aside = out.with_name(f"{out.name}.{os.getpid()}.aside")
    try:
        with parquet.ParquetWriter(aside, schema) as writer:
            for table in _tables(lines, schema):
                writer.write_table(table)
        aside.rename(out)
    finally:
        aside.unlink(missing_ok=True)


def _tables(path: Path, schema: pyarrow.Schema | None = None) -> Iterator[pyarrow.Table]:
    """Read JSON lines as tables of `PARQUET_ROWS` rows, with the types of a schema or with inferred types."""
    import pyarrow

    with path.open(encoding="utf-8") as file:
        while lines := list(islice(file, PARQUET_ROWS)):
            rows = [json.loads(line) for line in lines]
            names = schema.names if schema else list(dict.fromkeys(name for row in rows for name in row))
            columns = {
                name: _array([row.get(name) for row in rows], schema.field(name).type if schema else None)
                for name in names
            }
            yield pyarrow.table(columns, schema=schema)


def _array(values: list[object], data_type: pyarrow.DataType | None) -> pyarrow.Array:
    """Make an array of a type, inferred by default; of strings if Parquet has no such type."""
    import pyarrow

    try:
        array = pyarrow.array(values, type=data_type)
        if not _has_empty_struct(array.type):
            return array
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError):
        pass
    texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    return pyarrow.array(texts, type=pyarrow.string())


def _has_empty_struct(data_type: pyarrow.DataType) -> bool:
    """Return whether a type contains a struct without fields, which Parquet cannot store."""
    from pyarrow import types

    if types.is_struct(data_type):
        return not data_type.num_fields or any(_has_empty_struct(field.type) for field in data_type)
    return bool(types.is_list(data_type)) and _has_empty_struct(data_type.value_type)


def _common_schema(first: pyarrow.Schema, second: pyarrow.Schema) -> pyarrow.Schema:
    """Return a schema that fits two tables."""
    import pyarrow

    try:
        return pyarrow.unify_schemas([first, second], promote_options="permissive")
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
        fields = {field.name: field for field in (*first, *second)}
        for name in set(first.names) & set(second.names):
            try:
                parts = [pyarrow.schema([schema.field(name)]) for schema in (first, second)]
                fields[name] = pyarrow.unify_schemas(parts, promote_options="permissive").field(name)
            except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
                fields[name] = pyarrow.field(name, pyarrow.string())
        return pyarrow.schema(list(fields.values()))
