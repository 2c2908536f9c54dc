"""Traces that verbs work on: loaded and checked, or recorded with a progress bar."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from exitpoll.cli.console import progress_console
from exitpoll.decide.trace import Trace

if TYPE_CHECKING:
    from exitpoll.decide.certificate import Source
    from exitpoll.engine.inputs import InputTexts
    from exitpoll.engine.runtime import LoadedModel


def load_trace(path: Path, model: str, source: Source) -> Trace:
    """Load a trace, and check that it was recorded from a model.

    Args:
        path: The trace.
        model: The model folder, for the message.
        source: The model's fingerprint and runtime.

    Returns:
        The trace.
    """
    from exitpoll.engine.loading import check_same_model

    trace = Trace.load(path)
    check_same_model(model, source, path, trace.about)
    return trace


def record_texts(loaded: LoadedModel, read: InputTexts, batch_size: int) -> Trace:
    """Record a trace in memory.

    Args:
        loaded: The model.
        read: The texts.
        batch_size: Texts in a batch.

    Returns:
        The trace.
    """
    from exitpoll.data.bars import progress_bars
    from exitpoll.engine.record import record_in_memory

    with progress_bars(progress_console()) as on_progress:
        return record_in_memory(loaded, read.texts, about=read.about, batch_size=batch_size, on_progress=on_progress)
