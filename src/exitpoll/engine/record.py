"""Record a trace: run a model over texts once and keep the logits of every exit."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from exitpoll.data.batching import Text, Tokens, batches, lengths_of, pick
from exitpoll.data.progress import OnProgress, Progress, ignore, shown
from exitpoll.data.splits import Texts
from exitpoll.decide.incremental import Stepper
from exitpoll.decide.metrics import REGRESSION
from exitpoll.decide.policy import Policy
from exitpoll.decide.steps import Memory
from exitpoll.decide.trace import Trace, create
from exitpoll.engine.arguments import iterate_texts, to_integer, to_text
from exitpoll.engine.runtime import LoadedModel, Runtime, exits_by_itself
from exitpoll.errors import InputError
from exitpoll.files import locked

SHARD = 16_384  # texts that are tokenized and sorted by length at a time
TIMED = 32  # texts on which the exits are timed
ATTEMPTS = 4  # at timing a text; the fastest counts
NEVER = np.inf  # the level of a decision that is timed: no text leaves


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
        **asdict(time_exits(runtime, model.tokenize(texts.select(sample)))),
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


@dataclass(frozen=True)
class ExitTimes:
    """How long it takes to leave at the exits, one text at a time."""

    milliseconds: list[float]  # (exits,) from token ids to the decision, where all exits before are asked
    head_milliseconds: float  # what asking one exit takes: its head and a decision


def time_exits(runtime: Runtime, tokens: Tokens) -> ExitTimes:
    """Measure the latency of every exit and of asking one, one text at a time.

    All exits and the last alone are asked in turn: the difference is what the other heads and decisions take.

    Args:
        runtime: Runs the model.
        tokens: Token ids of a sample of texts.

    Returns:
        Means over the texts, of the fastest attempt at each.
    """
    alone = [pick(tokens, np.array([row])) for row in range(len(tokens["input_ids"]))]
    time_walk = _time_passage if exits_by_itself(runtime) else _time_walk
    exits = len(runtime.exit_layers)
    timed = list(runtime.stops) if exits_by_itself(runtime) else list(range(exits))
    of_all, of_last = np.zeros((ATTEMPTS, len(alone), len(timed))), np.zeros((ATTEMPTS, len(alone)))
    for attempt in range(ATTEMPTS):
        for row, text in enumerate(alone):
            of_all[attempt, row] = time_walk(runtime, text, timed)
            of_last[attempt, row] = time_walk(runtime, text, [exits - 1])[-1]
    best = np.maximum.accumulate(of_all.min(axis=0), axis=1)  # (texts, exits timed); other processes only add time
    means = _at_all_exits(1000 * best.mean(axis=0), np.asarray(runtime.exit_layers), timed)
    others = float(means[-1] - 1000 * of_last.min(axis=0).mean())  # heads and decisions of all exits but the last
    head = min(others / max(exits - 1, 1), float(np.diff(means, prepend=0.0).min()))  # an exit is asked after layers
    return ExitTimes([round(float(mean), 4) for mean in means], round(max(head, 0.0), 4))


def _at_all_exits(means: NDArray, layers: NDArray, timed: Sequence[int]) -> NDArray:
    """Interpolate between the exits that were timed, since layers take about the same time: (exits,)."""
    if len(timed) == len(layers):
        return means
    start = [] if layers[timed[0]] == 0 else [0.0]
    return np.interp(layers, [*start, *layers[timed]], [*start, *means])


def _time_walk(runtime: Runtime, text: Tokens, asked: Sequence[int]) -> list[float]:
    """Run a text through all layers and ask some exits: the seconds until each has decided."""
    strategy = "patience" if runtime.problem_type == REGRESSION else "max_prob"
    stepper = Stepper(Policy(strategy, problem_type=runtime.problem_type), len(asked))
    seconds: list[float] = []
    memory: Memory = {}
    started = time.perf_counter()
    state, depth = runtime.embed(text), 0
    for place, number in enumerate(asked):
        layer = runtime.exit_layers[number]
        state, depth = runtime.advance(state, range(depth + 1, layer + 1)), layer
        step = stepper.step(runtime.logits_at(state, number), memory, place)
        memory, _ = step.memory, (step.score >= NEVER).nonzero()
        seconds.append(time.perf_counter() - started)
    return seconds


def _time_passage(runtime: Runtime, text: Tokens, asked: Sequence[int]) -> list[float]:
    """Run a text to exits, in one call each, and ask all heads on the way unless one exit is asked: seconds of each."""
    assert exits_by_itself(runtime)
    seconds: list[float] = []
    for number in asked:
        started = time.perf_counter()
        runtime.run_to(text, number, every_head=len(asked) > 1)
        seconds.append(time.perf_counter() - started)
    return seconds


def _walk(runtime: Runtime, tokens: Tokens) -> Iterator[NDArray]:
    """Run a batch through all layers: the logits of one exit after another, (texts, classes)."""
    state, depth = runtime.embed(tokens), 0
    for number, layer in enumerate(runtime.exit_layers):
        state, depth = runtime.advance(state, range(depth + 1, layer + 1)), layer
        yield runtime.logits_at(state, number)
