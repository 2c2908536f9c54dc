"""Softmax, entropy and counts along the exits that never give NaN, whatever the logits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LOG_FLOOR = -1e4  # e^-10000 is 0 in any precision, and −∞ · 0 would be NaN


def all_finite(logits: NDArray) -> bool:
    """Return whether all logits are finite, and small enough that the difference of two does not overflow."""
    return bool(np.isfinite(logits).all()) and (logits.dtype.itemsize < 8 or bool((np.abs(logits) < 1e300).all()))


def make_finite(logits: NDArray) -> NDArray:
    """Replace NaN by 0 and ±∞ by very large values."""
    return np.nan_to_num(logits.astype(np.float64)).clip(-1e300, 1e300)


def finite_values(values: NDArray) -> NDArray:
    """Convert values to float64, with 0 for those that are not finite or absurdly large."""
    wide = values.astype(np.float64)
    return np.where(np.abs(wide) < 1e100, wide, 0.0)


def log_softmax(logits: NDArray) -> NDArray:
    """Compute log-probabilities of finite logits in float64, none below `LOG_FLOOR`."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return np.maximum(wide, LOG_FLOOR, out=wide)


def softmax(logits: NDArray) -> NDArray:
    """Compute probabilities in float64, whatever the logits."""
    return np.exp(log_softmax(logits if all_finite(logits) else make_finite(logits)))


def sigmoid(x: NDArray) -> NDArray:
    """Turn log-odds into probabilities, without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def highest_class(logits: NDArray) -> NDArray:
    """Return the class with the highest logit, whatever the logits: (…, classes) -> (…)."""
    return (logits if all_finite(logits) else make_finite(logits)).argmax(axis=-1)


def binary_logits(logits: NDArray) -> NDArray:
    """Turn multi-label logits (texts, exits, labels) into those of no and yes, (texts · labels, exits, 2)."""
    yes = logits.swapaxes(1, 2).reshape(-1, logits.shape[1])  # (texts · labels, exits)
    return np.stack([np.zeros_like(yes), yes], axis=-1)


def exit_numbers(values: NDArray) -> NDArray:
    """Number the exits from 1: (texts, exits, …) -> (exits,)."""
    return np.arange(1.0, values.shape[1] + 1)


def after_first(values: NDArray) -> NDArray:
    """Prepend a column of zeros: the first exit has none before it."""
    padded = np.zeros((len(values), values.shape[1] + 1), dtype=values.dtype)
    padded[:, 1:] = values
    return padded


def run_length(holds: NDArray) -> NDArray:
    """Count for how many exits in a row a condition has held: (texts, exits)."""
    number = exit_numbers(holds)
    return number - np.maximum.accumulate(np.where(holds, 0.0, number), axis=1)  # minus the last exit where it did not


def entropy_of(p: NDArray) -> NDArray:
    """Compute the entropy in nats over the last axis; 0 · log 0 is 0."""
    return -(p * np.log(np.maximum(p, 1e-300))).sum(axis=-1)


def divergence_from_last(p: NDArray) -> NDArray:
    """Compute the Jensen–Shannon divergence from the exit before, H((p + q) / 2) − (H(p) + H(q)) / 2, in nats.

    Args:
        p: Probabilities, (texts, exits, classes).

    Returns:
        Divergences, (texts, exits); 0 at the first exit.
    """
    own = entropy_of(p)
    between = entropy_of((p[:, 1:] + p[:, :-1]) / 2) - (own[:, 1:] + own[:, :-1]) / 2
    return after_first(np.maximum(between, 0))  # rounding may give −1e-17
