"""How sure are we after the exits so far: a score for every strategy, higher is surer, and the answer it gives.

A strategy is a pure function of logits (texts, exits, classes). Column l of what it gives depends on the first l exits
alone, so the same function serves a recorded trace, all exits at once, and a live batch, whose last column is asked.
Scores are in natural units: votes, probabilities, nats. Entropy falls as we get surer and is therefore negated; a
threshold in natural units is turned the same way by `Strategy.sign`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exitpoll.errors import InputError


@dataclass(frozen=True)
class Opinion:
    """What a strategy makes of the exits so far."""

    score: NDArray  # (texts, exits), −∞ where logits so far are not finite: such a text never leaves early
    answer: NDArray  # (texts, exits) class numbers


def entropy(logits: NDArray, *, normalised: bool = False) -> Opinion:
    """Entropy of the current head, in nats (DeeBERT), or as a share of log C (FastBERT, equation 5)."""
    log_p = log_softmax(logits)
    nats = -(np.exp(log_p) * log_p).sum(axis=-1)  # e^x · x is 0, not NaN, at the floor of log_softmax
    return _opinion(logits, -nats / (np.log(logits.shape[-1]) if normalised else 1.0), log_p.argmax(axis=-1))


def max_prob(logits: NDArray, *, temperatures: Sequence[float] | None = None) -> Opinion:
    """Highest probability of the current head, each exit at a temperature of its own (RightTool, section 3)."""
    if temperatures is not None:
        logits = logits / np.asarray(temperatures, dtype=np.float64)[: logits.shape[1], None]
    p = softmax(logits)
    return _opinion(logits, p.max(axis=-1), p.argmax(axis=-1))


def margin(logits: NDArray) -> Opinion:
    """Distance between the two highest probabilities of the current head."""
    p = softmax(logits)
    highest = np.partition(p, -2, axis=-1)[..., -2:]  # (texts, exits, 2)
    return _opinion(logits, highest[..., 1] - highest[..., 0], p.argmax(axis=-1))


def patience(logits: NDArray) -> Opinion:
    """For how many exits the prediction has stood unchanged, 0 at the first (PABEE, equation 4)."""
    predicted = _predicted(logits)
    unchanged = predicted[:, 1:] == predicted[:, :-1]
    return _opinion(logits, _run_length(_after_first(unchanged)), predicted)


def confident_patience(logits: NDArray, *, confidence: float = 0.9) -> Opinion:
    """For how many exits in a row the highest probability has reached `confidence` (PCEE-BERT)."""
    p = softmax(logits)
    return _opinion(logits, _run_length(p.max(axis=-1) >= confidence), p.argmax(axis=-1))


def js_patience(logits: NDArray, *, divergence: float = 0.05) -> Opinion:
    """For how many exits in a row the Jensen–Shannon divergence to the exit before has stayed below (F-PABEE)."""
    p = softmax(logits)
    between = _jensen_shannon(p[:, 1:], p[:, :-1])  # (texts, exits - 1)
    return _opinion(logits, _run_length(_after_first(between < divergence)), p.argmax(axis=-1))


def votes(logits: NDArray, *, k: float = 0.5) -> Opinion:
    """V_l = max_c #{j ≤ l: argmax x_j = c} / l^k: all exits so far take a vote (the seed's voting strategy)."""
    predicted = _predicted(logits)
    ballots = predicted[..., None] == np.arange(logits.shape[-1])  # (texts, exits, classes)
    counts = ballots.cumsum(axis=1)
    most = counts.max(axis=-1)
    # Of classes with equally many votes the current head's wins; if it is not among them, the first.
    answer = np.where(
        np.take_along_axis(counts, predicted[..., None], -1)[..., 0] == most, predicted, counts.argmax(-1)
    )
    return _opinion(logits, most / _depths(logits) ** k, answer)


def soft_votes(logits: NDArray, *, k: float = 0.5) -> Opinion:
    """Probabilities in place of votes: max_c Σ_{j≤l} x_j[c] / l^k."""
    summed = softmax(logits).cumsum(axis=1)
    return _opinion(logits, summed.max(axis=-1) / _depths(logits) ** k, summed.argmax(axis=-1))


def mean(logits: NDArray) -> Opinion:
    """Highest class of the mean distribution: soft votes with k = 1."""
    return soft_votes(logits, k=1.0)


def geometric(logits: NDArray) -> Opinion:
    """Highest class of the geometric mean of the distributions (Zero Time Waste, equation 3, with equal weights)."""
    averaged = log_softmax(logits).cumsum(axis=1) / _depths(logits)[:, None]
    p = softmax(averaged)
    return _opinion(logits, p.max(axis=-1), p.argmax(axis=-1))


@dataclass(frozen=True)
class Strategy:
    """One row of the table: the function, and whether its natural unit falls as we get surer."""

    function: Callable[..., Opinion]
    falls: bool = False

    @property
    def sign(self) -> int:
        """What turns a threshold in natural units into one for scores, which always rise."""
        return -1 if self.falls else 1


STRATEGIES: dict[str, Strategy] = {
    "entropy": Strategy(entropy, falls=True),
    "max_prob": Strategy(max_prob),
    "margin": Strategy(margin),
    "patience": Strategy(patience),
    "confident_patience": Strategy(confident_patience),
    "js_patience": Strategy(js_patience),
    "votes": Strategy(votes),
    "soft_votes": Strategy(soft_votes),
    "mean": Strategy(mean),
    "geometric": Strategy(geometric),
}


def strategy_named(name: str) -> Strategy:
    """Look up a strategy.

    Args:
        name: Its name in the table.

    Returns:
        The strategy.

    Raises:
        InputError: There is none of that name; the message lists those that there are.
    """
    if name not in STRATEGIES:
        raise InputError(f"strategy '{name}' is unknown; choose one of: {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


# ---- numbers --------------------------------------------------------------------------------------------------------

LOG_FLOOR = -1e4  # e^-10000 is 0 in any precision, and −∞ · 0 would be NaN


def log_softmax(logits: NDArray) -> NDArray:
    """Give log-probabilities in float64 that are neither −∞ nor NaN, whatever the logits."""
    wide = np.nan_to_num(logits.astype(np.float64)).clip(-1e300, 1e300)
    shifted = wide - wide.max(axis=-1, keepdims=True)
    return np.maximum(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)), LOG_FLOOR)


def softmax(logits: NDArray) -> NDArray:
    """Give probabilities in float64."""
    return np.exp(log_softmax(logits))


def _opinion(logits: NDArray, score: NDArray, answer: NDArray) -> Opinion:
    """Make an opinion of finite logits; once an exit said something that is no number, the text stays to the end."""
    broken = ~np.isfinite(logits).all(axis=-1)
    if broken.any():
        score = np.where(np.logical_or.accumulate(broken, axis=1), -np.inf, score)
    return Opinion(score, answer)


def _predicted(logits: NDArray) -> NDArray:
    """Give every head's class: (texts, exits)."""
    return np.nan_to_num(logits).argmax(axis=-1)


def _depths(logits: NDArray) -> NDArray:
    """Number the exits from 1: (exits,)."""
    return np.arange(1, logits.shape[1] + 1, dtype=np.float64)


def _after_first(holds: NDArray) -> NDArray:
    """Put a column in front that never holds: the first exit has none before it."""
    return np.concatenate([np.zeros((len(holds), 1), dtype=bool), holds], axis=1)


def _run_length(holds: NDArray) -> NDArray:
    """Count for how many exits in a row something has held: (texts, exits)."""
    counted = np.cumsum(holds, axis=1)
    since = np.maximum.accumulate(np.where(holds, 0, counted), axis=1)  # the count when it last did not hold
    return (counted - since).astype(np.float64)


def _jensen_shannon(p: NDArray, q: NDArray) -> NDArray:
    """Jensen–Shannon divergence in nats, over the last axis."""
    middle = (p + q) / 2
    return (_kullback_leibler(p, middle) + _kullback_leibler(q, middle)) / 2


def _kullback_leibler(p: NDArray, q: NDArray) -> NDArray:
    """KL(p ‖ q) in nats, over the last axis; 0 · log 0 is 0."""
    ratio = np.divide(p, q, out=np.ones_like(p), where=p > 0)
    return (p * np.log(ratio)).sum(axis=-1)
