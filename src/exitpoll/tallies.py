"""Metrics from sums over texts: what lets a sweep or a bootstrap score thousands of answers at once.

Every metric here is a function of a few sums, each of one number per text. A sweep adds and takes away texts from the
sums; a bootstrap weighs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exitpoll.errors import InputError
from exitpoll.tasks import MULTI_LABEL, REGRESSION, SINGLE_LABEL


@dataclass(frozen=True)
class Tally:
    """One metric: what is noted of each text, and the score that sums of these notes give."""

    notes: Callable[[NDArray, NDArray, int], NDArray]  # (gold, answers, classes) -> (texts, notes)
    score: Callable[[NDArray], NDArray]  # (…, notes) -> (…)
    problem_types: tuple[str, ...]
    only_two_classes: bool = False


def tally_named(metric: str, problem_type: str, classes: int) -> Tally:
    """Look up a metric.

    Args:
        metric: Its name.
        problem_type: What is to be scored.
        classes: How many there are.

    Returns:
        Its tally.
    """
    fitting = [
        name
        for name, tally in TALLIES.items()
        if problem_type in tally.problem_types and (classes == 2 or not tally.only_two_classes)
    ]
    if metric not in fitting:
        what = f"{problem_type} with {classes} classes"
        raise InputError(f"metric '{metric}' does not score {what}; choose one of: {', '.join(fitting)}")
    return TALLIES[metric]


def agreement(first: NDArray, second: NDArray) -> NDArray:
    """Say on which texts two sets of answers are the same, every label of them: (texts,)."""
    same = first == second
    return same.all(axis=-1) if same.ndim > 1 else same


def _divided(numerator: NDArray, denominator: NDArray) -> NDArray:
    """Divide; nothing by nothing is 0, as in scikit-learn."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def _right(gold: NDArray, answers: NDArray, _: int) -> NDArray:
    """One, and whether the answer is right, every label of it."""
    right = agreement(gold, answers)
    return np.stack([np.ones(len(right)), right], axis=-1)


def _accuracy(sums: NDArray) -> NDArray:
    """Share of right answers."""
    return _divided(sums[..., 1], sums[..., 0])


def _positives(gold: NDArray, answers: NDArray, _: int) -> NDArray:
    """One, right, and for class 1: right, said, gold."""
    return np.stack([np.ones(len(gold)), gold == answers, gold & answers, answers, gold], axis=-1, dtype=np.float64)


def _accuracy_and_f1(sums: NDArray) -> NDArray:
    """Mean of accuracy and the F1 of class 1."""
    f1 = _divided(2 * sums[..., 2], sums[..., 3] + sums[..., 4])
    return (_accuracy(sums) + f1) / 2


def _by_class(gold: NDArray, answers: NDArray, classes: int) -> NDArray:
    """One, right, and the class said and the gold one, flagged."""
    flags = np.eye(classes)
    return np.concatenate([_right(gold, answers, classes), flags[answers], flags[gold]], axis=-1)


def _matthews(sums: NDArray) -> NDArray:
    """Matthews correlation, for any number of classes (Gorodkin, 2004)."""
    texts, right = sums[..., 0], sums[..., 1]
    said, gold = np.split(sums[..., 2:], 2, axis=-1)  # (…, classes)
    covariance = right * texts - (said * gold).sum(axis=-1)
    scale = (texts**2 - (said**2).sum(axis=-1)) * (texts**2 - (gold**2).sum(axis=-1))
    return _divided(covariance, np.sqrt(np.maximum(scale, 0)))


def _labels(gold: NDArray, answers: NDArray, _: int) -> NDArray:
    """Labels that are right, said, gold."""
    return np.stack([(gold & answers).sum(axis=-1), answers.sum(axis=-1), gold.sum(axis=-1)], axis=-1).astype(float)


def _micro_f1(sums: NDArray) -> NDArray:
    """F1 over all labels of all texts."""
    return _divided(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


def _squares(gold: NDArray, answers: NDArray, _: int) -> NDArray:
    """One, the value (from the mean of all, lest digits get lost) and its square, and the squared error."""
    value = gold - gold.mean()
    return np.stack([np.ones(len(gold)), value, value**2, (gold - answers) ** 2], axis=-1)


def _r2(sums: NDArray) -> NDArray:
    """Share of the variance explained."""
    texts, values, squares, errors = (sums[..., number] for number in range(4))
    variance = squares - _divided(values**2, texts)
    perfect = np.where(errors > 0, 0.0, 1.0)  # where gold does not vary, as in scikit-learn
    return np.where(variance > 0, 1 - _divided(errors, variance), perfect)


TALLIES: dict[str, Tally] = {
    "accuracy": Tally(_right, _accuracy, (SINGLE_LABEL, MULTI_LABEL)),
    "accuracy_and_f1": Tally(_positives, _accuracy_and_f1, (SINGLE_LABEL,), only_two_classes=True),
    "matthews": Tally(_by_class, _matthews, (SINGLE_LABEL,)),
    "micro_f1": Tally(_labels, _micro_f1, (MULTI_LABEL,)),
    "r2": Tally(_squares, _r2, (REGRESSION,)),
}
