"""Texts as token ids: those of like length together, padded to one length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Text = str | tuple[str, str]  # a text, or a pair
Tokens = Mapping[str, Sequence[Sequence[int]]]  # input_ids, token_type_ids, …: (texts, tokens of each), unpadded


def lengths_of(tokens: Tokens) -> NDArray:
    """Count the tokens of every text, (texts,)."""
    return np.array([len(ids) for ids in tokens["input_ids"]], dtype=np.int64)


def pick(tokens: Tokens, rows: NDArray) -> Tokens:
    """Take some texts, in the order given."""
    return {name: [column[row] for row in rows] for name, column in tokens.items()}


def padded(column: Sequence[Sequence[int]], longest: int, filler: int) -> NDArray:
    """Fill up rows on the right: (texts, longest)."""
    return np.array([[*row, *[filler] * (longest - len(row))] for row in column], dtype=np.int64)


def mask_of(lengths: NDArray, longest: int) -> NDArray:
    """Mark the real tokens, 1 and 0: (texts, longest)."""
    return (np.arange(longest) < lengths[:, None]).astype(np.int64)


def batches(lengths: NDArray, batch_size: int) -> Iterator[NDArray]:
    """Group texts of like length, longest first, so that a lack of memory shows at once.

    Args:
        lengths: Tokens of each text, (texts,).
        batch_size: Texts in a batch.

    Yields:
        The row numbers of each batch.
    """
    order = np.argsort(-lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
