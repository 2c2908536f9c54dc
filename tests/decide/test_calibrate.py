"""From a trace to a policy: each goal, what the certificate says, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from experiments.guarantee import world

from exitpoll.decide.calibrate import calibrate, calibrate_for
from exitpoll.decide.certificate import Guarantee, Source, Speedup, StaticExit
from exitpoll.decide.costs import ExitCosts
from exitpoll.decide.evaluate import evaluate
from exitpoll.decide.policy import Policy
from exitpoll.decide.proof import on_grid
from exitpoll.decide.scoring import full_answers
from exitpoll.decide.strategies import STRATEGIES
from exitpoll.decide.sweep import sweep
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError
from exitpoll.report.wording import describe_calibration
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
    @pytest.mark.parametrize("speedup", [2, 3, 4.5])
    @pytest.mark.parametrize("name", ["margin", "entropy", "soft_votes", "learned", "best"])
    def test_it_is_met_closely_and_not_overshot(self, name, speedup):
        trace = world(0, 2000)
        trace = Trace(np.repeat(trace.logits, 3, axis=1), trace.labels)  # 12 exits, with ties
        policy = calibrate(trace, name, speedup=speedup)
        assert speedup <= policy.certificate.speedup <= 1.03 * speedup

    def test_no_other_strategy_is_better_at_that_speedup(self):
        best = calibrate(TRACE, speedup=1.5).certificate
        for curve in sweep(TRACE, near=1.5):
            assert curve.score[curve.closest(1.5)] <= best.score + 1e-6

    def test_a_faster_point_is_taken_where_it_is_significantly_better(self):
        """Deeper heads that are worse: whoever asks for 1.1 × is better served with more."""
        generator = np.random.default_rng(0)
        labels = generator.integers(2, size=500)
        signal = np.array([4.0, 4.0, 1.0, 0.2])[:, None] * np.eye(2)[labels][:, None]
        trace = Trace(signal + generator.normal(size=(500, 4, 2)), labels)
        policy = calibrate(trace, "max_prob", speedup=1.1)
        assert policy.certificate.speedup > 1.5
        assert policy.certificate.score > policy.certificate.full_score + 0.1

    @pytest.mark.parametrize("metric", ["r2", "pearson", "spearman"])
    def test_a_static_exit_that_is_better_wins(self, metric):
        """Values that settle all at the same exit, after which patience waits in vain."""
        generator = np.random.default_rng(0)
        gold = generator.normal(size=400)
        noise = generator.normal(size=(400, 3)) * np.array([2.0, 1.0, 0.1])
        values = np.repeat(gold[:, None] + noise, [1, 1, 4], axis=1)
        trace = Trace(values[..., None], gold, about={"problem_type": "regression"})
        policy = calibrate(trace, speedup=2, metric=metric)
        assert policy.strategy == "static"
        assert policy.decide(trace).histogram[3] == 400
        assert policy.certificate.speedup == 2
        assert policy.certificate.profile.only_layer == 3
        named = calibrate(trace, "patience", speedup=2, metric=metric).certificate
        assert named.static == policy.certificate.static == StaticExit(3, 2.0, policy.certificate.score)
        assert named.static.score > named.score

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
        too_different = risk == "disagreement" and name in ("votes", "soft_votes", "mean", "geometric", "static")
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

    def test_few_texts_are_not_searched_on(self):
        certificate = calibrate(TRACE, max_disagreement=0.01).certificate
        assert (certificate.fixed, certificate.searched_on, certificate.texts) == ("max_prob", None, 600)
        assert certificate == replace(
            calibrate(TRACE, "max_prob", max_disagreement=0.01).certificate, asked="best", fixed="max_prob"
        )

    @pytest.mark.parametrize("limit", [0.05, 0.2])
    def test_the_better_of_a_search_and_a_fixed_strategy_is_taken(self, limit):
        for seed in range(3):
            trace = world(seed, 600)
            stricter = Guarantee("disagreement", limit, 0.975)
            fixed = calibrate_for(trace, stricter, "max_prob").certificate
            best = calibrate_for(trace, Guarantee("disagreement", limit)).certificate
            assert best.goal.confidence == 0.95
            assert best.searched_on == 300
            assert best.speedup >= fixed.speedup
            assert (best.fixed is not None) == (best.speedup == fixed.speedup)
            assert best.texts == (300 if best.fixed is None else 600)
            assert best.test == "fixed sequence, exact binomial, the better of two at 97.5 %"

    def test_it_costs_little_against_the_strategy_that_needs_no_search(self):
        """On these texts max_prob is hard to beat, and half of them are too few for a search."""
        speedups = {
            name: np.mean(
                [calibrate(world(seed, 700), name, max_disagreement=0.02).certificate.speedup for seed in range(6)]
            )
            for name in ("best", "max_prob")
        }
        assert speedups["best"] > 0.97 * speedups["max_prob"]

    def test_static_exits_are_searched_too(self):
        """Heads that are never sure, but right from the third exit on."""
        generator = np.random.default_rng(0)
        labels = generator.integers(2, size=800)
        early = np.stack([generator.integers(2, size=(800, 2)), np.repeat(labels[:, None], 2, axis=1)], axis=1)
        trace = Trace(0.1 * np.eye(2)[early.reshape(800, 4)], labels)
        policy = calibrate(trace, max_disagreement=0.05)
        assert policy.decide(trace).histogram == {1: 0, 2: 0, 3: 800, 4: 0}
        assert policy.certificate.profile.only_layer == 3

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


class TestTrainingTexts:
    TRAINED = replace(TRACE, about=ABOUT | {"split": "train"})
    SHARED = replace(TRACE, about=ABOUT | {"overlap": {"checked": 600, "shared": 31}})
    GOALS = ({"speedup": 2}, {"max_disagreement": 0.05})

    @pytest.mark.parametrize("goal", GOALS)
    def test_they_are_refused(self, goal):
        with pytest.raises(InputError, match=r"is of the training split: .* allow it with allow_training_texts"):
            calibrate(self.TRAINED, "max_prob", **goal)
        with pytest.raises(InputError, match="is of 5 % training texts"):
            calibrate(self.SHARED, "max_prob", **goal)

    @pytest.mark.parametrize("goal", GOALS)
    def test_who_insists_is_served_and_the_certificate_records_it(self, goal):
        for trace, share in ((self.TRAINED, 1.0), (self.SHARED, 31 / 600)):
            policy = calibrate(trace, "max_prob", allow_training_texts=True, **goal)
            assert policy.certificate.trained_on == share

    def test_a_few_are_recorded(self):
        few = replace(TRACE, about=ABOUT | {"overlap": {"checked": 600, "shared": 30}})
        assert calibrate(few, "max_prob", speedup=2).certificate.trained_on == 0.05
        assert calibrate(TRACE, "max_prob", speedup=2).certificate.trained_on is None

    @pytest.mark.parametrize(
        "overlap", [7, {}, {"checked": 0, "shared": 0}, {"checked": 3, "shared": 9}, {"checked": "x"}]
    )
    def test_what_cannot_be_read_is_not_known(self, overlap):
        assert replace(TRACE, about={"overlap": overlap}).trained_on is None


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
            {"max_disagreement": 0.001, "strategy": "learned"},
            "600 texts are too few to guarantee that answers differ .* 5990 or more are needed .half of",
        ),
        ({"max_disagreement": 0.001}, "2995 or more are needed$"),
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
        (regression_trace(0), {"max_disagreement": 0.1}, "values are never equal: name the tolerance"),
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


class TestExits:
    @staticmethod
    def timed(head, texts=1200):
        """Six exits that get better with depth, and a layer that takes a millisecond."""
        chance = np.random.default_rng(0)
        labels = chance.integers(3, size=texts)
        clarity = 2 * chance.exponential(size=(texts, 1, 1)) * np.linspace(0.4, 2.5, 6)[:, None]
        noise = chance.normal(size=(texts, 1, 3)) + chance.normal(size=(texts, 6, 3))
        times = [number + head * number for number in range(1, 7)]
        about = ABOUT | {"milliseconds": times, "head_milliseconds": head}
        return Trace(0.7 * noise + clarity * np.eye(3)[labels][:, None], labels, about=about)

    @staticmethod
    def mean_ms(trace, policy):
        asked = policy.asked(trace.exit_layers)
        cost = dict(zip(asked, ExitCosts.measured(trace.exit_layers, trace.about).of(asked), strict=True))
        return np.mean([cost[depth] for depth in policy.decide(trace).depth])

    @pytest.mark.parametrize("goal", [{"speedup": 2.0}, {"latency_ms": 4.0}, {"max_disagreement": 0.05}])
    def test_named_exits(self, goal):
        trace = self.timed(0.5)
        policy = calibrate(trace, "margin", exits=[2, 6], **goal)
        assert policy.exit_layers == (2, 6)
        assert policy.certificate.speedup == pytest.approx(policy.decide(trace).speedup, abs=1e-3)
        ours = calibrate(trace, Policy("margin", exit_layers=(2, 6)), **goal)
        assert (ours.threshold, ours.exit_layers) == (policy.threshold, (2, 6))
        assert ours.certificate.asked["exit_layers"] == [2, 6]
        reduced = calibrate(trace.at_exits([2, 6]), "margin", **goal)
        assert (reduced.threshold, reduced.exit_layers) == (policy.threshold, (2, 6))
        assert calibrate(trace, "margin", exits=list(range(1, 7)), **goal).exit_layers is None
        if "latency_ms" in goal:
            assert self.mean_ms(trace, policy) == pytest.approx(policy.certificate.latency_ms, rel=1e-3)

    @pytest.mark.parametrize("strategy", ["best", "margin"])
    @pytest.mark.parametrize("goal", [{"max_disagreement": 0.1}, {"max_accuracy_drop": 0.05}])
    def test_chosen_exits_are_faster_where_heads_are_slow(self, goal, strategy):
        trace = self.timed(1.0)
        every, chosen = calibrate(trace, strategy, **goal), calibrate(trace, strategy, exits="auto", **goal)
        assert 1 < len(chosen.exit_layers) < 6
        assert chosen.exit_layers[-1] == 6
        assert self.mean_ms(trace, chosen) < self.mean_ms(trace, every)
        certificate = chosen.certificate
        assert certificate.exits_chosen_on == 300
        assert certificate.texts == 900 or (certificate.texts, certificate.searched_on) == (450, 450)
        assert any("chosen by measured milliseconds, on 300 texts" in line for line in describe_calibration(chosen))

    def test_an_exit_stays_within_the_depth_cap(self):
        policy = calibrate(self.timed(1.0), Policy("margin", max_depth=3), max_disagreement=0.3, exits="auto")
        assert policy.exit_layers[0] <= 3

    def test_for_a_latency_the_score_is_as_good_or_better(self):
        trace = self.timed(1.0)
        every, chosen = (calibrate(trace, "margin", latency_ms=4.5, exits=exits) for exits in ("all", "auto"))
        assert chosen.certificate.score >= every.certificate.score
        assert self.mean_ms(trace, chosen) <= 4.5
        assert chosen.certificate.exits_chosen_on == 1200

    def test_where_nothing_is_guaranteed_the_nearest_is_named_as_ever(self):
        equally_sure = np.eye(3)[np.random.default_rng(0).integers(2, size=(600, 6))]
        trace = replace(self.timed(1.0, 600), logits=equally_sure)
        policy = calibrate(trace, "margin", max_disagreement=0.05, exits="auto")
        assert (policy.certificate.met, policy.exit_layers) == (False, None)
        assert 0.5 < policy.certificate.nearest.guarantee.at_most < 0.6

    def test_other_problem_types(self):
        about = {"milliseconds": [2.0, 4.0, 6.0, 8.0], "head_milliseconds": 1.0}
        labels, values = multi_label_trace(0, texts=400), regression_trace(0, texts=400)
        calibrate(replace(labels, about=labels.about | about), "margin", max_disagreement=0.3, exits="auto")
        policy = calibrate(replace(values, about=values.about | about), latency_ms=5.0, exits="auto")
        assert self.mean_ms(replace(values, about=values.about | about), policy) <= 5.0

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"exits": "some"}, "exits 'some' must be all, auto or the layers"),
            ({"exits": [3]}, "must end with 6"),
            (
                {"exits": "auto", "max_disagreement": 0.001},
                "900 texts are too few .* beside the 300 that",
            ),
            ({"exits": [2, 9]}, "no exit after layer 9"),
            ({"exits": "auto", "speedup": 2.0}, "chosen by measured time, and speedup counts layers"),
            ({"strategy": Policy("margin", exit_layers=(2, 6)), "exits": "auto"}, "names its own"),
            ({"strategy": Policy("margin", exit_layers=(2, 6)), "exits": [3, 6]}, "are not those of the policy"),
            (
                {"strategy": Policy("max_prob", settings={"temperatures": [1.0] * 6}), "exits": "auto"},
                "cannot be chosen for a policy that has an entry for every exit",
            ),
        ],
    )
    def test_refusals(self, given, message):
        goal = {} if "speedup" in given else {"max_disagreement": 0.1}
        with pytest.raises(InputError, match=message):
            calibrate(self.timed(0.5), **{"strategy": "margin"} | goal | given)

    def test_traces_without_the_time_of_a_head_are_refused(self):
        trace = self.timed(0.5)
        about = {name: value for name, value in trace.about.items() if name != "head_milliseconds"}
        with pytest.raises(InputError, match="record it again"):
            calibrate(replace(trace, about=about), max_disagreement=0.1, exits="auto")


class TestReference:
    """Answers are compared with those of another model than the last exit, where a trace has them."""

    def trace(self, seed, texts=400):
        chance = np.random.default_rng(seed)
        labels = chance.integers(3, size=texts)
        logits = 4 * np.eye(3)[np.stack([labels] * 4, axis=1)] + chance.normal(size=(texts, 4, 3))
        return Trace(logits)

    def test_a_guarantee_is_about_the_reference(self):
        trace = self.trace(0)
        same = replace(trace, reference=trace.logits[:, -1])
        policy = calibrate(same, "max_prob", max_disagreement=0.1)
        assert policy == replace(
            calibrate(trace, "max_prob", max_disagreement=0.1), certificate=policy.certificate
        )  # the same thresholds
        assert "differ from the original classifier's" in str(policy.certificate.goal)
        other = replace(trace, reference=np.roll(trace.logits[:, -1], 1, axis=1))  # always another answer
        assert not calibrate(other, "max_prob", max_disagreement=0.1).certificate.met

    def test_evaluation_compares_with_it(self):
        trace = self.trace(1)
        policy = calibrate(replace(trace, reference=trace.logits[:, -1]), "max_prob", max_disagreement=0.1)
        wrong = replace(trace, reference=np.roll(trace.logits[:, -1], 1, axis=1))
        assert evaluate(wrong, policy).guarantee.verdict == "broken"

    def test_it_is_kept_in_files_and_selections(self, tmp_path):
        trace = self.trace(2)
        trace = replace(trace, reference=trace.logits[:, -1])
        trace.save(tmp_path / "trace.safetensors")
        assert (Trace.load(tmp_path / "trace.safetensors").reference == trace.reference).all()
        assert (trace.select(slice(3, 9)).reference == trace.reference[3:9]).all()
        assert (trace.at_exits([2, 4]).reference == trace.reference).all()
        with pytest.raises(InputError, match="does not fit"):
            replace(trace, reference=trace.logits[:5, -1])

    def test_other_texts_search_and_all_certify(self):
        policy = calibrate(self.trace(3), max_disagreement=0.1, search=self.trace(4, texts=200), exits=[2, 3, 4])
        assert (policy.certificate.texts, policy.certificate.searched_on) == (400, 200)
        assert policy.exit_layers == (2, 3, 4)
        assert policy.certificate.met


class TestValues:
    """Values count as the same answer up to a tolerance."""

    def trace(self, seed, texts=600):
        chance = np.random.default_rng(seed)
        last = chance.normal(size=texts)
        spread = np.array([0.3, 0.1, 0.02, 0.0])
        return Trace((last[:, None] + chance.normal(size=(texts, 4)) * spread)[:, :, None])

    def test_a_guarantee_holds_on_others(self, tmp_path):
        policy = calibrate(self.trace(0), max_disagreement=0.05, tolerance=0.1)
        assert policy.certificate.met
        assert policy.certificate.speedup > 1.2
        checked = evaluate(self.trace(1, 4000), policy).guarantee
        assert checked.measured.value <= 0.05
        policy.save(tmp_path / "policy.json")
        assert Policy.load(tmp_path / "policy.json") == policy

    def test_refusals(self):
        with pytest.raises(InputError, match="name the tolerance"):
            calibrate(self.trace(0), max_disagreement=0.05)
        with pytest.raises(InputError, match="exits are not chosen"):
            calibrate(self.trace(0), max_disagreement=0.05, tolerance=0.1, exits="auto")
        with pytest.raises(InputError, match="tolerance is for regression"):
            calibrate(TestReference().trace(0), max_disagreement=0.05, tolerance=0.1)
        with pytest.raises(InputError, match=r"tolerance -1 must be 0 or more"):
            calibrate(self.trace(0), max_disagreement=0.05, tolerance=-1)


def test_a_search_of_few_texts_is_no_worse_than_a_strategy_fixed_beforehand():
    """What was right by chance on the texts of the search may prove nothing; then max_prob is still tested."""
    trace, few = clear_trace(5, texts=900), clear_trace(6, texts=60)
    searched = calibrate(trace, max_disagreement=0.05, search=few)
    fixed = calibrate(trace, "max_prob", max_disagreement=0.05, confidence=0.975)
    assert searched.certificate.speedup >= fixed.certificate.speedup > 1.5
    assert (searched.certificate.texts, searched.certificate.searched_on) == (900, 60)
