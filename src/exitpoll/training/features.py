"""Run a whole model over texts: what every exit says, or what every head would read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from exitpoll.data.batching import Advance, batches, pick
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import TokenizedTexts


def record_logits(
    model: EarlyExitModel,
    texts: TokenizedTexts,
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
    logits = np.zeros((len(texts), len(model.config.exit_layers), model.config.num_labels), dtype=np.float32)
    with _evaluating(model):
        for rows, tokens in _batches(texts, tokenizer, model.device, batch_size, advance):
            logits[rows] = model(**tokens).exit_logits.float().cpu().numpy()
    return logits


def record_features(
    model: EarlyExitModel,
    texts: TokenizedTexts,
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
    below = len(model.config.exit_layers) - 1
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
                    last[rows] = model.logits_at(number, hidden, mask).float().cpu().numpy()
    return features, last


def record_all_features(
    model: EarlyExitModel, texts: TokenizedTexts, tokenizer: PreTrainedTokenizerBase, *, batch_size: int = 64
) -> NDArray:
    """Compute what every head reads of every text.

    Args:
        model: The model.
        texts: The texts as token ids.
        tokenizer: Pads the batches.
        batch_size: Texts in a batch.

    Returns:
        Features in half precision, (texts, exits, width).
    """
    shape = (len(texts), len(model.config.exit_layers), model.config.encoder.hidden_size)
    features = np.zeros(shape, dtype=np.float16)
    with _evaluating(model):
        for rows, tokens in _batches(texts, tokenizer, model.device, batch_size, None):
            for number, hidden in model.walk_exits(tokens):
                features[rows, number] = model.pool(hidden, tokens.get("attention_mask")).float().cpu().numpy()
    return features


def _batches(
    texts: TokenizedTexts,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    batch_size: int,
    advance: Advance | None,
) -> Iterator[tuple[NDArray, dict[str, Tensor]]]:
    """Go through the texts in padded batches of like length."""
    done = 0
    for rows in batches(texts.lengths, batch_size):
        yield rows, tokenizer.pad(dict(pick(texts.columns, rows)), return_tensors="pt").to(device)
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
