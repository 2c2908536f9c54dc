"""Record a trace: run a model over texts once and keep the logits of every exit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from exitpoll.data.batching import Text, Tokens, batches, lengths_of, pick
from exitpoll.data.progress import OnProgress, Progress, ignore, shown
from exitpoll.data.splits import Texts
from exitpoll.decide.trace import Trace, create
from exitpoll.engine.arguments import iterate_texts, to_integer, to_text
from exitpoll.engine.exit_times import time_exits
from exitpoll.engine.runtime import LoadedModel, Runtime, exits_by_itself
from exitpoll.errors import InputError
from exitpoll.files import locked

SHARD = 16_384  # texts that are tokenized and sorted by length at a time
TIMED = 32  # texts on which the exits are timed


def record(
    model: LoadedModel,
    texts: Texts | Iterable[Text],
    path: str | Path,
    *,
    about: Mapping[str, object] | None = None,
    batch_size: int = 64,
    progress: bool = False,
    on_progress: OnProgress = ignore,
) -> Trace:
    """Record the logits of every exit for every text in a file, in constant memory.

    Args:
        model: What `load_model` returns.
        texts: The texts, with labels or without; or texts without labels in any container that an engine takes.
        path: The file to write.
        about: More metadata of the trace: data, split, metric.
        batch_size: Texts in a batch.
        progress: Whether to show a progress bar on stderr.
        on_progress: Called after every batch.

    Returns:
        The trace, memory-mapped from the file.
    """
    if not isinstance(texts, Texts):
        texts = Texts.of([to_text(f"text {number}", text) for number, text in enumerate(iterate_texts(texts))])
    if not len(texts):
        raise InputError("there are no texts to record")
    batch_size = to_integer("batch_size", batch_size)
    model.check_process()
    runtime = model.runtime
    shapes: dict[str, tuple[tuple[int, ...], DTypeLike]] = {
        "logits": ((len(texts), len(runtime.exit_layers), runtime.classes), np.float32),
        "lengths": ((len(texts),), np.int64),
    }
    if texts.labels is not None:
        shapes["labels"] = (texts.labels.shape, texts.labels.dtype)
    with locked(Path(path), "record"), shown(progress, on_progress) as report:
        metadata = {**_metadata(model, texts), **(about or {})}
        with create(path, shapes, exit_layers=runtime.exit_layers, about=metadata) as arrays:
            if texts.labels is not None:
                arrays["labels"][:] = texts.labels
            done = 0
            for start in range(0, len(texts), SHARD):
                tokens = model.tokenize(texts.select(np.arange(start, min(start + SHARD, len(texts)))))
                lengths = lengths_of(tokens)
                arrays["lengths"][start : start + len(lengths)] = lengths
                for rows in batches(lengths, batch_size):
                    arrays["logits"][start + rows] = exit_logits(runtime, pick(tokens, rows))
                    done += len(rows)
                    report(Progress("recording", done, len(texts)))
    return Trace.load(path)


def _metadata(model: LoadedModel, texts: Texts) -> dict[str, object]:
    """Describe a model, its runtime, the time that the texts take to every exit, and which it was trained on."""
    runtime, overlap = model.runtime, model.overlap(texts)
    sample = np.linspace(0, len(texts) - 1, min(TIMED, len(texts))).astype(int)
    return {
        "fingerprint": runtime.fingerprint,
        "runtime": runtime.name,
        "problem_type": runtime.problem_type,
        "label_names": list(model.label_names),
        **{package: version(package) for package in ("exitpoll", *runtime.packages)},
        "threads": runtime.threads,
        "device": runtime.device,
        **time_exits(runtime, model.tokenize(texts.select(sample))).to_dict(),
        **({} if overlap is None else {"overlap": overlap.to_dict()}),
    }


def record_in_memory(
    model: LoadedModel,
    texts: Texts,
    *,
    about: Mapping[str, object] | None = None,
    batch_size: int = 64,
    on_progress: OnProgress = ignore,
) -> Trace:
    """Record the logits of every exit for every text without keeping a file.

    Args:
        model: What `load_model` returns.
        texts: The texts, with labels or without.
        about: More metadata of the trace.
        batch_size: Texts in a batch.
        on_progress: Called after every batch.

    Returns:
        The trace.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "trace.safetensors"
        trace = record(model, texts, path, about=about, batch_size=batch_size, on_progress=on_progress)
        lengths = None if trace.lengths is None else np.array(trace.lengths)
        return Trace(np.array(trace.logits), texts.labels, trace.exit_layers, trace.about, lengths)


def exit_logits(runtime: Runtime, tokens: Tokens) -> NDArray:
    """Compute the logits of every exit for a batch of texts.

    Args:
        runtime: Runs the model.
        tokens: Token ids of the texts.

    Returns:
        Logits, (texts, exits, classes).
    """
    if exits_by_itself(runtime):
        return runtime.exit_logits(tokens)
    return np.stack(list(_walk(runtime, tokens)), axis=1)


def _walk(runtime: Runtime, tokens: Tokens) -> Iterator[NDArray]:
    """Run a batch through all layers: the logits of one exit after another, (texts, classes)."""
    state, depth = runtime.embed(tokens), 0
    for number, layer in enumerate(runtime.exit_layers):
        state, depth = runtime.advance(state, range(depth + 1, layer + 1)), layer
        yield runtime.logits_at(state, number)
