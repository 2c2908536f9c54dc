"""From a model to a policy, and what it comes to: record, sweep, calibrate, evaluate, report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from exitpoll.console import console, errors, notes_of, quieten_transformers, say, show_evaluation
from exitpoll.errors import InputError
from exitpoll.verbs import Names, Reading, Split, app, try_to_draw


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
    from exitpoll.files import check_writable
    from exitpoll.engine.loading import open_model, read_texts
    from exitpoll.progress import counting_bar
    from exitpoll.engine.record import record as record_trace
    from exitpoll.report.wording import not_finite

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
    strategies: Names = None,
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
    from exitpoll.decide.fitting import KS
    from exitpoll.decide.compare import SPEEDUPS, compare
    from exitpoll.decide.sweep import sweep as sweep_trace
    from exitpoll.files import write_json, write_text
    from exitpoll.report.plots import draw_curves, save
    from exitpoll.tables import comparison_table
    from exitpoll.decide.trace import Trace
    from exitpoll.report.wording import best_in_words, not_finite

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
    drawn = try_to_draw(lambda: save(draw_curves(comparison), out / "curves.png"))
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
    from exitpoll.decide.calibrate import calibrate as calibrate_trace
    from exitpoll.models.card import write_card
    from exitpoll.files import check_replaceable
    from exitpoll.engine.loading import check_same_model, exports_of, open_model, policy_path
    from exitpoll.decide.trace import Trace
    from exitpoll.report.wording import describe, not_finite

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
            for export in exports_of(model):
                say(f"{export} keeps the policy it has: exitpoll export {model} --overwrite renews it")
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
    from exitpoll.decide.evaluate import evaluate as evaluate_trace
    from exitpoll.files import check_replaceable, write_json
    from exitpoll.engine.loading import check_same_model, open_model, policy_path, read_texts
    from exitpoll.decide.policy import Policy
    from exitpoll.progress import counting_bar
    from exitpoll.engine.record import record_in_memory
    from exitpoll.decide.trace import Trace
    from exitpoll.report.wording import not_finite, same_texts

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
    from exitpoll.benchmark.timing import Benchmark
    from exitpoll.engine.loading import check_same_model, open_model, policy_path, read_texts
    from exitpoll.decide.policy import Policy
    from exitpoll.progress import counting_bar
    from exitpoll.engine.record import given_texts, record_in_memory
    from exitpoll.report.html import check_installed, check_place, check_same_texts, gather, write_report
    from exitpoll.decide.trace import Trace

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
