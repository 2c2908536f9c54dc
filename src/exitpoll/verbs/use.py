"""From texts to answers: predict, export, bench."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from exitpoll.console import console, errors, notes_of, quieten_transformers, say
from exitpoll.errors import InputError
from exitpoll.verbs import Numbers, Reading, Split, app, try_to_draw


@app.command
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
    from exitpoll.engine.engine import Engine
    from exitpoll.files import check_writable
    from exitpoll.decide.policy import Policy
    from exitpoll.engine.predict import predict_file, predict_lines
    from exitpoll.progress import predicting_bar

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
    with predicting_bar(errors) as advance:
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
            advance=advance,
        )
    if done.skipped:
        say(f"note: {done.skipped} rows were skipped; the column error says why")
    if done.broken:
        say(f"note: {done.broken} of {done.rows} rows have logits that are not finite; these never leave early")
    depth = f"mean depth {done.mean_depth:.2f} of {engine.runtime.layers[-1]} layers"
    say(f"wrote {output}: {done.rows} rows, {depth}")


@app.command
def export(
    model: str,
    /,
    *,
    to: Path | None = None,
    int8: bool = False,
    data: str | None = None,
    split: Split = "calibration",
    reading: Annotated[Reading | None, Parameter(name="*")] = None,
    overwrite: bool = False,
) -> None:
    """Write a model for ONNX Runtime, which runs it faster and without torch; its policy goes with it.

    Example: exitpoll export trec-bert --int8 --data trec

    Args:
        model: The model folder that `exitpoll train` wrote.
        to: The folder to write; by default onnx, or onnx-int8, in the model folder.
        int8: Quantise weights and activations: smaller and faster, and not quite the same answers.
        data: The data the model was trained on, or other texts like those to come: the policy is calibrated on them
            anew, and it is said what int8 costs. Without, an int8 export has no policy.
        split: Which split of the data; all takes a file as it is, with labels or without.
        reading: Which columns to read.
        overwrite: Replace an older export.
    """
    from exitpoll.export.export import deliver
    from exitpoll.engine.loading import open_model, policy_path, read_texts
    from exitpoll.progress import stages_bar
    from exitpoll.report.wording import delivered_in_words

    quieten_transformers()
    to = to or policy_path(model).with_name("onnx-int8" if int8 else "onnx")
    read = None if data is None else read_texts(open_model(model), data, split, **vars(reading or Reading()))
    with stages_bar(errors) as on_progress:
        delivered = deliver(
            model,
            to,
            int8=int8,
            texts=None if read is None else read.texts,
            about=None if read is None else read.about,
            overwrite=overwrite,
            on_progress=on_progress,
        )
    for line in (*([] if read is None else notes_of(read)), *delivered_in_words(delivered)):
        say(line)


@app.command
def bench(
    model: str,
    /,
    *,
    data: str,
    split: Split = "test",
    reading: Annotated[Reading | None, Parameter(name="*")] = None,
    texts: int = 500,
    batch_sizes: Numbers = None,
    rounds: int = 5,
    threads: int | None = None,
    compiled: bool = False,
    out: Path | None = None,
) -> None:
    """Time a calibrated model, and its exports, beside what one would run instead: wall-clock speed-up, in ratios.

    Example: exitpoll bench trec-bert --data trec

    Args:
        model: The model folder, with its policy.json; exports in it are timed too.
        data: The texts: a file, a folder, a known task or a hub dataset.
        split: Which split of the data; all takes a file as it is.
        reading: Which columns to read.
        texts: Time at most this many texts.
        batch_sizes: Most texts in a call; 1, 8, 32 and 128 by default.
        rounds: How often each way is timed.
        threads: How many threads to use.
        compiled: Time a compiled encoder too, which needs a C++ compiler and takes its time.
        out: The folder for bench.json and bench.png; none by default.
    """
    from exitpoll.benchmark.timing import BATCH_SIZES, benchmark, contestants
    from exitpoll.files import write_json
    from exitpoll.engine.loading import read_texts
    from exitpoll.report.plots import draw_parts, save
    from exitpoll.progress import counting_bar
    from exitpoll.engine.record import given_texts
    from exitpoll.tables import benchmark_table

    if texts < 1:
        raise InputError(f"texts {texts} must be at least 1")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    quieten_transformers()
    runners = contestants(model, threads=threads)
    read = read_texts(runners[0].opened, data, split, **vars(reading or Reading()))
    chosen = given_texts(read.texts)[:texts]
    with counting_bar(errors, "timing") as advance:
        sizes = batch_sizes or BATCH_SIZES
        result = benchmark(runners, chosen, batch_sizes=sizes, rounds=rounds, compiled=compiled, advance=advance)
    console.print(benchmark_table(result))
    if out is None:
        return
    about = {"model": runners[0].opened.runtime.model, "data": read.about["data"], "split": split}
    drawn = try_to_draw(lambda: save(draw_parts(result), out / "bench.png"))
    write_json(out / "bench.json", replace(result, about=about).to_dict())
    say(f"wrote {out}/bench.json{drawn or ' and bench.png'}")
