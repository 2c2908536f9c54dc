"""Tokenized texts: lengths, padding, and batches of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Text = str | tuple[str, str]  # a text, or a pair of texts
ONES = np.ones((1, 512), dtype=np.int64)  # the mask of one text is a part of it: at batch size 1 every step counts
ONES.setflags(write=False)
Tokens = Mapping[str, Sequence[Sequence[int]]]  # input_ids, token_type_ids, …: one list for every text, unpadded


def lengths_of(tokens: Tokens) -> NDArray:
    """Count the tokens of every text, (texts,)."""
    return np.array([len(ids) for ids in tokens["input_ids"]], dtype=np.int64)


def pick(tokens: Tokens, rows: NDArray) -> Tokens:
    """Select texts by their row numbers, in the order given."""
    return {name: [column[row] for row in rows] for name, column in tokens.items()}


def padded(column: Sequence[Sequence[int]], longest: int, filler: int) -> NDArray:
    """Pad lists of tokens on the right: (texts, longest)."""
    return np.array([[*row, *[filler] * (longest - len(row))] for row in column], dtype=np.int64)


def mask_of(lengths: NDArray, longest: int) -> NDArray:
    """Compute the attention mask, 1 for tokens and 0 for padding: (texts, longest)."""
    return (np.arange(longest) < lengths[:, None]).astype(np.int64)


def batches(lengths: NDArray, batch_size: int) -> Iterator[NDArray]:
    """Group texts of similar length, longest first, so that a lack of memory shows at once.

    Args:
        lengths: The number of tokens of every text, (texts,).
        batch_size: The number of texts in a batch.

    Yields:
        The row numbers of a batch.
    """
    order = np.argsort(-lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def calls(lengths: NDArray, most_tokens: int, call_tokens: float) -> Iterator[NDArray]:
    """Group texts of similar length, longest first, into calls of a runtime.

    Args:
        lengths: The number of tokens of every text, (texts,).
        most_tokens: Most tokens in a call, with padding; a longer text is alone.
        call_tokens: The overhead of a call, in tokens: more padding than this costs more than another call.

    Yields:
        The row numbers of a call.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        rest = lengths[order[start : start + max(1, most_tokens // longest)]]
        fits = int(np.searchsorted(np.cumsum(longest - rest), call_tokens, side="right"))
        yield order[start : start + fits]
        start += fits


def padded_columns(tokens: Tokens, padding: Mapping[str, int]) -> dict[str, NDArray]:
    """Pad texts to the longest.

    Args:
        tokens: Tokenized texts.
        padding: The columns to pad, with their padding values.

    Returns:
        These columns and the attention mask, (texts, tokens).
    """
    if len(tokens["input_ids"]) == 1:  # nothing to pad
        alone = {name: np.array(tokens[name], dtype=np.int64) for name in padding}
        length = len(tokens["input_ids"][0])
        return {**alone, "attention_mask": ONES[:, :length] if length <= ONES.size else np.ones((1, length), np.int64)}
    lengths = lengths_of(tokens)
    longest = int(lengths.max())
    columns = {name: padded(tokens[name], longest, filler) for name, filler in padding.items()}
    return {**columns, "attention_mask": mask_of(lengths, longest)}
