"""Sweeping in one pass gives what deciding threshold by threshold gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitpoll.decide import thresholds
from exitpoll.decide.costs import ExitCosts
from exitpoll.decide.fitting import KS, candidates, variants
from exitpoll.decide.metrics import METRICS, MULTI_LABEL
from exitpoll.decide.policy import Policy
from exitpoll.decide.strategies import STRATEGIES
from exitpoll.decide.sweep import Curve, best_of, closest_point, sweep
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError
from tests.samples import multi_label_trace, random_trace, regression_trace, settings_of

SINGLE_METRICS = ("accuracy", "accuracy_and_f1", "matthews")


def fitted_settings(name, exits):
    """Settings as fitting finds them."""
    if name == "max_prob":
        return {"temperatures": [0.5, 1.0, 2.0, 1.5, 1.0][:exits]}
    return {key: value for key, value in settings_of(name, exits).items() if key in ("coefficients", "intercepts")}


def check_against_deciding(trace, curve):
    assert len(curve.levels) >= 1
    if "towards" in curve.policy.settings:
        return  # what is fitted here is swept as of texts that it never saw
    for point in range(len(curve.levels)):
        decisions = curve.policy_at(point).decide(trace)
        assert curve.speedup[point] == pytest.approx(decisions.speedup)
        assert curve.score[point] == pytest.approx(METRICS[curve.metric](trace.labels, decisions.answer))


@pytest.mark.parametrize("metric", SINGLE_METRICS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_sweep_is_what_deciding_at_each_threshold_gives(name, metric):
    trace = random_trace(3, texts=50, exits=5, classes=2)
    trace = Trace(trace.logits, trace.labels, (2, 3, 7, 8, 12))
    fitted = [Policy(name, None, settings)] if (settings := fitted_settings(name, 5)) else []
    for curve in sweep(trace, [name, *fitted], metric=metric, points=17):
        check_against_deciding(trace, curve)


@pytest.mark.parametrize("metric", ["accuracy", "micro_f1"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_also_for_several_labels(name, metric):
    trace = multi_label_trace(3)
    fitted = [Policy(name, None, settings, problem_type=MULTI_LABEL)] if (settings := fitted_settings(name, 4)) else []
    for curve in sweep(trace, [name, *fitted], metric=metric, points=9):
        check_against_deciding(trace, curve)


def test_also_for_values():
    trace = regression_trace(3)
    for metric in (None, "pearson", "spearman"):
        curves = sweep(trace, metric=metric)
        assert {curve.metric for curve in curves} == {metric or "r2"}
        assert [curve.strategy for curve in curves] == ["patience"] * 4 + ["learned", "static"]
        for curve in curves:
            check_against_deciding(trace, curve)


def test_without_labels_agreement_is_the_score():
    trace = Trace(random_trace(3).logits)
    for curve in sweep(trace):
        assert curve.metric == "agreement"
        if "towards" not in curve.policy.settings:
            same = curve.policy_at(0).decide(trace).answer == trace.logits[:, -1].argmax(axis=-1)
            assert curve.score[0] == pytest.approx(same.mean())
        assert curve.policy.settings.get("towards") != "right"


@pytest.mark.parametrize("name", STRATEGIES)
def test_more_thresholds_are_tried_around_a_speedup(name):
    trace = random_trace(4, texts=2000)
    for coarse, fine in zip(sweep(trace, [name], points=30), sweep(trace, [name], points=30, near=2), strict=True):
        gaps = [curve.speedup[curve.closest(2.0)] - 2.0 for curve in (coarse, fine)]
        assert gaps[1] <= gaps[0]
        if STRATEGIES[name].grid not in (thresholds.run_lengths, thresholds.vote_values, thresholds.exit_numbers, None):
            assert gaps[1] < 0.01
        assert set(coarse.levels) <= set(fine.levels)


def test_the_loosest_threshold_is_one_that_can_occur():
    trace = random_trace(0, texts=200, classes=3)
    curves = sweep(trace, ["entropy", Policy("max_prob"), "margin", "mean"])
    loosest = {curve.strategy: curve.policy_at(0).threshold for curve in curves}
    assert loosest == pytest.approx({"entropy": np.log(3), "max_prob": 1 / 3, "margin": 0, "mean": 1 / 3}, abs=1e-5)


@given(seed=st.integers(0, 10**6), exits=st.integers(1, 12), classes=st.integers(2, 20))
def test_also_for_other_sizes(seed, exits, classes):
    trace = random_trace(seed, texts=30, exits=exits, classes=classes)
    for curve in sweep(trace, [Policy("votes"), Policy("entropy")], metric="matthews", points=9):
        check_against_deciding(trace, curve)


def test_a_curve_runs_from_leaving_at_once_to_never_leaving_early():
    for curve in sweep(random_trace(4), variants()):
        assert curve.speedup.max() == 4
        assert curve.speedup.min() == 1


def test_no_threshold_is_a_score_that_occurs():
    trace = random_trace(5)
    for curve in sweep(trace, variants(), points=10_000):
        assert not np.isin(curve.levels, curve.policy.opinion(trace.logits).score).any()


def test_every_strategy_and_every_k_is_tried():
    trace = random_trace(0)
    assert {candidate.policy.strategy for candidate in candidates(trace)} == set(STRATEGIES)
    for name in ("votes", "soft_votes"):
        assert [policy.settings["k"] for policy in variants([name])] == list(KS)
        assert [curve.policy.settings["k"] for curve in sweep(trace, [name], ks=[0.1])] == [0.1]


@pytest.mark.parametrize("rules", [{"fallback": "head"}, {"answer": "head"}, {"max_depth": 3}, {"max_depth": 1}])
@pytest.mark.parametrize("name", ["votes", "max_prob", "hybrid"])
def test_the_rules_of_a_policy_are_kept(name, rules):
    trace = random_trace(5, texts=50, exits=5)
    for curve in sweep(trace, [Policy(name, None, settings_of(name, 5), **rules)], points=17):
        check_against_deciding(trace, curve)


@pytest.mark.parametrize("exits", [1, 2])
def test_few_exits(exits):
    trace = random_trace(5, exits=exits)
    curves = sweep(trace, points=9)
    assert {curve.strategy for curve in curves} == set(STRATEGIES)
    for curve in curves:
        check_against_deciding(trace, curve)


def test_a_value_that_is_no_number_spoils_its_own_text_alone():
    trace = regression_trace(3)
    logits = trace.logits.copy()
    logits[0, 0] = np.inf
    for clean, curve in zip(sweep(trace), sweep(Trace(logits, trace.labels)), strict=True):
        assert np.isfinite(curve.score).all()
        assert abs(curve.at(1.2) - clean.at(1.2)) < 0.1


def test_costs_other_than_layers():
    trace = random_trace(1)
    costs = ExitCosts(trace.exit_layers, np.array([10.0, 11.0, 12.0, 20.0]), head=2.0, unit="milliseconds")
    [by_layer], [by_time] = sweep(trace, ["margin"]), sweep(trace, ["margin"], costs=costs)
    np.testing.assert_array_equal(by_layer.score, by_time.score)
    decisions = by_time.policy_at(40).decide(trace)
    assert by_time.speedup[40] == pytest.approx(22 / np.array([12, 15, 18, 28])[decisions.exit].mean())


def test_a_policy_that_asks_some_exits_is_swept_as_on_a_trace_of_these():
    trace = random_trace(1)
    costs = ExitCosts(trace.exit_layers, np.array([10.0, 11.0, 12.0, 20.0]), head=2.0, unit="milliseconds")
    [ours] = sweep(trace, [Policy("votes", exit_layers=(1, 3, 4))], costs=costs)
    [theirs] = sweep(trace.at_exits((1, 3, 4)), [Policy("votes")], costs=costs)
    for name in ("levels", "score", "speedup"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert ours.policy_at(0).exit_layers == (1, 3, 4)


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
        levels=np.array([1.0, 2, 3, 4, 5]),
        score=np.array([0.70, 0.90, 0.85, 0.90, 0.88]),
        speedup=np.array([4.0, 2.5, 2.0, 1.5, 1.0]),
    )

    def test_best_in_a_range_is_the_faster_of_equals(self):
        assert self.CURVE.best(1.3) == 1
        assert self.CURVE.best(1.3, 2.0) == 3
        assert self.CURVE.best(5.0) is None

    def test_closest_is_the_slowest_that_is_fast_enough(self):
        assert self.CURVE.closest(1.3) == 3
        assert self.CURVE.closest(1.8) == 2
        assert self.CURVE.closest(5.0) is None

    def test_closest_of_several_is_the_best_at_the_speedup(self):
        worse = replace(self.CURVE, score=self.CURVE.score - 0.1, speedup=self.CURVE.speedup - 0.05)
        assert closest_point([worse, self.CURVE], 1.8) == (self.CURVE, 2)
        equal = replace(self.CURVE, speedup=self.CURVE.speedup - 0.05)
        assert closest_point([self.CURVE, equal], 1.8) == (equal, 2)
        assert closest_point([self.CURVE], 9) is None

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
        assert self.CURVE.strategy == "votes"
        assert self.CURVE.policy_at(1) == Policy("votes", 2.0, {"k": 0.5})

    def test_best_of_several(self):
        faster = replace(self.CURVE, speedup=self.CURVE.speedup + 0.1, levels=self.CURVE.levels + 10)
        assert best_of([self.CURVE, faster], 1.3) == Policy("votes", 12.0, {"k": 0.5})
        assert best_of([self.CURVE, faster], 9) is None


@pytest.mark.parametrize(
    ("trace", "metric", "message"),
    [
        (Trace(np.zeros((2, 2, 2))), "accuracy", "metric 'accuracy' needs labels, and this trace has none"),
        (Trace(np.zeros((0, 2, 2)), np.zeros(0, dtype=int)), "accuracy", "no texts to sweep"),
        (random_trace(0), "bleu", "metric 'bleu' does not score single_label_classification with 3 classes; choose"),
        (random_trace(0), "accuracy_and_f1", "choose one of: accuracy, matthews"),
        (multi_label_trace(0), "matthews", "choose one of: accuracy, micro_f1"),
    ],
)
def test_refuses(trace, metric, message):
    with pytest.raises(InputError, match=message):
        sweep(trace, metric=metric)
