"""exitpoll record: run a model on texts once and keep every exit's logits, as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from exitpoll.cli.console import errors, notes_of, quieten_transformers, say
from exitpoll.cli.options import Data, Reading
from exitpoll.engine.inputs import Split

if TYPE_CHECKING:
    from exitpoll.decide.trace import Trace


def record(
    model: str,
    /,
    *,
    data: Data,
    out: Path,
    split: Split = "calibration",
    reading: Annotated[Reading | None, Parameter(name="*")] = None,
    batch_size: int = 64,
    overwrite: bool = False,
) -> None:
    """Run a model on texts and write every exit's logits, as a trace.

    The texts are a split of the data that the model was trained on, or others.

    Example: exitpoll record trec-bert --data trec --out trec.calibration.safetensors

    Args:
        model: The model folder that `exitpoll train` wrote.
        data: The data.
        out: The trace to write.
        split: Which split of the data; "all" reads a file as it is, with labels or without.
        reading: Which columns to read.
        batch_size: Texts in a batch.
        overwrite: Replace an older trace.
    """
    from exitpoll.data.bars import progress_bars
    from exitpoll.engine.inputs import read_texts
    from exitpoll.engine.loading import load_model
    from exitpoll.engine.record import record as record_trace
    from exitpoll.files import check_writable
    from exitpoll.report.wording import note_not_finite

    check_writable(out, overwrite=overwrite)
    quieten_transformers()
    loaded = load_model(model)
    read = read_texts(loaded, data, split, **vars(reading or Reading()))
    with progress_bars(errors) as on_progress:
        trace = record_trace(loaded, read.texts, out, about=read.about, batch_size=batch_size, on_progress=on_progress)
    say(*notes_of(read), *note_not_finite(trace), _describe_times(trace))
    say(f"wrote {out}: {len(trace)} texts, {len(trace.exit_layers)} exits, {trace.logits.shape[-1]} classes")


def _describe_times(trace: Trace) -> str:
    """Describe how long the first and the last exit take."""
    times = trace.about["milliseconds"]
    return f"latency: {times[0]:.3g} ms at the first exit, {times[-1]:.3g} ms at the last, one text at a time"
