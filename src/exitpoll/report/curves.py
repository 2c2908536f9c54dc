"""Score against speed-up, as figures show it: fronts of the strategies, static exits, and a range worth showing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.compare import Comparison
from exitpoll.decide.sweep import Curve, front_of
from exitpoll.files import JsonObject


@dataclass(frozen=True)
class Front:
    """The best score at or above every speed-up, by rising speed-up: steps that fall."""

    name: str
    speedup: NDArray  # (points,)
    score: NDArray  # (points,)

    def to_dict(self) -> JsonObject:
        """Return plain values, for JSON."""
        return {"name": self.name, "speedup": self.speedup.round(4).tolist(), "score": self.score.round(4).tolist()}


def fronts_of(comparison: Comparison) -> list[Front]:
    """Return the front of every strategy, over all its thresholds and settings.

    Args:
        comparison: The result of a sweep.

    Returns:
        The fronts, in the order of the strategies.
    """
    names = dict.fromkeys(curve.strategy for curve in comparison.curves)
    return [_front(name, [curve for curve in comparison.curves if curve.strategy == name]) for name in names]


def best_front(comparison: Comparison) -> Front:
    """Return the front of all strategies together."""
    return _front("best of all strategies", comparison.curves)


def _front(name: str, curves: Sequence[Curve]) -> Front:
    """Join curves to a front."""
    speedup = np.concatenate([curve.speedup for curve in curves])
    score = np.concatenate([curve.score for curve in curves])
    front = front_of(speedup, score)[::-1]
    return Front(name, speedup[front], score[front])


def score_range(comparison: Comparison) -> tuple[float, float]:
    """Return the range of scores worth showing: down to the lowest best score of a strategy, with a margin."""
    scores = [score for best in comparison.best_scores.values() for score in best if not np.isnan(score)]
    low, high = min([*scores, comparison.full_score]), max([*scores, comparison.full_score])
    low = max(low, high - 3 * (high - float(np.median(scores or [high]))) - 0.02)
    margin = 0.08 * (high - low) + 0.002
    return low - margin, high + margin


def curves_data(comparison: Comparison, strategy: str, chosen: tuple[float, float]) -> JsonObject:
    """Return what the page's script draws.

    Args:
        comparison: The result of a sweep.
        strategy: The strategy of the policy, which the slider draws.
        chosen: Speed-up and score of the policy.

    Returns:
        Fronts, static exits, the full model and the policy, as plain values.
    """
    static = comparison.static_exits
    low, high = score_range(comparison)
    return {
        "full": round(comparison.full_score, 4),
        "range": [round(min(low, chosen[1] - 0.002), 4), round(high, 4)],
        "policy": [round(chosen[0], 4), round(chosen[1], 4)],
        "front": best_front(comparison).to_dict(),
        "others": [front.to_dict() for front in fronts_of(comparison) if front.name != strategy],
        "static": {
            "name": "static exits",
            "speedup": [round(point.speedup, 4) for point in static],
            "score": [round(point.score, 4) for point in static],
        },
    }
