"""From a trace to a policy: for a speed-up, for a latency, or for a risk that is bounded with a stated confidence.

The guarantee is Learn-then-Test (Angelopoulos et al., 2021) with a fixed sequence: policies are tested one after
another, the most cautious first, against the hypothesis that the risk is above the limit, and testing stops at the
first that cannot be rejected. As long as the order of the policies does not depend on the texts they are tested on, the
probability that the chosen one breaks the limit is at most 1 − confidence, whatever the model, for texts drawn as the
calibration texts were. A single strategy is tested over a grid of thresholds fixed beforehand, on all texts. Several
strategies, or one that must be fitted, are searched on one half of the texts for the front of risk against speed-up,
and that front is tested on the other half (Pareto Testing, Laufer-Goldshtein et al., 2023).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.bounds import texts_needed
from exitpoll.decide.certificate import Certificate, Goal, Guarantee, Latency, Source, Speedup
from exitpoll.decide.fitting import candidates, variants
from exitpoll.decide.guarantee import certify, full_answers, labelled_by_full_model
from exitpoll.decide.metrics import METRICS, MULTI_LABEL, REGRESSION
from exitpoll.decide.policy import Policy
from exitpoll.decide.strategies import strategy_named
from exitpoll.decide.sweep import POINTS, best_point, curve_of, front_of, sweep
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError
from exitpoll.files import JsonObject

LEAST_TEXTS = 20  # to calibrate a guarantee on


def calibrate(
    trace: Trace,
    strategy: str | Policy = "best",
    *,
    speedup: float | None = None,
    latency_ms: float | None = None,
    max_disagreement: float | None = None,
    max_accuracy_drop: float | None = None,
    confidence: float = 0.95,
    metric: str | None = None,
    seed: int = 0,
) -> Policy:
    """Choose a policy for exactly one goal: a speed-up, a latency, or a guarantee.

    Args:
        trace: Every exit's logits on the calibration texts.
        strategy: A name, a policy whose settings are kept, or "best" to search all strategies.
        speedup: Goal: the best score at this speed-up in layers. No guarantee.
        latency_ms: Goal: the best score within so many milliseconds a text on average, by the times that recording
            measured. No guarantee.
        max_disagreement: Goal: the fastest policy whose answer differs from the full model's on at most this share of
            texts, guaranteed with `confidence`. Needs no labels.
        max_accuracy_drop: Goal: the fastest policy whose accuracy is at most this much below the full model's,
            guaranteed with `confidence`. Needs labels.
        confidence: How sure the guarantee is.
        metric: What to score by, for a speed-up or latency; the task's by default.
        seed: Seed of the halves, one to search on and one to certify on.

    Returns:
        The policy; its certificate states what it rests on. Where no guarantee is possible it never exits early.
    """
    goals: list[Goal] = []
    if speedup is not None:
        goals.append(Speedup(speedup))
    if latency_ms is not None:
        goals.append(Latency(latency_ms))
    if max_disagreement is not None:
        goals.append(Guarantee("disagreement", max_disagreement, confidence))
    if max_accuracy_drop is not None:
        goals.append(Guarantee("accuracy", max_accuracy_drop, confidence))
    if len(goals) != 1:
        raise InputError("name exactly one goal: speedup, latency_ms, max_disagreement or max_accuracy_drop")
    return calibrate_for(trace, goals[0], strategy, metric=metric, seed=seed)


def calibrate_for(
    trace: Trace, goal: Goal, strategy: str | Policy = "best", *, metric: str | None = None, seed: int = 0
) -> Policy:
    """Choose a policy for a goal.

    Args:
        trace: Every exit's logits on the calibration texts.
        goal: A speed-up, a latency or a guarantee.
        strategy: As in `calibrate`.
        metric: As in `calibrate`.
        seed: As in `calibrate`.

    Returns:
        As in `calibrate`.
    """
    if not len(trace):
        raise InputError("the trace has no texts to calibrate on")
    if seed < 0:
        raise InputError(f"seed {seed} must be 0 or more")
    if isinstance(strategy, Policy):
        strategy.check(trace)
    elif strategy != "best":
        strategy_named(strategy)
    if isinstance(goal, Guarantee):
        if metric is not None:
            raise InputError(f"metric '{metric}' is for a speed-up or latency, and the goal is a guarantee")
        policy = _certified(trace, strategy, goal, seed)
    else:
        policy = _best_within(trace, strategy, goal, metric)
    assert policy.certificate is not None
    return replace(policy, certificate=replace(policy.certificate, asked=_asked(strategy)))


def _asked(strategy: str | Policy) -> str | JsonObject:
    """Return what was asked for, as the certificate keeps it."""
    if isinstance(strategy, str):
        return strategy
    plain = strategy.to_dict()
    return {name: plain[name] for name in ("strategy", "settings", "answer", "fallback", "max_depth", "problem_type")}


def _searched(strategy: str | Policy) -> list[str | Policy] | None:
    """Return which strategies to try; None for all."""
    return None if strategy == "best" else [strategy]


# ---- a speed-up or a latency ----------------------------------------------------------------------------------------


def _best_within(trace: Trace, strategy: str | Policy, goal: Speedup | Latency, metric: str | None) -> Policy:
    """Take the best point of all curves that is fast enough; without labels, by agreement with the full model."""
    if isinstance(goal, Speedup):
        costs = np.asarray(trace.exit_layers, dtype=np.float64)
        least = goal.at_least
    else:
        costs = np.asarray(milliseconds(trace), dtype=np.float64)
        least = costs[-1] / goal.at_most_ms
    labelled = trace.labels is not None
    scored = trace if labelled else labelled_by_full_model(trace)
    metric = (metric if labelled else None) or scored.metric
    best = best_point(sweep(scored, _searched(strategy), metric=metric, costs=list(costs)), least)
    if best is None:
        raise InputError(_out_of_reach(goal, costs))
    curve, point = best
    policy = curve.policy_at(point)
    certificate = Certificate(
        goal,
        len(trace),
        round(float(curve.speedup[point]), 4),
        Source.of(trace.about),
        metric=metric if labelled else "agreement",
        score=round(float(curve.score[point]), 6),
        full_score=round(METRICS[metric](scored.gold("a score"), full_answers(scored)), 6),
    )
    if isinstance(goal, Latency):
        certificate = replace(
            certificate,
            latency_ms=round(float(costs[-1] / curve.speedup[point]), 4),
            speedup=round(policy.decide(scored).speedup, 4),
        )
    return replace(policy, certificate=certificate)


def _out_of_reach(goal: Speedup | Latency, costs: NDArray) -> str:
    """Describe a goal that even leaving at the first exit does not reach."""
    if isinstance(goal, Speedup):
        fastest = f"{costs[-1] / costs[0]:.4g} × in layers"
        return f"speedup {goal.at_least:g} cannot be reached: leaving at the first exit gives {fastest}"
    return f"latency_ms {goal.at_most_ms:g} cannot be reached: leaving at the first exit takes {costs[0]:.3g} ms"


def milliseconds(trace: Trace) -> list[float]:
    """Return how long it takes to leave at every exit.

    Args:
        trace: A trace whose recording measured that.

    Returns:
        Milliseconds for one text, (exits,).
    """
    times = trace.about.get("milliseconds")
    if not isinstance(times, list) or len(times) != len(trace.exit_layers):
        raise InputError("this trace has no times; record it with exitpoll record, or choose by speed-up")
    if not all(isinstance(time, int | float) and 0 < time < np.inf for time in times):
        raise InputError(f"the times of this trace must be milliseconds above 0, and are {times}")
    return times


# ---- a guarantee ----------------------------------------------------------------------------------------------------


def _certified(trace: Trace, strategy: str | Policy, guarantee: Guarantee, seed: int) -> Policy:
    """Test one strategy on all texts, or search on one half and test on the other."""
    if trace.problem_type == REGRESSION:
        raise InputError("a guarantee is about answers that are equal or right, and values are neither; use speedup")
    if guarantee.risk == "accuracy":
        trace.gold("a loss of accuracy")
    single = _single(strategy, trace)
    halves = 1 if single is not None else 2
    needed = max(halves * texts_needed(guarantee.risk, guarantee.at_most, guarantee.confidence), LEAST_TEXTS)
    if len(trace) < needed:
        raise InputError(
            f"{len(trace)} texts are too few to guarantee that {guarantee}; {needed} or more are needed"
            + (" (half of them to choose a strategy, half to test it)" if halves == 2 else "")
        )
    if single is not None:
        return certify(trace, on_grid(single, trace), guarantee)
    order = np.random.default_rng(seed).permutation(len(trace))
    search, proof = trace.select(np.sort(order[::2])), trace.select(np.sort(order[1::2]))
    return certify(proof, _front(search, _searched(strategy)), guarantee, searched_on=len(search))


def _single(strategy: str | Policy, trace: Trace) -> Policy | None:
    """Return the one policy to be tested, if nothing is to be chosen or fitted."""
    if isinstance(strategy, Policy):
        return replace(strategy, threshold=None) if strategy_named(strategy.strategy).grid else None
    if strategy == "best" or strategy_named(strategy).grid is None:
        return None
    choices = variants([strategy])
    return replace(choices[0], problem_type=trace.problem_type) if len(choices) == 1 else None


def on_grid(policy: Policy, trace: Trace) -> list[Policy]:
    """Set one policy's threshold to every value of a grid that does not depend on the texts.

    Args:
        policy: Strategy and settings.
        trace: Its shape says how many exits and classes there are.

    Returns:
        Policies, the most cautious first.
    """
    classes = 2 if trace.problem_type == MULTI_LABEL else trace.logits.shape[-1]  # every label is no or yes
    grid = strategy_named(policy.strategy).grid
    assert grid is not None
    thresholds = grid(policy.settings, len(trace.exit_layers), classes)
    return [replace(policy, threshold=float(threshold)) for threshold in thresholds]


def _front(trace: Trace, strategies: list[str | Policy] | None) -> list[Policy]:
    """Search strategies for the front of disagreement against speed-up, on texts that will not be tested on.

    This order serves a loss of accuracy too: disagreement bounds it, and is far less a matter of chance.
    """
    scored = labelled_by_full_model(trace)
    costs = np.asarray(trace.exit_layers, dtype=np.float64)
    curves = [curve_of(scored, candidate, "accuracy", POINTS, costs) for candidate in candidates(trace, strategies)]
    speedup = np.concatenate([curve.speedup for curve in curves])
    score = np.concatenate([curve.score for curve in curves])
    points = [(curve, point) for curve in curves for point in range(len(curve.levels))]
    front = [points[number] for number in front_of(speedup, score)[::-1]]
    first, start = front[0]
    more_cautious = [(first, point) for point in range(len(first.levels) - 1, start, -1)]  # than the front itself
    return [curve.policy_at(point) for curve, point in (*more_cautious, *front)]
