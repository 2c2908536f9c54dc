"""Scores from sums are the metrics' own, weighted texts count as often as their weight says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitpoll.decide.metrics import METRICS, MULTI_LABEL, REGRESSION, SINGLE_LABEL, metric_named
from exitpoll.errors import InputError


def drawn(metric, seed, texts=30):
    """Gold answers, given ones and the number of classes."""
    generator = np.random.default_rng(seed)
    if metric == "r2":
        gold = generator.normal(size=texts) + 100
        return gold, gold + generator.normal(size=texts), 1
    classes = 2 if metric == "accuracy_and_f1" else 4
    shape, values = ((texts, classes), 2) if metric == "micro_f1" else (texts, classes)
    return generator.integers(values, size=shape), generator.integers(values, size=shape), classes


@pytest.mark.parametrize("metric", METRICS)
@given(seed=st.integers(0, 10**6))
def test_sums_give_the_metric(metric, seed):
    gold, answers, classes = drawn(metric, seed)
    tally = METRICS[metric]
    assert tally.score(tally.counts(gold, answers, classes).sum(axis=0)) == pytest.approx(
        METRICS[metric](gold, answers)
    )


@pytest.mark.parametrize("metric", METRICS)
def test_a_weight_is_a_repetition(metric):
    gold, answers, classes = drawn(metric, 0)
    weights = np.random.default_rng(1).integers(0, 3, size=30)
    notes = METRICS[metric].counts(gold, answers, classes)
    repeated = METRICS[metric](np.repeat(gold, weights, axis=0), np.repeat(answers, weights, axis=0))
    assert METRICS[metric].score(weights @ notes) == pytest.approx(repeated)


def test_accuracy_of_several_labels_asks_for_all_of_them():
    gold, answers = np.array([[1, 0], [1, 1]]), np.array([[1, 0], [1, 0]])
    tally = metric_named("accuracy", MULTI_LABEL, 2)
    assert tally.score(tally.counts(gold, answers, 2).sum(axis=0)) == 0.5


@pytest.mark.parametrize("metric", METRICS)
def test_constant_answers_do_not_divide_by_nothing(metric):
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
