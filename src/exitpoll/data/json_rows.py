"""Read rows from JSON: lines of objects, arrays of objects, and objects of columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain

from exitpoll.data.lines import check_first_bytes, open_bytes, read_lines
from exitpoll.data.places import Place
from exitpoll.data.rows import Row
from exitpoll.errors import InputError

SURROGATE = re.compile(r"\\ud|[\ud800-\udfff]", flags=re.IGNORECASE)  # escaped in JSON, or a byte that is not UTF-8


def read_jsonl(path: Place) -> Iterator[Row]:
    """Read JSON lines: one object per line."""
    for line in read_lines(path):
        if line.text.strip():
            yield _row_of_line(line.text, f"{path} line {line.number}", line.problem)


def read_json(path: Place) -> Iterator[Row]:
    """Read an array of objects, an object of columns as pandas writes it, or JSON lines; all in memory."""
    with open_bytes(path) as file:
        content = file.read()
    check_first_bytes(path, content)
    try:
        parsed = json.loads(content.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # one object after another
            yield from read_jsonl(path)
            return
        raise InputError(f"{path} line {error.lineno}: not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # also what is not UTF-8
        raise InputError(f"'{path}' cannot be read as JSON: {error}") from error
    items = parsed if isinstance(parsed, list) else _rows_of_columns(parsed, path)
    for number, item in enumerate(items, start=1):
        place = f"{path} item {number}"
        values, problem = _checked_values(item)
        yield Row(values, place, None if problem is None else f"{place}: {problem}")


def read_texts_or_objects(lines: Iterable[str]) -> Iterator[Row]:
    """Read JSON lines if the first line is a JSON object, and else one text a line.

    Args:
        lines: The lines; blank ones are ignored.

    Yields:
        The rows of the objects, or rows with the column `text`.
    """
    filled = ((number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip())
    first = next(filled, None)
    if first is None:
        return
    is_json = first[1].startswith("{") and _parse_object(first[1])[1] is None
    for number, line in chain([first], filled):
        yield _row_of_line(line, f"line {number}") if is_json else Row({"text": line}, f"line {number}")


def _row_of_line(line: str, place: str, problem: str | None = None) -> Row:
    """Parse a line that should be a JSON object, as far as it can be parsed."""
    values, parse_problem = _parse_object(line)
    problem = problem or parse_problem
    return Row(values, place, None if problem is None else f"{place}: {problem}")


def _parse_object(line: str) -> tuple[dict[str, object], str | None]:
    """Parse a JSON object, and return what is wrong with it."""
    try:
        return _checked_values(json.loads(line), may_have_surrogates=SURROGATE.search(line) is not None)
    except (ValueError, RecursionError) as error:
        return {}, f"not JSON: {error}"


def _checked_values(item: object, *, may_have_surrogates: bool = True) -> tuple[dict[str, object], str | None]:
    """Check that a row is an object of characters that UTF-8 can encode, and return what is wrong with it."""
    if not isinstance(item, dict):
        return {}, f"expected a JSON object, got {type(item).__name__}"
    if may_have_surrogates:
        text = json.dumps(item, ensure_ascii=False)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            readable = json.loads(text.encode(errors="replace"))
            return readable, f"half a character, the lone surrogate {error.object[error.start]!a}"
    return item, None


def _rows_of_columns(parsed: object, path: Place) -> list[dict[str, object]]:
    """Turn an object of columns into rows; a column is a list, or an object by row as pandas writes it."""
    columns = parsed if isinstance(parsed, dict) else {}
    indexed = {
        name: dict(enumerate(column)) if isinstance(column, list) else column for name, column in columns.items()
    }
    first = next(iter(indexed.values()), None)
    if not isinstance(first, dict) or any(
        not isinstance(column, dict) or column.keys() != first.keys() for column in indexed.values()
    ):
        raise InputError(
            f"'{path}' is not a table: expected an array of objects, or an object of columns of the same length; "
            "name JSON lines .jsonl"
        )
    return [{name: column[row] for name, column in indexed.items()} for row in first]
