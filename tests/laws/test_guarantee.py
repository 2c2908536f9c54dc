"""Law 6: over hundreds of calibrations with known risk, the guarantee is violated no more often than stated."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from experiments import guarantee
from experiments.guarantee import CONFIDENCE, allowed

from exitpoll.decide.trace import Trace

RUNS = 300
simulate = cache(guarantee.simulate)


@pytest.mark.parametrize("texts", [300, 1000])
@pytest.mark.parametrize("limit", [0.02, 0.05])
def test_the_guarantee_holds(texts, limit):
    outcome = simulate("max_prob", "disagreement", texts, limit, RUNS)
    assert outcome.broken <= allowed(RUNS)


@pytest.mark.parametrize(("texts", "limit"), [(300, 0.05), (1000, 0.02)])
def test_that_of_accuracy_too(texts, limit):
    outcome = simulate("max_prob", "accuracy", texts, limit, RUNS)
    assert outcome.broken <= allowed(RUNS)


def test_it_holds_for_texts_in_the_order_of_their_classes():
    """A file sorted by class must not make early losses look rare."""
    outcome = simulate("max_prob", "accuracy", 600, 0.05, 100, draw=by_class)
    assert outcome.broken <= allowed(100)


def by_class(seed, texts):
    """Class 0 loses nothing by leaving early, class 1 much, and class 0 comes first."""
    chance = np.random.default_rng(seed)
    labels = np.sort(chance.integers(2, size=texts))
    early = np.where(chance.random(texts) < 0.3 * labels, 1 - labels, labels)
    sure = chance.uniform(1, 3, size=(texts, 1, 1))
    logits = sure * np.eye(2)[np.stack([early, early, labels, labels], axis=1)]
    return Trace(logits, labels)


def test_it_does_not_hold_by_guaranteeing_nothing():
    outcome = simulate("max_prob", "disagreement", 1000, 0.05, RUNS)
    assert outcome.left_early > 0.99
    assert outcome.speedup > 1.3
    assert outcome.broken > 0.2 * (1 - CONFIDENCE)  # nor by guaranteeing far too little


@pytest.mark.parametrize("risk", ["disagreement", "accuracy"])
def test_it_holds_for_the_better_of_a_search_and_a_fixed_strategy(risk):
    outcome = simulate("best", risk, 400, 0.05, 60)
    assert outcome.broken <= allowed(60)
    assert outcome.left_early > 0.9


@pytest.mark.parametrize("risk", ["disagreement", "accuracy"])
def test_it_holds_for_a_search_over_settings(risk):
    """Of soft votes, k is searched on one half of the texts and proven on the other."""
    outcome = simulate("soft_votes", risk, 400, 0.05, 100)
    assert outcome.broken <= allowed(100)


def test_the_threshold_that_merely_looks_right_breaks_it():
    """The loosest threshold with a measured risk within the limit: as everyone chooses, and wrong half the time."""
    for risk in ("disagreement", "accuracy"):
        outcome = simulate("max_prob", risk, 300, 0.05, RUNS, proven=False)
        assert outcome.broken > 3 * allowed(RUNS), outcome
        assert np.isfinite(outcome.speedup)
