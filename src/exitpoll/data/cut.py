"""Cut a split from the train split at random: classes in proportion, and all copies of a text on one side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Text
from exitpoll.data.normalize import normalized
from exitpoll.decide.metrics import SINGLE_LABEL
from exitpoll.errors import InputError

CUT_SHARE, CUT_MOST = 0.1, 2000  # a missing split takes this share of the train split, and about so many texts at most


def cut_rows(
    texts: Sequence[Text],
    labels: NDArray | None,
    problem_type: str,
    seed: int,
    share: float = CUT_SHARE,
    most: int | None = CUT_MOST,
) -> tuple[NDArray, NDArray]:
    """Divide texts at random, stratified by class where the classes are large enough.

    Args:
        texts: The texts of the train split.
        labels: Their labels, if they have any.
        problem_type: As in transformers.
        seed: Seed of the cut.
        share: How much to cut off, of all texts.
        most: About how many texts to cut off, at most; None for no limit.

    Returns:
        The row numbers of the texts to keep and of those to cut off, both in order.
    """
    from sklearn.model_selection import train_test_split

    copies = copies_of(texts)  # (texts,)
    _, firsts = np.unique(copies, return_index=True)  # (distinct texts,)
    if len(firsts) < 2:
        distinct = f"{len(texts)} texts, {len(firsts)} of them distinct, are"
        advice = "provide train, dev and test files, or a file of more texts; split 'all' reads a file as it is"
        raise InputError(f"{distinct} too few to divide: {advice}", options=["split"])
    size = max(round(len(texts) * share), 1)
    size = size if most is None else min(size, most)
    size = max(round(size * len(firsts) / len(texts)), 1)  # in distinct texts
    stratify = None if labels is None else labels[firsts]
    if stratify is not None and not _can_stratify(stratify, problem_type, size):
        stratify = None
    _, cut = train_test_split(np.arange(len(firsts)), test_size=size, random_state=seed, stratify=stratify)
    is_cut = np.isin(copies, cut)
    return np.flatnonzero(~is_cut), np.flatnonzero(is_cut)


def copies_of(texts: Sequence[Text]) -> NDArray:
    """Number the distinct texts in the order in which they first occur, (texts,); copies have the same number.

    Args:
        texts: The texts; case and white space do not distinguish them.
    """
    numbers: dict[Text, int] = {}
    return np.array([numbers.setdefault(normalized(text), len(numbers)) for text in texts], dtype=np.int64)


def _can_stratify(labels: NDArray, problem_type: str, size: int) -> bool:
    """Return whether every class is large enough to be in both parts of a cut."""
    if problem_type != SINGLE_LABEL:
        return False
    counts = np.bincount(labels)
    counts = counts[counts > 0]
    return bool(counts.min() >= 2 and len(counts) <= min(size, len(labels) - size))
