"""Which exits to ask: on short texts a head and a decision cost as much as a part of a layer, so fewer may be faster.

Exits are eliminated one after another, always the one that is missed least; of all sets on that way the best is taken.
What a set is worth is read from the curves of a few strategies over the measured milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from exitpoll.decide.certificate import Goal, Guarantee, Latency
from exitpoll.decide.costs import ExitCosts
from exitpoll.decide.fitting import candidates, sample, variants
from exitpoll.decide.metrics import REGRESSION
from exitpoll.decide.policy import Policy
from exitpoll.decide.scoring import AGREEMENT, Scored, labelled_by_full_model, to_score
from exitpoll.decide.sweep import Curve, curve_of
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError

TEXTS = 2000  # that the exits are chosen on, at most
THRESHOLDS = 60  # of a strategy, about
STAND_INS = ("max_prob", "votes")  # for a search of all strategies, and for those that must be fitted or combined
VALUE_STAND_INS = ("patience", "static")  # for regression
NOT_REACHED = -np.inf

Worth = Callable[[Curve], float]  # what a curve is worth for a goal


def choose_exits(
    trace: Trace,
    strategies: Sequence[str | Policy] | None,
    goal: Goal,
    *,
    metric: str | None = None,
    tested_on: int | None = None,
) -> tuple[int, ...]:
    """Choose the exits with which a goal is reached best, by the times that recording measured.

    Args:
        trace: Every exit's logits on texts that no guarantee is tested on.
        strategies: The strategies that will be tried; None for all.
        goal: A guarantee, for which the exits are to be fastest at its level of risk, or a latency, for which the score
            is to be best.
        metric: What to score by, for a latency; the task's by default.
        tested_on: How many texts the guarantee will be tested on; as many as these by default.

    Returns:
        The layers of the exits; all of them where no set reaches the goal.
    """
    costs = ExitCosts.measured(trace.exit_layers, trace.about, needs_head=True)
    judges = _judges(trace, strategies)
    scored, worth = _worth(trace, goal, costs, metric, tested_on or len(trace))
    chosen_on = Scored(sample(scored.trace, TEXTS), scored.metric, scored.name)

    caps = [judge.max_depth for judge in judges if isinstance(judge, Policy) and judge.max_depth is not None]

    def value(asked: tuple[int, ...]) -> float:
        if asked[0] > min(caps, default=asked[0]):
            return NOT_REACHED  # no exit is left within the depth cap
        reduced = chosen_on.trace.at_exits(asked)
        curves = (
            curve_of(reduced, candidate, chosen_on.metric, THRESHOLDS, costs)
            for candidate in candidates(reduced, judges)
        )
        return max(worth(curve) for curve in curves)

    everything = asked = tuple(int(layer) for layer in trace.exit_layers)
    best = (value(asked), asked)
    while len(asked) > 2:
        fewer = [tuple(layer for layer in asked if layer != left_out) for left_out in asked[:-1]]
        most, asked = max(((value(layers), layers) for layers in fewer), key=lambda pair: pair[0])
        best = (most, asked) if most >= best[0] else best
    return best[1] if best[0] > NOT_REACHED else everything


def _judges(trace: Trace, strategies: Sequence[str | Policy] | None) -> Sequence[str | Policy]:
    """Return what sets of exits are compared by: the strategies that will be tried, where they need no fit."""
    if trace.problem_type == REGRESSION:
        return [name for name in strategies or () if name in VALUE_STAND_INS] or VALUE_STAND_INS
    judges = []
    for strategy in STAND_INS if strategies is None else strategies:
        if isinstance(strategy, Policy):
            _check_has_no_entries_per_exit(strategy, trace)
            judges.append(strategy)
        else:
            judges += variants([strategy]) or variants(STAND_INS)
    return [replace(policy, problem_type=trace.problem_type) for policy in judges]


def _check_has_no_entries_per_exit(policy: Policy, trace: Trace) -> None:
    """Refuse a policy that holds for one set of exits alone."""
    try:
        policy.check_exits(trace.exit_layers[-1:])
    except InputError as error:
        raise InputError(f"exits cannot be chosen for a policy that has an entry for every exit: {error}") from error


def _worth(trace: Trace, goal: Goal, costs: ExitCosts, metric: str | None, tested_on: int) -> tuple[Scored, Worth]:
    """Return what a curve is worth for a goal, and the labels that it is scored by."""
    if isinstance(goal, Latency):
        least = costs.full / goal.at_most_ms
        return to_score(trace, metric), lambda curve: float(np.nan_to_num(curve.at(least), nan=NOT_REACHED))
    if not isinstance(goal, Guarantee):
        raise InputError("exits are chosen by measured time, and speedup counts layers: name another goal")
    # A loss of accuracy is at most the disagreement, which is far less a matter of chance.
    scored = Scored(labelled_by_full_model(trace), "accuracy", AGREEMENT)
    lowest = 1 - _provable_risk(goal, tested_on)

    def speedup(curve: Curve) -> float:
        fastest = float(curve.speedup[curve.score >= lowest - 1e-9].max(initial=0.0))
        return fastest if fastest > 1 else NOT_REACHED

    return scored, speedup


def _provable_risk(guarantee: Guarantee, texts: int) -> float:
    """Return the largest share of losses with which a guarantee would be proven on so many texts."""
    from scipy.stats import binom

    return max(float(binom.ppf(1 - guarantee.confidence, texts, guarantee.at_most)) - 1, 0.0) / texts
