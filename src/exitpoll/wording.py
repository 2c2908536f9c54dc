"""What was calibrated, promised and measured, in words."""

from __future__ import annotations

import numpy as np

from exitpoll.evaluation import Evaluation
from exitpoll.policy import Policy
from exitpoll.progress import percent
from exitpoll.promises import Promise
from exitpoll.trace import Trace


def describe(policy: Policy) -> list[str]:
    """Say what calibration found and promises.

    Args:
        policy: A policy with its certificate.

    Returns:
        A few lines.
    """
    certificate = policy.certificate or {}
    if "promise" not in certificate:
        return _goal_reached(policy)
    promise = Promise(**certificate["promise"])
    if certificate["met"]:
        measured, bound = percent(certificate["measured"]), percent(certificate["bound"])
        return [
            f"{policy.name}: {certificate['speedup']:.2f} × as fast",
            f"promised: {promise}",
            f"measured on {certificate['texts']} texts: {measured} %, with that confidence at most {bound} %",
        ]
    nearest = certificate["nearest"]
    if nearest is None:
        offer = "no policy here leaves early enough to be worth a promise"
    else:
        near = Promise(nearest["risk"], nearest["at_most"], nearest["confidence"])
        offer = f"the nearest promise that these texts could prove: {near} ({nearest['speedup']:.2f} × as fast)"
    return [f"cannot be promised: {promise}", offer, "until then the policy never leaves early"]


def _goal_reached(policy: Policy) -> list[str]:
    """Say what a policy for a speed-up or a latency comes to."""
    certificate = policy.certificate or {}
    score, full = (percent(certificate[name]) for name in ("score", "full_score"))
    what = certificate.get("metric", "agreement")
    times = f"{certificate['speedup']:.2f} × as fast"
    if "latency_ms" in certificate:
        times += f", {certificate['latency_ms']:.3g} ms a text on average, one text at a time"
    return [
        f"{policy.name}: {what} {score} % against {full} % of the full model, {times}",
        "chosen on these texts and not promised for others: see exitpoll evaluate",
    ]


def verdict(evaluation: Evaluation, policy: Policy) -> list[str]:
    """Say whether a policy's promise held on texts it had not seen.

    Args:
        evaluation: What was measured.
        policy: The policy.

    Returns:
        A few lines.
    """
    kept = evaluation.promise
    if kept is not None:
        low, value, high = (percent(getattr(kept.measured, name)) for name in ("low", "value", "high"))
        return [
            f"policy: {policy.name}",
            f"the promise {'held' if kept.held else 'did NOT hold'} on these texts: {kept.promise}",
            f"measured here: {value} % ({low} … {high})",
        ]
    if policy.threshold is None:
        return ["the policy never leaves early"]
    return [f"policy: {policy.name}", "it promises nothing: calibrate with --max-drop for a promise"]


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
