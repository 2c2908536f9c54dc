"""The queueing simulation agrees with what is known of simple queues."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.queueing import TextTimes, estimate, geometric_counts, replicas_for, response_times

TEXTS = 200_000


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_constant_times_wait_as_in_theory(load):
    """M/D/1: a text waits ρ / (2 (1 - ρ)) times its own time on average."""
    waited = response_times(load, np.ones(TEXTS), 1) - 1
    assert waited.mean() == pytest.approx(load / (2 * (1 - load)), rel=0.05)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_exponential_times_have_the_tail_of_theory(load):
    """M/M/1: response times are exponential with rate μ - λ."""
    service = np.random.default_rng(1).exponential(1.0, TEXTS)
    times = response_times(load, service, 1)
    assert times.mean() == pytest.approx(1 / (1 - load), rel=0.08)
    assert np.quantile(times, 0.99) == pytest.approx(-math.log(0.01) / (1 - load), rel=0.1)


def test_several_replicas_wait_as_in_theory():
    """M/M/c: the share of texts that wait is Erlang's C formula."""
    replicas, load = 4, 0.75
    offered = replicas * load
    terms = [offered**count / math.factorial(count) for count in range(replicas)]
    busy = offered**replicas / math.factorial(replicas) / (1 - load)
    service = np.random.default_rng(2).exponential(1.0, TEXTS)
    waited = response_times(offered, service, replicas) - service
    assert (waited > 1e-9).mean() == pytest.approx(busy / (sum(terms) + busy), rel=0.05)


def test_any_replica_is_as_many_single_queues():
    single = response_times(0.6, np.ones(TEXTS), 1)
    any_of_four = response_times(2.4, np.ones(TEXTS), 4, balanced=False)
    assert any_of_four.mean() == pytest.approx(single.mean(), rel=0.05)
    assert response_times(2.4, np.ones(TEXTS), 4).mean() < any_of_four.mean()


def test_the_fewest_replicas_are_found():
    service = np.full(20_000, 0.01)
    count = replicas_for(1000.0, service, 0.03)
    assert np.quantile(response_times(1000.0, service, count), 0.99) <= 0.03
    assert count == 11 or np.quantile(response_times(1000.0, service, count - 1), 0.99) > 0.03


def test_depths_are_drawn_with_the_given_mean():
    counts = geometric_counts(12, 3.0)
    assert sum(counts.values()) == pytest.approx(1)
    assert sum(depth * share for depth, share in counts.items()) == pytest.approx(3.0, abs=1e-3)


def test_exits_need_fewer_replicas(monkeypatch):
    monkeypatch.setattr("benchmarks.queueing.TEXTS", 5_000)
    times = TextTimes.between(full=0.0125, exits=0.0035, layers=12, mean_depth=3.0)
    assert times == TextTimes(pytest.approx(0.0005), pytest.approx(0.001))
    found = estimate(times, geometric_counts(12, 3.0), 12, 1)
    without, exits = found["without"]["least busy"], found["with exits"]["least busy"]
    assert without["replicas"] / exits["replicas"] == pytest.approx(12.5 / 3.5, rel=0.1)
    assert exits["p99_ms"] <= found["limit_ms"]
