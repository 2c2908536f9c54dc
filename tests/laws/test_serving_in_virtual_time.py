"""Exits pay under load: capacity and latency of the live scheduler in virtual time, to 10 % of what is asked."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.virtual_time import EXITS, NEVER, PATIENCE, Traffic, capacity, full_depth_seconds, latencies

TEXTS = 800
GUARD = 0.9  # what is asked for may be missed by 10 %: depths and arrivals are drawn
SHORT, LONG = 10, 54  # tokens of a text
CHEAP, COSTLY = 5.0, 24.0  # overhead of a call, in tokens: ONNX Runtime on one thread, and torch
REACHED = {  # capacity by that of full depth times the speed-up in layers, when this was written: batches add to it
    (SHORT, CHEAP): 1.39,
    (LONG, CHEAP): 1.46,
    (SHORT, COSTLY): 1.07,
}


class Served:
    """Capacities with exits, at full depth and with exits but no refill."""

    def __init__(self, tokens, call_tokens):
        self.reached = REACHED[tokens, call_tokens]
        self.traffic = Traffic.drawn(TEXTS, tokens, seed=1)
        self.call_tokens = call_tokens
        alone = full_depth_seconds(self.traffic, call_tokens)
        self.ways = {
            "exits": partial(latencies, self.traffic, policy=EXITS, call_tokens=call_tokens),
            "full": partial(latencies, self.traffic, policy=NEVER, call_tokens=call_tokens),
            "no refill": partial(latencies, self.traffic, policy=EXITS, call_tokens=call_tokens, refill=False),
        }
        guesses = {"exits": 2.4 / alone, "full": 0.9 / alone, "no refill": 2.4 / alone}
        self.capacity = {name: capacity(run, PATIENCE * alone, guesses[name]) for name, run in self.ways.items()}

    def quantile(self, name, share, rate):
        return float(np.quantile(self.ways[name](rate), share))


@pytest.fixture(scope="module", params=REACHED, ids=str)
def served(request):
    return Served(*request.param)


def test_capacity_follows_the_layers_that_are_run(served):
    least = 0.75 if served.traffic.lengths.mean() <= 16 else 0.9
    kept = served.capacity["exits"] / (served.traffic.speedup * served.capacity["full"])
    assert kept >= GUARD * max(least, served.reached)


def test_refilling_is_not_worse_than_whole_batches(served):
    rate = 0.6 * served.capacity["full"]
    assert served.capacity["exits"] >= GUARD * 0.95 * served.capacity["no refill"]
    assert GUARD * 0.95 * served.quantile("exits", 0.5, rate) <= served.quantile("no refill", 0.5, rate)


def test_refilling_is_better_where_calls_are_costly(served):
    if served.call_tokens < 20:
        pytest.skip("batches save little here")
    rate = 0.9 * served.capacity["no refill"]
    later = served.quantile("exits", 0.99, rate) >= served.quantile("no refill", 0.99, rate)
    assert served.capacity["exits"] > served.capacity["no refill"] or not later


def test_latency_under_the_same_load_is_lower(served):
    rate = 0.6 * served.capacity["full"]
    for share, most in ((0.5, 0.5), (0.99, 0.6)):
        assert GUARD * served.quantile("exits", share, rate) <= most * served.quantile("full", share, rate)


def test_a_text_alone_does_not_wait(served):
    one = Traffic(np.array([3]), np.array([SHORT]), np.array([1.0]))
    [seconds] = latencies(one, 1.0, EXITS, served.call_tokens)
    [without] = latencies(one, 1.0, EXITS, served.call_tokens, refill=False)
    assert seconds == pytest.approx(without)
    assert seconds < 0.5 * full_depth_seconds(one, served.call_tokens)
