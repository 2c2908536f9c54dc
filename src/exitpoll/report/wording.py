"""What was calibrated, promised and measured, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from exitpoll.decide.certificate import Certificate, Guarantee, Nearest, Source
from exitpoll.decide.compare import SPEEDUPS, Comparison
from exitpoll.decide.evaluate import Evaluation
from exitpoll.decide.policy import Policy
from exitpoll.decide.sweep import best_point
from exitpoll.decide.trace import Trace

if TYPE_CHECKING:
    from exitpoll.export.export import Exported


def percent(share: float) -> str:
    """Write a share as people read it; nothing where there is none."""
    return "" if math.isnan(share) else f"{100 * share:.1f}"


def describe(policy: Policy, where: str = "these texts") -> list[str]:
    """Describe the result of a calibration.

    Args:
        policy: A policy with its certificate.
        where: What to call the texts it was calibrated on.

    Returns:
        A few lines.
    """
    certificate = policy.certificate
    assert certificate is not None
    if not isinstance(certificate.goal, Guarantee):
        return _describe_goal(policy, certificate, where)
    guarantee = certificate.goal
    if not certificate.met:
        return [f"no guarantee is possible that {guarantee}", _describe_nearest(certificate.nearest, where)]
    assert certificate.measured is not None
    assert certificate.bound is not None
    return [
        f"{policy.name}, {_threshold(policy)}: {certificate.speedup:.2f} × as fast",
        f"guarantee: {guarantee}",
        f"measured on {certificate.texts} texts: {_loss(guarantee, certificate.measured)}; with that confidence "
        f"at most {percent(certificate.bound)} {_unit(guarantee)}",
        *_score(certificate, where),
    ]


def _describe_nearest(nearest: Nearest | None, where: str) -> str:
    """Describe the nearest guarantee that is possible."""
    if nearest is None:
        return "no policy here exits early enough to be worth a guarantee"
    return f"the nearest that {where} could prove: {nearest.guarantee} ({nearest.speedup:.2f} × as fast)"


def _describe_goal(policy: Policy, certificate: Certificate, where: str) -> list[str]:
    """Describe a policy for a speed-up or a latency."""
    reached = f"{certificate.speedup:.2f} × as fast"
    if certificate.latency_ms is not None:
        reached += f", {certificate.latency_ms:.3g} ms a text on average, one text at a time"
    return [
        f"{policy.name}, {_threshold(policy)}: {reached} (asked: {certificate.goal})",
        *_score(certificate, where),
        f"chosen on {where} and not guaranteed for others: see exitpoll evaluate",
    ]


def _score(certificate: Certificate, where: str) -> list[str]:
    """Compare the score with the full model's, where it was measured."""
    if certificate.score is None or certificate.full_score is None:
        return []
    score, full = percent(certificate.score), percent(certificate.full_score)
    return [f"{certificate.metric} {score} % against {full} % of the full model, on {where}"]


def _threshold(policy: Policy) -> str:
    """Write the threshold of a policy."""
    if policy.threshold is None:
        return "never early"
    if "policies" in policy.settings:
        return "thresholds as named"
    if isinstance(policy.threshold, int | float):
        return f"threshold {policy.threshold:.4g}"
    return "a threshold for each exit"


def _unit(guarantee: Guarantee) -> str:
    """Return the unit of a risk."""
    return "% differ" if guarantee.risk == "disagreement" else "points lower"


def _loss(guarantee: Guarantee, measured: float) -> str:
    """Write a measured risk."""
    if guarantee.risk == "disagreement":
        return f"{percent(measured)} % of answers differ"
    return f"accuracy {percent(abs(measured))} points {'lower' if measured >= 0 else 'higher'} than the full model's"


def verdict(evaluation: Evaluation, policy: Policy) -> list[str]:
    """Describe whether a policy's guarantee held on held-out texts.

    Args:
        evaluation: What was measured.
        policy: The policy.

    Returns:
        A few lines.
    """
    check, ours, certificate = evaluation.guarantee, evaluation.rows[0], policy.certificate
    if policy.threshold is None:
        unmet = certificate is not None and isinstance(certificate.goal, Guarantee)
        reason = f": no guarantee is possible that {certificate.goal}" if certificate is not None and unmet else ""
        return [f"the policy never exits early{reason}"]
    lines = [f"policy: {policy.name}, {_threshold(policy)}"]
    if check is not None:
        low, high = percent(check.measured.low), percent(check.measured.high)
        lines += [
            f"the guarantee {'held' if check.held else 'did NOT hold'} on these texts: {check.guarantee}",
            f"measured here: {_loss(check.guarantee, check.measured.value)} (95 % interval {low} to {high})",
        ]
    elif certificate is not None and certificate.guarantee is not None:
        lines.append(f"its guarantee cannot be checked on texts without labels: {certificate.guarantee}")
    else:
        lines.append("it guarantees nothing: calibrate with --max-drop for a guarantee")
    if (check is None or check.guarantee.risk != "disagreement") and not np.isnan(ours.differs):
        lines.append(f"{percent(ours.differs)} % of answers differ from the full model's")
    return lines


def same_texts(policy: Policy, about: Mapping[str, Any]) -> list[str]:
    """Warn where a policy is measured on the texts that it was calibrated on.

    Args:
        policy: The policy.
        about: The metadata of the texts.

    Returns:
        A line, or none.
    """
    texts = Source.of(about)
    if policy.certificate is None or (policy.source.data, policy.source.split) != (texts.data, texts.split):
        return []
    return [f"note: the policy was calibrated on this very split, {texts.data} {texts.split}: use another"]


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


def delivered_in_words(delivered: Exported) -> list[str]:
    """Say what an export came to: what it costs, and what became of the policy.

    Args:
        delivered: The export.

    Returns:
        A few lines.
    """
    return [*_cost(delivered), *_policy_in_words(delivered), f"wrote {delivered.folder}, for {delivered.runtime}"]


def _cost(delivered: Exported) -> list[str]:
    """Compare the full export with the full model."""
    if delivered.before is None or delivered.after is None:
        unknown = "note: what int8 costs was not measured; --data says it"
        return [unknown] if delivered.runtime.endswith("int8") else []
    lost = delivered.before - delivered.after
    note = f"; note: that is {100 * lost:.1f} points less" if lost > WORTH_A_NOTE else ""
    scores = f"{percent(delivered.before)} % before, {percent(delivered.after)} % exported"
    return [f"{delivered.metric} of all layers on {delivered.texts} texts: {scores}{note}"]


def _policy_in_words(delivered: Exported) -> list[str]:
    """Say by what texts of an export leave."""
    policy = delivered.policy
    if delivered.note is not None:
        return [f"note: it has no policy, and no text leaves early: {delivered.note}"]
    if policy is None:
        return ["note: it has no policy, and no text leaves early; exitpoll record and exitpoll calibrate make one"]
    if policy.source.carried_from is not None:
        return [f"the policy goes with it: {policy.name}, {_threshold(policy)}"]
    if policy.certificate is not None:
        return describe(policy)
    return [f"the policy goes with it as it is: {policy.name}"]
