"""Sweeping in one pass gives what deciding threshold by threshold gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitpoll.curves import FROM_COUNTS, Curve, sweep, variants
from exitpoll.errors import InputError
from exitpoll.policy import Policy
from exitpoll.strategies import STRATEGIES
from exitpoll.tasks import METRICS
from exitpoll.trace import Trace
from tests.test_analysis import random_trace


@pytest.mark.parametrize("metric", FROM_COUNTS)
@pytest.mark.parametrize("policy", variants(), ids=str)
def test_a_sweep_is_what_deciding_at_each_threshold_gives(policy, metric):
    trace = random_trace(3, texts=50, exits=5, classes=2)
    trace = Trace(trace.logits, trace.labels, (2, 3, 7, 8, 12))
    [curve] = sweep(trace, [policy], metric=metric, points=17)
    assert len(curve.thresholds) >= 2
    for point in range(len(curve.thresholds)):
        decisions = curve.policy_at(point).decide(trace)
        assert curve.speedup[point] == pytest.approx(decisions.speedup)
        assert curve.score[point] == pytest.approx(METRICS[metric](trace.labels, decisions.answer))


@given(seed=st.integers(0, 10**6), exits=st.integers(1, 12), classes=st.integers(2, 20))
def test_also_for_other_sizes(seed, exits, classes):
    trace = random_trace(seed, texts=30, exits=exits, classes=classes)
    for curve in sweep(trace, [Policy("votes"), Policy("entropy")], metric="matthews", points=9):
        for point in range(len(curve.thresholds)):
            decisions = curve.policy_at(point).decide(trace)
            assert curve.speedup[point] == pytest.approx(decisions.speedup)
            assert curve.score[point] == pytest.approx(METRICS["matthews"](trace.labels, decisions.answer))


def test_a_curve_runs_from_leaving_at_once_to_never_leaving_early():
    trace = random_trace(4)
    for curve in sweep(trace):
        assert curve.speedup.max() == 4
        assert curve.speedup.min() == 1


def test_no_threshold_is_a_score_that_occurs():
    trace = random_trace(5)
    for curve in sweep(trace, points=10_000):
        scores = curve.policy.opinion(trace.logits).score * STRATEGIES[curve.policy.strategy].sign
        assert not np.isin(curve.thresholds, scores).any()


def test_every_strategy_and_every_k_is_tried():
    assert {policy.strategy for policy in variants()} == set(STRATEGIES)
    assert [policy.settings["k"] for policy in variants(["votes"])] == [0, 0.25, 0.5, 0.75]


def test_scores_that_are_no_numbers_leave_last():
    trace = random_trace(6)
    logits = trace.logits.copy()
    logits[:, 0, 0] = np.nan
    [curve] = sweep(Trace(logits, trace.labels), [Policy("max_prob")])
    assert (curve.speedup == 1).all()


class TestPoints:
    CURVE = Curve(
        Policy("votes", None, {"k": 0.5}),
        "accuracy",
        thresholds=np.array([1.0, 2, 3, 4, 5]),
        score=np.array([0.70, 0.90, 0.85, 0.90, 0.88]),
        speedup=np.array([4.0, 2.5, 2.0, 1.5, 1.0]),
    )

    def test_best_in_a_range_is_the_faster_of_equals(self):
        assert self.CURVE.best(1.3) == 1
        assert self.CURVE.best(1.3, 2.0) == 3
        assert self.CURVE.best(5.0) is None

    def test_at(self):
        assert self.CURVE.at(2.6) == 0.70
        assert self.CURVE.at(1.0) == 0.90
        assert np.isnan(self.CURVE.at(9))

    def test_front(self):
        assert self.CURVE.front().tolist() == [0, 1]

    def test_area(self):
        assert self.CURVE.area(1.0, 2.5) == pytest.approx(0.9)
        assert self.CURVE.area(3.0, 4.0) == pytest.approx(0.7)

    def test_name_and_policy(self):
        assert self.CURVE.name == "votes (k=0.5)"
        assert self.CURVE.policy_at(1) == Policy("votes", 2.0, {"k": 0.5})


@pytest.mark.parametrize(
    ("trace", "metric", "message"),
    [
        (Trace(np.zeros((2, 2, 2))), "accuracy", "sweeping needs labels"),
        (random_trace(0), "bleu", "metric 'bleu' cannot be swept; choose one of: accuracy"),
    ],
)
def test_refuses(trace, metric, message):
    with pytest.raises(InputError, match=message):
        sweep(trace, metric=metric)
