"""Run a model over texts once and keep what every exit said, or what every head would read."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from exitpoll.data import Texts
from exitpoll.errors import InputError
from exitpoll.model import EarlyExitModel
from exitpoll.tokens import TokenisedTexts, batches, tokenise
from exitpoll.trace import Trace, create

Advance = Callable[[int, int], None]  # (texts done, texts in all)

SHARD = 16_384  # texts that are tokenised and sorted by length at a time
TIMED = 32  # texts on which the exits are timed
ATTEMPTS = 4  # at each of them; the fastest counts


def record(
    model: EarlyExitModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Texts,
    path: str | Path,
    *,
    about: Mapping[str, Any] | None = None,
    batch_size: int = 64,
    advance: Advance | None = None,
) -> Trace:
    """Ask every exit about every text and write a trace, with memory for one shard of the texts at a time.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        texts: The texts, with labels or without.
        path: The file to write.
        about: What else is to be known of the trace: data, split, metric.
        batch_size: Texts in a batch.
        advance: Called after every batch.

    Returns:
        The trace, mapped from the file.
    """
    if not len(texts):
        raise InputError("there are no texts to record")
    if batch_size < 1:
        raise InputError(f"batch_size {batch_size} must be at least 1")
    config = model.config
    shapes: dict[str, Any] = {"logits": ((len(texts), len(config.exits), config.num_labels), np.float32)}
    if texts.labels is not None:
        shapes["labels"] = (texts.labels.shape, texts.labels.dtype)
    sample = texts.select(np.linspace(0, len(texts) - 1, min(TIMED, len(texts))).astype(int))
    known = {
        "model": fingerprint(model),
        "runtime": runtime_of(model),
        "problem_type": config.problem_type,
        "label_names": [config.id2label[number] for number in range(config.num_labels)],
        "exitpoll": version("exitpoll"),
        "threads": torch.get_num_threads(),
        "device": str(model.device),
        "milliseconds": time_exits(model, tokenise(sample, tokenizer, config.max_length), tokenizer),
        **(about or {}),
    }
    with create(path, shapes, layers=config.exits, about=known) as arrays:
        if texts.labels is not None:
            arrays["labels"][:] = texts.labels
        for start in range(0, len(texts), SHARD):
            rows = np.arange(start, min(start + SHARD, len(texts)))
            shard = tokenise(texts.select(rows), tokenizer, config.max_length)
            done = None if advance is None else _from(start, len(texts), advance)
            arrays["logits"][rows] = record_logits(model, shard, tokenizer, batch_size=batch_size, advance=done)
    return Trace.load(path)


def _from(start: int, texts: int, advance: Advance) -> Advance:
    """Count a shard's texts on from those before it."""
    return lambda done, _: advance(start + done, texts)


def fingerprint(model: EarlyExitModel) -> str:
    """Tell a model's weights from any others, wherever they are kept.

    Args:
        model: The model.

    Returns:
        16 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def runtime_of(model: EarlyExitModel) -> str:
    """Name what runs a model, with its precision: traces and policies of one do not serve another."""
    return f"torch {str(model.dtype).removeprefix('torch.')}"


def time_exits(model: EarlyExitModel, texts: TokenisedTexts, tokenizer: PreTrainedTokenizerBase) -> list[float]:
    """Measure how long it takes to leave at each exit, one text at a time.

    Args:
        model: The model.
        texts: A sample of texts.
        tokenizer: Makes tensors of them.

    Returns:
        Mean milliseconds from the token ids to the answer of each exit, (exits,).
    """
    times = np.zeros((ATTEMPTS, len(texts), len(model.config.exits)))
    with _evaluating(model):
        for attempt in times:
            for row, (_, tokens) in enumerate(_batches(texts, tokenizer, model.device, 1, None)):
                started = time.perf_counter()
                for number, hidden in model.walk_exits(tokens):
                    model.answer(number, hidden, tokens.get("attention_mask")).cpu()  # waits for the device
                    attempt[row, number] = time.perf_counter() - started
    best = np.maximum.accumulate(times.min(axis=0), axis=1)  # (texts, exits): other work can only make it slower
    return [round(1000 * float(seconds), 4) for seconds in best.mean(axis=0)]


def record_logits(
    model: EarlyExitModel,
    texts: TokenisedTexts,
    tokenizer: PreTrainedTokenizerBase,
    *,
    batch_size: int = 64,
    advance: Advance | None = None,
) -> NDArray:
    """Ask every exit about every text.

    Args:
        model: The model.
        texts: The texts as token ids.
        tokenizer: Pads the batches.
        batch_size: Texts in a batch.
        advance: Called after every batch.

    Returns:
        Logits, (texts, exits, classes), in the order of the texts.
    """
    logits = np.zeros((len(texts), len(model.config.exits), model.config.num_labels), dtype=np.float32)
    with _evaluating(model):
        for rows, tokens in _batches(texts, tokenizer, model.device, batch_size, advance):
            logits[rows] = model(**tokens).exit_logits.float().cpu().numpy()
    return logits


def record_features(
    model: EarlyExitModel,
    texts: TokenisedTexts,
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    *,
    batch_size: int = 64,
    advance: Advance | None = None,
) -> tuple[NDArray, NDArray]:
    """Compute once what the heads below the last would read of every text, and what the last head says.

    Args:
        model: The model.
        texts: The texts as token ids.
        tokenizer: Pads the batches.
        path: Where to keep the features, which may be larger than memory.
        batch_size: Texts in a batch.
        advance: Called after every batch.

    Returns:
        Features, (texts, exits - 1, width), mapped from disk, and the last exit's logits, (texts, classes).
    """
    below = len(model.config.exits) - 1
    shape = (len(texts), below, model.config.encoder.hidden_size)
    features = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    last = np.zeros((len(texts), model.config.num_labels), dtype=np.float32)
    with _evaluating(model):
        for rows, tokens in _batches(texts, tokenizer, model.device, batch_size, advance):
            mask = tokens.get("attention_mask")
            for number, hidden in model.walk_exits(tokens):
                if number < below:
                    features[rows, number] = model.pool(hidden, mask).float().cpu().numpy()
                else:
                    last[rows] = model.answer(number, hidden, mask).float().cpu().numpy()
    return features, last


def _batches(
    texts: TokenisedTexts,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    batch_size: int,
    advance: Advance | None,
) -> Iterator[tuple[NDArray, dict[str, Tensor]]]:
    """Go through the texts in padded batches of like length."""
    done = 0
    for rows in batches(texts.lengths, batch_size):
        columns = {name: [column[row] for row in rows] for name, column in texts.columns.items()}
        yield rows, tokenizer.pad(columns, return_tensors="pt").to(device)
        done += len(rows)
        if advance is not None:
            advance(done, len(texts))


@contextmanager
def _evaluating(model: EarlyExitModel) -> Iterator[None]:
    """Run a model without dropout and gradient."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)
