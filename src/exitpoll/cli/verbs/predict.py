"""exitpoll predict: classify every row of a file."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

from cyclopts import Parameter

from exitpoll.cli.console import (
    modes,
    print_as_json,
    progress_console,
    quieten_transformers,
    remark,
    say,
    show_result,
    write_out,
)
from exitpoll.cli.groups import IN_DATA, IN_MODEL, IN_OUTPUT
from exitpoll.cli.options import (
    AsJson,
    BatchSize,
    Cluster,
    Device,
    OptionalOut,
    Overwrite,
    PolicyPath,
    Resume,
    RuntimeName,
    Threads,
)
from exitpoll.errors import InputError

if TYPE_CHECKING:
    from exitpoll.decide.policy import Policy
    from exitpoll.engine.engine import Engine
    from exitpoll.engine.model_choice import ModelChoice
    from exitpoll.engine.predict import Summary
    from exitpoll.engine.sharded import ShardRunner

STDIN = "-"


def predict(
    model: str,
    /,
    *,
    data: Annotated[str, Parameter(allow_leading_hyphen=True), IN_DATA],
    out: OptionalOut = None,
    runtime: RuntimeName = None,
    policy: PolicyPath = None,
    text_column: Annotated[str | None, IN_DATA] = None,
    pair_column: Annotated[str | None, IN_DATA] = None,
    batch_size: BatchSize = 32,
    threads: Threads = None,
    device: Device = "auto",
    on_error: Annotated[Literal["stop", "skip"], IN_DATA] = "stop",
    processes: Annotated[int | None, IN_MODEL] = None,
    cluster: Cluster = None,
    shard_rows: Annotated[int | None, IN_OUTPUT] = None,
    shard_format: Annotated[Literal["parquet", "csv", "tsv", "jsonl"], IN_OUTPUT] = "parquet",
    resume: Resume = False,
    overwrite: Overwrite = False,
    explain: Annotated[bool, Parameter(negative=""), IN_OUTPUT] = False,
    as_json: AsJson = False,
) -> None:
    """Classify every row of a file, a folder or a glob, with early exit.

    Example: exitpoll predict trec-bert --data questions.csv --out answers.csv

    Args:
        model: The model folder, with its policy.json; without one no text exits early.
        data: A CSV, TSV, JSON, JSONL, TXT or Parquet file of any size, the text files also as .gz or .zst, or - for
            texts or JSON objects as lines of standard input; also a folder of such files, a glob in quotes, or a URL
            that fsspec knows.
        out: The CSV, TSV, JSONL or Parquet file to write, or a folder for one file per shard, by a name without such a
            suffix; for standard input, JSON lines go to standard output.
        runtime: Run the export of the model folder for this runtime, with its own policy; by default the
            one that `adopt` found to be fastest, or torch.
        policy: Another policy than the model's own.
        text_column: The column of the text.
        pair_column: The column of the second text of a pair.
        batch_size: The bound on memory: a call has at most as many tokens as so many of the longest texts.
        threads: How many threads to use.
        device: Where to run the model: cpu, cuda, cuda:1, mps …; auto takes a GPU where there is one.
        on_error: What to do with a row that cannot be read: stop, or skip it and write the reason to the column error.
        processes: Share the work among this many processes, one thread each; with --cluster, among workers there.
        cluster: Run on Ray: auto for the cluster of this machine, local to start Ray here, or HOST:PORT.
        shard_rows: Rows in a shard, at most; a shard is what a process takes at a time, and what is kept.
        shard_format: The format of the files in an output folder.
        resume: Continue a job that was interrupted.
        overwrite: Replace an older output.
        explain: Print, for every text, what the exits on its way said and why it left, in place of writing a file; one
            line of JSON for every text with --json.
        as_json: Print the counts as JSON.
    """
    from exitpoll.data.bars import progress_bars
    from exitpoll.decide.policy import Policy
    from exitpoll.engine.engine import Engine
    from exitpoll.engine.model_choice import ModelChoice
    from exitpoll.engine.predict import predict_file
    from exitpoll.engine.sharded import predict_shards

    print_as_json(as_json)
    _check_places(data, out, overwrite=overwrite, explain=explain)
    quieten_transformers()
    chosen = None if policy is None else Policy.load(policy)
    columns = {"text_column": text_column, "pair_column": pair_column}
    if out is not None and _is_sharded(data, out, processes, cluster, shard_rows):
        choice = ModelChoice.of(model, runtime, device)
        with (
            _runner(choice, chosen, processes, cluster, threads) as runner,
            progress_bars(progress_console()) as on_progress,
        ):
            done = predict_shards(
                runner,
                choice,
                data,
                out,
                policy=chosen,
                kind=f".{shard_format}",
                **columns,
                batch_size=batch_size,
                shard_rows=shard_rows,
                on_error=on_error,
                resume=resume,
                overwrite=overwrite,
                on_progress=on_progress,
            )
        _show_summary(done, out)
        return
    engine = Engine.load(model, runtime, policy=chosen, threads=threads, device=device)
    if explain:
        _explain(engine, data, on_error, columns)
        return
    if out is None:
        _predict_stdin(engine, batch_size, on_error, columns)
        return
    with progress_bars(progress_console()) as on_progress:
        done = predict_file(
            engine,
            Path(data),
            out,
            **columns,
            batch_size=batch_size,
            on_error=on_error,
            resume=resume,
            about={"model": str(Path(model).resolve()), "runtime": runtime, "policy": engine.policy.to_dict()},
            on_progress=on_progress,
        )
    _show_summary(done, out, f" of {engine.runtime.exit_layers[-1]} layers")


def _show_summary(done: Summary, out: Path, of_layers: str = "") -> None:
    """Print what was predicted."""
    remark(*(f"note: {note}" for note in done.notes))
    if done.skipped:
        remark(f"note: {done.skipped} rows were skipped; the column error holds the reasons")
    if done.broken:
        remark(f"note: {done.broken} of {done.rows} rows have logits that are not finite; these never exit early")
    say(f"wrote {out}: {done.rows} rows, mean depth {done.mean_depth:.2f}{of_layers}")
    show_result({"out": str(out), **vars(done)})


def _is_sharded(data: str, out: Path, processes: int | None, cluster: str | None, shard_rows: int | None) -> bool:
    """Return whether a job is done in shards: several inputs or processes, or an output folder."""
    from exitpoll.data.inputs import is_several

    return any(option is not None for option in (processes, cluster, shard_rows)) or not out.suffix or is_several(data)


@contextmanager
def _runner(
    model: ModelChoice, policy: Policy | None, processes: int | None, cluster: str | None, threads: int | None
) -> Iterator[ShardRunner]:
    """Choose where shards are predicted."""
    from exitpoll.engine.processes import Processes
    from exitpoll.engine.sharded import ThisProcess

    if threads is not None and (processes, cluster) != (None, None):
        raise InputError("threads: each process has one; use processes", options=["threads", "processes"])
    if cluster is not None:
        from exitpoll.cluster.connect import connected
        from exitpoll.cluster.predict import RayActors

        with connected(cluster, processes) as workers:
            yield RayActors(workers)
    elif processes is not None:
        yield Processes(processes)
    else:
        yield ThisProcess(model, policy, threads)


def _check_places(data: str, out: Path | None, *, overwrite: bool, explain: bool) -> None:
    """Check that a file is answered in a file, and standard input on standard output; so are explanations."""
    from exitpoll.data.inputs import is_several
    from exitpoll.data.readers import check_known
    from exitpoll.files import check_writable

    if explain:
        if out is not None:
            raise InputError("explanations go to standard output: leave out --out")
        if data != STDIN:
            check_known(Path(data))
            if not Path(data).is_file():
                raise InputError(f"'{data}' does not exist")
        return
    if out is not None and data == STDIN:
        raise InputError("standard input is answered on standard output: leave out --out, or name a file with --data")
    if out is None and data != STDIN:
        raise InputError("name the file to write with --out")
    if out is not None and out.suffix and not is_several(data):
        check_writable(out, overwrite=overwrite)


def _predict_stdin(
    engine: Engine, batch_size: int, on_error: Literal["stop", "skip"], columns: Mapping[str, str | None]
) -> None:
    """Answer lines of standard input, batch by batch."""
    from exitpoll.engine.predict import predict_lines

    for line in predict_lines(engine, _stdin_lines(), batch_size, **columns, on_error=on_error):
        write_out(line)


def _explain(engine: Engine, data: str, on_error: Literal["stop", "skip"], columns: Mapping[str, str | None]) -> None:
    """Print a table for every text, or a line of JSON."""
    from exitpoll.data.json_rows import read_texts_or_objects
    from exitpoll.data.readers import read_rows
    from exitpoll.engine.predict import explain_rows

    rows = read_texts_or_objects(_stdin_lines()) if data == STDIN else read_rows(Path(data))
    for explanation in explain_rows(engine, rows, **columns, on_error=on_error):
        if isinstance(explanation, str):
            say(f"skipped: {explanation}", "")
            show_result({"error": explanation})
        elif modes.json:
            show_result(explanation.to_dict())
        else:
            say(*str(explanation).splitlines(), "")


def _stdin_lines() -> TextIO:
    """Return the lines of standard input, whose bytes that are not UTF-8 errors will name."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    return sys.stdin
