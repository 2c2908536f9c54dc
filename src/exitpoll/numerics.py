"""Probabilities from logits that are never NaN, and counts along the exits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LOG_FLOOR = -1e4  # e^-10000 is 0 in any precision, and −∞ · 0 would be NaN


def log_softmax(logits: NDArray) -> NDArray:
    """Give log-probabilities in float64 that are neither −∞ nor NaN, whatever the logits."""
    wide = logits.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        shifted = wide - wide.max(axis=-1, keepdims=True)
        summed = np.exp(shifted).sum(axis=-1, keepdims=True)
    if np.isnan(summed).any():  # logits were not finite
        return log_softmax(np.nan_to_num(wide).clip(-1e300, 1e300))
    return np.maximum(shifted - np.log(summed), LOG_FLOOR)


def softmax(logits: NDArray) -> NDArray:
    """Give probabilities in float64."""
    return np.exp(log_softmax(logits))


def log_odds(probability: NDArray) -> NDArray:
    """Stretch probabilities over the line; those of 0 and 1 to about ∓14."""
    inside = np.minimum(np.maximum(probability, 1e-6), 1 - 1e-6)
    return np.log(inside / (1 - inside))


def sigmoid(x: NDArray) -> NDArray:
    """Turn log-odds into probabilities, without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def depths(logits: NDArray) -> NDArray:
    """Number the exits from 1: (exits,)."""
    return np.arange(1, logits.shape[1] + 1, dtype=np.float64)


def predicted(logits: NDArray) -> NDArray:
    """Give every head's class: (texts, exits)."""
    highest = logits.argmax(axis=-1)
    return highest if np.isfinite(logits).all() else np.nan_to_num(logits).argmax(axis=-1)


def after_first(values: NDArray) -> NDArray:
    """Put a column of zeros in front: the first exit has none before it."""
    padded = np.zeros((len(values), values.shape[1] + 1), dtype=values.dtype)
    padded[:, 1:] = values
    return padded


def run_length(holds: NDArray) -> NDArray:
    """Count for how many exits in a row something has held: (texts, exits)."""
    counted = holds.cumsum(axis=1)
    since = np.maximum.accumulate(np.where(holds, 0, counted), axis=1)  # the count when it last did not hold
    return (counted - since).astype(np.float64)


def jensen_shannon(p: NDArray, q: NDArray) -> NDArray:
    """Jensen–Shannon divergence in nats, over the last axis."""
    middle = (p + q) / 2
    return (_kullback_leibler(p, middle) + _kullback_leibler(q, middle)) / 2


def _kullback_leibler(p: NDArray, q: NDArray) -> NDArray:
    """KL(p ‖ q) in nats, over the last axis; 0 · log 0 is 0."""
    ratio = np.divide(p, q, out=np.ones_like(p), where=p > 0)
    return (p * np.log(ratio)).sum(axis=-1)
