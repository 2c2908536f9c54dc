"""The formulas of the exit strategies: how sure the exits so far are, as a score, and the answer that goes with it.

A score is a pure function of logits (texts, exits, classes). Column l of its result depends on the first l exits alone,
so one function serves a recorded trace, all exits at once, and a live batch, whose last column counts. Scores are in
natural units: votes, probabilities, nats. Logits must be finite: `strategies.ask` sees to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.fits import features, value_features
from exitpoll.decide.numerics import (
    after_first,
    divergence_from_last,
    exit_numbers,
    finite_values,
    log_softmax,
    run_length,
    sigmoid,
)


@dataclass(frozen=True)
class Opinion:
    """The result of a strategy for the exits so far."""

    score: NDArray  # (texts, exits), −∞ from the first logits that are not finite on: such a text never exits early
    answer: NDArray  # (texts, exits) class numbers or values; (texts, exits, classes) of 0 and 1 for multi-label


# ---- no head --------------------------------------------------------------------------------------------------------


def static(logits: NDArray) -> Opinion:
    """Number of the exit, whatever the heads say: all texts leave at the same exit, as in a smaller model."""
    return Opinion(_numbered(logits), logits.argmax(axis=-1))


def static_values(logits: NDArray) -> Opinion:
    """Number of the exit, for regression."""
    return Opinion(_numbered(logits), finite_values(logits[..., 0]))


def _numbered(logits: NDArray) -> NDArray:
    """Number the exits of every text from 1: (texts, exits)."""
    return np.tile(exit_numbers(logits), (len(logits), 1))


# ---- the current head -----------------------------------------------------------------------------------------------


def entropy(logits: NDArray, *, normalized: bool = False) -> Opinion:
    """Entropy of the current head: in nats, Xin et al. (2020); as a share of log C, Liu et al. (2020), Eq. 5."""
    log_p = log_softmax(logits)
    nats = -(np.exp(log_p) * log_p).sum(axis=-1)  # e^x · x is 0, not NaN, at the floor of log_softmax
    return Opinion(-nats / (np.log(logits.shape[-1]) if normalized else 1.0), log_p.argmax(axis=-1))


def max_prob(
    logits: NDArray, *, temperatures: Sequence[float] | NDArray | None = None, towards: str | None = None
) -> Opinion:
    """Highest probability of the current head at the exit's temperature, Schwartz et al. (2020), Section 3.

    Args:
        logits: (texts, exits, classes)
        temperatures: (exits,), as fitted by `fit_temperatures`; 1 by default.
        towards: What they were fitted to; for the reader of a policy file.

    Returns:
        The opinion.
    """
    if temperatures is not None:
        logits = logits / np.asarray(temperatures, dtype=np.float64)[: logits.shape[1], None]
    p = np.exp(log_softmax(logits))
    return Opinion(p.max(axis=-1), p.argmax(axis=-1))


def margin(logits: NDArray) -> Opinion:
    """Difference between the two highest probabilities of the current head."""
    p = np.exp(log_softmax(logits))
    highest = np.partition(p, -2, axis=-1)[..., -2:]  # (texts, exits, 2)
    return Opinion(highest[..., 1] - highest[..., 0], p.argmax(axis=-1))


# ---- patience -------------------------------------------------------------------------------------------------------


def patience(logits: NDArray) -> Opinion:
    """Number of exits for which the prediction has stood unchanged, 0 at the first, Zhou et al. (2020), Eq. 4."""
    answer = logits.argmax(axis=-1)
    return Opinion(run_length(after_first(answer[:, 1:] == answer[:, :-1])), answer)


def stable(logits: NDArray, *, within: float = 0.1) -> Opinion:
    """Number of exits for which the value has moved by at most `within`, for regression, Zhou et al. (2020), Eq. 5."""
    values = finite_values(logits[..., 0])  # (texts, exits)
    steps = np.abs(values[:, 1:] - values[:, :-1])
    return Opinion(run_length(after_first(steps <= within)), values)


def confident_patience(logits: NDArray, *, confidence: float = 0.9) -> Opinion:
    """Number of exits in a row whose highest probability reached `confidence`, Zhang et al. (2022)."""
    p = np.exp(log_softmax(logits))
    return Opinion(run_length(p.max(axis=-1) >= confidence), p.argmax(axis=-1))


def confidences(logits: NDArray) -> NDArray:
    """Return what `confident_patience` compares with `confidence`, (texts, exits)."""
    return np.exp(log_softmax(logits)).max(axis=-1)


def divergences(logits: NDArray) -> NDArray:
    """Return what `js_patience` compares with `divergence`, (texts, exits - 1)."""
    return divergence_from_last(np.exp(log_softmax(logits)))[:, 1:]


def js_patience(logits: NDArray, *, divergence: float = 0.05) -> Opinion:
    """Number of exits in a row with a small Jensen–Shannon divergence from the exit before, Gao et al. (2023)."""
    p = np.exp(log_softmax(logits))
    near = divergence_from_last(p)[:, 1:] < divergence  # (texts, exits - 1)
    return Opinion(run_length(after_first(near)), p.argmax(axis=-1))


# ---- votes and ensembles --------------------------------------------------------------------------------------------


def votes(logits: NDArray, *, k: float = 0.5) -> Opinion:
    """Vote of all exits so far, V_l = max_c #{j ≤ l: argmax x_j = c} / l^k, Sun et al. (2021), Eq. 23."""
    ballots = logits.argmax(axis=-1)[..., None] == np.arange(logits.shape[-1])  # (texts, exits, classes)
    counts = ballots.cumsum(axis=1)
    # In a tie the current head's class wins; if it is not among the tied classes, the first of them.
    answer = (2 * counts + ballots).argmax(axis=-1)
    return Opinion(counts.max(axis=-1) / exit_numbers(logits) ** k, answer)


def soft_votes(logits: NDArray, *, k: float = 0.5) -> Opinion:
    """Sum of probabilities in place of votes: max_c Σ_{j≤l} x_j[c] / l^k."""
    summed = np.exp(log_softmax(logits)).cumsum(axis=1)
    return Opinion(summed.max(axis=-1) / exit_numbers(logits) ** k, summed.argmax(axis=-1))


def mean(logits: NDArray) -> Opinion:
    """Highest probability of the mean distribution: soft votes with k = 1."""
    return soft_votes(logits, k=1.0)


def geometric(logits: NDArray) -> Opinion:
    """Highest probability of the geometric mean of the distributions, Wołczyk et al. (2021), Eq. 3, equal weights."""
    averaged = log_softmax(logits).cumsum(axis=1) / exit_numbers(logits)[:, None]
    p = np.exp(log_softmax(averaged))
    return Opinion(p.max(axis=-1), p.argmax(axis=-1))


# ---- combined and learned -------------------------------------------------------------------------------------------


def combine(opinions: Sequence[Opinion], levels: list[float | None]) -> Opinion:
    """Combine strategies into one, whose score counts those that fire.

    Where one of them has no level yet, its own score is the score, and ∞ where another fires.

    Args:
        opinions: The opinions to combine.
        levels: What their scores must reach for them to fire; None for one that is still open.

    Returns:
        The opinion; its answer is that of the first that fires, else of the open one, else of the first.
    """
    open_number = levels.index(None) if None in levels else None
    answer = opinions[open_number or 0].answer
    fires = np.zeros(answer.shape[:2])
    for opinion, level in zip(opinions, levels, strict=True):
        if level is None:
            continue
        now = opinion.score >= level
        if opinion.answer is not answer:
            first = now & (fires == 0)
            answer = np.where(first if answer.ndim == 2 else first[..., None], opinion.answer, answer)
        fires += now
    if open_number is None:
        return Opinion(fires, answer)
    return Opinion(np.where(fires > 0, np.inf, opinions[open_number].score), answer)


def learned(
    logits: NDArray, *, coefficients: Sequence | NDArray, intercepts: Sequence | NDArray, towards: str = "agreement"
) -> Opinion:
    """Chance that the head answers as the last one will, or is right: a logistic regression per exit.

    Args:
        logits: (texts, exits, classes)
        coefficients: (exits, features), as fitted by `fit_logistic`.
        intercepts: (exits,)
        towards: What was learned, "agreement" or "right"; for the reader of a policy file.

    Returns:
        The opinion; the answer is the current head's.
    """
    exits = logits.shape[1]
    values, answers = features(logits)
    chance = sigmoid((values * np.asarray(coefficients)[:exits]).sum(axis=-1) + np.asarray(intercepts)[:exits])
    return Opinion(chance, answers)


def learned_distance(
    logits: NDArray, *, coefficients: Sequence | NDArray, intercepts: Sequence | NDArray, towards: str = "agreement"
) -> Opinion:
    """Expected distance of the value from the last head's: a linear regression per exit.

    Args:
        logits: (texts, exits, 1)
        coefficients: (exits, features), as fitted by `fit_distances`.
        intercepts: (exits,)
        towards: What was learned; for the reader of a policy file.

    Returns:
        The opinion, with minus the distance as score; the answer is the current head's value.
    """
    exits, values = logits.shape[1], finite_values(logits[..., 0])
    told = value_features(values)
    distance = (told * np.asarray(coefficients)[:exits]).sum(axis=-1) + np.asarray(intercepts)[:exits]
    return Opinion(-distance, values)
