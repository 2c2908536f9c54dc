"""Problem types, the answers that logits stand for, and the metrics that score answers.

Every metric is a function of a few sums of one number per text. A sweep adds texts to the sums and takes them
away, a bootstrap weighs them, and a plain score sums over all texts: one implementation serves all three. A metric of
ranks is the same of the ranks that values have among those of all texts, and these are ranked anew for every score.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.numerics import finite_values, highest_class
from exitpoll.errors import InputError

SINGLE_LABEL = "single_label_classification"
MULTI_LABEL = "multi_label_classification"
REGRESSION = "regression"
PROBLEM_TYPES = (SINGLE_LABEL, MULTI_LABEL, REGRESSION)

DEFAULT_METRICS = {
    SINGLE_LABEL: "accuracy",
    MULTI_LABEL: "micro_f1",
    REGRESSION: "r2",
}


def predictions(logits: NDArray, problem_type: str) -> NDArray:
    """Turn logits into answers in the form that metrics take.

    Args:
        logits: (…, classes), finite or not.
        problem_type: As in transformers.

    Returns:
        Class numbers (…), 0 and 1 for every label (…, classes), or values (…).
    """
    if problem_type == SINGLE_LABEL:
        return highest_class(logits)
    if problem_type == MULTI_LABEL:
        return (logits > 0).astype(np.int64)
    return finite_values(logits[..., 0])


def agreement(first: NDArray, second: NDArray) -> NDArray:
    """Return on which texts two sets of answers are the same, every label of them: (texts,)."""
    same = first == second
    return same.all(axis=-1) if same.ndim > 1 else same


@dataclass(frozen=True)
class Metric:
    """One metric: the counts of a text, and the score that sums of counts give; higher is better."""

    counts: Callable[[NDArray, NDArray, int], NDArray]  # (gold, answers, classes) -> (texts, counts)
    score: Callable[[NDArray], NDArray]  # (…, counts) -> (…)
    problem_types: tuple[str, ...]
    only_two_classes: bool = False
    ranked: bool = False  # whether the counts are of ranks instead of values

    def __call__(self, gold: NDArray, answers: NDArray) -> float:
        """Score some answers.

        Args:
            gold: Labels: class numbers or values (texts,), or 0 and 1 for every label (texts, classes).
            answers: What was answered, in the same form.

        Returns:
            The score.
        """
        kind = np.float64 if REGRESSION in self.problem_types else np.int64
        gold, answers = np.asarray(gold).astype(kind), np.asarray(answers).astype(kind)
        if self.ranked:
            gold, answers = ranks(gold), ranks(answers)
        classes = 1 + int(max(gold.max(initial=0), answers.max(initial=0)))
        return float(self.score(self.counts(gold, answers, classes).sum(axis=0)))


def ranks(values: NDArray) -> NDArray:
    """Rank values from 1, equal ones by their mean rank: (texts,) -> (texts,)."""
    _, number, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return (sizes.cumsum() - (sizes - 1) / 2)[number.ravel()]


def metric_named(name: str, problem_type: str, classes: int) -> Metric:
    """Look up a metric.

    Args:
        name: Its name.
        problem_type: What is to be scored.
        classes: How many classes there are.

    Returns:
        The metric.

    Raises:
        InputError: No metric of that name fits; the message lists those that do.
    """
    fitting = [
        known
        for known, metric in METRICS.items()
        if problem_type in metric.problem_types and (classes == 2 or not metric.only_two_classes)
    ]
    if name not in fitting:
        task = f"{problem_type} with {classes} classes"
        raise InputError(f"metric '{name}' does not score {task}; choose one of: {', '.join(fitting)}")
    return METRICS[name]


def _divide(numerator: NDArray, denominator: NDArray) -> NDArray:
    """Divide; 0 / 0 is 0, as in scikit-learn."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def _correct(gold: NDArray, answers: NDArray, _: int) -> NDArray:
    """One, and whether the answer is right, every label of it."""
    right = agreement(gold, answers)
    return np.stack([np.ones(len(right)), right], axis=-1)


def _accuracy(sums: NDArray) -> NDArray:
    """Share of right answers."""
    return _divide(sums[..., 1], sums[..., 0])


def _positives(gold: NDArray, answers: NDArray, _: int) -> NDArray:
    """One, right, and for class 1: true positives, answered, gold."""
    return np.stack([np.ones(len(gold)), gold == answers, gold & answers, answers, gold], axis=-1, dtype=np.float64)


def _accuracy_and_f1(sums: NDArray) -> NDArray:
    """Mean of accuracy and the F1 of class 1."""
    f1 = _divide(2 * sums[..., 2], sums[..., 3] + sums[..., 4])
    return (_accuracy(sums) + f1) / 2


def _by_class(gold: NDArray, answers: NDArray, classes: int) -> NDArray:
    """One, right, and the answered class and the gold class, one-hot."""
    one_hot = np.eye(classes)
    return np.concatenate([_correct(gold, answers, classes), one_hot[answers], one_hot[gold]], axis=-1)


def _matthews(sums: NDArray) -> NDArray:
    """Matthews correlation, for any number of classes (Gorodkin, 2004)."""
    texts, right = sums[..., 0], sums[..., 1]
    answered, gold = np.split(sums[..., 2:], 2, axis=-1)  # (…, classes)
    covariance = right * texts - (answered * gold).sum(axis=-1)
    scale = (texts**2 - (answered**2).sum(axis=-1)) * (texts**2 - (gold**2).sum(axis=-1))
    return _divide(covariance, np.sqrt(np.maximum(scale, 0)))


def _labels(gold: NDArray, answers: NDArray, _: int) -> NDArray:
    """True positives, labels answered, gold labels."""
    return np.stack([(gold & answers).sum(axis=-1), answers.sum(axis=-1), gold.sum(axis=-1)], axis=-1).astype(float)


def _micro_f1(sums: NDArray) -> NDArray:
    """F1 over all labels of all texts."""
    return _divide(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


def _squares(gold: NDArray, answers: NDArray, _: int) -> NDArray:
    """One, the value, its square and the squared error; values are centred, lest digits get lost."""
    value = gold - gold.mean()
    return np.stack([np.ones(len(gold)), value, value**2, (gold - answers) ** 2], axis=-1)


def _r2(sums: NDArray) -> NDArray:
    """Share of the variance explained."""
    texts, values, squares, errors = (sums[..., number] for number in range(4))
    variance = squares - _divide(values**2, texts)
    perfect = np.where(errors > 0, 0.0, 1.0)  # where gold does not vary, as in scikit-learn
    return np.where(variance > 0, 1 - _divide(errors, variance), perfect)


def _products(gold: NDArray, answers: NDArray, _: int) -> NDArray:
    """One, gold, answer, their squares and their product; both are centred, lest digits get lost."""
    first, second = gold - gold.mean(), answers - gold.mean()
    return np.stack([np.ones(len(gold)), first, second, first**2, second**2, first * second], axis=-1)


def _pearson(sums: NDArray) -> NDArray:
    """Correlation of Pearson."""
    texts, first, second, first_squares, second_squares, products = (sums[..., number] for number in range(6))
    variances = (texts * first_squares - first**2, texts * second_squares - second**2)
    deviations = [np.sqrt(np.maximum(variance, 0)) for variance in variances]
    return _divide(texts * products - first * second, deviations[0] * deviations[1])


def _spearman(sums: NDArray) -> NDArray:
    """Correlation of Spearman, that of the ranks."""
    return _pearson(sums)


# A new metric is one row here.
METRICS: dict[str, Metric] = {
    "accuracy": Metric(_correct, _accuracy, (SINGLE_LABEL, MULTI_LABEL)),
    "accuracy_and_f1": Metric(_positives, _accuracy_and_f1, (SINGLE_LABEL,), only_two_classes=True),
    "matthews": Metric(_by_class, _matthews, (SINGLE_LABEL,)),
    "micro_f1": Metric(_labels, _micro_f1, (MULTI_LABEL,)),
    "r2": Metric(_squares, _r2, (REGRESSION,)),
    "pearson": Metric(_products, _pearson, (REGRESSION,)),
    "spearman": Metric(_products, _spearman, (REGRESSION,), ranked=True),
}
