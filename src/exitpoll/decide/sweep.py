"""Sweep a trace: score against speed-up at every threshold of every strategy; Pareto fronts, areas, best points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.costs import ExitCosts
from exitpoll.decide.decisions import least_cost
from exitpoll.decide.fitting import Candidate, candidates
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, Metric, metric_named
from exitpoll.decide.policy import Policy
from exitpoll.decide.scoring import to_score
from exitpoll.decide.strategies import KS, STATIC, open_member, strategy_named
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError

POINTS = 200
SLACK = 1e-6  # by which a level is below a score that is always reached, where rounding could matter


@dataclass(frozen=True)
class Curve:
    """One strategy at all its thresholds, from the fastest to never exiting early."""

    policy: Policy  # without a threshold
    metric: str  # or "agreement" with the full model, where there are no labels
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

    def closest(self, least: float) -> int | None:
        """Find the point with the lowest speed-up at or above one, the better of equals.

        Args:
            least: Lowest speed-up.

        Returns:
            The point's number, or None where the curve is never that fast.
        """
        inside = np.flatnonzero((self.speedup >= least) & ~np.isnan(self.score))
        if not len(inside):
            return None
        return int(inside[np.lexsort((-self.score[inside], self.speedup[inside]))[0]])

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


def closest_point(curves: Iterable[Curve], least: float) -> tuple[Curve, int] | None:
    """Find the best of the points that are closest to a speed-up, one of every curve.

    Args:
        curves: Curves of one trace.
        least: Lowest speed-up.

    Returns:
        Its curve and number, or None where no curve is that fast; of equals the closest, and of these a static exit.
    """

    def worth(pair: tuple[Curve, int]) -> tuple[float, float, bool]:
        curve, point = pair
        return round(float(curve.score[point]), 9), -curve.speedup[point], curve.strategy == STATIC

    points = [(curve, point) for curve in curves if (point := curve.closest(least)) is not None]
    return max(points, key=worth, default=None)


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
    costs: ExitCosts | None = None,
    near: float | None = None,
) -> list[Curve]:
    """Score every strategy at every threshold, from one recording.

    Args:
        trace: A trace; without labels, agreement with the full model is the score.
        strategies: Names, which stand for all their variants, or policies, which stand for themselves; all strategies
            by default.
        ks: The exponents for votes and soft votes.
        metric: What to score by; the task's, as the trace states it, by default. It needs labels.
        points: Thresholds per strategy; one that can take fewer values has fewer.
        costs: What leaving at an exit costs, milliseconds for instance; its layer by default.
        near: A speed-up around which to try more thresholds, as many again.

    Returns:
        A curve per strategy and setting; a speed-up is the full model's cost over the mean cost.
    """
    if not len(trace):
        raise InputError("the trace has no texts to sweep")
    scored = to_score(trace, metric)
    exit_costs = ExitCosts.in_layers(trace.exit_layers) if costs is None else costs
    curves = (
        curve_of(scored.trace, candidate, scored.metric, points, exit_costs, near)
        for candidate in candidates(trace, strategies, ks)
    )
    return [replace(curve, metric=scored.name) for curve in curves]


class _SumsByLevel:
    """Scores at every level, from counts of texts that enter at one level and leave at a higher one."""

    def __init__(self, metric: Metric, gold: NDArray, classes: int, levels: int) -> None:
        """Start with no texts."""
        self.metric, self.gold, self.classes = metric, gold, classes
        self.size = levels + 1  # a text that stays to the end leaves behind the last level
        self.counts: NDArray | float = 0.0  # (levels + 1, counts), as differences from level to level

    def add(self, answer: NDArray, first: NDArray, beyond: NDArray) -> None:
        """Add texts at one exit; a text counts from its first level up to the one before `beyond`."""
        counts = self.metric.counts(self.gold, answer, self.classes).T  # (counts, texts)
        for level, sign in ((first, 1), (beyond, -1)):
            change = np.stack([np.bincount(level, count, self.size) for count in counts], axis=-1)
            self.counts = self.counts + sign * change

    def scores(self) -> NDArray:
        """Compute the score at every level, (levels,)."""
        return self.metric.score(np.cumsum(self.counts, axis=0)[:-1])


class _AnswersByLevel:
    """Scores at every level by a metric of ranks, which no sums can give: all answers of a level are scored anew."""

    def __init__(self, metric: Metric, gold: NDArray, levels: int) -> None:
        """Start with no texts."""
        self.metric, self.gold, self.levels = metric, gold, levels
        self.parts: list[tuple[NDArray, NDArray, NDArray]] = []

    def add(self, answer: NDArray, first: NDArray, beyond: NDArray) -> None:
        """Add texts at one exit, as sums do."""
        self.parts.append((answer, first, beyond))

    def scores(self) -> NDArray:
        """Compute the score at every level, (levels,)."""
        return np.array([self.metric(self.gold, self._answers(level)) for level in range(self.levels)])

    def _answers(self, level: int) -> NDArray:
        """Return what the texts are answered at one level."""
        answers = np.zeros(len(self.gold))
        for answer, first, beyond in self.parts:
            here = (first <= level) & (level < beyond)
            answers[here] = answer[here]
        return answers


def curve_of(
    trace: Trace, candidate: Candidate, metric: str, points: int, costs: ExitCosts, near: float | None = None
) -> Curve:
    """Sweep the thresholds of one candidate.

    Args:
        trace: A trace with labels.
        candidate: A strategy and its opinion on this trace.
        metric: What to score by.
        points: How many thresholds to try.
        costs: What leaving at an exit costs.
        near: A speed-up around which to try more thresholds, as many again.

    Returns:
        Its curve.
    """
    trace = trace.at_exits(candidate.policy.exit_layers)
    end = int(candidate.policy.ends(trace.exit_layers).argmax())  # nobody continues from here
    highest = np.maximum.accumulate(candidate.opinion.score[:, : end + 1], axis=1)  # (texts, exits up to the end)
    between = _between(highest[:, :-1])
    levels = _grid(highest[:, :-1], _some(between, points), _always_reached(candidate.policy, trace))
    curve = _curve_at(levels, highest, trace, candidate, metric, costs)
    around = None if near is None else _around(curve, near)
    if around is None:
        return curve
    finer = between[(between > around[0]) & (between < around[1])]
    levels = np.union1d(levels, _some(finer, points))
    return _curve_at(levels, highest, trace, candidate, metric, costs)


def _curve_at(
    levels: NDArray, highest: NDArray, trace: Trace, candidate: Candidate, metric: str, costs: ExitCosts
) -> Curve:
    """Score one candidate at rising levels.

    With M_l the highest score up to exit l, a text leaves at exit l for exactly the thresholds in (M_{l−1}, M_l]. So
    every text enters and leaves the sums of an exit once, however many thresholds there are.
    """
    classes, policy, opinion = trace.logits.shape[-1], candidate.policy, candidate.opinion
    scored_by, gold = metric_named(metric, trace.problem_type, classes), trace.gold("a sweep")
    answers: _SumsByLevel | _AnswersByLevel = (
        _AnswersByLevel(scored_by, gold, len(levels))
        if scored_by.ranked
        else _SumsByLevel(scored_by, gold, classes, len(levels))
    )
    texts, end, leaving = highest.shape[0], highest.shape[1] - 1, costs.of(trace.exit_layers)
    never = np.full(texts, len(levels))
    enters = np.zeros(texts, dtype=np.int64)  # the first level at which a text still is at this exit
    changes = np.zeros(len(levels) + 1)  # of the cost of all texts, from level to level
    for number in range(end + 1):
        leaves = np.searchsorted(levels, highest[:, number], side="right")
        answer = policy.answers_at(number, policy.answer, opinion, trace.logits)
        if number == end and policy.fallback == policy.answer:
            leaves = never
        answers.add(answer, enters, leaves)
        if number == end and policy.fallback != policy.answer:
            answers.add(policy.answers_at(number, policy.fallback, opinion, trace.logits), leaves, never)
        beyond = never if number == end else leaves
        for level, sign in ((enters, 1), (beyond, -1)):
            changes += sign * leaving[number] * np.bincount(level, minlength=len(changes))
        enters = leaves
    totals = np.maximum(changes.cumsum()[:-1], least_cost(costs.static.tolist()))  # as `speedup_at` does
    return Curve(policy, metric, levels, answers.scores(), costs.full * texts / totals)


def _around(curve: Curve, speedup: float) -> tuple[float, float] | None:
    """Return the neighbouring levels between which a curve falls below a speed-up; None if it never does."""
    below = int(np.searchsorted(-curve.speedup, -speedup, side="right"))  # the speed-up falls as levels rise
    if not 0 < below < len(curve.levels):
        return None
    return float(curve.levels[below - 1]), float(curve.levels[below])


def _between(scores: NDArray) -> NDArray:
    """Return the levels midway between the scores that occur: at one, the last bit would decide who leaves."""
    values = np.unique(scores[np.isfinite(scores)])
    return (values[1:] + values[:-1]) / 2


def _some(levels: NDArray, points: int) -> NDArray:
    """Choose at most so many levels, evenly."""
    if len(levels) <= points:
        return levels
    return levels[np.linspace(0, len(levels) - 1, points).round().astype(int)]


def _grid(scores: NDArray, between: NDArray, always: float) -> NDArray:
    """Add a level that every score reaches and one that none does."""
    values = scores[np.isfinite(scores)]
    if not len(values):
        return np.array([0.0])
    lowest, highest = float(values.min()), float(values.max())
    margin = 0.6180 * max(1.0, abs(lowest), abs(highest))
    return np.unique(np.concatenate([[max(lowest - margin, min(always, lowest))], between, [highest + margin]]))


def _always_reached(policy: Policy, trace: Trace) -> float:
    """Return a level that every score of a strategy reaches, by what can occur; −∞ where that is not known."""
    member = open_member(policy.settings)
    name, settings = (policy.strategy, policy.settings) if member is None else (member["strategy"], {})
    grid = strategy_named(name).grid
    if grid is None or trace.problem_type == REGRESSION:
        return -np.inf
    classes = 2 if trace.problem_type == MULTI_LABEL else trace.logits.shape[-1]
    loosest = policy.natural(float(grid(settings, len(trace.exit_layers), classes)[-1]))
    return loosest - SLACK * max(1.0, abs(loosest))
