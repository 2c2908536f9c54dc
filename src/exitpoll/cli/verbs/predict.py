"""exitpoll predict: answer every row of a file."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from exitpoll.cli.console import errors, quieten_transformers, say
from exitpoll.errors import InputError


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
    """Answer every row of a file, each text at the layer where its policy is sure.

    Example: exitpoll predict trec-bert --input questions.csv --output answers.csv

    Args:
        model: The model folder, with its policy.json; without one no text leaves early.
        input: A CSV, TSV, JSONL or Parquet file of any size, or - for lines of standard input.
        output: The CSV, TSV, JSONL or Parquet file to write; lines of JSON to standard output for standard input.
        policy: Another policy than the model's own.
        text_column: The column of the text.
        pair_column: The column of the second text of a pair.
        batch_size: Most texts in a call.
        threads: How many threads to use.
        on_error: At a row whose text cannot be answered: stop, or skip it and say why in the column error.
        resume: Go on with a job that was cut off.
        overwrite: Replace an older output.
    """
    from exitpoll.cli.progress import progress_bars
    from exitpoll.decide.policy import Policy
    from exitpoll.engine.engine import Engine
    from exitpoll.engine.predict import predict_file, predict_lines
    from exitpoll.files import check_writable

    if output is not None and input == "-":
        raise InputError("lines of standard input are answered on standard output: leave out --output, or name a file")
    if output is not None:
        check_writable(output, overwrite=overwrite)
    elif input != "-":
        raise InputError("say where to write with --output")
    quieten_transformers()
    engine = Engine.load(model, policy=None if policy is None else Policy.load(policy), threads=threads)
    if output is None:
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # what is not UTF-8 is named by its line
        for line in predict_lines(engine, sys.stdin, batch_size, on_error=on_error):
            sys.stdout.write(line)
            sys.stdout.flush()
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
        say(f"note: {done.skipped} rows were skipped; the column error says why")
    if done.broken:
        say(f"note: {done.broken} of {done.rows} rows have logits that are not finite; these never leave early")
    depth = f"mean depth {done.mean_depth:.2f} of {engine.runtime.exit_layers[-1]} layers"
    say(f"wrote {output}: {done.rows} rows, {depth}")
