"""Sentences about a calibration, an evaluation, a sweep or an export, for the terminal and the HTML page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from exitpoll.decide.certificate import Certificate, Guarantee, Nearest, Source
from exitpoll.decide.compare import SPEEDUPS, Comparison
from exitpoll.decide.evaluate import Evaluation, Verdict
from exitpoll.decide.metrics import REGRESSION
from exitpoll.decide.policy import Policy
from exitpoll.decide.scoring import AGREEMENT
from exitpoll.decide.strategies import STATIC, members
from exitpoll.decide.sweep import best_point
from exitpoll.decide.trace import Trace

if TYPE_CHECKING:
    from exitpoll.export.export import Exported

_VERDICTS: dict[Verdict, str] = {
    "held": "the guarantee held on these texts",
    "broken": "the guarantee did NOT hold on these texts",
    "too few texts": "these texts are too few to tell whether the guarantee held",
}
WORTH_A_NOTE = 0.005  # loss of an export: half a point


def percent(share: float) -> str:
    """Format a share as a percentage, without the sign; NaN is an empty string."""
    return "" if math.isnan(share) else f"{100 * share:.1f}"


def _describe_policy(policy: Policy) -> str:
    """Name a policy with its threshold, and the exits it asks if these are not all."""
    if policy.exit_layers is None:
        return _describe_threshold(policy)
    return (
        f"{_describe_threshold(policy)}, asking only the exits after layers {', '.join(map(str, policy.exit_layers))}"
    )


def _describe_threshold(policy: Policy) -> str:
    """Name a policy with its threshold; the name of a hybrid holds the thresholds already."""
    if policy.threshold is None:
        return f"{policy.name}, never exits early"
    if any(members(policy.settings)):
        return policy.name
    if policy.strategy == STATIC and isinstance(policy.threshold, int | float):
        number = max(math.ceil(policy.threshold), 1)
        return f"{policy.name}, exit {number}"
    if isinstance(policy.threshold, int | float):
        return f"{policy.name}, threshold {policy.threshold:.4g}"
    return f"{policy.name}, one threshold per exit"


# ---- a calibration --------------------------------------------------------------------------------------------------


def describe_calibration(policy: Policy, texts: str = "these texts") -> list[str]:
    """Describe the result of a calibration.

    Args:
        policy: A policy with its certificate.
        texts: What to call the texts it was calibrated on.

    Returns:
        A few lines.
    """
    certificate = policy.certificate
    assert certificate is not None
    if not isinstance(certificate.goal, Guarantee):
        return _describe_goal(policy, certificate, texts)
    if not certificate.met:
        return [f"no guarantee is possible that {certificate.goal}", _describe_nearest(certificate.nearest, texts)]
    return [
        f"{_describe_policy(policy)}: speed-up {certificate.speedup:.2f} × in layers",
        f"guarantee: {certificate.goal}",
        *_describe_risk(certificate, certificate.goal),
        *_describe_score(certificate, texts),
        *_describe_static(certificate),
        *_describe_search(certificate),
        *_describe_exit_choice(certificate),
        *_note_trained_on(certificate),
    ]


def _describe_exit_choice(certificate: Certificate) -> list[str]:
    """Describe what the exits were chosen by, if they were."""
    texts = certificate.exits_chosen_on
    return [] if texts is None else [f"the exits to ask were chosen by measured milliseconds, on {texts} texts"]


def _describe_static(certificate: Certificate) -> list[str]:
    """Name the smaller model that a policy is, where all texts leave at one exit, or that beats it."""
    layer, static, score = None, certificate.static, certificate.score
    if certificate.profile is not None:
        layer, last = certificate.profile.only_layer, max(certificate.profile.depths)
        if layer == last:
            return ["no text exits early: this is the full model"]
    if layer is not None:
        return [_describe_one_exit(layer)]
    if static is None or score is None or static.score <= score:
        return []
    return [
        f"note: a static model of {static.layer} layers is better: {certificate.metric} {percent(static.score)} % at "
        f"{static.speedup:.2f} × in layers; the strategies best and static take it"
    ]


def _describe_one_exit(layer: int) -> str:
    """Name the smaller model that a policy is whose texts all leave after one layer, or before the first."""
    if layer == 0:
        return "every text exits at exit 0, before the first layer: the encoder is not used"
    return f"every text exits at layer {layer}: this is a static model of {layer} layers"


def _describe_search(certificate: Certificate) -> list[str]:
    """Describe what the texts were used for, where a strategy was to be chosen."""
    texts, searched_on, fixed = certificate.texts, certificate.searched_on, certificate.fixed
    if fixed is not None and searched_on is None:
        return [f"{texts} texts are too few to search on half of them: {fixed}, fixed beforehand, was tested on all"]
    if fixed is not None:
        return [
            f"{fixed}, fixed beforehand, was tested on all {texts} texts and is faster than what a search on "
            f"{searched_on} texts could prove on others"
        ]
    return [] if searched_on is None else [f"searched on {searched_on} texts, and tested on {texts} others"]


def _note_trained_on(certificate: Certificate) -> list[str]:
    """Warn if a calibration rests on texts that the model was trained on."""
    share = certificate.trained_on
    if not share:
        return []
    return [f"note: the model was trained on {percent(share)} % of the calibration texts, which makes figures too good"]


def _describe_goal(policy: Policy, certificate: Certificate, texts: str) -> list[str]:
    """Describe a policy for a speed-up or a latency."""
    reached = f"speed-up {certificate.speedup:.2f} × in layers"
    if certificate.latency_ms is not None:
        reached += f", {certificate.latency_ms:.3g} ms a text on average, one text at a time"
    return [
        f"{_describe_policy(policy)}: {reached} (goal: {certificate.goal})",
        *_describe_score(certificate, texts),
        *_describe_static(certificate),
        *_describe_exit_choice(certificate),
        f"chosen on {texts} and not guaranteed for others: exitpoll evaluate measures it on held-out texts",
        *_note_trained_on(certificate),
    ]


def _describe_nearest(nearest: Nearest | None, texts: str) -> str:
    """Describe the nearest guarantee that is possible."""
    if nearest is None:
        return "no policy exits early enough to be worth a guarantee"
    return f"the nearest that {texts} could prove: {nearest.guarantee} (speed-up {nearest.speedup:.2f} × in layers)"


def _describe_risk(certificate: Certificate, guarantee: Guarantee) -> list[str]:
    """Describe the measured risk and its upper bound, where the certificate states them."""
    if certificate.measured is None or certificate.bound is None:
        return []
    unit = "% differ" if guarantee.risk == "disagreement" else "points lower"
    return [
        f"measured on {certificate.texts} texts: {_describe_loss(guarantee, certificate.measured)}; "
        f"upper bound with that confidence: {percent(certificate.bound)} {unit}"
    ]


def _describe_loss(guarantee: Guarantee, measured: float) -> str:
    """Describe a measured risk."""
    if guarantee.risk == "disagreement":
        return f"{percent(measured)} % of answers differ"
    return f"accuracy {percent(abs(measured))} points {'lower' if measured >= 0 else 'higher'} than the full model's"


def _describe_score(certificate: Certificate, texts: str) -> list[str]:
    """Compare the score with the full model's, where the certificate states both."""
    if certificate.score is None or certificate.full_score is None:
        return []
    score, full = percent(certificate.score), percent(certificate.full_score)
    return [f"{certificate.metric} {score} % against {full} % of the full model, on {texts}"]


# ---- an evaluation --------------------------------------------------------------------------------------------------


def verdict(evaluation: Evaluation, policy: Policy) -> list[str]:
    """Describe whether a policy's guarantee held on held-out texts.

    Args:
        evaluation: What was measured.
        policy: The policy.

    Returns:
        A few lines.
    """
    if policy.threshold is None:
        return [f"the policy never exits early{_reason(policy.certificate)}"]
    lines = [f"policy: {_describe_policy(policy)}", *_check_guarantee(evaluation, policy)]
    check, ours = evaluation.guarantee, evaluation.rows[0]
    if (check is None or check.guarantee.risk != "disagreement") and not np.isnan(ours.differs):
        lines.append(f"{percent(ours.differs)} % of answers differ from the full model's")
    return [*lines, *_note_one_exit(evaluation)]


def _note_one_exit(evaluation: Evaluation) -> list[str]:
    """Name the smaller model that a policy is, where all texts leave at one exit."""
    used = [layer for layer, count in evaluation.depths.items() if count]
    if len(used) > 1 or used[0] == max(evaluation.depths):
        return []
    return [_describe_one_exit(used[0])]


def _reason(certificate: Certificate | None) -> str:
    """Return why a policy never exits early, if calibration is the reason."""
    if certificate is None or not isinstance(certificate.goal, Guarantee):
        return ""
    return f": no guarantee is possible that {certificate.goal}"


def _check_guarantee(evaluation: Evaluation, policy: Policy) -> list[str]:
    """Describe whether a guarantee held, or why that is not known."""
    check, certificate = evaluation.guarantee, policy.certificate
    if check is not None:
        low, high = percent(check.measured.low), percent(check.measured.high)
        return [
            f"{_VERDICTS[check.verdict]}: {check.guarantee}",
            f"measured here: {_describe_loss(check.guarantee, check.measured.value)} (95 % interval {low} to {high})",
        ]
    if certificate is not None and certificate.guarantee is not None:
        return [f"its guarantee cannot be checked on texts without labels: {certificate.guarantee}"]
    if policy.problem_type == REGRESSION:
        return ["it guarantees nothing: guarantees are for classes"]
    return ["it guarantees nothing: calibrate with --max-disagreement or --max-accuracy-drop for a guarantee"]


def note_shift(evaluation: Evaluation) -> list[str]:
    """Warn if texts differ from the calibration texts.

    Args:
        evaluation: What was measured on them.

    Returns:
        A line, or none.
    """
    return [] if evaluation.shift is None else [f"note: {evaluation.shift}"]


def note_trained_on(trace: Trace) -> list[str]:
    """Warn if the model was trained on some texts.

    Args:
        trace: A trace of the texts.

    Returns:
        A line, or none.
    """
    share = trace.trained_on
    if not share:
        return []
    return [f"note: the model was trained on {percent(share)} % of these texts, which makes figures too good"]


def note_same_texts(policy: Policy, about: Mapping[str, object]) -> list[str]:
    """Warn if a policy is measured on the split that it was calibrated on.

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


def note_not_finite(trace: Trace) -> list[str]:
    """Warn if some logits are NaN or infinite.

    Args:
        trace: The trace.

    Returns:
        A line, or none.
    """
    broken = sum(int((~np.isfinite(part.logits)).any(axis=(1, 2)).sum()) for part in trace.chunks())
    if not broken:
        return []
    return [f"note: {broken} of {len(trace)} texts have logits that are not finite; these never exit early"]


# ---- a sweep --------------------------------------------------------------------------------------------------------


def describe_best(comparison: Comparison) -> list[str]:
    """Name the policy behind the best score at every speed-up.

    Args:
        comparison: The result of a sweep.

    Returns:
        A line for every speed-up that is reached, and a warning.
    """
    lines = []
    for speedup in SPEEDUPS:
        best = best_point(comparison.curves, speedup)
        if best is not None:
            curve, point = best
            reached = (round(float(curve.score[point]), 9), round(float(curve.speedup[point]), 9))
            described = f"{percent(reached[0])} at {reached[1]:.2f}×, {_describe_policy(curve.policy_at(point))}"
            static = comparison.best_static_exit(speedup)
            if static is not None and (round(static.score, 9), round(static.speedup, 9)) >= reached:
                described = f"{percent(static.score)} at {static.speedup:.2f}×, every text exits at {static.name}"
            lines.append(f"best at ≥ {speedup:g}×: {described}")
    if comparison.metric == AGREEMENT:
        lines.append("these texts have no labels: scores are the agreement with the full model")
    return [*lines, "settings and thresholds were picked on these same texts: report scores on held-out texts"]


# ---- an export ------------------------------------------------------------------------------------------------------


def describe_export(exported: Exported) -> list[str]:
    """Describe an export: its cost, and its policy.

    Args:
        exported: The export.

    Returns:
        A few lines.
    """
    written = f"wrote {exported.folder}, for {exported.runtime}"
    if exported.exits_by_itself:
        written += ": one graph, which exits early in plain ONNX Runtime too"
    return [*_describe_cost(exported), *_describe_exported_policy(exported), written]


def _describe_cost(exported: Exported) -> list[str]:
    """Compare the full export with the full model."""
    if exported.before is None or exported.after is None:
        return ["note: the cost of int8 was not measured; --data measures it"] if exported.int8 else []
    lost = exported.before - exported.after
    note = f"; note: that is {100 * lost:.1f} points less" if lost > WORTH_A_NOTE else ""
    scores = f"{percent(exported.before)} % before, {percent(exported.after)} % exported"
    return [f"{exported.metric} of all layers on {exported.texts} texts: {scores}{note}"]


def _describe_exported_policy(exported: Exported) -> list[str]:
    """Describe the policy of an export."""
    policy = exported.policy
    if exported.note is not None:
        return [f"note: it has no policy and never exits early: {exported.note}"]
    if policy is None:
        return ["note: it has no policy and never exits early; exitpoll record and exitpoll calibrate make one"]
    if policy.source.carried_from is not None or policy.certificate is None:
        return [f"the policy is exported with it, unchanged: {_describe_policy(policy)}"]
    return describe_calibration(policy)
