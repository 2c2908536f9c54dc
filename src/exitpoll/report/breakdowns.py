"""Where a policy is wrong: which classes are confused, and what early exit costs by class and by length of the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Text
from exitpoll.decide.bootstrap import INTERVAL, Estimate, bootstrap_mean, estimate, estimate_share
from exitpoll.decide.decisions import Decisions
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, SINGLE_LABEL, agreement
from exitpoll.decide.trace import Trace

LENGTH_BINS = 5
MOST_CLASSES = 12  # of a confusion matrix
MOST_CONFUSIONS = 10  # that are listed


@dataclass(frozen=True)
class Slice:
    """What early exit costs on some of the texts."""

    name: str
    texts: int
    score: float  # share of right answers, or the mean absolute error of values
    full_score: float  # of the full model
    loss: Estimate  # how much worse the policy is than the full model
    depth: float  # mean layers a text
    number: int | None = None  # of the class


@dataclass(frozen=True)
class Confusion:
    """Texts of one class that are answered as another."""

    label: int
    answer: int
    texts: int
    lost: int  # of these, how many the full model answers right


@dataclass(frozen=True)
class Decided:
    """Answers of a policy and of the full model for the same texts, with labels or what stands in for them."""

    trace: Trace
    policy: Decisions
    full: Decisions
    labelled: bool = True  # False: the full model's answers stand in for labels

    @property
    def gold(self) -> NDArray:
        """The labels, in the form of the answers."""
        return self.trace.gold("a breakdown of errors")


# ---- slices ---------------------------------------------------------------------------------------------------------


def by_class(decided: Decided, label_names: Sequence[str]) -> list[Slice]:
    """Compute the loss on the texts of every class; of multi-label, on the texts that have a label.

    Args:
        decided: The answers.
        label_names: The classes.

    Returns:
        A slice for every class that occurs, the largest loss first; none for values.
    """
    if decided.trace.problem_type == REGRESSION:
        return []
    gold, answer, full = decided.gold, decided.policy.answer, decided.full.answer
    if decided.trace.problem_type == MULTI_LABEL:
        columns = [(gold[:, number] > 0, answer[:, number] > 0, full[:, number] > 0) for number in range(gold.shape[1])]
    else:
        columns = [(gold == number, answer == gold, full == gold) for number in range(len(label_names))]
    slices = [
        replace(_slice(decided, name, rows, right, full_right), number=number)
        for number, (name, (rows, right, full_right)) in enumerate(zip(label_names, columns, strict=True))
        if rows.any()
    ]
    return sorted(slices, key=lambda part: -part.loss.value)


def by_length(decided: Decided, lengths: NDArray) -> list[Slice]:
    """Compute the loss on short and on long texts.

    Args:
        decided: The answers.
        lengths: Of the texts, (texts,).

    Returns:
        Slices of about as many texts, by rising length.
    """
    bins = _length_bins(lengths)
    gold = decided.gold
    if decided.trace.problem_type == REGRESSION:
        errors, full_errors = np.abs(gold - decided.policy.answer), np.abs(gold - decided.full.answer)
        return [_slice_of_values(decided, name, rows, errors, full_errors) for name, rows in bins.items()]
    right, full_right = agreement(decided.policy.answer, gold), agreement(decided.full.answer, gold)
    return [_slice(decided, name, rows, right, full_right) for name, rows in bins.items()]


def lengths_of_texts(texts: Sequence[Text]) -> NDArray:
    """Count the words of texts, (texts,); of both texts of a pair."""
    return np.array(
        [len((text if isinstance(text, str) else " ".join(text)).split()) for text in texts], dtype=np.int64
    )


def _slice(decided: Decided, name: str, rows: NDArray, right: NDArray, full_right: NDArray) -> Slice:
    """Compare right answers on some texts, (texts,); those of the full model itself can only be lost."""
    ours, theirs = right[rows], full_right[rows]
    loss = paired_difference(theirs, ours) if decided.labelled else estimate_share(~ours)
    return Slice(name, len(ours), float(ours.mean()), float(theirs.mean()), loss, _mean_depth(decided, rows))


def _slice_of_values(decided: Decided, name: str, rows: NDArray, errors: NDArray, full_errors: NDArray) -> Slice:
    """Compare absolute errors on some texts, (texts,)."""
    ours, theirs = errors[rows], full_errors[rows]
    loss = estimate(bootstrap_mean(ours - theirs))
    return Slice(name, len(ours), float(ours.mean()), float(theirs.mean()), loss, _mean_depth(decided, rows))


def _mean_depth(decided: Decided, rows: NDArray) -> float:
    """Return the mean depth at which some texts leave."""
    return float(decided.policy.depth[rows].mean())


def paired_difference(first: NDArray, second: NDArray) -> Estimate:
    """Compare how often two things hold for the same texts, with the interval of Bonett and Price (2012).

    Args:
        first: Whether the first holds, (texts,).
        second: Whether the second holds, (texts,).

    Returns:
        The difference of their shares; its interval is honest for few texts, also where the two never differ.
    """
    from scipy.stats import norm

    texts, only_first, only_second = len(first), int((first & ~second).sum()), int((second & ~first).sum())
    more, less = (only_first + 1) / (texts + 2), (only_second + 1) / (texts + 2)
    reach = norm.ppf((1 + INTERVAL) / 2) * np.sqrt((more + less - (more - less) ** 2) / (texts + 2))
    low, high = max(-1.0, more - less - reach), min(1.0, more - less + reach)
    return Estimate((only_first - only_second) / texts, float(low), float(high))


def _length_bins(lengths: NDArray) -> dict[str, NDArray]:
    """Sort texts into bins of about equal size by their length: which texts are in a bin, by its name."""
    ends = -(-len(lengths) * np.arange(1, LENGTH_BINS + 1) // LENGTH_BINS) - 1  # rounded up
    tops = np.unique(np.sort(lengths)[ends])  # the longest of every bin
    bin_of = np.searchsorted(tops, lengths)
    lows = [int(lengths[bin_of == number].min()) for number in range(len(tops))]
    names = [str(top) if low == top else f"{low} to {top}" for low, top in zip(lows, tops, strict=True)]
    return {name: bin_of == number for number, name in enumerate(names)}


# ---- confusions -----------------------------------------------------------------------------------------------------


def confusion_matrix(decided: Decided) -> NDArray | None:
    """Count texts by label and answer, (classes, classes); None unless every text has one of few classes."""
    classes = decided.trace.logits.shape[-1]
    if decided.trace.problem_type != SINGLE_LABEL or classes > MOST_CLASSES:
        return None
    pairs = decided.gold * classes + decided.policy.answer
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def top_confusions(decided: Decided) -> list[Confusion]:
    """List the classes that are confused most often.

    Args:
        decided: The answers.

    Returns:
        At most `MOST_CONFUSIONS`, the most frequent first; none unless every text has one class.
    """
    if decided.trace.problem_type != SINGLE_LABEL:
        return []
    gold, answer = decided.gold, decided.policy.answer
    wrong = answer != gold
    pairs, counts = np.unique(np.stack([gold, answer], axis=1)[wrong], axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:MOST_CONFUSIONS]
    return [
        Confusion(
            int(label),
            int(other),
            int(count),
            int(((gold == label) & (answer == other) & (decided.full.answer == label)).sum()),
        )
        for (label, other), count in zip(pairs[order], counts[order], strict=True)
    ]
