"""How sure can we be that a risk is small: p-values and upper bounds from the losses of some texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MOST_TEXTS = 1 << 22


def binomial(losses: NDArray, limit: float, confidence: float) -> float:
    """Test P(loss) > limit exactly: the chance of so few losses if it were just at the limit.

    Args:
        losses: 0 or 1 for each text, (texts,).
        limit: The risk to be refuted.
        confidence: Not needed here.

    Returns:
        The p-value.
    """
    from scipy.special import bdtr

    return float(bdtr(int(losses.sum()), len(losses), limit))


def betting(losses: NDArray, limit: float, confidence: float) -> float:
    """Test E(loss) > limit for losses in [−1, 1] by betting against it (Waudby-Smith and Ramdas, 2023, section 4).

    Wealth grows where losses stay below the limit; if the hypothesis held, it would ever reach 1 / p with chance at
    most p. The stake on a text depends only on the texts before it, and is larger the less these vary: where few
    answers differ at all, far fewer texts are needed than by Hoeffding's bound. Texts are bet on in an order drawn
    beforehand: that of a file may tell something of the losses, by class for instance.

    Args:
        losses: Right answers lost minus won, (texts,).
        limit: The mean to be refuted.
        confidence: What the stakes are tuned for; the p-value holds whatever it is.

    Returns:
        The p-value.
    """
    shares, mean = (losses[_order(len(losses))] + 1) / 2, (limit + 1) / 2  # both in [0, 1]
    count = np.arange(1, len(shares) + 1)
    running = (0.5 + np.cumsum(shares)) / (count + 1)
    variance = (0.25 + np.cumsum((shares - running) ** 2)) / (count + 1)
    known = np.concatenate([[0.25], variance[:-1]])  # what was known before each text
    stake = np.minimum(np.sqrt(2 * np.log(1 / (1 - confidence)) / (max(len(shares), 1) * known)), 0.75 / (1 - mean))
    wealth = np.cumsum(np.log1p(stake * (mean - shares)))  # logarithm of it
    return float(np.exp(-max(wealth.max(initial=0.0), 0.0)))


@lru_cache(maxsize=4)
def _order(texts: int) -> NDArray:
    """Draw an order, the same whenever there are so many texts."""
    return np.random.default_rng(0).permutation(texts)


@dataclass(frozen=True)
class Test:
    """One risk: how it is tested, and the test's name for the certificate."""

    p_value: Callable[[NDArray, float, float], float]  # (losses, limit, confidence)
    name: str


TESTS = {
    "disagreement": Test(binomial, "fixed sequence, exact binomial"),
    "accuracy": Test(betting, "fixed sequence, paired difference, betting"),
}


def upper_bound(risk: str, losses: NDArray, confidence: float) -> float:
    """Find the smallest limit that the losses refute.

    Args:
        risk: What was lost: disagreement or accuracy.
        losses: (texts,)
        confidence: How sure the bound is to be.

    Returns:
        The bound, to 1e-5 and never too small; 1 where nothing can be said.
    """
    low, high = -1.0 if risk == "accuracy" else 0.0, 1.0
    while high - low > 1e-5:
        middle = (low + high) / 2
        if TESTS[risk].p_value(losses, middle, confidence) <= 1 - confidence:
            high = middle
        else:
            low = middle
    return high


def texts_needed(risk: str, limit: float, confidence: float) -> int:
    """Count the calibration texts with which a risk this small can just be proven if leaving early changes nothing.

    Args:
        risk: What is bounded: disagreement or accuracy.
        limit: By how much.
        confidence: How sure the bound is to be.

    Returns:
        The number of texts; with fewer a promise is not worth trying. At most `MOST_TEXTS` are counted.
    """

    def could_do(texts: int) -> bool:
        return TESTS[risk].p_value(np.zeros(texts), limit, confidence) <= 1 - confidence

    high = 1
    while not could_do(high):
        high *= 2
        if high >= MOST_TEXTS:
            return MOST_TEXTS
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if could_do(middle) else (middle, high)
    return high
