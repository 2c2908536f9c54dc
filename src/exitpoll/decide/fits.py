"""What strategies learn from recorded logits: temperatures, and when the answer of a head can be trusted.

A fit is a function of logits (texts, exits, classes) and the classes to fit to (texts,); it returns settings.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.numerics import after_first, highest_class, log_softmax, run_length
from exitpoll.decide.settings import Settings

Fit = Callable[[NDArray, NDArray], Settings]  # (logits, target classes) -> settings

FEATURES = ("margin", "entropy", "run", "votes")  # more did not help; depth is covered by one fit per exit


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


def _logistic_regression(values: NDArray, right: NDArray) -> list[float]:
    """Fit one exit: the coefficients of the unscaled features, and the intercept."""
    if right.all() or not right.any():
        share = (right.sum() + 1) / (len(right) + 2)
        return [0.0] * len(FEATURES) + [_rounded(np.log(share / (1 - share)))]
    from sklearn.linear_model import LogisticRegression

    middle, spread = values.mean(axis=0), values.std(axis=0)
    spread[spread < 1e-9] = 1.0  # constant over all texts; its coefficient stays 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # near convergence is good enough
        model = LogisticRegression(C=0.1, solver="newton-cholesky").fit((values - middle) / spread, right)
    coefficients = model.coef_[0] / spread
    intercept = model.intercept_[0] - coefficients @ middle
    return [_rounded(number) for number in (*coefficients, intercept)]


def _rounded(number: float) -> float:
    """Round to six significant digits: a policy file is for people to read, too."""
    return float(f"{number:.6g}")
