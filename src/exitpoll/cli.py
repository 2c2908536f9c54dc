"""The command line: one function per verb."""

from __future__ import annotations

import io
import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console

from exitpoll import __version__
from exitpoll.console import console, errors, fail, notes_of, quieten_transformers, say, show_evaluation, show_training
from exitpoll.errors import InputError, MissingExtraError
from exitpoll.methods import TrainingSettings

if TYPE_CHECKING:
    from exitpoll.data import Splits
    from exitpoll.model import EarlyExitModel

app = App(
    name="exitpoll",
    help="Text classifiers that stop reading as soon as they are sure.\n\nExample: exitpoll quickstart --fast",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)


Strategies = Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")]
Split = Literal["train", "calibration", "test", "all"]  # as in opening, whose imports can wait


@dataclass(frozen=True)
class Reading:
    """Which columns of the data to read, and how; found by convention if not named.

    Args:
        task: The known task whose metric to use, where the name of the data does not say it.
        text_column: The column of the text.
        pair_column: The column of the second text of a pair.
        label_column: The column of the label.
    """

    task: str | None = None
    text_column: str | None = None
    pair_column: str | None = None
    label_column: str | None = None


@app.command
def train(
    *,
    data: str,
    out: Path,
    encoder: str | None = None,
    classifier: str | None = None,
    exits: Annotated[list[int] | None, Parameter(consume_multiple=True, negative="")] = None,
    head: Literal["mlp", "linear"] = "mlp",
    shared_head: bool = False,
    pooling: Literal["mean", "first", "pooler"] = "mean",
    reading: Annotated[Reading | None, Parameter(name="*")] = None,
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] | None = None,
    limit: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    settings: Annotated[TrainingSettings | None, Parameter(name="*")] = None,
) -> None:
    """Train an encoder with a head after every layer.

    Example: exitpoll train --encoder bert-base-uncased --data trec --out trec-bert

    Args:
        data: A CSV, TSV, JSONL or Parquet file, a folder with train, dev and test files, a known task's name
            (ag_news, cola, mnli, mrpc, qnli, qqp, rte, sst2, sst5, trec) or a hub dataset's.
        out: The model folder to write.
        encoder: A hub name or folder of a pretrained encoder.
        classifier: Instead of an encoder: a fine-tuned classifier that keeps its own head as the last exit; only
            heads below it are trained, unless a schedule is named.
        exits: The layers after which a text may leave; all by default. One number is a static model of that depth.
        head: Kind of head: one hidden layer, or linear.
        shared_head: Let one head serve all exits.
        pooling: What a head reads: the mean of the tokens, the first token, or the encoder's own pooler.
        reading: Which columns to read.
        problem_type: The kind of labels, where it cannot be told from them.
        limit: Train on at most this many texts.
        resume: Go on with a training that was cut off.
        overwrite: Replace an older model folder, or drop a training that was cut off.
        settings: How to train.
    """
    import torch
    from transformers import set_seed

    from exitpoll.data import load_splits
    from exitpoll.embedded import encoder_folder
    from exitpoll.folders import check_free
    from exitpoll.progress import training_bars
    from exitpoll.tokens import load_tokenizer
    from exitpoll.trainer import processes
    from exitpoll.training import train as train_model

    torch.set_flush_denormal(True)  # holds for threads that start later
    quieten_transformers()
    settings = _settings_for(settings or TrainingSettings(), encoder, classifier)
    check_free(out, overwrite=overwrite)
    splits = load_splits(
        data,
        **vars(reading or Reading()),
        problem_type=problem_type,
        label_names=None if classifier is None else _labels_of(classifier),
        limit=limit,
        seed=settings.seed,
    )
    set_seed(settings.seed)
    shape = {"exits": exits, "head": head, "shared_head": shared_head, "pooling": pooling}
    model = _build(encoder, classifier, splits, shape)
    tokenizer = load_tokenizer(str(classifier if encoder is None else encoder_folder(encoder)))
    quiet = not processes().is_main_process
    with training_bars(Console(stderr=True, quiet=quiet)) as on_progress:
        trained = train_model(
            model, tokenizer, splits, out, settings, resume=resume, overwrite=overwrite, on_progress=on_progress
        )
    if not quiet:
        show_training(trained)


@app.command
def record(
    model: str,
    /,
    *,
    data: str,
    out: Path,
    split: Split = "calibration",
    reading: Annotated[Reading | None, Parameter(name="*")] = None,
    batch_size: int = 64,
    overwrite: bool = False,
) -> None:
    """Run a model over texts once and keep what every exit said of them: a trace.

    Example: exitpoll record trec-bert --data trec --out trec.calibration.safetensors

    Args:
        model: The model folder that `exitpoll train` wrote.
        data: The data the model was trained on, or other texts: a file, a folder, a known task or a hub dataset.
        out: The trace to write.
        split: Which split of the data; all takes a file as it is, with labels or without.
        reading: Which columns to read.
        batch_size: Texts in a batch.
        overwrite: Replace an older trace.
    """
    from exitpoll.folders import check_writable
    from exitpoll.opening import open_model, read_texts
    from exitpoll.progress import counting_bar
    from exitpoll.recording import record as record_trace
    from exitpoll.wording import not_finite

    check_writable(out, overwrite=overwrite)
    quieten_transformers()
    opened = open_model(model)
    read = read_texts(opened, data, split, **vars(reading or Reading()))
    with counting_bar(errors, "recording") as advance:
        trace = record_trace(opened, read.texts, out, about=read.about, batch_size=batch_size, advance=advance)
    first, last = (trace.about["milliseconds"][number] for number in (0, -1))
    timed = f"leaving at the first exit takes {first:.3g} ms, at the last {last:.3g} ms, one text at a time"
    for line in (*notes_of(read), *not_finite(trace), timed):
        say(line)
    say(f"wrote {out}: {len(trace)} texts, {len(trace.layers)} exits, {trace.logits.shape[-1]} classes")


@app.command
def sweep(
    trace: Path,
    /,
    *,
    strategies: Strategies = None,
    ks: Annotated[list[float] | None, Parameter(consume_multiple=True, negative="")] = None,
    metric: str | None = None,
    points: int = 200,
    out: Path | None = None,
) -> None:
    """Compare all strategies on a trace: the best score at every speed-up.

    Example: exitpoll sweep trec.calibration.safetensors

    Args:
        trace: A trace with labels.
        strategies: Which to compare, of entropy, max_prob, margin, patience, confident_patience, js_patience, votes,
            soft_votes, mean, geometric, hybrid and learned; all by default.
        ks: The exponents of votes and soft votes; 0, 0.25, 0.5 and 0.75 by default.
        metric: What to score by: accuracy, accuracy_and_f1, matthews, micro_f1 or r2; the task's by default.
        points: How many thresholds to try of each.
        out: The folder for curves.json, curves.csv and curves.png; one beside the trace by default.
    """
    from exitpoll.candidates import KS
    from exitpoll.comparison import SPEEDUPS, compare
    from exitpoll.curves import sweep as sweep_trace
    from exitpoll.folders import write_json, write_text
    from exitpoll.plots import draw_curves, save
    from exitpoll.tables import comparison_table
    from exitpoll.trace import Trace
    from exitpoll.wording import best_in_words, not_finite

    if strategies is not None and not strategies:
        raise InputError("--strategies needs a name, or leave it out for all")
    if points < 1:
        raise InputError(f"points {points} must be at least 1")
    recorded = Trace.load(trace)
    comparison = compare(recorded, sweep_trace(recorded, strategies, ks=ks or KS, metric=metric, points=points))
    out = out or trace.with_name(f"{trace.stem}-sweep")
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "curves.csv", comparison.to_csv())
    console.print(comparison_table(comparison, SPEEDUPS))
    for line in best_in_words(comparison):
        say(line)
    for line in not_finite(recorded):
        say(line)
    drawn = _try_to_draw(lambda: save(draw_curves(comparison), out / "curves.png"))
    write_json(out / "curves.json", comparison.to_dict())
    say(f"wrote {out}/curves.json{f' and curves.csv{drawn}' if drawn else ', curves.csv and curves.png'}")


@app.command
def calibrate(
    model: str,
    /,
    *,
    trace: Path,
    strategy: str = "best",
    speedup: float | None = None,
    max_drop: float | None = None,
    latency_ms: float | None = None,
    confidence: float = 0.95,
    risk: Literal["disagreement", "accuracy"] = "disagreement",
    metric: str | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """Choose when a model may leave early, for one goal, and write it to policy.json in the model's folder.

    Where a promise cannot be kept, the exit code is 1, and a policy that is there already stays.

    Example: exitpoll calibrate trec-bert --trace trec.calibration.safetensors --max-drop 0.02

    Args:
        model: The model folder.
        trace: A trace of its calibration split.
        strategy: A strategy's name, or best to search them all.
        speedup: Goal: the best score at least this fast.
        max_drop: Goal: as fast as possible with a risk of at most this; 0.01 is one text in a hundred.
        latency_ms: Goal: the best score within so many milliseconds a text on average, one text at a time.
        confidence: How sure the promise is.
        risk: What is promised to be small: how often answers differ from the full model's, or the loss of accuracy.
        metric: What to score by, for a speed-up or latency; the task's by default.
        seed: Seed of the halves, one to search on and one to certify on.
        out: The policy to write, if not in the model's folder.
    """
    from exitpoll.calibration import calibrate as calibrate_trace
    from exitpoll.card import write_card
    from exitpoll.folders import check_replaceable
    from exitpoll.opening import check_same_model, open_model, policy_path
    from exitpoll.trace import Trace
    from exitpoll.wording import describe, not_finite

    recorded = Trace.load(trace)
    out = out or policy_path(model)
    check_replaceable(out, "strategy", "policy")
    policy = calibrate_trace(
        recorded,
        strategy,
        speedup=speedup,
        max_drop=max_drop,
        latency_ms=latency_ms,
        confidence=confidence,
        risk=risk,
        metric=metric,
        seed=seed,
    )
    quieten_transformers()
    check_same_model(model, open_model(model).source, trace, recorded.about)
    notes = ["note: this is a test split; keep it for exitpoll evaluate"] * (recorded.about.get("split") == "test")
    for line in (*describe(policy), *notes, *not_finite(recorded)):
        say(line)
    if policy.threshold is not None:
        policy.save(out)
        if out.resolve() == policy_path(model).resolve():
            write_card(Path(model))
        say(f"wrote {out}")
        return
    if out.exists():
        say(f"{out} stays as it was")
    else:
        policy.save(out)
        say(f"wrote {out}, a policy that never leaves early")
    sys.exit(1)


@app.command
def evaluate(
    model: str,
    /,
    *,
    data: str | None = None,
    trace: Path | None = None,
    split: Split = "test",
    policy: Path | None = None,
    by: str | None = None,
    metric: str | None = None,
    reading: Annotated[Reading | None, Parameter(name="*")] = None,
    batch_size: int = 64,
    out: Path | None = None,
) -> None:
    """Measure a calibrated model on texts it has not seen: score, speed-up, depths, and whether its promise held.

    Example: exitpoll evaluate trec-bert --data trec

    Args:
        model: The model folder, with its policy.json.
        data: The texts: a file, a folder, a known task or a hub dataset.
        trace: Instead of data: a trace of the texts.
        split: Which split of the data; all takes a file as it is.
        policy: Another policy than the model's own.
        by: A column of the data; every group of texts is measured on its own too.
        metric: What to score by; the task's by default.
        reading: Which columns to read.
        batch_size: Texts in a batch.
        out: A JSON file for all figures.
    """
    from exitpoll.evaluation import evaluate as evaluate_trace
    from exitpoll.folders import check_replaceable, write_json
    from exitpoll.opening import check_same_model, open_model, policy_path, read_texts
    from exitpoll.policy import Policy
    from exitpoll.progress import counting_bar
    from exitpoll.recording import record_in_memory
    from exitpoll.trace import Trace
    from exitpoll.wording import not_finite, same_texts

    if (data is None) == (trace is None):
        raise InputError("say what to evaluate on: either --data or --trace")
    if by is not None and data is None:
        raise InputError("--by needs --data: a trace has no columns")
    if out is not None:
        check_replaceable(out, "rows", "evaluation")
    quieten_transformers()
    chosen, groups = Policy.load(policy or policy_path(model)), None
    if trace is not None:
        recorded = Trace.load(trace)
        check_same_model(model, open_model(model).source, trace, recorded.about)
    else:
        opened = open_model(model)
        chosen.check_source(opened.source)
        read = read_texts(opened, str(data), split, **vars(reading or Reading()), group_column=by)
        groups = read.texts.groups
        with counting_bar(errors, "recording") as advance:
            recorded = record_in_memory(opened, read.texts, about=read.about, batch_size=batch_size, advance=advance)
        for line in notes_of(read):
            say(line)
    evaluation = evaluate_trace(recorded, chosen, metric=metric, groups=groups)
    if out is not None:
        write_json(out, evaluation.to_dict())
    show_evaluation(evaluation, chosen)
    for line in (*same_texts(chosen, recorded.about), *not_finite(recorded)):
        say(line)
    if out is not None:
        say(f"wrote {out}")


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
    from exitpoll.engine import Engine
    from exitpoll.folders import check_writable
    from exitpoll.policy import Policy
    from exitpoll.predicting import predict_file, predict_lines
    from exitpoll.progress import predicting_bar

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
    from exitpoll.delivery import deliver
    from exitpoll.opening import open_model, policy_path, read_texts
    from exitpoll.progress import stages_bar
    from exitpoll.wording import delivered_in_words

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
    batch_sizes: Annotated[list[int] | None, Parameter(consume_multiple=True, negative="")] = None,
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
    from exitpoll.benchmarking import BATCH_SIZES, benchmark, contestants
    from exitpoll.folders import write_json
    from exitpoll.opening import read_texts
    from exitpoll.plots import draw_parts, save
    from exitpoll.progress import counting_bar
    from exitpoll.recording import given_texts
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
    drawn = _try_to_draw(lambda: save(draw_parts(result), out / "bench.png"))
    write_json(out / "bench.json", replace(result, about=about).to_dict())
    say(f"wrote {out}/bench.json{drawn or ' and bench.png'}")


@app.command
def report(
    model: str,
    /,
    *,
    data: str,
    split: Split = "test",
    trace: Path | None = None,
    bench: Path | None = None,
    policy: Path | None = None,
    reading: Annotated[Reading | None, Parameter(name="*")] = None,
    batch_size: int = 64,
    out: Path | None = None,
) -> None:
    """Write one HTML page on a calibrated model: curves, promise, exits, and every text with what each exit said of it.

    Example: exitpoll report trec-bert --data trec

    Args:
        model: The model folder, with its policy.json.
        data: The texts, with labels: a file, a folder, a known task or a hub dataset.
        split: Which split of the data; all takes a file as it is.
        trace: A trace of these very texts; they are recorded without it.
        bench: The bench.json that `exitpoll bench` wrote, for wall-clock time.
        policy: Another policy than the model's own.
        reading: Which columns to read.
        batch_size: Texts in a batch.
        out: The folder for report.html and its figures; report in the model folder by default.
    """
    from exitpoll.benchmarking import Benchmark
    from exitpoll.opening import check_same_model, open_model, policy_path, read_texts
    from exitpoll.policy import Policy
    from exitpoll.progress import counting_bar
    from exitpoll.recording import given_texts, record_in_memory
    from exitpoll.report import check_installed, check_place, check_same_texts, gather, write_report
    from exitpoll.trace import Trace

    quieten_transformers()
    out = out or policy_path(model).with_name("report")
    check_installed()
    check_place(out)
    chosen, timed = Policy.load(policy or policy_path(model)), None if bench is None else Benchmark.load(bench)
    opened = open_model(model)
    chosen.check_source(opened.source)
    if bench is not None and timed is not None:
        check_same_model(model, {"model": opened.runtime.model}, bench, timed.about)
    read = read_texts(opened, data, split, **vars(reading or Reading()))
    if trace is not None:
        recorded = Trace.load(trace)
        check_same_model(model, opened.source, trace, recorded.about)
        check_same_texts(read.texts.labels, read.about, recorded)
    else:
        with counting_bar(errors, "recording") as advance:
            recorded = record_in_memory(opened, read.texts, about=read.about, batch_size=batch_size, advance=advance)
    name, texts = Path(model).resolve().name, given_texts(read.texts)
    material = gather(name, opened.label_names, chosen, recorded, texts, notes=notes_of(read), benchmark=timed)
    say(f"wrote {write_report(material, out)}")


@app.command
def search(
    *,
    encoder: str,
    data: str,
    out: Path,
    method: str = "ours, votes",
    seeds: Annotated[list[int] | None, Parameter(consume_multiple=True, negative="")] = None,
    budget: int | None = None,
    limit: int | None = None,
    settings: Annotated[TrainingSettings | None, Parameter(name="*")] = None,
) -> None:
    """Search the paper's grid for the settings that are best on the calibration split; it goes on when cut off.

    The grid: batch size 16, 32; learning rate 1e-5, 2e-5, 3e-5, 5e-5; epochs 3, 4, 5; and for ours the diversity
    weight 0.1, 0.2, 0.3, 0.5; each with three seeds.

    Example: exitpoll search --encoder google-bert/bert-base-uncased --data trec --out trec-search --budget 20

    Args:
        encoder: A hub name or folder of a pretrained encoder.
        data: A file, a folder, a known task's name or a hub dataset's.
        out: The folder for trials.
        method: A row of the paper's tables, whose strategy scores a trial.
        seeds: The seeds; 0, 1 and 2 by default.
        budget: Do at most so many trials, chosen by Optuna; the whole grid by default.
        limit: Train on at most this many texts.
        settings: What the grid does not say.
    """
    from exitpoll.paper import RANGES
    from exitpoll.reproducing import group_of, rows_named
    from exitpoll.runs import Run
    from exitpoll.searching import search as search_grid

    quieten_transformers()
    [row] = rows_named([method])
    base = replace(settings or TrainingSettings(), method=row.method, **dict(row.settings))
    found = search_grid(
        Run(data, encoder, base, limit=limit, prune=row.prune),
        row,
        RANGES[group_of(data)],
        out,
        seeds=seeds or (0, 1, 2),
        budget=budget,
        advance=lambda number, total, words: say(f"trial {number + 1} of {total}: {words}"),
    )
    say(f"best of {found.trials} trials ({found.pruned} ended early): {100 * found.score:.1f} on the calibration split")
    say(" ".join(f"--{name.replace('_', '-')} {value}" for name, value in found.settings.items()))


@app.command
def reproduce(
    what: Literal["binary", "multiclass", "all"] = "all",
    /,
    *,
    encoder: str,
    out: Path,
    data: str | None = None,
    tasks: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    methods: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    seeds: Annotated[list[int] | None, Parameter(consume_multiple=True, negative="")] = None,
    limit: int | None = None,
    presets: bool = False,
    pooling: Literal["mean", "first", "pooler"] = "mean",
    settings: Annotated[TrainingSettings | None, Parameter(name="*")] = None,
) -> None:
    """Repeat the paper's tables with runs of one's own; what is done is kept, and a job that was cut off goes on.

    Example: exitpoll reproduce binary --encoder albert/albert-base-v2 --out paper

    Args:
        what: The table of binary tasks, that of multi-class tasks, or both.
        encoder: A hub name or folder of a pretrained encoder.
        out: The folder for runs, traces and tables.
        data: A folder with a folder for each task; the hub by default.
        tasks: Which tasks; the table's by default.
        methods: Which rows of the table, by name; all by default.
        seeds: The seeds, each a run of its own; 0 by default.
        limit: Train on at most this many texts.
        presets: Use the paper's settings of each task (its Table 5).
        pooling: What a head reads.
        settings: How to train, the same for all methods.
    """
    from exitpoll.folders import write_json, write_text
    from exitpoll.model import read_config
    from exitpoll.paper import BINARY, MULTICLASS
    from exitpoll.progress import training_bars
    from exitpoll.reproducing import Plan, as_plain, cells, check_tasks, rows_named, tables
    from exitpoll.runs import execute_all

    quieten_transformers()
    wanted = tasks or {"binary": BINARY, "multiclass": MULTICLASS, "all": (*BINARY, *MULTICLASS)}[what]
    check_tasks(wanted)
    plan = Plan(
        encoder,
        read_config(encoder).num_hidden_layers,
        data=data,
        tasks=wanted,
        rows=rows_named(methods),
        seeds=seeds or [0],
        limit=limit,
        settings=settings or TrainingSettings(),
        presets=presets,
        pooling=pooling,
    )
    with training_bars(errors) as on_progress:
        outcomes = execute_all(
            plan.runs(),
            out / "runs",
            advance=lambda number, total, run: say(f"run {number + 1} of {total}: {run.name}"),
            on_progress=on_progress,
        )
    found = cells(plan, outcomes)
    write_json(out / "cells.json", as_plain(found))
    write_text(out / "tables.md", tables(plan, found))
    say(tables(plan, found))
    say(f"wrote {out}/cells.json and tables.md; every run is in {out}/runs")


@app.command
def quickstart(
    *, encoder: str = "embedded", data: str = "embedded", fast: bool = False, out: Path | None = None
) -> None:
    """Run the whole story once, on real data: train, record, compare, promise, predict, export, time, report.

    Cut off and started again, it goes on with the step it was at.

    Example: exitpoll quickstart --fast

    Args:
        encoder: What to train; the one of the extra demo by default.
        data: What to train on; movie reviews of the extra demo by default.
        fast: Use fewer texts and one epoch: two minutes, and not the best of models.
        out: The folder for everything; quickstart, or quickstart-fast, by default.
    """
    from exitpoll.quickstart import answers_in_words, check_installed, prepare, steps

    folder = out or Path("quickstart-fast" if fast else "quickstart")
    check_installed(encoder)
    prepare(folder, {"encoder": encoder, "data": data, "fast": fast})
    todo = list(steps(folder, encoder=encoder, data=data, fast=fast))
    for number, step in enumerate(todo, start=1):
        done = step.makes.exists()
        console.rule(f"{number} of {len(todo)}: {step.title}{' (done before)' if done else ''}", align="left")
        say(f"$ exitpoll {shlex.join(step.words)}")
        if not done and not _run(step.words) and step.otherwise:
            say(f"so, without a promise:\n$ exitpoll {shlex.join(step.otherwise)}")
            _run(step.otherwise)
        if step.words[0] == "predict":
            for line in answers_in_words(step.makes, _layers(folder / "model")):
                say(line)
    say(f"open {todo[-1].makes.resolve()} in a browser")


# ---- what verbs share -----------------------------------------------------------------------------------------------


def _settings_for(settings: TrainingSettings, encoder: str | None, classifier: str | None) -> TrainingSettings:
    """Make sure of one thing to start from; a fine-tuned classifier is left as it is unless a schedule is named."""
    if (encoder is None) == (classifier is None):
        raise InputError("say what to start from: either --encoder or --classifier")
    if encoder is not None and settings.schedule == "heads":
        raise InputError("schedule heads leaves the last head as it is, and an encoder has none yet: use --classifier")
    if classifier is not None and settings.schedule is None:
        settings = replace(settings, schedule="heads")
    return settings.resolved()


def _labels_of(classifier: str) -> list[str] | None:
    """Read a classifier's label names, None if it has only numbers for them."""
    from exitpoll.model import read_config

    config = read_config(classifier)
    names = [str(config.id2label[number]) for number in range(config.num_labels)]
    return None if names == [f"LABEL_{number}" for number in range(len(names))] else names


def _build(encoder: str | None, classifier: str | None, splits: Splits, shape: dict[str, Any]) -> EarlyExitModel:
    """Put heads on an encoder, or below a classifier's own."""
    from exitpoll.model import EarlyExitModel

    if encoder is not None:
        names = list(splits.label_names)
        return EarlyExitModel.from_encoder(encoder, labels=names, problem_type=splits.problem_type, **shape)
    assert classifier is not None
    return EarlyExitModel.from_classifier(classifier, **shape)


def _try_to_draw(draw: Callable[[], None]) -> str:
    """Draw a figure, or say why there is none."""
    try:
        draw()
    except MissingExtraError as missing:
        return f"; no figure: {missing}"
    return ""


def _run(words: list[str]) -> bool:
    """Run a verb, and tell whether it came to what it was to; that a promise cannot be kept is nothing to stop for."""
    try:
        app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except SystemExit as stop:
        if stop.code != 1:
            raise
        return False
    except InputError as error:
        if words[0] != "calibrate":
            raise
        say(str(error))
        return False
    return True


def _layers(model: Path) -> int:
    """Count the layers of a trained model."""
    from exitpoll.opening import read_summary

    return int(read_summary(model)["layers"][-1])


_ON_AGAIN = {
    "train": "stopped; it goes on with the same command and --resume",
    "predict": "stopped; it goes on with the same command and --resume",
    "quickstart": "stopped; the same command goes on from here",
    "search": "stopped; the same command goes on from here",
    "reproduce": "stopped; the same command goes on from here",
}


def main() -> None:
    """Run the command line; whatever goes wrong is one line on stderr and exit code 2."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no × must not stop the work
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up, as on Ctrl-C
    try:
        app(exit_on_error=False, print_error=False, result_action="return_value")
    except KeyboardInterrupt:
        verb = sys.argv[1] if len(sys.argv) > 1 else ""
        fail(_ON_AGAIN.get(verb, "stopped"), 130)
    except (InputError, CycloptsError, OSError) as error:
        fail(str(error), 2)
    except Exception as error:
        if "EXITPOLL_TRACEBACK" in os.environ:
            raise
        fail(f"unexpected {type(error).__name__}: {error} (EXITPOLL_TRACEBACK=1 shows where)", 2)
