"""exitpoll predict: classify every row of a file."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from exitpoll.cli.console import errors, quieten_transformers, say
from exitpoll.errors import InputError

if TYPE_CHECKING:
    from exitpoll.engine.engine import Engine

STDIN = "-"


def predict(
    model: str,
    /,
    *,
    input: Annotated[str, Parameter(allow_leading_hyphen=True)],  # noqa: A002
    output: Path | None = None,
    policy: Path | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    batch_size: int = 32,
    threads: int | None = None,
    on_error: Literal["stop", "skip"] = "stop",
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Classify every row of a file, with early exit.

    Example: exitpoll predict trec-bert --input questions.csv --output answers.csv

    Args:
        model: The model folder, with its policy.json; without one no text exits early.
        input: A CSV, TSV, JSONL or Parquet file of any size, or - for lines of standard input.
        output: The CSV, TSV, JSONL or Parquet file to write; for standard input, JSON lines go to standard output.
        policy: Another policy than the model's own.
        text_column: The column of the text.
        pair_column: The column of the second text of a pair.
        batch_size: Texts in a batch, at most.
        threads: How many threads to use.
        on_error: What to do with a row that cannot be read: stop, or skip it and write the reason to the column error.
        resume: Continue a job that was interrupted.
        overwrite: Replace an older output.
    """
    from exitpoll.data.bars import progress_bars
    from exitpoll.decide.policy import Policy
    from exitpoll.engine.engine import Engine
    from exitpoll.engine.predict import predict_file

    _check_places(input, output, overwrite=overwrite)
    quieten_transformers()
    engine = Engine.load(model, policy=None if policy is None else Policy.load(policy), threads=threads)
    if output is None:
        _predict_stdin(engine, batch_size, on_error)
        return
    with progress_bars(errors) as on_progress:
        done = predict_file(
            engine,
            Path(input),
            output,
            text_column=text_column,
            pair_column=pair_column,
            batch_size=batch_size,
            on_error=on_error,
            resume=resume,
            about={"model": str(Path(model).resolve()), "policy": engine.policy.to_dict()},
            on_progress=on_progress,
        )
    if done.skipped:
        say(f"note: {done.skipped} rows were skipped; the column error holds the reasons")
    if done.broken:
        say(f"note: {done.broken} of {done.rows} rows have logits that are not finite; these never exit early")
    depth = f"mean depth {done.mean_depth:.2f} of {engine.runtime.exit_layers[-1]} layers"
    say(f"wrote {output}: {done.rows} rows, {depth}")


def _check_places(source: str, output: Path | None, *, overwrite: bool) -> None:
    """Check that a file is answered in a file, and standard input on standard output."""
    from exitpoll.files import check_writable

    if output is not None and source == STDIN:
        raise InputError("standard input is answered on standard output: leave out --output, or name a file as --input")
    if output is None and source != STDIN:
        raise InputError("name the file to write with --output")
    if output is not None:
        check_writable(output, overwrite=overwrite)


def _predict_stdin(engine: Engine, batch_size: int, on_error: Literal["stop", "skip"]) -> None:
    """Answer lines of standard input, batch by batch."""
    from exitpoll.engine.predict import predict_lines

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # errors name the line that is not UTF-8
    for line in predict_lines(engine, sys.stdin, batch_size, on_error=on_error):
        sys.stdout.write(line)
        sys.stdout.flush()
