"""What is measured of a policy on texts it has not seen."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import chi2, spearmanr

from exitpoll.decide.analysis import static_exit
from exitpoll.decide.bootstrap import Estimate, bootstrap_scores
from exitpoll.decide.calibrate import calibrate
from exitpoll.decide.certificate import Guarantee
from exitpoll.decide.evaluate import GuaranteeCheck, evaluate
from exitpoll.decide.policy import Policy
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError
from exitpoll.report.wording import verdict
from exitpoll.study.comparisons import mean_gain, mean_of
from tests.decide.test_calibrate import clear_trace
from tests.samples import multi_label_trace, random_trace, regression_trace

POLICY = Policy("margin", 0.5)


def test_rows_are_the_policy_the_full_model_the_exits_and_the_oracles():
    trace = random_trace(0)
    found = evaluate(trace, POLICY)
    assert [row.name for row in found.rows] == [
        "policy",
        "full model",
        "layer 1",
        "layer 2",
        "layer 3",
        "oracle: first right",
        "oracle: first that agrees",
        "oracle: agrees for good",
    ]
    policy, full, *_ = found.rows
    decisions = POLICY.decide(trace)
    assert policy.score.value == pytest.approx(decisions.accuracy)
    assert policy.speedup == decisions.speedup
    assert policy.drop.value == pytest.approx(full.score.value - policy.score.value)
    assert (full.speedup, full.drop.value, full.drop.low, full.drop.high) == (1, 0, 0, 0)
    assert found.depths == decisions.histogram
    assert found.texts == 60


def test_the_interval_is_that_of_the_share():
    """95 % of a share's normal interval, as wide as statistics says."""
    trace = random_trace(1, texts=1000)
    score = evaluate(trace, POLICY).rows[0].score
    half = 1.96 * np.sqrt(score.value * (1 - score.value) / 1000)
    assert score.low == pytest.approx(score.value - half, abs=0.004)
    assert score.high == pytest.approx(score.value + half, abs=0.004)


def test_a_drop_is_measured_on_the_same_samples():
    """Where the policy and the full model differ on few texts, their difference is known far better than either."""
    trace = clear_trace(3)
    row = evaluate(trace, Policy("margin", 0.9)).rows[0]
    assert row.drop.high - row.drop.low < 0.7 * (row.score.high - row.score.low)


def test_ranks_of_every_bootstrap_sample_are_its_own():
    """Spearman's correlation of a sample is that of the texts repeated as often as they were drawn."""
    trace = regression_trace(0, texts=12)
    rounded = Trace(trace.logits.round(), trace.labels.round(), about=trace.about)  # with equal values
    decisions = static_exit(rounded, 1)
    [figures] = bootstrap_scores(rounded, [decisions], "spearman", resamples=40, seed=3)
    assert figures[0] == pytest.approx(decisions.score("spearman"))
    drawn = np.random.default_rng(3).multinomial(12, np.full(12, 1 / 12), size=41)
    for times, figure in zip(drawn[1:], figures[1:], strict=True):
        expected = spearmanr(np.repeat(rounded.labels, times), np.repeat(decisions.answer, times)).statistic
        assert figure == pytest.approx(0.0 if np.isnan(expected) else expected)


@pytest.mark.parametrize("metric", ["accuracy_and_f1", "matthews"])
def test_other_metrics(metric):
    found = evaluate(random_trace(0, classes=2), POLICY, metric=metric)
    assert found.rows[0].score.value == pytest.approx(POLICY.decide(random_trace(0, classes=2)).score(metric))


def test_several_labels_and_values():
    several = evaluate(multi_label_trace(0), Policy("margin", 0.5, problem_type="multi_label_classification"))
    assert several.metric == "micro_f1"
    values = evaluate(regression_trace(0), Policy("patience", 1, {"within": 0.2}, problem_type="regression"))
    assert values.metric == "r2"
    assert not any("oracle" in row.name for row in values.rows)


class TestGuarantee:
    POLICY = calibrate(clear_trace(0), "entropy", max_disagreement=0.05)

    def test_it_held(self):
        kept = evaluate(clear_trace(5), self.POLICY).guarantee
        assert kept.verdict == "held"
        assert kept.measured.high <= 0.05

    def test_few_texts_that_all_agree_prove_little(self):
        trace = clear_trace(5)
        agreeing = np.flatnonzero(self.POLICY.decide(trace).answer == trace.logits[:, -1].argmax(axis=-1))
        kept = evaluate(trace.select(agreeing[:20]), self.POLICY).guarantee
        assert kept.measured.value == kept.measured.low == 0
        assert kept.measured.high == pytest.approx(1 - 0.025 ** (1 / 20))  # Clopper and Pearson
        assert kept.verdict == "too few texts"

    def test_a_limit_inside_the_interval_is_neither_kept_nor_broken(self):
        for value in (0.007, 0.013):
            check = GuaranteeCheck(Guarantee(at_most=0.01), Estimate(value, 0.006, 0.026))
            assert check.verdict == "too few texts"

    def test_it_did_not(self):
        generator = np.random.default_rng(0)
        noise = Trace(10 * generator.normal(size=(400, 6, 3)), generator.integers(3, size=400))
        kept = evaluate(noise, self.POLICY).guarantee
        assert kept.verdict == "broken"
        assert kept.measured.low > 0.05

    def test_no_promise(self):
        assert evaluate(random_trace(0), POLICY).guarantee is None

    def test_a_policy_of_another_model(self):
        other = Trace(clear_trace(0).logits, clear_trace(0).labels, about={"fingerprint": "m2"})
        with pytest.raises(InputError, match="calibrated for fingerprint m1, and this is fingerprint m2"):
            evaluate(other, self.POLICY)


def test_repr_is_short():
    found = evaluate(clear_trace(5), TestGuarantee.POLICY)
    ours, full = (100 * row.score.value for row in found.rows[:2])
    assert repr(found) == (
        f"Evaluation(accuracy {ours:.1f} % against {full:.1f} % of the full model, {found.rows[0].speedup:.2f} × in "
        "layers, 600 texts; guarantee: held)"
    )


def test_groups_are_measured_alone():
    trace = random_trace(0)
    names = ["a", "b"] * 30
    found = evaluate(trace, POLICY, groups=names)
    assert set(found.groups) == {"a", "b"}
    alone = evaluate(trace.select(slice(0, None, 2)), POLICY)
    assert found.groups["a"].rows[0].score.value == alone.rows[0].score.value
    assert found.groups["a"].texts == 30
    with pytest.raises(InputError, match="there are 2 groups for 60 texts"):
        evaluate(trace, POLICY, groups=["a", "b"])
    large = random_trace(0, texts=1001)
    by_seed = [evaluate(large, POLICY, groups=["a"] * 1001, seed=seed).groups["a"].rows[0].score for seed in range(4)]
    assert len({(score.low, score.high) for score in by_seed}) > 1


def test_it_can_be_written_as_json():
    found = evaluate(random_trace(0), POLICY, groups=["a"] * 60)
    assert json.loads(json.dumps(found.to_dict()))["groups"]["a"]["metric"] == "accuracy"


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (Trace(np.zeros((0, 2, 2)), np.zeros(0, dtype=int)), "no texts to evaluate on"),
        (random_trace(0, classes=3), "metric 'accuracy_and_f1' does not score"),
    ],
)
def test_refuses(trace, message):
    with pytest.raises(InputError, match=message):
        evaluate(trace, POLICY, metric="accuracy_and_f1")


def test_too_many_groups():
    with pytest.raises(InputError, match="there are 101 groups, more than the 100 allowed; use another column"):
        evaluate(random_trace(0, texts=101), POLICY, groups=[str(number) for number in range(101)])


def test_groups_come_in_the_order_of_their_names_and_numbers():
    found = evaluate(random_trace(0, texts=8), POLICY, groups=["35", "9", "b", "a", "9", "35", "nan", "-1"])
    assert list(found.groups) == ["-1", "9", "35", "a", "b", "nan"]


def test_without_labels_agreement_is_measured():
    trace = clear_trace(5)
    policy = calibrate(Trace(clear_trace(0).logits), "entropy", max_disagreement=0.05)
    found = evaluate(Trace(trace.logits), policy)
    assert found.metric == "agreement"
    assert found.rows[1].score.value == 1
    assert found.rows[0].score.value == pytest.approx(1 - found.rows[0].differs)
    assert found.guarantee.verdict == "held"


def test_without_labels_a_guarantee_on_accuracy_cannot_be_checked():
    policy = calibrate(clear_trace(0), "entropy", max_accuracy_drop=0.05)
    assert evaluate(clear_trace(5), policy).guarantee is not None
    found = evaluate(Trace(clear_trace(5).logits), policy)
    assert found.guarantee is None
    assert any("cannot be checked on texts without labels: accuracy" in line for line in verdict(found, policy))


def test_groups_of_texts_without_labels_have_none_either():
    policy = calibrate(clear_trace(0), "entropy", max_accuracy_drop=0.05)
    trace = Trace(clear_trace(5).logits)
    found = evaluate(trace, policy, groups=["a"] * len(trace)).groups["a"]
    assert found.to_dict() == evaluate(trace, policy).to_dict()
    assert found.metric == "agreement"
    assert found.guarantee is None


def test_same_answers_have_the_same_intervals():
    rows = {row.name: row for row in evaluate(random_trace(3, texts=300), POLICY).rows}
    assert rows["full model"].score == rows["oracle: agrees for good"].score == rows["oracle: first that agrees"].score
    again = {row.name: row for row in evaluate(random_trace(3, texts=300), Policy("votes", 1.2)).rows}
    assert again["full model"].score.value == rows["full model"].score.value


def test_samples_of_a_mean_gain_vary_as_pairs_do():
    """Of n pairs the mean's standard error is s / √n, with s² over n − 1; texts add nothing where all are alike."""
    logits = np.zeros((50, 2, 2), dtype=np.float32)
    logits[:, 0, 0], logits[:, 1, 1] = 1, 1  # the first exit is always wrong, the last always right
    trace = Trace(logits, exit_layers=(1, 2), labels=np.ones(50, dtype=np.int64))
    wrong, right = ([(1.0, static_exit(trace, number))] for number in (0, 1))
    for pairs in ([(right, wrong), (wrong, wrong)], [(right, wrong), (wrong, wrong), (wrong, right), (right, wrong)]):
        gains = [1, 0, -1, 1][: len(pairs)]
        sampled = mean_gain(trace, pairs, metric="accuracy", resamples=20_000)
        assert sampled[0] == pytest.approx(np.mean(gains))
        assert sampled[1:].mean() == pytest.approx(np.mean(gains), abs=0.02)
        assert sampled[1:].std() == pytest.approx(np.std(gains, ddof=1) / np.sqrt(len(gains)), rel=0.03)


def test_pairs_that_agree_are_as_sure_as_one():
    trace = random_trace(2, texts=200)
    pair = [(1.0, static_exit(trace, 2))], [(1.0, static_exit(trace, 0))]
    one, three = (mean_gain(trace, [pair] * count, metric="accuracy") for count in (1, 3))
    np.testing.assert_allclose(one, three, atol=1e-12)


def test_the_interval_of_a_mean_of_skewed_estimates_holds():
    chance, sizes, truth = np.random.default_rng(0), np.array([10, 20, 40, 80]), np.array([1.0, 4.0, 2.0, 3.0])
    ends = [2 * sizes / chi2.ppf(tail, 2 * sizes) for tail in (0.975, 0.025)]  # exact for means of waiting times
    below = above = 0
    for seen in chance.gamma(sizes, truth / sizes, size=(4_000, len(sizes))):
        mean = mean_of([Estimate(*each) for each in zip(seen, ends[0] * seen, ends[1] * seen, strict=True)])
        assert mean.value == pytest.approx(seen.mean())
        below += truth.mean() < mean.low
        above += truth.mean() > mean.high
    assert 0.035 < (below + above) / 4_000 < 0.065
    assert max(below, above) / 4_000 < 0.04


def test_the_mean_of_one_estimate_is_itself():
    assert mean_of([Estimate(2.0, 1.0, 4.0)]) == Estimate(2.0, 1.0, 4.0)


def test_texts_are_compared_with_those_of_the_calibration_where_some_exits_are_asked():
    trace = clear_trace(texts=800)
    first, second = trace.select(slice(0, 400)), trace.select(slice(400, 800))
    policy = calibrate(first, "margin", speedup=2, exits=(2, 4, 6))
    assert set(policy.certificate.profile.depths) == {1, 2, 3, 4, 5, 6}
    noise = Trace(np.random.default_rng(0).normal(size=second.logits.shape), second.labels, about=second.about)
    for given in (second, second.at_exits((2, 4, 6))):
        found = evaluate(given, policy)
        assert found.shift is None
        assert found.rows[0].speedup == policy.decide(second).speedup
    for given in (noise, noise.at_exits((2, 4, 6))):
        assert "depth" in str(evaluate(given, policy).shift)
    assert "asking only the exits after layers 2, 4, 6" in verdict(found, policy)[0]
