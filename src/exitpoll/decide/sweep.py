"""Sweep a trace: score against speed-up at every threshold of every strategy; Pareto fronts, areas, best points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.fitting import Candidate, candidates
from exitpoll.decide.metrics import Metric, metric_named
from exitpoll.decide.policy import Policy
from exitpoll.decide.strategies import KS
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError

POINTS = 200


@dataclass(frozen=True)
class Curve:
    """One strategy at all its thresholds, from the fastest to never exiting early."""

    policy: Policy  # without a threshold
    metric: str
    levels: NDArray  # (points,) what scores must reach
    score: NDArray  # (points,)
    speedup: NDArray  # (points,)

    @property
    def strategy(self) -> str:
        """The strategy's name."""
        return self.policy.strategy

    @property
    def name(self) -> str:
        """Strategy and settings in words."""
        return self.policy.name

    def best(self, least: float, most: float = np.inf) -> int | None:
        """Find the best point in a range of speed-ups, the faster of equals: the rule of the paper's tables.

        Args:
            least: Lowest speed-up.
            most: Highest speed-up.

        Returns:
            The point's number, or None where the curve has none in the range.
        """
        inside = np.flatnonzero((self.speedup >= least) & (self.speedup <= most) & ~np.isnan(self.score))
        if not len(inside):
            return None
        return int(inside[np.lexsort((self.speedup[inside], self.score[inside]))[-1]])

    def at(self, speedup: float) -> float:
        """Return the best score at a speed-up or faster, NaN where the curve is never that fast."""
        point = self.best(speedup)
        return float("nan") if point is None else float(self.score[point])

    def policy_at(self, point: int) -> Policy:
        """Return the policy of a point."""
        return self.policy.at(float(self.levels[point]))

    def front(self) -> NDArray:
        """Return the points that no other beats in both score and speed-up, by falling speed-up."""
        return front_of(self.speedup, self.score)

    def area(self, least: float, most: float) -> float:
        """Compute the mean of the best score over a hundred evenly spaced speed-ups; NaN if never so fast."""
        return float(np.mean([self.at(speedup) for speedup in np.linspace(least, most, 100)]))


def front_of(speedup: NDArray, score: NDArray) -> NDArray:
    """Find the points that no other beats in both score and speed-up.

    Args:
        speedup: (points,)
        score: (points,)

    Returns:
        Their numbers, by falling speed-up and rising score.
    """
    order = np.lexsort((-score, -speedup))
    best_so_far = np.maximum.accumulate(np.concatenate([[-np.inf], score[order][:-1]]))
    return order[score[order] > best_so_far]


def best_point(curves: Iterable[Curve], least: float, most: float = np.inf) -> tuple[Curve, int] | None:
    """Find the best point of several curves in a range of speed-ups, the faster of equals.

    Args:
        curves: Curves of one trace.
        least: Lowest speed-up.
        most: Highest speed-up.

    Returns:
        Its curve and number, or None where no curve has a point in the range.
    """
    points = [(curve, point) for curve in curves if (point := curve.best(least, most)) is not None]
    return max(points, key=lambda pair: (pair[0].score[pair[1]], pair[0].speedup[pair[1]]), default=None)


def best_of(curves: Iterable[Curve], least: float, most: float = np.inf) -> Policy | None:
    """Return the policy of `best_point`."""
    best = best_point(curves, least, most)
    return None if best is None else best[0].policy_at(best[1])


def sweep(
    trace: Trace,
    strategies: Iterable[str | Policy] | None = None,
    *,
    ks: Sequence[float] = KS,
    metric: str | None = None,
    points: int = POINTS,
    costs: Sequence[float] | None = None,
) -> list[Curve]:
    """Score every strategy at every threshold, from one recording.

    Args:
        trace: A trace with labels.
        strategies: Names, which stand for all their variants, or policies, which stand for themselves; all strategies
            by default.
        ks: The exponents for votes and soft votes.
        metric: What to score by; the task's, as the trace states it, by default.
        points: Thresholds per strategy; one that can take fewer values has fewer.
        costs: What leaving at an exit costs, (exits,), milliseconds for instance; its layer by default.

    Returns:
        A curve per strategy and setting; a speed-up is the last exit's cost over the mean cost.
    """
    trace.gold("a sweep")
    if not len(trace):
        raise InputError("the trace has no texts to sweep")
    metric = metric or trace.metric
    exit_costs = np.asarray(trace.exit_layers if costs is None else costs, dtype=np.float64)
    if len(exit_costs) != len(trace.exit_layers):
        raise InputError(f"{len(exit_costs)} costs were given for {len(trace.exit_layers)} exits")
    return [curve_of(trace, candidate, metric, points, exit_costs) for candidate in candidates(trace, strategies, ks)]


class _RunningSums:
    """Counts of texts and their costs at every level, from texts that enter at one level and leave at a higher one."""

    def __init__(self, metric: Metric, gold: NDArray, classes: int, levels: int) -> None:
        """Start with no texts."""
        self.metric, self.gold, self.classes = metric, gold, classes
        self.size = levels + 1  # a text that stays to the end leaves behind the last level
        self.counts: NDArray | float = 0.0  # (levels + 1, counts), as differences from level to level
        self.costs = np.zeros(self.size)

    def add(self, answer: NDArray, first: NDArray, beyond: NDArray, cost: float) -> None:
        """Add texts at one exit; a text counts from its first level up to the one before `beyond`."""
        counts = self.metric.counts(self.gold, answer, self.classes).T  # (counts, texts)
        for level, sign in ((first, 1), (beyond, -1)):
            change = np.stack([np.bincount(level, count, self.size) for count in counts], axis=-1)
            self.counts = self.counts + sign * change
            self.costs += sign * cost * np.bincount(level, minlength=self.size)

    def score(self) -> NDArray:
        """Compute the score at every level, (levels,)."""
        return self.metric.score(np.cumsum(self.counts, axis=0)[:-1])

    def mean_cost(self) -> NDArray:
        """Compute the mean cost of a text at every level, (levels,)."""
        return self.costs.cumsum()[:-1] / len(self.gold)


def curve_of(trace: Trace, candidate: Candidate, metric: str, points: int, costs: NDArray) -> Curve:
    """Sweep the thresholds of one candidate.

    With M_l the highest score up to exit l, a text leaves at exit l for exactly the thresholds in (M_{l−1}, M_l]. So
    every text enters and leaves the sums of an exit once, however many thresholds there are.

    Args:
        trace: A trace with labels.
        candidate: A strategy and its opinion on this trace.
        metric: What to score by.
        points: How many thresholds to try.
        costs: What leaving at an exit costs, (exits,).

    Returns:
        Its curve.
    """
    classes, policy, opinion = trace.logits.shape[-1], candidate.policy, candidate.opinion
    end = int(policy.ends(trace.exit_layers).argmax())  # nobody continues from here
    highest = np.maximum.accumulate(opinion.score[:, : end + 1], axis=1)  # (texts, exits up to the end)
    levels = _grid(highest[:, :-1], points)  # rising
    scored_by = metric_named(metric, trace.problem_type, classes)
    sums = _RunningSums(scored_by, trace.gold("a sweep"), classes, len(levels))
    never = np.full(len(trace), len(levels))
    enters = np.zeros(len(trace), dtype=np.int64)  # the first level at which a text still is at this exit
    for number in range(end + 1):
        leaves = np.searchsorted(levels, highest[:, number], side="right")
        answer = policy.answers_at(number, policy.answer, opinion, trace.logits)
        if number < end:
            sums.add(answer, enters, leaves, costs[number])
        elif policy.fallback == policy.answer:
            sums.add(answer, enters, never, costs[number])
        else:
            sums.add(answer, enters, leaves, costs[number])
            fallback = policy.answers_at(number, policy.fallback, opinion, trace.logits)
            sums.add(fallback, leaves, never, costs[number])
        enters = leaves
    return Curve(policy, metric, levels, sums.score(), costs[-1] / sums.mean_cost())


def _grid(scores: NDArray, points: int) -> NDArray:
    """Choose levels between the scores that occur, never at one, where the last bit would decide who leaves."""
    values = np.unique(scores[np.isfinite(scores)])
    if not len(values):
        return np.array([0.0])
    between = (values[1:] + values[:-1]) / 2
    if len(between) > points:
        between = between[np.linspace(0, len(between) - 1, points).round().astype(int)]
    margin = 0.6180 * max(1.0, abs(values[0]), abs(values[-1]))
    return np.unique(np.concatenate([[values[0] - margin], between, [values[-1] + margin]]))
