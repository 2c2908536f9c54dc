"""What is fitted to a trace: that it fits, and that opinions are those of texts it never saw."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from exitpoll.decide import fitting as module
from exitpoll.decide.calibrate import calibrate
from exitpoll.decide.fits import FEATURES, features, value_features
from exitpoll.decide.fitting import candidates, cross_fitted, fit
from exitpoll.decide.formulas import divergences
from exitpoll.decide.numerics import log_softmax
from exitpoll.decide.policy import Policy
from exitpoll.decide.sweep import sweep
from exitpoll.decide.trace import Trace
from exitpoll.errors import InputError
from tests.samples import multi_label_trace, random_trace, regression_trace, settling_trace


def fit_temperatures(trace, towards="right"):
    return fit(trace, "max_prob", towards).settings["temperatures"]


def fit_learned(trace, towards="agreement"):
    return fit(trace, "learned", towards)


class TestTemperatures:
    def test_they_undo_what_scaled_the_logits(self):
        trace = random_trace(0, texts=2000)
        scaled = Trace(trace.logits * np.array([0.2, 1.0, 2.0, 5.0])[:, None], trace.labels)
        found, before = np.array(fit_temperatures(scaled)), np.array(fit_temperatures(trace))
        np.testing.assert_allclose(found / before, [0.2, 1.0, 2.0, 5.0], rtol=1e-3)

    def test_no_other_temperature_is_better(self):
        trace = random_trace(1, texts=300)
        fitted = fit_temperatures(trace)

        def surprise(number, temperature):
            return -log_softmax(trace.logits[:, number] / temperature)[np.arange(300), trace.labels].mean()

        for number, temperature in enumerate(fitted):
            assert surprise(number, temperature) <= min(surprise(number, temperature * f) for f in (0.9, 1.1))

    def test_they_do_not_change_answers(self):
        trace = random_trace(2)
        tempered = Policy("max_prob", 0.9, {"temperatures": fit_temperatures(trace)})
        np.testing.assert_array_equal(
            tempered.opinion(trace.logits).answer, Policy("max_prob").opinion(trace.logits).answer
        )

    def test_opinions_are_of_texts_they_were_not_fitted_to(self):
        trace = random_trace(3)
        candidate = cross_fitted(trace, "max_prob", "right")
        assert candidate.policy.settings["temperatures"] == fit_temperatures(trace)
        assert (candidate.opinion.score != candidate.policy.opinion(trace.logits).score).all()

    def test_agreement_needs_no_labels(self):
        assert len(fit_temperatures(Trace(random_trace(0).logits), "agreement")) == 4
        with pytest.raises(InputError, match="fitting to the labels needs labels"):
            fit_temperatures(Trace(random_trace(0).logits))


class TestLearned:
    def test_it_is_the_regression_that_it_says(self):
        trace = random_trace(0, texts=400)
        policy = fit_learned(trace, "right")
        told = features(trace.logits)[0][:, 1]
        scaled = (told - told.mean(axis=0)) / told.std(axis=0)
        right = trace.logits[:, 1].argmax(axis=-1) == trace.labels
        model = LogisticRegression(C=0.1, solver="newton-cholesky").fit(scaled, right)
        np.testing.assert_allclose(
            policy.opinion(trace.logits).score[:, 1], model.predict_proba(scaled)[:, 1], atol=1e-4
        )

    def test_settings_are_plain_numbers(self, tmp_path):
        policy = fit_learned(random_trace(0))
        assert np.array(policy.settings["coefficients"]).shape == (4, len(FEATURES))
        policy.save(tmp_path / "policy.json")
        assert Policy.load(tmp_path / "policy.json") == policy

    def test_the_surer_of_agreeing_the_more_often_it_agrees(self):
        fitted, new = random_trace(0, texts=2000), random_trace(1, texts=2000)
        score = fit_learned(fitted).opinion(new.logits).score[:, 0]
        heads = new.logits.argmax(axis=-1)
        agrees = heads[:, 0] == heads[:, -1]
        low, high = score < np.quantile(score, 0.3), score > np.quantile(score, 0.7)
        assert agrees[high].mean() > agrees[low].mean() + 0.2
        assert abs(agrees.mean() - score.mean()) < 0.05  # it is a probability

    def test_an_exit_that_always_agrees(self):
        heads = np.array([0, 1, 1])
        trace = Trace(np.eye(2)[np.stack([heads, heads], axis=1)] * 3.0, heads)
        chance = fit_learned(trace).opinion(trace.logits).score
        assert chance == pytest.approx(0.8)  # (3 + 1) / (3 + 2)

    def test_opinions_are_of_texts_it_never_saw(self):
        """Were a text's own answer known to the fit, pure chance would look like knowledge."""
        generator = np.random.default_rng(0)
        trace = Trace(generator.normal(size=(60, 3, 2)), generator.integers(2, size=60))
        candidate = cross_fitted(trace, "learned", "right")
        seen = fit_learned(trace, "right").opinion(trace.logits).score
        right = trace.logits.argmax(axis=-1) == trace.labels[:, None]
        gap = {
            "seen": seen[right].mean() - seen[~right].mean(),
            "unseen": candidate.opinion.score[right].mean() - candidate.opinion.score[~right].mean(),
        }
        assert gap["seen"] > 0.02 > gap["unseen"]
        assert candidate.policy == fit_learned(trace, "right")

    def test_few_texts(self):
        for texts in (1, 2, 3, 5):
            candidate = cross_fitted(random_trace(0, texts=texts), "learned")
            assert np.isfinite(candidate.opinion.score).all()

    def test_many_texts_are_drawn_from(self, monkeypatch):
        trace = random_trace(0, texts=100)
        whole = fit_learned(trace)
        monkeypatch.setattr(module, "FITTED_ON", 50)
        assert fit_learned(trace) != whole

    def test_every_label_of_several(self):
        trace = multi_label_trace(0)
        opinion = fit_learned(trace, "right").opinion(trace.logits)
        assert opinion.answer.shape == (60, 4, 3)
        assert ((opinion.score > 0) & (opinion.score < 1)).all()


@pytest.mark.parametrize(
    ("trace", "towards", "message"),
    [
        (random_trace(0), "wisdom", "towards 'wisdom' is unknown; choose one of: agreement, right"),
        (Trace(random_trace(0).logits), "right", "needs labels"),
        (regression_trace(0), "right", "towards 'right' is for classes"),
        (Trace(np.zeros((0, 2, 2))), "agreement", "no texts to fit to"),
    ],
)
def test_refuses_to_fit(trace, towards, message):
    with pytest.raises(InputError, match=message):
        fit_learned(trace, towards)


class TestDistances:
    """Of values, the distance from the last head's is learned."""

    def test_it_is_the_regression_that_it_says(self):
        trace = settling_trace(0)
        values = trace.logits[..., 0]
        told = value_features(values)[:, 3]
        scaled = (told - told.mean(axis=0)) / told.std(axis=0)
        model = Ridge(alpha=1.0).fit(scaled, np.abs(values[:, 3] - values[:, -1]))
        score = fit_learned(trace).opinion(trace.logits).score[:, 3]
        np.testing.assert_allclose(-score, model.predict(scaled), atol=1e-4)

    def test_the_nearer_it_seems_the_nearer_it_is(self):
        fitted, new = settling_trace(0), settling_trace(1)
        score = fit_learned(fitted).opinion(new.logits).score[:, 4]
        distance = np.abs(new.logits[:, 4, 0] - new.logits[:, -1, 0])
        low, high = score < np.quantile(score, 0.3), score > np.quantile(score, 0.7)
        assert distance[high].mean() < 0.5 * distance[low].mean()
        assert -score.mean() == pytest.approx(distance.mean(), rel=0.2)  # it is a distance

    def test_values_that_are_absurd_give_numbers(self):
        policy, logits = fit_learned(settling_trace(0)), settling_trace(1, texts=5).logits.copy()
        logits[0, 2] = 1e99
        assert np.isfinite(policy.opinion(logits).score).all()

    def test_few_texts(self):
        for texts in (1, 2, 3, 5):
            candidate = cross_fitted(settling_trace(0, texts=texts), "learned")
            assert np.isfinite(candidate.opinion.score).all()

    @pytest.mark.parametrize("metric", ["r2", "pearson", "spearman"])
    def test_it_is_better_than_patience_and_static_exits(self, metric):
        calibration, test = settling_trace(0, texts=500), settling_trace(1, texts=3000)
        for speedup in (1.5, 3):
            scores = {
                name: calibrate(calibration, name, speedup=speedup, metric=metric).decide(test).score(metric)
                for name in ("learned", "patience", "static")
            }
            assert scores["learned"] > max(scores["patience"] - 0.002, scores["static"] + 0.01), scores


class TestSettingsThatMustOccur:
    def test_they_are_tried_at_levels_that_occur(self):
        """With many classes no head may ever be as sure as the usual settings ask for."""
        unsure = random_trace(0, texts=300, classes=77, clarity=2)
        highest = np.exp(log_softmax(unsure.logits)).max(axis=-1)
        assert highest.max() < 0.8
        tried = [candidate.policy.settings["confidence"] for candidate in candidates(unsure, ["confident_patience"])]
        assert len(tried) == 4
        assert all(0.05 < (highest >= level).mean() < 0.95 for level in tried)

    def test_the_usual_ones_are_kept_where_they_occur(self):
        trace = random_trace(0, texts=300, clarity=3)
        for name, usual in (("confident_patience", [0.8, 0.9, 0.95, 0.99]), ("js_patience", [0.001, 0.01, 0.05, 0.1])):
            assert [next(iter(one.policy.settings.values())) for one in candidates(trace, [name])] == usual

    def test_distributions_that_hardly_move(self):
        still = Trace(1e-4 * random_trace(0, texts=300).logits, random_trace(0, texts=300).labels)
        fast = [curve.speedup.max() for curve in sweep(still, ["js_patience"])]
        assert len(fast) > 1
        steps = divergences(still.logits)
        tried = [candidate.policy.settings["divergence"] for candidate in candidates(still, ["js_patience"])]
        assert any(0.05 < (steps < level).mean() < 0.95 for level in tried)


def test_without_labels_nothing_is_fitted_to_them():
    trace = Trace(random_trace(0).logits)
    fitted = [each.policy.settings.get("towards") for each in candidates(trace, ["max_prob", "learned"])]
    assert fitted == [None, "agreement", "agreement"]


def test_large_traces_are_asked_part_by_part(monkeypatch):
    trace = random_trace(0)
    [whole] = candidates(trace, ["margin"])
    monkeypatch.setattr(Trace, "chunks", lambda self: (self.select(slice(i, i + 7)) for i in range(0, 60, 7)))
    [parts] = candidates(trace, ["margin"])
    np.testing.assert_array_equal(parts.opinion.score, whole.opinion.score)
    np.testing.assert_array_equal(parts.opinion.answer, whole.opinion.answer)


def test_unknown_strategy():
    with pytest.raises(InputError, match="strategy 'guess' is unknown"):
        list(candidates(random_trace(0), ["guess"]))
