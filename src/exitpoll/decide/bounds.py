"""Tests and upper bounds of a risk, from the losses of some texts: exact binomial, and betting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MOST_TEXTS = 1 << 22


def binomial(losses: NDArray, limit: float, confidence: float) -> float:
    """Test P(loss) > limit exactly: the probability of so few losses if the risk were at the limit.

    Args:
        losses: 0 or 1 for every text, (texts,).
        limit: The risk to be refuted.
        confidence: Not needed here.

    Returns:
        The p-value.
    """
    from scipy.special import bdtr

    return float(bdtr(int(losses.sum()), len(losses), limit))


def clopper_pearson(losses: NDArray, confidence: float) -> float:
    """Compute the smallest limit that `binomial` refutes, Clopper and Pearson (1934)."""
    from scipy.stats import beta

    count, texts = int(losses.sum()), len(losses)
    return 1.0 if count >= texts else float(beta.ppf(confidence, count + 1, texts - count))


def betting(losses: NDArray, limit: float, confidence: float) -> float:
    """Test E(loss) > limit for losses in [−1, 1] by betting against it, Waudby-Smith and Ramdas (2023), Section 4.

    Wealth grows where losses stay below the limit; under the hypothesis it ever reaches 1 / p with probability at most
    p. The stake on a text depends only on the texts before it and grows as these vary less: where few answers differ
    at all, far fewer texts are needed than by Hoeffding's bound. Texts are bet on in an order drawn beforehand, because
    that of a file may depend on the losses, through the class for instance.

    Args:
        losses: Right answers lost minus won, (texts,).
        limit: The mean to be refuted.
        confidence: What the stakes are tuned for; the p-value is valid whatever it is.

    Returns:
        The p-value.
    """
    shares, mean = (losses[_order(len(losses))] + 1) / 2, (limit + 1) / 2  # both in [0, 1]
    count = np.arange(1, len(shares) + 1)
    running = (0.5 + np.cumsum(shares)) / (count + 1)
    variance = (0.25 + np.cumsum((shares - running) ** 2)) / (count + 1)
    known = np.concatenate([[0.25], variance[:-1]])  # what was known before the text
    stake = np.minimum(np.sqrt(2 * np.log(1 / (1 - confidence)) / (max(len(shares), 1) * known)), 0.75 / (1 - mean))
    wealth = np.cumsum(np.log1p(stake * (mean - shares)))  # its logarithm
    return float(np.exp(-max(wealth.max(initial=0.0), 0.0)))


def smallest_refuted(losses: NDArray, confidence: float) -> float:
    """Find the smallest limit that `betting` refutes, by bisection; to 1e-5, and never too small."""
    low, high = -1.0, 1.0
    while high - low > 1e-5:
        middle = (low + high) / 2
        if betting(losses, middle, confidence) <= 1 - confidence:
            high = middle
        else:
            low = middle
    return high


@lru_cache(maxsize=4)
def _order(texts: int) -> NDArray:
    """Draw an order, always the same for so many texts."""
    return np.random.default_rng(0).permutation(texts)


@dataclass(frozen=True)
class Test:
    """How one risk is tested and bounded."""

    name: str  # for the certificate
    p_value: Callable[[NDArray, float, float], float]  # (losses, limit, confidence)
    upper_bound: Callable[[NDArray, float], float]  # (losses, confidence) -> the smallest limit that is refuted


TESTS = {
    "disagreement": Test("fixed sequence, exact binomial", binomial, clopper_pearson),
    "accuracy": Test("fixed sequence, paired difference, betting", betting, smallest_refuted),
}


def texts_needed(risk: str, limit: float, confidence: float) -> int:
    """Compute how many calibration texts could just prove a risk this small if early exit changed no answer.

    Args:
        risk: What is bounded: disagreement or accuracy.
        limit: By how much.
        confidence: How sure the bound is to be.

    Returns:
        The number of texts, at most `MOST_TEXTS`; with fewer no guarantee is possible.
    """

    def would_do(texts: int) -> bool:
        return TESTS[risk].p_value(np.zeros(texts), limit, confidence) <= 1 - confidence

    high = 1
    while not would_do(high):
        high *= 2
        if high >= MOST_TEXTS:
            return MOST_TEXTS
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if would_do(middle) else (middle, high)
    return high
