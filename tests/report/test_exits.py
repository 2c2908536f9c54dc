"""The page names the best static depth, says when the last exit is worse, and draws how reliable exits are."""

from __future__ import annotations

import numpy as np
import pytest

from exitpoll import Policy, Trace, evaluate
from exitpoll.decide.analysis import auroc, calibration_error
from exitpoll.report.exits import BINS, describe_static, exit_scores, reliability_data
from tests.samples import multi_label_trace, random_trace, regression_trace


def right_at(shares, texts=100):
    """A trace whose exits are right on these shares of the texts."""
    right = np.arange(texts)[:, None] < texts * np.array(shares)
    return Trace(np.where(right[..., None], [0.0, 2.0], [2.0, 0.0]), np.ones(texts, int))


def sentences(shares, policy=None):
    trace = right_at(shares)
    return describe_static(evaluate(trace, policy or Policy("max_prob", None)), trace.exit_layers)


def test_the_best_static_depth():
    assert sentences([0.5, 0.7, 0.9]) == ["Best static depth: layer 3, accuracy 90.0 %, 1.00 × in layers."]


def test_a_last_exit_that_is_worse():
    best, worse = sentences([0.5, 0.9, 0.7])
    assert best == "Best static depth: layer 2, accuracy 90.0 %, 1.50 × in layers."
    assert worse.startswith(
        "The last exit is worse than an earlier one: 70.0 % after layer 3, 20.0 points below layer 2"
    )
    assert "chance" not in worse
    assert "which may be chance" in sentences([0.5, 0.9, 0.89])[1]


def test_a_static_exit_as_fast_as_the_policy():
    assert sentences([0.5, 0.7, 0.9], Policy("max_prob", 0.1))[-1] == (
        "Best static exit at least as fast as the policy: layer 1, accuracy 50.0 %, 0.0 points below the policy."
    )
    labels = np.array([1] * 60 + [0] * 40)
    logits = np.stack([np.stack([-x, x], axis=-1) for x in (labels - 0.5, np.full(100, 1.0), labels - 0.5)], axis=1)
    trace = Trace(logits, labels)
    lines = describe_static(evaluate(trace, Policy("max_prob", 0.8)), trace.exit_layers)
    assert lines[-1].endswith("layer 1, accuracy 100.0 %, 40.0 points ABOVE the policy: "
                              "a model cut there would be better and as fast.")  # fmt: skip


def test_scores_of_the_exits():
    trace = random_trace(0)
    scores = exit_scores(trace, evaluate(trace, Policy("max_prob", 0.6)))
    np.testing.assert_allclose(scores["accuracy"], (trace.logits.argmax(-1) == trace.labels[:, None]).mean(axis=0))
    np.testing.assert_allclose(scores["AUROC of its confidence"], auroc(trace))
    values = regression_trace(0)
    policy = Policy("patience", 1.0, problem_type="regression")
    assert list(exit_scores(values, evaluate(values, policy))) == ["r2"]


@pytest.mark.parametrize("make", [random_trace, multi_label_trace])
def test_reliability(make):
    trace = make(0)
    decisions = Policy("max_prob", 0.6, problem_type=trace.problem_type).decide(trace)
    policy, *exits = reliability_data(trace, decisions)
    assert policy["name"] == "policy"
    assert [diagram["name"] for diagram in exits] == ["layer 1", "layer 2", "layer 3", "layer 4"]
    assert all(sum(diagram["texts"]) == len(trace) for diagram in (policy, *exits))
    np.testing.assert_allclose([diagram["error"] for diagram in exits], calibration_error(trace, BINS), atol=1e-4)


def test_no_reliability_of_values():
    trace = regression_trace(0)
    assert reliability_data(trace, Policy("patience", 1.0, problem_type="regression").decide(trace)) == []
