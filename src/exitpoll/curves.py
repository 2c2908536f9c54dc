"""Sweep a trace: score against speed-up for every strategy and threshold, fronts, areas, best points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.errors import InputError
from exitpoll.policy import Policy
from exitpoll.strategies import STRATEGIES
from exitpoll.trace import Trace

KS = (0.0, 0.25, 0.5, 0.75)  # the seed's
POINTS = 200


@dataclass(frozen=True)
class Curve:
    """One strategy at all its thresholds, from the fastest to never leaving early."""

    policy: Policy  # strategy and settings, without a threshold
    metric: str
    thresholds: NDArray  # (points,) in natural units
    score: NDArray  # (points,)
    speedup: NDArray  # (points,)

    @property
    def name(self) -> str:
        """Strategy and settings in words."""
        settings = ", ".join(f"{name}={value}" for name, value in self.policy.settings.items())
        return f"{self.policy.strategy} ({settings})" if settings else self.policy.strategy

    def best(self, least: float, most: float = np.inf) -> int | None:
        """Find the best point in a range of speed-ups, the faster of equals: the rule of the seed's tables.

        Args:
            least: Lowest speed-up.
            most: Highest speed-up.

        Returns:
            The point's number, or None where the curve has none in the range.
        """
        inside = np.flatnonzero((self.speedup >= least) & (self.speedup <= most))
        if not len(inside):
            return None
        return int(inside[np.lexsort((self.speedup[inside], self.score[inside]))[-1]])

    def at(self, speedup: float) -> float:
        """Give the best score at a speed-up or faster, NaN where the curve is never that fast."""
        point = self.best(speedup)
        return float("nan") if point is None else float(self.score[point])

    def policy_at(self, point: int) -> Policy:
        """Give the policy of a point."""
        return Policy(self.policy.strategy, float(self.thresholds[point]), self.policy.settings)

    def front(self) -> NDArray:
        """Give the points that no other beats in both score and speed-up, by falling speed-up."""
        order = np.lexsort((-self.score, -self.speedup))
        best_so_far = np.maximum.accumulate(np.concatenate([[-np.inf], self.score[order][:-1]]))
        return order[self.score[order] > best_so_far]

    def area(self, least: float, most: float) -> float:
        """Mean of the best score over a range of speed-ups, at a hundred evenly spaced; NaN if never so fast."""
        return float(np.mean([self.at(speedup) for speedup in np.linspace(least, most, 100)]))


def variants(names: Iterable[str] | None = None, ks: Sequence[float] = KS) -> list[Policy]:
    """List strategies with the settings worth trying.

    Args:
        names: Which strategies; all by default.
        ks: The exponents for votes and soft votes.

    Returns:
        Policies without thresholds.
    """
    settings: dict[str, list[Mapping[str, Any]]] = {
        "confident_patience": [{"confidence": confidence} for confidence in (0.8, 0.9, 0.95, 0.99)],
        "js_patience": [{"divergence": divergence} for divergence in (0.001, 0.01, 0.05, 0.1)],
        "votes": [{"k": k} for k in ks],
        "soft_votes": [{"k": k} for k in ks],
    }
    return [Policy(name, None, each) for name in names or STRATEGIES for each in settings.get(name, [{}])]


def sweep(
    trace: Trace, policies: Iterable[Policy] | None = None, *, metric: str = "accuracy", points: int = POINTS
) -> list[Curve]:
    """Score every policy at every threshold, from one recording.

    Args:
        trace: A trace with labels.
        policies: Strategies and settings; all of `variants` by default.
        metric: The task's metric: accuracy, accuracy_and_f1 or matthews.
        points: Thresholds of each; strategies that can take fewer values have fewer.

    Returns:
        A curve for each policy.
    """
    if trace.labels is None:
        raise InputError("sweeping needs labels to score by; record the trace on labelled texts")
    if metric not in FROM_COUNTS:
        raise InputError(f"metric '{metric}' cannot be swept; choose one of: {', '.join(FROM_COUNTS)}")
    return [_curve(trace, policy, metric, points) for policy in policies or variants()]


def _curve(trace: Trace, policy: Policy, metric: str, points: int) -> Curve:
    """Sweep one policy.

    With M_l the highest score up to exit l, a text leaves at exit l for just the thresholds in (M_{l−1}, M_l]. So
    every text enters and leaves the counts of an exit once, however many thresholds there are.
    """
    opinion = policy.opinion(np.asarray(trace.logits))
    highest = np.maximum.accumulate(opinion.score[:, :-1], axis=1)  # (texts, exits - 1)
    levels = _grid(highest, points)  # rising
    labels, classes = np.asarray(trace.labels), trace.logits.shape[-1]
    cells = labels[:, None] * classes + opinion.answer  # (texts, exits) which cell of the confusion table
    confusion = np.zeros((len(levels) + 1, classes * classes))
    layers_run = np.zeros(len(levels) + 1)
    enters = np.zeros(len(trace), dtype=np.int64)  # the first level at which a text still is at this exit
    for number, layer in enumerate(trace.layers):
        last = number == len(trace.layers) - 1
        leaves = np.full(len(trace), len(levels)) if last else np.searchsorted(levels, highest[:, number], side="right")
        for where, sign in ((enters, 1), (leaves, -1)):
            flat = np.bincount(where * classes**2 + cells[:, number], minlength=confusion.size)
            confusion += sign * flat.reshape(confusion.shape)
            layers_run += sign * layer * np.bincount(where, minlength=len(layers_run))
        enters = leaves
    tables = confusion.cumsum(axis=0)[:-1].reshape(-1, classes, classes)  # (points, gold, answer)
    mean_depth = layers_run.cumsum()[:-1] / len(trace)
    sign = STRATEGIES[policy.strategy].sign
    return Curve(policy, metric, levels * sign, FROM_COUNTS[metric](tables), trace.layers[-1] / mean_depth)


def _grid(scores: NDArray, points: int) -> NDArray:
    """Choose levels between the scores that occur, never at one: the last bit must not decide who leaves."""
    values = np.unique(scores[np.isfinite(scores)])
    if not len(values):
        return np.array([0.0])
    between = (values[1:] + values[:-1]) / 2
    if len(between) > points:
        between = between[np.linspace(0, len(between) - 1, points).round().astype(int)]
    margin = 0.6180 * max(1.0, abs(values[0]), abs(values[-1]))
    return np.unique(np.concatenate([[values[0] - margin], between, [values[-1] + margin]]))


# ---- metrics from tables of counts (points, gold, answer) -----------------------------------------------------------


def _accuracy(tables: NDArray) -> NDArray:
    """Share of right answers."""
    return np.trace(tables, axis1=1, axis2=2) / tables.sum(axis=(1, 2))


def _accuracy_and_f1(tables: NDArray) -> NDArray:
    """Mean of accuracy and the F1 of class 1."""
    right = tables[:, 1, 1]
    said, gold = tables[:, :, 1].sum(axis=1), tables[:, 1, :].sum(axis=1)
    f1 = np.divide(2 * right, said + gold, out=np.zeros(len(tables)), where=said + gold > 0)
    return (_accuracy(tables) + f1) / 2


def _matthews(tables: NDArray) -> NDArray:
    """Matthews correlation, for any number of classes (Gorodkin, 2004)."""
    said, gold = tables.sum(axis=1), tables.sum(axis=2)  # (points, classes)
    texts = tables.sum(axis=(1, 2))
    covariance = np.trace(tables, axis1=1, axis2=2) * texts - (said * gold).sum(axis=1)
    scale = np.sqrt((texts**2 - (said**2).sum(axis=1)) * (texts**2 - (gold**2).sum(axis=1)))
    return np.divide(covariance, scale, out=np.zeros(len(tables)), where=scale > 0)


FROM_COUNTS = {"accuracy": _accuracy, "accuracy_and_f1": _accuracy_and_f1, "matthews": _matthews}
