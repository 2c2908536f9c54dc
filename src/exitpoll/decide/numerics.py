"""Probabilities that are never NaN, and counts along the exits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LOG_FLOOR = -1e4  # e^-10000 is 0 in any precision, and −∞ · 0 would be NaN


def is_tame(logits: NDArray) -> bool:
    """Whether all logits are numbers, and none so high that a difference of two would overflow."""
    return bool(np.isfinite(logits).all()) and (logits.dtype.itemsize < 8 or bool((np.abs(logits) < 1e300).all()))


def tamed(logits: NDArray) -> NDArray:
    """Put 0 for NaN and something very high or low for ±∞."""
    return np.nan_to_num(logits.astype(np.float64)).clip(-1e300, 1e300)


def finite_values(values: NDArray) -> NDArray:
    """Give values as float64, 0 for those that are no numbers or beyond all sense."""
    wide = values.astype(np.float64)
    return np.where(np.abs(wide) < 1e100, wide, 0.0)


def log_softmax(logits: NDArray) -> NDArray:
    """Give log-probabilities of tame logits in float64, none below `LOG_FLOOR`."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return np.maximum(wide, LOG_FLOOR, out=wide)


def softmax(logits: NDArray) -> NDArray:
    """Give probabilities in float64, whatever the logits."""
    return np.exp(log_softmax(logits if is_tame(logits) else tamed(logits)))


def sigmoid(x: NDArray) -> NDArray:
    """Turn log-odds into probabilities, without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def exit_numbers(values: NDArray) -> NDArray:
    """Number the exits from 1: (texts, exits, …) -> (exits,)."""
    return np.arange(1.0, values.shape[1] + 1)


def highest_class(logits: NDArray) -> NDArray:
    """Give the highest class, whatever the logits: (…, classes) -> (…)."""
    return (logits if is_tame(logits) else tamed(logits)).argmax(axis=-1)


def after_first(values: NDArray) -> NDArray:
    """Put a column of zeros in front: the first exit has none before it."""
    padded = np.zeros((len(values), values.shape[1] + 1), dtype=values.dtype)
    padded[:, 1:] = values
    return padded


def run_length(holds: NDArray) -> NDArray:
    """Count for how many exits in a row something has held: (texts, exits)."""
    number = exit_numbers(holds)
    return number - np.maximum.accumulate(np.where(holds, 0.0, number), axis=1)  # the exit at which it last did not


def entropy_of(p: NDArray) -> NDArray:
    """Entropy in nats, over the last axis; 0 · log 0 is 0."""
    return -(p * np.log(np.maximum(p, 1e-300))).sum(axis=-1)


def divergence_from_last(p: NDArray) -> NDArray:
    """Jensen–Shannon divergence in nats from the exit before, H((p + q) / 2) − (H(p) + H(q)) / 2; 0 at the first.

    Args:
        p: Probabilities, (texts, exits, classes).

    Returns:
        Divergences, (texts, exits).
    """
    own = entropy_of(p)
    between = entropy_of((p[:, 1:] + p[:, :-1]) / 2) - (own[:, 1:] + own[:, :-1]) / 2
    return after_first(np.maximum(between, 0))  # rounding may give −1e-17
