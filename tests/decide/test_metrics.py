"""Metrics are scikit-learn's and SciPy's, also from sums over texts, where a weight counts as a repetition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn import metrics as reference

from exitpoll.decide.metrics import METRICS, MULTI_LABEL, REGRESSION, SINGLE_LABEL, metric_named, predictions, ranks
from exitpoll.errors import InputError

REFERENCES = {
    "accuracy": reference.accuracy_score,
    "accuracy_and_f1": lambda gold, answers: (
        (reference.accuracy_score(gold, answers) + reference.f1_score(gold, answers)) / 2
    ),
    "matthews": reference.matthews_corrcoef,
    "micro_f1": lambda gold, answers: reference.f1_score(gold, answers, average="micro", zero_division=0),
    "r2": reference.r2_score,
    "pearson": lambda gold, answers: pearsonr(gold, answers).statistic,
    "spearman": lambda gold, answers: spearmanr(gold, answers).statistic,
}
OF_SUMS = [name for name, metric in METRICS.items() if not metric.ranked]


def drawn(metric, seed, texts=30):
    """Gold answers, given ones and the number of classes."""
    generator = np.random.default_rng(seed)
    if REGRESSION in METRICS[metric].problem_types:
        gold = generator.normal(size=texts).round(1) + 100  # with equal values
        return gold, gold + generator.normal(size=texts).round(1), 1
    classes = 2 if metric == "accuracy_and_f1" else 4
    shape, values = ((texts, classes), 2) if metric == "micro_f1" else (texts, classes)
    return generator.integers(values, size=shape), generator.integers(values, size=shape), classes


def test_every_metric_has_a_reference():
    assert set(REFERENCES) == set(METRICS)


@pytest.mark.parametrize("metric", METRICS)
@given(seed=st.integers(0, 10**6))
def test_metrics_are_those_of_others(metric, seed):
    gold, answers, classes = drawn(metric, seed)
    expected = pytest.approx(REFERENCES[metric](gold, answers))
    assert METRICS[metric](gold, answers) == expected
    if METRICS[metric].ranked:
        gold, answers = ranks(gold), ranks(answers)
    assert METRICS[metric].score(METRICS[metric].counts(gold, answers, classes).sum(axis=0)) == expected


@pytest.mark.parametrize("metric", OF_SUMS)
def test_a_weight_is_a_repetition(metric):
    gold, answers, classes = drawn(metric, 0)
    weights = np.random.default_rng(1).integers(0, 3, size=30)
    counts = METRICS[metric].counts(gold, answers, classes)
    repeated = REFERENCES[metric](np.repeat(gold, weights, axis=0), np.repeat(answers, weights, axis=0))
    assert METRICS[metric].score(weights @ counts) == pytest.approx(repeated)


def test_accuracy_of_several_labels_asks_for_all_of_them():
    gold, answers = np.array([[1, 0], [1, 1]]), np.array([[1, 0], [1, 0]])
    assert metric_named("accuracy", MULTI_LABEL, 2)(gold, answers) == 0.5


def test_labels_may_be_floats_as_trainer_keeps_them():
    gold, answers = np.array([[1, 0], [1, 1]], dtype=np.float32), np.array([[1, 1], [0, 1]])
    assert METRICS["micro_f1"](gold, answers) == pytest.approx(2 / 3)


@pytest.mark.parametrize("metric", METRICS)
def test_constant_answers_do_not_divide_by_zero(metric):
    gold, _, classes = drawn(metric, 0)
    with np.errstate(all="raise"):
        score = METRICS[metric].score(METRICS[metric].counts(gold * 0, gold * 0, classes).sum(axis=0))
    assert np.isfinite(score)


@pytest.mark.parametrize(
    ("metric", "problem_type", "classes"),
    [("r2", SINGLE_LABEL, 3), ("accuracy", REGRESSION, 1), ("accuracy_and_f1", SINGLE_LABEL, 3)],
)
def test_refuses(metric, problem_type, classes):
    with pytest.raises(InputError, match=f"metric '{metric}' does not score {problem_type} with {classes} classes"):
        metric_named(metric, problem_type, classes)


def test_predictions():
    logits = np.array([[0.5, -1.0], [-2.0, 3.0]])
    assert predictions(logits, SINGLE_LABEL).tolist() == [0, 1]
    assert predictions(logits, MULTI_LABEL).tolist() == [[1, 0], [0, 1]]
    assert predictions(logits, REGRESSION).tolist() == [0.5, -2.0]
