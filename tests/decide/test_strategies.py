"""Values worked out by hand or printed in the papers; causality; numbers that are none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitpoll.decide.fits import FEATURES, features
from exitpoll.decide.formulas import votes
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from exitpoll.decide.numerics import log_softmax, softmax
from exitpoll.decide.policy import Policy
from exitpoll.decide.strategies import STRATEGIES, strategy_named
from exitpoll.decide.strategies import ask as ask_any
from exitpoll.errors import InputError
from tests.samples import multi_label_trace, random_trace, regression_trace, settings_of

PAPER_VOTES = json.loads((Path(__file__).parent / "paper_votes.json").read_text())
LN2 = np.log(2)


def of(probabilities):
    """Logits of one text whose exits say these distributions."""
    with np.errstate(divide="ignore"):
        return np.log(np.array([probabilities], dtype=np.float64)).clip(min=-1e4)


def ask(name, logits, **settings):
    return ask_any(name, logits, settings or settings_of(name), SINGLE_LABEL)


def predicting(classes, count=3):
    """Logits of one text whose exits predict these classes."""
    return np.eye(count)[np.array([classes])] * 4.0


HALF_FIRST, HALF_SECOND = [1 / 2, 1 / 4, 1 / 4], [1 / 4, 1 / 2, 1 / 4]


class TestByHand:
    def test_entropy(self):
        logits = of([HALF_FIRST, [1, 0, 0], [1 / 3] * 3])
        assert ask("entropy", logits).score[0] == pytest.approx([-1.5 * LN2, 0, -np.log(3)])
        normalized = ask("entropy", logits, normalized=True).score[0]
        assert normalized == pytest.approx([-1.5 * LN2 / np.log(3), 0, -1])

    def test_max_prob(self):
        logits = of([HALF_FIRST, HALF_SECOND])
        opinion = ask("max_prob", logits)
        assert opinion.score[0] == pytest.approx([0.5, 0.5])
        assert opinion.answer[0].tolist() == [0, 1]
        # At T = 2 probabilities go with the square roots, (√2, 1, 1) / (2 + √2); at T = 1/2 with the squares.
        tempered = ask("max_prob", logits, temperatures=[2.0, 0.5]).score[0]
        assert tempered == pytest.approx([np.sqrt(2) / (2 + np.sqrt(2)), 4 / 6])

    def test_margin(self):
        assert ask("margin", of([HALF_FIRST, [0.7, 0.2, 0.1]])).score[0] == pytest.approx([0.25, 0.5])

    def test_patience_starts_at_0_and_starts_again_at_every_change(self):
        opinion = ask("patience", predicting([1, 1, 1, 0, 0, 2]))
        assert opinion.score[0].tolist() == [0, 1, 2, 0, 1, 0]
        assert opinion.answer[0].tolist() == [1, 1, 1, 0, 0, 2]

    def test_confident_patience_counts_confident_exits_in_a_row(self):
        sure, unsure = [0.95, 0.03, 0.02], [0.5, 0.3, 0.2]
        opinion = ask("confident_patience", of([sure, sure, unsure, sure]), confidence=0.9)
        assert opinion.score[0].tolist() == [1, 2, 0, 1]

    def test_js_patience_counts_exits_that_say_nearly_the_same(self):
        opinion = ask("js_patience", of([HALF_FIRST, HALF_FIRST, HALF_SECOND, HALF_SECOND]), divergence=0.01)
        assert opinion.score[0].tolist() == [0, 1, 0, 1]

    def test_votes(self):
        opinion = ask("votes", predicting([0, 1, 1, 0, 2]), k=0)
        assert opinion.score[0].tolist() == [1, 1, 2, 2, 2]
        # Ties: the current head's class if among them (exits 2 and 4), else the first (exit 5: classes 0 and 1 have 2).
        assert opinion.answer[0].tolist() == [0, 1, 1, 0, 0]

    def test_soft_votes(self):
        opinion = ask("soft_votes", of([HALF_FIRST, HALF_SECOND, HALF_SECOND]), k=0.5)
        assert opinion.score[0] == pytest.approx([0.5, 0.75 / np.sqrt(2), 1.25 / np.sqrt(3)])
        assert opinion.answer[0, 2] == 1

    def test_mean(self):
        assert ask("mean", of([HALF_FIRST, HALF_SECOND])).score[0] == pytest.approx([0.5, 0.375])

    def test_geometric(self):
        # √(1/2 · 1/4) twice and 1/4 once, made to sum to 1.
        high = np.sqrt(1 / 8)
        expected = high / (2 * high + 1 / 4)
        assert ask("geometric", of([HALF_FIRST, HALF_SECOND])).score[0, 1] == pytest.approx(expected)

    def test_hybrid_counts_the_policies_that_fire(self):
        sure, unsure = [0.98, 0.01, 0.01], [0.4, 0.3, 0.3]
        members = [
            {"strategy": "votes", "threshold": 2, "settings": {"k": 0}},
            {"strategy": "entropy", "threshold": 0.2},
        ]
        opinion = ask("hybrid", of([unsure, sure, [0.3, 0.4, 0.3], [0.3, 0.4, 0.3]]), policies=members)
        assert opinion.score[0].tolist() == [0, 2, 1, 1]  # votes: 1, 2, 2, 2; only exit 2 is sure
        assert opinion.answer[0].tolist() == [0, 0, 0, 1]  # at exit 4 it is two votes each: the head's class

    def test_hybrid_answers_as_the_policy_that_fires(self):
        members = [
            {"strategy": "votes", "threshold": 9, "settings": {"k": 0}},
            {"strategy": "entropy", "threshold": 0.2},
        ]
        first, sure = [0.6, 0.3, 0.1], [0.01, 0.98, 0.01]
        opinion = ask("hybrid", of([first, first, sure]), policies=members)
        assert opinion.answer[0].tolist() == [0, 0, 1]  # the vote would still be for class 0

    def test_learned_is_a_logistic_regression_for_each_exit(self):
        logits = of([HALF_FIRST, HALF_SECOND])
        weights = [[0.0] * len(FEATURES) for _ in range(2)]
        weights[0][FEATURES.index("margin")] = 4.0  # margin is 1/4
        weights[1][FEATURES.index("votes")] = 1.0  # one vote
        opinion = ask("learned", logits, coefficients=weights, intercepts=[-1.0, 0.0])
        assert opinion.score[0] == pytest.approx([0.5, 1 / (1 + np.exp(-1))])
        assert opinion.answer[0].tolist() == [0, 1]

    def test_features(self):
        told = dict(zip(FEATURES, features(of([HALF_FIRST, HALF_SECOND, HALF_SECOND]))[0][0, 2], strict=True))
        assert told["margin"] == pytest.approx(1 / 4)
        assert told["entropy"] == pytest.approx(1.5 * LN2)
        assert told["run"] == 1
        assert told["votes"] == 2


class TestSeed:
    @pytest.mark.parametrize("k", PAPER_VOTES)
    def test_every_printed_value_of_the_vote(self, k):
        """The seed's appendix lists every value V_l can take with two classes and twelve layers."""
        for layer, value in PAPER_VOTES[k]:
            most = round(value * layer ** float(k))
            classes = [0] * most + [1] * (layer - most)
            assert votes(predicting(classes, 2), k=float(k)).score[0, -1] == pytest.approx(value, abs=1e-12)

    @pytest.mark.parametrize("k", PAPER_VOTES)
    def test_no_other_value_is_possible(self, k):
        possible = {
            (layer, round(float(votes(predicting([0] * most + [1] * (layer - most), 2), k=float(k)).score[0, -1]), 9))
            for layer in range(1, 13)
            for most in range((layer + 1) // 2, layer + 1)
        }
        assert possible == {(layer, round(value, 9)) for layer, value in PAPER_VOTES[k]}

    def test_the_example_of_the_appendix(self):
        """With k = 0.75 and δ = 1.5 a text may leave at layer 6 with 6 votes and at layer 9 with 8 or 9."""

        def leaves(most, layer):
            return votes(predicting([0] * most + [1] * (layer - most), 2), k=0.75).score[0, -1] >= 1.5

        assert [most for most in range(3, 7) if leaves(most, 6)] == [6]
        assert [most for most in range(5, 10) if leaves(most, 9)] == [8, 9]


def random_logits(seed, texts=5, exits=6, classes=4, scale=3.0):
    return np.random.default_rng(seed).normal(size=(texts, exits, classes)) * scale


class TestLaws:
    @pytest.mark.parametrize("name", STRATEGIES)
    @given(seed=st.integers(0, 10**6), exits=st.integers(1, 24), classes=st.integers(2, 150))
    def test_a_column_depends_on_the_exits_so_far_alone(self, name, seed, exits, classes):
        logits = random_logits(seed, 3, exits, classes)
        whole = ask(name, logits)
        so_far = int(np.random.default_rng(seed).integers(1, exits + 1))
        live = ask(name, logits[:, :so_far])
        np.testing.assert_array_equal(live.score, whole.score[:, :so_far])
        np.testing.assert_array_equal(live.answer, whole.answer[:, :so_far])

    @pytest.mark.parametrize("name", STRATEGIES)
    @given(seed=st.integers(0, 10**6))
    def test_a_text_does_not_depend_on_its_batch(self, name, seed):
        logits = random_logits(seed)
        order = np.random.default_rng(seed).permutation(len(logits))
        np.testing.assert_array_equal(ask(name, logits[order]).score, ask(name, logits).score[order])
        np.testing.assert_array_equal(ask(name, logits[:1]).score, ask(name, logits).score[:1])

    @pytest.mark.parametrize("name", STRATEGIES)
    @pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
    def test_numbers_that_are_none_never_let_a_text_leave(self, name, broken):
        logits = random_logits(0)
        logits[2, 3, 1] = broken
        score = ask(name, logits).score
        assert (score[2, 3:] == -np.inf).all()
        assert np.isfinite(np.delete(score, 2, axis=0)).all()
        np.testing.assert_array_equal(score[2, :3], ask(name, random_logits(0)).score[2, :3])

    @pytest.mark.parametrize("name", STRATEGIES)
    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_extreme_logits_give_numbers(self, name, dtype):
        most = np.finfo(dtype).max
        logits = np.array([[[most, -most, 0], [-most, most, 0], [0, 0, -most], [0, 0, 0]]], dtype=dtype)
        with np.errstate(all="raise", under="ignore"):
            score = ask(name, logits).score
        assert np.isfinite(score).all()

    @pytest.mark.parametrize("name", STRATEGIES)
    def test_half_precision_is_fine(self, name):
        logits = random_logits(1).astype(np.float16)
        np.testing.assert_array_equal(ask(name, logits).score, ask(name, logits.astype(np.float64)).score)

    @pytest.mark.parametrize("name", STRATEGIES)
    def test_all_exits_sure_of_one_class_is_surest(self, name):
        sure = predicting([1] * 6) * 100
        unsure = predicting([1, 0, 2, 1, 0, 2]) / 2
        if name != "static":  # which asks no head
            assert ask(name, sure).score[0, -1] > ask(name, unsure).score[0, -1]
        assert ask(name, sure).answer[0, -1] == 1


class TestProblemTypes:
    @pytest.mark.parametrize("name", STRATEGIES)
    def test_multi_label_is_as_sure_as_its_least_sure_label(self, name):
        logits = multi_label_trace(0, texts=5).logits
        opinion = ask_any(name, logits, settings_of(name), MULTI_LABEL)
        assert opinion.score.shape == (5, 4)
        assert opinion.answer.shape == (5, 4, 3)
        for label in range(3):
            alone = ask_any(name, logits[..., [label]], settings_of(name), MULTI_LABEL)
            assert (opinion.score <= alone.score).all()
            np.testing.assert_array_equal(opinion.answer[..., label], alone.answer[..., 0])

    def test_one_label_is_a_question_with_two_classes(self):
        logits = np.array([[[0.3], [-2.0]]])
        opinion = ask_any("max_prob", logits, {}, MULTI_LABEL)
        assert opinion.score[0] == pytest.approx([1 / (1 + np.exp(-0.3)), 1 / (1 + np.exp(-2))])
        assert opinion.answer[0, :, 0].tolist() == [1, 0]

    def test_values_leave_when_they_are_stable(self):
        logits = np.array([1.0, 1.05, 1.2, 1.25, 1.22])[None, :, None]
        opinion = ask_any("patience", logits, {"within": 0.1}, REGRESSION)
        assert opinion.score[0].tolist() == [0, 1, 0, 1, 2]
        assert opinion.answer[0].tolist() == [1.0, 1.05, 1.2, 1.25, 1.22]

    @pytest.mark.parametrize(
        "name", [name for name, row in STRATEGIES.items() if not row.regression and name != "hybrid"]
    )
    def test_other_strategies_need_classes(self, name):
        with pytest.raises(InputError, match=f"strategy '{name}' needs classes; for regression choose one of: pat"):
            ask_any(name, regression_trace(0).logits, {}, REGRESSION)

    def test_values_leave_when_they_are_near_the_end(self):
        """One linear regression per exit, of value, square, step and spread."""
        logits = np.array([1.0, 2.0, 2.0])[None, :, None]
        rows = [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.5, 0.25, 0.0, 1.0]]
        settings = {"coefficients": rows, "intercepts": [0.5, 0.0, -1.0]}
        opinion = ask_any("learned", logits, settings, REGRESSION)
        assert -opinion.score[0] == pytest.approx([0.5, 1.0, 1 + 1 + np.std([1, 2, 2]) - 1])
        assert opinion.answer[0].tolist() == [1.0, 2.0, 2.0]

    def test_one_class_is_none(self):
        with pytest.raises(InputError, match="needs at least two"):
            ask_any("entropy", np.zeros((2, 3, 1)), {}, SINGLE_LABEL)


def test_softmax_sums_to_one():
    np.testing.assert_allclose(softmax(random_logits(3)).sum(axis=-1), 1)
    assert (log_softmax(np.array([[1e300, -1e300]])) == [0, -1e4]).all()
    assert np.isfinite(softmax(np.array([[np.inf, np.nan], [-np.inf, -np.inf]]))).all()


def test_unknown_strategy():
    with pytest.raises(InputError, match="strategy 'guess' is unknown; choose one of: entropy, max_prob"):
        strategy_named("guess")


def test_natural_units_of_entropy_fall():
    assert [name for name, strategy in STRATEGIES.items() if strategy.sign < 0] == ["entropy"]
    assert [name for name, row in STRATEGIES.items() if row.sign_for(REGRESSION) < 0] == ["entropy", "learned"]


def test_static_leaves_at_the_exit_that_its_threshold_numbers():
    trace = random_trace(0)
    for number in range(1, 5):
        decisions = Policy("static", number).decide(trace)
        assert set(decisions.exit.tolist()) == {number - 1}
        np.testing.assert_array_equal(decisions.answer, trace.logits[:, number - 1].argmax(axis=-1))
