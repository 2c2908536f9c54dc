"""Predictions for files of any size: constant memory, and a job that was cut off goes on where it was.

Rows are answered block by block. A finished block is appended to `<output>.partial` and noted in `<output>.progress`;
whatever stands behind the last note is dropped on resuming, so no row is lost or doubled.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

from exitpoll.data.columns import find_text_columns
from exitpoll.data.progress import OnProgress, Progress, ignore
from exitpoll.data.readers import READERS, Row, checked
from exitpoll.data.writers import WRITERS, check_kind, finish
from exitpoll.engine.engine import Engine, Prediction, Text, check_text
from exitpoll.errors import InputError
from exitpoll.files import read_json, write_json

BLOCK = 8192  # rows that are answered and written together

PREDICTED = ("predicted", "probability", "depth")
COUNTED = ("rows", "skipped", "broken", "size", "depth")  # what is noted of a job that is not finished

OnError = Literal["stop", "skip"]


@dataclass(frozen=True)
class Summary:
    """What a prediction job came to."""

    rows: int
    skipped: int
    broken: int  # answered by numbers that are not finite
    mean_depth: float


def predict_file(
    engine: Engine,
    source: Path,
    out: Path,
    *,
    text_column: str | None = None,
    pair_column: str | None = None,
    batch_size: int = 32,
    on_error: OnError = "stop",
    resume: bool = False,
    about: Mapping[str, Any] | None = None,
    on_progress: OnProgress = ignore,
) -> Summary:
    """Answer every row of a file and write the rows with their predictions, in the order of the file.

    Args:
        engine: Answers.
        source: A CSV, TSV, JSONL or Parquet file.
        out: The file to write, CSV, TSV, JSONL or Parquet; it appears when all rows are in it.
        text_column: The column of the text; found by convention if not named.
        pair_column: The column of the second text of a pair.
        batch_size: Most texts in a call.
        on_error: At a row whose text cannot be answered, "stop", or "skip" it: its prediction stays empty and the
            column `error` says why.
        resume: Go on with a job that was cut off.
        about: What must be the same for a job to be resumed: model, policy.
        on_progress: Called after every block.

    Returns:
        How many rows were answered.
    """
    check_kind(out)
    if source.suffix.lower() not in READERS:
        raise InputError(f"'{source}' is of an unknown kind; known kinds: {', '.join(READERS)}")
    if not source.is_file():
        raise InputError(f"'{source}' does not exist")
    if out.exists() and out.samefile(source):
        raise InputError(f"'{out}' is the input: name another output, so that nothing is lost")
    stat = source.stat()
    identity = {
        "input": [stat.st_size, stat.st_mtime_ns],
        "columns": [text_column, pair_column],
        "on_error": on_error,
        "fingerprint": engine.runtime.fingerprint,
        "runtime": engine.runtime.name,
        **(about or {}),
    }
    work = _Work(out, identity, resume=resume)
    rows = READERS[source.suffix.lower()](source)
    if on_error == "stop":
        rows = checked(rows)
    for _ in islice(rows, work.rows):
        pass
    depth = work.depth
    with work.open() as file, work.dropped_if_nothing_was_done():
        while block := list(islice(rows, BLOCK)):
            if work.layout is None:
                is_fixed = out.suffix.lower() in (".csv", ".tsv")
                work.layout = _layout(block, text_column, pair_column, errors=on_error == "skip", is_fixed=is_fixed)
            answered = _answer(engine, _texts(block, work.layout), batch_size, on_error)
            written = [_with_prediction(row, each, work.layout) for row, each in zip(block, answered, strict=True)]
            file.write(WRITERS[out.suffix.lower()](written, work.layout.columns, not work.rows).encode("utf-8"))
            depth += sum(each.depth for each in answered if isinstance(each, Prediction))
            good = [each for each in answered if isinstance(each, Prediction)]
            work.note(file, len(block), len(block) - len(good), sum(not each.is_finite for each in good), depth)
            mean_depth = depth / max(1, work.rows - work.skipped)
            on_progress(Progress("predicting", work.rows, mean_depth=mean_depth))
        if not work.rows:
            raise InputError(f"'{source}' has no rows")
    work.publish()
    return Summary(work.rows, work.skipped, work.broken, depth / max(1, work.rows - work.skipped))


def predict_lines(
    engine: Engine, lines: Iterable[str], batch_size: int = 32, *, on_error: OnError = "stop"
) -> Iterator[str]:
    """Answer texts that come one a line.

    Args:
        engine: Answers.
        lines: Texts; empty lines are passed over.
        batch_size: Most texts in a call, and lines that are waited for.
        on_error: As for files.

    Yields:
        A line of JSON for each text, in their order.
    """
    if batch_size < 1:
        raise InputError(f"batch_size {batch_size} must be at least 1")
    layout = _Layout("text", None, ["text", *PREDICTED, *["error"] * (on_error == "skip")])
    rows = (Row({"text": line.strip()}, f"line {number}") for number, line in enumerate(lines, start=1))
    full = (row for row in rows if row.values["text"])
    while block := list(islice(full, batch_size)):
        answered = _answer(engine, _texts(block, layout), batch_size, on_error)
        for row, each in zip(block, answered, strict=True):
            yield json.dumps(_with_prediction(row, each, layout), ensure_ascii=isinstance(each, str)) + "\n"


@dataclass(frozen=True)
class _Layout:
    """The columns of a job, the same for all its blocks."""

    text: str
    pair: str | None
    columns: Sequence[str]  # of the output
    is_fixed: bool = False  # whether no column may come later


def _layout(
    block: Sequence[Row], text_column: str | None, pair_column: str | None, *, errors: bool, is_fixed: bool
) -> _Layout:
    """Find the columns by the first rows."""
    if all(row.problem is not None for row in block):
        raise InputError(f"none of the first {len(block)} rows can be read; {block[0].problem}")
    text, pair = find_text_columns(block, text_column, pair_column)
    names = dict.fromkeys(name for row in block for name in row.values)
    added = [*PREDICTED, *["error"] * errors]
    for name in added:
        if name in names:
            raise InputError(f"{block[0].place}: there is a column '{name}' already, which predictions need; rename it")
    return _Layout(text, pair, [*names, *added], is_fixed)


class _Work:
    """What is there of an output that is not finished."""

    def __init__(self, out: Path, identity: Mapping[str, Any], *, resume: bool) -> None:
        """Start anew, or find what was done."""
        self.out, self.identity = out, json.loads(json.dumps(identity))
        self.partial = out.with_name(out.name + ".partial")
        self.progress = out.with_name(out.name + ".progress")
        self.rows = self.skipped = self.broken = self.size = self.depth = 0
        self.layout: _Layout | None = None
        if not self.partial.exists():
            return
        noted = read_json(self.progress)
        if noted is None:
            raise InputError(f"'{self.partial}' is in the way, and no job of exitpoll that was cut off; remove it")
        if not resume:
            raise InputError(f"'{self.partial}' is a job that was cut off: say --resume, or remove it")
        if noted.get("identity") != self.identity:
            raise InputError(f"'{self.partial}' was begun with another input, model, policy or --on-error")
        if self.partial.stat().st_size < noted["size"]:
            raise InputError(f"'{self.partial}' is shorter than it was; remove it and start anew")
        for name in COUNTED:
            setattr(self, name, noted[name])
        self.layout = None if noted["layout"] is None else _Layout(**noted["layout"])

    def open(self) -> BinaryIO:
        """Open the file behind the last block that was noted."""
        self._save()  # first, for what has no progress is not ours
        file = self.partial.open("r+b" if self.partial.exists() else "w+b")
        file.truncate(self.size)
        file.seek(self.size)
        return file

    def note(self, file: BinaryIO, rows: int, skipped: int, broken: int, depth: int) -> None:
        """Note a block once it is on the disk."""
        file.flush()
        os.fsync(file.fileno())
        self.rows, self.skipped, self.broken = self.rows + rows, self.skipped + skipped, self.broken + broken
        self.size, self.depth = file.tell(), depth
        self._save()

    def _save(self) -> None:
        """Write down what is done."""
        done = {name: getattr(self, name) for name in COUNTED}
        layout = None if self.layout is None else asdict(self.layout)
        write_json(self.progress, {"identity": self.identity, "layout": layout, **done})

    def publish(self) -> None:
        """Put the finished file in its place."""
        finish(self.partial, self.out)
        self.progress.unlink(missing_ok=True)

    @contextmanager
    def dropped_if_nothing_was_done(self) -> Iterator[None]:
        """Remove what was begun where not even a block came of it."""
        try:
            yield
        except BaseException:
            if not self.rows:
                self.partial.unlink(missing_ok=True)
                self.progress.unlink(missing_ok=True)
            raise


def _texts(block: Sequence[Row], layout: _Layout) -> list[tuple[Row, Any]]:
    """Take the text, or pair, of every row."""
    first, second = layout.text, layout.pair
    return [
        (row, row.values.get(first) if second is None else (row.values.get(first), row.values.get(second)))
        for row in block
    ]


def _answer(
    engine: Engine, texts: Sequence[tuple[Row, Any]], batch_size: int, on_error: OnError
) -> list[Prediction | str]:
    """Answer every text, or say why it cannot be."""
    found: list[Prediction | str] = []
    good: list[Text] = []
    for row, text in texts:
        if row.problem is not None:
            found.append(row.problem)
            continue
        try:
            check_text(row.place, text)
            good.append(text)
            found.append("")
        except InputError as error:
            if on_error == "stop":
                raise
            found.append(str(error))
    answers = iter(engine(good, batch_size))
    return [each or next(answers) for each in found]


def _with_prediction(row: Row, answered: Prediction | str, layout: _Layout) -> dict[str, Any]:
    """Put what a row was answered beside its own columns."""
    for name in row.values:
        if name in PREDICTED or (layout.is_fixed and name not in layout.columns):
            raise InputError(
                f"{row.place}: the first rows have no column '{name}'; only .jsonl and .parquet can add it"
            )
    if isinstance(answered, str):
        return {**row.values, "predicted": None, "probability": None, "depth": None, "error": answered}
    unknown = isinstance(answered.probability, float) and math.isnan(answered.probability)  # a value has none
    columns = {
        "predicted": answered.label,
        "probability": None if unknown else answered.probability,
        "depth": answered.depth,
    }
    return {**row.values, **columns, **({"error": None} if "error" in layout.columns else {})}
