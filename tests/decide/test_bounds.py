"""p-values and bounds against SciPy's, and as laws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from exitpoll.decide.bounds import TESTS, betting, binomial, texts_needed


@pytest.mark.parametrize(("count", "texts", "limit"), [(0, 100, 0.02), (3, 200, 0.05), (30, 100, 0.2)])
def test_the_binomial_test_is_scipys(count, texts, limit):
    losses = np.arange(texts) < count
    assert binomial(losses, limit, 0.95) == pytest.approx(binomtest(count, texts, limit, alternative="less").pvalue)


def test_the_bound_is_clopper_and_pearsons():
    losses = (np.arange(500) < 7).astype(float)
    theirs = binomtest(7, 500, alternative="less").proportion_ci(0.95, method="exact").high
    assert TESTS["disagreement"].upper_bound(losses, 0.95) == pytest.approx(theirs, abs=1e-9)


def test_betting_is_right_under_the_hypothesis():
    """If the mean is at the limit, p-values below α come up no more often than α."""
    generator = np.random.default_rng(0)
    p_values = [
        betting(generator.choice([1.0, 0.0, -1.0], p=[0.08, 0.89, 0.03], size=400), 0.05, 0.9) for _ in range(2000)
    ]
    for alpha in (0.01, 0.1, 0.3):
        assert np.mean(np.array(p_values) <= alpha) <= alpha + 3 * np.sqrt(alpha * (1 - alpha) / 2000)


def test_betting_needs_far_fewer_texts_than_hoeffding():
    hoeffding = np.log(1 / 0.05) / (2 * (0.02 / 2) ** 2)  # losses in [−1, 1], a gap of 0.02
    assert texts_needed("accuracy", 0.02, 0.95) < hoeffding / 50


def test_more_losses_are_never_better_proof():
    for test in (binomial, betting):
        p_values = [test((np.arange(300)[::-1] < count).astype(float), 0.05, 0.95) for count in range(0, 30, 3)]
        assert (np.diff(p_values) >= -1e-12).all()


def test_texts_needed():
    assert texts_needed("disagreement", 0.01, 0.95) == 299  # 0.99^299 ≤ 0.05 < 0.99^298
    for risk in ("disagreement", "accuracy"):
        needed = texts_needed(risk, 0.03, 0.9)
        assert TESTS[risk].upper_bound(np.zeros(needed), 0.9) <= 0.03 + 1e-5
        assert TESTS[risk].upper_bound(np.zeros(needed - 1), 0.9) > 0.03


def test_no_texts_prove_nothing():
    assert binomial(np.zeros(0), 0.1, 0.9) == 1
    assert betting(np.zeros(0), 0.1, 0.9) == 1
