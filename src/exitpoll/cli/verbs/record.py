"""exitpoll record: run a model over texts once and keep every exit's logits, as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from exitpoll.cli.app import Reading, Split
from exitpoll.cli.console import errors, notes_of, quieten_transformers, say


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
    from exitpoll.cli.progress import progress_bars
    from exitpoll.engine.inputs import read_texts
    from exitpoll.engine.loading import load_model
    from exitpoll.engine.record import record as record_trace
    from exitpoll.files import check_writable
    from exitpoll.report.wording import not_finite

    check_writable(out, overwrite=overwrite)
    quieten_transformers()
    loaded = load_model(model)
    read = read_texts(loaded, data, split, **vars(reading or Reading()))
    with progress_bars(errors) as on_progress:
        trace = record_trace(loaded, read.texts, out, about=read.about, batch_size=batch_size, on_progress=on_progress)
    first, last = (trace.about["milliseconds"][number] for number in (0, -1))
    timed = f"leaving at the first exit takes {first:.3g} ms, at the last {last:.3g} ms, one text at a time"
    for line in (*notes_of(read), *not_finite(trace), timed):
        say(line)
    say(f"wrote {out}: {len(trace)} texts, {len(trace.exit_layers)} exits, {trace.logits.shape[-1]} classes")
