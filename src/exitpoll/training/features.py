"""Run a model over texts in batches: the logits of all exits, or the vectors that the heads read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from exitpoll.data.batching import batches, pick
from exitpoll.data.progress import OnProgress, Progress, ignore
from exitpoll.errors import InputError
from exitpoll.models.exit_zero import POOLED, pool_embeddings
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import TokenizedTexts
from exitpoll.training.heads_only import Features

BATCH_SIZE = 64


@dataclass(frozen=True)
class ExitBatch:
    """A batch of texts at one exit."""

    rows: NDArray  # (texts,) row numbers
    exit_number: int  # from 0
    hidden: Tensor  # (texts, tokens, width)
    mask: Tensor | None  # (texts, tokens)
    input_ids: Tensor  # (texts, tokens)


EVERY = slice(None)  # batch


def record_logits(
    model: EarlyExitModel, texts: TokenizedTexts, tokenizer: PreTrainedTokenizerBase, part: slice = EVERY
) -> NDArray:
    """Compute the logits of all exits for all texts.

    Args:
        model: The model.
        texts: The texts as token ids.
        tokenizer: Pads the batches.
        part: The batches to run; the logits of other texts are 0.

    Returns:
        Logits, (texts, exits, classes), in the order of the texts.
    """
    logits = np.zeros((len(texts), len(model.config.exit_layers), model.config.num_labels), dtype=np.float32)
    for batch in _walk(model, texts, tokenizer, ignore, part=part):
        logits[batch.rows, batch.exit_number] = _logits(model, batch)
    return logits


def record_features(
    model: EarlyExitModel,
    texts: TokenizedTexts,
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    *,
    exits: int,
    others: bool = True,
    on_progress: OnProgress = ignore,
) -> Features:
    """Compute what the heads of the first exits read, and the logits of the others.

    Args:
        model: The model.
        texts: The texts as token ids.
        tokenizer: Pads the batches.
        path: The file for the vectors, which may be larger than memory; those of exit 0, and of all tokens where heads
            read these, are put beside it.
        exits: Number of exits whose heads are to be trained.
        others: Whether the logits of the other exits are needed; without them, the layers above are not run.
        on_progress: Called after every batch.

    Returns:
        The features, whose vectors are memory-mapped.
    """
    config, zero = model.config, int(model.has_exit_zero)
    width = config.encoder.hidden_size
    attends = config.pooling == "attention"  # then the heads read all tokens
    starts = np.concatenate([[0], np.cumsum(texts.lengths)])  # (texts + 1,) where the tokens of a text begin
    pooled = _vectors(path, (0 if attends else len(texts), exits - zero, width))
    total = int(starts[-1]) if attends else 0
    tokens = _vectors(path.with_suffix(".tokens.npy"), (total, exits - zero, width), np.float16)
    embeddings = _vectors(path.with_suffix(".zero.npy"), (len(texts), POOLED * width)) if zero else None
    above = len(config.exit_layers) - exits if others else 0
    logits = np.zeros((len(texts), above, config.num_labels), dtype=np.float32)
    for batch in _walk(model, texts, tokenizer, on_progress, exits + above):
        if batch.exit_number >= exits:
            logits[batch.rows, batch.exit_number - exits] = _logits(model, batch)
        elif embeddings is not None and batch.exit_number == 0:
            embeddings[batch.rows] = pool_embeddings(batch.hidden, batch.mask).float().cpu().numpy()
        elif attends:
            _keep_tokens(tokens[:, batch.exit_number - zero], starts, batch)
        else:
            pooled[batch.rows, batch.exit_number - zero] = _pooled(model, batch)
    token_ids = texts.columns["input_ids"] if config.exit_zero == "ngrams" else None
    return Features(pooled, logits, embeddings, token_ids, tokens if attends else None, starts)


def _keep_tokens(tokens: NDArray, starts: NDArray, batch: ExitBatch) -> None:
    """Write the hidden states of a batch into (tokens of all texts, width), without padding."""
    hidden = batch.hidden.half().cpu().numpy()
    for place, row in enumerate(batch.rows):
        length = starts[row + 1] - starts[row]
        kept = slice(0, length) if batch.mask is None else batch.mask[place].bool().cpu().numpy()
        tokens[starts[row] : starts[row + 1]] = hidden[place, kept]


def _vectors(path: Path, shape: tuple[int, ...], kind: type = np.float32) -> NDArray:
    """Return a new array in a file; in memory if it is empty, which cannot be mapped."""
    if 0 in shape:
        return np.zeros(shape, dtype=kind)
    vectors = np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=shape)
    if hasattr(os, "posix_fallocate"):  # a full disk would end the process where it writes to the map
        try:
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            size = path.stat().st_size / 1e9
            path.unlink()
            raise InputError(
                f"what the heads read takes {size:.1f} GB at '{path.parent}': {error.strerror}; free some space, or "
                "give fewer or shorter texts"
            ) from error
    return vectors


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
    model: EarlyExitModel,
    texts: TokenizedTexts,
    tokenizer: PreTrainedTokenizerBase,
    on_progress: OnProgress,
    exits: int | None = None,
    part: slice = EVERY,
) -> Iterator[ExitBatch]:
    """Run the texts, or some batches, in padded batches of similar length, through all exits, or the first ones."""
    done = 0
    with _evaluating(model):
        for rows in islice(batches(texts.lengths, BATCH_SIZE), part.start, part.stop, part.step):
            tokens = tokenizer.pad(dict(pick(texts.columns, rows)), return_tensors="pt").to(model.device)
            for number, hidden in islice(model.walk_exits(tokens), exits):
                yield ExitBatch(rows, number, hidden, tokens.get("attention_mask"), tokens["input_ids"])
            done += len(rows)
            on_progress(Progress("features", done, len(texts)))


def _logits(model: EarlyExitModel, batch: ExitBatch) -> NDArray:
    """Compute the logits of an exit, (texts, classes)."""
    return model.logits_at(batch.exit_number, batch.hidden, batch.mask, batch.input_ids).float().cpu().numpy()


def _pooled(model: EarlyExitModel, batch: ExitBatch) -> NDArray:
    """Compute the vectors that the head of an exit reads, (texts, width)."""
    return model.pool(batch.exit_number, batch.hidden, batch.mask).float().cpu().numpy()


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
