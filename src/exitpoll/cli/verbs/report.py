"""exitpoll report: write the HTML page on a calibrated model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from exitpoll.cli.console import notes_of, quieten_transformers, say
from exitpoll.cli.groups import IN_DATA
from exitpoll.cli.options import (
    BatchSize,
    Data,
    Device,
    OptionalOut,
    PolicyPath,
    Reading,
    ReadingFlags,
    SplitName,
    TracePath,
)

if TYPE_CHECKING:
    from exitpoll.benchmark.timing import Benchmark
    from exitpoll.engine.runtime import LoadedModel


def report(
    model: str,
    /,
    *,
    data: Data,
    split: SplitName = "test",
    trace: TracePath = None,
    bench: Annotated[Path | None, IN_DATA] = None,
    policy: PolicyPath = None,
    reading: ReadingFlags = None,
    batch_size: BatchSize = 64,
    device: Device = "auto",
    out: OptionalOut = None,
) -> None:
    """Write an HTML report on a calibrated model.

    One self-contained page that requests nothing: the cost of early exit, the guarantee, a slider over the threshold,
    every exit, errors by class and by length, and up to 5,000 texts with the answers of all exits.

    Example: exitpoll report trec-bert --data trec

    Args:
        model: The model folder, with its policy.json.
        data: The data; without labels, answers are compared with the full model's.
        split: Which split of the data; "all" reads a file as it is.
        trace: A trace of these texts, so that they need not be recorded again.
        bench: The bench.json that `exitpoll bench` wrote, for wall-clock time.
        policy: Another policy than the model's own.
        reading: Which columns to read.
        batch_size: Texts in a batch.
        device: Where to run the model: cpu, cuda, cuda:1, mps …; auto takes a GPU where there is one.
        out: The folder for report.html and its figures; report in the model folder by default.
    """
    from exitpoll.cli.traces import load_trace, record_texts
    from exitpoll.decide.policy import Policy
    from exitpoll.engine.inputs import read_texts
    from exitpoll.engine.loading import load_model
    from exitpoll.models.folder import REPORT, policy_path
    from exitpoll.report import html

    quieten_transformers()
    out = out or policy_path(model).with_name(REPORT)
    html.check_requirements()
    html.check_report_folder(out)
    chosen = Policy.load(policy or policy_path(model))
    loaded = load_model(model, device=device)
    chosen.source.check_same(loaded.source)
    timed = None if bench is None else _load_benchmark(bench, loaded)
    read = read_texts(loaded, data, split, **vars(reading or Reading()))
    if trace is None:
        recorded = record_texts(loaded, read, batch_size)
    else:
        recorded = load_trace(trace, model, loaded.source)
        html.check_same_texts(read.texts.labels, read.about, recorded)
    name, texts = Path(model).resolve().name, list(read.texts)
    content = html.build_report(
        name,
        loaded.label_names,
        chosen,
        recorded,
        texts,
        notes=notes_of(read),
        benchmark=timed,
        training=loaded.training,
    )
    say(f"wrote {html.write_report(content, out)}")


def _load_benchmark(path: Path, loaded: LoadedModel) -> Benchmark:
    """Load a benchmark, and check that it is of the model."""
    from exitpoll.benchmark.timing import Benchmark

    timed = Benchmark.load(path)
    timed.check_model(path, loaded.runtime.fingerprint)
    return timed
