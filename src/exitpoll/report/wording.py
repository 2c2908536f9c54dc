"""What was calibrated, promised and measured, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from exitpoll.decide.compare import SPEEDUPS, Comparison
from exitpoll.decide.evaluate import Evaluation
from exitpoll.decide.guarantee import Promise
from exitpoll.decide.policy import Policy
from exitpoll.decide.sweep import best_point
from exitpoll.decide.trace import Trace

if TYPE_CHECKING:
    from exitpoll.export.export import Delivered


def percent(share: float) -> str:
    """Write a share as people read it; nothing where there is none."""
    return "" if math.isnan(share) else f"{100 * share:.1f}"


def describe(policy: Policy, where: str = "these texts") -> list[str]:
    """Say what calibration found and promises.

    Args:
        policy: A policy with its certificate.
        where: What to call the texts it was calibrated on.

    Returns:
        A few lines.
    """
    certificate, promise = policy.certificate or {}, Promise.of(policy)
    if promise is None:
        return _goal_reached(policy, where)
    if not certificate["met"]:
        return [f"cannot be promised: {promise}", _offer(certificate["nearest"], where)]
    bound = certificate["bound"]
    return [
        f"{policy.name}, {_threshold(policy)}: {certificate['speedup']:.2f} × as fast",
        f"promised: {promise}",
        f"measured on {certificate['texts']} texts: {_loss(promise, certificate['measured'])}; with that confidence "
        f"at most {percent(bound)} {_unit(promise)}",
        *([_score(certificate, where)] if "score" in certificate else []),
    ]


def _offer(nearest: Mapping[str, Any] | None, where: str) -> str:
    """Name the nearest promise."""
    if nearest is None:
        return "no policy here leaves early enough to be worth a promise"
    near = Promise(nearest["risk"], nearest["at_most"], nearest["confidence"])
    return f"the nearest promise that {where} could prove: {near} ({nearest['speedup']:.2f} × as fast)"


def _goal_reached(policy: Policy, where: str) -> list[str]:
    """Say what a policy for a speed-up or a latency comes to."""
    certificate = policy.certificate or {}
    [(goal, wanted)] = certificate["goal"].items()
    asked = f"at least {wanted:g} ×" if goal == "speedup" else f"at most {wanted:g} ms"
    reached = f"{certificate['speedup']:.2f} × as fast"
    if "latency_ms" in certificate:
        reached += f", {certificate['latency_ms']:.3g} ms a text on average, one text at a time"
    return [
        f"{policy.name}, {_threshold(policy)}: {reached} (asked: {asked})",
        _score(certificate, where),
        f"chosen on {where} and not promised for others: see exitpoll evaluate",
    ]


def _score(certificate: Mapping[str, Any], where: str) -> str:
    """Compare the score with the full model's."""
    score, full = (percent(certificate[name]) for name in ("score", "full_score"))
    return f"{certificate['metric']} {score} % against {full} % of the full model, on {where}"


def _threshold(policy: Policy) -> str:
    """Write the threshold of a policy."""
    if policy.threshold is None:
        return "never early"
    if isinstance(policy.threshold, int | float) and policy.strategy != "hybrid":
        return f"threshold {policy.threshold:.4g}"
    return "thresholds as named" if policy.strategy == "hybrid" else "a threshold for each exit"


def _unit(promise: Promise) -> str:
    """Say what a risk is counted in."""
    return "% differ" if promise.risk == "disagreement" else "points lower"


def _loss(promise: Promise, measured: float) -> str:
    """Say what was lost, or won."""
    if promise.risk == "disagreement":
        return f"{percent(measured)} % of answers differ"
    return f"accuracy {percent(abs(measured))} points {'lower' if measured >= 0 else 'higher'} than the full model's"


def verdict(evaluation: Evaluation, policy: Policy) -> list[str]:
    """Say whether a policy's promise held on texts it had not seen.

    Args:
        evaluation: What was measured.
        policy: The policy.

    Returns:
        A few lines.
    """
    kept, ours = evaluation.promise, evaluation.rows[0]
    if policy.threshold is None:
        promise = Promise.of(policy)
        return ["the policy never leaves early" + (f": cannot be promised: {promise}" if promise else "")]
    lines = [f"policy: {policy.name}, {_threshold(policy)}"]
    if kept is None and (policy.certificate or {}).get("met"):
        lines.append(f"its promise cannot be checked on texts without labels: {Promise.of(policy)}")
    elif kept is None:
        lines.append("it promises nothing: calibrate with --max-drop for a promise")
    else:
        low, high = percent(kept.measured.low), percent(kept.measured.high)
        lines += [
            f"the promise {'held' if kept.held else 'did NOT hold'} on these texts: {kept.promise}",
            f"measured here: {_loss(kept.promise, kept.measured.value)} (95 % interval {low} to {high})",
        ]
    if kept is None or kept.promise.risk != "disagreement":
        lines += (
            [] if np.isnan(ours.differs) else [f"{percent(ours.differs)} % of answers differ from the full model's"]
        )
    return lines


def same_texts(policy: Policy, about: Mapping[str, Any]) -> list[str]:
    """Warn where a policy is measured on the texts that it was calibrated on.

    Args:
        policy: The policy.
        about: What is known of the texts.

    Returns:
        A line, or none.
    """
    ours = policy.source
    if not ours or any(ours.get(name) != about.get(name) for name in ("data", "split")):
        return []
    return [
        f"note: the policy was calibrated on this very split, {about.get('data')} {about.get('split')}: use another"
    ]


def best_in_words(comparison: Comparison) -> list[str]:
    """Name the policy behind the best score at each speed-up.

    Args:
        comparison: What a sweep found.

    Returns:
        A line for each speed-up, and what to make of it.
    """
    lines = []
    for speedup in SPEEDUPS:
        found = best_point(comparison.curves, speedup)
        if found is not None:
            curve, point = found
            policy, score = curve.policy_at(point), percent(float(curve.score[point]))
            where = f"{score} at {curve.speedup[point]:.2f}×"
            lines.append(f"best at ≥ {speedup:g}×: {where}, {policy.name}, {_threshold(policy)}")
    return [*lines, "settings and thresholds were picked on these same texts: calibrate on others than you report on"]


def not_finite(trace: Trace) -> list[str]:
    """Report logits that are no numbers.

    Args:
        trace: The trace.

    Returns:
        A line, or none.
    """
    broken = sum(int((~np.isfinite(part.logits)).any(axis=(1, 2)).sum()) for part in trace.chunks())
    if not broken:
        return []
    return [f"note: {broken} of {len(trace)} texts have logits that are not finite; these never leave early"]


WORTH_A_NOTE = 0.005  # half a point


def delivered_in_words(delivered: Delivered) -> list[str]:
    """Say what an export came to: what it costs, and what became of the policy.

    Args:
        delivered: The export.

    Returns:
        A few lines.
    """
    return [*_cost(delivered), *_policy_in_words(delivered), f"wrote {delivered.folder}, for {delivered.runtime}"]


def _cost(delivered: Delivered) -> list[str]:
    """Compare the full export with the full model."""
    if delivered.before is None or delivered.after is None:
        unknown = "note: what int8 costs was not measured; --data says it"
        return [unknown] if delivered.runtime.endswith("int8") else []
    lost = delivered.before - delivered.after
    note = f"; note: that is {100 * lost:.1f} points less" if lost > WORTH_A_NOTE else ""
    scores = f"{percent(delivered.before)} % before, {percent(delivered.after)} % exported"
    return [f"{delivered.metric} of all layers on {delivered.texts} texts: {scores}{note}"]


def _policy_in_words(delivered: Delivered) -> list[str]:
    """Say by what texts of an export leave."""
    policy = delivered.policy
    if delivered.note is not None:
        return [f"note: it has no policy, and no text leaves early: {delivered.note}"]
    if policy is None:
        return ["note: it has no policy, and no text leaves early; exitpoll record and exitpoll calibrate make one"]
    if "carried_from" in policy.source:
        return [f"the policy goes with it: {policy.name}, {_threshold(policy)}"]
    calibrated = {"promise", "goal"} & set(policy.certificate or {})
    return describe(policy) if calibrated else [f"the policy goes with it as it is: {policy.name}"]
