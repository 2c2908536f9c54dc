"""Read files of any known format, and folders of them, as rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from exitpoll.data.json_rows import read_json, read_jsonl
from exitpoll.data.lines import COMPRESSIONS, read_lines
from exitpoll.data.places import Place
from exitpoll.data.rows import RawSplits, Row, checked
from exitpoll.data.separated import check_header, read_csv, read_tsv, separator_note
from exitpoll.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

PARQUET = ".parquet"
PARQUET_ROWS = 8192  # read at a time
SPLIT_STEMS = {"train": ("train",), "dev": ("dev", "validation", "valid", "val", "calibration"), "test": ("test",)}
SHARD = re.compile(r"-\d+-of-\d+$")


def read_txt(path: Place) -> Iterator[Row]:
    """Read one text a line, in the column `text`; blank lines are ignored."""
    for line in read_lines(path):
        if line.text.strip():
            place = f"{path} line {line.number}"
            problem = None if line.problem is None else f"{place}: {line.problem}"
            yield Row({"text": line.text.rstrip("\r\n")}, place, problem)


def read_parquet(path: Place, start: int = 0) -> Iterator[Row]:
    """Read a Parquet file, from a row on; row groups before it are not read."""
    with _open_parquet(path) as file:
        check_header(file.schema_arrow.names, str(path))
        groups, done = _groups_from(file, start)
        for batch in file.iter_batches(batch_size=PARQUET_ROWS, row_groups=groups) if groups else ():
            rows = batch.slice(max(0, start - done))
            for number, values in enumerate(rows.to_pylist(), start=max(start, done) + 1):
                yield Row(values, f"{path} row {number}")
            done += len(batch)


@contextmanager
def _open_parquet(path: Place) -> Iterator[ParquetFile]:
    """Open a Parquet file, and name it in the errors of reading it."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise MissingExtraError("reading Parquet", "data") from error
    try:
        with parquet.ParquetFile(path if isinstance(path, Path) else path.open("rb")) as file:
            yield file
    except (ArrowException, OSError, OverflowError) as error:
        raise InputError(f"'{path}' cannot be read as Parquet: {error}") from error


def _groups_from(file: ParquetFile, start: int) -> tuple[list[int], int]:
    """Return the row groups that hold rows from some row on, and the number of the first row of the first of them."""
    first = done = 0
    while first < file.num_row_groups and done + file.metadata.row_group(first).num_rows <= start:
        done += file.metadata.row_group(first).num_rows
        first += 1
    return list(range(first, file.num_row_groups)), done


# A new file format is one row here.
READERS: dict[str, Callable[[Place], Iterator[Row]]] = {
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".jsonl": read_jsonl,
    ".json": read_json,
    ".txt": read_txt,
    PARQUET: read_parquet,
}
NOT_COMPRESSED = (PARQUET,)  # which is compressed inside
NO_SPLITS = (".txt",)  # which has no labels


def kind_of(path: Place) -> str | None:
    """Return the format of a file by its suffix, without that of a compression.

    Args:
        path: The file, which need not exist.

    Returns:
        A key of `READERS`; None if the format is unknown.
    """
    kind = path.suffix.lower()
    if kind in COMPRESSIONS:
        kind = path.with_suffix("").suffix.lower()
        return kind if kind in READERS and kind not in NOT_COMPRESSED else None
    return kind if kind in READERS else None


def check_known(path: Place) -> str:
    """Refuse a file whose suffix names no known format.

    Args:
        path: The file, which need not exist.

    Returns:
        Its format, a key of `READERS`.
    """
    kind = kind_of(path)
    if kind is None:
        kinds = ", ".join(READERS)
        raise InputError(f"'{path}' is of an unknown kind; known kinds: {kinds}; text files may end in .gz or .zst too")
    return kind


def read_rows(path: Place, start: int = 0) -> Iterator[Row]:
    """Read the rows of a file one after another, in the format that its suffix names.

    Args:
        path: The file.
        start: The number of the first row to read, from 0.

    Returns:
        The rows; those that cannot be read say why.
    """
    kind = check_known(path)
    return read_parquet(path, start) if kind == PARQUET else islice(READERS[kind](path), start, None)


def count_rows(path: Place) -> int:
    """Count the rows of a file: by the metadata of a Parquet file, and else by reading it.

    Args:
        path: The file.
    """
    if kind_of(path) != PARQUET:
        return sum(1 for _ in read_rows(path))
    with _open_parquet(path) as file:
        return int(file.metadata.num_rows)


def notes_on(path: Place) -> tuple[str, ...]:
    """Return what a user should know about how a file is read.

    Args:
        path: A file that exists.
    """
    note = separator_note(path) if kind_of(path) == ".csv" else None
    return () if note is None else (note,)


def read_file(path: Path) -> list[Row]:
    """Read all rows of a file, in the format that its suffix names.

    Args:
        path: The file.

    Returns:
        The rows, at least one.
    """
    rows = list(checked(read_rows(path)))
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
    files = sorted(file for file in folder.iterdir() if kind_of(file) not in (None, *NO_SPLITS))
    rows: dict[str, list[Row]] = {}
    notes: list[str] = []
    for split, stems in SPLIT_STEMS.items():
        shards = [file for file in files if _split_stem(file).lower() in stems]
        if len({(_split_stem(shard), "".join(shard.suffixes)) for shard in shards}) > 1:
            names = ", ".join(shard.name for shard in shards)
            raise InputError(f"'{folder}' has more than one {split} file: {names}; keep one")
        if shards:
            rows[split] = [row for shard in shards for row in read_file(shard)]
            notes += [note for shard in shards for note in notes_on(shard)]
    if "train" not in rows:
        kinds = ", ".join(kind for kind in READERS if kind not in NO_SPLITS)
        raise InputError(f"'{folder}' has no train file; expected train, dev and test files of kind {kinds}")
    return RawSplits(rows, notes=tuple(notes))


def _split_stem(path: Path) -> str:
    """Return the name of a file without its suffixes and the number of its shard."""
    stem = path.stem if path.suffix.lower() not in COMPRESSIONS else path.with_suffix("").stem
    return SHARD.sub("", stem)
