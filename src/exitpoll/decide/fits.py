"""What strategies learn from recorded logits: temperatures, and when the answer of a head can be trusted.

A fit is a function of logits (texts, exits, classes) and the classes or values to fit to (texts,); it returns settings.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.numerics import (
    after_first,
    exit_numbers,
    finite_values,
    highest_class,
    log_softmax,
    run_length,
)
from exitpoll.decide.settings import Settings

Fit = Callable[[NDArray, NDArray], Settings]  # (logits, target classes or values) -> settings

FEATURES = ("margin", "entropy", "run", "votes")  # more did not help; depth is covered by one fit per exit
VALUE_FEATURES = ("value", "square", "step", "spread")  # the same for regression, and as many
LARGEST = 1e9  # value in a feature: sums of squares stay finite


def fit_temperatures(logits: NDArray, target: NDArray) -> Settings:
    """Fit for every exit the temperature at which its probabilities are best calibrated (Guo et al., 2017).

    Args:
        logits: (texts, exits, classes)
        target: Classes to fit to, (texts,).

    Returns:
        Temperatures by exit, between 1/20 and 20.
    """
    from scipy.optimize import minimize_scalar

    rows = np.arange(len(target))

    def surprise(log_temperature: float, number: int) -> float:
        """Compute the mean negative log-likelihood of the target."""
        return -float(log_softmax(logits[:, number] / np.exp(log_temperature))[rows, target].mean())

    bounds = (-np.log(20), np.log(20))
    best = [minimize_scalar(surprise, bounds=bounds, args=(number,)).x for number in range(logits.shape[1])]
    return {"temperatures": [_rounded(np.exp(log_temperature)) for log_temperature in best]}


def fit_logistic(logits: NDArray, target: NDArray) -> Settings:
    """Fit for every exit a logistic regression of the chance that its head answers the target.

    Args:
        logits: (texts, exits, classes)
        target: Classes to fit to, (texts,).

    Returns:
        Coefficients (exits, features) and intercepts (exits,).
    """
    right = highest_class(logits) == target[:, None]  # (texts, exits)
    values, _ = features(logits)  # (texts, exits, features)
    rows = [_logistic_regression(values[:, number], right[:, number]) for number in range(logits.shape[1])]
    return {"coefficients": [row[:-1] for row in rows], "intercepts": [row[-1] for row in rows]}


def features(logits: NDArray) -> tuple[NDArray, NDArray]:
    """Compute what the exits so far reveal about the current head's answer.

    Args:
        logits: (texts, exits, classes)

    Returns:
        The numbers that `FEATURES` names, (texts, exits, features): the head's margin and entropy, for how many exits
        its answer has stood unchanged, and how many exits vote for it; and these answers, (texts, exits).
    """
    log_p = log_softmax(logits)  # (texts, exits, classes)
    p = np.exp(log_p)
    answers = p.argmax(axis=-1)
    ordered = np.sort(p, axis=-1)
    same = answers[:, :, None] == answers[:, None, :]  # (texts, exits, exits)
    values = np.empty((*answers.shape, len(FEATURES)))
    values[..., 0] = ordered[..., -1] - ordered[..., -2]
    values[..., 1] = -(p * log_p).sum(axis=-1)
    values[..., 2] = run_length(after_first(same.diagonal(1, axis1=1, axis2=2)))
    values[..., 3] = same.cumsum(axis=2).diagonal(axis1=1, axis2=2)
    return values, answers


def fit_distances(logits: NDArray, target: NDArray) -> Settings:
    """Fit for every exit a linear regression of the distance of its value from the target.

    Args:
        logits: (texts, exits, 1)
        target: Values to fit to, the last head's, (texts,).

    Returns:
        Coefficients (exits, features) and intercepts (exits,).
    """
    values = finite_values(logits[..., 0])  # (texts, exits)
    distances = np.abs(values - target[:, None])
    told = value_features(values)  # (texts, exits, features)
    rows = [_linear_regression(told[:, number], distances[:, number]) for number in range(values.shape[1])]
    return {"coefficients": [row[:-1] for row in rows], "intercepts": [row[-1] for row in rows]}


def value_features(values: NDArray) -> NDArray:
    """Compute what the values so far reveal about how far the current one is from the last.

    Args:
        values: Finite, (texts, exits).

    Returns:
        The numbers that `VALUE_FEATURES` names, (texts, exits, features): the value and its square, how far it moved
        from the exit before, and the standard deviation of the values so far.
    """
    number, values = exit_numbers(values), values.clip(-LARGEST, LARGEST)
    away = values - values[:, :1]  # small, so that the variance is no difference of large numbers
    variance = (away**2).cumsum(axis=1) / number - (away.cumsum(axis=1) / number) ** 2
    told = np.empty((*values.shape, len(VALUE_FEATURES)))
    told[..., 0] = values
    told[..., 1] = values**2
    told[..., 2] = after_first(np.abs(values[:, 1:] - values[:, :-1]))
    told[..., 3] = np.sqrt(np.maximum(variance, 0))
    return told


def _linear_regression(values: NDArray, distances: NDArray) -> list[float]:
    """Fit one exit: the coefficients of the unscaled features, and the intercept."""
    from sklearn.linear_model import Ridge

    middle, spread = _scale(values)
    model = Ridge(alpha=1.0).fit((values - middle) / spread, distances)
    return _unscaled(model.coef_, model.intercept_, middle, spread)


def _scale(values: NDArray) -> tuple[NDArray, NDArray]:
    """Return mean and standard deviation of every feature; 1 for one that is constant, whose coefficient stays 0."""
    middle, spread = values.mean(axis=0), values.std(axis=0)
    spread[spread < 1e-9] = 1.0
    return middle, spread


def _unscaled(coefficients: NDArray, intercept: float, middle: NDArray, spread: NDArray) -> list[float]:
    """Return the coefficients for features as they are, and the intercept."""
    raw = coefficients / spread
    return [_rounded(number) for number in (*raw, intercept - raw @ middle)]


def _logistic_regression(values: NDArray, right: NDArray) -> list[float]:
    """Fit one exit: the coefficients of the unscaled features, and the intercept."""
    if right.all() or not right.any():
        share = (right.sum() + 1) / (len(right) + 2)
        return [0.0] * len(FEATURES) + [_rounded(np.log(share / (1 - share)))]
    from sklearn.linear_model import LogisticRegression

    middle, spread = _scale(values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # near convergence is good enough
        model = LogisticRegression(C=0.1, solver="newton-cholesky").fit((values - middle) / spread, right)
    return _unscaled(model.coef_[0], model.intercept_[0], middle, spread)


def _rounded(number: float) -> float:
    """Round to six significant digits: a policy file is for people to read, too."""
    return float(f"{number:.6g}")
