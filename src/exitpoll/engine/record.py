"""Run a model over texts once and keep what every exit said: a trace."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Tokens, batches, lengths_of, pick
from exitpoll.data.progress import OnProgress, Progress, ignore
from exitpoll.data.splits import Texts
from exitpoll.decide.trace import Trace, create
from exitpoll.engine.runtime import LoadedModel, Runtime
from exitpoll.errors import InputError

SHARD = 16_384  # texts that are tokenized and sorted by length at a time
TIMED = 32  # texts on which the exits are timed
ATTEMPTS = 4  # at each of them; the fastest counts


def record(
    model: LoadedModel,
    texts: Texts,
    path: str | Path,
    *,
    about: Mapping[str, Any] | None = None,
    batch_size: int = 64,
    on_progress: OnProgress = ignore,
) -> Trace:
    """Ask every exit about every text and write a trace, with memory for one shard of the texts at a time.

    Args:
        model: What `load_model` gives.
        texts: The texts, with labels or without.
        path: The file to write.
        about: What else is to be known of the trace: data, split, metric.
        batch_size: Texts in a batch.
        on_progress: Called after every batch.

    Returns:
        The trace, mapped from the file.
    """
    if not len(texts):
        raise InputError("there are no texts to record")
    if batch_size < 1:
        raise InputError(f"batch_size {batch_size} must be at least 1")
    runtime = model.runtime
    shapes: dict[str, Any] = {"logits": ((len(texts), len(runtime.exit_layers), runtime.classes), np.float32)}
    if texts.labels is not None:
        shapes["labels"] = (texts.labels.shape, texts.labels.dtype)
    sample = np.linspace(0, len(texts) - 1, min(TIMED, len(texts))).astype(int)
    known = {
        "fingerprint": runtime.fingerprint,
        "runtime": runtime.name,
        "problem_type": runtime.problem_type,
        "label_names": list(model.label_names),
        **{name: version(name) for name in ("exitpoll", *runtime.packages)},
        "threads": runtime.threads,
        "device": runtime.device,
        "milliseconds": time_exits(runtime, model.tokenize(texts.select(sample))),
        **(about or {}),
    }
    with create(path, shapes, exit_layers=runtime.exit_layers, about=known) as arrays:
        if texts.labels is not None:
            arrays["labels"][:] = texts.labels
        done = 0
        for start in range(0, len(texts), SHARD):
            tokens = model.tokenize(texts.select(np.arange(start, min(start + SHARD, len(texts)))))
            for rows in batches(lengths_of(tokens), batch_size):
                arrays["logits"][start + rows] = exit_logits(runtime, pick(tokens, rows))
                done += len(rows)
                on_progress(Progress("recording", done, len(texts)))
    return Trace.load(path)


def record_in_memory(
    model: LoadedModel,
    texts: Texts,
    *,
    about: Mapping[str, Any] | None = None,
    batch_size: int = 64,
    on_progress: OnProgress = ignore,
) -> Trace:
    """Ask every exit about every text without keeping a file.

    Args:
        model: What `load_model` gives.
        texts: The texts, with labels or without.
        about: What else is to be known of the trace.
        batch_size: Texts in a batch.
        on_progress: Called after every batch.

    Returns:
        The trace.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "trace.safetensors"
        trace = record(model, texts, path, about=about, batch_size=batch_size, on_progress=on_progress)
        return Trace(np.array(trace.logits), texts.labels, trace.exit_layers, trace.about)


def exit_logits(runtime: Runtime, tokens: Tokens) -> NDArray:
    """Ask every exit about a batch of texts.

    Args:
        runtime: Runs the model.
        tokens: Token ids of the texts.

    Returns:
        Logits, (texts, exits, classes).
    """
    return np.stack(list(_walk(runtime, tokens)), axis=1)


def time_exits(runtime: Runtime, tokens: Tokens) -> list[float]:
    """Measure how long it takes to leave at each exit, one text at a time.

    Args:
        runtime: Runs the model.
        tokens: Token ids of a sample of texts.

    Returns:
        Mean milliseconds from the token ids to the answer of each exit, (exits,).
    """
    alone = [pick(tokens, np.array([row])) for row in range(len(tokens["input_ids"]))]
    times = np.zeros((ATTEMPTS, len(alone), len(runtime.exit_layers)))
    for attempt in times:
        for row, text in enumerate(alone):
            started = time.perf_counter()
            for number, _ in enumerate(_walk(runtime, text)):
                attempt[row, number] = time.perf_counter() - started
    best = np.maximum.accumulate(times.min(axis=0), axis=1)  # (texts, exits): other work can only make it slower
    return [round(1000 * float(seconds), 4) for seconds in best.mean(axis=0)]


def _walk(runtime: Runtime, tokens: Tokens) -> Iterator[NDArray]:
    """Run a batch through all layers: the logits of each exit, (texts, classes)."""
    state, depth = runtime.embed(tokens), 0
    for number, layer in enumerate(runtime.exit_layers):
        state, depth = runtime.advance(state, range(depth + 1, layer + 1)), layer
        yield runtime.logits_at(state, number)
