"""The exits by themselves: how good every one is, whether its confidence can be trusted, and the best static depth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from exitpoll.decide.analysis import Reliability, auroc, reliability, reliability_of
from exitpoll.decide.decisions import Decisions
from exitpoll.decide.evaluate import Evaluation, Measurement
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, agreement
from exitpoll.decide.trace import Trace
from exitpoll.files import JsonObject
from exitpoll.report.tiles import points
from exitpoll.report.wording import percent

BINS = 10  # of a reliability diagram


def exit_scores(trace: Trace, evaluation: Evaluation) -> dict[str, NDArray]:
    """Return every exit's score and, for classes, how well its confidence separates right from wrong, (exits,).

    Args:
        trace: A trace with labels.
        evaluation: What was measured on it.

    Returns:
        Scores by what is measured.
    """
    scores = {evaluation.metric: np.array([row.score.value for row in static_rows(evaluation, trace.exit_layers)])}
    if trace.problem_type != REGRESSION:
        scores["AUROC of its confidence"] = auroc(trace)
    return scores


def static_rows(evaluation: Evaluation, exit_layers: Sequence[int]) -> list[Measurement]:
    """Return the measurements of the static exits, first to last."""
    rows = {row.name: row for row in evaluation.rows}
    return [*(rows[f"layer {layer}"] for layer in exit_layers[:-1]), rows["full model"]]


def describe_static(evaluation: Evaluation, exit_layers: Sequence[int]) -> list[str]:
    """Name the best static depth, say if the last exit is worse, and compare the policy with a static exit as fast.

    Args:
        evaluation: What was measured.
        exit_layers: The layers of the exits.

    Returns:
        A few sentences.
    """
    rows = dict(zip(exit_layers, static_rows(evaluation, exit_layers), strict=True))
    if evaluation.metric == "agreement":  # the last exit agrees with itself
        return _compare_as_fast(evaluation, rows)
    best, last = max(rows, key=lambda layer: rows[layer].score.value), exit_layers[-1]
    row = rows[best]
    score = f"{evaluation.metric} {points(row.score.value)} %"
    lines = [f"Best static depth: layer {best}, {score}, {row.speedup:.2f} × in layers."]
    if best != last:
        sure = "" if row.drop.sign else ", which may be chance"
        lines.append(
            f"The last exit is worse than an earlier one: {points(rows[last].score.value)} % after layer {last}, "
            f"{points(-row.drop.value)} points below layer {best} "
            f"(95 % interval {points(-row.drop.high)} to {points(-row.drop.low)}{sure})."
        )
    return [*lines, *_compare_as_fast(evaluation, rows)]


def _compare_as_fast(evaluation: Evaluation, rows: dict[int, Measurement]) -> list[str]:
    """Compare the policy with the best static exit that is at least as fast."""
    ours = evaluation.rows[0]
    as_fast = [layer for layer, row in rows.items() if row.speedup >= ours.speedup]
    if not as_fast or ours.speedup <= 1:
        return []
    layer = max(as_fast, key=lambda layer: rows[layer].score.value)
    ahead = ours.score.value - rows[layer].score.value
    compared = f"{percent(abs(ahead))} points {'below' if ahead >= 0 else 'ABOVE'} the policy"
    advice = "" if ahead >= 0 else ": a model cut there would be better and as fast"
    score = f"{evaluation.metric} {points(rows[layer].score.value)} %"
    return [f"Best static exit at least as fast as the policy: layer {layer}, {score}, {compared}{advice}."]


def reliability_data(trace: Trace, decisions: Decisions) -> list[JsonObject]:
    """Return the reliability diagrams of the policy and of every exit, for the page's script.

    Args:
        trace: A trace with labels.
        decisions: Of the policy.

    Returns:
        The diagrams; none for values.
    """
    if trace.problem_type == REGRESSION:
        return []
    right = agreement(decisions.answer, trace.gold("a reliability diagram"))
    probability = decisions.probability
    if trace.problem_type == MULTI_LABEL:
        probability = np.where(decisions.answer > 0, probability, 1 - probability).prod(axis=-1)
    exits = reliability(trace, BINS)
    names = [f"layer {layer}" for layer in trace.exit_layers]
    policy = _diagrams(reliability_of(right[:, None], probability[:, None], BINS), ["policy"])
    return [*policy, *_diagrams(exits, names)]


def _diagrams(measured: Reliability, names: Sequence[str]) -> list[JsonObject]:
    """Return diagrams as plain values, without empty bins."""
    columns = zip(names, measured.error, measured.texts, measured.confidence, measured.right, strict=True)
    return [
        {
            "name": name,
            "error": round(float(error), 4),
            "gap": round(float(np.nansum(texts * (confidence - right)) / texts.sum()), 4),
            "texts": texts[texts > 0].astype(int).tolist(),
            "confidence": confidence[texts > 0].round(4).tolist(),
            "right": right[texts > 0].round(4).tolist(),
        }
        for name, error, texts, confidence, right in columns
    ]
