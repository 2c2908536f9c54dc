"""From a trace to a policy: for a speed-up, for a latency, or for a risk that is bounded with a stated confidence.

The guarantee is Learn-then-Test (Angelopoulos et al., 2021) with a fixed sequence: policies are tested one after
another, the most cautious first, each against the hypothesis that its risk is above the limit, and testing stops at
the first that cannot be refuted. As long as the order of the policies does not depend on the texts they are tested on,
the chance that the chosen one breaks the limit is at most 1 − confidence, whatever the model, for texts drawn as the
calibration texts were. One strategy is tested over a grid of thresholds fixed beforehand, on all texts. Several
strategies, or one that must be fitted, are searched on one half of the texts for the front of risk against speed-up,
and that front is tested on the other half (Pareto Testing, Laufer-Goldshtein et al., 2023).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from exitpoll.decide.bounds import texts_needed
from exitpoll.decide.fitting import candidates, variants
from exitpoll.decide.guarantee import Promise, Risk, by_full_model, certify, full_answers, provenance
from exitpoll.decide.metrics import METRICS, REGRESSION
from exitpoll.decide.policy import Policy
from exitpoll.decide.strategies import strategy_named
from exitpoll.decide.sweep import POINTS, best_point, curve_of, front_of, sweep
from exitpoll.decide.thresholds import GRIDS, on_grid
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError

LEAST = 20  # texts to calibrate a promise on


def calibrate(
    trace: Trace,
    strategy: str | Policy = "best",
    *,
    speedup: float | None = None,
    max_drop: float | None = None,
    latency_ms: float | None = None,
    confidence: float = 0.95,
    risk: Risk = "disagreement",
    metric: str | None = None,
    seed: int = 0,
) -> Policy:
    """Choose a policy for one goal: a speed-up, a bounded risk or a latency.

    Args:
        trace: What every exit said of the calibration texts; a loss of accuracy needs labels.
        strategy: A name, a policy whose settings are kept, or "best" to search all strategies.
        speedup: Goal: the best score at least this fast. No promise.
        max_drop: Goal: as fast as possible with a risk of at most this, promised with `confidence`.
        latency_ms: Goal: the best score within so many milliseconds a text on average, by the times that recording
            measured. No promise.
        confidence: How sure the promise is.
        risk: "disagreement", how often the answer differs from the full model's, or "accuracy", how much lower the
            share of right answers is than the full model's.
        metric: What to score by, for a speed-up or latency; the task's by default.
        seed: Seed of the halves, one to search on and one to certify on.

    Returns:
        The policy; its certificate says what it rests on. Where a promise cannot be met it never leaves early.
    """
    if sum(goal is not None for goal in (speedup, max_drop, latency_ms)) != 1:
        raise InputError("name one goal: speedup, max_drop or latency_ms")
    if not len(trace):
        raise InputError("the trace has no texts to calibrate on")
    if seed < 0:
        raise InputError(f"seed {seed} must be 0 or more")
    if isinstance(strategy, Policy):
        strategy.check(trace)
    elif strategy != "best":
        strategy_named(strategy)
    if max_drop is not None and metric is not None:
        raise InputError(f"metric '{metric}' is for a speed-up or latency; what max_drop promises, risk names")
    if max_drop is not None:
        policy = _keep_promise(trace, strategy, Promise(risk, max_drop, confidence), seed)
    else:
        goal = {"speedup": speedup} if speedup is not None else {"latency_ms": latency_ms}
        policy = _reach(trace, strategy, goal, metric)
    kept = ("strategy", "settings", "answer", "fallback", "max_depth", "problem_type")
    asked = strategy if isinstance(strategy, str) else {name: strategy.to_dict()[name] for name in kept}
    return replace(policy, certificate={**(policy.certificate or {}), "asked": asked})


def _searched(strategy: str | Policy) -> list[str | Policy] | None:
    """Say which strategies to try; None for all."""
    return None if strategy == "best" else [strategy]


# ---- a speed-up or a latency ----------------------------------------------------------------------------------------


def _reach(trace: Trace, strategy: str | Policy, goal: dict[str, Any], metric: str | None) -> Policy:
    """Take the best point of all curves that is fast enough; without labels, by agreement with the full model."""
    [(kind, wanted)] = goal.items()
    if not 0 < wanted < np.inf:
        raise InputError(f"{kind} {wanted:g} must be above 0, and finite")
    costs = np.asarray(trace.exit_layers if kind == "speedup" else milliseconds(trace), dtype=np.float64)
    least = wanted if kind == "speedup" else costs[-1] / wanted
    scored = trace if trace.labels is not None else by_full_model(trace)
    metric = (metric if trace.labels is not None else None) or scored.metric
    found = best_point(sweep(scored, _searched(strategy), metric=metric, costs=list(costs)), least)
    if found is None:
        fastest = f"{costs[-1] / costs[0]:.4g} times as fast" if kind == "speedup" else f"{costs[0]:.3g} ms"
        raise InputError(f"{kind} {wanted:g} cannot be reached: leaving at the first exit is {fastest}")
    curve, point = found
    certificate = {
        "goal": goal,
        "speedup": round(float(curve.speedup[point]), 4),
        "metric": metric if trace.labels is not None else "agreement",
        "score": round(float(curve.score[point]), 6),
        "full_score": round(METRICS[metric](scored.gold("a score"), full_answers(scored)), 6),
        **provenance(trace),
    }
    if kind == "latency_ms":
        certificate["latency_ms"] = round(float(costs[-1] / curve.speedup[point]), 4)
        certificate["speedup"] = round(curve.policy_at(point).decide(scored).speedup, 4)
    return replace(curve.policy_at(point), certificate=certificate)


def milliseconds(trace: Trace) -> list[float]:
    """Say how long it takes to leave at each exit.

    Args:
        trace: A trace whose recording measured that.

    Returns:
        Milliseconds for one text, (exits,).
    """
    times = trace.about.get("milliseconds")
    if not isinstance(times, list) or len(times) != len(trace.exit_layers):
        raise InputError("this trace has no times; record it with exitpoll record, or choose by speed-up")
    if not all(isinstance(each, int | float) and 0 < each < np.inf for each in times):
        raise InputError(f"the times of this trace must be milliseconds above 0, and are {times}")
    return times


# ---- a promise ------------------------------------------------------------------------------------------------------


def _keep_promise(trace: Trace, strategy: str | Policy, promise: Promise, seed: int) -> Policy:
    """Test one strategy on all texts, or search on one half and test on the other."""
    if trace.problem_type == REGRESSION:
        raise InputError("a promise is about answers that are the same or right, and values are neither; use speedup")
    if promise.risk == "accuracy":
        trace.gold("a loss of accuracy")
    single = _single(strategy, trace)
    halves = 1 if single is not None else 2
    needed = halves * texts_needed(promise.risk, promise.at_most, promise.confidence)
    if len(trace) < max(needed, LEAST):
        raise InputError(
            f"{len(trace)} texts are too few to promise {promise}; {max(needed, LEAST)} or more could do"
            + (" (half of them to choose a strategy, half to test it)" if halves == 2 else "")
        )
    if single is not None:
        return certify(trace, on_grid(single, trace), promise)
    order = np.random.default_rng(seed).permutation(len(trace))
    search, proof = trace.select(np.sort(order[::2])), trace.select(np.sort(order[1::2]))
    policy = certify(proof, _front(search, _searched(strategy)), promise)
    assert policy.certificate is not None
    return replace(policy, certificate={**policy.certificate, "searched_on": len(search)})


def _single(strategy: str | Policy, trace: Trace) -> Policy | None:
    """Give the one policy to be tested, if nothing is to be chosen or fitted."""
    if isinstance(strategy, Policy):
        return replace(strategy, threshold=None) if strategy.strategy in GRIDS else None
    found = variants([strategy]) if strategy in GRIDS else []
    return replace(found[0], problem_type=trace.problem_type) if len(found) == 1 else None


def _front(trace: Trace, strategies: list[str | Policy] | None) -> list[Policy]:
    """Search strategies for the front of disagreement against speed-up, on texts that will not be tested on.

    This order serves a loss of accuracy too: how often answers differ bounds it, and is far less a matter of chance.
    """
    scored = by_full_model(trace)
    costs = np.asarray(trace.exit_layers, dtype=np.float64)
    asked = candidates(trace, strategies)
    curves = [curve_of(scored, candidate, "accuracy", POINTS, costs) for candidate in asked]
    speedup = np.concatenate([curve.speedup for curve in curves])
    score = np.concatenate([curve.score for curve in curves])
    points = [(curve, point) for curve in curves for point in range(len(curve.levels))]
    front = [points[number] for number in front_of(speedup, score)[::-1]]
    first, start = front[0]
    more_cautious = [(first, point) for point in range(len(first.levels) - 1, start, -1)]  # than the front itself
    return [curve.policy_at(point) for curve, point in (*more_cautious, *front)]
