"""exitpoll record: run a model on texts once and keep every exit's logits, as a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exitpoll.cli.console import (
    notes_of,
    print_as_json,
    progress_console,
    quieten_transformers,
    remark,
    say,
    show_result,
)
from exitpoll.cli.options import AsJson, BatchSize, Data, Device, Out, Overwrite, Reading, ReadingFlags, SplitName

if TYPE_CHECKING:
    from exitpoll.decide.trace import Trace


def record(
    model: str,
    /,
    *,
    data: Data,
    out: Out,
    split: SplitName = "calibration",
    reading: ReadingFlags = None,
    batch_size: BatchSize = 64,
    device: Device = "auto",
    overwrite: Overwrite = False,
    as_json: AsJson = False,
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
        device: Where to run the model: cpu, cuda, cuda:1, mps …; auto takes a GPU where there is one.
        overwrite: Replace an older trace.
        as_json: Print what was recorded as JSON.
    """
    from exitpoll.data.bars import progress_bars
    from exitpoll.engine.inputs import read_texts
    from exitpoll.engine.loading import load_model
    from exitpoll.engine.record import record as record_trace
    from exitpoll.files import check_writable
    from exitpoll.report.wording import note_not_finite

    print_as_json(as_json)
    check_writable(out, overwrite=overwrite)
    quieten_transformers()
    loaded = load_model(model, device=device)
    read = read_texts(loaded, data, split, **vars(reading or Reading()))
    with progress_bars(progress_console()) as on_progress:
        trace = record_trace(loaded, read.texts, out, about=read.about, batch_size=batch_size, on_progress=on_progress)
    remark(*notes_of(read), *note_not_finite(trace))
    say(_describe_times(trace))
    say(f"wrote {out}: {len(trace)} texts, {len(trace.exit_layers)} exits, {trace.logits.shape[-1]} classes")
    show_result({"out": str(out), "texts": len(trace), "exit_layers": list(trace.exit_layers), "about": trace.about})


def _describe_times(trace: Trace) -> str:
    """Describe how long the first and the last exit take, and asking one."""
    from exitpoll.decide.costs import HEAD, MILLISECONDS

    times, head = trace.about[MILLISECONDS], trace.about.get(HEAD)
    latency = f"latency: {times[0]:.3g} ms at the first exit, {times[-1]:.3g} ms at the last, one text at a time"
    return latency if head is None else f"{latency}; asking an exit takes {head:.2g} ms of it"
