"""Run a model over texts in batches: the logits of all exits, or the vectors that the heads read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from exitpoll.data.batching import batches, pick
from exitpoll.data.progress import OnProgress, Progress, ignore
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import TokenizedTexts

BATCH_SIZE = 64


@dataclass(frozen=True)
class ExitBatch:
    """A batch of texts at one exit."""

    rows: NDArray  # (texts,) row numbers
    exit_number: int  # from 0
    hidden: Tensor  # (texts, tokens, width)
    mask: Tensor | None  # (texts, tokens)


def record_logits(model: EarlyExitModel, texts: TokenizedTexts, tokenizer: PreTrainedTokenizerBase) -> NDArray:
    """Compute the logits of all exits for all texts.

    Args:
        model: The model.
        texts: The texts as token ids.
        tokenizer: Pads the batches.

    Returns:
        Logits, (texts, exits, classes), in the order of the texts.
    """
    logits = np.zeros((len(texts), len(model.config.exit_layers), model.config.num_labels), dtype=np.float32)
    for batch in _walk(model, texts, tokenizer, ignore):
        logits[batch.rows, batch.exit_number] = _logits(model, batch)
    return logits


def record_features(
    model: EarlyExitModel,
    texts: TokenizedTexts,
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    *,
    on_progress: OnProgress = ignore,
) -> tuple[NDArray, NDArray]:
    """Compute the vectors that the heads below the last read, and the logits of the last head.

    Args:
        model: The model.
        texts: The texts as token ids.
        tokenizer: Pads the batches.
        path: The file for the features, which may be larger than memory.
        on_progress: Called after every batch.

    Returns:
        Memory-mapped features, (texts, exits - 1, width), and the logits of the last exit, (texts, classes).
    """
    last = len(model.config.exit_layers) - 1
    shape = (len(texts), last, model.config.encoder.hidden_size)
    features = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    logits = np.zeros((len(texts), model.config.num_labels), dtype=np.float32)
    for batch in _walk(model, texts, tokenizer, on_progress):
        if batch.exit_number < last:
            features[batch.rows, batch.exit_number] = _pooled(model, batch)
        else:
            logits[batch.rows] = _logits(model, batch)
    return features, logits


def record_all_features(model: EarlyExitModel, texts: TokenizedTexts, tokenizer: PreTrainedTokenizerBase) -> NDArray:
    """Compute the vectors that all heads read.

    Args:
        model: The model.
        texts: The texts as token ids.
        tokenizer: Pads the batches.

    Returns:
        Features in half precision, (texts, exits, width).
    """
    shape = (len(texts), len(model.config.exit_layers), model.config.encoder.hidden_size)
    features = np.zeros(shape, dtype=np.float16)
    for batch in _walk(model, texts, tokenizer, ignore):
        features[batch.rows, batch.exit_number] = _pooled(model, batch)
    return features


def _walk(
    model: EarlyExitModel, texts: TokenizedTexts, tokenizer: PreTrainedTokenizerBase, on_progress: OnProgress
) -> Iterator[ExitBatch]:
    """Run the texts, in padded batches of similar length, through all exits."""
    done = 0
    with _evaluating(model):
        for rows in batches(texts.lengths, BATCH_SIZE):
            tokens = tokenizer.pad(dict(pick(texts.columns, rows)), return_tensors="pt").to(model.device)
            for number, hidden in model.walk_exits(tokens):
                yield ExitBatch(rows, number, hidden, tokens.get("attention_mask"))
            done += len(rows)
            on_progress(Progress("features", done, len(texts)))


def _logits(model: EarlyExitModel, batch: ExitBatch) -> NDArray:
    """Compute the logits of an exit, (texts, classes)."""
    return model.logits_at(batch.exit_number, batch.hidden, batch.mask).float().cpu().numpy()


def _pooled(model: EarlyExitModel, batch: ExitBatch) -> NDArray:
    """Compute the vectors that the head of an exit reads, (texts, width)."""
    return model.pool(batch.hidden, batch.mask).float().cpu().numpy()


@contextmanager
def _evaluating(model: EarlyExitModel) -> Iterator[None]:
    """Run a model without dropout and gradients."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)
