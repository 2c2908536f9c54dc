"""exitpoll report: write the HTML page on a calibrated model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from exitpoll.cli.app import Reading, Split
from exitpoll.cli.console import errors, notes_of, quieten_transformers, say


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
    from exitpoll.cli.progress import progress_bars
    from exitpoll.decide.policy import Policy
    from exitpoll.decide.trace import Trace
    from exitpoll.engine.inputs import read_texts
    from exitpoll.engine.loading import check_same_model, load_model
    from exitpoll.engine.record import record_in_memory
    from exitpoll.models.folder import policy_path
    from exitpoll.report.html import check_installed, check_place, check_same_texts, gather, write_report

    quieten_transformers()
    out = out or policy_path(model).with_name("report")
    check_installed()
    check_place(out)
    chosen, timed = Policy.load(policy or policy_path(model)), None if bench is None else Benchmark.load(bench)
    loaded = load_model(model)
    chosen.source.check_same(loaded.source)
    if bench is not None and timed is not None:
        check_same_model(model, loaded.source, bench, timed.about)
    read = read_texts(loaded, data, split, **vars(reading or Reading()))
    if trace is not None:
        recorded = Trace.load(trace)
        check_same_model(model, loaded.source, trace, recorded.about)
        check_same_texts(read.texts.labels, read.about, recorded)
    else:
        with progress_bars(errors) as on_progress:
            recorded = record_in_memory(
                loaded, read.texts, about=read.about, batch_size=batch_size, on_progress=on_progress
            )
    name, texts = Path(model).resolve().name, list(read.texts)
    material = gather(name, loaded.label_names, chosen, recorded, texts, notes=notes_of(read), benchmark=timed)
    say(f"wrote {write_report(material, out)}")
