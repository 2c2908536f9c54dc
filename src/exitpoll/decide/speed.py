"""Policies for a speed-up or a latency: the best score that is fast enough on the calibration texts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from exitpoll.decide.analysis import static_exit
from exitpoll.decide.certificate import Certificate, Latency, Source, Speedup, StaticExit
from exitpoll.decide.costs import ExitCosts
from exitpoll.decide.decisions import speedup_at
from exitpoll.decide.evaluate import measure
from exitpoll.decide.exit_choice import choose_exits
from exitpoll.decide.policy import Policy
from exitpoll.decide.scoring import Scored, to_score
from exitpoll.decide.sweep import Curve, best_point, closest_point, sweep
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError


def best_within(
    trace: Trace,
    strategies: list[str | Policy] | None,
    goal: Speedup | Latency,
    metric: str | None,
    *,
    choose: bool = False,
) -> Policy:
    """Take the best point that is fast enough; without labels, by agreement with the full model.

    Args:
        trace: Every exit's logits on the calibration texts.
        strategies: The strategies to try; None for all, static exits among them.
        goal: The speed-up or latency.
        metric: What to score by; the task's by default.
        choose: Whether to choose the exits to ask too.

    Returns:
        The policy with its certificate.
    """
    if choose:
        trace = trace.at_exits(choose_exits(trace, strategies, goal, metric=metric))
    if isinstance(goal, Speedup):
        costs = ExitCosts.in_layers(trace.exit_layers)
        least = goal.at_least
    else:
        costs = ExitCosts.measured(trace.exit_layers, trace.about)
        least = costs.full / goal.at_most_ms
    scored = to_score(trace, metric)
    curves = sweep(trace, strategies, metric=metric, costs=costs, near=least)
    best = _choose_point(scored, curves, least)
    if best is None:
        raise InputError(_out_of_reach(goal, costs, len(trace)))
    curve, point = best
    policy = curve.policy_at(point)
    certificate = Certificate(
        goal,
        len(trace),
        round(float(curve.speedup[point]), 4),
        Source.of(trace.about),
        metric=scored.name,
        score=round(float(curve.score[point]), 6),
        full_score=round(scored.full_score, 6),
        static=_best_static(scored, costs, least),
        exits_chosen_on=len(trace) if choose else None,
    )
    if isinstance(goal, Latency):
        certificate = replace(
            certificate,
            latency_ms=round(float(costs.full / curve.speedup[point]), 4),
            speedup=round(policy.decide(trace).speedup, 4),
        )
    return replace(policy, exit_layers=trace.some_exit_layers, certificate=certificate)


def _choose_point(scored: Scored, curves: list[Curve], least: float) -> tuple[Curve, int] | None:
    """Take the best strategy at the goal itself, and a faster point only where it is significantly better.

    The best score at the goal or anything faster would often be a fast one that happens to look better on these texts.
    """
    closest, best = closest_point(curves, least), best_point(curves, least)
    if closest is None or best is None:
        return None
    at_goal, faster = (curve.policy_at(point).decide(scored.trace) for curve, point in (closest, best))
    _, lost = measure(scored.trace, at_goal, faster, metric=scored.metric)
    return best if lost.sign > 0 else closest


def _best_static(scored: Scored, costs: ExitCosts, least: float) -> StaticExit | None:
    """Return the best static exit that reaches the goal; None where none does."""
    trace, exits = scored.trace, []
    for number, layer in enumerate(trace.exit_layers):
        if costs.full >= least * costs.static[number]:
            decisions = static_exit(trace, number)
            exits.append(StaticExit(int(layer), round(decisions.speedup, 4), round(decisions.score(scored.metric), 6)))
    return max(exits, key=lambda static: static.score, default=None)


def _out_of_reach(goal: Speedup | Latency, costs: ExitCosts, texts: int) -> str:
    """Describe a goal that even leaving at the first exit does not reach."""
    first = costs.static[0]
    if isinstance(goal, Speedup):
        fastest = speedup_at(np.full(texts, first), costs.static.tolist())
        return f"speedup {goal.at_least:g} cannot be reached: leaving at the first exit gives {fastest:.4g} × in layers"
    return f"latency_ms {goal.at_most_ms:g} cannot be reached: leaving at the first exit takes {first:.3g} ms"
