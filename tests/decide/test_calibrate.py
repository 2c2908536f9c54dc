"""From a trace to a policy: each goal, what the certificate says, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from experiments.guarantee import world

from exitpoll.decide.calibrate import calibrate, calibrate_for, on_grid
from exitpoll.decide.certificate import Guarantee, Source, Speedup
from exitpoll.decide.guarantee import full_answers
from exitpoll.decide.policy import Policy
from exitpoll.decide.strategies import STRATEGIES
from exitpoll.decide.sweep import sweep
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError
from tests.samples import multi_label_trace, random_trace, regression_trace, settings_of

ABOUT = {"fingerprint": "m1", "runtime": "torch float32", "data": "toy", "split": "calibration", "metric": "accuracy"}


def clear_trace(seed=0, texts=600, exits=6):
    """Most texts are clear from the start, and confidence shows it."""
    trace = random_trace(seed, texts, exits, clarity=0)
    clarity = np.random.default_rng(seed + 1).choice([1.0, 9.0], p=[0.3, 0.7], size=(texts, 1, 1))
    logits = trace.logits + clarity * np.eye(3)[trace.labels][:, None]
    return Trace(logits, trace.labels, about=ABOUT)


TRACE = clear_trace()


class TestSpeedup:
    def test_no_other_point_that_fast_is_better(self):
        policy = calibrate(TRACE, "margin", speedup=2)
        decisions = policy.decide(TRACE)
        [curve] = sweep(TRACE, ["margin"])
        assert decisions.speedup >= 2
        assert decisions.accuracy == curve.at(2)

    def test_the_best_strategy_is_as_good_as_any(self):
        best = calibrate(TRACE, speedup=2).certificate.score
        for name in ("votes", "entropy", "learned", "hybrid"):
            assert best >= calibrate(TRACE, name, speedup=2).certificate.score - 0.02  # fitted to texts it speaks of

    def test_the_certificate_says_what_was_measured_on_what(self):
        certificate = calibrate(TRACE, "margin", speedup=2).certificate
        assert certificate.goal == Speedup(2)
        assert certificate.texts == 600
        assert certificate.source == Source(**ABOUT)
        assert certificate.metric == "accuracy"
        assert certificate.full_score == pytest.approx((full_answers(TRACE) == TRACE.labels).mean(), abs=1e-6)

    def test_settings_of_a_policy_are_kept(self):
        policy = calibrate(TRACE, Policy("votes", None, {"k": 0.6}), speedup=1.5)
        assert policy.settings == {"k": 0.6}

    def test_a_hybrid_is_calibrated_as_it_is(self):
        hybrid = calibrate(TRACE, "hybrid", speedup=2)
        again = calibrate(TRACE, hybrid, speedup=1.1)
        assert again.settings == hybrid.settings
        assert again.decide(TRACE).speedup == pytest.approx(again.certificate.speedup, abs=1e-4)

    def test_without_labels_it_goes_by_agreement(self):
        policy = calibrate(Trace(TRACE.logits), "margin", speedup=2)
        assert policy.certificate.metric == "agreement"
        assert policy.certificate.full_score == 1

    @pytest.mark.parametrize("trace", [multi_label_trace(0), regression_trace(0)])
    def test_other_problem_types(self, trace):
        policy = calibrate(trace, speedup=1.2)
        assert policy.problem_type == trace.problem_type
        assert policy.decide(trace).speedup >= 1.2

    def test_what_cannot_be_reached(self):
        with pytest.raises(
            InputError, match="speedup 7 cannot be reached: leaving at the first exit gives 6 × in layers"
        ):
            calibrate(TRACE, "margin", speedup=7)


class TestLatency:
    TIMED = replace(TRACE, about=ABOUT | {"milliseconds": [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]})

    def test_the_mean_time_is_within(self):
        policy = calibrate(self.TIMED, "margin", latency_ms=5)
        times = np.array(self.TIMED.about["milliseconds"])[policy.decide(self.TIMED).exit]
        assert times.mean() <= 5
        assert policy.certificate.latency_ms == pytest.approx(times.mean(), abs=1e-4)

    def test_refusals(self):
        with pytest.raises(InputError, match=r"latency_ms 2 cannot be reached: leaving at the first exit takes 3 ms"):
            calibrate(self.TIMED, "margin", latency_ms=2)
        with pytest.raises(InputError, match="this trace has no times"):
            calibrate(TRACE, "margin", latency_ms=5)


class TestGuarantee:
    def test_the_certificate(self):
        policy = calibrate(TRACE, "entropy", max_disagreement=0.05, confidence=0.9)
        certificate = policy.certificate
        assert certificate.met
        assert certificate.guarantee == certificate.goal == Guarantee("disagreement", 0.05, 0.9)
        assert certificate.test == "fixed sequence, exact binomial"
        assert certificate.measured <= certificate.bound <= 0.05
        decisions = policy.decide(TRACE)
        assert certificate.measured == pytest.approx((decisions.answer != full_answers(TRACE)).mean(), abs=1e-6)
        assert certificate.speedup == pytest.approx(decisions.speedup, abs=1e-4)

    @pytest.mark.parametrize("risk", ["disagreement", "accuracy"])
    @pytest.mark.parametrize("name", ["best", *STRATEGIES])
    def test_every_strategy_keeps_it_on_the_texts_it_was_proven_on(self, name, risk):
        policy = calibrate_for(TRACE, Guarantee(risk, 0.1), name)
        certificate = policy.certificate
        # Here an ensemble's answers are too often others than the last head's, however late texts leave.
        too_different = risk == "disagreement" and name in ("votes", "soft_votes", "mean", "geometric")
        assert certificate.met == (not too_different)
        if certificate.met:
            assert certificate.bound <= 0.1 + 1e-5
        assert (policy.threshold is None) == too_different
        chosen_or_fitted = {"best", "hybrid", "learned", "votes", "soft_votes", "confident_patience", "js_patience"}
        assert (certificate.searched_on is not None) == (name in chosen_or_fitted)

    def test_a_stricter_guarantee_is_slower(self):
        speedups = [
            calibrate(TRACE, "entropy", max_disagreement=limit).certificate.speedup for limit in (0.01, 0.03, 0.1, 0.3)
        ]
        assert speedups == sorted(speedups)

    def test_disagreement_needs_no_labels(self):
        assert calibrate(Trace(TRACE.logits), max_disagreement=0.1).certificate.met

    @pytest.mark.parametrize("name", ["entropy", "max_prob", "margin"])
    def test_one_label_of_several_is_no_or_yes(self, name):
        generator = np.random.default_rng(0)
        labels = generator.integers(2, size=(300, 1))
        logits = (9 * labels - 4.5)[:, None] + generator.normal(size=(300, 4, 1))
        policy = calibrate(Trace(logits, labels), name, max_disagreement=0.1)
        assert policy.problem_type == "multi_label_classification"
        assert policy.certificate.speedup > 3

    def test_the_search_starts_with_the_cautious(self):
        """A front that begins too boldly would prove nothing where a slower policy could be proven."""
        met = [calibrate(world(seed, 600), max_disagreement=0.02, confidence=0.9).certificate.met for seed in range(8)]
        assert all(met)

    def test_what_cannot_be_kept_falls_back_to_never_leaving(self):
        generator = np.random.default_rng(0)
        noise = Trace(10 * generator.normal(size=(400, 4, 3)), generator.integers(3, size=400))
        policy = calibrate(noise, "max_prob", max_disagreement=0.01)
        assert not policy.certificate.met
        assert policy.threshold is None
        assert policy.decide(noise).speedup == 1
        nearest = policy.certificate.nearest
        again = calibrate(noise, "max_prob", max_disagreement=nearest.guarantee.at_most)
        assert again.certificate.met
        assert again.certificate.speedup >= nearest.speedup

    def test_where_not_even_another_guarantee_helps(self):
        same = Trace(np.zeros((300, 1, 2)), np.zeros(300, dtype=int))
        assert calibrate(same, "max_prob", max_disagreement=0.1).certificate.nearest is None


def test_grids_start_with_never_leaving_and_end_with_leaving_at_once():
    for name in (name for name, row in STRATEGIES.items() if row.grid):
        sequence = on_grid(Policy(name, None, settings_of(name, 6)), TRACE)
        depths = [policy.decide(TRACE.select(slice(0, 50))).depth for policy in sequence]
        assert all((later <= earlier).all() for earlier, later in pairwise(depths))
        assert (depths[-1] == 1).mean() > 0.5
        assert (depths[0] == 6).all()


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ({}, "name exactly one goal: speedup, latency_ms, max_disagreement or max_accuracy_drop"),
        ({"max_disagreement": 0.1, "metric": "f1"}, "metric 'f1' is for a speed-up or latency"),
        ({"speedup": 2, "max_disagreement": 0.1}, "name exactly one goal"),
        ({"max_disagreement": 0.1, "max_accuracy_drop": 0.1}, "name exactly one goal"),
        ({"speedup": 0}, "speedup 0 must be above 0"),
        ({"max_disagreement": 0}, "max_disagreement 0 must be above 0 and below 1"),
        ({"max_accuracy_drop": 1}, "max_accuracy_drop 1 must be above 0 and below 1"),
        ({"max_disagreement": 0.1, "confidence": 1}, "confidence 1 must be above 0 and below 1"),
        ({"max_disagreement": 0.1, "strategy": "guess"}, "strategy 'guess' is unknown"),
        (
            {"max_disagreement": 0.001},
            "600 texts are too few to guarantee that answers differ .* 5990 or more are needed .half of",
        ),
        ({"max_disagreement": 0.001, "strategy": "entropy"}, "2995 or more are needed$"),
        ({"max_accuracy_drop": 0.001}, "accuracy is at most 0.1 points below the full model's, with 95 % "),
    ],
)
def test_refuses(goal, message):
    with pytest.raises(InputError, match=message):
        calibrate(TRACE, **goal)


@pytest.mark.parametrize(
    ("trace", "goal", "message"),
    [
        (Trace(TRACE.logits), {"max_accuracy_drop": 0.1}, "a loss of accuracy needs labels"),
        (Trace(np.zeros((0, 2, 2))), {"speedup": 2}, "no texts to calibrate on"),
        (
            multi_label_trace(0),
            {"max_disagreement": 0.3, "strategy": Policy("entropy")},
            "the policy is for single_label",
        ),
        (regression_trace(0), {"max_disagreement": 0.1}, "values are neither; use speedup"),
        (regression_trace(0), {"speedup": 2, "strategy": "votes"}, "'votes' needs classes"),
    ],
)
def test_refuses_traces(trace, goal, message):
    with pytest.raises(InputError, match=message):
        calibrate(trace, **goal)


def test_guarantees_in_words():
    assert str(Guarantee("disagreement", 0.015, 0.95)) == (
        "answers differ from the full model's on at most 1.5 % of texts, with 95 % confidence"
    )
    assert str(Guarantee("accuracy", 0.01, 0.9)) == (
        "accuracy is at most 1 point below the full model's, with 90 % confidence"
    )
